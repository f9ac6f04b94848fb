"""Transitions of a site: the only code that writes a site's arrays, the same in both worlds.

Nothing is checked here: a full buffer is never admitted to, an empty server never finishes. A
server that waits for a larger batch has requests and no start of a service. Those that are served
along with the first of a batch stand behind it, each with no service time of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.site.chances import BELIEVED, FEW, TRIED, next_chance
from inferway.site.compiled import either, jit, often, seldom
from inferway.site.natural import class_of, natural
from inferway.site.selection import (
    awaited,
    forms_batches,
    predicted_at,
    predicted_run,
    predicted_runs,
    predicted_service,
    size_class,
    waits_alike,
)
from inferway.site.sharing import ahead_of, foresee_all, rest, resting
from inferway.site.view import SIZES, SharedDevices, Site


@jit
def at_place(count: int, places: int) -> int:
    """The place of a ring that so many steps from its beginning lead to, at most once around."""
    return count - places if count >= places else count


@jit
def narrow(
    site: Site,
    allowed: np.ndarray,
    classes: int,
    deadline_s: float,
    rows: int,
    max_wait_s: float,
    lasting: int,
) -> bool:
    """Mark in `allowed` the open servers of these classes that are predicted to be in time.

    Those too are left out where a request is predicted to wait for more than `max_wait_s`, unless
    their class is in the bit mask `lasting`. Returns whether there is any.
    """
    foresee_all(site.devices, site)
    return _NARROW(site.devices, site, allowed, classes, deadline_s, rows, max_wait_s, lasting)


@jit
def _narrow(
    devices: Any,
    site: Site,
    allowed: np.ndarray,
    classes: int,
    deadline_s: float,
    rows: int,
    max_wait_s: float,
    lasting: int,
) -> bool:
    now_s = site.clock_s[0]
    found = False
    for k in range(site.rate.size):
        in_class = (classes >> k) & 1 != 0
        most_s = np.inf if (lasting >> k) & 1 != 0 else max_wait_s
        for server in range(site.first[k], site.first[k + 1]):
            fits = in_class and site.open[server]
            if fits:
                wait_s, service_s = awaited(site, k, server, rows)
                fits = wait_s <= most_s and now_s + wait_s + service_s <= deadline_s
            allowed[server] = fits
            found = found or fits
    return found


@jit
def _narrow_sharing(
    devices: SharedDevices,
    site: Site,
    allowed: np.ndarray,
    classes: int,
    deadline_s: float,
    rows: int,
    max_wait_s: float,
    lasting: int,
) -> bool:
    """As `_narrow` where servers share devices; without branches for those that form no batches."""
    # Arrays by themselves: who writes to one of a tuple may have moved the others.
    first, open_, queue, row_s, holds = site.first, site.open, site.queue, site.row_s, devices.holds
    all_ends_s, all_free_s, now_s = site.ends_s, site.free_s, site.clock_s[0]
    device, taken, lead_s = devices.device, devices.taken, devices.lead_s
    d, width, held_s, behind_s, high, found = -1, -1, 0.0, 0.0, natural(first[0]), False
    for k in range(device.size):
        in_class = (classes >> k) & 1 != 0
        most_s = np.inf if (lasting >> k) & 1 != 0 else max_wait_s
        low, high = high, natural(first[k + 1])
        if not waits_alike(site, k, rows):
            for server in range(low, high):
                wait_s, service_s = awaited(site, k, server, rows)
                in_time = now_s + wait_s + service_s <= deadline_s
                fits = in_class & open_[server] & (wait_s <= most_s) & in_time
                allowed[server] = fits
                found = found | fits
            continue
        if device[k] != d or taken[k] != width:  # another than the class before
            d, width = device[k], taken[k]
            held_s, behind_s = ahead_of(devices, site, k)
        for server in range(low, high):
            end_s = all_ends_s[server]
            own_s = max(0.0, end_s - now_s) + (all_free_s[server] - end_s)
            own_s = own_s if queue[server] > 0 else 0.0
            wait_s = max(own_s + (0.0 if holds[server] else held_s), behind_s)
            in_time = now_s + wait_s + (row_s[server, 0] + lead_s[k]) <= deadline_s
            fits = in_class & open_[server] & (wait_s <= most_s) & in_time
            allowed[server] = fits
            found = found | fits
    return found


_NARROW = either(SharedDevices, _narrow_sharing, _narrow)


@jit
def admit(site: Site, server: int, rows: int) -> None:
    """A request joins the server at the site's time; service starts at once if it was idle."""
    now_s = site.clock_s[0]
    places = site.arrived_s.shape[1]
    place = at_place(site.head[server] + site.queue[server], places)
    site.arrived_s[server, place] = now_s
    site.rows[server, place] = rows
    batched = forms_batches(site, site.server_class[server])
    if batched:
        _admit_to_batch(site, server, rows)
    else:
        service_s = predicted_service(site, server, rows)
        site.expected_s[server, place] = service_s
        if site.queue[server] > 0:
            site.free_s[server] += service_s
        else:
            site.started_s[server] = now_s
            site.ends_s[server] = now_s + service_s
            site.free_s[server] = now_s + service_s
    join(site, server, places)
    # One at a time. A batch that waits for more would wait in vain, and closes as it begins.
    if site.again[server] == TRIED and not batched:
        site.open[server] = False


@jit
def _admit_to_batch(site: Site, server: int, rows: int) -> None:
    if site.queue[server] > 0:
        site.waiting_rows[server] += rows
    else:  # alone, until the server says what it begins
        site.running[server] = 1
        site.started_s[server] = site.clock_s[0]
        site.ends_s[server] = site.clock_s[0] + predicted_run(site, server, rows)
    _foresee_batches(site, server)


@jit
def _foresee_batches(site: Site, server: int) -> None:
    """Predict when the server has run all that waits there."""
    free_s = site.ends_s[server] if site.running[server] > 0 else site.clock_s[0]
    site.free_s[server] = free_s + predicted_runs(site, server, site.waiting_rows[server])[0]


@jit
def join(site: Site, server: int, places: int) -> int:
    """Count one more request at the server, which has so many places; the server's class.

    All that policies see of a site but times; `admit` is this and the times.
    """
    k = class_of(site, server)
    queue = site.queue[server] + 1
    site.queue[server] = queue
    site.in_system[k] += 1
    if queue == 1:
        _leave_idle(site, server, k)
        site.busy[k] += 1
        site.busy_classes[0] |= 1 << k
    if queue == places:
        site.open[server] = False
    return k


@jit
def leave(site: Site, server: int, k: int) -> int:
    """Count one request less at the server, of class k; how many are left."""
    queue = site.queue[server] - 1
    site.queue[server] = queue
    site.in_system[k] -= 1
    site.open[server] = site.healthy[server]
    if queue == 0:
        site.busy[k] -= 1
        if site.busy[k] == 0:
            site.busy_classes[0] &= ~(1 << k)
        if site.healthy[server]:
            _become_idle(site, server, k)
    return queue


@jit
def release(site: Site, server: int) -> None:
    """The request in service leaves at the site's time, and the next in the queue starts."""
    now_s = site.clock_s[0]
    places = site.arrived_s.shape[1]
    if forms_batches(site, site.server_class[server]):
        _release_from_batch(site, server)
        return
    # What is left of the queue shifts by how wrong the prediction for this one was.
    site.free_s[server] += now_s - site.ends_s[server]
    site.head[server] = at_place(site.head[server] + 1, places)
    if leave(site, server, site.server_class[server]) > 0:
        # Predictions may have changed since this one was admitted.
        head = site.head[server]
        service_s = predicted_service(site, server, site.rows[server, head])
        site.free_s[server] += service_s - site.expected_s[server, head]
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + service_s
    else:
        site.started_s[server] = np.nan
        site.ends_s[server] = np.nan
        site.free_s[server] = now_s


@jit
def _release_from_batch(site: Site, server: int) -> None:
    """The first request leaves: of the run in service, or of those that wait."""
    now_s, head = site.clock_s[0], site.head[server]
    site.head[server] = at_place(head + 1, site.arrived_s.shape[1])
    if site.running[server] > 0:
        site.running[server] -= 1
    else:
        site.waiting_rows[server] -= site.rows[server, head]
    if leave(site, server, site.server_class[server]) == 0:
        site.running[server] = 0
        site.started_s[server] = np.nan
        site.ends_s[server] = np.nan
        site.free_s[server] = now_s
        return
    if site.running[server] == 0:
        site.started_s[server] = np.nan
    site.ends_s[server] = now_s
    _foresee_batches(site, server)


@jit
def abandon(site: Site, server: int, position: int) -> None:
    """A queued request leaves without service; `position` >= 1 counts from the one in service."""
    places = site.arrived_s.shape[1]
    head = site.head[server]
    gone = at_place(head + position, places)
    batched = forms_batches(site, site.server_class[server])
    if not batched:
        site.free_s[server] -= site.expected_s[server, gone]
    elif position < site.running[server]:
        site.running[server] -= 1
    else:
        site.waiting_rows[server] -= site.rows[server, gone]
    for step in range(position, site.queue[server] - 1):
        here, after = at_place(head + step, places), at_place(head + step + 1, places)
        site.arrived_s[server, here] = site.arrived_s[server, after]
        site.rows[server, here] = site.rows[server, after]
        site.expected_s[server, here] = site.expected_s[server, after]
    site.queue[server] -= 1
    site.in_system[site.server_class[server]] -= 1
    site.open[server] = site.healthy[server]
    if batched:
        _foresee_batches(site, server)


@jit
def set_health(site: Site, server: int, healthy: bool) -> None:
    """The server takes requests, or no more; what is in its queue stays."""
    if site.healthy[server] == healthy:
        return
    site.healthy[server] = healthy
    tried = site.again[server] == TRIED and not np.isnan(site.started_s[server])
    site.open[server] = healthy and not tried and site.queue[server] < site.arrived_s.shape[1]
    if site.queue[server] == 0:
        k = site.server_class[server]
        if healthy:
            _become_idle(site, server, k)
        else:
            _leave_idle(site, server, k)


@jit
def _become_idle(site: Site, server: int, k: int) -> None:
    _stand(site, server, natural(site.first[k] + resting(site.devices, site)[k]))
    rest(site.devices, site, k, 1)


@often
def _leave_idle(site: Site, server: int, k: int) -> None:
    last = site.first[k] + resting(site.devices, site)[k] - 1
    if site.idle_place[server] > last:  # unhealthy servers are not among the idle
        return
    _stand(site, server, natural(last))
    rest(site.devices, site, k, -1)


@jit
def _stand(site: Site, server: int, to: int) -> None:
    """Let the server change places with the one that stands there."""
    other, left = natural(site.idle_server[to]), natural(site.idle_place[server])
    site.idle_server[left] = other
    site.idle_place[other] = left
    site.idle_server[to] = server
    site.idle_place[server] = to


@jit
def measure(site: Site, server: int, rows: int, service_s: float) -> None:
    """Learn from a service time: running quantiles per server and size take the profile's place.

    Each quantile moves by a step in its logarithm, up where the time was longer and down where it
    was shorter, in the proportion that holds it at its level (Robbins and Monro,
    doi 10.1214/aoms/1177729586), and never beyond the time itself: the first steps, which are
    large, make no spread of their own. The step falls from 1 to a fiftieth, so that it forgets. A
    run between two sizes counts for the larger, with the time that would predict it. Larger sizes
    not seen yet move along: a batch keeps the part of its rows' single times that it is known to
    take. Of a request that took several runs, one is learned, of the mean time of its rows. The
    class's rate follows the medians of its servers at one row. First runs, and those of a server
    that has a chance, are believed as `inferway.site.chances` says.
    """
    run_rows = min(rows, site.most_rows[server])
    size, run_s = size_class(run_rows), run_rows * (service_s / rows)
    count = site.measured[server, size]
    median_s, high_s = site.row_s[server, size], site.slow_s[server, size]
    at_median_s = _row_of(site.row_s, server, run_rows, run_s)
    at_high_s = _row_of(site.slow_s, server, run_rows, run_s)
    usual_s = max(at_median_s, site.first_s[server, size])
    slow_once = count < FEW and median_s > 4.0 * usual_s and site.asked[0] >= 0
    if count == 0 or slow_once:
        site.row_s[server, size] = at_median_s
        site.slow_s[server, size] = at_high_s
    else:
        step = max(0.02, 1.0 / (1.0 + count))
        _towards(site.row_s, server, size, at_median_s, 0.5, step)
        _towards(site.slow_s, server, size, at_high_s, 0.95, step)
    site.measured[server, size] = count + 1
    if count + 1 >= BELIEVED:
        site.chances[server] = 0
    site.again[server] = next_chance(site, site.chances[server])
    for larger in range(size + 1, SIZES):
        if site.measured[server, larger] > 0:
            break
        _follow(site.row_s, server, larger, median_s, site.row_s[server, size])
        _follow(site.slow_s, server, larger, high_s, site.slow_s[server, size])
    if size == 0:
        _set_rate(site, site.server_class[server])


@seldom
def forget(site: Site, server: int) -> None:
    """Predict an idle server's times as before anything was measured: it has a chance."""
    for size in range(SIZES):
        site.row_s[server, size] = site.slow_s[server, size] = site.first_s[server, size]
        site.measured[server, size] = 0
    site.chances[server] += 1
    site.again[server] = TRIED
    _set_rate(site, site.server_class[server])


@jit
def _row_of(times_s: np.ndarray, server: int, rows: int, run_s: float) -> float:
    """Time of a row in a run of the size that such a run counts for, had that been as slow, s."""
    size = size_class(rows)
    full = 1 << size
    if rows >= full:
        return run_s / rows
    half = full >> 1
    half_s = half * times_s[server, size - 1]
    return max(half_s + (run_s - half_s) * (half / (rows - half)), half_s / 4.0) / full


@jit
def shift_services(site: Site, low: int, high: int, by_s: float, least_s: float) -> None:
    """Every service at servers low .. high - 1 is predicted to take `by_s` longer, or less below 0.

    What has changed lies before and behind the services themselves, as the way to another node
    does: the time moves by the same for requests of all rows. Of a size that stands for several
    numbers of rows, it is the largest whose time moves by just that. What is in service and in the
    queues is predicted anew, too; nothing counts as measured. No time falls below `least_s`, above
    0, that has not been there.
    """
    places = site.arrived_s.shape[1]
    for server in range(low, high):
        for size in range(SIZES):
            rows = 1 << size
            row_s, slow_s = site.row_s[server, size] * rows, site.slow_s[server, size] * rows
            site.row_s[server, size] = _shifted(row_s, by_s, least_s) / rows
            site.slow_s[server, size] = _shifted(slow_s, by_s, least_s) / rows
            first_s = site.first_s[server, size] * rows
            site.first_s[server, size] = _shifted(first_s, by_s, least_s) / rows
        if forms_batches(site, site.server_class[server]):
            if site.running[server] > 0:
                site.ends_s[server] += by_s
            if site.queue[server] > 0:
                _foresee_batches(site, server)
            continue
        for offset in range(site.queue[server]):
            place = at_place(site.head[server] + offset, places)
            before_s = site.expected_s[server, place]
            if before_s == 0.0:  # it is served along with another
                continue
            after_s = _shifted(before_s, by_s, least_s)
            site.expected_s[server, place] = after_s
            site.free_s[server] += after_s - before_s
            if offset == 0 and not np.isnan(site.started_s[server]):
                site.ends_s[server] += after_s - before_s
    for k in range(site.rate.size):
        if site.first[k] < high and site.first[k + 1] > low:
            _set_rate(site, k)


@jit
def _shifted(time_s: float, by_s: float, least_s: float) -> float:
    return max(time_s + by_s, min(time_s, least_s))


@jit
def _set_rate(site: Site, k: int) -> None:
    """Let the class's rate follow its servers' times at one row."""
    total_s = 0.0
    for server in range(site.first[k], site.first[k + 1]):
        total_s += site.row_s[server, 0]
    site.rate[k] = (site.first[k + 1] - site.first[k]) / total_s


@jit
def _follow(times_s: np.ndarray, server: int, larger: int, before_s: float, after_s: float) -> None:
    known_s = times_s[server, larger]
    # Without a division where nothing is known: the same time stays the same.
    times_s[server, larger] = after_s if known_s == before_s else known_s * (after_s / before_s)


@jit
def _towards(
    quantile: np.ndarray, server: int, size: int, row_s: float, level: float, step: float
) -> None:
    """Move a quantile by a step, and no further than to what was seen: small noise stays small."""
    known_s = quantile[server, size]
    if row_s > known_s:
        quantile[server, size] = min(row_s, known_s * np.exp(step * level))
    else:
        quantile[server, size] = max(row_s, known_s * np.exp(step * (level - 1.0)))


@jit
def ready(site: Site, server: int) -> None:
    """Before one joins the server, or its first leaves: where it waits, that could start now."""
    if forms_batches(site, site.server_class[server]):
        return  # what waits is not predicted one by one
    if site.queue[server] > 0 and np.isnan(site.started_s[server]):
        now_s, all_s = site.clock_s[0], site.free_s[server] - site.ends_s[server]
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + site.expected_s[server, site.head[server]]
        site.free_s[server] = now_s + all_s


@jit
def begin_batch(site: Site, server: int, taken: int) -> None:
    """The server starts its first `taken` requests as one batch, or waits for more with 0.

    Nothing was in service at the server but, as far as predictions go, its first request; or the
    same batch with another size, which is corrected.
    """
    if site.queue[server] == 0:
        return
    now_s, places = site.clock_s[0], site.arrived_s.shape[1]
    head = site.head[server]
    if forms_batches(site, site.server_class[server]):
        _run_batch(site, server, taken)
        if taken > 0 and site.again[server] == TRIED:
            site.open[server] = False
        return
    rows = site.rows[server, head]
    if site.expected_s[server, head] == 0.0:  # it was to be served along with another
        site.expected_s[server, head] = predicted_service(site, server, rows)
    ahead_s = site.free_s[server] - site.ends_s[server]
    for offset in range(1, site.queue[server]):
        place = at_place(head + offset, places)
        if offset < taken:
            ahead_s -= site.expected_s[server, place]
            site.expected_s[server, place] = 0.0
            rows += site.rows[server, place]
        elif site.expected_s[server, place] == 0.0:
            alone_s = predicted_service(site, server, site.rows[server, place])
            site.expected_s[server, place] = alone_s
            ahead_s += alone_s
        else:
            break
    if taken == 0:  # it could start now
        ahead_s += site.expected_s[server, head]
        site.started_s[server] = np.nan
        site.ends_s[server] = now_s
    else:
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + predicted_service(site, server, rows)
    site.free_s[server] = site.ends_s[server] + ahead_s


# The same where requests of one row are run one by one and by equal predictions, without the
# buffers: what they would hold is known. To the last bit, since sums are taken in the same order.


@jit
def admit_alone(site: Site, server: int, places: int) -> int:
    """As `ready` and `admit` at a server with so many places; the server's class."""
    now_s, service_s = site.clock_s[0], predicted_service(site, server, 1)
    if site.queue[server] > 0:
        free_s = site.free_s[server]
        if np.isnan(site.started_s[server]):  # what waits could start now
            free_s = now_s + (free_s - site.ends_s[server])
            site.started_s[server] = now_s
            site.ends_s[server] = now_s + service_s
        site.free_s[server] = free_s + service_s
    else:
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + service_s
        site.free_s[server] = now_s + service_s
    return join(site, server, places)


@jit
def release_alone(site: Site, server: int, k: int) -> None:
    """As `ready` and `release`, of a server of class k."""
    now_s, service_s = site.clock_s[0], predicted_at(site, k, server, 1)
    free_s, ends_s = site.free_s[server], site.ends_s[server]
    if np.isnan(site.started_s[server]):  # it could start now
        free_s = now_s + (free_s - ends_s)
        ends_s = now_s + service_s
    if leave(site, server, k) > 0:
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + service_s
        site.free_s[server] = free_s + (now_s - ends_s)
    else:
        site.started_s[server] = np.nan
        site.ends_s[server] = np.nan
        site.free_s[server] = now_s


@jit
def begin_alone(site: Site, server: int, starts: bool) -> None:
    """As `ready` and `begin_batch` of one request, or none where nothing starts."""
    if site.queue[server] == 0:
        return
    now_s = site.clock_s[0]
    free_s, ends_s = site.free_s[server], site.ends_s[server]
    if starts and site.started_s[server] == now_s:  # it does, as far as predictions go
        site.free_s[server] = ends_s + (free_s - ends_s)
        return
    service_s = predicted_service(site, server, 1)
    if np.isnan(site.started_s[server]):  # it could start now
        free_s = now_s + (free_s - ends_s)
        ends_s = now_s + service_s
    ahead_s = free_s - ends_s
    if starts:
        ends_s = now_s + service_s
        site.started_s[server] = now_s
    else:
        ahead_s += service_s
        ends_s = now_s
        site.started_s[server] = np.nan
    site.ends_s[server] = ends_s
    site.free_s[server] = ends_s + ahead_s


@jit
def _run_batch(site: Site, server: int, taken: int) -> None:
    """As `begin_batch`, where what waits is known by its rows."""
    now_s, head, places = site.clock_s[0], site.head[server], site.arrived_s.shape[1]
    rows, taken = 0, min(taken, site.queue[server])
    for offset in range(site.running[server]):  # what was to be run until now waits again
        site.waiting_rows[server] += site.rows[server, at_place(head + offset, places)]
    for offset in range(taken):
        rows += site.rows[server, at_place(head + offset, places)]
    site.waiting_rows[server] -= rows
    site.running[server] = taken
    site.started_s[server] = now_s if taken > 0 else np.nan
    site.ends_s[server] = now_s + (predicted_run(site, server, rows) if taken > 0 else 0.0)
    _foresee_batches(site, server)
