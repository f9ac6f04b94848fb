"""The networks of [SiSalem23] and [SiSalem21] and their requests (Sec. VI of both).

What the papers leave open, and what was taken: tiers 0 to 4 of Topology I have 1, 1, 2, 8 and 24
nodes, those of the conference 1, 1, 4, 20 and 60; Topology II is a cloud, one node of tiers 1 and
3, and two base stations. Each task is requested at two base stations drawn at random, half each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from inferway.catalog.published import table
from inferway.deployment import ServiceTime, Task, Variant
from inferway.deployment.workloads import Popularity, constant
from inferway.network import (
    DeliveryNetwork,
    Demand,
    Level,
    Requests,
    Topology,
    delivery_network,
    shortest_paths,
    tree,
)
from inferway.network.demand import TaskStream, peaks
from inferway.network.layout import assign

GIB: Final = float(2**30)
SLOT_S: Final = 60.0
TASKS: Final = 20
ZIPF: Final = 1.2
SHIFT: Final = 5
WINDOW: Final = 2.7e7  # requests between two shifts of a sliding popularity, the paper's W


def _conference(part: float) -> tuple[Level, ...]:
    """The conference's tree. RTTs are ours: they add up to the 50 ms that the paper states."""
    mixed = ((0.75, GIB * part), (0.25, 4 * GIB * part))
    return (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.025, 16 * GIB * part, "gtx-980"),
        Level("tier 2", 4, 0.015, 12 * GIB * part, "gtx-980"),
        Level("tier 3", 20, 0.005, 8 * GIB * part, "gtx-980"),
        Level("base", 60, 0.005, mixed, "gtx-980"),
    )


# Trees, from the cloud down.
SYSTEMS: Final[Mapping[str, tuple[Level, ...]]] = {
    "I": (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.040, 16 * GIB, "titan-rtx"),
        Level("tier 2", 2, 0.015, 12 * GIB, "gtx-980"),
        Level("tier 3", 8, 0.006, 8 * GIB, "gtx-980"),
        Level("base", 24, 0.006, 4 * GIB, "gtx-980"),
    ),
    "II": (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.040, 16 * GIB, "titan-rtx"),
        Level("tier 3", 1, 0.021, 8 * GIB, "gtx-980"),
        Level("base", 2, 0.006, 4 * GIB, "gtx-980"),
    ),
    "conference": _conference(1.0),
    "conference, smaller": _conference(0.2),
}

# Table II, by increasing accuracy, as the figures order it.
MODELS: Final = tuple(sorted(table("paper/yolov4"), key=lambda entry: entry.accuracy))


class DeliveryScenario(NamedTuple):
    """A network and its requests."""

    network: DeliveryNetwork
    demand: Demand
    topology: Topology


def yolov4(copies: int) -> Task:
    """The papers' 20 detection tasks."""
    variants = {
        entry.name: Variant(
            entry.name,
            accuracy=entry.accuracy,
            size_bytes=entry.size_bytes,
            service={
                hardware: ServiceTime("deterministic", mean_s)
                for hardware, mean_s in entry.mean_s.items()
            },
        )
        for entry in table("paper/yolov4")
    }
    return Task("detection", variants, count=TASKS, max_instances=copies)


@lru_cache(maxsize=4)
def scenario(
    system: str, *, alpha: float, rate_per_s: float, sliding: bool, seed: int, copies: int = 3
) -> DeliveryScenario:
    """Build one of `SYSTEMS` with its requests.

    A point of inaccuracy is worth `alpha` ms. Popularity may slide by five tasks every `WINDOW`
    requests. The seed is of the base stations where tasks are requested, and of the requests;
    `copies` limits the replicas of a model on a node.
    """
    topology = tree(SYSTEMS[system], seed=seed)
    asked: dict[str, Any] = {"alpha": alpha, "rate_per_s": rate_per_s, "sliding": sliding}
    places = topology.of_tier("base")
    return demanded(topology, places, **asked, seed=seed, copies=copies, per_task=2)


def demanded(
    topology: Topology,
    places: np.ndarray[Any, np.dtype[np.int64]],
    *,
    alpha: float,
    rate_per_s: float,
    sliding: bool,
    seed: int,
    copies: int,
    per_task: int,
) -> DeliveryScenario:
    """Give a topology the papers' tasks and requests, which enter at some of `places`."""
    moving = {"shift": SHIFT, "every": f"{WINDOW / rate_per_s!r} s"} if sliding else None
    stream = TaskStream(
        constant(rate_per_s),
        Popularity.read({"zipf": ZIPF, **({"sliding": moving} if moving else {})}),
        np.arange(TASKS * per_task).reshape(TASKS, per_task),
    )
    entry, path = np.unique(assign(TASKS, places, per_task, seed=seed).ravel(), return_inverse=True)
    types = TASKS * per_task
    requests = Requests(
        task=np.repeat(np.arange(TASKS), per_task).astype(np.int32),
        path=path.astype(np.int32),
        share=np.full(types, 1.0 / per_task),
        peak=peaks((stream,), types, SLOT_S),
    )
    network = delivery_network(
        [yolov4(copies)],
        topology,
        shortest_paths(topology, entry, np.flatnonzero(topology.repository)),
        requests,
        alpha=alpha,
        slot_s=SLOT_S,
    )
    return DeliveryScenario(network, Demand((stream,), types, SLOT_S, seed), topology)
