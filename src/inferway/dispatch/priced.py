"""Priced: accuracy has a price in seconds, and the price follows what the task owes its target.

Not in the papers. [Anonymous]'s LP has a dual price for accuracy: at the optimum a request goes
where 1/mu_k - price * a_k is least. Here the same rule runs on the queues as they are. With n_k
servers of class k, and q requests at a server, the one in service included, a request goes where

    (1 + wait * q + crowd) / mu_k - price * a_k,    crowd = (n_k q + others) / (2 sqrt(n_k)),

is least, over the idle servers (q = 0, without a crowd) and the shortest busy ones; others are the
requests at the class beyond one at each other server. Who waits makes those wait that come later,
the more so in a small class: this is what `wait` above 1 and the crowd stand for.

Where servers share a device, none of them is idle while it has no room for a run. Then the cost of
one, with q requests at it and r at the device, of whose c slots its run takes t, is

    predicted wait + (1 + (wait - 1/2) max(q, r t / c)) / mu_k - price * a_k:

the time until the server and the device are free, and what the run makes those wait that come
later, as at a single server.

The price is learned from each dispatch, and what is taken back is unlearned. The bank is what the
task has earned over its target, in answers that exceed it by the whole span of accuracies,

    bank = min(2000, bank + rows (a_k - target) / span),

and never more than the accuracy balance says. The base of the price moves by factors, since the
right price spans decades: against each answer's gain by a gate that anneals from a fifth to a
150th, anew with another target, and up by a push as long as the bank is short of 20. The shortage
also multiplies the price at once, up to 150 times. So the running mean is pressed to its target
from above, and not around it.

It is argued, not proven, that this keeps the target wherever the bound allows it: a short bank
raises the price until that outweighs any queue, and then each request goes to the most accurate
class with a place, waiting there if need be. Where the target is out of reach of the rate, the same
pressure lets queues grow up to their buffers. The constants were tuned in simulation on four
classes of servers; `span` is taken over the classes that the LP mixes, since a class that is never
worth a request says nothing of what an answer can win back; over all classes while the target is
another than the policy was built for.

Where the task has an energy budget, a joule has a price too, learned by dual ascent: [Anonymous]'s
Sec. 8.1 asks how several constraints might be kept at once, and prices simply add up.

So do those of targets over several tasks (`JointlyPriced`). Each has one bank and one price, which
all of its tasks learn and pay: what one is ahead of it pays for what another is behind, where that
costs the least time. The task's own price comes on top and keeps its own target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number, PositiveNumber
from inferway.dispatch.bounds import Optimum, max_rate, relaxed, solve
from inferway.dispatch.joint import BALANCE, COUNT, PRICE, empty_shared
from inferway.site import (
    COMPLETED,
    SETTLED,
    WITHDRAWN,
    Event,
    Fleet,
    Request,
    Site,
    idle_in,
)
from inferway.site.compiled import either, jit, often
from inferway.site.masks import lowest
from inferway.site.natural import natural
from inferway.site.selection import awaited_behind, awaited_otherwise, waits_alike
from inferway.site.sharing import (
    ahead_of,
    crowd_at,
    foresee_cramped,
    foresee_device,
    has_room,
    may_have_room,
)
from inferway.site.view import Flags, Floats, Ints, SharedDevices

# Service times that a place in a queue counts; above 1, since who waits makes others wait too.
WAIT = 2.3
CROWD = 0.5  # Of the square root of a class, for the requests that stand there beyond one each
HEADROOM = 1.25  # The start over the LP's price
ENOUGH, MOST = 20.0, 2000.0  # Bank that is not short, and the most that is counted; in spans
SHORTAGE = 5.0  # Spans that double the price
STEEPEST = 150.0  # Times that a shortage multiplies the price at most
LEAST = 0.02  # The base never falls below this part of the price's scale
# The base never exceeds the least by more, which outweighs any queue: a target out of reach for
# long would raise it beyond what numbers hold, and no class would be worth more than another.
RANGE = 1e9
_NONE = 1e-9  # Shares below are rounding
_EQUAL = 1e-9  # Service times by which equal waits may differ: they are sums in any order
# Of the energy price's scale, for an answer that exceeds the budget by the whole span of energies.
ENERGY_STEP = 0.5

_BASE, _BANK, _ANSWERS, _TARGET = range(4)  # Places in a price's memory


@jit
def _least_busy(
    devices: Any, site: Site, request: Request, k: int, wait: float
) -> tuple[int, float]:
    best, least_s = -1, np.inf
    servers = site.first[k + 1] - site.first[k]
    part = CROWD / np.sqrt(servers)
    beyond = site.in_system[k] - servers + 1
    for server in range(site.first[k], site.first[k + 1]):
        queue = site.queue[server]
        if queue == 0 or not request.allowed[server]:
            continue
        crowd = part * (servers * queue + max(0, beyond - queue))
        cost_s = (1.0 + wait * queue + crowd) / site.rate[k]
        if cost_s < least_s:
            best, least_s = server, cost_s
        if queue == 1:
            break  # among the busy, no queue is shorter
    return best, least_s


@jit
def _least_sharing(
    devices: SharedDevices, site: Site, request: Request, k: int, wait: float
) -> tuple[int, float]:
    if has_room(devices, k):  # whoever waits does so for a server
        return _least_busy(devices, site, request, k, wait)
    foresee_device(devices, site, devices.device[k])
    return _least_cramped(devices, site, request, k, wait)


@often
def _least_cramped(
    devices: SharedDevices, site: Site, request: Request, k: int, wait: float
) -> tuple[int, float]:
    """As `least_busy`, where the device has no room for the class, and is looked ahead at."""
    best, least_s = -1, np.inf
    crowd, rate = crowd_at(devices, k), site.rate[k]
    alike = waits_alike(site, k, request.rows)
    held_s, behind_s = ahead_of(devices, site, k)
    for server in range(natural(site.first[k]), site.first[k + 1]):
        if request.allowed[server]:
            if alike:
                wait_s = awaited_behind(site, server, held_s, behind_s)
            else:
                wait_s = awaited_otherwise(site, k, server, request.rows)
            delayed = (wait - 1.0 + CROWD) * max(crowd, float(site.queue[server]))
            cost_s = wait_s + (1.0 + delayed) / rate
            if cost_s < least_s - _EQUAL / rate:
                best, least_s = server, cost_s
    return best, least_s


_LEAST_BUSY = either(SharedDevices, _least_sharing, _least_busy)


@jit
def least_busy(site: Site, request: Request, k: int, wait: float) -> tuple[int, float]:
    """The busy server of class k where a request takes least, and that cost, s.

    Its service time, that of those ahead of it, and what they and it make others wait; -1 and inf
    where no busy server may take the request. While a device has no room for the class, all its
    servers are busy, and the wait is the one that is predicted of the server and the device.
    """
    return _LEAST_BUSY(site.devices, site, request, k, wait)


@jit
def cheapest_in(site: Site, request: Request, k: int, wait: float) -> tuple[int, float]:
    """The server of class k where a request takes least, idle ones first, and that cost, s.

    -1 and inf where no server may take the request.
    """
    server = idle_in(site, request, k)
    return (server, 1.0 / site.rate[k]) if server >= 0 else least_busy(site, request, k, wait)


@jit
def cheapest(
    site: Site, request: Request, price: float, energy_price: float, energy: Floats, wait: float
) -> int:
    """The server whose time less the worth of its answer is least, the idle ones looked at first.

    The prices are s per unit of accuracy and s per J; `energy` is by class, J.
    """
    best, least = -1, np.inf
    if site.idle_classes[0] != 0:
        for k in range(energy.size):
            worth = price * site.accuracy[k] - energy_price * energy[k]
            cost = 1.0 / site.rate[k] - worth
            if cost < least:
                server = idle_in(site, request, k)
                if server >= 0:
                    best, least = server, cost
    return _CHEAPER(site.devices, site, request, price, energy_price, energy, wait, best, least)


@jit
def _cheaper_busy(
    devices: Any,
    site: Site,
    request: Request,
    price: float,
    energy_price: float,
    energy: Floats,
    wait: float,
    best: int,
    least: float,
) -> int:
    """A busy server where a request costs less than `least`, at server `best`; else that one."""
    for k in range(energy.size):
        worth = price * site.accuracy[k] - energy_price * energy[k]
        if (1.0 + wait) / site.rate[k] - worth >= least:
            continue  # no queue of this class can be the cheapest
        server, cost_s = _least_busy(devices, site, request, k, wait)
        if cost_s - worth < least - _EQUAL / site.rate[k]:
            best, least = server, cost_s - worth
    return best


@jit
def _cheaper_sharing(
    devices: SharedDevices,
    site: Site,
    request: Request,
    price: float,
    energy_price: float,
    energy: Floats,
    wait: float,
    best: int,
    least: float,
) -> int:
    """The same where servers share devices.

    Without an idle server, the fastest class that is in use is asked first: of those that cost more
    by so much that no chain of costs that count as equal leads from one to the other, none is the
    cheapest, whatever their servers have to do.
    """
    if not foresee_cramped(devices, site):
        return _cheaper_busy(devices, site, request, price, energy_price, energy, wait, best, least)
    delays = max(0.0, wait - 1.0 + CROWD)
    guess, likely, likely_s, most = -1, -1, np.inf, least
    if best < 0 and site.busy_classes[0] != 0:
        guess = lowest(site.busy_classes[0])
        if has_room(devices, guess):
            guess = -1
        else:
            likely, likely_s = _least_cramped(devices, site, request, guess, wait)
            worth, slowest = price * site.accuracy[guess] - energy_price * energy[guess], np.inf
            for k in range(energy.size):
                slowest = min(slowest, site.rate[k])
            most = likely_s - worth + (energy.size + 2) * _EQUAL / slowest
    d, taken, roomy, delayed = -1, -1, False, 0.0
    for k in range(energy.size):
        if devices.device[k] != d or devices.taken[k] != taken:  # another than the class before
            d, taken = devices.device[k], devices.taken[k]
            roomy = may_have_room(devices, d, taken)
            delayed = 0.0 if d < 0 else 1.0 + delays * crowd_at(devices, k)
        worth = price * site.accuracy[k] - energy_price * energy[k]
        # Service times of the class beyond which none of its servers can be the cheapest.
        worthwhile = (min(least, most) + worth) * site.rate[k]
        if k == guess:
            server, cost_s = likely, likely_s
        elif roomy and has_room(devices, k):
            if 1.0 + wait >= worthwhile:
                continue
            server, cost_s = _least_busy(devices, site, request, k, wait)
        elif delayed >= worthwhile:
            continue
        else:
            server, cost_s = _least_cramped(devices, site, request, k, wait)
        if cost_s - worth < least - _EQUAL / site.rate[k]:
            best, least = server, cost_s - worth
    return best


_CHEAPER = either(SharedDevices, _cheaper_sharing, _cheaper_busy)


@jit
def reprice(
    memory: Floats,
    target: float,
    gain: float,
    rows: int,
    most: float,
    least: float,
    push_step: float,
    gain_step: float,
) -> float:
    """Move the price of accuracy by what an answer has gained on the target; the price, s.

    Parameters
    ----------
    memory
        (4,) base of the price, s per unit of accuracy; bank, spans; answers so far, and their
        target. It is written to.
    target
        Of the moment.
    gain
        Of all rows, in spans; it is taken back with negative rows.
    rows
        Answers.
    most
        Greatest bank, in spans.
    least
        Least base, s per unit of accuracy; the greatest is a billion times that.
    push_step, gain_step
        How fast the base moves by a short bank, and by what is gained.
    """
    if target != memory[_TARGET]:  # the right price is far away again
        memory[_ANSWERS], memory[_TARGET] = 0.0, target
    answers = max(0.0, memory[_ANSWERS] + rows)
    bank = min(most, memory[_BANK] + gain)
    short = max(0.0, ENOUGH - bank) / SHORTAGE
    gate = max(1.0 / 150.0, 1.0 / (5.0 + answers / 20.0))
    push = min(np.log(1.0 + short), 1.0) / min(5000.0, 300.0 + answers / 2.0)
    base = memory[_BASE] * np.exp(push_step * push - gain_step * gate * gain)
    base = max(least, min(base, RANGE * least))
    memory[_BASE], memory[_BANK], memory[_ANSWERS] = base, bank, answers
    return base * min(1.0 + short, STEEPEST)


class Priced(NamedTuple):
    """To the server with the least expected response time less the price of its accuracy."""

    price: Floats  # (2,) s per unit of accuracy and s per J, at least 0
    # (4,) base of the price, s per unit of accuracy; bank, spans; answers so far, and their target.
    memory: Floats
    least: float  # Least base, s per unit of accuracy
    # Range of the accuracies that the LP mixes for this target; of all for another.
    span: float
    target: float
    whole: float
    step: float  # How fast the price moves, of what is set for it
    wait: float
    energy: Floats  # (K,) mean energy of a request, J; zeros where the task has no energy budget
    energy_budget: float  # Greatest mean energy of a request, J
    # The energy's price moves by energy_step * (energy - budget); s per J squared, 0 for none.
    energy_step: float

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
                "the bound."
            ),
        ] = None,
        step: Annotated[
            PositiveNumber,
            Field(description="How fast the price moves, relative to what is set for it."),
        ] = 1.0,
        wait: Annotated[
            Number, Field(description="Service times that each request at a server counts.")
        ] = WAIT,
        energy_budget: float | None = None,
        targets: Sequence[Mapping[str, Any]] = (),
    ) -> Priced | JointlyPriced:
        """Start the prices from the bound.

        `targets` are the deployment's over several tasks, as `inferway.dispatch.joint` has them.
        ValueError without a target, or with a target out of reach, by itself or within the budget.
        """
        if targets:
            own: dict[str, Any] = {"price": price, "step": step, "wait": wait}
            if target is not None or energy_budget is not None:
                goal = 0.0 if target is None else target
                alone = cls.build(
                    fleet, target=goal, rate_per_s=rate_per_s, energy_budget=energy_budget, **own
                )
                assert isinstance(alone, Priced)
            else:
                alone = None
            return JointlyPriced.joined(alone, fleet, target, targets, step=step, wait=wait)
        if target is None:
            raise ValueError(
                "policy priced tracks an accuracy target: give the task accuracy_target"
            )
        low = relaxed(fleet, target, energy_budget)
        start, mixed = _from_bound(fleet, target, rate_per_s, energy_budget, low)
        start *= HEADROOM
        if price is not None:
            start[0] = price
        least = LEAST * _scale(low.price_s, fleet.accuracy, fleet)
        start[0] = max(least, start[0])
        energy, energy_step = np.zeros(len(fleet.rate)), 0.0
        if energy_budget is not None:
            energy = fleet.energy.copy()
            scale = _scale(low.energy_price_s, fleet.energy, fleet)
            energy_step = ENERGY_STEP * step * scale / _span(energy)
        return cls(
            start,
            np.array([start[0], 0.0, 0.0, target]),
            least,
            float(np.ptp(fleet.accuracy[mixed])) or _span(fleet.accuracy),
            target,
            _span(fleet.accuracy),
            step,
            wait,
            energy,
            energy_budget or 0.0,
            energy_step,
        )

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The cheapest server, the idle ones looked at first."""
        return cheapest(site, request, self.price[0], self.price[1], self.energy, self.wait)

    def learn(self, site: Site, event: Event) -> None:
        """Move the prices with each dispatch, and back where no answer is sent."""
        if event.kind in (COMPLETED, SETTLED) or not event.counted:
            return
        k = site.server_class[event.server]
        rows = -event.rows if event.kind == WITHDRAWN else event.rows
        span = self.span if site.target[0] == self.target else self.whole
        gain = rows * (site.accuracy[k] - site.target[0]) / span
        most = min(MOST, site.balance[0] / span)
        self.price[0] = reprice(
            self.memory, site.target[0], gain, rows, most, self.least, self.step, self.step
        )
        if self.energy_step > 0.0:
            excess = rows * (self.energy[k] - self.energy_budget)
            self.price[1] = max(0.0, self.price[1] + self.energy_step * excess)


class JointlyPriced(NamedTuple):
    """As `Priced`, with prices of targets over several tasks on top of the task's own.

    A request goes where its time is least, less the worth of its accuracy and the cost of its
    energy by all prices together: the bound's rule, whose joint rows have one price for all tasks.
    """

    price: Floats  # As the following, the task's own, as `Priced` has it
    memory: Floats
    least: float
    span: float
    target: float
    whole: float
    step: float
    wait: float
    energy: Floats
    energy_budget: float
    energy_step: float
    tracks: bool  # Whether the task has a target of its own
    # (T, 7) what policies of all tasks share of each target of the deployment; see
    # `inferway.dispatch.joint`.
    shared: Floats
    rows: Ints  # (J,) the targets that this task is one of
    of_energy: Flags  # (J,) whether each is on energy
    goals: Floats  # (J,) mean accuracy, 0..1, or mean energy of a request, J
    spans: Floats  # (J,) range of what the answers have
    # (J,) least base of each price of accuracy, s per unit; steps of each of energy, s per J
    # squared.
    steps: Floats

    @classmethod
    def joined(
        cls,
        own: Priced | None,
        fleet: Fleet,
        target: float | None,
        targets: Sequence[Mapping[str, Any]],
        *,
        step: float,
        wait: float,
    ) -> JointlyPriced:
        """Join the prices of targets over several tasks to the task's own, where it has some."""
        rows = [at for at, one in enumerate(targets) if fleet.task in one["tasks"]]
        told = [targets[at] for at in rows]
        of_energy = np.array(["energy" in one for one in told], np.bool_)
        steps = [
            ENERGY_STEP * step * one["scale"] / one["span"]
            if "energy" in one
            else LEAST * one["scale"]
            for one in told
        ]
        kept: dict[str, Any] = {
            "price": np.zeros(2),
            "memory": np.zeros(4),
            "least": 0.0,
            "span": 1.0,
            "target": 0.0,
            "whole": 1.0,
            "energy_budget": 0.0,
            "energy_step": 0.0,
        }
        if own is not None:
            kept = {name: getattr(own, name) for name in kept}
        if target is None:
            kept["price"][0] = 0.0
        return cls(
            **kept,
            step=step,
            wait=wait,
            energy=np.zeros(len(fleet.rate)) if not fleet.energy.size else fleet.energy.copy(),
            tracks=target is not None,
            shared=empty_shared(targets, HEADROOM),
            rows=np.array(rows, np.int64),
            of_energy=of_energy,
            goals=np.array([one.get("accuracy", one.get("energy")) for one in told], np.float64),
            spans=np.array([one["span"] for one in told], np.float64),
            steps=np.array(steps, np.float64),
        )

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The cheapest server by all prices, the idle ones looked at first."""
        price, energy_price = self.price[0], self.price[1]
        for j in range(self.rows.size):
            if self.of_energy[j]:
                energy_price += self.shared[self.rows[j], PRICE]
            else:
                price += self.shared[self.rows[j], PRICE]
        return cheapest(site, request, price, energy_price, self.energy, self.wait)

    def learn(self, site: Site, event: Event) -> None:
        """Move all prices with each dispatch, and back where no answer is sent."""
        if event.kind in (COMPLETED, SETTLED) or not event.counted:
            return
        k = site.server_class[event.server]
        rows = -event.rows if event.kind == WITHDRAWN else event.rows
        for j in range(self.rows.size):
            state = self.shared[self.rows[j]]
            state[COUNT] += rows
            if self.of_energy[j]:
                excess = rows * (self.energy[k] - self.goals[j])
                state[BALANCE] -= excess
                state[PRICE] = max(0.0, state[PRICE] + self.steps[j] * excess)
            else:
                lead = rows * (site.accuracy[k] - self.goals[j])
                state[BALANCE] += lead
                most = min(MOST, state[BALANCE] / self.spans[j])
                gain = lead / self.spans[j]
                state[PRICE] = reprice(
                    state, self.goals[j], gain, rows, most, self.steps[j], self.step, self.step
                )
        if self.tracks:
            span = self.span if site.target[0] == self.target else self.whole
            gain = rows * (site.accuracy[k] - site.target[0]) / span
            most = min(MOST, site.balance[0] / span)
            self.price[0] = reprice(
                self.memory, site.target[0], gain, rows, most, self.least, self.step, self.step
            )
        if self.energy_step > 0.0:
            excess = rows * (self.energy[k] - self.energy_budget)
            self.price[1] = max(0.0, self.price[1] + self.energy_step * excess)


def _from_bound(
    fleet: Fleet,
    target: float,
    rate_per_s: float | None,
    energy_budget: float | None,
    low: Optimum,
) -> tuple[Floats, Flags]:
    """The LP's prices of accuracy and energy, and the classes that it mixes.

    At low load where no rate is known.
    """
    prices, mixed = np.array([low.price_s, low.energy_price_s]), low.shares > _NONE
    if rate_per_s is None:
        return prices, mixed
    greatest = max_rate(fleet, target, energy_budget)
    at_rate = solve(fleet, target, min(0.99 * greatest, rate_per_s), energy_budget)
    between = min(0.99 * greatest, (rate_per_s + greatest) / 2)
    fuller = solve(fleet, target, between, energy_budget)
    prices = np.maximum(prices, [fuller.price_s, fuller.energy_price_s])
    return prices, mixed | (at_rate.shares > _NONE)


def _scale(price_s: float, values: Floats, fleet: Fleet) -> float:
    """A price's natural size, s per unit: the LP's at low load, else the fleet's."""
    if price_s > 0:
        return price_s
    spread = float(np.ptp(1.0 / fleet.rate)) or 1.0 / float(fleet.rate.max())
    return spread / _span(values)


def _span(values: Floats) -> float:
    return float(np.ptp(values)) or 1.0
