"""Escalate: ask a second variant where the first one's confidence says that it pays.

Not in the papers, whose bound and policies choose before they see an answer. A variant's own
confidence, calibrated in bins, tells which of its answers are likely wrong. With accuracy at a
price in seconds, as in `inferway.dispatch.priced`, an answer in hand is accepted unless another
server costs less than what its answer is expected to gain is worth:

    accept where  -price A[i,b,i]  <=  cost(j) - price A[i,b,j]  for all j,

i who answered, b the bin of its confidence, A the expected accuracies (`Site.bin_accuracy`). The
first choice looks ahead to that. It goes to the server i for which

    cost(i) + min over j of sum over b of mass[i,b] min(-price A[i,b,i], cost(j) - price A[i,b,j])

is least, with the queues as they are now. The cost is that of `priced`: own service, that of those
ahead, and what all of them make others wait. One second variant is thought of for all bins; the
least over j in each bin apart would take three times as long to compute, for 3 % less response time
on the digits zoo. Where a request's deadline leaves no time for a second service, none is counted
on.

Few classes are looked at so closely: a request by way of i costs no less than it would with second
answers from servers that nobody waits for. That is concave in the price, a minimum of straight
lines, so what it is at two prices bounds it in between; i is left out where that is no less than
what the class costs that is the best where nobody waits.

The price moves as that of `priced`, but by the accuracy that a dispatch plans, which is the sum
above with accuracies alone, and not by that of the answer. Expectations of single answers spread
some ten times as far, for no fault of the price, and a price that follows them is too slow or too
noisy. What is sent moves the accuracy balance, and the goal that plans are held to follows that,

    goal = target - (balance - reserve) / horizon,   at most `MARGIN` of the way to the best,

where the horizon grows with the answers, and the reserve is what the balance strays by at random
within one. So plans that fall short of what comes of them are made up for, and a surplus is spent.
The price starts at the one of the bound with escalation at the rate.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number, PositiveNumber
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.escalation_bounds import escalation_price
from inferway.dispatch.priced import HEADROOM, LEAST, MOST, WAIT, cheapest_in, least_busy, reprice
from inferway.site import (
    ACCEPT,
    DISPATCHED,
    REJECT,
    SETTLED,
    Answer,
    ConfidenceTables,
    Event,
    Fleet,
    Request,
    Site,
    has_class,
    idle_in,
)
from inferway.site.compiled import jit, seldom
from inferway.site.view import Floats, Ints

# Answers in which a balance is brought back: at first, for each answer so far, and at most.
HORIZON, SHARE, FARTHEST = 1000.0, 0.2, 20_000.0
RESERVE = 0.75  # Standard deviations of the balance
MARGIN = 0.5  # Of the way from the target to the best accuracy, that the goal may go up
SPREAD = 4.0  # Factor of the price, either way, that changes plans by a span
_NARROWEST = 0.01  # Least span
_ANSWERS, _TARGET, _MEAN, _VARIANCE = range(4)  # Places in `Escalate.record`
_SLOWEST = 1e-3  # Weight of one answer in the record's mean and variance
# Of bounds on costs: how far from the price they hold, either way; by how much they take services
# to be quicker than they are, so that they hold while measured times go down a little; how much
# slower they may become before bounds are too loose; and what of the price rounding may be.
_AROUND, _QUICKER, _SLOWER, _ROUNDING = 0.05, 1.02, 0.9, 1e-9


class Escalate(NamedTuple):
    """First to where an answer, or a second one after it, costs least; then again if it pays."""

    price: Floats  # (1,) s per unit of accuracy, at least 0
    # (4,) base of the price, s per unit of accuracy; bank, spans; answers so far, and their target.
    memory: Floats
    # (4,) answers so far and their target; mean and variance of the accuracies that they are
    # expected to have.
    record: Floats
    least: float  # Least base, s per unit of accuracy
    span: float  # By how much planned accuracies follow the price
    step: float  # How fast the price moves, of what is set for it
    wait: float
    best: Floats  # (1,) best accuracy, if all servers were free
    # What follows from the tables: (K,) accuracy by way of each class without a second; (K, K) most
    # that a second class gains on the first in a bin.
    own: Floats
    most_gain: Floats
    # (K, K, E + 1) bins by falling gain of a second class on the first: the gain, below any at the
    # end; and of so many bins the mass, and mass times gain.
    gains: Floats
    mass: Floats
    gained: Floats
    # Scratch of a decision: (K,) the server of each class that costs least, that cost, s, and the
    # accuracy that is planned by way of the class; (K, K) bins in which the second is asked.
    servers: Ints
    costs_s: Floats
    plans: Floats
    asked: Ints
    # Bounds: (2,) prices between which they hold, s per unit of accuracy, and (K,) service rates up
    # to which; (2, K) least cost of a request from when a class has answered it, s, at the lower
    # price, and its change with the price; (1,) the class that is best where nobody waits.
    between: Floats
    rates: Floats
    ahead: Floats
    likely: Ints

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        price: Annotated[
            Number | None,
            Field(
                description="Starting price, in seconds per unit of accuracy; if not given, from "
                "the bound with escalation."
            ),
        ] = None,
        step: Annotated[
            PositiveNumber,
            Field(description="How fast the price moves, relative to what is set for it."),
        ] = 1.0,
        wait: Annotated[
            Number, Field(description="Service times that each request at a server counts.")
        ] = WAIT,
    ) -> Escalate:
        """Start the price from the bound with escalation.

        ValueError without a target, without confidence of any class, or with a target out of reach.
        """
        if target is None:
            raise ValueError(
                "policy escalate tracks an accuracy target: give the task accuracy_target"
            )
        tables = fleet.confidence
        if tables is None:
            # Of a node, another fleet may have one in a moment.
            raise UnreachableError(
                "policy escalate goes by calibrated confidence, and none of the variants has one: "
                "measure it with `inferway profile FILE --data TEST --write`"
            )
        low = escalation_price(fleet, target, None)
        scale = low if low > 0.0 else float(np.ptp(1.0 / fleet.rate)) or 1.0 / fleet.rate.max()
        start = HEADROOM * max(low, escalation_price(fleet, target, rate_per_s))
        least = LEAST * scale
        start = max(least, start if price is None else price)
        plain, classes = tables.expected_accuracy(), len(fleet.rate)
        planned = [_planned(fleet, tables, scale * factor) for factor in (1 / SPREAD, SPREAD)]
        return cls(
            price=np.array([start]),
            memory=np.array([start, 0.0, 0.0, target]),
            record=np.array([0.0, target, target, float((plain * (1.0 - plain)).min())]),
            least=least,
            span=max(planned[1] - planned[0], _NARROWEST),
            step=step,
            wait=wait,
            **_derived(tables),
            servers=np.zeros(classes, np.int64),
            costs_s=np.zeros(classes),
            plans=plain.copy(),
            asked=np.ones((classes, classes), np.int64),
            between=np.zeros(2),
            rates=np.zeros(classes),
            ahead=np.zeros((2, classes)),
            likely=np.zeros(1, np.int64),
        )

    def correct(self, tables: ConfidenceTables) -> None:
        """Go by these tables from now on; the price stays, and finds its way from there."""
        for name, values in _derived(tables).items():
            np.copyto(getattr(self, name), values)
        self.between[:] = 0.0  # what was bounded by the others holds no longer

    @property
    def learned(self) -> tuple[str, ...]:
        """Names of the arrays that it learns; the others are the fleet's, or scratch."""
        return "price", "memory", "record"

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The server from which an answer costs least, a second one counted in."""
        price, first_s = self.price[0], self.costs_s
        bound = self.between[0] <= price <= self.between[1]
        for k in range(site.rate.size):
            server = idle_in(site, request, k)
            if server >= 0:
                self.servers[k], first_s[k] = server, 1.0 / site.rate[k]
            else:
                self.servers[k], first_s[k] = least_busy(site, request, k, self.wait)
            bound = bound and _SLOWER * self.rates[k] <= site.rate[k] <= self.rates[k]
        if not bound:
            _find_bounds(self, site)
        left_s = request.deadline_s - site.clock_s[0]
        likely, more, rounding = self.likely[0], price - self.between[0], _ROUNDING * price
        best, least = -1, np.inf
        for turn in range(-1, site.rate.size):  # the likely one first, and the others in order
            i = likely if turn < 0 else turn
            no_less = first_s[i] + self.ahead[0, i] + more * self.ahead[1, i]
            if turn == likely or no_less >= least + rounding:
                continue
            cost_s = first_s[i] + outlook(self, site, i, left_s)
            if cost_s < least or (cost_s == least and i < best):
                best, least = i, cost_s
        return self.servers[best] if best >= 0 else REJECT

    def settle(self, site: Site, request: Request, answer: Answer, draw: int) -> int:
        """Accept, unless another answer's gain is worth more than it costs.

        An answer that is expected to be less accurate than the request accepts is not accepted
        where another one's would be accurate enough.
        """
        price, own = self.price[0], answer.expected[site.server_class[answer.server]]
        if own < request.floor:
            server = _cheapest_above(self, site, request, answer)
            if server >= 0:
                return server
        best, least = ACCEPT, -price * own
        for j in range(site.rate.size):
            worth = price * answer.expected[j]
            if not has_class(request.classes, j) or 1.0 / site.rate[j] - worth >= least:
                continue
            server, cost_s = cheapest_in(site, request, j, self.wait)
            if cost_s - worth < least:
                best, least = server, cost_s - worth
        return best

    def learn(self, site: Site, event: Event) -> None:
        """Move the price by what is planned at a dispatch; learn how far answers stray from it."""
        if not event.counted:
            return
        record, target = self.record, site.target[0]
        if event.kind == DISPATCHED:
            if target != record[_TARGET]:
                record[_ANSWERS], record[_TARGET] = 0.0, target
            horizon = min(HORIZON + SHARE * record[_ANSWERS], FARTHEST)
            reserve = RESERVE * np.sqrt(record[_VARIANCE] * horizon / 2.0)
            most = max(0.0, MARGIN * (self.best[0] - target))
            ahead = min(max((site.balance[0] - reserve) / horizon, -most), 3.0 * most)
            planned = self.plans[site.server_class[event.server]]
            gain = event.rows * (planned - target + ahead) / self.span
            self.price[0] = reprice(
                self.memory, target, gain, event.rows, MOST, self.least, self.step, self.step
            )
            record[_ANSWERS] += event.rows
        elif event.kind == SETTLED:
            apart = event.expected - record[_MEAN]
            record[_MEAN] += _SLOWEST * apart
            record[_VARIANCE] += _SLOWEST * (apart * apart - record[_VARIANCE])


@jit
def outlook(policy: Escalate, site: Site, i: int, left_s: float) -> float:
    """Cost of a request from when class i has answered it, s; what it plans is noted.

    The cost is that of a second answer where it pays, less the price of the accuracy; what the
    others cost is in the scratch of the decision. No second answer takes longer than is left.
    """
    price, costs_s, own = policy.price[0], policy.costs_s, policy.own[i]
    saved, gained = 0.0, 0.0  # by a second answer
    for j in range(site.rate.size):
        cost_s = costs_s[j]
        if price * policy.most_gain[i, j] <= cost_s or j == i:
            continue
        if left_s < np.inf and 1.0 / site.rate[i] + 1.0 / site.rate[j] > left_s:
            continue
        b = policy.asked[i, j]
        while price * policy.gains[i, j, b] > cost_s:
            b += 1
        while price * policy.gains[i, j, b - 1] <= cost_s:
            b -= 1
        policy.asked[i, j] = b
        mine = price * policy.gained[i, j, b] - cost_s * policy.mass[i, j, b]
        if mine > saved:
            saved, gained = mine, policy.gained[i, j, b]
    policy.plans[i] = own + gained
    return -price * own - saved


@seldom
def _cheapest_above(policy: Escalate, site: Site, request: Request, answer: Answer) -> int:
    """The server whose answer costs least, its worth taken off, of those at or above the floor.

    -1 where there is none.
    """
    best, least = -1, np.inf
    for j in range(site.rate.size):
        if has_class(request.classes, j) and answer.expected[j] >= request.floor:
            server, cost_s = cheapest_in(site, request, j, policy.wait)
            if cost_s - policy.price[0] * answer.expected[j] < least:
                best, least = server, cost_s - policy.price[0] * answer.expected[j]
    return best


@seldom
def _find_bounds(policy: Escalate, site: Site) -> None:
    """Bound what requests cost by way of each class, at prices around the present one."""
    low, high = (1.0 - _AROUND) * policy.price[0], (1.0 + _AROUND) * policy.price[0]
    policy.between[0], policy.between[1] = low, high
    for k in range(site.rate.size):
        policy.rates[k] = _QUICKER * site.rate[k]
    least = np.inf
    for i in range(site.rate.size):
        at_low, at_high = _least_ahead(policy, i, low), _least_ahead(policy, i, high)
        policy.ahead[0, i], policy.ahead[1, i] = at_low, (at_high - at_low) / (high - low)
        cost_s = 1.0 / site.rate[i] + (at_low + at_high) / 2.0
        if cost_s < least:
            policy.likely[0], least = i, cost_s


@jit
def _least_ahead(policy: Escalate, i: int, price: float) -> float:
    """Cost of a request from when class i has answered it, s, if nobody waits at any other."""
    saved = 0.0
    for j in range(policy.rates.size):
        if j == i:
            continue
        service_s, b = 1.0 / policy.rates[j], 0
        while price * policy.gains[i, j, b] > service_s:
            b += 1
        saved = max(saved, price * policy.gained[i, j, b] - service_s * policy.mass[i, j, b])
    return -price * policy.own[i] - saved


def _derived(tables: ConfidenceTables) -> dict[str, Floats]:
    """What of the policy follows from the tables, by its name there."""
    own = np.diagonal(tables.expected, axis1=0, axis2=2).T
    # (K, K, E) of a second class on the first, in the first one's bins.
    gain = (tables.expected - own[:, :, None]).transpose(0, 2, 1)
    gain = np.where((tables.mass > 0.0)[:, None, :], gain, -1.0)
    order = np.argsort(-gain, axis=2, kind="stable")
    gain = np.take_along_axis(gain, order, axis=2)
    mass = np.take_along_axis(tables.mass[:, None, :] + np.zeros_like(gain), order, axis=2)
    plain = tables.expected_accuracy()
    none = np.zeros((len(plain), len(plain), 1))
    return {
        "best": np.array([(plain + _best_gain(tables, own)).max()]),
        "own": plain,
        "most_gain": np.ascontiguousarray(gain[:, :, 0]),
        "gains": np.concatenate([gain, none - 1.0], axis=2),
        "mass": np.concatenate([none, np.cumsum(mass, axis=2)], axis=2),
        "gained": np.concatenate([none, np.cumsum(mass * gain, axis=2)], axis=2),
    }


def _best_gain(tables: ConfidenceTables, own: Floats) -> Floats:
    """Gain of a second answer that costs nothing, by way of each class first, (K,)."""
    gain = tables.expected.max(axis=2) - own
    return np.asarray((tables.mass * gain).sum(axis=1))


def _planned(fleet: Fleet, tables: ConfidenceTables, price: float) -> float:
    """Accuracy of an answer where nobody waits and accuracy has this price, s per unit."""
    service_s = 1.0 / fleet.rate
    classes, own = range(len(service_s)), np.arange(len(service_s))
    cost = service_s - price * tables.expected
    cost[own, :, own] += -service_s[:, None]
    second = cost.argmin(axis=2)
    mass = np.where(tables.sure[:, None], tables.mass, np.eye(1, tables.mass.shape[1]))
    accuracy = np.take_along_axis(tables.expected, second[:, :, None], axis=2)[:, :, 0]
    accuracy = np.where(tables.sure[:, None], accuracy, fleet.accuracy[:, None])
    then = np.where(tables.sure[:, None], cost.min(axis=2), -price * fleet.accuracy[:, None])
    total = service_s + (mass * then).sum(axis=1)
    first = min(classes, key=lambda k: float(total[k]))
    return float((mass * accuracy).sum(axis=1)[first])
