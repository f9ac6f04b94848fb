"""R-JIQ with routing tuples, cancelling and rerouting queries ([Anonymous], Sec. 8.1).

The first routable tuple in the order of TAD-OP is drawn from by its routing vector, so that neither
the arrival rate nor the accuracy so far is needed. A pair that shuffles has an entry q_i above 1
and another below 0, q_j = 1 - q_i: the query goes to an idle server of i, and in the mean -q_j
queries that are in service at j are cancelled there and begin anew at idle servers of i. Where no
tuple is routable it is as in Algorithm 2: the most accurate idle server, or any at random. A query
is answered by the server that ends it. No dispatcher here can take back what runs, so this is a
simulation of its own: a Markov chain, service being exponential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from inferway.dispatch import max_rate, routing_tuples, solve
from inferway.site.compiled import entry, jit
from inferway.site.draw import uniform
from inferway.site.view import Floats, Ints
from inferway.studies.queueing.system import System

_PARTS = 21  # of a run; the first is for the transient, the others are batches for the errors
_CROWDED = 50  # queries per server at which a site counts as unstable
_TIME, _NUMBER, _ENDED, _RIGHT, _MOVED = range(5)


def rerouted(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    load: float,
    queries: int,
    shuffles: bool,
    seed: int,
) -> dict[str, Any]:
    """Simulate the policy; without `shuffles` it has no pairs that cancel and reroute.

    Of what is returned ``moved`` is how many queries were cancelled, per query.
    """
    fleet = System.of(system).fleet(servers)
    rate_per_s = load * max_rate(fleet, target)
    tuples = [one for one in routing_tuples(fleet, target) if shuffles or one.proper]
    sums = np.zeros((_PARTS, 5))
    stable = bool(
        _simulate(
            np.array([one.routing for one in tuples]),
            fleet.rate.astype(float),
            fleet.count.astype(np.int64),
            fleet.accuracy.astype(float),
            rate_per_s,
            queries // _PARTS,
            seed,
            sums,
        )
    )
    known = sums[1:] if stable else sums[sums[:, _TIME] > 0]
    time_s, number, ended, right, moved = known.T
    response_s, accuracy = number / (rate_per_s * time_s), right / ended  # Little's law
    root = math.sqrt(max(len(known) - 1, 1)) * math.sqrt(len(known))
    return {
        "response_s": float(number.sum() / (rate_per_s * time_s.sum())),
        "response_s_se": float(math.sqrt(((response_s - response_s.mean()) ** 2).sum()) / root),
        "accuracy": float(right.sum() / ended.sum()),
        "accuracy_se": float(math.sqrt(((accuracy - accuracy.mean()) ** 2).sum()) / root),
        "stable": stable,
        "moved": float(moved.sum() / ended.sum()),
        "queries": queries,
        "bound_s": solve(fleet, target, rate_per_s).response_time_s,
    }


@entry
def _simulate(
    routing: Floats,
    mu: Floats,
    count: Ints,
    accuracy: Floats,
    rate_per_s: float,
    each: int,
    seed: int,
    sums: Floats,
) -> bool:
    """Run `each` queries for every row of `sums`; False where too many wait."""
    classes, servers = len(mu), count.sum()
    first = np.zeros(classes + 1, np.int64)
    for k in range(classes):
        first[k + 1] = first[k] + count[k]
    # The servers of a class, those that are busy first; and where each of them stands.
    order, place = np.arange(servers), np.arange(servers)
    busy, queue = np.zeros(classes, np.int64), np.zeros(servers, np.int64)
    number, draw = 0, 0
    for part in range(len(sums)):
        arrived = 0
        while arrived < each:
            if number > _CROWDED * servers:
                return False
            total = rate_per_s
            for k in range(classes):
                total += busy[k] * mu[k]
            time_s = -np.log1p(-uniform(seed, draw)) / total
            sums[part, _TIME] += time_s
            sums[part, _NUMBER] += number * time_s
            left = uniform(seed, draw + 1) * total - rate_per_s
            draw += 2
            if left < 0:
                arrived += 1
                number += 1
                draw = _arrive(routing, count, accuracy, first, order, place, busy, queue, seed,
                               draw, sums[part])  # fmt: skip
                continue
            k = 0
            while k < classes - 1 and left >= busy[k] * mu[k]:
                left -= busy[k] * mu[k]
                k += 1
            _leave(order[first[k] + min(int(left / mu[k]), busy[k] - 1)], k, first, order, place,
                   busy, queue)  # fmt: skip
            number -= 1
            sums[part, _ENDED] += 1
            sums[part, _RIGHT] += accuracy[k]
    return True


@jit
def _arrive(
    routing: Floats,
    count: Ints,
    accuracy: Floats,
    first: Ints,
    order: Ints,
    place: Ints,
    busy: Ints,
    queue: Ints,
    seed: int,
    draw: int,
    sums: Floats,
) -> int:
    """Send one query, and move others where the tuple says so; return the next number to draw."""
    classes = len(busy)
    for t in range(len(routing)):
        routable = True
        for k in range(classes):
            if (routing[t, k] > 0 and busy[k] == count[k]) or (routing[t, k] < 0 and busy[k] == 0):
                routable = False
        if not routable:
            continue
        left, to, back = uniform(seed, draw), -1, -1
        for k in range(classes):
            if routing[t, k] < 0:
                back = k
            elif routing[t, k] > 0 and (to < 0 or left >= 0):
                to = k
                left -= routing[t, k]
        _enter(order[first[to] + busy[to]], to, first, order, place, busy, queue)
        if back >= 0:
            moves = int(-routing[t, back] + uniform(seed, draw + 1))
            while moves > 0 and busy[back] > 0 and busy[to] < count[to]:
                one = int(uniform(seed, draw + 2) * busy[back])
                _leave(order[first[back] + one], back, first, order, place, busy, queue)
                _enter(order[first[to] + busy[to]], to, first, order, place, busy, queue)
                sums[_MOVED] += 1
                moves -= 1
                draw += 1
        return draw + 3
    best = -1
    for k in range(classes):
        if busy[k] < count[k] and (best < 0 or accuracy[k] > accuracy[best]):
            best = k
    if best >= 0:
        _enter(order[first[best] + busy[best]], best, first, order, place, busy, queue)
    else:
        best = min(int(uniform(seed, draw) * classes), classes - 1)
        one = min(int(uniform(seed, draw + 1) * count[best]), count[best] - 1)
        queue[order[first[best] + one]] += 1
    return draw + 3


@jit
def _enter(
    server: int, k: int, first: Ints, order: Ints, place: Ints, busy: Ints, queue: Ints
) -> None:
    """Begin a service at an idle server."""
    queue[server] = 1
    _swap(place[server], first[k] + busy[k], order, place)
    busy[k] += 1


@jit
def _leave(
    server: int, k: int, first: Ints, order: Ints, place: Ints, busy: Ints, queue: Ints
) -> None:
    """Take the query in service from a server; the next that waits begins."""
    queue[server] -= 1
    if queue[server] == 0:
        busy[k] -= 1
        _swap(place[server], first[k] + busy[k], order, place)


@jit
def _swap(one: int, other: int, order: Ints, place: Ints) -> None:
    a, b = order[one], order[other]
    order[one], order[other] = b, a
    place[a], place[b] = other, one
