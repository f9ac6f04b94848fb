"""The whole deployment file, as written."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, Strict, field_validator

from inferway.deployment.nodes import Network, WrittenNode
from inferway.deployment.policies import DispatchPolicy, PlacementPolicy, SchedulingPolicy
from inferway.deployment.quantities import Number, refuse
from inferway.deployment.section import Name, Section
from inferway.deployment.tasks import WrittenTask
from inferway.deployment.workloads import Workload

MOST_TASKS: Final = 100_000
"""Of all kinds together: each has a name, and entries of its own."""


class Cost(Section):
    """What placement minimizes: latency plus alpha times inaccuracy (eq. 6 of [SiSalem23])."""

    alpha: Number
    """Milliseconds that one point of inaccuracy (0..100) is worth."""


class Document(Section):
    """An Inferway deployment: what is served, where, and by which policies."""

    tasks: Annotated[dict[Name, WrittenTask], Field(min_length=1)]
    """What clients ask for, by name."""
    nodes: dict[Name, WrittenNode] = Field(default_factory=dict)
    """The machines, by name; one node `here` with one instance of each variant if not given."""
    network: Network | None = None
    """How the nodes are joined."""
    dispatch: DispatchPolicy | None = None
    """Which server answers a request."""
    scheduling: SchedulingPolicy | None = None
    """How routing changes per second."""
    placement: PlacementPolicy | None = None
    """Which variants live on which node."""
    cost: Cost | None = None
    """What placement minimizes."""
    seed: Annotated[int, Strict(), Field(ge=0, lt=2**63)] = 0
    """Start of all random numbers."""
    workload: dict[Name, Workload] = Field(default_factory=dict)
    """How requests arrive, by task."""

    @field_validator("tasks")
    @classmethod
    def _are_not_too_many(cls, tasks: dict[str, WrittenTask]) -> dict[str, WrittenTask]:
        total = sum(task.count for task in tasks.values())
        if total > MOST_TASKS:
            raise refuse(f"there are {total:,} tasks by `count`, and {MOST_TASKS:,} are the most")
        return tasks
