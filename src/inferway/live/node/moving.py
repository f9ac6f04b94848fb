"""What a node tells of its copies: which run, which come and go, which could not be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inferway.live.node.shelf import Pair


class Copy(NamedTuple):
    """One of the copies of a variant at the node."""

    task: str
    variant: str
    number: int

    @property
    def pair(self) -> Pair:
        """What it is a copy of."""
        return self.task, self.variant


@dataclass(frozen=True)
class Moving:
    """A copy on its way.

    Attributes
    ----------
    name
        ``TASK/VARIANT``.
    step
        ``loading``, ``starting`` while sites take it up, or ``leaving``.
    done_bytes, total_bytes
        What has been fetched of its file; None where nothing is fetched, or nobody says how much
        it will be.
    """

    name: str
    step: str
    done_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Failure:
    """A variant that could not be loaded.

    Attributes
    ----------
    name
        ``TASK/VARIANT``.
    reason
        Why, in one sentence.
    times
        How often in a row.
    again_s
        Seconds until it is tried again, while it is wanted; 0 where it is due.
    """

    name: str
    reason: str
    times: int
    again_s: float


@dataclass(frozen=True)
class MoverStatus:
    """What runs and what moves.

    Attributes
    ----------
    running
        Copies that take requests, by ``TASK/VARIANT``.
    moving
        Copies on their way.
    failures
        Variants that could not be loaded.
    budget_bytes
        Of the node; None without a bound.
    used_bytes
        Of the budget, by what runs, comes and goes.
    moved_bytes
        Loaded since the start, pinned copies left out, as the network twin counts them.
    """

    running: dict[str, int]
    moving: tuple[Moving, ...]
    failures: tuple[Failure, ...]
    budget_bytes: float | None
    used_bytes: float
    moved_bytes: float


class Failed(NamedTuple):
    """Why a variant could not be loaded, how often in a row, and when it is tried again."""

    reason: str
    times: int
    due_s: float


def name_of(pair: Pair) -> str:
    """Write ``TASK/VARIANT``."""
    return "/".join(pair)
