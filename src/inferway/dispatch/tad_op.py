"""TAD: track the accuracy difference ([Anonymous], Sec. 4); TAD-OP: under ordered pairs (Alg. 2).

The paper's text lost the negations of its Algorithm 2. Read here, as its own claims confirm: a
proper pair follows the sign of the accuracy balance, to the less accurate class when it is
positive; a pair that shuffles, or a singleton, goes to its class with the positive entry; a class
with entry 0 makes a pair unroutable; where no tuple is routable, the idle class of the highest
number (the slowest) takes the request, and where no server is idle, a class drawn at random.

The paper's servers share nothing. Where they share devices, and none is idle because others hold
these, both policies go on with the servers that have no requests, and the request waits there for
its device: a class drawn at random would be one for nearly every request, and keep no target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.bounds import routing_tuples
from inferway.site import (
    ALL_CLASSES,
    Fleet,
    Request,
    Site,
    any_in,
    class_of_any,
    has_class,
    idle_classes,
    idle_in,
    uniform,
)
from inferway.site.compiled import jit
from inferway.site.selection import resting_classes, resting_in
from inferway.site.view import Ints

_TABLE_CLASSES = 8
_NONE = -1
# The balance is a sum of decimal fractions; a balance of zero may read 1e-17.
_SLACK = 1e-9


class Tad(NamedTuple):
    """The fastest idle server among the classes that keep the accuracy balance at 0 or above.

    The set of such classes is never empty in the paper. Here it may be, where requests are
    restricted to some classes; then the most accurate of those stands for it.
    """

    classes: int

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Tad:
        """ValueError without a target."""
        if target is None:
            raise ValueError("policy tad tracks an accuracy target: give the task accuracy_target")
        return cls(len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Idle first, fastest first; then those that lack only a device; else any of any class."""
        mask = 0
        for k in range(self.classes):
            if has_class(request.classes, k) and _keeps(site, request, k):
                server = idle_in(site, request, k)
                if server >= 0:
                    return server
                mask |= 1 << k
        if mask == 0:
            best = _most_accurate(site, request)
            if best < 0:
                return -1
            server = idle_in(site, request, best)
            if server >= 0:
                return server
            mask = 1 << best
        waiting = mask & resting_classes(site, request)
        for k in range(self.classes):
            if has_class(waiting, k):
                return resting_in(site, request, k)
        k = class_of_any(site, request, mask, uniform(draw, 0))
        return -1 if k < 0 else any_in(site, request, k, uniform(draw, 1))


@jit
def _keeps(site: Site, request: Request, k: int) -> bool:
    """Tell whether an answer of class k keeps the accuracy balance at 0 or above."""
    earned = request.rows * (site.accuracy[k] - site.target[0])
    return site.balance[0] + earned >= -_SLACK


@jit
def _most_accurate(site: Site, request: Request) -> int:
    """The first of the most accurate classes that the request may go to; -1 where there is none."""
    best = -1
    for k in range(site.accuracy.size):
        better = best < 0 or site.accuracy[k] > site.accuracy[best]
        if better and has_class(request.classes, k):
            best = k
    return best


class TadOp(NamedTuple):
    """Routing tuples in order of cost, the first that is routable."""

    needs_idle: Ints  # (T,) classes that must have an idle server, by routing tuple
    needs_busy: Ints  # (T,) classes that must have a busy server, by routing tuple
    ahead: NDArray[np.int8]  # (T,) class to go to when the accuracy balance is positive
    behind: NDArray[np.int8]  # (T,) class to go to when it is not
    classes: int
    # (2**(2K + 1),) the class for every (idle, busy, ahead), K <= 8; empty beyond.
    table: NDArray[np.int8]

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> TadOp:
        """Order the routing tuples; ValueError without a target."""
        if target is None:
            raise ValueError(
                "policy tad-op tracks an accuracy target: give the task accuracy_target"
            )
        needs_idle, needs_busy, ahead, behind = [], [], [], []
        for found in routing_tuples(fleet, target):
            entries = {k: found.routing[k] for k in found.classes}
            if 0.0 in entries.values():
                continue
            positive = max(entries, key=lambda k: entries[k])
            proper_pair = found.proper and len(entries) == 2
            needs_idle.append(sum(1 << k for k, entry in entries.items() if entry > 0))
            needs_busy.append(sum(1 << k for k, entry in entries.items() if entry < 0))
            by_accuracy = sorted(entries, key=lambda k: fleet.accuracy[k])
            ahead.append(by_accuracy[0] if proper_pair else positive)
            behind.append(by_accuracy[-1] if proper_pair else positive)
        policy = cls(
            np.array(needs_idle, np.int64),
            np.array(needs_busy, np.int64),
            np.array(ahead, np.int8),
            np.array(behind, np.int8),
            len(fleet.rate),
            np.zeros(0, np.int8),
        )
        return policy._replace(table=_table(policy)) if policy.classes <= _TABLE_CLASSES else policy

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """By the routing tuples, of idle servers, or of those that lack only a device; else any."""
        idle = idle_classes(site, request)
        if idle == 0:
            idle = resting_classes(site, request)
        if idle == 0:
            k = class_of_any(site, request, ALL_CLASSES, uniform(draw, 0))
            return -1 if k < 0 else any_in(site, request, k, uniform(draw, 1))
        ahead = site.balance[0] > _SLACK
        if self.table.size > 0:
            word = idle | (site.busy_classes[0] << self.classes)
            k = self.table[2 * word + ahead]
        else:
            k = scan(self, idle, site.busy_classes[0], ahead)
        return resting_in(site, request, k)


@jit
def scan(policy: TadOp, idle: int, busy: int, ahead: bool) -> int:
    """The class of the first routable tuple, else the idle class of the highest number, else -1."""
    for t in range(policy.needs_idle.size):
        lacks = (policy.needs_idle[t] & ~idle) | (policy.needs_busy[t] & ~busy)
        if lacks == 0:
            return policy.ahead[t] if ahead else policy.behind[t]
    for k in range(policy.classes - 1, -1, -1):
        if (idle >> k) & 1 != 0:
            return k
    return _NONE


def _table(policy: TadOp) -> NDArray[np.int8]:
    """The scan for every state, vectorized: later rules first, earlier ones overwrite them."""
    words = np.arange(4**policy.classes, dtype=np.int64)
    idle, busy = words & (2**policy.classes - 1), words >> policy.classes
    table = np.full((len(words), 2), _NONE, np.int8)
    for k in range(policy.classes):
        table[(idle >> k) & 1 == 1] = k
    for t in range(len(policy.needs_idle) - 1, -1, -1):
        needs_idle, needs_busy = policy.needs_idle[t], policy.needs_busy[t]
        routable = (idle & needs_idle == needs_idle) & (busy & needs_busy == needs_busy)
        table[routable] = policy.behind[t], policy.ahead[t]
    return table.ravel()
