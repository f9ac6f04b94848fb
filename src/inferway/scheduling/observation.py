"""A learned scheduler's view of a site: one vector of numbers in 0..1 ([Tan24], Sec. 5.1.4).

By server, in the view's order: its queue length one-hot (c + 1 values), the elapsed time of the
service in progress, the ages of its requests, oldest first (c + 1 values, zeros behind the last).
With batches, then the size of the batch in service, by server. Where servers come and go (ours, an
extension that Sec. 6.2 names), then 1 for each that is there, and all else of one that is away is
0. With full observability, then the workload's phase one-hot and, where phases are periodic, the
time since the last switch.

The paper leaves open what divides the times. Here an elapsed service is divided by the longest that
its class has, an age by c mean service times of the slowest class, the time since a switch by the
length of the longest phase; all are cut off at 1. The last of the c + 1 ages is always 0: the paper
gives the vectors this length, one more than there are places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.scheduling.contract import Signal
from inferway.site.view import Floats, Ints, Site

Vector = NDArray[np.float32]


class ObservationLayout(NamedTuple):
    """Layout of the vector, for n servers of K classes."""

    buffer: int  # c, places at a server, the one in service included
    elapsed_s: Floats  # (n,) longest service time of each server's class, s
    age_s: float  # Age that counts as 1, s
    largest: int  # Largest batch size offered; 0 where there are no batches to see
    phases: int  # m, phases of the workload; 0 where they are not seen
    longest_phase_s: float  # Length of the longest phase, s; 0 where phases are not periodic
    flags: bool = False  # Whether it says which servers are there

    @property
    def size(self) -> int:
        """Length of the vector."""
        servers = len(self.elapsed_s)
        own = self.width + (self.largest > 0) + self.flags
        return servers * own + self.phases + (self.longest_phase_s > 0)

    @property
    def width(self) -> int:
        """Values of one server, without its batch."""
        return 2 * self.buffer + 3

    @property
    def flagged(self) -> slice | None:
        """Part of the vector that says which servers are there; None where none does."""
        servers = len(self.elapsed_s)
        first = servers * (self.width + (self.largest > 0))
        return slice(first, first + servers) if self.flags else None


def layout_of(
    *,
    counts: Sequence[int] | Ints,
    service_s: Sequence[float] | Floats,
    buffer: int,
    batch_sizes: Sequence[Sequence[int]] | None = None,
    batch_service_s: Sequence[Sequence[float]] | None = None,
    phases: int = 0,
    longest_phase_s: float = 0.0,
    flags: bool = False,
) -> ObservationLayout:
    """The layout for a fleet of (K,) servers by class and mean service times of one request, s.

    With batches, by class, the sizes offered and the service times of whole batches of them, s;
    where no times are given, the longest service is that of one request. Phases of the workload
    where they are seen, and the longest of a periodic one, s. Flags where servers come and go.
    """
    mean_s = np.asarray(service_s, np.float64)
    longest_s = mean_s
    if batch_sizes is not None and batch_service_s is not None:
        longest_s = np.array(
            [max(one, *times) for one, times in zip(mean_s, batch_service_s, strict=True)]
        )
    return ObservationLayout(
        buffer=buffer,
        elapsed_s=np.repeat(longest_s, np.asarray(counts, np.int64)),
        age_s=float(buffer * mean_s.max()),
        largest=0 if batch_sizes is None else max(max(sizes) for sizes in batch_sizes),
        phases=phases,
        longest_phase_s=longest_phase_s if phases else 0.0,
        flags=flags,
    )


def observe(
    layout: ObservationLayout,
    site: Site,
    signal: Signal,
    servers: Ints | None = None,
    places: Ints | None = None,
) -> Vector:
    """Write down what a site looks like now, (layout.size,), for (m,) of its servers or for all.

    (m,) places are where these stand in the vector, whose others are away; as many as the layout
    has where they are not given.
    """
    found = np.zeros(layout.size, np.float32)
    pick: Any = slice(None) if servers is None else servers
    count, buffer, width = len(layout.elapsed_s), layout.buffer, layout.width
    now_s = site.clock_s[0]
    queue = np.minimum(site.queue[pick], buffer)
    rows = np.arange(count) if places is None else places
    block = found[: count * width].reshape(count, width)
    block[rows, queue] = 1.0
    elapsed_s = now_s - site.started_s[pick]  # nan where nothing is in service
    share = np.where(np.isnan(elapsed_s), 0.0, elapsed_s) / layout.elapsed_s[rows]
    block[rows, buffer + 1] = share.clip(0.0, 1.0)
    arrived_s, head = site.arrived_s[pick], site.head[pick]
    offset = np.arange(buffer)
    ring = (head[:, None] + offset) % arrived_s.shape[1]
    ages = (now_s - arrived_s[np.arange(len(rows))[:, None], ring]) / layout.age_s
    block[rows, buffer + 2 : -1] = np.where(offset < queue[:, None], ages.clip(0.0, 1.0), 0.0)
    at = count * width
    if layout.largest:
        found[at + rows] = batches(site, pick) / layout.largest
        at += count
    if layout.flags:
        found[at + rows] = 1.0
        at += count
    if layout.phases:
        if 0 <= signal.phase < layout.phases:
            found[at + signal.phase] = 1.0
        at += layout.phases
    if layout.longest_phase_s > 0:
        found[at] = min(1.0, max(0.0, signal.since_s / layout.longest_phase_s))
    return found


def batches(site: Site, pick: Any = slice(None)) -> Ints:
    """(n,) requests in service at each server."""
    serving = ~np.isnan(site.started_s[pick])
    return np.asarray(np.where(serving, np.maximum(1, site.running[pick]), 0))
