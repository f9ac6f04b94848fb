"""Inferway: the accuracy or the deadline promised, at the least latency, from edge to cloud.

    import inferway

    deployment = inferway.load("examples/paper-fleet.yaml")
    inferway.bound(deployment)["recognise"].least_response_time_s

Names are imported when they are first used, so that ``import inferway`` costs a millisecond. Where
Gymnasium is imported already, ``gymnasium.make("inferway/EdgeSite-v0")`` works from then on.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferway.deployment import Deployment, DeploymentError, check, load, schema
    from inferway.dispatch.deployed import bound
    from inferway.dispatch.replay import replay
    from inferway.placement.offline import place
    from inferway.twin import simulate

__version__ = "0.1.0"

_FROM = {
    "Deployment": "inferway.deployment",
    "DeploymentError": "inferway.deployment",
    "bound": "inferway.dispatch.deployed",
    "check": "inferway.deployment",
    "load": "inferway.deployment",
    "place": "inferway.placement.offline",
    "replay": "inferway.dispatch.replay",
    "schema": "inferway.deployment",
    "simulate": "inferway.twin",
}

__all__ = [
    "Deployment",
    "DeploymentError",
    "__version__",
    "bound",
    "check",
    "load",
    "place",
    "replay",
    "schema",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'inferway' has no attribute {name!r}")
    return getattr(importlib.import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if sys.modules.get("gymnasium") is not None:
    importlib.import_module("inferway.learning.registration")
