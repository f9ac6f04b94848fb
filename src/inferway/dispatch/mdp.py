"""The least mean response time of any policy that keeps the target, for small systems.

The LP of `inferway.dispatch.bounds` knows no queueing; here queues are looked at, and what comes
out is what the best policy of all reaches. The system is [Anonymous], 2.1: Poisson arrivals,
exponential services, a first-come-first-served queue at each server, no look into the future. It
is a Markov decision process over the queue lengths, with a constraint on the mean accuracy, which
gets a price c as in Altman, Constrained Markov Decision Processes (1999), ch. 12:

    g(c) = min over policies of  mean response time - c (mean accuracy - target),

is at most the least response time for every c >= 0, and equal to it at the best c. Each g(c) comes
from relative value iteration on the uniformized chain (Puterman, Markov Decision Processes,
doi:10.1002/9780470316887, ch. 8.5), whose least and greatest difference in a sweep bound it from
both sides; the best c is where the lines of two policies meet, one on either side of the target.

Queues are cut at some places. Who joins a full server here leaves at once, its accuracy counted,
and charged the least that it could have taken, the services of places + 1. In the uncut system it
would have taken no less, and would only have kept others waiting: g of the cut system is at most g
of the uncut one.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.bounds import max_rate, solve
from inferway.site.compiled import entry, jit
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Ints

MOST_STATES = 3_000_000
_SWEEPS = 2_000_000
_STEPS = 60
_ACCURACY = 1e-6  # how far a policy's accuracy is left open, of the span of accuracies


class MdpBound(NamedTuple):
    """The least mean response time that any policy reaches, and how well it is known."""

    # g at the best price found, less its error: at most what any policy reaches, s.
    response_time_s: float
    price_s: float  # That price, s per unit of accuracy
    accuracy: float  # Mean accuracy of the policy that is best, which mixes the two at that price
    # Response time of that policy in the cut system, less `response_time_s`: what bisection and
    # value iteration left open, s.
    gap_s: float
    # By how much g rises where nobody may join a full server: what the cut may matter, s.
    truncation_s: float
    places: int  # Requests at one server, the one in service included, at most
    states: int


class _System(NamedTuple):
    """The cut system as arrays: K classes, M states of a class at most, S servers in one."""

    # (K, M, S) state of the class after joining the server, itself if that is full; -1 where a
    # server of the same length comes before.
    join: Ints
    leave: Ints  # (K, M, S) state of the class after a departure, itself if the server is idle
    held: Ints  # (K, M) requests at the class
    sizes: Ints  # (K,) states of each class
    strides: Ints  # (K,) how far apart states of the system are whose class differs by one
    servers: Ints
    accuracy: Floats
    rate: Floats
    arrivals_per_s: float
    places: int


class _Line(NamedTuple):
    """A policy: its response time less c (accuracy - target) is a line in c."""

    response_time_s: float
    accuracy: float


def mdp_bound(
    fleet: Fleet,
    *,
    target: float | None,
    rate_per_s: float,
    places: int = 12,
    tolerance: float = 1e-5,
) -> MdpBound:
    """The least mean response time of any policy at a rate.

    Parameters
    ----------
    fleet
        A few server classes of a few servers: states grow as places to the number of servers.
    target
        Accuracy target in 0..1, or None.
    rate_per_s
        Arrival rate of the whole site, 1/s, below the greatest feasible one.
    places
        Requests kept at one server, the one in service included, at least 1.
    tolerance
        How far value iteration may leave g open, of the mean service time.

    Raises
    ------
    ValueError
        Where the rate is not feasible, or the states are too many.
    """
    greatest = max_rate(fleet, target)
    if not 0 < rate_per_s < greatest:
        raise ValueError(
            f"a rate of {rate_per_s:g}/s is not between 0 and the greatest feasible {greatest:g}/s"
        )
    if places < 1 or tolerance <= 0:
        raise ValueError(
            f"places are at least 1 and the tolerance above 0, not {places}, {tolerance}"
        )
    states = math.prod(math.comb(places + int(n), int(n)) for n in fleet.count)
    if states > MOST_STATES:
        raise ValueError(
            f"{fleet.servers} servers of {places} places have {states} states, more than "
            f"{MOST_STATES}: take fewer places or servers"
        )
    optimum, goal = solve(fleet, target, rate_per_s), target or 0.0
    search = _Search(
        _system(fleet, rate_per_s, places), goal, states, tolerance * optimum.response_time_s
    )
    first_s = max(optimum.price_s, 1e-3 * optimum.response_time_s)
    best, price_s, less, more = search.maximize(first_s)
    mixed_s, accuracy = less  # of the mix of the two that just keeps the target
    if less.accuracy < goal and more.accuracy != less.accuracy:
        part = (goal - less.accuracy) / (more.accuracy - less.accuracy)
        mixed_s += part * (more.response_time_s - less.response_time_s)
        accuracy = goal
    # The same price, but with nobody allowed to leave as long as any server has a place.
    stricter, _ = search.evaluate(price_s, relaxed=False)
    return MdpBound(
        response_time_s=best,
        price_s=price_s,
        accuracy=accuracy,
        gap_s=mixed_s - best,
        truncation_s=max(0.0, stricter - best),
        places=places,
        states=states,
    )


class _Search:
    """The greatest g over the price; values of one price are where the next begins."""

    def __init__(self, system: _System, target: float, states: int, tolerance_s: float) -> None:
        self.system, self.target, self.tolerance_s = system, target, tolerance_s
        self.values, self.accuracies = np.zeros(states), np.zeros(states)
        self.decision = np.zeros((states, 2), np.int32)

    def evaluate(self, price_s: float, *, relaxed: bool = True) -> tuple[float, _Line]:
        """Lower bound of g at a price, s, and the line of the policy that is best there."""
        goal, tolerance = self.target, _ACCURACY * (float(np.ptp(self.system.accuracy)) or 1.0)
        place = self.decision, price_s, goal, relaxed
        low, high = iterate(self.system, self.values, *place, True, self.tolerance_s)
        least, most = iterate(self.system, self.accuracies, *place, False, tolerance)
        if high - low > self.tolerance_s or most - least > tolerance:
            raise ValueError(
                f"values have not settled in {_SWEEPS} sweeps; take a larger tolerance"
            )
        accuracy = (least + most) / 2
        return low, _Line((low + high) / 2 + price_s * (accuracy - goal), accuracy)

    def maximize(self, first_s: float) -> tuple[float, float, _Line, _Line]:
        """The greatest g, its price, and a policy on each side of the target."""
        g, less = self.evaluate(0.0)
        best, price_s = (g, 0.0), first_s
        if less.accuracy >= self.target - 1e-12:
            return *best, less, less
        for _ in range(_STEPS):
            g, more = self.evaluate(price_s)
            best = max(best, (g, price_s))
            if more.accuracy >= self.target:
                break
            less, price_s = more, 2 * price_s
        else:
            raise ValueError(f"no policy in {self.system.sizes} states keeps the target")
        for _ in range(_STEPS):
            if more.accuracy <= less.accuracy:
                break
            slower_s = more.response_time_s - less.response_time_s
            price_s = slower_s / (more.accuracy - less.accuracy)
            meet_s = less.response_time_s - price_s * (less.accuracy - self.target)
            if meet_s - best[0] <= 2 * self.tolerance_s:
                break
            g, line = self.evaluate(price_s)
            best = max(best, (g, price_s))
            if line.accuracy >= self.target:
                more = line
            else:
                less = line
        return *best, less, more


def _system(fleet: Fleet, rate_per_s: float, places: int) -> _System:
    """Number the states: each class by its sorted queue lengths, as its servers are alike."""
    classes, most = len(fleet.rate), int(fleet.count.max())
    sizes = np.array([math.comb(places + int(n), int(n)) for n in fleet.count], np.int64)
    join = np.full((classes, sizes.max(), most), -1, np.int64)
    leave = np.full((classes, sizes.max(), most), -1, np.int64)
    held = np.zeros((classes, sizes.max()), np.int64)
    for k, servers in enumerate(map(int, fleet.count)):
        lengths = list(combinations_with_replacement(range(places + 1), servers))
        number = {state: m for m, state in enumerate(lengths)}
        for m, state in enumerate(lengths):
            held[k, m] = sum(state)
            for j, length in enumerate(state):
                shorter, longer = list(state), list(state)
                shorter[j], longer[j] = max(0, length - 1), min(places, length + 1)
                leave[k, m, j] = number[tuple(sorted(shorter))]
                if j == 0 or state[j - 1] != length:
                    join[k, m, j] = number[tuple(sorted(longer))]
    return _System(
        join=join,
        leave=leave,
        held=held,
        sizes=sizes,
        strides=np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64),
        servers=fleet.count.astype(np.int64),
        accuracy=fleet.accuracy.copy(),
        rate=fleet.rate.copy(),
        arrivals_per_s=rate_per_s,
        places=places,
    )


@entry
def iterate(
    system: _System,
    values: NDArray[np.float64],
    decision: NDArray[np.int32],
    price_s: float,
    target: float,
    relaxed: bool,
    improves: bool,
    tolerance: float,
) -> tuple[float, float]:
    """Relative value iteration from `values` on, which are left as they are at the end.

    Time is cut into steps at the rate of all events. In a step the requests present cost their
    time, an arrival what its decision says; the mean cost of an arrival is the response time less
    the price of accuracy. `decision` becomes the (states, 2) next state and class of an arrival,
    class -1 where all servers are full. Where it does not improve, decisions stay as they are, and
    an arrival gains the accuracy of its class.

    Returns
    -------
    Bounds of g, s: of the best policy, and of the one in `decision`; or of its mean accuracy.
    """
    classes, lam, pace = system.sizes.size, system.arrivals_per_s, system.arrivals_per_s
    for k in range(classes):  # rate of all events: the services of idle servers, too
        pace += system.servers[k] * system.rate[k]
    digit = np.zeros(classes, np.int64)
    new = np.empty_like(values)
    low, high = -np.inf, np.inf
    for _ in range(_SWEEPS):
        low, high = np.inf, -np.inf
        digit[:] = 0
        for s in range(values.size):
            present, after = 0, 0.0
            best, to_best, class_best = values[s], s, -1
            for k in range(classes):
                m, stride, mu = digit[k], system.strides[k], system.rate[k]
                present += system.held[k, m]
                base = s - m * stride
                credit = price_s * (system.accuracy[k] - target)
                for j in range(system.servers[k]):
                    after += mu * values[base + system.leave[k, m, j] * stride]
                    up = system.join[k, m, j]
                    if not improves or up < 0 or (up == m and not relaxed):
                        continue
                    to = base + up * stride
                    cost = values[to] - credit
                    if up == m:  # it leaves at once; what it would have waited is charged
                        cost += (system.places + 1) / mu
                    if class_best < 0 or cost < best:
                        best, to_best, class_best = cost, to, k
            if improves:
                decision[s, 0], decision[s, 1] = to_best, class_best
                new[s] = (present + lam * best + after) / pace
            else:
                k = decision[s, 1]
                gained = target if k < 0 else system.accuracy[k]
                new[s] = (lam * (gained + values[decision[s, 0]]) + after) / pace
            change = new[s] - values[s]
            low, high = min(low, change), max(high, change)
            _advance(digit, system.sizes)
        # Values relative to the empty system, or they grow for ever.
        values[:] = new - new[0]
        low, high = low * pace / lam, high * pace / lam
        if high - low <= tolerance:
            break
    return low, high


@jit
def _advance(digit: Ints, sizes: Ints) -> None:
    """From the states of the classes to those of the next state of the system."""
    k = 0
    while k < digit.size:
        digit[k] += 1
        if digit[k] < sizes[k]:
            return
        digit[k] = 0
        k += 1
