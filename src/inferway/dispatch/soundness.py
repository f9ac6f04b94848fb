"""Whether a recording can be followed: what changes a site checks nothing itself.

A recording is a file that may be damaged, or anybody's, and compiled code writes wherever an index
leads. So what is restored has the shapes and indices of a site of its fleet, and each event is one
that could have happened there: a server that exists, with room for who joins it, and with whoever
leaves it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.recording import (
    ARRIVE,
    BALANCE,
    BEGIN,
    FINISH,
    LASTING,
    MARK,
    PULL,
    RETUNE,
    SHIFT,
    WITHDRAW,
)
from inferway.site.view import HOLD, Site

_FIXED: Final = ("first", "server_class")
"""Of the site, what the fleet says."""
_POLICYS: Final = ("order", "other")
"""Of a policy, what counts classes or servers from 0."""
_AT_SERVER: Final = frozenset({FINISH, BEGIN, WITHDRAW, MARK, PULL})


class UnsoundError(ValueError):
    """What a recording says could not have happened."""


def check_state(dispatcher: Dispatcher, state: dict[str, np.ndarray]) -> None:
    """Check what a file says of its begin, before a dispatcher is set to it.

    Raises
    ------
    UnsoundError
        Where it is no state of such a dispatcher.
    """
    for name, array in state.items():
        owner, _, field = name.partition(".")
        if name == "dispatcher.lasting":
            _check(array.shape == () and array.dtype.kind == "i", name)
            continue
        parts: Any = {"site": dispatcher.site, "policy": dispatcher.policy}.get(owner)
        own: Any = getattr(parts, field, None) if field in getattr(parts, "_fields", ()) else None
        _check(isinstance(own, np.ndarray), name)
        _check(array.shape == own.shape and np.can_cast(array.dtype, own.dtype, "same_kind"), name)
        if owner == "policy" and field in _POLICYS and array.dtype.kind == "i":
            _check(_within(array, 0, len(own)), name)
    missing = [f for f in Site._fields if f"site.{f}" not in state and f != "most_rows"]
    if missing:
        raise UnsoundError(f"there is no site.{missing[0]}")
    _check_site(
        dispatcher.site,
        {f: state.get(f"site.{f}", getattr(dispatcher.site, f)) for f in Site._fields},
    )


def _check_site(own: Site, said: dict[str, np.ndarray]) -> None:
    places = own.arrived_s.shape[1]
    counts = np.diff(own.first)
    for field in _FIXED:
        _check(np.array_equal(said[field], getattr(own, field)), field)
    _check(_within(said["queue"], 0, places + 1), "queue")
    _check(_within(said["head"], 0, places), "head")
    _check(bool((said["rows"] >= 0).all()), "rows")
    # A place without a request has no rows; whoever waits has.
    offset = (np.arange(places) - said["head"][:, None]) % places
    taken = offset < said["queue"][:, None]
    _check(bool((said["rows"][taken] >= 1).all()), "rows")
    _check(bool((said["most_rows"] >= 1).all()), "most_rows")
    _check(bool((said["measured"] >= 0).all()), "measured")
    _check(bool((said["held"] >= 0).all()), "held")
    for field in ("idle", "busy"):
        _check(bool(((said[field] >= 0) & (said[field] <= counts)).all()), field)
    servers = np.arange(len(own.queue))
    _check(np.array_equal(np.sort(said["idle_server"]), servers), "idle_server")
    _check(
        np.array_equal(said["idle_server"][said["idle_place"] % len(servers)], servers),
        "idle_place",
    )
    _check(_within(said["idle_place"], 0, len(servers)), "idle_place")
    # Each class has places of its own, and its idle servers stand in front.
    classes = own.server_class
    _check(np.array_equal(classes[said["idle_server"]], classes), "idle_server")
    idle = (said["queue"] == 0) & said["healthy"]
    _check(np.array_equal(np.bincount(classes[idle], minlength=len(counts)), said["idle"]), "idle")
    front = said["idle_place"] < own.first[classes] + said["idle"][classes]
    _check(np.array_equal(front, idle), "idle_place")
    busy = np.bincount(classes[said["queue"] > 0], minlength=len(counts))
    _check(np.array_equal(busy, said["busy"]), "busy")
    for field in ("rate", "row_s", "slow_s"):
        _check(bool((np.isfinite(said[field]) & (said[field] > 0)).all()), field)


def check_event(site: Site, row: tuple[Any, ...]) -> None:
    """Check that an event could happen at the site as it is now.

    Raises
    ------
    UnsoundError
        Where it could not.
    """
    kind, _, _, rows, server, floor, time_s, _, value, _ = row
    if not math.isfinite(time_s):
        raise UnsoundError(f"an event is at {time_s} s")
    servers, places = site.arrived_s.shape
    if kind == ARRIVE:
        sound = HOLD <= server < servers and rows >= 1
        sound = sound and (server < 0 or site.queue[server] < places)
    elif kind in _AT_SERVER:
        sound = 0 <= server < servers
        if sound and kind == FINISH:
            sound = site.queue[server] > 0
        elif sound and kind == WITHDRAW:
            sound = 0 <= rows < site.queue[server]
        elif kind == BEGIN:
            sound = sound and rows >= 0
    elif kind == SHIFT:
        sound = 0 <= server <= rows <= servers and math.isfinite(value) and math.isfinite(floor)
    elif kind == RETUNE:
        sound = 0 < value < math.inf
    else:
        sound = kind <= max(LASTING, BALANCE)
    if not sound:
        raise UnsoundError(f"an event of kind {kind} at server {server} could not have happened")


def _within(array: np.ndarray, low: int, high: int) -> bool:
    return bool(((array >= low) & (array < high)).all())


def _check(sound: bool, name: str) -> None:
    if not sound:
        raise UnsoundError(f"{name} is none of such a site")
