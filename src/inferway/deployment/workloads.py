"""Workloads: how requests arrive, for which tasks, and where they enter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from inferway.deployment.column import time_pieces
from inferway.deployment.errors import must, refuse, refuse_where
from inferway.deployment.section import UNWRITTEN, File, Name, Section, check_kind, says
from inferway.deployment.units import (
    AnyNumber,
    Count,
    Load,
    Number,
    PositiveNumber,
    PositiveRate,
    PositiveSeconds,
    Ratio,
)

Row = Annotated[tuple[AnyNumber, ...], Field(min_length=1)]
Matrix = Annotated[tuple[Row, ...], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, kw_only=True)
class _Rated(Section):
    """Arrivals with a mean rate, absolute or relative to what the fleet can serve."""

    rate: Annotated[PositiveRate | None, says("Mean arrival rate.")] = None
    load: Annotated[
        Load | None,
        says(
            "Mean arrival rate over the greatest feasible rate (the "
            "papers' rho), instead of `rate`."
        ),
    ] = None

    _has_one_rate = model_validator(mode="after")(
        must(
            lambda one: (one.rate is None) != (one.load is None),
            "needs either `rate` (such as 120/s) or `load` (such as 0.7)",
        )
    )

    def mean_rate_per_s(self, capacity_per_s: float | None = None) -> float:
        """Return the mean rate, given the greatest feasible one, which `load` is relative to.

        Raises
        ------
        ValueError
            If the file gives a load and no capacity is known.
        """
        if self.rate is not None:
            return self.rate
        if self.load is None or capacity_per_s is None:
            raise ValueError("a load becomes a rate only where the greatest feasible rate is known")
        return self.load * capacity_per_s


@dataclass(frozen=True, kw_only=True)
class PoissonArrivals(_Rated):
    """Independent requests at a steady rate."""

    process: Literal["poisson"]


@dataclass(frozen=True, kw_only=True)
class ConstantArrivals(_Rated):
    """Requests at equal distances."""

    process: Literal["constant"]


@dataclass(frozen=True, kw_only=True)
class SinusoidalArrivals(_Rated):
    """A Poisson process whose rate swings around its mean."""

    process: Literal["sinusoidal"]
    amplitude: Annotated[Ratio, says("Largest departure from the mean rate, relative to it.")]
    period: Annotated[PositiveSeconds, says("Time of one swing.")]


@dataclass(frozen=True, kw_only=True)
class MapArrivals(Section):
    """A Markovian arrival process: phases that change at random, each with its own rate."""

    process: Literal["map"]
    d0: Annotated[
        Matrix,
        says(
            "Rates per second of changing phase without a request; the "
            "diagonal makes rows sum to 0."
        ),
    ]
    d1: Annotated[
        Matrix, says("Rates per second of a request arriving, by phase before and after it.")
    ]

    @model_validator(mode="after")
    def _is_a_map(self) -> MapArrivals:
        matrices = {"d0": self.d0, "d1": self.d1}
        first, second = (f"{len(matrix)} x {len(matrix[0])}" for matrix in matrices.values())
        square = first == second == f"{len(self.d0)} x {len(self.d0)}"
        refuse_where(
            *(
                (
                    len(row) != len(of[0]),
                    f"row {i} of {name} has {len(row)} entries, not {len(of[0])}",
                )
                for name, of in matrices.items()
                for i, row in enumerate(of)
            ),
            (
                not square,
                f"d0 and d1 must be square and of one size, but d0 is {first} and d1 is {second}",
            ),
        )
        d0, d1 = np.array(self.d0), np.array(self.d1)
        for name, rates in (("d0", d0 - np.diag(np.diag(d0))), ("d1", d1)):
            for i, j in np.argwhere(rates < 0):
                raise refuse(f"not a MAP: {name}[{i}][{j}] is {rates[i, j]:g}, a negative rate")
        for i, total in enumerate(d0.sum(axis=1) + d1.sum(axis=1)):
            refuse_where(
                (d0[i, i] >= 0, f"not a MAP: d0[{i}][{i}] is {d0[i, i]:g}, it must be below 0"),
                (
                    abs(total) > 1e-9 * max(abs(d0[i, i]), 1e-300),
                    f"not a MAP: row {i} of d0 and d1 together sums to {total:.6g}, not to 0; "
                    f"d0[{i}][{i}] would have to be {d0[i, i] - total:.10g}",
                ),
            )
        _refuse_dead_phases(d0 + d1, d1)
        return self

    @property
    def stationary(self) -> NDArray[np.float64]:
        """(phases,) long-run share of time in each phase: pi (D0 + D1) = 0, pi 1 = 1."""
        generator = np.array(self.d0) + np.array(self.d1)
        equations = np.vstack([generator.T, np.ones(len(generator))])
        right = np.append(np.zeros(len(generator)), 1.0)
        # Scaled to the fastest phase, or rates of 1e5 and 1e-4 in one matrix lose digits.
        equations[:-1] /= np.abs(np.array(self.d0)).max()
        shares = np.linalg.lstsq(equations, right)[0].clip(0)
        return np.asarray(shares / shares.sum())

    def mean_rate_per_s(self, capacity_per_s: float | None = None) -> float:
        """Return the long-run arrival rate, pi D1 1; a capacity plays no part."""
        del capacity_per_s
        return float(self.stationary @ np.array(self.d1).sum(axis=1))


def _refuse_dead_phases(generator: NDArray[np.float64], d1: NDArray[np.float64]) -> None:
    """Refuse a process with two separate classes of phases, or one that goes silent for good."""
    size = len(generator)
    reach = (generator > 0) | np.eye(size, dtype=bool)
    for k in range(size):
        reach |= np.outer(reach[:, k], reach[k])
    recurrent = [i for i in range(size) if all(reach[j, i] for j in range(size) if reach[i, j])]
    closed = {tuple(np.flatnonzero(reach[i])) for i in recurrent}
    if len(closed) > 1:
        one, other = sorted(closed)[:2]
        raise refuse(
            f"not one MAP: phases {list(map(int, one))} and {list(map(int, other))} never reach "
            "each other, so there is no single mean rate"
        )
    if not d1[list(closed.pop())].any():
        raise refuse("not a MAP with arrivals: in the long run d1 gives no requests")


@dataclass(frozen=True, kw_only=True)
class Phase(_Rated):
    """A stretch of time with its own rate."""

    for_: Annotated[PositiveSeconds, says("How long it lasts.", "for")]
    accuracy_target: Annotated[
        Ratio | None, says("Target during the phase, instead of the task's.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PhasedArrivals(Section):
    """A Poisson process whose rate changes at fixed times, in cycles."""

    process: Literal["phases"]
    phases: Annotated[tuple[Phase, ...], Field(min_length=1), says("The phases, in order.")]


def poisson(rate_per_s: float) -> PoissonArrivals:
    """Make Poisson arrivals of a rate that is a number; a file gives it a unit."""
    return PoissonArrivals(process="poisson", rate=float(rate_per_s))


def constant(rate_per_s: float) -> ConstantArrivals:
    """Make arrivals at equal distances, of a rate that is a number."""
    return ConstantArrivals(process="constant", rate=float(rate_per_s))


def phased(stretches: Iterable[tuple[float, float, float | None]]) -> PhasedArrivals:
    """Make phases of numbers: for how many seconds, the rate per second, and the target or None."""
    phases = tuple(
        Phase(for_=float(lasts_s), rate=float(rate_per_s), accuracy_target=target)
        for lasts_s, rate_per_s, target in stretches
    )
    return PhasedArrivals(process="phases", phases=phases)


@dataclass(frozen=True, kw_only=True)
class TraceArrivals(Section):
    """Arrival times from a file."""

    process: Literal["trace"]
    file: Annotated[File, says("A CSV file; its first column holds seconds or timestamps, sorted.")]
    speed: Annotated[PositiveNumber, says("How many times faster than recorded to replay it.")] = (
        1.0
    )
    # In place of the file's: (n,) sorted times, s.
    times_s: Annotated[Any, *UNWRITTEN] = field(default=None, compare=False, repr=False)

    def pieces(self, size: int) -> Iterator[NDArray[np.float64]]:
        """Read the times as recorded, in sorted pieces of at most so many, s.

        Raises
        ------
        ColumnError
            As `time_pieces`.
        """
        if self.times_s is None:
            return time_pieces(self.file, size)
        return (self.times_s[at : at + size] for at in range(0, len(self.times_s), size))


def recorded(times_s: NDArray[np.float64]) -> TraceArrivals:
    """Make arrivals at (n,) sorted times that are known, s."""
    return TraceArrivals(process="trace", file=Path("recorded"), times_s=times_s)


_PROCESSES = ("poisson", "constant", "sinusoidal", "map", "phases", "trace")
Arrivals = Annotated[
    PoissonArrivals
    | ConstantArrivals
    | SinusoidalArrivals
    | MapArrivals
    | PhasedArrivals
    | TraceArrivals,
    Field(discriminator="process"),
    BeforeValidator(partial(check_kind, "process", _PROCESSES)),
]


@dataclass(frozen=True, kw_only=True)
class Sliding(Section):
    """Popularity that moves over the tasks."""

    shift: Annotated[Count, says("By how many ranks.")]
    every: Annotated[PositiveSeconds, says("How often.")]


@dataclass(frozen=True, kw_only=True)
class Popularity(Section):
    """How requests spread over identical tasks."""

    zipf: Annotated[
        Number, says("Exponent: the r-th most popular task is asked for in proportion to r^-zipf.")
    ]
    sliding: Annotated[Sliding | None, says("Let the ranks move with time.")] = None


@dataclass(frozen=True, kw_only=True)
class Entries(Section):
    """Where requests enter the network."""

    tier: Annotated[Name | None, says("At nodes of this tier.")] = None
    nodes: Annotated[
        Annotated[tuple[Name, ...], Field(min_length=1)] | None,
        says("At these nodes, instead of `tier`."),
    ] = None
    per_task: Annotated[
        Count | None,
        says("At how many of them, drawn at random for each task; at all if not given."),
    ] = None

    _has_one_form = model_validator(mode="after")(
        must(
            lambda one: (one.tier is None) != (one.nodes is None), "needs either `tier` or `nodes`"
        )
    )


@dataclass(frozen=True, kw_only=True)
class Workload(Section):
    """The requests for one task (or for all tasks of its `count` together)."""

    arrivals: Annotated[Arrivals, says("When requests arrive.")]
    popularity: Annotated[
        Popularity | None, says("How they spread over the tasks of a `count`; evenly if not given.")
    ] = None
    entries: Annotated[Entries | None, says("Where they enter the network.")] = None
