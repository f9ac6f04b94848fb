"""What an environment is of: the paper's site, or a deployment file's, and how it is controlled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Literal

import numpy as np

from inferway.deployment import ServiceTime, load
from inferway.deployment.workloads import MapArrivals
from inferway.learning.deployed import control_of
from inferway.learning.site import Control
from inferway.site import Fleet
from inferway.twin.scenario import Scenario

__all__ = ["Observability", "paper_site", "setting"]

Observability = Literal["po", "fo"]
"""Whether the workload's state is seen: partial or full observability."""


def paper_site() -> Scenario:
    """The site of [Tan24], Sec. 5.1: two light and two heavy servers of 15 places, 300 ms.

    Arrivals are the MAP of two phases, 180/s and 10/s. The printed D0 leaves its first phase at
    0.036/s; only 0.0036/s fits the paper's figures.
    """
    service_s = (0.0107, 0.0429)
    return Scenario(
        fleet=Fleet(
            variants=("light", "heavy"),
            rate=1.0 / np.array(service_s),
            accuracy=np.array([0.7769, 0.8278]),
            count=np.array([2, 2]),
            buffer=15,
        ),
        service=tuple(ServiceTime("deterministic", mean_s) for mean_s in service_s),
        arrivals=MapArrivals(
            process="map",
            d0=((-180.0036, 0.0036), (0.0002, -10.0002)),
            d1=((180.0, 0.0), (0.0, 10.0)),
        ),
        policy="alias",
        deadline_s=0.3,
        late="serve",
    )


def setting(
    file: str | PathLike[str] | None = None,
    *,
    task: str | None = None,
    node: str | None = None,
    slot_s: float | None = None,
    observability: Observability = "po",
    batching: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    gains: Sequence[float] | None = None,
) -> Control:
    """A site under slotted control.

    Parameters
    ----------
    file
        Deployment file; `paper_site` without one.
    task, node
        Which of the file's, where it has several.
    slot_s
        Time between two decisions, s; the file's (``scheduling.slot``), or 1, if not given.
    observability
        ``fo`` adds the workload's phase to observations, and the time in it where it is periodic.
    batching
        Whether batch sizes are decided, too; the variants need a ``batch``.
    alpha, beta
        Cost of a rejected request, and what accuracy weighs, in the reward ([Tan24], eq. 2).
    gains
        (K,) accuracies in the reward, in the fleet's order; the fleet's own if not given.

    Raises
    ------
    DeploymentError
        For a file that is none.
    ValueError
        For options out of range, or a site that cannot be controlled in slots.
    """
    if observability not in ("po", "fo"):
        raise ValueError(f"observability is po or fo, not {observability!r}")
    if file is None:
        if task is not None or node is not None:
            raise ValueError("a task or node is one of a file: give the file, too")
        if batching:
            raise ValueError(
                "the paper prints no service times of batches: give a file whose variants have "
                "a `batch`"
            )
        control = Control(
            paper_site(),
            slot_s=1.0 if slot_s is None else slot_s,
            sees_phase=observability == "fo",
        )
    else:
        policy = f"rl-{observability}{'-b' if batching else ''}"
        control = control_of(load(file), task, policy, node=node, slot_s=slot_s)
    return replace(
        control,
        rejected_weight=alpha,
        accuracy_weight=beta,
        gains=() if gains is None else tuple(gains),
    )
