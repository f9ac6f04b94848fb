"""The engine for Poisson arrivals and exponential service: the next event from the total rates.

Nothing is scheduled. The time to the next event is exponential with the sum of all rates, and
which event it is falls in proportion to them: an arrival, or a completion at a busy server of a
class, each as likely as the other. An event costs the same whatever the number of servers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inferway.dispatch.contract import choose, learn
from inferway.site.draw import exponential, step, unit, word
from inferway.site.handle import handle
from inferway.site.transitions import join, leave
from inferway.site.view import (
    ALL_CLASSES,
    COMPLETED,
    DISPATCHED,
    HOLD,
    Event,
    Floats,
    Request,
    Site,
)
from inferway.twin.kernel.state import (
    BROKEN,
    DONE,
    LENGTHS,
    ROOM,
    Serving,
    Tally,
    Waiting,
    bucket,
    pop,
    push,
)


class Chain(NamedTuple):
    """Arrays that a run reads and writes."""

    policy: Any
    site: Site
    serving: Serving
    waiting: Waiting
    tally: Tally
    states: np.ndarray  # (1,) or more streams; the first is the run's
    mean_s: Floats  # (K,) service times, 1 over the site's rates


def run(
    chain: Chain,
    rate_per_s: float,
    phase: int,
    until_s: float,
    arrivals: int,
    places: int,
    counted_s: float,
) -> tuple[int, int]:
    """Run until a time, until so many requests have arrived, or until nothing can happen.

    With an arrival rate of 0 the site empties. The workload's phase, for what arrives now, is
    counted from the end, below 0, where it does not count when it leaves; the time that requests
    spend in the system counts from `counted_s` on. Returns why it ended, and how many of the
    arrivals are left.
    """
    # A copy each: what is handed to one function stays in registers where others are.
    policy, site, serving = handle(chain.policy), handle(chain.site), handle(chain.serving)
    waiting, tally = handle(chain.waiting), handle(chain.tally)
    states, mean_s = chain.states, chain.mean_s
    state = states[0]
    now_s = site.clock_s[0]
    start_s = now_s
    classes, servers = site.rate.size, site.queue.size
    reached_s, histogram = tally.reached_s, tally.histogram
    in_system = 0
    busy_rate = 0.0
    for k in range(classes):
        busy_rate += site.busy[k] * site.rate[k]
    for server in range(servers):
        in_system += site.queue[server]
    area = 0.0
    ended = DONE
    while arrivals > 0:
        # In between, sums and differences of rates would drift.
        total = rate_per_s + (busy_rate if in_system > 0 else 0.0)
        if total == 0.0:
            break
        before = state
        state = step(state)
        next_s = now_s + exponential(state) / total
        if next_s > until_s:
            area += in_system * (until_s - now_s)
            now_s = until_s
            break
        state = step(state)
        place = unit(state) * total - rate_per_s
        if place < 0.0:
            if waiting.free[1] == 0:
                state = before  # the same event again, with more room
                ended = ROOM
                break
            arrivals -= 1
            area += in_system * (next_s - now_s)
            now_s = next_s
            site.clock_s[0] = now_s
            state = step(state)
            request = Request(now_s, np.inf, 0.0, 0, 1, ALL_CLASSES, site.open, False)
            server = choose(policy, site, request, word(state))
            tally.arrived[phase] += 1
            if server >= servers or server < HOLD:
                ended = BROKEN
                break
            if server < 0 or not site.open[server]:
                tally.rejected[phase] += 1
                continue
            k = join(site, server, places)
            queue = site.queue[server]
            if queue < LENGTHS:
                reached_s[k, queue] -= now_s - start_s
            in_system += 1
            if queue == 1:
                serving.since_s[server] = now_s
                serving.phase[server] = phase
                busy_rate += site.rate[k]
            else:
                push(waiting, server, queue == 2, now_s, phase)
            site.balance[0] += site.accuracy[k] - site.target[0]
            tally.sent[phase, k] += 1
            learn(policy, site, Event(DISPATCHED, server, 1, True, 0.0, 0.0, 0, 0.0, np.inf))
        else:
            area += in_system * (next_s - now_s)
            now_s = next_s
            site.clock_s[0] = now_s
            k = 0
            share = site.busy[0] * site.rate[0]
            while place >= share and k < classes - 1:
                place -= share
                k += 1
                share = site.busy[k] * site.rate[k]
            busy = site.busy[k]
            turn = min(int(place * mean_s[k]), busy - 1)
            server = site.idle_server[site.first[k] + site.idle[k] + turn]
            since_s = serving.since_s[server]
            of = serving.phase[server]
            queue = leave(site, server, k)
            if queue + 1 < LENGTHS:
                reached_s[k, queue + 1] += now_s - start_s
            in_system -= 1
            if queue > 0:
                entry = pop(waiting, server)
                serving.since_s[server] = waiting.arrived_s[entry]
                serving.phase[server] = waiting.phase[entry]
            else:
                busy_rate -= site.rate[k]
            if of >= 0:
                response_s = now_s - since_s
                tally.answered[of, k] += 1
                tally.response_s[of, k] += response_s
                histogram[of, k, bucket(response_s)] += 1
            tally.area[1] += now_s - max(since_s, counted_s)
            learn(policy, site, Event(COMPLETED, server, 1, True, 0.0, 0.0, 1, 0.0, np.inf))
    site.clock_s[0] = now_s
    tally.area[0] += area
    states[0] = state
    return ended, arrivals
