"""The general engine of several tasks that share devices or a policy: one loop over all events.

Each task has its own world, policy and arrivals. The earliest event of all is next; of events at
the same time those of servers come before arrivals, and the tasks in their order. A run that ends
lets others start in the order in which they wait at the device, whatever their task, and then every
other task decides again for the first of its central queue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site.compiled import either, jit
from inferway.site.handle import handle
from inferway.site.view import Floats, Ints, SharedDevices
from inferway.twin.kernel.event_list import crowded, next_s, take
from inferway.twin.kernel.general import (
    come,
    follow_routing,
    happen,
    is_stuck,
    release_held,
    start_run,
)
from inferway.twin.kernel.others import AS_ASKED, EVENT, LOOK, RELEASE, Others, ask_task
from inferway.twin.kernel.state import DONE, FULL, PRESENT, ROOM, TROUBLE, World

# Places in `Seat.course`, and what a task does at present: it takes arrivals up to a place, lets
# its requests leave, or does neither.
AT, STOP, MODE = range(3)
ARRIVING, DRAINING, IDLE = range(3)


class Seat(NamedTuple):
    """One task's place in the loop."""

    world: World
    times_s: Floats  # (m,) when requests arrive
    phases: Ints  # (m,)
    course: Ints  # (3,) the next arrival, the one that is not waited for, and the mode


def act(seat: Seat, what: int, now_s: float) -> int:
    """Let a task do something at a time: start a server of that number, or as `others` names it.

    Returns why it needs Python then, 0 where it does not.
    """
    world, course = seat.world, seat.course
    others, site, future = world.others, world.bound.site, world.future
    t, before = others.number, others.acting[0]
    others.acting[0] = t
    world.tally.area[0] += world.counts[PRESENT] * (now_s - others.counted_s[t])
    others.counted_s[t] = now_s
    site.clock_s[0] = now_s
    if what >= 0:
        start_run(world, what, site.server_class[what], now_s)
    elif what == RELEASE:
        release_held(world, now_s)
    elif what == LOOK:
        follow_routing(world, now_s)
    elif others.arrives[t] != 0:
        # A phase below 0, which means the same counted from the end, marks who does not count.
        uncounted = 0 if world.since_s[0] < np.inf else world.targets.size
        at = course[AT]
        course[AT] = at + 1
        come(world, seat.phases[at] - uncounted, now_s)
    else:
        happen(world, take(future), now_s)
    arrival_s = seat.times_s[course[AT]] if course[AT] < course[STOP] else np.inf
    event_s = next_s(future)
    others.arrives[t] = 1 if arrival_s < event_s else 0
    others.next_s[t] = min(arrival_s, event_s)
    others.ended[t] = _needs(seat)
    others.acting[0] = before
    return others.ended[t]


@jit
def _needs(seat: Seat) -> int:
    world, course = seat.world, seat.course
    # Only who arrives needs room where nobody has left: a task that is given up has none for ever.
    if (world.waiting.free[1] == 0 and course[MODE] == ARRIVING) or crowded(world.future):
        return ROOM
    # One event writes at most a record for every request in the system.
    spare = world.waiting.next.size + 1
    if world.rules.records and world.records.arrived_s.size - world.records.size[0] < spare:
        return FULL
    if world.counts[TROUBLE] != DONE:
        return world.counts[TROUBLE]
    if course[MODE] == ARRIVING and course[AT] >= course[STOP]:
        return AS_ASKED
    if course[MODE] == DRAINING and (world.counts[PRESENT] == 0 or _is_left(world)):
        return AS_ASKED
    return DONE


def _any_used(devices: SharedDevices) -> bool:
    return bool((devices.used > 0).any())


# ``_waits(devices, server)``: whether a server waits at its device. ``_runs(devices)``: whether a
# run of whichever task holds some device.
_waits = either(
    SharedDevices, lambda devices, server: devices.waits[server], lambda devices, server: False
)
_runs = either(SharedDevices, _any_used, lambda devices: False)


@jit
def _is_left(world: World) -> bool:
    """Tell whether what is still there will never leave."""
    site = world.bound.site
    for server in range(site.queue.size):
        if _waits(site.devices, server):
            return False
    # Where a run of whichever task ends, who is held is decided again.
    if site.held[0] > 0 and _runs(site.devices):
        return False
    return next_s(world.future) == np.inf or is_stuck(world)


def run(others: Others, now_s: float, until_s: float) -> float:
    """Run until a task needs Python or until a time, which leaves later events; the time then."""
    others = handle(others)
    tasks = others.next_s.size
    for task in range(tasks):
        ask_task(others, task, LOOK, now_s)
    while True:
        best = 0
        needs = False
        for task in range(tasks):
            needs = needs or others.ended[task] != DONE
            if task > 0:
                earlier = others.next_s[task] < others.next_s[best]
                same = others.next_s[task] == others.next_s[best]
                if earlier or (same and others.arrives[task] < others.arrives[best]):
                    best = task
        if needs:
            return now_s
        then_s = others.next_s[best]
        if then_s > until_s or then_s == np.inf:
            return max(now_s, until_s) if until_s < np.inf else now_s
        now_s = then_s
        given = others.given[0]
        ask_task(others, best, EVENT, now_s)
        if others.given[0] != given:
            for task in range(tasks):
                if task != best and others.held[task] > 0:
                    ask_task(others, task, RELEASE, now_s)
