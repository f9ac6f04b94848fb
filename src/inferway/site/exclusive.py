"""Foresight at exclusive devices: when each run there will start, and which change comes before.

The runs are foreseen one by one, in the order of the line: whose first request is due first is
next; of one task, whose came first. Where a server is known to be late for its turn, or requests
are due in another order, that is as near as the view tells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.site.claims import (
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
from inferway.site.handle import at
from inferway.site.selection import (
    formed,
    forms_batches,
    predicted_run,
    predicted_runs,
    predicted_service,
)
from inferway.site.sharing import changed_by_others, ends_at, every_site, place_of
from inferway.site.sharing import foresee_devices as _foresee_shared
from inferway.site.view import Changes, JoinedLine, SharedDevices, Site

# Runs ahead that are foreseen one by one; beyond, each server runs all that it has in one turn.
MOST_FORESEEN = 256
_NOBODY = -1

# ``_own(line, site, task)``: the site of a task by itself, of which `site` has the account.
_own = either(
    JoinedLine,
    lambda line, site, task: at(line.sites[task], line.like),
    lambda line, site, task: site,
)
# ``_first(line, task)``: its first server there.
_first = either(JoinedLine, lambda line, task: line.first[task], lambda line, task: 0)
# ``_due_after(line, task)``: how long after it came a request of the task is due, s; with one task
# who came first is due first.
_due_after = either(JoinedLine, lambda line, task: line.due_after_s[task], lambda line, task: 0.0)


@seldom
def _foresee_line(changes: Changes, devices: Any, site: Site, d: int) -> None:
    """Foresee all runs at one exclusive device, in the order of their first requests."""
    now_s, slots = site.clock_s[0], devices.slots[d]
    ends_s, held = devices.free_s[d, :slots], changes.held[d]
    ends_s[:] = now_s
    line_s, first = now_s, changes.loads[d]
    if changed_by_others(devices, d):
        held = _variant_of_others(changes.contents[devices.number[d], HELD_VARIANT])
    if first >= 0:
        held = site.server_class[first]
        line_s = max(now_s, changes.ready_s[d])
        ends_s[:] = line_s
    _note_runs(changes, devices, site, d, ends_s)
    devices.runs_end_s[d, :slots] = ends_s
    foreseen = 0
    while True:
        server = _next_in_line(changes, devices, site, d, first)
        if server == _NOBODY:
            break
        first = -1
        if server < 0:
            line_s, held = _foresee_turn(devices, -2 - server, ends_s, line_s, held)
            foreseen += 1
            continue
        k = site.server_class[server]
        joins, time_s = _next_run(changes, devices, site, server, foreseen >= MOST_FORESEEN)
        starts_s = max(line_s, changes.done_s[server])
        if held == k:
            starts_s = max(starts_s, ends_s[devices.taken[k] - 1])
        else:
            starts_s = max(starts_s, ends_s[slots - 1]) + changes.load_s[k]
            ends_s[:] = starts_s
            held = k
        for _ in range(devices.taken[k]):
            ends_at(ends_s, starts_s + time_s)
        line_s = starts_s
        changes.done_s[server] = starts_s + time_s
        changes.joins_s[server] = starts_s if joins else np.nan
        foreseen += 1
    for slot in range(slots):  # who comes now overtakes nobody
        ends_s[slot] = max(ends_s[slot], line_s)
    changes.then[d] = max(held, -1)


@jit
def _variant_of_others(number: int) -> int:
    """Number a variant of another site so that it is none of this site's classes, nor -1."""
    return -2 - number


@jit
def _foresee_turn(
    devices: Any, other: int, ends_s: np.ndarray, line_s: float, held: int
) -> tuple[float, int]:
    """Foresee the turn of a server of another site, which runs all that it has then.

    Returns when it starts, and which variant the device holds from then on.
    """
    row = devices.others[other]
    devices.wide[devices.holds.size + other] = 1
    taken, variant = max(1, int(row[TAKEN])), _variant_of_others(int(row[VARIANT]))
    starts_s = max(line_s, row[UNTIL_S]) if row[HOLDS] > 0.0 else line_s
    if held == variant:
        starts_s = max(starts_s, ends_s[taken - 1])
    else:
        starts_s = max(starts_s, ends_s[ends_s.size - 1]) + row[LOAD_S]
        ends_s[:] = starts_s
    for _ in range(taken):
        ends_at(ends_s, starts_s + row[WORK_S])
    return starts_s, variant


@jit
def _note_runs(changes: Any, devices: Any, site: Site, d: int, ends_s: np.ndarray) -> None:
    """Note the runs in progress, and what of each server is still to be run."""
    now_s = site.clock_s[0]
    for k in range(devices.device.size):
        if devices.device[k] != d:
            continue
        task, _ = place_of(devices.joined, k)
        own, before = _own(changes.line, site, task), _first(changes.line, task)
        for server in range(site.first[k], site.first[k + 1]):
            changes.done_s[server], changes.joins_s[server] = now_s, np.nan
            changes.place[server], changes.rows[server] = 0, own.waiting_rows[server - before]
            if site.queue[server] == 0:
                continue
            if devices.holds[server]:
                until_s = max(now_s, site.ends_s[server])
                for _ in range(devices.taken[k]):
                    ends_at(ends_s, until_s)
                changes.done_s[server] = until_s
                runs = own.running[server - before] if forms_batches(site, k) else 1
                changes.place[server] = runs
            if not site.healthy[server]:  # what is there will be elsewhere
                changes.place[server] = site.queue[server]
    for other in range(devices.others_count[0]):
        row = devices.others[other]
        devices.wide[devices.holds.size + other] = 0
        if devices.own[int(row[DEVICE])] == d and row[HOLDS] > 0.0:
            for _ in range(int(row[TAKEN])):
                ends_at(ends_s, max(now_s, row[UNTIL_S]))


@jit
def _next_in_line(changes: Any, devices: Any, site: Site, d: int, first: int) -> int:
    """Whose first request that is not foreseen is due first; `_NOBODY` where all are.

    A server of another site is -2 - its row among those that are known of.
    """
    if first >= 0 and changes.place[first] < site.queue[first]:
        return first
    best, least_s, shares = _NOBODY, np.inf, devices.claims.shape[0] > 0
    for k in range(devices.device.size):
        if devices.device[k] != d:
            continue
        task, _ = place_of(devices.joined, k)
        own, before = _own(changes.line, site, task), _first(changes.line, task)
        places, after_s = own.arrived_s.shape[1], _due_after(changes.line, task)
        if shares:
            after_s = changes.after_s[0]
        for server in range(site.first[k], site.first[k + 1]):
            place = changes.place[server]
            if place < site.queue[server]:
                here = server - before
                due_s = own.arrived_s[here, (own.head[here] + place) % places] + after_s
                if shares and place == 0 and devices.waits[server]:
                    due_s = devices.due_s[server]
                if due_s < least_s:
                    best, least_s = server, due_s
    for other in range(devices.others_count[0]):
        row = devices.others[other]
        if devices.own[int(row[DEVICE])] != d or devices.wide[devices.holds.size + other] > 0:
            continue
        if row[NEXT_S] < least_s:
            best, least_s = -2 - other, row[NEXT_S]
    return best


@jit
def _next_run(
    changes: Any, devices: Any, site: Site, server: int, whole: bool
) -> tuple[bool, float]:
    """Take the next run of a server, or all it has, as foreseen.

    Returns whether one more request would be run with it, and its predicted time, s.
    """
    task, _ = place_of(devices.joined, site.server_class[server])
    own, here = _own(changes.line, site, task), server - _first(changes.line, task)
    place, places = changes.place[server], own.arrived_s.shape[1]
    left = site.queue[server] - place
    if not forms_batches(own, own.server_class[here]):
        rows = own.rows[here, (own.head[here] + place) % places]
        time_s = predicted_service(own, here, rows)
        changes.place[server] = place + (left if whole else 1)
        return False, time_s * (left if whole else 1)
    rows = changes.rows[server]
    if whole:
        changes.place[server] = site.queue[server]
        return False, predicted_runs(own, here, rows)[0]
    taken, gone = formed(own, here, rows, np.inf), 0
    while place < site.queue[server]:
        more = own.rows[here, (own.head[here] + place) % places]
        if gone > 0 and gone + more > taken:
            break
        gone += more
        place += 1
    changes.place[server], changes.rows[server] = place, rows - gone
    last = place == site.queue[server]
    joins = last and formed(own, here, gone + 1, np.inf) > gone
    return joins, predicted_run(own, here, gone)


def _foresee_changes(changes: Any, devices: Any, site: Site) -> None:
    if devices.predicts:
        every = every_site(devices.joined, site)
        for d in range(devices.slots.size):
            if changes.exclusive[d]:
                _foresee_line(every.devices.changes, every.devices, every, d)


_foresee_exclusive = either(Changes, _foresee_changes, lambda changes, devices, site: None)


def _foresee(devices: Any, site: Site) -> None:
    _foresee_shared(devices, site)
    _foresee_exclusive(devices.changes, devices, site)


# ``foresee_devices(devices, site)``: predict when slots will be free, for decisions at this time.
foresee_devices = either(SharedDevices, _foresee, lambda devices, site: None)
