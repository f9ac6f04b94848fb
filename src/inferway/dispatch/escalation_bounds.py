"""The bound with escalation: how little service keeps the target if a second variant may be asked.

Not in the papers, whose bound is of policies that choose before they see an answer. Here a request
is asked of a first variant i; where the confidence of the answer falls into bin b, it may be asked
of a second one j, whose answer is then sent. With shares x_i of all requests and y_ibj of those
that are asked again, service times 1 / mu, mass P_i(b) and expected accuracies A of the confidence
tables,

    least  sum x_i / mu_i + sum y_ibj / mu_j
    where  sum x_i = 1,   sum_j y_ibj <= x_i P_i(b),
           sum x_i A_i + sum y_ibj (A_ibj - A_ibi) >= target,
           x_j + sum y_ibj <= capacity_j / rate        for each class j.

Without any confidence it is the LP of `inferway.dispatch.bounds`. It is as true as the tables are:
what it knows of an answer is its bin. A third answer would need what two confidences say together,
which profiles do not have; so the LP asks twice at most.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.policies import ESCALATE
from inferway.dispatch.bounds import (
    TOLERANCE,
    Escalation,
    EscalationBound,
    UnreachableError,
    device_load,
    linear_program,
    max_rate,
    out_of_budget,
)
from inferway.site.fleet import Fleet
from inferway.site.view import Floats

_NONE: Final = 1e-9  # Shares and gains below are rounding
_NEAR: Final = 0.99  # Of the greatest rate: above, prices say nothing of the accuracy
_LOW: Final = 1e-6  # Of the greatest rate: no device is full
_AMPLE: Final = 2.0  # Share of requests that a class never reaches


class EscalationOptimum(NamedTuple):
    """Solution of the LP."""

    first: Floats  # (K,) fraction of requests that each class is asked first, x
    # (K, B, K) fraction of requests that class i was asked first, with a confidence in bin b, and
    # class j next, y.
    then: Floats
    response_time_s: float  # Least mean service of a request, s
    price_s: float  # Dual price of the accuracy constraint: s per unit of accuracy, at least 0
    capacity_price: Floats  # (K,) dual prices of the classes' room, s per unit of share, at most 0
    # (K, B) dual prices of what may be asked again, s per unit of share, at most 0.
    bin_price: Floats
    level_s: float  # Dual price of ``sum(x) = 1``, s
    room: Floats  # (K,) share of the requests that each class can carry; 2 where it is ample
    energy_price_s: float = 0.0  # Dual price of the energy budget: s per J, at least 0
    device_price: Floats = np.empty(0)  # (D,) dual prices of whole devices, s, at most 0


def best_accuracy(fleet: Fleet) -> float:
    """Highest mean accuracy that a fleet reaches where nobody waits and escalations are free."""
    if fleet.confidence is None:
        return float(fleet.accuracy.max())
    gain = _gains(fleet).max(axis=2).clip(0.0)
    own = fleet.confidence.expected_accuracy()
    return float((own + (fleet.confidence.mass * gain).sum(axis=1)).max())


def max_escalation_rate(
    fleet: Fleet, target: float | None, energy_budget: float | None = None
) -> float:
    """Greatest arrival rate that keeps the means where a second variant may be asked, 1/s.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Least mean accuracy in 0..1, or None.
    energy_budget
        Greatest mean energy of a request, all its answers together, J, or None.

    Raises
    ------
    UnreachableError
        Where nothing keeps the target, or target and budget together.
    """
    if fleet.confidence is None:
        return max_rate(fleet, target, energy_budget)
    goal, best = target or 0.0, best_accuracy(fleet)
    if goal > best + TOLERANCE:
        raise UnreachableError(
            f"the target {goal:g} is above the best accuracy {best:.6g} that asking twice reaches"
        )
    program = escalation_program(fleet, target, energy_budget)
    unit = float(fleet.capacity.max())
    solution = linear_program(
        -program.asked,
        program.rows,
        program.limits(fleet.capacity / unit, unit),
        bounds=(0.0, None),
    )
    greatest = 0.0 if solution.x is None else -float(solution.fun)
    if greatest <= TOLERANCE:
        if energy_budget is not None:
            raise out_of_budget(target, energy_budget)
        raise UnreachableError(f"no rate keeps a mean accuracy of {goal:g}")
    return greatest * unit


def solve_escalation(
    fleet: Fleet,
    target: float | None,
    rate_per_s: float | None,
    energy_budget: float | None = None,
) -> EscalationOptimum:
    """Least mean service of a request where a second variant may be asked.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1, or None for no constraint.
    rate_per_s
        Arrival rate of the whole site, 1/s; above 0 and at most `max_escalation_rate`. None for so
        low a rate that no class is full.
    energy_budget
        Greatest mean energy of a request, J, or None for no constraint.

    Raises
    ------
    UnreachableError
        Where no shares are feasible at this rate.
    """
    greatest = max_escalation_rate(fleet, target, energy_budget)
    room = np.full(len(fleet.rate), _AMPLE)
    if rate_per_s is not None:
        if not 0 < rate_per_s <= greatest * (1 + 1e-12):
            raise UnreachableError(
                f"a rate of {rate_per_s:g}/s is not between 0 and the greatest feasible "
                f"{greatest:g}/s"
            )
        # At the very greatest rate rounding may leave no room at all.
        rate_per_s = min(rate_per_s, greatest * (1 - 10 * TOLERANCE))
        room = np.minimum(fleet.capacity / rate_per_s, _AMPLE)
    program = escalation_program(fleet, target, energy_budget)
    limits = program.limits(room, _LOW * greatest if rate_per_s is None else rate_per_s)
    unit_s = float(1.0 / fleet.rate.max())
    solution = linear_program(
        program.service_s / unit_s,
        program.rows,
        limits,
        A_eq=program.asked[None, :],
        b_eq=[1.0],
        bounds=(0.0, None),
    )
    if solution.x is None:
        raise UnreachableError(f"the LP has no solution at {rate_per_s or 0.0:g}/s")
    return program.optimum(fleet, solution, limits, unit_s)


def escalation_price(
    fleet: Fleet,
    target: float | None,
    rate_per_s: float | None,
    energy_budget: float | None = None,
) -> float:
    """Dual price of the target at a rate, in seconds per unit of accuracy, at least 0.

    The greater one of that at low load and that at the rate: where variants are full, accuracy may
    be for free that costs something again as soon as there is room. A rate that is not known counts
    as low, one above 99 % of the greatest as that. The price is 0 where the cheapest variant alone
    keeps the target.

    Raises
    ------
    UnreachableError
        Where nothing keeps the target, or target and budget together.
    """
    price_s = solve_escalation(fleet, target, None, energy_budget).price_s
    if rate_per_s is None:
        return price_s
    rate_per_s = min(rate_per_s, _NEAR * max_escalation_rate(fleet, target, energy_budget))
    return max(price_s, solve_escalation(fleet, target, rate_per_s, energy_budget).price_s)


def escalation_bound(
    fleet: Fleet,
    *,
    target: float | None,
    rate_per_s: float | None,
    energy_budget: float | None = None,
) -> EscalationBound:
    """The bound with escalation of a fleet at a rate; UnreachableError where nothing keeps it."""
    greatest = max_escalation_rate(fleet, target, energy_budget)
    best: dict[str, Any] = dict.fromkeys(
        ("least_response_time_s", "first", "then", "price_s", "energy_price_s")
    )
    if rate_per_s is not None and rate_per_s <= greatest * (1 + 1e-12):
        optimum = solve_escalation(fleet, target, rate_per_s, energy_budget)
        best = {
            "least_response_time_s": optimum.response_time_s,
            "first": dict(zip(fleet.variants, map(float, optimum.first), strict=True)),
            "then": _escalations(fleet, optimum.then),
            "price_s": optimum.price_s,
            "energy_price_s": optimum.energy_price_s,
        }
    sure = np.zeros(len(fleet.rate), bool) if fleet.confidence is None else fleet.confidence.sure
    return EscalationBound(
        max_rate_per_s=greatest,
        best_accuracy=best_accuracy(fleet),
        sure=tuple(name for name, one in zip(fleet.variants, sure, strict=True) if one),
        **best,
    )


def greatest_rate(
    policy: str, fleet: Fleet, target: float | None, energy_budget: float | None = None
) -> float:
    """Greatest rate at which a policy of this name can keep the means, 1/s.

    That is `max_escalation_rate` for `escalate`, and `max_rate` for those that choose before they
    see an answer. UnreachableError as these.
    """
    most = max_escalation_rate if policy == ESCALATE else max_rate
    return most(fleet, target, energy_budget)


def full_load(fleet: Fleet, target: float | None, energy_budget: float | None = None) -> float:
    """Rate that a load of 1 means, 1/s: the same for all policies, so that they can be compared.

    The greatest of policies that choose before they see an answer. A target that is out of their
    reach, and not of `escalate`, is taken at the greatest of that one. UnreachableError where none
    keeps the means.
    """
    try:
        return max_rate(fleet, target, energy_budget)
    except UnreachableError:
        if fleet.confidence is None:
            raise
        return max_escalation_rate(fleet, target, energy_budget)


class EscalationProgram(NamedTuple):
    """The LP's columns, K classes that are asked first and E escalations, and its rows.

    Without any confidence there are no escalations, and it is the LP of `inferway.dispatch.bounds`.
    """

    asked: Floats  # (K + E,) 1 for the first K
    service_s: Floats  # (K + E,)
    accuracy: Floats  # (K + E,) of the answer, or what it has more than the one before
    energy: Floats  # (K + E,) J
    # Target, energy if it counts, K classes' capacities, D devices, and the bins that are asked
    # again.
    rows: Any
    units: Floats  # (1,) or (2,) of the means' rows
    devices: int
    place: tuple[NDArray[np.int64], ...]  # Class, bin and class of each escalation, E of each

    def limits(self, room: Floats, rate_per_s: float) -> Floats:
        """Right-hand sides, for so much room in each class, and columns in units of a rate."""
        limits = np.zeros(self.rows.shape[0])
        first = len(self.units) + len(room)
        limits[len(self.units) : first] = room
        limits[first : first + self.devices] = 1.0 / rate_per_s
        return limits

    def optimum(
        self, fleet: Fleet, solution: Any, limits: Floats, unit_s: float
    ) -> EscalationOptimum:
        """Read a solution within these limits, whose costs are in units of so many seconds."""
        classes, means = len(fleet.rate), len(self.units)
        device_row = means + classes
        bin_row = device_row + self.devices
        bins = 1 if fleet.confidence is None else fleet.confidence.mass.shape[1]
        first = solution.x[:classes].clip(0.0)
        then = np.zeros((classes, bins, classes))
        then[self.place] = solution.x[classes:].clip(0.0)
        total = first.sum()
        first, then = first / total, then / total
        duals = solution.ineqlin.marginals * unit_s
        prices = np.maximum(0.0, -duals[:means] / self.units)
        bin_price = np.zeros((classes, bins))
        pairs = np.unique(self.place[0] * bins + self.place[1])
        bin_price.flat[pairs] = duals[bin_row:]
        return EscalationOptimum(
            first=first,
            then=then,
            response_time_s=float((first + then.sum(axis=(0, 1))) @ (1.0 / fleet.rate)),
            price_s=float(prices[0]),
            capacity_price=duals[means:device_row],
            bin_price=bin_price,
            level_s=float(solution.eqlin.marginals[0]) * unit_s,
            room=limits[means:device_row],
            energy_price_s=float(prices[1]) if means > 1 else 0.0,
            device_price=(duals * limits)[device_row:bin_row],
        )


def _gains(fleet: Fleet) -> Floats:
    """By how much class j's answer is expected to be better than class i's own in its bin b."""
    tables = fleet.confidence
    assert tables is not None
    own = np.diagonal(tables.expected, axis1=0, axis2=2).T
    return np.where((tables.mass > 0.0)[:, :, None], tables.expected - own[:, :, None], 0.0)


def escalation_program(
    fleet: Fleet, target: float | None, energy_budget: float | None
) -> EscalationProgram:
    """Lay out the LP; escalations that gain nothing cost time and are left out."""
    from scipy.sparse import csr_array

    classes, tables = len(fleet.rate), fleet.confidence
    if tables is None:
        gains, accuracy = np.zeros((classes, 1, classes)), fleet.accuracy
        mass = np.zeros((classes, 1))
    else:
        gains, accuracy, mass = _gains(fleet), tables.expected_accuracy(), tables.mass
    place = np.nonzero(gains > _NONE)
    first, bins, then = place
    asked = np.concatenate([np.ones(classes), np.zeros(len(first))])
    values = np.concatenate([accuracy, gains[place]])
    energy = np.concatenate([fleet.energy, fleet.energy[then]])
    means = [(target or 0.0) * asked - values]
    units = [1.0]
    if energy_budget is not None:
        means.append(energy / energy_budget - asked)
        units.append(energy_budget)
    # Which class each column runs on, and which bin each escalation takes from.
    runs_on = np.concatenate([np.arange(classes), then])
    pairs, pair = np.unique(first * mass.shape[1] + bins, return_inverse=True)
    taken_from = pairs // mass.shape[1]
    columns, escalations = np.arange(len(asked)), classes + np.arange(len(first))
    # Of each device, what each answer takes and what each request takes before it runs.
    load = device_load(fleet)[:, runs_on]
    if fleet.devices is not None:
        again = (fleet.devices.overhead_s / fleet.devices.slots)[:, None] * (1.0 - asked)
        load = load - again
    capacity_row = len(means)
    device_row = capacity_row + classes
    bin_row = device_row + len(load)
    entries = [
        *((row, np.full(len(asked), k), columns) for k, row in enumerate(means)),
        (np.ones(len(asked)), capacity_row + runs_on, columns),
        *((row, np.full(len(asked), device_row + d), columns) for d, row in enumerate(load)),
        (np.ones(len(first)), bin_row + pair, escalations),
        (-mass.flat[pairs], bin_row + np.arange(len(pairs)), taken_from),
    ]
    value, row, column = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    shape = (bin_row + len(pairs), len(asked))
    rows = csr_array((value, (row, column)), shape=shape)
    return EscalationProgram(
        *(asked, (1.0 / fleet.rate)[runs_on], values, energy),
        *(rows, np.array(units), len(load), place),
    )


def _escalations(fleet: Fleet, then: Floats) -> tuple[Escalation, ...]:
    """Name what is asked again, by first variant and bin."""
    tables, names = fleet.confidence, fleet.variants
    if tables is None:
        return ()
    infinite = np.full((len(names), 1), np.inf)
    edges = np.concatenate([-infinite, tables.edges, infinite], axis=1).tolist()
    return tuple(
        Escalation(names[i], int(b), names[j], float(then[i, b, j]), *edges[i][b : b + 2])
        for i, b, j in zip(*np.nonzero(then > _NONE), strict=True)
    )
