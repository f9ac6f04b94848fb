"""Inferway: the accuracy or the deadline promised, at the least latency, from edge to cloud.

>>> import inferway as iw
>>> d = iw.load("examples/paper-fleet.yaml")
>>> round(iw.bound(d)["classify"].least_response_time_s, 6)
0.866667
>>> r = iw.simulate(d, policy="tad-op", load=0.5, queries=20_000)
>>> r.tasks["classify"].stable
True

Names are imported when they are first used, so that ``import inferway`` costs a millisecond. Where
Gymnasium is imported already, ``gymnasium.make("inferway/EdgeSite-v0")`` works from then on. In a
notebook, figures are shown.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from inferway.version import __version__

if TYPE_CHECKING:
    from inferway.deployment import Deployment, DeploymentError, load, schema
    from inferway.dispatch.replay import replay
    from inferway.experiments.driven import drive
    from inferway.experiments.findings import bound, check
    from inferway.experiments.networks import place
    from inferway.experiments.planned import plan
    from inferway.experiments.profiled import profile
    from inferway.experiments.simulation import simulate
    from inferway.experiments.sweep import sweep
    from inferway.experiments.trained import train
    from inferway.exporting import export
    from inferway.live.running import serve
    from inferway.studies import study

_FROM = {
    "inferway.deployment": ("Deployment", "DeploymentError", "load", "schema"),
    "inferway.dispatch.replay": ("replay",),
    "inferway.experiments.driven": ("drive",),
    "inferway.experiments.findings": ("bound", "check"),
    "inferway.experiments.networks": ("place",),
    "inferway.experiments.planned": ("plan",),
    "inferway.experiments.profiled": ("profile",),
    "inferway.experiments.simulation": ("simulate",),
    "inferway.experiments.sweep": ("sweep",),
    "inferway.experiments.trained": ("train",),
    "inferway.exporting": ("export",),
    "inferway.live.running": ("serve",),
    "inferway.studies": ("study",),
}

__all__ = [
    "Deployment", "DeploymentError", "__version__", "bound", "check", "drive", "export", "load",
    "place", "plan", "profile", "replay", "schema", "serve", "simulate", "study", "sweep", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _FROM.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'inferway' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if sys.modules.get("gymnasium") is not None:
    importlib.import_module("inferway.learning.registration")
if sys.modules.get("IPython") is not None:
    importlib.import_module("inferway.experiments.text").register()
