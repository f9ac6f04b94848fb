"""Sizing: numbers of instances that could keep what a task promises, the cheapest or the roomiest.

Mixed-integer programs, solved by HiGHS: whole numbers n_v of instances; shares of the traffic at
the arrival rate, whose mean service time has to be within the latency; and the traffic that the
instances carry at most ([Anonymous], Definition 1), which says how much room they leave. Queues are
not in it, so an answer has to be simulated; one that fails is ruled out together with all that
have no more of any variant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from inferway.site.view import Floats, Ints

_TIE = 1e-5  # Of equal prices, the most room: what all of it counts against the smallest price


@dataclass(frozen=True)
class Need:
    """One task: what it promises, and the V variants that can answer it.

    Parameters
    ----------
    rate_per_s
        Arrival rate, 1/s.
    latency_s
        Greatest mean response time, s.
    target, energy_budget
        Least mean accuracy, greatest mean energy of a request in J, or None.
    rate, accuracy, energy
        (V,) service rate of one instance, 1/s; accuracy; J per request.
    price, size_bytes
        (V,) of one instance.
    least, most
        (V,) instances at least, and at most (inf for no limit).
    budget_bytes
        What all instances may take together (inf for no limit).
    """

    task: str
    variants: tuple[str, ...]
    rate_per_s: float
    latency_s: float
    target: float | None
    energy_budget: float | None
    rate: Floats
    accuracy: Floats
    energy: Floats
    price: Floats
    size_bytes: Floats
    least: Ints
    most: Floats
    budget_bytes: float


def cheapest(need: Need, *, load: float) -> Ints | None:
    """The cheapest instances whose load is at most `load`, (V,); None where there are none.

    The load is the arrival rate over the greatest that the instances carry with the means kept.
    """
    program = _Program(need)
    program.carries(need.rate_per_s / load)
    return program.solve(program.prices - _TIE * program.room / max(1.0, program.least_room))


def roomiest(need: Need, *, below: float, failed: Sequence[Ints]) -> Ints | None:
    """The instances of the least load among those cheaper than `below`; None where none are left.

    An answer has more of at least one variant than each of the (V,) that have failed.
    """
    program = _Program(need)
    program.carries(need.rate_per_s)
    program.costs_less(below)
    for counts in failed:
        program.exceeds(counts)
    return program.solve(-program.room)


class _Program:
    """Columns: V counts, V shares, V loads carried (of the arrival rate), then switches."""

    def __init__(self, need: Need) -> None:
        self.need = need
        size = len(need.rate)
        self.low = [*map(float, need.least), *np.zeros(2 * size)]
        self.high = [*map(float, need.most), *np.ones(size), *np.full(size, np.inf)]
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.least_room = 1.0
        self.unit = float(need.price[need.price > 0].min(initial=np.inf))
        self.unit = self.unit if np.isfinite(self.unit) else 1.0
        self.prices = np.concatenate([need.price / self.unit, np.zeros(2 * size)])
        self.room = np.concatenate([np.zeros(2 * size), np.ones(size)])
        shares, carried = range(size, 2 * size), range(2 * size, 3 * size)
        self.rows.append((dict.fromkeys(shares, 1.0), 1.0, 1.0))
        self._at_most(dict(zip(shares, 1 / (need.rate * need.latency_s), strict=True)), 1.0)
        self._at_most(dict(enumerate(need.size_bytes / 2**20)), need.budget_bytes / 2**20)
        for traffic in (shares, carried):
            for v, column in enumerate(traffic):
                self._at_most({column: need.rate_per_s / float(need.rate[v]), v: -1.0}, 0.0)
            if need.target is not None:
                self._at_most(dict(zip(traffic, need.target - need.accuracy, strict=True)), 0.0)
            if need.energy_budget is not None:
                excess = need.energy / need.energy_budget - 1
                self._at_most(dict(zip(traffic, excess, strict=True)), 0.0)

    def _at_most(self, row: dict[int, float], limit: float) -> None:
        if np.isfinite(limit):
            self.rows.append((row, -np.inf, limit))

    def carries(self, rate_per_s: float) -> None:
        """At least this rate can be carried."""
        self.least_room = rate_per_s / self.need.rate_per_s
        row = {int(column): 1.0 for column in np.flatnonzero(self.room)}
        self.rows.append((row, self.least_room, np.inf))

    def costs_less(self, price: float) -> None:
        """All instances together are cheaper, by more than rounding."""
        row = {v: one / self.unit for v, one in enumerate(map(float, self.need.price))}
        self._at_most(row, price / self.unit - 1e-4)

    def exceeds(self, counts: Ints) -> None:
        """More of some variant than `counts`: a switch for each, one of which is on."""
        first = len(self.low)
        for v, count in enumerate(map(float, counts)):
            self.rows.append(({v: 1.0, first + v: -(count + 1)}, 0.0, np.inf))
            self.low.append(0.0)
            self.high.append(1.0)
        self.rows.append((dict.fromkeys(range(first, len(self.low)), 1.0), 1.0, np.inf))

    def solve(self, cost: Floats) -> Ints | None:
        """The counts of least cost."""
        size, columns = len(self.need.rate), len(self.low)
        entries = [(r, c, a) for r, (row, _, _) in enumerate(self.rows) for c, a in row.items()]
        places = [np.array([entry[axis] for entry in entries]) for axis in (0, 1)]
        values = np.array([a for _, _, a in entries], np.float64)
        matrix = csr_array((values, (places[0], places[1])), shape=(len(self.rows), columns))
        whole = np.ones(columns, np.int64)
        whole[size : 3 * size] = 0
        with _silence():
            solution: Any = milp(
                np.concatenate([cost, np.zeros(columns - 3 * size)]),
                integrality=whole,
                bounds=Bounds(np.array(self.low), np.array(self.high)),
                constraints=LinearConstraint(
                    matrix,
                    np.array([low for _, low, _ in self.rows]),
                    np.array([high for _, _, high in self.rows]),
                ),
            )
        return None if solution.x is None else np.rint(solution.x[:size]).astype(np.int64)


@contextmanager
def _silence() -> Iterator[None]:
    """Send what HiGHS prints on standard output, a trace of its own, nowhere: ours may be JSON."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        for file in (kept, nowhere):
            with suppress(OSError):
                os.close(file)
