"""Steps at each event of a site under a policy: the steps that both worlds share.

`decide` is called by compiled code as it stands; the others are compiled, and cached on disk, for
Python, which hands over the address of what is bound: to unpack thirty arrays costs 8 us, one
address that leads to them 0.2 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core.types import boolean, float64, int64

from inferway.dispatch import contract
from inferway.site.chances import PAUSE, overlooked
from inferway.site.compiled import call_of, entry, fingerprint, jit
from inferway.site.exclusive import foresee_devices
from inferway.site.handle import Pinned, pin
from inferway.site.selection import expect, formed, has_class, predicted_join, predicted_run
from inferway.site.sharing import look_around, tell
from inferway.site.transitions import (
    abandon,
    admit,
    begin_batch,
    forget,
    measure,
    narrow,
    ready,
    release,
    set_health,
    shift_services,
)
from inferway.site.view import (
    ACCEPT,
    ALL_CLASSES,
    COMPLETED,
    DISPATCHED,
    HOLD,
    REJECT,
    SETTLED,
    WITHDRAWN,
    Answer,
    Event,
    Flags,
    Floats,
    Request,
    Site,
)

# Places in `Binding.decision`
PREDICTED_WAIT, PREDICTED_SERVICE, CREDIT, IN_HAND = 0, 1, 2, 3
NO_SERVER = -4  # What a policy said is no decision: the number of a server that there is not
AS_DECIDED = -5  # For `arrive` and `settle`: what happens is what the policy decides


class Silent(NamedTuple):
    """Stands for the policy where it has no say, so that such steps are compiled once for all."""

    silent: bool = True


class Binding(NamedTuple):
    """Needs of one call, gathered once."""

    site: Site
    allowed: Flags  # (n,) scratch for narrowed requests
    # (4,) of the last decision: predicted wait and predicted service time, s, and the expected
    # accuracies that the request is credited with, and of the answer that has come.
    decision: Floats
    expected: Floats  # (K,) scratch for the expected accuracies of an answer
    measures: bool  # Whether service times are learned from what is measured
    # Whether servers that are predicted to be late are left out; else the policy alone decides
    # what a deadline means.
    narrows: bool
    max_wait_s: float = np.inf  # A server with a longer predicted wait is saturated, and left out
    lasting: int = 0  # Bit mask of the classes that are never saturated
    policy: Any = Silent()  # Last, so that who does not ask it takes the same memory


@jit
def decide(
    bound: Any,
    now_s: float,
    draw: int,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
) -> int:
    """Decide on a request: server, REJECT or HOLD.

    Moves the clock, and gives servers their chances; nothing else.
    """
    site, allowed = bound.site, bound.allowed
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    foresee_devices(site.devices, site)
    mask = classes
    if floor > 0.0:
        for k in range(site.rate.size):
            if site.accuracy[k] < floor:
                mask &= ~(1 << k)
    if deadline_s < np.inf and site.asked[0] >= 0:
        _ask(bound, mask, deadline_s, rows)
    latest_s = deadline_s if bound.narrows else np.inf
    most_s = bound.max_wait_s
    narrowed = mask != ALL_CLASSES or latest_s < np.inf or most_s < np.inf
    if narrowed and not narrow(site, allowed, mask, latest_s, rows, most_s, bound.lasting):
        return REJECT
    view = allowed if narrowed else site.open
    request = Request(now_s, deadline_s, floor, priority, rows, mask, view, narrowed)
    server = contract.choose(bound.policy, site, request, draw)
    if server >= site.queue.size or server < HOLD:
        return NO_SERVER
    # A full server takes nothing, whatever the policy says.
    return REJECT if server >= 0 and not site.open[server] else server


@jit
def _ask(bound: Any, classes: int, deadline_s: float, rows: int) -> None:
    """Count a request with a deadline; now and then, let a server have a chance."""
    site = bound.site
    site.asked[0] += 1
    if bound.measures and site.asked[0] % PAUSE == 0:
        server = overlooked(site, classes, deadline_s, rows)
        if server >= 0:
            forget(site, server)


def arrive(
    bound: Any,
    now_s: float,
    draw: int,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
    counted: bool,
    taken: int,
) -> int:
    """Decide, and send the request to a server: admit it, move the balance, let the policy learn.

    Returns what the policy decides; what happens is `taken`, where that is not `AS_DECIDED`.
    """
    server = decide(bound, now_s, draw, deadline_s, floor, priority, classes, rows)
    to = server if taken == AS_DECIDED else taken
    if to >= 0:
        site = bound.site
        k = site.server_class[to]
        wait_s, service_s = predicted_join(site, to, rows)
        bound.decision[PREDICTED_WAIT] = wait_s
        bound.decision[PREDICTED_SERVICE] = service_s
        ready(site, to)
        admit(site, to, rows)
        bound.decision[CREDIT] = site.accuracy[k]
        if counted:
            site.balance[0] += rows * (site.accuracy[k] - site.target[0])
        event = Event(DISPATCHED, to, rows, counted, wait_s, service_s, 0, 0.0, deadline_s)
        contract.learn(bound.policy, site, event)
        tell(site.devices, site)
    return int(server)


@jit
def resettle(
    bound: Any,
    server: int,
    count: int,
    now_s: float,
    draw: int,
    entered_s: float,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
) -> int:
    """Decide on an answer whose expected accuracies are in `bound.expected`: ACCEPT or a server.

    Another server is asked only where its answer is predicted in time, whatever becomes of requests
    that are late. Moves nothing.
    """
    site, allowed = bound.site, bound.allowed
    foresee_devices(site.devices, site)
    mask = classes & ~(1 << site.server_class[server])
    if floor > 0.0:
        for k in range(site.rate.size):
            if site.accuracy[k] < floor:
                mask &= ~(1 << k)
    others = ALL_CLASSES & ~(1 << site.server_class[server])
    narrowed = mask != others or deadline_s < np.inf or bound.max_wait_s < np.inf
    if narrowed and not narrow(
        site, allowed, mask, deadline_s, rows, bound.max_wait_s, bound.lasting
    ):
        return ACCEPT
    view = allowed if narrowed else site.open
    request = Request(entered_s, deadline_s, floor, priority, rows, mask, view, narrowed)
    answer = Answer(server, bound.expected, count)
    to = contract.settle(bound.policy, site, request, answer, draw)
    if to == ACCEPT:
        return ACCEPT
    if to < 0 or to >= site.queue.size:
        return NO_SERVER
    return int(to) if view[to] and has_class(mask, site.server_class[to]) else ACCEPT


def settle(
    bound: Any,
    server: int,
    now_s: float,
    draw: int,
    entered_s: float,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
    confidence: Floats,
    credit: float,
    count: int,
    counted: bool,
    taken: int,
) -> int:
    """Decide on an answer that has come: ACCEPT, or a server that is asked as well.

    A first answer has a confidence for each row, or none where nothing is known of it; then it is
    accepted, as a second one is. `credit` is the expected accuracy that the balance has counted so
    far. Returns what the policy decides; what happens is `taken`, where that is not `AS_DECIDED`.
    """
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    k = site.server_class[server]
    decided = ACCEPT
    if count == 1:
        known = expect(site, k, confidence, bound.expected)
        if known and counted:
            decided = resettle(
                bound,
                server,
                count,
                now_s,
                draw,
                entered_s,
                deadline_s,
                floor,
                priority,
                classes,
                rows,
            )
            if decided == NO_SERVER:
                return NO_SERVER
    else:  # whoever was asked second was credited with what the first one's confidence says of it
        bound.expected[k] = credit
    to = decided if taken == AS_DECIDED else taken
    earned = bound.expected[k if to < 0 else site.server_class[to]]
    bound.decision[CREDIT], bound.decision[IN_HAND] = earned, bound.expected[k]
    if counted:
        site.balance[0] += rows * (earned - credit)
    if to >= 0:
        wait_s, service_s = predicted_join(site, to, rows)
        bound.decision[PREDICTED_WAIT] = wait_s
        bound.decision[PREDICTED_SERVICE] = service_s
        ready(site, to)
        admit(site, to, rows)
        event = Event(DISPATCHED, to, rows, False, wait_s, service_s, 0, 0.0, deadline_s)
    else:
        event = Event(SETTLED, server, rows, counted, 0.0, 0.0, 0, earned, np.inf)
    contract.learn(bound.policy, site, event)
    tell(site.devices, site)
    return int(decided)


def fall_back(
    bound: Any,
    server: int,
    position: int,
    now_s: float,
    first: int,
    in_hand: float,
    credit: float,
    counted: bool,
) -> None:
    """A request that was asked again leaves its second server without an answer from there.

    The answer in hand, of server `first` and of expected accuracy `in_hand`, is sent, and counts in
    the place of what was credited; with NaN none is sent.
    """
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    rows = site.rows[server, (site.head[server] + position) % site.arrived_s.shape[1]]
    if position == 0:
        ready(site, server)
        release(site, server)
    else:
        abandon(site, server, position)
    sent = in_hand == in_hand
    if counted:
        site.balance[0] += rows * ((in_hand if sent else site.target[0]) - credit)
    event = Event(WITHDRAWN, server, rows, False, 0.0, 0.0, 0, 0.0, np.inf)
    contract.learn(bound.policy, site, event)
    if sent:
        settled = Event(SETTLED, first, rows, counted, 0.0, 0.0, 0, in_hand, np.inf)
        contract.learn(bound.policy, site, settled)
    tell(site.devices, site)


def begin(bound: Any, server: int, taken: int, now_s: float) -> None:
    """The server starts its first requests as one batch, or waits for a larger one with 0."""
    bound.site.clock_s[0] = now_s
    begin_batch(bound.site, server, taken)
    tell(bound.site.devices, bound.site)


def finish(bound: Any, server: int, now_s: float, service_s: float, measured: int) -> None:
    """The first request at the server is answered; the next in its queue starts.

    The service time is measured for so many rows: those of the batch, for its first answer; 0 for
    the request's own, and below 0 where it has been measured already.
    """
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    place = site.head[server]
    rows = site.rows[server, place]
    wait_s = max(0.0, site.started_s[server] - site.arrived_s[server, place])
    release(site, server)
    if bound.measures and service_s > 0.0 and measured >= 0:
        measure(site, server, measured if measured > 0 else rows, service_s)
    run_rows = measured if measured > 0 else rows if measured == 0 else 0
    event = Event(COMPLETED, server, rows, True, wait_s, service_s, run_rows, 0.0, np.inf)
    contract.learn(bound.policy, site, event)
    tell(site.devices, site)


def withdraw(bound: Any, server: int, position: int, now_s: float, counted: bool) -> None:
    """A request leaves without an answer: the one in service (position 0) or a queued one."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    k = site.server_class[server]
    rows = site.rows[server, (site.head[server] + position) % site.arrived_s.shape[1]]
    if position == 0:
        ready(site, server)
        release(site, server)
    else:
        abandon(site, server, position)
    if counted:
        site.balance[0] -= rows * (site.accuracy[k] - site.target[0])
    event = Event(WITHDRAWN, server, rows, counted, 0.0, 0.0, 0, 0.0, np.inf)
    contract.learn(bound.policy, site, event)
    tell(site.devices, site)


def pull(bound: Any, server: int, now_s: float, draw: int) -> tuple[int, int]:
    """Result of the policy's `pull` for a server that has fallen free: (drop, take)."""
    bound.site.clock_s[0] = now_s
    look_around(bound.site.devices, bound.site)
    return contract.pull(bound.policy, bound.site, server, draw)


def form(bound: Any, server: int, rows: int, left_s: float) -> tuple[int, float]:
    """Rows of the batch that a free server forms of `rows` that wait, and its predicted time, s.

    It is to end within `left_s`.
    """
    taken = formed(bound.site, server, rows, left_s)
    return taken, predicted_run(bound.site, server, taken)


def predict(bound: Any, server: int, rows: int, now_s: float) -> tuple[float, float]:
    """Predicted wait and service time of a request that joined the server now, s."""
    bound.site.clock_s[0] = now_s
    look_around(bound.site.devices, bound.site)
    foresee_devices(bound.site.devices, bound.site)
    return predicted_join(bound.site, server, rows)


def mark(bound: Any, server: int, healthy: bool, now_s: float) -> None:
    """The server takes requests from now on, or does not."""
    bound.site.clock_s[0] = now_s
    look_around(bound.site.devices, bound.site)
    set_health(bound.site, server, healthy)
    tell(bound.site.devices, bound.site)


def shift(bound: Any, low: int, high: int, by_s: float, least_s: float, now_s: float) -> None:
    """Services at servers low .. high - 1 take so much longer from now on, or less."""
    bound.site.clock_s[0] = now_s
    shift_services(bound.site, low, high, by_s, least_s)
    tell(bound.site.devices, bound.site)


# Types of what the steps take besides what is bound.
_TYPES: dict[Callable[..., Any], tuple[Any, ...]] = {
    arrive: (float64, int64, float64, float64, int64, int64, int64, boolean, int64),
    begin: (int64, int64, float64),
    settle: (
        int64,
        float64,
        int64,
        float64,
        float64,
        float64,
        int64,
        int64,
        int64,
        float64[::1],
        float64,
        int64,
        boolean,
        int64,
    ),
    fall_back: (int64, int64, float64, int64, float64, float64, boolean),
    finish: (int64, float64, float64, int64),
    withdraw: (int64, int64, float64, boolean),
    mark: (int64, boolean, float64),
    pull: (int64, float64, int64),
    form: (int64, int64, float64),
    predict: (int64, int64, float64),
    shift: (int64, int64, float64, float64, float64),
}
_ENTRIES: dict[Any, Any] = {step: entry(step) for step in _TYPES}


class Handles(NamedTuple):
    """A site with its policy as the steps take it: of each, as little as they need to know.

    A policy that does not learn or pull has no part in what is compiled for these steps, and so is
    the same for all such.
    """

    whole: Pinned  # For `arrive` and `settle`
    silent: Pinned  # Without the policy, for `begin`, `form`, `predict`, `mark` and `shift`
    learning: Pinned  # For `finish`, `withdraw` and `fall_back`
    pulling: Pinned  # For `pull`


def bind(binding: Binding, before: Handles | None = None) -> Handles:
    """Lay out a site and its policy for the steps.

    Where the same were laid out `before`, the handles stay, and lead to what is bound now.
    """
    whole = pin(binding, None if before is None else before.whole)
    silent = whole.ending(Silent())
    learns, pulls = (hasattr(binding.policy, name) for name in ("learn", "pull"))
    return Handles(whole, silent, whole if learns else silent, whole if pulls else silent)


def compiled(step: Any, pinned: Pinned) -> Callable[..., Any]:
    """A step for what is laid out so, from the cache or made now; it takes the handle first."""
    return call_of(_ENTRIES[step], pinned.kind, *_TYPES[step])


def code_of(policy: Any) -> str:
    """Hash of the code that decides with this policy, 16 hexadecimal digits."""
    return fingerprint(__name__, type(policy))
