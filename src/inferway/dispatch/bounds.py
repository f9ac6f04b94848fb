"""The bound: the greatest rate and the least response time of any policy that keeps the target.

[Anonymous]: Definition 1 (greatest rate), Lemma 1 and eq. 3 (the LP), Lemma 3 (its closed form at
low load), Definition 2 and Algorithm 1 (routing tuples, and the LP solved by them in order of
cost); and with a mean energy to keep besides, the constraint that its Sec. 8.1 leaves open, or
devices that server classes share, each a row of the LP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from inferway.site.fleet import Fleet
from inferway.site.view import Floats

# HiGHS's tightest; its defaults of 1e-7 would be seen in the ninth digit.
TOLERANCE = 1e-10
_OPTIONS: Any = {
    "primal_feasibility_tolerance": TOLERANCE,
    "dual_feasibility_tolerance": TOLERANCE,
}


_IN_JSON = (
    "max_rate_per_s max_rate_normalized rate_per_s least_response_time_s shares tuples "
    "accuracy_target price_s ordered energy_budget energy_price_s"
)


class UnreachableError(ValueError):
    """A fleet of which no mix keeps what was promised."""


class RoutingTuple(NamedTuple):
    """[Anonymous], Definition 2."""

    classes: tuple[int, ...]  # One class or two, faster first
    # (K,) sums to 1; a pair that shuffles traffic between its classes has a negative entry.
    routing: Floats
    cost_s: float  # Mean service time that it adds per request, s

    @property
    def proper(self) -> bool:
        """True if no entry is negative: a singleton, or a pair on both sides of the target."""
        return bool((self.routing >= 0).all())


def routing_tuples(fleet: Fleet, target: float | None) -> list[RoutingTuple]:
    """The optimal set of routing tuples, by rising cost ([Anonymous], eq. 11).

    Pairs of equal accuracy have no routing vector and are left out; pairs whose cost is not above
    0 are left out as in the paper. Equal costs keep the order singletons, then pairs.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1; None counts as 0.
    """
    goal = target or 0.0
    service_s, accuracy = 1.0 / fleet.rate, fleet.accuracy
    found = [
        RoutingTuple((k,), unit, float(service_s[k]))
        for k, unit in enumerate(np.eye(len(accuracy)))
        if accuracy[k] >= goal
    ]
    for i in range(len(accuracy)):
        for j in range(i + 1, len(accuracy)):
            gap = accuracy[j] - accuracy[i]
            if gap == 0:
                continue
            routing = np.zeros(len(accuracy))
            routing[i] = (accuracy[j] - goal) / gap
            routing[j] = (goal - accuracy[i]) / gap
            cost_s = float(routing @ service_s)
            if cost_s > 0:
                found.append(RoutingTuple((i, j), routing, cost_s))
    return sorted(found, key=lambda found: found.cost_s)


class Optimum(NamedTuple):
    """Solution of the LP, eq. 3."""

    shares: Floats  # (K,) fraction of requests per class, p
    response_time_s: float  # Least mean response time, T_LP-LB, s
    price_s: float  # Dual price of the accuracy constraint: s per unit of accuracy, at least 0
    capacity_price: Floats  # (K,) dual prices of ``p <= room``, s per unit of share, at most 0
    # Dual price of ``sum(p) = 1``, s: the response time that unlimited capacities would give.
    level_s: float
    room: Floats  # (K,) greatest share that each class can carry, min(capacity / rate, 1)
    energy_price_s: float = 0.0  # Dual price of the energy budget: s per J, at least 0
    device_price: Floats = np.empty(0)  # (D,) dual prices of whole devices, s, at most 0


class Escalation(NamedTuple):
    """Requests whose first answer is not sure enough, and who answers them once more."""

    first: str  # Variant that is asked first
    bin: int  # Of its confidence, 0 where it is least sure
    then: str  # Variant that is asked next
    share: float  # Of all requests
    above: float  # Confidence at which the bin begins; -inf for the first
    below: float  # Confidence at which it ends; inf for the last

    def to_json(self) -> dict[str, Any]:
        """As it stands under ``then`` of a bound's ``escalate``."""
        return {"from": self.first, "bin": self.bin, "to": self.then, "share": self.share}


@dataclass(frozen=True)
class EscalationBound:
    """The best that policies can do that may ask a second variant after the first one's answer."""

    max_rate_per_s: float  # Greatest arrival rate that keeps the target
    # Least mean service of a request at the workload's rate; None without a rate, or where it
    # exceeds the greatest. So are the following.
    least_response_time_s: float | None
    first: dict[str, float] | None  # Fraction of requests that each variant is asked first
    then: tuple[Escalation, ...] | None
    price_s: float | None  # Dual price of the target, s per unit of accuracy
    energy_price_s: float | None  # Dual price of the energy budget, s per J
    best_accuracy: float  # Highest mean accuracy, where nobody waits
    sure: tuple[str, ...]  # Variants whose confidence is calibrated

    def to_json(self) -> dict[str, Any]:
        """As `inferway bound FILE --escalate --json` prints it under ``tasks.NAME.escalate``."""
        return {
            "max_rate_per_s": self.max_rate_per_s,
            "least_response_time_s": self.least_response_time_s,
            "first": self.first,
            "then": None if self.then is None else [one.to_json() for one in self.then],
        }


@dataclass(frozen=True)
class Bound:
    """The best that policies can do that choose before they see an answer, at one site."""

    variants: tuple[str, ...]
    target: float | None
    # Greatest arrival rate that keeps the target ([Anonymous], Definition 1, times n).
    max_rate_per_s: float
    max_rate_normalized: float  # The same per server
    rate_per_s: float | None  # Arrival rate of the workload; None where the file gives none
    # T_LP-LB at that rate; None without a rate, or where the rate exceeds the greatest.
    least_response_time_s: float | None
    shares: dict[str, float] | None  # Fraction of requests per variant at the optimum
    price_s: float | None  # Dual price of the target, s per unit of accuracy
    tuples: tuple[RoutingTuple, ...]
    ordered: bool  # Whether the fleet has no dominated class; then waterfilling gives the same
    # Greatest mean energy of a request, J; None for no constraint.
    energy_budget: float | None = None
    energy_price_s: float | None = None  # Dual price of the energy budget, s per J
    escalate: EscalationBound | None = None  # Of policies that may ask twice; None if not asked for

    @property
    def feasible(self) -> bool | None:
        """True if the rate can be carried at the target; None without a rate."""
        return None if self.rate_per_s is None else self.least_response_time_s is not None

    def to_json(self) -> dict[str, Any]:
        """As `inferway bound FILE --json` prints it under ``tasks.NAME``."""
        tuples = [
            {
                "variants": [self.variants[k] for k in one.classes],
                "routing": [float(one.routing[k]) for k in one.classes],
                "cost_s": one.cost_s,
            }
            for one in self.tuples
        ]
        own = vars(self) | {"tuples": tuples, "accuracy_target": self.target}
        told = {name: own[name] for name in _IN_JSON.split()}
        return told if self.escalate is None else told | {"escalate": self.escalate.to_json()}


def unreachable_bound(
    fleet: Fleet,
    *,
    target: float | None,
    rate_per_s: float | None,
    energy_budget: float | None = None,
) -> Bound:
    """The bound of a fleet that keeps its means at no rate: the greatest is 0."""
    return Bound(
        variants=fleet.variants,
        target=target,
        max_rate_per_s=0.0,
        max_rate_normalized=0.0,
        rate_per_s=rate_per_s,
        least_response_time_s=None,
        shares=None,
        price_s=None,
        tuples=tuple(routing_tuples(fleet, target)),
        ordered=fleet.ordered,
        energy_budget=energy_budget,
    )


def bound(
    fleet: Fleet,
    *,
    target: float | None,
    rate_per_s: float | None,
    energy_budget: float | None = None,
) -> Bound:
    """The bound of a fleet at a rate; ValueError where no mix of its classes keeps the means."""
    greatest = max_rate(fleet, target, energy_budget)
    best: dict[str, Any] = dict.fromkeys(
        ("least_response_time_s", "shares", "price_s", "energy_price_s")
    )
    if rate_per_s is not None and rate_per_s <= greatest * (1 + 1e-12):
        optimum = solve(fleet, target, rate_per_s, energy_budget)
        best = {
            "least_response_time_s": optimum.response_time_s,
            "shares": dict(zip(fleet.variants, map(float, optimum.shares), strict=True)),
            "price_s": optimum.price_s,
            "energy_price_s": optimum.energy_price_s,
        }
    return Bound(
        variants=fleet.variants,
        target=target,
        max_rate_per_s=greatest,
        max_rate_normalized=greatest / fleet.servers,
        rate_per_s=rate_per_s,
        tuples=tuple(routing_tuples(fleet, target)),
        ordered=fleet.ordered,
        energy_budget=energy_budget,
        **best,
    )


def max_rate(fleet: Fleet, target: float | None, energy_budget: float | None = None) -> float:
    """Greatest arrival rate of the site that keeps the means, 1/s ([Anonymous], Definition 1).

    Every class at or above the target runs full; what it is ahead pays for classes below, nearest
    to the target first: a fractional knapsack, exact without an LP solver. With an energy budget
    there are two things to pay for, and devices are shared: the LP is solved.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Least mean accuracy in 0..1, or None.
    energy_budget
        Greatest mean energy of a request, J, or None.

    Raises
    ------
    ValueError
        Where no mix of the classes keeps the target, or target and budget together.
    """
    goal = target or 0.0
    if goal > fleet.accuracy.max():
        raise UnreachableError(
            f"the target {goal:g} is above the best variant's accuracy {fleet.accuracy.max():g}"
        )
    if energy_budget is not None or fleet.devices is not None:
        return _max_rate_by_lp(fleet, target, energy_budget)
    lead = fleet.accuracy - goal
    ahead = lead >= 0
    total = float(fleet.capacity[ahead].sum())
    surplus = float(fleet.capacity[ahead] @ lead[ahead])
    for k in sorted(np.flatnonzero(~ahead), key=lambda k: -lead[k]):
        used = min(float(fleet.capacity[k]), surplus / -float(lead[k]))
        total += used
        surplus -= used * -float(lead[k])
    return total


def _max_rate_by_lp(fleet: Fleet, target: float | None, energy_budget: float | None) -> float:
    unit = float(fleet.capacity.max())
    excess, _ = _excesses(fleet, target, energy_budget)
    excess /= np.abs(excess).max(axis=1, keepdims=True).clip(TOLERANCE)
    load = device_load(fleet)
    # Of each class, the part that is used.
    share = fleet.capacity / unit
    solution = linear_program(
        -share,
        np.vstack([excess, load * unit]) * share,
        np.concatenate([np.zeros(len(excess)), np.ones(len(load))]),
        bounds=(0.0, 1.0),
    )
    greatest = 0.0 if solution.fun is None else -float(solution.fun)
    if greatest <= TOLERANCE:
        assert energy_budget is not None  # devices carry some rate of every mix
        raise out_of_budget(target, energy_budget)
    return greatest * unit


def device_load(fleet: Fleet) -> Floats:
    """Part of each device's slots that a request per second of each class takes, (D, K), in s."""
    devices = fleet.devices
    if devices is None:
        return np.empty((0, len(fleet.rate)))
    return (devices.load(fleet.rate) + devices.overhead_s[:, None]) / devices.slots[:, None]


def linear_program(cost: Floats, rows: Any, limits: Floats, **rest: Any) -> Any:
    """Find by HiGHS the least cost at which no row exceeds its limit; the rest as `linprog`."""
    from scipy.optimize import linprog  # half a second, which most uses do not need

    return linprog(cost, rows, limits, method="highs-ds", options=_OPTIONS, **rest)


def out_of_budget(target: float | None, energy_budget: float) -> UnreachableError:
    """The error of a target that no mix keeps within an energy budget, J."""
    return UnreachableError(
        f"no mix of the variants keeps a mean accuracy of {target or 0.0:g} within "
        f"{energy_budget:g} J per request"
    )


def solve(
    fleet: Fleet, target: float | None, rate_per_s: float, energy_budget: float | None = None
) -> Optimum:
    """Least mean response time at an arrival rate: the LP T_LP-LB ([Anonymous], eq. 3).

    An energy budget is one more row, as the paper's Sec. 8.1 asks for, and so is each device that
    classes share: what all of them take of its slots is at most all of it.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1, or None for no constraint.
    rate_per_s
        Arrival rate of the whole site, 1/s; above 0 and at most `max_rate`.
    energy_budget
        Greatest mean energy of a request, J, or None for no constraint.

    Raises
    ------
    ValueError
        Where no shares are feasible at this rate.
    """
    greatest = max_rate(fleet, target, energy_budget)
    if not 0 < rate_per_s <= greatest * (1 + 1e-12):
        raise UnreachableError(
            f"a rate of {rate_per_s:g}/s is not between 0 and the greatest feasible {greatest:g}/s"
        )
    # At the very greatest rate rounding may leave no room at all.
    exact = energy_budget is None and fleet.devices is None
    rate_per_s = min(rate_per_s, greatest * (1 - (1e-12 if exact else 10 * TOLERANCE)))
    room = np.minimum(fleet.capacity / rate_per_s, 1.0)
    found = _optimum(fleet, target, energy_budget, room, device_load(fleet) * rate_per_s)
    if found is None:
        raise UnreachableError(f"the LP has no solution at {rate_per_s:g}/s")
    return found


def _excesses(
    fleet: Fleet, target: float | None, energy_budget: float | None
) -> tuple[Floats, Floats]:
    """Excess of each class over each mean's limit, (C, K), and the unit of each row, (C,)."""
    rows, units = [(target or 0.0) - fleet.accuracy], [1.0]
    if energy_budget is not None:
        rows.append((fleet.energy - energy_budget) / energy_budget)
        units.append(energy_budget)
    return np.array(rows), np.array(units)


def _optimum(
    fleet: Fleet, target: float | None, energy_budget: float | None, room: Floats, load: Floats
) -> Optimum | None:
    service_s = 1.0 / fleet.rate
    unit_s = float(service_s.min())
    excess, units = _excesses(fleet, target, energy_budget)
    means = len(excess)
    solution = linear_program(
        service_s / unit_s,
        np.vstack([excess, load]),
        np.concatenate([np.zeros(means), np.ones(len(load))]),
        A_eq=np.ones((1, len(room))),
        b_eq=[1.0],
        bounds=[(0.0, float(most)) for most in room],
    )
    if solution.x is None:
        return None
    shares = np.clip(solution.x, 0.0, room)
    shares /= shares.sum()
    duals = solution.ineqlin.marginals * unit_s
    prices = np.maximum(0.0, -duals[:means] / units)
    return Optimum(
        shares=shares,
        response_time_s=float(shares @ service_s),
        price_s=float(prices[0]),
        capacity_price=solution.upper.marginals * unit_s,
        level_s=float(solution.eqlin.marginals[0]) * unit_s,
        room=room,
        energy_price_s=float(prices[1]) if len(prices) > 1 else 0.0,
        device_price=duals[means:],
    )


def relaxed(fleet: Fleet, target: float | None, energy_budget: float | None = None) -> Optimum:
    """The LP without capacities: one class, or the best pair ([Anonymous], eq. 8 and Lemma 3).

    Lemma 3 takes a class whose accuracy equals the target, if there is one, or else the best
    proper pair. With dominated classes a single class above the target may be cheaper; here the
    cheapest of all is taken, which is the LP's solution on every fleet. With an energy budget,
    where up to three classes share, the LP is solved.

    Raises
    ------
    UnreachableError
        Where no mix of the classes keeps the means.
    """
    if energy_budget is not None:
        classes = len(fleet.rate)
        found = _optimum(fleet, target, energy_budget, np.ones(classes), np.empty((0, classes)))
        if found is None:
            raise out_of_budget(target, energy_budget)
        return found
    best = next((found for found in routing_tuples(fleet, target) if found.proper), None)
    if best is None:
        raise UnreachableError(
            f"no mix of {', '.join(fleet.variants)} keeps a mean accuracy of {target or 0.0:g}"
        )
    service_s, accuracy = 1 / fleet.rate, fleet.accuracy
    price_s = 0.0
    if len(best.classes) == 2:
        i, j = best.classes
        price_s = float((service_s[j] - service_s[i]) / (accuracy[j] - accuracy[i]))
    elif accuracy[best.classes[0]] == (target or 0.0):
        # Any price is optimal that keeps faster, less accurate classes from being cheaper.
        (k,) = best.classes
        below = accuracy < accuracy[k]
        slopes = (service_s[k] - service_s[below]) / (accuracy[k] - accuracy[below])
        price_s = max(0.0, float(slopes.max(initial=0.0)))
    return Optimum(
        shares=best.routing,
        response_time_s=best.cost_s,
        price_s=price_s,
        capacity_price=np.zeros(len(fleet.rate)),
        level_s=best.cost_s,
        room=np.ones(len(fleet.rate)),
    )


class Filling(NamedTuple):
    """Result of waterfilling."""

    shares: Floats  # (K,) fraction of requests per class
    weights: Floats  # Traffic that each routing tuple carries, 1/s, in the tuples' order
    tuples: list[RoutingTuple]
    response_time_s: float  # Mean service time of the shares, s


def waterfill(fleet: Fleet, target: float | None, rate_per_s: float) -> Filling:
    """Fill the classes by routing tuples, cheapest first, until all traffic is placed.

    Equals the LP on fleets ordered as in Sec. 2.1 (Theorem 1). With dominated classes it can be
    wrong or fail where the LP is feasible: nothing here relies on it.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1, or None.
    rate_per_s
        Arrival rate of the whole site, 1/s, above 0.

    Raises
    ------
    ValueError
        Where traffic is left that no tuple can carry.
    """
    capacity = fleet.capacity.astype(float)
    tuples = routing_tuples(fleet, target)
    weights = np.zeros(len(tuples))
    traffic = np.zeros(len(capacity))
    left = rate_per_s
    # Capacities are used up to rounding; what is within it counts as full or empty.
    slack = 1e-12 * max(capacity.max(), rate_per_s)
    for index, (_, routing, _) in enumerate(tuples):
        grows, shrinks = routing > 0, routing < 0
        room = np.concatenate(
            [
                (capacity[grows] - traffic[grows]) / routing[grows],
                traffic[shrinks] / -routing[shrinks],
            ]
        )
        weight = max(0.0, min(float(room.min()), left))
        traffic = np.clip(traffic + weight * routing, 0.0, capacity)
        weights[index] = weight
        left -= weight
        if left <= slack:
            break
    if left > max(slack, 1e-9 * rate_per_s):
        raise UnreachableError(
            f"no routing tuple carries the last {left:g} of {rate_per_s:g} requests per second"
        )
    shares = traffic / traffic.sum()
    return Filling(shares, weights, tuples, float(shares @ (1.0 / fleet.rate)))
