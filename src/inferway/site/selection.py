"""Selection of a server of a class: idle, any, shortest. The words that policies are written in.

Each takes the site, the request and a class, touches only servers that may take the request, and
returns -1 where there is none. Costs O(1) for an ordinary request; a narrowed one is scanned.
"""

from __future__ import annotations

import numpy as np

from inferway.site.compiled import either, jit, seldom
from inferway.site.sharing import (
    device_wait,
    is_exclusive,
    joined_wait,
    led,
    resting,
    shared_wait,
)
from inferway.site.view import SIZES, Request, SharedDevices, Site


@jit
def size_class(rows: int) -> int:
    """0 for 1 row, 1 for 2, 2 for 3-4, 3 for 5-8, ...; the last for all beyond."""
    size, left = 0, rows - 1
    while left > 0 and size < SIZES - 1:
        left >>= 1
        size += 1
    return size


@jit
def run_time(row_s: np.ndarray, server: int, rows: int) -> float:
    """Time of one run of `rows` rows by (n, S) times of a row: linear from one size to the next."""
    size = size_class(rows)
    full = 1 << size
    if rows >= full:
        return rows * row_s[server, size]
    half = full >> 1
    half_s, full_s = half * row_s[server, size - 1], full * row_s[server, size]
    return half_s + (full_s - half_s) * ((rows - half) / half)


@jit
def predicted_service(site: Site, server: int, rows: int) -> float:
    """Predicted service time of a request of `rows` rows at the server, all its runs, s.

    What the server itself takes of a device is in it, for each row.
    """
    return predicted_at(site, site.server_class[server], server, rows)


@jit
def predicted_at(site: Site, k: int, server: int, rows: int) -> float:
    """As `predicted_service`, at a server of class k."""
    return led(site.devices, k, rows, _predicted_runs(site, server, rows))


@seldom
def initial_service(site: Site, server: int, rows: int) -> float:
    """As `predicted_service`, as it was before anything was measured, s."""
    runs_s = _runs(site, site.first_s, server, rows)
    return led(site.devices, site.server_class[server], rows, runs_s)


@jit
def _predicted_runs(site: Site, server: int, rows: int) -> float:
    return _runs(site, site.row_s, server, rows)


@jit
def _runs(site: Site, row_s: np.ndarray, server: int, rows: int) -> float:
    if rows == 1:
        return row_s[server, 0]
    most = site.most_rows[server]
    if rows <= most:
        return run_time(row_s, server, rows)
    rest = rows % most
    full_s = (rows // most) * run_time(row_s, server, most)
    return full_s if rest == 0 else full_s + run_time(row_s, server, rest)


@jit
def predicted_wait(site: Site, server: int) -> float:
    """Time until the server has emptied its queue, s, by predicted service times.

    A service that has outlived its prediction is taken to end now. Where servers share a device, it
    is also the time until that is free.
    """
    return shared_wait(site.devices, site, server, _own_wait(site, server))


@jit
def _own_wait(site: Site, server: int) -> float:
    if site.queue[server] == 0:
        return 0.0
    left_s = max(0.0, site.ends_s[server] - site.clock_s[0])
    return left_s + (site.free_s[server] - site.ends_s[server])


@jit
def forms_batches(site: Site, k: int) -> bool:
    """Tell whether servers of class k run several requests at once."""
    return site.sizes[k, 1] > 0


@jit
def predicted_run(site: Site, server: int, rows: int) -> float:
    """Predicted service time of a batch of `rows` rows, padded where its class pads, s."""
    k = site.server_class[server]
    if site.pads[k]:
        for size in site.sizes[k]:
            if size >= rows:
                return predicted_service(site, server, size)
    return predicted_service(site, server, rows)


@seldom
def formed(site: Site, server: int, rows: int, left_s: float) -> int:
    """Rows of the batch that a free server forms of `rows` that wait.

    The batch of the most rows per second among those whose run ends within `left_s`, or among all
    where none does; of equal ones the smaller. Of 64 runs that are measured one is the largest in
    time, so that a size that was slow once is tried again.
    """
    k = site.server_class[server]
    best, most_per_s, runs = 0, 0.0, 0
    for size in range(SIZES):
        runs += site.measured[server, size]
    largest = runs % 64 == 63
    if predicted_service(site, server, site.sizes[k, 0]) > left_s:
        left_s = np.inf
    for size in site.sizes[k]:
        if size == 0 or (size > rows and not site.pads[k]):
            break
        taken, service_s = min(size, rows), predicted_service(site, server, size)
        quicker = largest or taken > most_per_s * service_s * (1.0 + 1e-9)
        if best == 0 or (service_s <= left_s and quicker):
            best, most_per_s = taken, taken / service_s
        if size >= rows:
            break
    return best


@seldom
def predicted_runs(site: Site, server: int, rows: int) -> tuple[float, float]:
    """Predicted time in which a free server runs `rows` rows, batch by batch, and its last run, s.

    Deadlines are left out of account.
    """
    total_s, last_s = 0.0, 0.0
    best = formed(site, server, 1 << 62, np.inf)
    if rows >= best:
        last_s = predicted_service(site, server, best)
        total_s = (rows // best) * last_s
        rows %= best
    while rows > 0:
        taken = formed(site, server, rows, np.inf)
        last_s = predicted_run(site, server, taken)
        total_s += last_s
        rows -= taken
    return total_s, last_s


@jit
def predicted_join(site: Site, server: int, rows: int) -> tuple[float, float]:
    """Predicted wait and service time of a request of `rows` rows that joins the server now, s.

    Where the server forms batches it is run with the last of those that wait.
    """
    if site.queue[server] > 0 and forms_batches(site, site.server_class[server]):
        return _predicted_batch(site, server, rows)
    return predicted_wait(site, server), predicted_service(site, server, rows)


@jit
def awaited(site: Site, k: int, server: int, rows: int) -> tuple[float, float]:
    """As `predicted_join` at a server of class k, whose device has been looked ahead at."""
    if site.queue[server] > 0 and forms_batches(site, k):
        return _predicted_batch(site, server, rows)
    wait_s = device_wait(site.devices, site, k, server, _own_wait(site, server))
    return wait_s, led(site.devices, k, rows, _predicted_runs(site, server, rows))


@jit
def waits_alike(site: Site, k: int, rows: int) -> bool:
    """Tell whether `awaited_behind` says how long so many rows wait at class k: what is usual."""
    devices = site.devices
    d = devices.device[k]
    return d >= 0 and rows == 1 and not forms_batches(site, k) and not is_exclusive(devices, d)


@jit
def awaited_behind(site: Site, server: int, held_s: float, behind_s: float) -> float:
    """The wait of `awaited` at a server of such a class, without branches, by its `ahead_of`."""
    end_s = site.ends_s[server]
    own_s = max(0.0, end_s - site.clock_s[0]) + (site.free_s[server] - end_s)
    own_s = own_s if site.queue[server] > 0 else 0.0
    return max(own_s + (0.0 if site.devices.holds[server] else held_s), behind_s)


@seldom
def awaited_otherwise(site: Site, k: int, server: int, rows: int) -> float:
    """The wait of `awaited`, at a server of another class."""
    return awaited(site, k, server, rows)[0]


@seldom
def _predicted_batch(site: Site, server: int, rows: int) -> tuple[float, float]:
    left_s = 0.0
    if site.running[server] > 0:
        left_s = max(0.0, site.ends_s[server] - site.clock_s[0])
    total_s, last_s = predicted_runs(site, server, site.waiting_rows[server] + rows)
    return joined_wait(site.devices, site, server, left_s + (total_s - last_s)), last_s


@jit
def bin_of(site: Site, k: int, confidence: float) -> int:
    """Bin of a confidence of class k."""
    edges = site.bin_edges[k]
    b = 0
    while b < edges.size and edges[b] <= confidence:
        b += 1
    return b


@jit
def expect(site: Site, k: int, confidence: np.ndarray, expected: np.ndarray) -> bool:
    """Expected accuracy of each class's answer to a request that class k has answered.

    Means over the rows, of which each has a confidence, are written to the (K,) `expected`. Without
    any, or of a class without bins, they are the classes' accuracies, and the result is False.
    """
    rows = confidence.size
    known = rows > 0 and site.bin_mass.shape[1] > 0 and site.bin_mass[k, 0] > 0.0
    for j in range(site.rate.size):
        expected[j] = 0.0 if known else site.accuracy[j]
    if known:
        for row in range(rows):
            b = bin_of(site, k, confidence[row])
            for j in range(site.rate.size):
                expected[j] += site.bin_accuracy[k, b, j] / rows
    return known


@jit
def has_class(mask: int, k: int) -> bool:
    """Tell whether class k is in a bit mask of classes."""
    return (mask >> k) & 1 != 0


@jit
def idle_in(site: Site, request: Request, k: int) -> int:
    """An idle server of class k, the one that fell idle last; -1 where there is none."""
    return _free_in(site, request, k, site.idle[k])


@jit
def _free_in(site: Site, request: Request, k: int, free: int) -> int:
    """Of the first `free` servers in class k's order, the last that may take the request."""
    if not request.narrowed:
        return site.idle_server[site.first[k] + free - 1] if free > 0 else -1
    if not has_class(request.classes, k):
        return -1
    for place in range(site.first[k] + free - 1, site.first[k] - 1, -1):
        server = site.idle_server[place]
        if request.allowed[server]:
            return server
    return -1


@jit
def resting_in(site: Site, request: Request, k: int) -> int:
    """A server of class k without requests, idle or only without room at its device; else -1."""
    return _free_in(site, request, k, resting(site.devices, site)[k])


@jit
def _resting_classes(devices: SharedDevices, site: Site, request: Request) -> int:
    if not request.narrowed:
        return devices.resting_classes[0]
    mask = 0
    for k in range(site.rate.size):
        if resting_in(site, request, k) >= 0:
            mask |= 1 << k
    return mask


_RESTING_CLASSES = either(SharedDevices, _resting_classes, lambda devices, site, request: 0)


@jit
def resting_classes(site: Site, request: Request) -> int:
    """Bit mask of classes with a server without requests that may take this one.

    It is for where no server is idle since others hold the devices: 0 where a site has none.
    """
    return _RESTING_CLASSES(site.devices, site, request)


@jit
def idle_classes(site: Site, request: Request) -> int:
    """Bit mask of classes with an idle server that may take the request."""
    if not request.narrowed:
        return site.idle_classes[0]
    mask = 0
    for k in range(site.rate.size):
        if idle_in(site, request, k) >= 0:
            mask |= 1 << k
    return mask


@jit
def any_in(site: Site, request: Request, k: int, u: float) -> int:
    """A server of class k, at random by `u` in [0, 1); -1 where none may take the request.

    Uniform where all may take it; where the one drawn may not, the next of the class that may.
    """
    return any_between(site, request, site.first[k], site.first[k + 1], u)


@jit
def any_between(site: Site, request: Request, low: int, high: int, u: float) -> int:
    """A server in low .. high - 1, at random as in `any_in`; -1 where none may take the request."""
    count = high - low
    offset = int(u * count)
    for step in range(count):
        place = offset + step
        server = low + (place - count if place >= count else place)
        if request.allowed[server]:
            return server
    return -1


@jit
def shortest_in(site: Site, request: Request, k: int, u: float) -> int:
    """The server of class k with the fewest requests; -1 where none may take it.

    Equal queues are broken by the first in turn after a random place.
    """
    idle = idle_in(site, request, k)
    if idle >= 0:
        return idle
    low = site.first[k]
    count = site.first[k + 1] - low
    offset = int(u * count)
    best = -1
    for step in range(count):
        place = offset + step
        server = low + (place - count if place >= count else place)
        if request.allowed[server] and (best < 0 or site.queue[server] < site.queue[best]):
            best = server
    return best


@jit
def class_of_any(site: Site, request: Request, mask: int, u: float) -> int:
    """A class of the mask, uniformly at random, that has a server for the request; else -1."""
    found = 0
    for k in range(site.rate.size):
        if has_class(mask, k) and any_in(site, request, k, 0.0) >= 0:
            found += 1
    wanted = int(u * found)
    for k in range(site.rate.size):
        if has_class(mask, k) and any_in(site, request, k, 0.0) >= 0:
            if wanted == 0:
                return k
            wanted -= 1
    return -1
