"""The engine for everything: any service times, deadlines, batches, a central queue, failures.

Completions, failures and returns are events in a future that gives them in order; arrivals come
from the workload's stream. Requests that are in service or wait stand in linked lists. Events at
the same time: completions, by server, then the others, then arrivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.dispatch.contract import learn, pull
from inferway.dispatch.steps import NO_SERVER, decide, resettle
from inferway.site.compiled import either, jit
from inferway.site.draw import exponential, step, word
from inferway.site.handle import handle
from inferway.site.natural import class_of, natural
from inferway.site.selection import formed, forms_batches, predicted_run, predicted_service
from inferway.site.sharing import (
    ask,
    begin_change,
    cramped,
    end_change,
    forgo,
    give,
    has_room,
    hold,
    is_changing,
    led,
    needs_change,
    next_of,
    nobody_waits,
    show_room,
)
from inferway.site.transitions import measure, set_health
from inferway.site.view import (
    ACCEPT,
    ALL_CLASSES,
    COMPLETED,
    DISPATCHED,
    HOLD,
    REJECT,
    SETTLED,
    WITHDRAWN,
    Changes,
    Event,
    SharedDevices,
)
from inferway.twin.kernel.escalation import (
    NOBODY,
    InHand,
    SecondAnswers,
    counted,
    drawn,
    expected_of,
    noted,
    remembered,
    score_of,
)
from inferway.twin.kernel.event_list import crowded, next_s, put, take
from inferway.twin.kernel.others import due, gave, has_others, is_own, own, start_elsewhere
from inferway.twin.kernel.service_times import draw
from inferway.twin.kernel.state import (
    ANSWERED,
    BROKEN,
    CLASSES,
    DEEP,
    DONE,
    DROPPED,
    FULL,
    LATE,
    LENGTHS,
    PRESENT,
    REFUSED,
    REJECTED,
    REROUTED,
    ROOM,
    TROUBLE,
    UNCOUNTED,
    World,
    begin,
    bucket,
    enter,
    exit_,
    foreseen,
    pop,
    push,
)


def run(world: World, times_s: Any, phases: Any, at: int, until_s: float) -> tuple[int, int]:
    """Run through (m,) arrivals from `at` on, or until a time, which leaves later events.

    With inf it is the last arrival; where no times are given, the last request in the system to
    leave. Returns why it ended, and the first arrival that is still to come.
    """
    world = handle(world)
    site, future, tally = world.bound.site, world.future, world.tally
    now_s = site.clock_s[0]
    world.since_s[1] = now_s
    area = 0.0
    drain = times_s.size == 0
    # A phase below 0, which means the same counted from the end, marks who does not count.
    uncounted = 0 if world.since_s[0] < np.inf else world.targets.size
    ended = DONE
    follow_routing(world, now_s)
    # One event writes at most a record for every request in the system.
    spare = world.waiting.next.size + 1
    while True:
        if world.waiting.free[1] == 0 or crowded(future):
            ended = ROOM
            break
        if world.rules.records and world.records.arrived_s.size - world.records.size[0] < spare:
            ended = FULL
            break
        if world.counts[TROUBLE] != DONE:
            ended = world.counts[TROUBLE]
            world.counts[TROUBLE] = DONE
            break
        arrival_s = times_s[at] if at < times_s.size else np.inf
        event_s = next_s(future)
        if (drain and world.counts[PRESENT] == 0) or (at == times_s.size and not drain):
            break
        then_s = min(arrival_s, event_s)
        if then_s > until_s or then_s == np.inf:
            if until_s < np.inf:
                area += world.counts[PRESENT] * (until_s - now_s)
                now_s = until_s
            break
        area += world.counts[PRESENT] * (then_s - now_s)
        now_s = then_s
        site.clock_s[0] = now_s
        if event_s <= arrival_s:
            item = natural(take(future))
            happen(world, item, now_s)
            if drain and item >= site.queue.size and is_stuck(world):
                break
        else:
            come(world, phases[at] - uncounted, now_s)
            at += 1
    site.clock_s[0] = now_s
    tally.area[0] += area
    return ended, at


@jit
def follow_routing(world: World, now_s: float) -> None:
    """Ask free servers where requests wait for a larger batch again, if routing has changed."""
    site = world.bound.site
    if world.counts[REROUTED] != 0:
        world.counts[REROUTED] = 0
        for server in range(site.queue.size):
            waits = world.serving.batch[server] == 0 and site.queue[server] > 0
            if waits and site.healthy[server]:
                _start(world, server, class_of(site, server), now_s)


@jit
def happen(world: World, item: int, now_s: float) -> None:
    """An event of the future happens: a run ends, or a server goes or returns."""
    site = world.bound.site
    if item >= site.queue.size:
        _change(world, item, now_s)
    elif world.serving.ends_s[item] == now_s:
        there, changed = site.queue[item], _is_changing(site.devices, site, item)
        _complete(world, item, now_s)
        # A server that has waited for a larger batch long enough makes no room.
        if site.held[0] > 0 and (changed or site.queue[item] < there):
            release_held(world, now_s)


@jit
def come(world: World, phase: int, now_s: float) -> None:
    """A request of a phase arrives."""
    world.bound.site.target[0] = world.targets[phase]
    world.counts[PRESENT] += 1
    world.tally.arrived[phase] += 1
    _send(world, now_s, phase, now_s, True, drawn(world.again))


@jit
def is_stuck(world: World) -> bool:
    """Tell whether what is still there will never leave: every server could serve, and none
    will.
    """
    for server in range(world.serving.batch.size):
        if world.serving.ends_s[server] < np.inf or not world.bound.site.healthy[server]:
            return False
    return True


@jit
def _send(
    world: World, arrived_s: float, phase: int, now_s: float, may_hold: bool, number: int
) -> int:
    """Decide for a request and act on it; a server, HOLD or REJECT."""
    site, rules = world.bound.site, world.rules
    deadline_s = arrived_s + rules.deadline_s
    if may_hold and rules.holds and site.held[0] > 0:  # first come, first served
        server = HOLD if _falls_open(world, deadline_s, now_s, 0) else REJECT
    else:
        world.states[0] = step(world.states[0])
        draw_ = word(world.states[0])
        server = decide(world.bound, now_s, draw_, deadline_s, 0.0, 0, world.counts[CLASSES], 1)
        if server == NO_SERVER:
            world.counts[TROUBLE] = BROKEN
            server = REJECT
        if server == REJECT and rules.holds and _falls_open(world, deadline_s, now_s, rules.places):
            server = HOLD
    if server >= 0:
        credit = site.accuracy[class_of(site, server)]
        site.balance[0] += credit - world.targets[phase]
        _join(world, server, arrived_s, phase, now_s, InHand(number, NOBODY, 0.0, credit, 0, 0.0))
    elif may_hold:
        if server == HOLD and site.held[0] < rules.central:
            central = site.queue.size
            push(world.waiting, central, site.held[0] == 0, arrived_s, phase)
            alone = InHand(number, NOBODY, 0.0, 0.0, 0, 0.0)
            noted(world.again, world.waiting.last[central], -1, alone)
            site.held[0] += 1
        else:
            world.counts[PRESENT] -= 1
            _leave(world, arrived_s, phase, np.nan, now_s, -1, REJECTED)
            if rules.tells and world.counts[TROUBLE] == DONE:
                world.counts[TROUBLE] = REFUSED
    return server


@jit
def _falls_open(world: World, deadline_s: float, now_s: float, least: int) -> bool:
    """Tell whether one of the servers that hold at least so many, or whose device has no room,
    would be in time once it is free.
    """
    site = world.bound.site
    left_s = deadline_s - now_s if world.rules.drops else np.inf
    for server in range(site.queue.size):
        waits = site.queue[server] >= least or not has_room(site.devices, class_of(site, server))
        if site.healthy[server] and waits and predicted_service(site, server, 1) <= left_s:
            return True
    return False


@jit
def _join(
    world: World, server: int, arrived_s: float, phase: int, now_s: float, second: InHand
) -> None:
    site = world.bound.site
    push(world.waiting, server, site.queue[server] == 0, arrived_s, phase)
    noted(world.again, world.waiting.last[server], class_of(site, server), second)
    wait_s, service_s = np.nan, np.nan
    if world.rules.foresees:
        wait_s, service_s = foreseen(world.upkeep, site, server)
    k = enter(world.upkeep, site, server, world.rules.places)
    if world.rules.grows and site.queue[server] > site.arrived_s.shape[1] // 2:
        world.counts[TROUBLE] = DEEP
    queue = site.queue[server]
    if queue < LENGTHS:  # its longer queue counts from now on
        world.tally.reached_s[k, queue] -= now_s - world.since_s[1]
    if phase >= 0:
        world.tally.sent[phase, k] += 1
    first = second.hand == NOBODY
    latest_s = arrived_s + world.rules.deadline_s
    event = Event(DISPATCHED, server, 1, first, wait_s, service_s, 0, 0.0, latest_s)
    learn(world.bound.policy, site, event)
    if world.serving.batch[server] == 0:
        _start(world, server, k, now_s)


@jit
def _start(world: World, server: int, k: int, now_s: float) -> None:
    """Let a free server start a run, once its device has room for it."""
    site = world.bound.site
    arrived_s = world.waiting.arrived_s[world.waiting.first[server]]
    if ask(site.devices, site, server, due(world.others, arrived_s, world.rules.deadline_s)):
        start_run(world, server, k, now_s)
    else:
        begin(world.upkeep, site, server, 0)


def _granted(devices: SharedDevices, world: World, server: int, now_s: float) -> None:
    site, rules = world.bound.site, world.rules
    d = devices.device[class_of(site, server)]
    if d < 0 or devices.shown[d] > 0:  # while anyone waits, no room is shown
        return
    # Before a run begins, the policy may be asked or told of something, or that of another task.
    at_once = rules.pulls or rules.deadline_s < np.inf or has_others(world.others)
    other = next_of(devices, site, d)
    while other >= 0:
        if at_once:
            show_room(devices, site, d)
        if is_own(world.others, other):
            mine = own(world.others, other)
            start_run(world, mine, site.server_class[mine], now_s)
        else:
            start_elsewhere(world.others, other, now_s)
        if not is_own(world.others, other) or world.serving.batch[own(world.others, other)] == 0:
            show_room(devices, site, d)  # who has started a run has shown it
        other = next_of(devices, site, d)


def _holding(devices: SharedDevices, world: World, server: int, begins: bool, now_s: float) -> None:
    site = world.bound.site
    k = class_of(site, server)
    d = devices.device[k]
    if d < 0 or devices.holds[server] == begins:
        return
    held_s = devices.taken[k] * (now_s - world.since_s[1])
    if begins:
        hold(devices, site, server)
        world.tally.held_s[d] -= held_s
    else:
        give(devices, site, server)
        world.tally.held_s[d] += held_s
        gave(world.others)


def _goes_on(devices: SharedDevices, world: World, server: int, taken: int) -> bool:
    site = world.bound.site
    d = devices.device[class_of(site, server)]
    goes_on = world.rules.unwatched and not has_others(world.others)
    return goes_on and site.queue[server] > taken and d >= 0 and nobody_waits(devices, d)


def _went_on(devices: SharedDevices, world: World, server: int, now_s: float) -> bool:
    site = world.bound.site
    if world.serving.batch[server] == 0:  # it waits for more, or nobody is left
        _held(devices, world, server, False, now_s)
        return False
    k = class_of(site, server)
    d, held_s = devices.device[k], devices.taken[k] * (now_s - world.since_s[1])
    world.tally.held_s[d] = (world.tally.held_s[d] + held_s) - held_s  # as where it ends and begins
    return True


def _loading(changes: Changes, world: World, server: int, now_s: float) -> bool:
    site = world.bound.site
    k = class_of(site, server)
    if not needs_change(changes, site.devices, site, server):
        return False
    d, until_s = site.devices.device[k], now_s + changes.load_s[k]
    begin_change(changes, site.devices, site, server)
    world.tally.held_s[d] -= site.devices.slots[d] * (now_s - world.since_s[1])
    world.tally.changes[d] += 1
    world.serving.ends_s[server] = until_s
    put(world.future, k, server, until_s)
    return True


def _loaded(changes: Changes, world: World, server: int, works: bool, now_s: float) -> bool:
    site = world.bound.site
    if not is_changing(changes, site.devices, site, server):
        return False
    d = site.devices.device[class_of(site, server)]
    end_change(changes, site.devices, site, server, works)
    world.tally.held_s[d] += site.devices.slots[d] * (now_s - world.since_s[1])
    gave(world.others)
    return True


# ``_load(changes, world, server, now_s)``: whether the device of a server whose turn it is has to
# load its variant first, which begins.
_load = either(Changes, _loading, lambda changes, world, server, now_s: False)
# ``_end_load(changes, world, server, works, now_s)``: whether that has ended now, be it that the
# server has failed.
_end_load = either(Changes, _loaded, lambda changes, world, server, works, now_s: False)
# ``_is_changing(devices, site, server)``: whether the device is being changed for the server.
_is_changing = either(
    SharedDevices,
    lambda devices, site, server: is_changing(devices.changes, devices, site, server),
    lambda devices, site, server: False,
)
# ``_loads_first`` and ``_load_ends``: the two above, from the devices.
_loads_first = either(
    SharedDevices,
    lambda devices, world, server, now_s: _load(devices.changes, world, server, now_s),
    lambda devices, world, server, now_s: False,
)
_load_ends = either(
    SharedDevices,
    lambda devices, world, server, works, now_s: _end_load(
        devices.changes, world, server, works, now_s
    ),
    lambda devices, world, server, works, now_s: False,
)
# ``_held(devices, world, server, begins, now_s)``: a run of the server begins or ends.
_held = either(SharedDevices, _holding, lambda devices, world, server, begins, now_s: None)
# ``_keeps(devices, world, server, taken)``: whether a server that has run so many requests goes on
# with the next on the slots that it has: nobody waits for them, and nobody looks between.
_keeps = either(SharedDevices, _goes_on, lambda devices, world, server, taken: False)
# ``_has_gone_on(devices, world, server, now_s)``: whether it has; else its run has ended.
_has_gone_on = either(SharedDevices, _went_on, lambda devices, world, server, now_s: False)
# ``_grant(devices, world, server, now_s)`` lets those start who wait at the device of a server,
# as far as it has room.
_grant = either(SharedDevices, _granted, lambda devices, world, server, now_s: None)


@jit
def start_run(world: World, server: int, k: int, now_s: float) -> None:
    """Let a free server take what the policy says, or the file's rule for batches."""
    site, rules, serving = world.bound.site, world.rules, world.serving
    most = world.laws.size.shape[1] - 1
    wanted = 0
    if rules.pulls and site.queue[server] > 0:
        world.states[0] = step(world.states[0])
        dropped, wanted = pull(world.bound.policy, site, server, word(world.states[0]))
        for _ in range(min(dropped, site.queue[server])):
            _drop(world, server, k, now_s)
    if rules.drops:
        while site.queue[server] > 0:
            first = world.waiting.arrived_s[world.waiting.first[server]]
            if first + rules.deadline_s >= now_s:
                break
            _drop(world, server, k, now_s)
    if rules.pulls:
        taken, until_s = world.laws.size[k, max(0, min(wanted, site.queue[server], most))], np.inf
    else:
        taken, until_s = _formed(world, server, k, now_s)
    if taken > 0 and _loads_first(site.devices, world, server, now_s):
        taken = 0
    elif taken > 0:
        time_s, world.states[1] = draw(world.laws, k, taken, world.states[1])
        # First what the server itself does for them, on the slots of the run.
        starts_s = now_s + led(site.devices, k, taken, 0.0)
        serving.started_s[server] = starts_s
        serving.ends_s[server] = starts_s + time_s
        put(world.future, k, server, starts_s + time_s)
        _held(site.devices, world, server, True, now_s)
    elif until_s < serving.ends_s[server]:  # nothing else may happen here until then
        serving.ends_s[server] = until_s
        put(world.future, k, server, until_s)
    begin(world.upkeep, site, server, taken)
    serving.batch[server] = taken


@jit
def _formed(world: World, server: int, k: int, now_s: float) -> tuple[int, float]:
    """Requests that a free server takes by the file's rule; where none, until when it waits, s."""
    site, laws, rules = world.bound.site, world.laws, world.rules
    waiting = site.queue[server]
    if waiting == 0 or not forms_batches(site, k):
        return min(waiting, 1), np.inf
    first_s = world.waiting.arrived_s[world.waiting.first[server]]
    latest_s = first_s + rules.deadline_s if rules.drops else np.inf
    if waiting < laws.smallest[k]:  # until the first one's deadline has passed
        return 0, np.nextafter(latest_s, np.inf) if rules.expires else np.inf
    taken = formed(site, server, min(waiting, laws.largest[k]), latest_s - now_s)
    if laws.wait_s[k] > 0.0 and taken < formed(site, server, laws.largest[k], np.inf):
        until_s = min(first_s + laws.wait_s[k], latest_s - predicted_run(site, server, taken))
        if now_s < until_s:
            return 0, until_s
    return taken, np.inf


@jit
def _complete(world: World, server: int, now_s: float) -> None:
    """The batch in service is answered, and the server takes what is next.

    Where none is in service, the device has loaded what the server runs; or it waits for a larger
    one, and its first has run out of time.
    """
    site, serving = world.bound.site, world.serving
    k = class_of(site, server)
    started_s = serving.started_s[server]
    taken = serving.batch[server]
    serving.batch[server] = 0
    serving.ends_s[server] = np.inf
    untold = taken  # the run's service time is told once
    keeps = taken > 0 and _keeps(site.devices, world, server, taken)
    if taken > 0 and not keeps:
        _held(site.devices, world, server, False, now_s)
    for _ in range(taken):
        entry = pop(world.waiting, server)
        arrived_s, phase = world.waiting.arrived_s[entry], world.waiting.phase[entry]
        second = remembered(world.again, entry)
        exit_(world.upkeep, site, server, k)
        _shorten(world, server, k, now_s)
        wait_s, service_s = started_s - arrived_s, now_s - started_s
        if world.bound.measures and untold > 0:
            measure(site, server, untold, service_s)
        event = Event(COMPLETED, server, 1, True, wait_s, service_s, untold, 0.0, np.inf)
        untold = 0
        _answer(world.again, world, arrived_s, phase, started_s, now_s, server, second, event)
    changed = taken == 0 and _load_ends(site.devices, world, server, True, now_s)
    if (changed or keeps) and site.queue[server] > 0:
        start_run(world, server, k, now_s)
    elif site.queue[server] > 0:
        _start(world, server, k, now_s)
    if keeps and _has_gone_on(site.devices, world, server, now_s):
        return
    if changed or taken > 0:
        _grant(site.devices, world, server, now_s)


@jit
def _answered(
    again: Any,
    world: World,
    arrived_s: float,
    phase: int,
    started_s: float,
    now_s: float,
    server: int,
    second: InHand,
    event: Event,
) -> None:
    """An answer has come, and is sent."""
    world.counts[PRESENT] -= 1
    late = now_s > arrived_s + world.rules.deadline_s
    _leave(world, arrived_s, phase, started_s, now_s, server, LATE if late else ANSWERED)
    learn(world.bound.policy, world.bound.site, event)


@jit
def _settled(
    again: SecondAnswers,
    world: World,
    arrived_s: float,
    phase: int,
    started_s: float,
    now_s: float,
    server: int,
    second: InHand,
    event: Event,
) -> None:
    """An answer has come: it is sent, or another server is asked, or an earlier answer is sent."""
    site, bound = world.bound.site, world.bound
    learn(bound.policy, site, event)
    k = class_of(site, server)
    deadline_s = arrived_s + world.rules.deadline_s
    if second.hand != NOBODY:
        if now_s > deadline_s:  # when that passed, the first answer was sent
            _send_first(world, arrived_s, phase, now_s, second)
        else:
            _send_answer(world, arrived_s, phase, started_s, now_s, server, second, second.credit)
        return
    to = ACCEPT
    if expected_of(site, k, second.bin, bound.expected):
        world.states[0] = step(world.states[0])
        word_ = word(world.states[0])
        to = resettle(bound, server, 1, now_s, word_, arrived_s, deadline_s, 0.0, 0, ALL_CLASSES, 1)
        if to == NO_SERVER:
            world.counts[TROUBLE] = BROKEN
            to = ACCEPT
    worth = bound.expected[k]
    if to == ACCEPT:
        _send_answer(world, arrived_s, phase, started_s, now_s, server, second, worth)
        return
    credit = bound.expected[site.server_class[to]]
    site.balance[0] += credit - second.credit
    asked = InHand(second.request, server, worth, credit, 0, 0.0)
    _join(world, to, arrived_s, phase, now_s, asked)


_answer = either(SecondAnswers, _settled, _answered)


@jit
def _send_answer(
    world: World,
    arrived_s: float,
    phase: int,
    started_s: float,
    now_s: float,
    server: int,
    second: InHand,
    earned: float,
) -> None:
    """Send an answer of an expected accuracy, which the balance counts from now on."""
    site = world.bound.site
    k = class_of(site, server)
    first = site.server_class[second.hand] if second.hand != NOBODY else -1
    site.balance[0] += earned - second.credit
    late = now_s > arrived_s + world.rules.deadline_s
    counted(world.again, phase, first, k, second.right, earned, late)
    world.counts[PRESENT] -= 1
    _leave(world, arrived_s, phase, started_s, now_s, server, LATE if late else ANSWERED)
    event = Event(SETTLED, server, 1, True, 0.0, 0.0, 0, earned, np.inf)
    learn(world.bound.policy, site, event)


@jit
def _send_first(world: World, arrived_s: float, phase: int, now_s: float, second: InHand) -> None:
    """Send the answer in hand: the second server has failed, or the deadline has passed.

    In that case it was sent then, and not only now that the server looks at it.
    """
    sent_s = min(now_s, arrived_s + world.rules.deadline_s)
    world.tally.area[0] -= now_s - sent_s
    right = score_of(world.again, second.request, world.bound.site.server_class[second.hand])
    alone = InHand(second.request, NOBODY, 0.0, second.credit, 0, right)
    _send_answer(world, arrived_s, phase, np.nan, sent_s, second.hand, alone, second.worth)


@jit
def _drop(world: World, server: int, k: int, now_s: float) -> None:
    arrived_s, phase, second = _withdraw(world, server, k, now_s)
    if second.hand != NOBODY:
        _send_first(world, arrived_s, phase, now_s, second)
        return
    world.counts[PRESENT] -= 1
    _leave(world, arrived_s, phase, np.nan, now_s, server, DROPPED)


@jit
def _withdraw(world: World, server: int, k: int, now_s: float) -> tuple[float, int, InHand]:
    """Undo the dispatch of a server's first; when it came, in which phase, and what it has."""
    site = world.bound.site
    entry = pop(world.waiting, server)
    arrived_s, phase = world.waiting.arrived_s[entry], world.waiting.phase[entry]
    second = remembered(world.again, entry)
    exit_(world.upkeep, site, server, k)
    _shorten(world, server, k, now_s)
    first = second.hand == NOBODY
    if first:
        site.balance[0] -= site.accuracy[k] - world.targets[phase]
    if phase >= 0:
        world.tally.sent[phase, k] -= 1
    event = Event(WITHDRAWN, server, 1, first, 0.0, 0.0, 0, 0.0, np.inf)
    learn(world.bound.policy, site, event)
    return arrived_s, phase, second


@jit
def release_held(world: World, now_s: float) -> None:
    """Decide again for the first of the central queue, until one stays."""
    site, waiting, rules = world.bound.site, world.waiting, world.rules
    central = site.queue.size
    while site.held[0] > 0:
        entry = waiting.first[central]
        arrived_s, phase = waiting.arrived_s[entry], waiting.phase[entry]
        if rules.drops and arrived_s + rules.deadline_s < now_s:
            outcome = DROPPED
        else:
            # Its own entry is still in use while it is decided on.
            site.held[0] -= 1
            decided = _send_held(world, entry, now_s)
            if decided >= 0:
                continue
            site.held[0] += 1
            if decided == HOLD:
                return
            outcome = REJECTED
        pop(waiting, central)
        site.held[0] -= 1
        world.counts[PRESENT] -= 1
        _leave(world, arrived_s, phase, np.nan, now_s, -1, outcome)


@jit
def _send_held(world: World, entry: int, now_s: float) -> int:
    waiting = world.waiting
    arrived_s, phase = waiting.arrived_s[entry], waiting.phase[entry]
    number = remembered(world.again, entry).request
    central = world.bound.site.queue.size
    first, last = waiting.first[central], waiting.last[central]
    pop(waiting, central)
    decided = _send(world, arrived_s, phase, now_s, False, number)
    if decided < 0:  # back to where it was: nothing else has touched the pool
        waiting.free[0] = waiting.next[entry]
        waiting.free[1] -= 1
        waiting.next[entry] = waiting.first[central]
        waiting.first[central], waiting.last[central] = first, last
    return decided


@jit
def _change(world: World, item: int, now_s: float) -> None:
    """A server fails or returns; what is at one that fails is dispatched anew."""
    site, outages, serving = world.bound.site, world.outages, world.serving
    servers = site.queue.size
    retires = False
    if item < 2 * servers:
        server = item - servers
        fails = serving.down[server] % 2 == 0
        world.states[2] = step(world.states[2])
        mean_s = outages.for_s[server] if fails else outages.every_s[server]
        put(world.future, 0, item, now_s + mean_s * exponential(world.states[2]))
        serving.down[server] += 1 if fails else -1
    else:
        server = outages.server[item - 2 * servers]
        serving.down[server] += 2 * outages.change[item - 2 * servers]
        retires = outages.change[item - 2 * servers] == 2
    healthy = serving.down[server] == 0
    if healthy == site.healthy[server]:
        return
    set_health(site, server, healthy)
    if healthy:
        if site.held[0] > 0:
            release_held(world, now_s)
        return
    if retires:
        return
    k = class_of(site, server)
    serving.batch[server] = 0
    serving.ends_s[server] = np.inf
    makes_room = cramped(site.devices, k)
    _held(site.devices, world, server, False, now_s)
    _load_ends(site.devices, world, server, False, now_s)
    forgo(site.devices, site, server)
    _grant(site.devices, world, server, now_s)
    for _ in range(site.queue[server]):
        arrived_s, phase, second = _withdraw(world, server, k, now_s)
        if second.hand != NOBODY:
            _send_first(world, arrived_s, phase, now_s, second)
        else:
            _send(world, arrived_s, phase, now_s, True, second.request)
    if site.held[0] > 0 and makes_room:  # for others at its device
        release_held(world, now_s)


@jit
def _leave(
    world: World,
    arrived_s: float,
    phase: int,
    started_s: float,
    now_s: float,
    server: int,
    outcome: int,
) -> None:
    tally, records = world.tally, world.records
    tally.area[1] += now_s - max(arrived_s, world.since_s[0])
    if phase < 0:
        world.counts[UNCOUNTED] -= 1
        return
    if outcome == REJECTED:
        tally.rejected[phase] += 1
    elif outcome == DROPPED:
        tally.dropped[phase] += 1
    else:
        k = class_of(world.bound.site, server)
        response_s = now_s - arrived_s
        tally.answered[phase, k] += 1
        tally.response_s[phase, k] += response_s
        tally.histogram[phase, k, bucket(response_s)] += 1
        if outcome == LATE:
            tally.late[phase, k] += 1
    if world.rules.records:
        row = records.size[0]
        records.size[0] = row + 1
        records.arrived_s[row] = arrived_s
        records.started_s[row] = started_s
        records.left_s[row] = now_s
        records.server[row] = server
        records.outcome[row] = outcome
        records.phase[row] = phase


@jit
def _shorten(world: World, server: int, k: int, now_s: float) -> None:
    longer = world.bound.site.queue[server] + 1
    if longer < LENGTHS:
        world.tally.reached_s[k, longer] += now_s - world.since_s[1]
