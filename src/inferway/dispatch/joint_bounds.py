"""The bound of several tasks together: one LP over all of them, with a row for each joint target.

The LP is that of [Anonymous], eq. 3, for each task, joined by rows over the answers of several: a
mean accuracy, a mean energy, or a device that instances of several tasks share. Its dual price of a
joint row is one for all of its tasks: at the optimum, a request of task i goes where its service
time less (own price + joint price) times accuracy is least. Where a second variant may be asked, it
is the LP of `inferway.dispatch.escalation_bounds` for each task that is joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from inferway.dispatch.bounds import TOLERANCE, UnreachableError, linear_program
from inferway.dispatch.escalation_bounds import EscalationProgram, escalation_program
from inferway.site.fleet import Fleet
from inferway.site.view import Floats


class TaskDemand(NamedTuple):
    """One task of several: its fleet, how fast its requests come, and what it promises itself."""

    fleet: Fleet
    rate_per_s: float  # Above 0
    target: float | None = None
    energy_budget: float | None = None


class JointMean(NamedTuple):
    """A mean over the answers of several tasks: of accuracy at least, or of energy at most."""

    tasks: tuple[str, ...]
    accuracy: float | None = None
    energy: float | None = None  # J


class JointOptimum(NamedTuple):
    """Solution of the LP."""

    shares: dict[str, Floats]  # By task, (K,) fraction of its requests per class
    response_time_s: float  # Least mean service time over the requests of all tasks
    # Dual price of each joint mean: s per unit of accuracy, or s per J; at least 0.
    prices: tuple[float, ...]
    again: dict[str, float]  # By task, fraction of its requests that a second variant is asked


def solve_jointly(
    demands: Mapping[str, TaskDemand],
    means: Sequence[JointMean],
    *,
    limited: bool = True,
    twice: bool = False,
) -> JointOptimum:
    """Solve for the least mean service time that keeps all joint means and the tasks' own.

    Parameters
    ----------
    demands
        By task; those of each mean are among them.
    means
        Joint ones.
    limited
        Whether instances and devices have capacities; without, as at low load.
    twice
        Whether a second variant may be asked where the first one's confidence says that it pays.

    Raises
    ------
    UnreachableError
        Where nothing keeps them all at these rates.
    """
    program = _Program(demands, limited, twice)
    rows = [program.excess(mean) for mean in means]
    solution = program.solved(program.service_s, rows)
    if solution is None:
        raise UnreachableError("no mix of the variants keeps all targets at these rates")
    shares, again = {}, {}
    for name, part in program.parts.items():
        asked = np.clip(solution.x[part], 0.0, None) / program.weights[name]
        classes = len(demands[name].fleet.rate)
        shares[name], again[name] = asked[:classes], float(asked[classes:].sum())
    units = [1.0 if mean.energy is None else mean.energy for mean in means]
    duals = solution.ineqlin.marginals[: len(rows)] * program.unit_s
    prices = (max(0.0, -float(one) / unit) for one, unit in zip(duals, units, strict=True))
    service_s = float(np.clip(solution.x, 0.0, None) @ program.service_s) * program.unit_s
    return JointOptimum(shares, service_s, tuple(prices), again)


def greatest_factor(
    demands: Mapping[str, TaskDemand], means: Sequence[JointMean], *, twice: bool = False
) -> float:
    """Greatest number by which all rates can be multiplied with all means kept; 0 for none.

    `twice` as in `solve_jointly`.
    """
    return _Program(demands, True, twice).greatest([*means])


@dataclass(frozen=True)
class JointBest:
    """The best that policies of several tasks can do together.

    Attributes
    ----------
    max_factor
        Greatest number of times that all rates can be carried with all means kept.
    least_response_time_s
        Least mean service of a request of any task; None where the rates cannot be carried. So are
        the following.
    shares
        By task and class, the fraction of its requests that it is asked first.
    again
        By task, the fraction of its requests that a second variant is asked.
    prices
        Of each target, s per unit of accuracy or s per J.
    unreachable
        Where no multiple of the rates can be carried, the targets over several tasks that no mix of
        the variants keeps: those that none keeps alone, or all where it is their number.
    """

    max_factor: float
    least_response_time_s: float | None
    shares: dict[str, dict[str, float]] | None
    again: dict[str, float] | None
    prices: dict[str, float] | None
    unreachable: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """By name."""
        told = dict(vars(self))
        targets = told.pop("unreachable")
        return told | {"unreachable": list(targets)} if targets else told


@dataclass(frozen=True)
class JointBound:
    """The bound of several tasks together, which targets over several or shared devices join.

    Attributes
    ----------
    rates_per_s
        By task.
    targets
        Those over several of them.
    blind
        Of policies that choose before they see an answer.
    escalate
        Of those, too, that may ask a second variant; None if not asked for.
    """

    rates_per_s: dict[str, float]
    targets: dict[str, JointMean]
    blind: JointBest
    escalate: JointBest | None = None

    def to_json(self) -> dict[str, Any]:
        """As `inferway bound FILE --json` prints it under ``together``."""
        blind = self.blind.to_json()
        del blind["again"]  # nothing is asked again
        targets = {
            name: {
                "tasks": list(one.tasks),
                **({"energy": one.energy} if one.accuracy is None else {"accuracy": one.accuracy}),
            }
            for name, one in self.targets.items()
        }
        told = {"rates_per_s": self.rates_per_s, "targets": targets, **blind}
        return told if self.escalate is None else told | {"escalate": self.escalate.to_json()}


def bound_jointly(
    demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean], *, escalate: bool = False
) -> JointBound:
    """Bound several tasks together; `escalate`, policies that may ask a second variant, too."""
    return JointBound(
        {name: one.rate_per_s for name, one in demands.items()},
        dict(means),
        _best(demands, means, twice=False),
        _best(demands, means, twice=True) if escalate else None,
    )


def _best(
    demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean], *, twice: bool
) -> JointBest:
    factor = greatest_factor(demands, [*means.values()], twice=twice)
    if factor < 1.0 - TOLERANCE:
        lost = unreachable(demands, means, twice=twice) if factor <= TOLERANCE else ()
        return JointBest(factor, None, None, None, None, lost)
    try:
        found = solve_jointly(demands, [*means.values()], twice=twice)
    except UnreachableError:  # by a rounding
        return JointBest(factor, None, None, None, None)
    shares = {
        name: dict(zip(demands[name].fleet.variants, of.tolist(), strict=True))
        for name, of in found.shares.items()
    }
    prices = dict(zip(means, found.prices, strict=True))
    return JointBest(factor, found.response_time_s, shares, found.again, prices)


class BoundBeside(NamedTuple):
    """What a task can have at most while the others' rates are carried."""

    max_rate_per_s: float  # 0 where not even these are
    least_response_time_s: float | None  # At its own rate; None where that cannot be carried


def bound_beside(
    demands: Mapping[str, TaskDemand], means: Sequence[JointMean]
) -> dict[str, BoundBeside]:
    """Bound each task of several that targets or devices join, with the others at their rates.

    The least mean service of its own requests may cost the others theirs, as far as these are
    carried and all means kept.
    """
    program = _Program(demands, limited=True)
    rows = [program.excess(mean) for mean in means]
    found = {}
    for name, one in demands.items():
        most = program.greatest([*means], (name,)) * one.rate_per_s
        least_s = None
        if most >= one.rate_per_s * (1.0 - TOLERANCE):
            cost = np.zeros(len(program.service_s))
            cost[program.parts[name]] = program.service_s[program.parts[name]]
            solution = program.solved(cost, rows)
            if solution is not None:
                least_s = float(cost @ solution.x) * program.unit_s / program.weights[name]
        found[name] = BoundBeside(most, least_s)
    return found


def unreachable(
    demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean], *, twice: bool = False
) -> tuple[str, ...]:
    """Name the means that no mix of the variants keeps, whatever multiple of the rates is asked.

    Those are named that no mix keeps without the others, or all where each can be kept alone.
    """
    program = _Program(demands, True, twice)
    alone = tuple(name for name, mean in means.items() if program.greatest([mean]) <= TOLERANCE)
    return alone or tuple(means)


def best_mean(
    demands: Mapping[str, TaskDemand],
    mean: JointMean,
    others: Sequence[JointMean] = (),
    *,
    limited: bool = True,
) -> float | None:
    """Greatest mean accuracy, or least mean energy, J, that is within reach at these rates.

    The tasks' own targets and `others` are kept; None where these are out of reach by themselves.
    `limited` as in `solve_jointly`.
    """
    program = _Program(demands, limited)
    weight = sum(program.weights[name] for name in mean.tasks)
    goal = program.values(mean) * (1.0 if mean.accuracy is None else -1.0)
    solution = program.solved(goal, [program.excess(one) for one in others])
    return None if solution is None else abs(float(goal @ solution.x)) / weight


def exceeds(mean: JointMean, best: float) -> bool:
    """Tell whether a mean asks for more than the best one that is within reach."""
    if mean.accuracy is not None:
        return mean.accuracy > best + TOLERANCE
    assert mean.energy is not None
    return mean.energy < best * (1 - TOLERANCE)


class _Program:
    """Variables are fractions of all requests: for each task, those of its own program."""

    def __init__(
        self, demands: Mapping[str, TaskDemand], limited: bool, twice: bool = False
    ) -> None:
        total = sum(one.rate_per_s for one in demands.values())
        self.weights = {name: one.rate_per_s / total for name, one in demands.items()}
        self._programs: dict[str, EscalationProgram] = {}
        self.parts: dict[str, slice] = {}
        end = 0
        for name, one in demands.items():
            fleet = one.fleet if twice else replace(one.fleet, confidence=None)
            program = escalation_program(fleet, one.target, one.energy_budget)
            self._programs[name] = program
            self.parts[name] = slice(end, end + len(program.asked))
            end += len(program.asked)
        service_s = np.concatenate([one.service_s for one in self._programs.values()])
        self.unit_s = float(service_s.min())
        self.service_s = service_s / self.unit_s
        self._rows: list[Floats] = []
        self._limits: list[float] = []
        devices: dict[str, dict[str, Floats]] = {}
        for name, program in self._programs.items():
            fleet, rows = demands[name].fleet, program.rows.toarray()
            means, classes = len(program.units), len(fleet.rate)
            bins = means + classes + program.devices
            for row in (*rows[:means], *rows[bins:]):
                self._add({name: row}, 0.0)
            if not limited:
                continue
            for row, most in zip(rows[means:], fleet.capacity / total, strict=False):
                self._add({name: row}, float(most))
            if fleet.devices is not None:
                loads = rows[means + classes : bins] * total
                for device, row in zip(fleet.devices.names, loads, strict=True):
                    devices.setdefault(device, {})[name] = row
        for of in devices.values():  # which tasks share by name
            self._add(of, 1.0)

    def _add(self, values: Mapping[str, Floats], most: float) -> None:
        self._rows.append(self._row(values))
        self._limits.append(most)

    def _row(self, values: Mapping[str, Floats]) -> Floats:
        row = np.zeros(len(self.service_s))
        for name, of in values.items():
            row[self.parts[name]] = of
        return row

    def values(self, mean: JointMean) -> Floats:
        """Accuracy, or energy in J, that each column of the tasks of a mean adds; 0 of others."""
        programs = {name: self._programs[name] for name in mean.tasks}
        return self._row(
            {
                name: one.energy if mean.accuracy is None else one.accuracy
                for name, one in programs.items()
            }
        )

    def excess(self, mean: JointMean) -> Floats:
        """Excess of each column over the limit of a mean, which is at most 0 in sum."""
        inside = self._row({name: self._programs[name].asked for name in mean.tasks})
        if mean.accuracy is not None:
            return mean.accuracy * inside - self.values(mean)
        assert mean.energy is not None
        return self.values(mean) / mean.energy - inside

    def solved(self, cost: Floats, rows: Sequence[Floats]) -> Any:
        """Solve for the least cost; None where nothing is feasible."""
        solution = linear_program(
            cost,
            np.array([*rows, *self._rows]).reshape(-1, len(cost)),
            np.array([0.0] * len(rows) + self._limits),
            A_eq=np.array([self._row({name: one.asked}) for name, one in self._programs.items()]),
            b_eq=np.array(list(self.weights.values())),
            bounds=(0.0, None),
        )
        return None if solution.x is None else solution

    def greatest(self, means: Sequence[JointMean], of: Collection[str] | None = None) -> float:
        """Greatest number of times that the rates can be carried, in a further column.

        That is of all tasks, or `of` these, while the others' are carried as they are.
        """
        every = np.array([*map(self.excess, means), *self._rows])
        whole = np.array([self._row({name: one.asked}) for name, one in self._programs.items()])
        weights = np.array(list(self.weights.values()))
        grows = np.array([of is None or name in of for name in self.weights])
        solution = linear_program(
            np.append(np.zeros(every.shape[1]), -1.0),
            np.hstack([every, np.zeros((len(every), 1))]),
            np.array([0.0] * len(means) + self._limits),
            A_eq=np.hstack([whole, np.where(grows, -weights, 0.0)[:, None]]),
            b_eq=np.where(grows, 0.0, weights),
            bounds=(0.0, None),
        )
        return 0.0 if solution.x is None else max(0.0, -float(solution.fun))
