"""The bound of several tasks together: one LP over all of them, with a row for each joint target.

The LP is that of [Anonymous], eq. 3, for each task, joined by rows over the answers of several: a
mean accuracy, a mean energy, or a device that instances of several tasks share. Its dual price of a
joint row is one for all of its tasks: at the optimum, a request of task i goes where its service
time less (own price + joint price) times accuracy is least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from inferway.dispatch.bounds import TOLERANCE, UnreachableError, device_load, linear_program
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


def solve_jointly(
    demands: Mapping[str, TaskDemand], means: Sequence[JointMean], *, limited: bool = True
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

    Raises
    ------
    UnreachableError
        Where nothing keeps them all at these rates.
    """
    program = _Program(demands, limited)
    rows = [program.excess(mean) for mean in means]
    solution = program.solved(program.service_s, rows)
    if solution is None:
        raise UnreachableError("no mix of the variants keeps all targets at these rates")
    shares = {
        name: np.clip(solution.x[part], 0.0, None) / program.weights[name]
        for name, part in program.parts.items()
    }
    units = [1.0 if mean.energy is None else mean.energy for mean in means]
    duals = solution.ineqlin.marginals[: len(rows)] * program.unit_s
    prices = (max(0.0, -float(one) / unit) for one, unit in zip(duals, units, strict=True))
    service_s = float(np.clip(solution.x, 0.0, None) @ program.service_s) * program.unit_s
    return JointOptimum(shares, service_s, tuple(prices))


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
    """Variables are fractions of all requests: for each task, as many as it has classes."""

    def __init__(self, demands: Mapping[str, TaskDemand], limited: bool) -> None:
        self.demands = demands
        total = sum(one.rate_per_s for one in demands.values())
        self.weights = {name: one.rate_per_s / total for name, one in demands.items()}
        self.parts: dict[str, slice] = {}
        for name, one in demands.items():
            begin = next(reversed(self.parts.values())).stop if self.parts else 0
            self.parts[name] = slice(begin, begin + len(one.fleet.rate))
        service_s = np.concatenate([1.0 / one.fleet.rate for one in demands.values()])
        self.unit_s = float(service_s.min())
        self.service_s = service_s / self.unit_s
        self._room = np.concatenate(
            [
                np.minimum(one.fleet.capacity / total, self.weights[name])
                if limited
                else np.full(len(one.fleet.rate), self.weights[name])
                for name, one in demands.items()
            ]
        )
        self._own = [row for name, one in demands.items() for row in self._means_of(name, one)]
        self._devices = self._loads(total) if limited else []

    def _row(self, values: Mapping[str, Floats]) -> Floats:
        row = np.zeros(len(self.service_s))
        for name, of in values.items():
            row[self.parts[name]] = of
        return row

    def _means_of(self, name: str, one: TaskDemand) -> list[Floats]:
        means = [JointMean((name,), accuracy=one.target)] if one.target is not None else []
        if one.energy_budget is not None:
            means.append(JointMean((name,), energy=one.energy_budget))
        return [self.excess(mean) for mean in means]

    def _loads(self, total: float) -> list[Floats]:
        """Part of each device that a fraction of all requests takes; devices are shared by name."""
        loads: dict[str, dict[str, Floats]] = {}
        for name, one in self.demands.items():
            if one.fleet.devices is not None:
                rows = device_load(one.fleet) * total
                for device, row in zip(one.fleet.devices.names, rows, strict=True):
                    loads.setdefault(device, {})[name] = row
        return [self._row(of) for of in loads.values()]

    def values(self, mean: JointMean) -> Floats:
        """Accuracy, or energy in J, of each class of the tasks that a mean is over; 0 of others."""
        fleets = {name: self.demands[name].fleet for name in mean.tasks}
        return self._row(
            {
                name: one.energy if mean.accuracy is None else one.accuracy
                for name, one in fleets.items()
            }
        )

    def excess(self, mean: JointMean) -> Floats:
        """Excess of each class over the limit of a mean, which is at most 0 in sum."""
        inside = self._row({name: np.array(1.0) for name in mean.tasks})
        if mean.accuracy is not None:
            return mean.accuracy * inside - self.values(mean)
        assert mean.energy is not None
        return self.values(mean) / mean.energy - inside

    def solved(self, cost: Floats, rows: Sequence[Floats]) -> Any:
        """Solve for the least cost; None where nothing is feasible."""
        every = [*rows, *self._own, *self._devices]
        limits = [0.0] * (len(rows) + len(self._own)) + [1.0] * len(self._devices)
        whole = [self._row({name: np.array(1.0)}) for name in self.demands]
        solution = linear_program(
            cost,
            np.array(every).reshape(-1, len(cost)),
            np.array(limits),
            A_eq=np.array(whole),
            b_eq=np.array(list(self.weights.values())),
            bounds=[(0.0, float(most)) for most in self._room],
        )
        return None if solution.x is None else solution
