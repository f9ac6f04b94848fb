"""Sizing: numbers of instances that could keep what a task promises, the cheapest or the roomiest.

Mixed-integer programs, solved by HiGHS: whole numbers n_v of instances; shares of the traffic at
the arrival rate, whose mean service time has to be within the latency; and the traffic that the
instances carry at most ([Anonymous], Definition 1), which says how much room they leave. Traffic is
what first variants and, where confidences are given, second ones are asked, as in
`inferway.dispatch.escalation_bounds`. Tasks that targets over several join are in one program, at
a load that all of them have. Queues are not in it, so an answer has to be simulated; one that fails
is ruled out together with all that have no more of any variant.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferway.dispatch.escalation_bounds import EscalationProgram, escalation_program
from inferway.dispatch.joint_bounds import JointMean
from inferway.site.confidence import ConfidenceTables
from inferway.site.fleet import Fleet
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
    carried
        (V,) greatest rate that one instance carries, in batches where it has some, 1/s; `rate` if
        not given.
    price, size_bytes
        (V,) of one instance.
    least, most
        (V,) instances at least, and at most (inf for no limit).
    budget_bytes
        What all instances may take together (inf for no limit).
    confidence
        What confidences of the variants say, in their order, where a second variant may be asked;
        None where none may.
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
    confidence: ConfidenceTables | None = None
    carried: Floats | None = None

    @property
    def ample(self) -> Fleet:
        """One instance of each variant, in the order of fleets."""
        return Fleet(
            self.variants,
            self.rate,
            self.accuracy,
            np.ones(len(self.rate), np.int64),
            energy=self.energy,
            confidence=self.confidence,
        )


@dataclass(frozen=True)
class TaskGroup:
    """Several tasks that are sized together, for targets over several of them.

    Parameters
    ----------
    needs
        What each task asks for; their own `budget_bytes` count for nothing.
    means
        Over the answers of several of these tasks.
    budget_bytes
        What all instances may take together (inf for no limit).
    """

    needs: tuple[Need, ...]
    means: tuple[JointMean, ...] = ()
    budget_bytes: float = np.inf

    @property
    def price(self) -> Floats:
        """(V,) prices of the variants of all tasks, in their order."""
        return np.concatenate([one.price for one in self.needs])

    def apart(self, counts: Ints) -> list[Ints]:
        """Cut (V,) counts of all variants into those of each task."""
        ends = np.cumsum([len(one.rate) for one in self.needs])
        return np.split(counts, ends[:-1])


def alone(need: Need) -> TaskGroup:
    """One task that is sized by itself."""
    return TaskGroup((need,), budget_bytes=need.budget_bytes)


def cheapest(asked: TaskGroup, *, load: float) -> Ints | None:
    """The cheapest instances whose load is at most `load`, (V,); None where there are none.

    The load is the arrival rate over the greatest that the instances carry with the means kept; of
    several tasks, so many times the rates of all of them.
    """
    room = 1.0 / load
    return _solve(asked, asked.price / _unit(asked), -_TIE / max(1.0, room), room)


def roomiest(asked: TaskGroup, *, below: float, failed: Sequence[Ints]) -> Ints | None:
    """The instances of the least load among those cheaper than `below`; None where none are left.

    An answer has more of at least one variant than each of the (V,) that have failed.
    """
    return _solve(asked, np.zeros(len(asked.price)), -1.0, 1.0, below, failed)


def _unit(asked: TaskGroup) -> float:
    """The smallest price, by which all are divided."""
    price = asked.price
    unit = float(price[price > 0].min(initial=np.inf))
    return unit if np.isfinite(unit) else 1.0


def _solve(
    asked: TaskGroup,
    price: Floats,
    of_room: float,
    least_room: float,
    below: float = np.inf,
    failed: Sequence[Ints] = (),
) -> Ints | None:
    """The counts of least cost: (V,) of an instance, and of the load that all can carry.

    Columns: V counts, T shares of traffic, T loads carried (of the arrival rate), and for each that
    failed V switches, one of which is on where more of their variant are taken.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import block_diag, csr_array, hstack, vstack

    needs = asked.needs
    size, ones = len(price), np.ones(len(price))
    programs, instances = zip(*(_traffic(need) for need in needs), strict=True)
    streams = sum(len(one.asked) for one in programs)
    ends = np.cumsum([0, *(len(one.asked) for one in programs)])
    carried, switched = size + streams, size + 2 * streams
    columns = switched + len(failed) * size
    rows: list[Floats] = []
    limits: list[tuple[float, float]] = []

    def add(least: float, most: float, *parts: tuple[int, Sequence[float] | Floats]) -> None:
        """One row: its coefficients from a column on."""
        if np.isfinite(least) or np.isfinite(most):
            row = np.zeros(columns)
            for first, values in parts:
                row[first : first + len(values)] = values
            rows.append(row)
            limits.append((least, most))

    for need, program, at in zip(needs, programs, ends, strict=False):
        add(1.0, 1.0, (size + at, program.asked))
        add(-np.inf, 1.0, (size + at, program.service_s / need.latency_s))
        if at:
            # All tasks have the same load, so that means over them weigh their answers.
            add(0.0, 0.0, (carried, programs[0].asked), (carried + at, -program.asked))
    for mean in asked.means:
        excess = _excess(mean, needs, programs)
        for first in (size, carried):
            add(-np.inf, 0.0, (first, excess))
    sizes = np.concatenate([need.size_bytes for need in needs])
    add(-np.inf, asked.budget_bytes / 2**20, (0, sizes / 2**20))
    add(least_room, np.inf, (carried, programs[0].asked))
    # Cheaper by more than rounding.
    add(-np.inf, below / _unit(asked) - 1e-4, (0, asked.price / _unit(asked)))
    for number, counts in enumerate(failed):
        at = switched + number * size
        for v, count in enumerate(counts.tolist()):
            add(0.0, np.inf, (v, [1.0]), (at + v, [-(count + 1.0)]))
        add(1.0, np.inf, (at, ones))
    traffic = block_diag([one.rows for one in programs], format="csr")
    served = block_diag(instances, format="csr")
    none, rest = (
        csr_array(traffic.shape),
        csr_array((traffic.shape[0], len(failed) * size)),
    )
    every = vstack(
        [
            csr_array(np.array(rows)),
            hstack([served, traffic, none, rest]),
            hstack([served, none, traffic, rest]),
        ]
    )
    least, most = np.array(limits).T
    kept = np.zeros(2 * traffic.shape[0])
    switches, flows = np.ones(len(failed) * size), np.ones(streams)
    counted = np.zeros(streams)
    counted[: ends[1]] = programs[0].asked
    fewest, greatest = (
        np.concatenate([getattr(need, limit) for need in needs]) for limit in ("least", "most")
    )
    with silence():
        solution: Any = milp(
            np.concatenate([price, 0 * flows, of_room * counted, 0 * switches]),
            integrality=np.concatenate([ones, 0 * flows, 0 * flows, switches]),
            bounds=Bounds(
                np.concatenate([fewest, 0 * flows, 0 * flows, 0 * switches]),
                np.concatenate([greatest, flows, np.inf * flows, switches]),
            ),
            constraints=LinearConstraint(
                every, np.concatenate([least, kept - np.inf]), np.concatenate([most, kept])
            ),
        )
    return None if solution.x is None else np.rint(solution.x[:size]).astype(np.int64)


def _excess(
    mean: JointMean, needs: Sequence[Need], programs: Sequence[EscalationProgram]
) -> Floats:
    """(T,) excess of each stream over the limit of a mean, weighted by the task's rate."""
    total = sum(need.rate_per_s for need in needs if need.task in mean.tasks)
    parts = []
    for need, one in zip(needs, programs, strict=True):
        if mean.accuracy is not None:
            excess = mean.accuracy * one.asked - one.accuracy
        else:
            assert mean.energy is not None
            excess = one.energy / mean.energy - one.asked
        inside = need.task in mean.tasks
        parts.append(excess * (need.rate_per_s / total if inside else 0.0))
    return np.concatenate(parts)


def _traffic(need: Need) -> tuple[EscalationProgram, Any]:
    """Lay out T streams of traffic at the arrival rate, and the V instances that carry them.

    Rows of both together are at most 0: means that are kept, what instances have room for, and
    answers that may be asked again.
    """
    from scipy.sparse import csr_array

    fleet = need.ample
    program = escalation_program(fleet, need.target, need.energy_budget)
    first, classes = len(program.units), np.arange(len(fleet.rate))
    scale = np.ones(program.rows.shape[0])
    variant = np.array([need.variants.index(name) for name in fleet.variants])
    carried = need.rate if need.carried is None else need.carried
    # The program's rows are of single runs; batches take less of an instance for each request.
    scale[first + classes] = need.rate_per_s / carried[variant]
    entries = (np.full(len(classes), -1.0), (first + classes, variant))
    return (
        program._replace(rows=program.rows.multiply(scale[:, None]).tocsr()),
        csr_array(entries, shape=(len(scale), len(need.rate))),
    )


_SILENCE = threading.Lock()


@contextmanager
def silence() -> Iterator[None]:
    """Send what HiGHS prints on standard output, a trace of its own, nowhere: ours may be JSON.

    One thread at a time; what others print meanwhile goes nowhere, too.
    """
    with _SILENCE:
        yield from _silenced()


def _silenced() -> Iterator[None]:
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
