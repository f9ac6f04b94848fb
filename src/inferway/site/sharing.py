"""Sharing of devices: which server holds slots, which waits for some, and when they will be free.

For a site without devices each of these compiles to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.site.claims import (
    CHANGE_COUNT,
    DEVICE,
    HELD_VARIANT,
    HOLDS,
    LOAD_S,
    NEXT_S,
    TAKEN,
    UNTIL_S,
    VARIANT,
    WORK_S,
)
from inferway.site.compiled import either, jit, seldom
from inferway.site.masks import lowest
from inferway.site.natural import class_of, natural
from inferway.site.view import (
    AllTasks,
    Changes,
    Floats,
    Ints,
    JoinedDevices,
    SharedDevices,
    Site,
)

# ``every_site(joined, site)``: the site of all tasks that share the devices of this one.
every_site = either(JoinedDevices, lambda joined, site: joined.every, lambda joined, site: site)
# ``_number(joined, server)``: the number of one of this task's servers there.
_number = either(
    JoinedDevices, lambda joined, server: joined.first + server, lambda joined, server: server
)
# ``place_of(joined, k)``: of a class of the site, the task and which of its classes it is.
place_of = either(
    AllTasks, lambda joined, k: (joined.task[k], joined.place[k]), lambda joined, k: (0, k)
)

# ``_class(joined, k)``: the number of one of this task's classes there.
_class = either(JoinedDevices, lambda joined, k: joined.first_class + k, lambda joined, k: k)

# ``_holds(changes, d, k)``: whether device d holds the variant of class k, as it does of all where
# it is not exclusive.
_holds = either(
    Changes,
    lambda changes, d, k: not changes.exclusive[d] or changes.held[d] == k,
    lambda changes, d, k: True,
)
# ``_loads_for(changes, d)``: the server that device d is being changed for; -1 for none.
_loads_for = either(Changes, lambda changes, d: changes.loads[d], lambda changes, d: -1)
# ``_is_exclusive(changes, d)``: whether device d holds one variant at a time.
_is_exclusive = either(Changes, lambda changes, d: changes.exclusive[d], lambda changes, d: False)


@jit
def is_exclusive(devices: Any, d: int) -> bool:
    """Tell whether a device holds one variant at a time."""
    return _is_exclusive(devices.changes, d)


@jit
def _may_start(devices: Any, d: int, k: int) -> bool:
    """Tell whether a run of class k could start at its device, or its change, if it is first."""
    used = devices.used[d] + devices.others_used[d]
    holds = _holds(devices.changes, d, k) or used == 0
    return holds and used + devices.taken[k] <= devices.slots[d]


@jit
def _holds_own(devices: Any, d: int, k: int) -> bool:
    """As `_holds`, of a class of this task."""
    return _holds(devices.changes, d, _class(devices.joined, k))


@jit
def _room(devices: Any, d: int) -> int:
    """Slots of the device that a run could have at once: none while anyone waits for some."""
    if not nobody_waits(devices, d):
        return 0
    return devices.slots[d] - devices.used[d] - devices.others_used[d]


@jit
def may_have_room(devices: Any, d: int, taken: int) -> bool:
    """Tell whether a run that takes so many slots could start at once where it needs no change."""
    return d < 0 or taken <= devices.shown[d]


@jit
def _has_room(devices: Any, k: int) -> bool:
    d = devices.device[k]
    return may_have_room(devices, d, devices.taken[k]) and (d < 0 or _holds_own(devices, d, k))


@jit
def nobody_waits(devices: Any, d: int) -> bool:
    """Tell whether no server waits for slots of a device."""
    return devices.first[d] < 0 and devices.others_first[d] < 0


# ``has_room(devices, k)``: whether a run of class k could start at once.
has_room = either(SharedDevices, _has_room, lambda devices, k: True)


# ``led(devices, k, rows, time_s)``: a time of a run of class k, s, and what its requests of so many
# rows take of the device before it.
led = either(
    SharedDevices,
    lambda devices, k, rows, time_s: time_s + devices.lead_s[k] * rows,
    lambda devices, k, rows, time_s: time_s,
)


@jit
def _cramped(devices: Any, k: int) -> bool:
    d = devices.device[k]
    if d < 0:
        return False
    for other in range(devices.device.size):
        if devices.device[other] == d and not _has_room(devices, other):
            return True
    return False


# ``cramped(devices, k)``: whether a run of some class at the device of class k could not start.
cramped = either(SharedDevices, _cramped, lambda devices, k: False)


@jit
def _show(devices: Any, site: Site, k: int) -> None:
    """Let the view count the resting servers of class k as idle, or none."""
    d = devices.device[k]
    shown = d < 0 or (devices.taken[k] <= devices.shown[d] and _holds_own(devices, d, k))
    site.idle[k] = devices.resting[k] if shown else 0
    task, place = place_of(devices.joined, k)
    if site.idle[k] > 0:
        site.idle_classes[task] |= 1 << place
    else:
        site.idle_classes[task] &= ~(1 << place)


@jit
def _show_room(devices: Any, site: Site, d: int) -> None:
    """Let the view follow the device's room, where that decides for any class."""
    _show_as(devices, site, d, _room(devices, d))


@jit
def _show_as(devices: Any, site: Site, d: int, room: int) -> None:
    before = devices.shown[d]
    devices.shown[d] = room
    exclusive = _is_exclusive(devices.changes, d)
    if not exclusive and (room == before or min(room, before) >= devices.widest[d]):
        return
    _show_classes(devices.joined, devices, site, d, room)


def _show_all(joined: AllTasks, devices: Any, site: Site, d: int, room: int) -> None:
    at = 0
    classes = site.idle_classes[at]
    for k in range(devices.device.size):
        task, place = joined.task[k], joined.place[k]
        if task != at:
            site.idle_classes[at] = classes
            at, classes = task, site.idle_classes[task]
        if devices.device[k] == d:
            has_room = devices.taken[k] <= room and _holds(devices.changes, d, k)
            idle = devices.resting[k] if has_room else 0
            site.idle[k] = idle
            classes = classes | 1 << place if idle > 0 else classes & ~(1 << place)
    site.idle_classes[at] = classes


def _show_resting(joined: Any, devices: Any, site: Site, d: int, room: int) -> None:
    """As `_show_all` of one task alone, where a class of which none rests has none idle either."""
    device, taken, resting, idle = devices.device, devices.taken, devices.resting, site.idle
    classes, left, wide = site.idle_classes[0], devices.resting_classes[0], devices.widest[d]
    if room == 0:
        left = classes
        while left != 0:
            k, bit = lowest(left), left & -left
            left ^= bit
            if device[k] == d:
                idle[k] = 0
                classes ^= bit
    while left != 0:
        k, bit = lowest(left), left & -left
        left ^= bit
        if device[k] == d:
            has_room = (room >= wide or taken[k] <= room) and _holds(devices.changes, d, k)
            idle[k] = resting[k] if has_room else 0
            classes = classes | bit if has_room else classes & ~bit
    site.idle_classes[0] = classes


# ``_show_classes(joined, devices, site, d, room)``: let the view follow that room at each class.
_show_classes = either(AllTasks, _show_all, _show_resting)


def _rested(devices: Any, site: Site, k: int, by: int) -> None:
    devices.resting[k] += by
    if by > 0:
        devices.resting_classes[0] |= 1 << k
    elif devices.resting[k] == 0:
        devices.resting_classes[0] &= ~(1 << k)
    _show(devices, site, k)


def _idled(devices: Any, site: Site, k: int, by: int) -> None:
    site.idle[k] += by
    if by > 0:
        site.idle_classes[0] |= 1 << k
    elif site.idle[k] == 0:
        site.idle_classes[0] &= ~(1 << k)


# ``resting(devices, site)``: (K,) healthy servers of each class without requests.
resting = either(
    SharedDevices, lambda devices, site: devices.resting, lambda devices, site: site.idle
)
# ``rest(devices, site, k, by)``: one more of class k rests, or one less with -1.
rest = either(SharedDevices, _rested, _idled)


@jit
def _ask(devices: Any, site: Site, server: int, due_s: float) -> bool:
    k = class_of(site, server)
    d = devices.device[k]
    if d < 0 or (devices.taken[k] <= devices.shown[d] and _holds(devices.changes, d, k)):
        return True  # while anyone waits, no room is shown
    if devices.waits[server] or _loads_for(devices.changes, d) == server:
        return False
    if nobody_waits(devices, d) and _may_start(devices, d, k):
        return True
    before = devices.last[d]
    while before >= 0 and devices.due_s[before] > due_s:
        before = devices.before[before]
    after = devices.first[d] if before < 0 else devices.after[before]
    devices.waits[server], devices.due_s[server] = True, due_s
    _join_line(devices, d, before, server)
    _join_line(devices, d, server, after)
    _show_room(devices, site, d)
    return False


@jit
def _join_line(devices: Any, d: int, before: int, after: int) -> None:
    """Let one stand right behind another; -1 stands for the end of the line."""
    if before >= 0:
        devices.after[before] = after
    else:
        devices.first[d] = after
    if after >= 0:
        devices.before[after] = before
    else:
        devices.last[d] = before


@jit
def _leave_line(devices: Any, d: int, server: int) -> None:
    devices.waits[server] = False
    _join_line(devices, d, devices.before[server], devices.after[server])


@jit
def _forgo(devices: Any, site: Site, server: int) -> None:
    if devices.waits[server]:
        d = devices.device[class_of(site, server)]
        _leave_line(devices, d, server)
        _show_room(devices, site, d)


@jit
def _hold(devices: Any, site: Site, server: int) -> None:
    k = class_of(site, server)
    d = devices.device[k]
    if d >= 0:
        taken, shown = devices.taken[k], devices.shown[d]
        devices.used[d] += taken
        devices.holds[server] = True
        # While anyone waits, no room is shown.
        _show_as(devices, site, d, shown - taken if shown >= taken else _room(devices, d))


@jit
def _give(devices: Any, site: Site, server: int) -> None:
    k = class_of(site, server)
    d = devices.device[k]
    if d >= 0 and devices.holds[server]:
        taken, shown = devices.taken[k], devices.shown[d]
        devices.used[d] -= taken
        devices.holds[server] = False
        _show_as(devices, site, d, shown + taken if shown > 0 else _room(devices, d))


@jit
def _next_of(devices: Any, site: Site, d: int) -> int:
    first, other = devices.first[d], devices.others_first[d]
    if other >= 0 and (first < 0 or devices.others_due_s[d] < devices.due_s[first]):
        return -2 - other
    if first < 0 or not _may_start(devices, d, site.server_class[first]):
        return -1
    _leave_line(devices, d, first)
    return first


@jit
def _begin_change(devices: Any, site: Site, server: int) -> None:
    changes, k = devices.changes, class_of(site, server)
    d = devices.device[k]
    devices.used[d] = devices.slots[d]
    changes.held[d], changes.loads[d] = -1, server
    content = changes.contents[devices.number[d]]
    content[CHANGE_COUNT] += 1
    content[HELD_VARIANT] = devices.at + site.first[k]
    changes.since[d] = content[CHANGE_COUNT]
    changes.ready_s[d] = site.clock_s[0] + changes.load_s[k]
    _show_room(devices, site, d)


@jit
def _end_change(devices: Any, site: Site, server: int, works: bool) -> None:
    changes, k = devices.changes, class_of(site, server)
    d = devices.device[k]
    devices.used[d] = 0
    changes.held[d], changes.loads[d] = k if works else -1, -1
    if not works:
        changes.contents[devices.number[d], HELD_VARIANT] = -1
    _show_room(devices, site, d)


@jit
def _needs_change(changes: Any, devices: Any, site: Site, server: int) -> bool:
    k = class_of(site, server)
    d = devices.device[k]
    return d >= 0 and not _holds_own(devices, d, k)


@jit
def _changing(changes: Any, devices: Any, site: Site, server: int) -> bool:
    d = devices.device[class_of(site, server)]
    return d >= 0 and changes.loads[d] == _number(devices.joined, server)


@jit
def _change_begins(changes: Any, devices: Any, site: Site, server: int) -> None:
    every = every_site(devices.joined, site)
    _begin_change(every.devices, every, _number(devices.joined, server))


@jit
def _change_ends(changes: Any, devices: Any, site: Site, server: int, works: bool) -> None:
    every = every_site(devices.joined, site)
    _end_change(every.devices, every, _number(devices.joined, server), works)


# ``needs_change(changes, devices, site, server)``: whether the device of a server, which may start,
# has to load its variant before.
needs_change = either(Changes, _needs_change, lambda changes, devices, site, server: False)
# ``is_changing(changes, devices, site, server)``: whether that goes on now.
is_changing = either(Changes, _changing, lambda changes, devices, site, server: False)
# ``begin_change(changes, devices, site, server)``: the device gives up what it holds, and all its
# slots, for the variant of the server.
begin_change = either(
    Changes,
    _change_begins,
    lambda changes, devices, site, server: None,
)
# ``end_change(changes, devices, site, server, works)``: it holds that now, or none if it could not
# be loaded; a run of the server may start, which nobody has overtaken.
end_change = either(
    Changes,
    _change_ends,
    lambda changes, devices, site, server, works: None,
)


def _asked(devices: Any, site: Site, server: int, due_s: float) -> bool:
    every = every_site(devices.joined, site)
    return _ask(every.devices, every, _number(devices.joined, server), due_s)


def _forgone(devices: Any, site: Site, server: int) -> None:
    every = every_site(devices.joined, site)
    _forgo(every.devices, every, _number(devices.joined, server))


def _held(devices: Any, site: Site, server: int) -> None:
    every = every_site(devices.joined, site)
    _hold(every.devices, every, _number(devices.joined, server))


def _given(devices: Any, site: Site, server: int) -> None:
    every = every_site(devices.joined, site)
    _give(every.devices, every, _number(devices.joined, server))


def _granted(devices: Any, site: Site, d: int) -> int:
    every = every_site(devices.joined, site)
    return _next_of(every.devices, every, d)


def _shown(devices: Any, site: Site, d: int) -> None:
    every = every_site(devices.joined, site)
    _show_room(every.devices, every, d)


# ``ask(devices, site, server, due_s)``: whether a run of the server may start; else it waits from
# now on, if it does not yet, and its first request is due then.
ask = either(SharedDevices, _asked, lambda devices, site, server, due_s: True)
# ``forgo(devices, site, server)``: the server waits at its device no longer.
forgo = either(SharedDevices, _forgone, lambda devices, site, server: None)
# ``hold(devices, site, server)``: a run of the server starts.
hold = either(SharedDevices, _held, lambda devices, site, server: None)
# ``give(devices, site, server)``: its run ends.
give = either(SharedDevices, _given, lambda devices, site, server: None)
# ``next_of(devices, site, d)``: the first that waits at device d, if its run may start, and it no
# longer waits; else -1. What is idle by that, `show_room` says. Where several tasks share devices,
# its number among the servers of all; where a server of another site comes first, -2 - its row
# among the claims.
next_of = either(SharedDevices, _granted, lambda devices, site, d: -1)
# ``show_room(devices, site, d)``: the view says who is idle now at device d.
show_room = either(SharedDevices, _shown, lambda devices, site, d: None)


def as_shown(devices: SharedDevices) -> None:
    """Derive what the view shows of devices from who runs and waits there, as a file has it."""
    nobody = (devices.first < 0) & (devices.others_first < 0)
    free = devices.slots - devices.used - devices.others_used
    devices.shown[:] = np.where(nobody, free, 0)
    resting = np.flatnonzero(devices.resting).tolist()
    devices.resting_classes[0] = sum(1 << k for k in resting)


def _foresee(devices: Any, site: Site) -> None:
    if not devices.predicts:
        return
    for d in range(devices.slots.size):
        if _is_exclusive(devices.changes, d):  # see `inferway.site.exclusive`
            _note_crowd(devices, site, d)
            continue
        devices.stale[d] = True
        if not devices.lazily:
            _foresee_at(devices, site, d)


@jit
def _note_crowd(devices: Any, site: Site, d: int) -> None:
    """Note how many requests there are at this site's servers of the device, for all widths."""
    present, slots, left = 0, devices.slots[d], site.busy_classes[0]
    while left != 0:
        k = lowest(left)
        left &= left - 1
        if devices.device[k] == d:
            present += site.in_system[k]
    for c in range(devices.widest[d] if devices.lazily else slots):
        devices.crowd[d, c] = present * (c + 1) / slots


@jit
def _foresee_at(devices: Any, site: Site, d: int) -> None:
    if not devices.stale[d]:
        return
    if devices.prompt and devices.lazily and devices.shown[d] >= devices.widest[d]:
        # All of whom runs are known do so now, and whoever comes may, too.
        devices.stale[d] = False
        for c in range(devices.widest[d]):
            devices.runs_end_s[d, c] = devices.free_s[d, c] = site.clock_s[0]
    else:
        _look_ahead(devices, site, d)


@seldom
def _look_ahead(devices: Any, site: Site, d: int) -> None:
    devices.stale[d] = False
    _foresee_slots(devices.joined, devices, site, d)


@seldom
def _foresee_every_slot(devices: Any, site: Site, d: int) -> None:
    every = every_site(devices.joined, site)
    _foresee_behind(every.devices, every, d)
    _note_crowd(devices, site, d)


def _foresee_usual(joined: Any, devices: Any, site: Site, d: int) -> None:
    if devices.widest[d] == 1 and devices.lazily and devices.others_count[0] == 0:
        _foresee_first(devices, site, d)
    else:
        _foresee_every_slot(devices, site, d)


# ``_foresee_slots(joined, devices, site, d)``: look ahead at device d, which is not exclusive.
_foresee_slots = either(
    JoinedDevices,
    lambda joined, devices, site, d: _foresee_every_slot(devices, site, d),
    _foresee_usual,
)


@jit
def _foresee_behind(devices: Any, site: Site, d: int) -> None:
    runs_end_s, now_s = devices.runs_end_s, site.clock_s[0]
    for slot in range(devices.slots[d]):
        runs_end_s[d, slot] = now_s
    servers = _gather(devices, site, d)
    _room_behind(devices, site, d, servers)


@jit
def _foresee_first(devices: Any, site: Site, d: int) -> None:
    """As `_foresee_every_slot`, of the first slot alone: where each run takes one, that is all."""
    first, queue, device, holds = site.first, site.queue, devices.device, devices.holds
    services_end_s, all_free_s, works_s = site.ends_s, site.free_s, devices.work_s
    now_s, slots, left = site.clock_s[0], devices.slots[d], site.busy_classes[0]
    present, servers, runs, first_s, least_s = 0, 0, 0, np.inf, np.inf
    while left != 0:
        k = lowest(left)
        left &= left - 1
        if device[k] != d:
            continue
        present += site.in_system[k]
        for server in range(natural(first[k]), first[k + 1]):
            if queue[server] == 0:
                continue
            if holds[server]:
                end_s = max(now_s, services_end_s[server])
                runs += 1
                first_s = min(first_s, end_s)
                work_s = end_s - now_s + (all_free_s[server] - services_end_s[server])
            elif site.healthy[server]:
                work_s = _work(site, server)
            else:  # what is there will be elsewhere
                continue
            works_s[servers] = work_s
            least_s = min(least_s, work_s)
            servers += 1
    devices.runs_end_s[d, 0] = first_s if runs == slots else now_s
    behind_s = max(0.0, least_s) if servers == slots else 0.0
    if servers > slots:
        behind_s = _level(works_s, servers, slots)
    devices.free_s[d, 0] = now_s + behind_s
    devices.crowd[d, 0] = present / slots


@seldom
def _level(works_s: Floats, servers: int, slots: int) -> float:
    """Time until one of so many slots is free behind the works of more servers, in any order."""
    for one in range(1, servers):
        work_s, place = works_s[one], one
        while place > 0 and works_s[place - 1] > work_s:
            works_s[place] = works_s[place - 1]
            place -= 1
        works_s[place] = work_s
    done_s, one = 0.0, 0
    while one <= servers - slots:
        done_s += works_s[one]
        one += 1
    while one < servers and done_s > works_s[one] * (slots - servers + one):
        done_s += works_s[one]
        one += 1
    return max(done_s / (slots - servers + one), works_s[servers - slots])


@jit
def _gather(devices: Any, site: Site, d: int) -> int:
    """Note what servers of the device have to do, the shortest first, and how many they are."""
    servers, now_s = 0, site.clock_s[0]
    for k in range(devices.device.size):
        if devices.device[k] == d:
            servers = _gather_class(devices, site, d, k, servers)
    for other in range(devices.others_count[0]):
        row = devices.others[other]
        if devices.own[int(row[DEVICE])] != d:
            continue
        work_s, taken = row[WORK_S], int(row[TAKEN])
        if row[HOLDS] > 0.0:
            end_s = max(now_s, row[UNTIL_S])
            for _ in range(taken):
                _run_ends_at(devices.runs_end_s, d, devices.slots[d], end_s)
            work_s += end_s - now_s
        _insert(devices.work_s, devices.wide, servers, work_s, taken)
        servers += 1
    return servers


@jit
def _gather_class(devices: Any, site: Site, d: int, k: int, servers: int) -> int:
    """Note what servers of class k have to do beside so many others; how many these are then."""
    # Arrays by themselves: who writes to one of a tuple may have moved the others.
    queue, holds, services_end_s, all_free_s = site.queue, devices.holds, site.ends_s, site.free_s
    works_s, wide, taken = devices.work_s, devices.wide, devices.taken[k]
    runs_end_s, slots, now_s = devices.runs_end_s, devices.slots[d], site.clock_s[0]
    for server in range(site.first[k], site.first[k + 1]):
        if queue[server] == 0:
            continue
        if holds[server]:
            end_s = max(now_s, services_end_s[server])
            for _ in range(taken):
                _run_ends_at(runs_end_s, d, slots, end_s)
            work_s = end_s - now_s + (all_free_s[server] - services_end_s[server])
        elif site.healthy[server]:
            work_s = _work(site, server)
        else:  # what is there will be elsewhere
            continue
        _insert(works_s, wide, servers, work_s, taken)
        servers += 1
    return servers


@jit
def _work(site: Site, server: int) -> float:
    """Time of all that a server has to do whose run has not begun, s."""
    # One that waits may be predicted to have begun, which it has not.
    whole = site.sizes[class_of(site, server), 1] > 0 or np.isnan(site.started_s[server])
    return site.free_s[server] - (site.ends_s[server] if whole else site.started_s[server])


@jit
def _insert(works_s: Floats, wide: Ints, servers: int, work_s: float, taken: int) -> None:
    """Note another server's work among that of so many, the shortest first."""
    place = servers
    while place > 0 and works_s[place - 1] > work_s:
        works_s[place] = works_s[place - 1]
        wide[place] = wide[place - 1]
        place -= 1
    works_s[place], wide[place] = work_s, taken


@jit
def _run_ends_at(runs_end_s: Floats, d: int, slots: int, at_s: float) -> None:
    """As `ends_at`, of so many slots of device d: to make a slice costs more than all this."""
    place = 0
    while place + 1 < slots and runs_end_s[d, place + 1] < at_s:
        runs_end_s[d, place] = runs_end_s[d, place + 1]
        place += 1
    runs_end_s[d, place] = max(at_s, runs_end_s[d, place])


@jit
def ends_at(ends_s: np.ndarray, at_s: float) -> None:
    """Let a slot that is free now, the first, be free at a later time, in order."""
    place = 0
    while place + 1 < ends_s.size and ends_s[place + 1] < at_s:
        ends_s[place] = ends_s[place + 1]
        place += 1
    ends_s[place] = max(at_s, ends_s[place])


@jit
def _room_behind(devices: Any, site: Site, d: int, servers: int) -> None:
    """Predict when slots are free behind what so many servers of the device have to do.

    A server works for itself, in the slots of one run at a time. For who comes now and takes c of
    S slots, it is the first time at which those that would still work leave c, and by which the
    slots can have done what each server would have until then: McNaughton's bound
    (doi 10.1287/mnsc.6.1.1).
    """
    now_s, slots = site.clock_s[0], devices.slots[d]
    works_s, wide, free_s = devices.work_s, devices.wide, devices.free_s
    wanted = 0
    for one in range(servers):
        wanted += wide[one]
    level_s = 0.0
    if wanted > slots:
        left, done_s, found = wanted, 0.0, False
        for one in range(servers):
            if left < slots and done_s <= works_s[one] * (slots - left):
                level_s, found = done_s / (slots - left), True
                break
            done_s += wide[one] * works_s[one]
            left -= wide[one]
        if not found:
            level_s = done_s / slots
    at_s, one = 0.0, 0
    for c in range(devices.widest[d] if devices.lazily else slots):
        while wanted > slots - 1 - c:
            at_s = works_s[one]
            wanted -= wide[one]
            one += 1
        free_s[d, c] = now_s + max(level_s, at_s)


def _foresee_cramped(devices: Any, site: Site) -> bool:
    cramped_ = False
    for d in range(devices.slots.size):
        if devices.shown[d] < devices.widest[d] or _is_exclusive(devices.changes, d):
            cramped_ = True
            _foresee_at(devices, site, d)
    return cramped_


def _foresee_all(devices: Any, site: Site) -> None:
    for d in range(devices.slots.size):
        _foresee_at(devices, site, d)


@jit
def _when_held(changes: Any, devices: Any, server: int, k: int) -> float:
    """Predict when a run of a request that joins the server now would start."""
    d = devices.device[k]
    if changes.then[d] == _class(devices.joined, k):
        return max(changes.done_s[server], devices.free_s[d, devices.taken[k] - 1])
    return devices.free_s[d, devices.slots[d] - 1] + changes.load_s[k]


_free_with_change = either(Changes, _when_held, lambda changes, devices, server, k: 0.0)


@jit
def _joining_s(changes: Any, devices: Any, site: Site, server: int, own_s: float) -> float:
    joins_s = changes.joins_s[server]
    if joins_s == joins_s:
        return joins_s - site.clock_s[0]
    return shared_wait(devices, site, server, own_s)


def _shared_wait(devices: Any, site: Site, server: int, own_s: float) -> float:
    k = class_of(site, server)
    if devices.device[k] >= 0:
        _foresee_at(devices, site, devices.device[k])
    return _device_wait(devices, site, k, server, own_s)


@jit
def _device_wait(devices: Any, site: Site, k: int, server: int, own_s: float) -> float:
    d, now_s, last = devices.device[k], site.clock_s[0], devices.taken[k] - 1
    if d < 0:
        return own_s
    if _is_exclusive(devices.changes, d):
        return _free_with_change(devices.changes, devices, server, k) - now_s
    if not devices.holds[server]:
        own_s += max(0.0, devices.runs_end_s[d, last] - now_s)
    return max(own_s, devices.free_s[d, last] - now_s)


# ``foresee_devices(devices, site)``: predict when slots will be free, for decisions at this time;
# those of devices that are not exclusive.
foresee_devices = either(SharedDevices, _foresee, lambda devices, site: None)
# ``foresee_device(devices, site, d)``: the same of device d, where that has been left for now.
foresee_device = either(SharedDevices, _foresee_at, lambda devices, site, d: None)
# ``foresee_cramped(devices, site)``: the same of all devices that lack room for a class; whether
# any does, or is exclusive.
foresee_cramped = either(SharedDevices, _foresee_cramped, lambda devices, site: False)
# ``foresee_all(devices, site)``: the same of all devices.
foresee_all = either(SharedDevices, _foresee_all, lambda devices, site: None)
# ``device_wait(devices, site, k, server, own_s)``: as `shared_wait`, at a server of class k whose
# device has been looked ahead at.
device_wait = either(SharedDevices, _device_wait, lambda devices, site, k, server, own_s: own_s)
# ``shared_wait(devices, site, server, own_s)``: predicted wait of who joins the server now, s, and
# would wait for `own_s` if nobody shared its device.
shared_wait = either(SharedDevices, _shared_wait, lambda devices, site, server, own_s: own_s)
# ``_joined_wait(changes, devices, site, server, own_s)``: the same where a server forms batches.
_joined_wait = either(
    Changes,
    _joining_s,
    lambda changes, devices, site, server, own_s: shared_wait(devices, site, server, own_s),
)
# ``joined_wait(devices, site, server, own_s)``: predicted wait of who joins a server that forms
# batches and has requests.
joined_wait = either(
    SharedDevices,
    lambda devices, site, server, own_s: _joined_wait(
        devices.changes, devices, site, server, own_s
    ),
    lambda devices, site, server, own_s: own_s,
)


@jit
def ahead_of(devices: SharedDevices, site: Site, k: int) -> tuple[float, float]:
    """Predict how long the device of class k, not exclusive and looked ahead at, delays a run, s.

    A server without a run there, beside all that it has to do; and any server, at least.
    """
    d, last, now_s = natural(devices.device[k]), natural(devices.taken[k] - 1), site.clock_s[0]
    return max(0.0, devices.runs_end_s[d, last] - now_s), devices.free_s[d, last] - now_s


@jit
def crowd_at(devices: SharedDevices, k: int) -> float:
    """Requests at the device of class k, which has been looked ahead at, in runs of that class."""
    return devices.crowd[natural(devices.device[k]), natural(devices.taken[k] - 1)]


@jit
def changed_by_others(devices: Any, d: int) -> bool:
    """Tell whether another site was the last to change device d, which holds one variant."""
    return devices.changes.contents[devices.number[d], CHANGE_COUNT] != devices.changes.since[d]


def _see_changes(changes: Any, devices: Any) -> None:
    for d in range(devices.slots.size):
        if changes.exclusive[d] and changed_by_others(devices, d):
            changes.held[d] = -1


# ``_note_changes(changes, devices)``: what others have changed holds nothing of this site's.
_note_changes = either(Changes, _see_changes, lambda changes, devices: None)


def _look_around(devices: Any, site: Site) -> None:
    rows, servers = devices.claims.shape[0], devices.holds.size
    if rows == 0:
        return
    count = 0
    for d in range(devices.slots.size):
        devices.others_used[d], devices.others_first[d] = 0, -1
        devices.others_due_s[d] = np.inf
    for place in range(rows):
        row = devices.claims[place]
        number = int(row[DEVICE])
        if number < 0 or number >= devices.own.size or devices.at <= place < devices.at + servers:
            continue
        d = devices.own[number]
        if d < 0:
            continue
        devices.others[count] = row
        count += 1
        if row[HOLDS] > 0.0:
            devices.others_used[d] += int(row[TAKEN])
        elif row[UNTIL_S] < devices.others_due_s[d]:
            devices.others_due_s[d], devices.others_first[d] = row[UNTIL_S], place
    devices.others_count[0] = count
    _note_changes(devices.changes, devices)
    for d in range(devices.slots.size):
        devices.shown[d] = _room(devices, d)
    for k in range(devices.device.size):
        _show(devices, site, k)


def _say_variant(changes: Any, devices: Any, site: Site, server: int, row: Floats) -> None:
    k = class_of(site, server)
    d = devices.device[k]
    if not changes.exclusive[d]:
        return
    row[VARIANT], row[LOAD_S] = devices.at + site.first[k], changes.load_s[k]
    row[NEXT_S] = next_due(devices, site, server)
    if changes.loads[d] == server:  # a change takes all slots
        row[DEVICE], row[TAKEN], row[HOLDS] = devices.number[d], devices.slots[d], 1.0
        row[UNTIL_S], row[NEXT_S] = changes.ready_s[d], -np.inf


# ``_tell_variant(changes, devices, site, server, row)``: say in its row which variant a server of a
# device that holds one at a time needs there, and when its next run is due.
_tell_variant = either(Changes, _say_variant, lambda changes, devices, site, server, row: None)


@jit
def next_due(devices: Any, site: Site, server: int) -> float:
    """When the first request of a server behind its run is due; inf where there is none."""
    if devices.waits[server]:
        return float(devices.due_s[server])
    runs = 0
    if devices.holds[server]:
        runs = site.running[server] if site.sizes[class_of(site, server), 1] > 0 else 1
    if site.queue[server] <= runs or not site.healthy[server]:
        return np.inf
    place = (site.head[server] + runs) % site.arrived_s.shape[1]
    return float(site.arrived_s[server, place] + devices.changes.after_s[0])


def _asks_when(changes: Any, site: Site, server: int, due_s: float) -> None:
    if site.queue[server] > 0:
        changes.after_s[0] = due_s - site.arrived_s[server, site.head[server]]


# ``note_due(changes, site, server, due_s)``: take note that the first request of a server is due
# then, from which it is guessed when others are.
note_due = either(Changes, _asks_when, lambda changes, site, server, due_s: None)


def _tell(devices: Any, site: Site) -> None:
    if devices.at >= devices.claims.shape[0]:
        return
    for server in range(devices.holds.size):
        k, row = class_of(site, server), devices.claims[devices.at + server]
        d, holds, waits = devices.device[k], devices.holds[server], devices.waits[server]
        has_work = site.queue[server] > 0 and (holds or site.healthy[server])
        row[DEVICE] = devices.number[d] if d >= 0 and (has_work or holds or waits) else -1.0
        row[TAKEN], row[HOLDS] = devices.taken[k], 1.0 if holds else 0.0
        row[UNTIL_S] = devices.due_s[server] if waits else np.inf
        row[WORK_S] = _work(site, server) if has_work and not holds else 0.0
        if holds:
            row[UNTIL_S] = site.ends_s[server] if has_work else site.clock_s[0]
            row[WORK_S] = site.free_s[server] - site.ends_s[server] if has_work else 0.0
        if d >= 0:
            _tell_variant(devices.changes, devices, site, server, row)


# ``look_around(devices, site)``: take note of what servers of other sites hold and wait for, before
# a step; the view says what is idle beside them.
look_around = either(SharedDevices, _look_around, lambda devices, site: None)
# ``tell(devices, site)``: let other sites know what servers hold and wait for, after a step.
tell = either(SharedDevices, _tell, lambda devices, site: None)
