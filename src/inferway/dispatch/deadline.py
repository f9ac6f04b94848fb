"""Deadline: the most accurate server that is predicted to finish in time, or none at once.

Not in the papers: a rule that needs no training where a request has a deadline and the task no
accuracy target. A request is predicted to end with the batch that it would join, once all that
waits before it has run. Predictions are on the safe side, since a request that is late costs its
whole accuracy and one that is sent to a less accurate server costs a difference: to the predicted
time is added a margin times its spread. The spread of one run is its learned high quantile less its
mean; that of several runs, one after the other, grows as the square root of their number.
Where runs take longer than the site predicts, so does the one in service, from its beginning on.

Where servers form batches, two things more are asked, since who joins lengthens the run of those
who wait, and who waits for long allows a short run only:

- None who waits may become late by it.
- One who comes so early in a run that a full batch behind it would make it late is left to the next
  class, if as many are expected to come later, in time for that batch, as it still has room for. So
  runs are full where there is much to do: a less accurate answer now for more accurate ones later.
  Which size is full is the one of most rows per second among those that come together in the time
  that the deadline leaves them. The rate is learned from the gaps between dispatches.

All who wait are taken to have as long a deadline as who comes.

A class that is late by what was learned of it, and would be in time by the site's prediction alone,
has chances as `inferway.site.chances` says of servers: one of many requests is sent there, and what
its run took is believed whole, with a spread in the same proportion. Among the first runs, one much
shorter than learned is as well.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number
from inferway.site import (
    COMPLETED,
    DISPATCHED,
    REJECT,
    WITHDRAWN,
    Event,
    Fleet,
    Request,
    Site,
)
from inferway.site.chances import BELIEVED, FEW, PAUSE, TRIED, next_chance
from inferway.site.compiled import jit, seldom
from inferway.site.selection import awaited, formed, forms_batches, predicted_run
from inferway.site.sharing import foresee_all, led
from inferway.site.view import Floats, Ints

LEVEL = 0.95  # Of the running quantile
MARGIN = 2.0
_LEAST_STEP = 0.02
# Factors of the quantile at that step, which most runs come to.
_UP, _DOWN = np.exp(_LEAST_STEP * LEVEL), np.exp(_LEAST_STEP * (LEVEL - 1.0))
# Times that differ by less are equal: they are sums, and their rounding must not decide.
_TIE_S = 1e-9
_GAP_STEP = 1 / 32  # of the running mean gap between dispatches


class Deadline(NamedTuple):
    """Accuracy first, among those in time."""

    order: Ints  # (K,) classes, the most accurate first
    # (K,) running mean and quantile of runs' times, of what the site predicts: the policy's memory.
    mean: Floats
    high: Floats
    seen: Ints  # (K,) runs that it has learned from
    margin: float
    gap_s: Floats  # (2,) running mean gap between dispatches, inf before the second; the last one
    # As of servers in `Site`, of classes: which request may be its next chance, and how many it had
    # in vain. `TRIED` also before anything was learned.
    again: Ints  # (K,)
    chances: Ints  # (K,)

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        margin: Annotated[
            Number,
            Field(
                description="A predicted time is believed to be longer by this many times its "
                "spread: the learned 0.95 quantile of service times less their mean."
            ),
        ] = MARGIN,
    ) -> Self:
        """Begin with the site's predictions, and no spread."""
        order = np.lexsort((-fleet.rate, -fleet.accuracy)).astype(np.int64)
        classes = len(order)
        return cls(
            order, np.ones(classes), np.ones(classes), np.zeros(classes, np.int64), float(margin),
            np.full(2, np.inf), np.full(classes, TRIED), np.zeros(classes, np.int64),
        )  # fmt: skip

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Of the most accurate class with a server in time, the server that finishes first."""
        left_s = request.deadline_s - site.clock_s[0]
        patience_s, spared = request.deadline_s - request.entered_s, REJECT
        foresee_all(site.devices, site)
        for k in self.order:
            best, least_s, run_s = REJECT, np.inf, 0.0
            spread = self.margin * max(0.0, self.high[k] - self.mean[k])
            batched = forms_batches(site, k) and patience_s < np.inf
            for server in range(site.first[k], site.first[k + 1]):
                if not request.allowed[server]:
                    continue
                joins = batched and site.queue[server] > 0
                if joins and _delays(site, server, request.rows, patience_s, self.mean[k], spread):
                    continue
                wait_s, service_s = awaited(site, k, server, request.rows)
                end_s = wait_s + service_s
                # A server overdue with its last is predicted to be level with an idle one.
                shorter = best != REJECT and site.queue[server] < site.queue[best]
                if end_s < least_s - _TIE_S or (shorter and end_s <= least_s + _TIE_S):
                    best, least_s, run_s = server, end_s, service_s
            if best == REJECT:
                continue
            believed_s = self.mean[k] * least_s + _overrun(site, best, self.mean[k])
            if believed_s + spread * np.sqrt(run_s * least_s) > left_s:
                if _has_chance(site, best, self.again[k]) and least_s <= left_s:
                    return best
                continue
            joins = batched and site.queue[best] > 0
            if joins and _is_filled(
                site, best, left_s, patience_s, self.mean[k], spread, self.gap_s[0]
            ):
                spared = best if spared == REJECT else spared
                continue
            return best
        return spared

    def learn(self, site: Site, event: Event) -> None:
        """Move mean and quantile, less and less (Robbins, Monro), to what was seen at most."""
        k = site.server_class[event.server]
        if event.kind == DISPATCHED:
            now_s = site.clock_s[0]
            gap_s, mean_s = now_s - self.gap_s[1], self.gap_s[0]
            if self.gap_s[1] < np.inf:
                self.gap_s[0] = gap_s if mean_s == np.inf else mean_s + _GAP_STEP * (gap_s - mean_s)
            self.gap_s[1] = now_s
            if site.asked[0] >= self.again[k] and site.asked[0] % PAUSE == 0:
                end_s, spread = event.wait_s + event.service_s, self.high[k] - self.mean[k]
                believed_s = self.mean[k] * end_s
                believed_s += self.margin * max(0.0, spread) * np.sqrt(event.service_s * end_s)
                if believed_s > event.deadline_s - now_s:  # it had a chance
                    self.again[k] = TRIED
                    self.chances[k] += 1
        tried = self.again[k] == TRIED and self.chances[k] > 0
        measured = event.run_rows > 0 and event.service_s > 0.0
        if tried and (event.kind == WITHDRAWN or (event.kind == COMPLETED and not measured)):
            self.again[k] = next_chance(site, self.chances[k])
        if event.kind != COMPLETED or not measured:
            return
        step = max(_LEAST_STEP, 1.0 / (2.0 + self.seen[k]))
        took_s = led(site.devices, k, event.run_rows, event.service_s)
        ratio = took_s / predicted_run(site, event.server, event.run_rows)
        if tried:  # One run says nothing of the spread, which stays in proportion.
            self.high[k] = ratio * max(1.0, self.high[k] / self.mean[k])
            self.mean[k], self.seen[k] = ratio, 0
        elif self.seen[k] < FEW and self.mean[k] > 2.0 * max(1.0, ratio) and site.asked[0] >= 0:
            self.mean[k] = max(1.0, ratio)
        else:
            self.mean[k] += step * (ratio - self.mean[k])
        above = ratio > self.high[k]
        if step > _LEAST_STEP:
            moved = self.high[k] * np.exp(step * (LEVEL if above else LEVEL - 1.0))
        else:
            moved = self.high[k] * (_UP if above else _DOWN)
        self.high[k] = min(moved, ratio) if above else max(moved, ratio)
        self.seen[k] += 1
        if self.seen[k] >= BELIEVED:
            self.chances[k] = 0
        self.again[k] = next_chance(site, self.chances[k])


@jit
def _has_chance(site: Site, server: int, again: int) -> bool:
    """Tell whether the server is idle, and this request one that may go to a late class."""
    return site.asked[0] >= again and site.asked[0] % PAUSE == 0 and site.queue[server] == 0


@jit
def _overrun(site: Site, server: int, mean: float) -> float:
    """How much longer the run in service takes than `mean` times what is predicted to be left, s.

    Of one that takes `mean` times its prediction all is so much longer, not only what is left.
    """
    if site.queue[server] == 0 or np.isnan(site.started_s[server]):
        return 0.0
    so_far_s = site.clock_s[0] - site.started_s[server]
    whole_s = site.ends_s[server] - site.started_s[server]
    return max(0.0, mean * whole_s - so_far_s) - mean * max(0.0, whole_s - so_far_s)


@seldom
def _delays(
    site: Site, server: int, rows: int, patience_s: float, mean: float, spread: float
) -> bool:
    """Tell whether some of those who wait for a batch are late only if so many rows join them."""
    late = _late(site, server, rows, patience_s, mean, spread)
    return late > 0 and late > _late(site, server, 0, patience_s, mean, spread)


@seldom
def _late(site: Site, server: int, more: int, patience_s: float, mean: float, spread: float) -> int:
    """Number of those who wait that are predicted to be late, where so many rows come behind."""
    now_s, places = site.clock_s[0], site.arrived_s.shape[1]
    at, late, left = site.running[server], 0, site.waiting_rows[server] + more
    end_s, over_s = _busy(site, server), _overrun(site, server, mean)
    while left > 0 and at < site.queue[server]:
        taken = formed(site, server, left, np.inf)
        run_s = predicted_run(site, server, taken)
        end_s += run_s
        left -= taken
        until_s = now_s + mean * end_s + over_s + spread * np.sqrt(run_s * end_s) - patience_s
        while taken > 0 and at < site.queue[server]:
            place = (site.head[server] + at) % places
            late += site.arrived_s[server, place] < until_s - _TIE_S
            taken -= site.rows[server, place]
            at += 1
    return late


@seldom
def _is_filled(
    site: Site,
    server: int,
    left_s: float,
    patience_s: float,
    mean: float,
    spread: float,
    gap_s: float,
) -> bool:
    """Tell whether the batch that one would join is filled without it, and only without it."""
    k = site.server_class[server]
    each_s = gap_s * (site.first[k + 1] - site.first[k])
    full, full_s, most_per_s = 0, 0.0, 0.0
    for size in site.sizes[k]:
        if size == 0:
            break
        run_s = predicted_run(site, server, size)
        room_s = patience_s - (mean + spread) * run_s
        if room_s >= size * each_s and size > most_per_s * run_s * (1.0 + 1e-9):
            full, full_s, most_per_s = size, run_s, size / run_s
    if full == 0:
        return False
    waiting = site.waiting_rows[server]
    begins_s = _busy(site, server) + (waiting // full) * full_s
    end_s = begins_s + full_s
    believed_s = mean * end_s + _overrun(site, server, mean)
    if believed_s + spread * np.sqrt(full_s * end_s) <= left_s:
        return False
    room_s = min(begins_s, patience_s - (mean + spread) * full_s)
    return room_s >= (full - waiting % full) * each_s


@seldom
def _busy(site: Site, server: int) -> float:
    """Time until the run in service ends, s; 0 where there is none."""
    if site.running[server] == 0:
        return 0.0
    return max(0.0, site.ends_s[server] - site.clock_s[0])
