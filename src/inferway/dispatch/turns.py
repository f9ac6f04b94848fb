"""Turns at devices, for a world that runs requests itself: who may start, and who is next.

The order is that of `inferway.site.sharing`, which the twin's engines go by as well. Only sites
with devices take these steps, and so they are compiled apart from those of every request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core.types import boolean, float64, int64

from inferway.site import sharing
from inferway.site.compiled import call_of, entry
from inferway.site.handle import Pinned
from inferway.site.sharing import (
    ask,
    forgo,
    give,
    hold,
    look_around,
    next_of,
    note_due,
    show_room,
    tell,
)
from inferway.site.transitions import begin_batch, ready

# A request without a deadline is due so much later than it came, s: behind all that have one.
NEVER_DUE_S = 1e9


def ask_turn(bound: Any, server: int, due_s: float, now_s: float) -> bool:
    """A server with requests, the first of them due then, wants to run; whether it may at once.

    Else it waits at its device from now on.
    """
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    note_due(site.devices.changes, site, server, due_s)
    if ask(site.devices, site, server, due_s):
        return True
    ready(site, server)
    begin_batch(site, server, 0)
    tell(site.devices, site)
    return False


def start_run(bound: Any, server: int, taken: int, now_s: float) -> None:
    """A server whose turn it is starts its first requests as one run."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    hold(site.devices, site, server)
    ready(site, server)
    begin_batch(site, server, taken)
    tell(site.devices, site)


def end_run(bound: Any, server: int, now_s: float) -> None:
    """The run of a server has ended, and leaves its slots to others."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    give(site.devices, site, server)
    tell(site.devices, site)


def leave_line(bound: Any, server: int, now_s: float) -> None:
    """A server that waits at its device has nothing left to run."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    forgo(site.devices, site, server)
    tell(site.devices, site)


def next_turn(bound: Any, server: int, now_s: float) -> int:
    """The server whose turn it is now at the device of this one; -1 where nobody may start.

    Where a server of another site comes first, -2 - its row among the claims.
    """
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    d = site.devices.device[site.server_class[server]]
    turn = -1
    if d >= 0:
        turn = int(next_of(site.devices, site, d))
        show_room(site.devices, site, d)
    tell(site.devices, site)
    return turn


def look(bound: Any, now_s: float) -> None:
    """Let the view say what is idle beside the runs of other sites, and tell them of one's own."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    tell(site.devices, site)


def begin_change(bound: Any, server: int, now_s: float) -> None:
    """The device of a server whose turn it is begins to change to its variant."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    sharing.begin_change(site.devices.changes, site.devices, site, server)
    tell(site.devices, site)


def end_change(bound: Any, server: int, works: bool, now_s: float) -> None:
    """It holds that variant now, or none where it could not be loaded."""
    site = bound.site
    site.clock_s[0] = now_s
    look_around(site.devices, site)
    sharing.end_change(site.devices.changes, site.devices, site, server, works)
    tell(site.devices, site)


# Types of what the steps take besides what is bound.
_TYPES: dict[Callable[..., Any], tuple[Any, ...]] = {
    ask_turn: (int64, float64, float64),
    start_run: (int64, int64, float64),
    end_run: (int64, float64),
    leave_line: (int64, float64),
    next_turn: (int64, float64),
    begin_change: (int64, float64),
    end_change: (int64, boolean, float64),
    look: (float64,),
}
_ENTRIES: dict[Any, Any] = {step: entry(step) for step in _TYPES}


def compiled_turn(step: Any, pinned: Pinned) -> Callable[..., Any]:
    """A step for what is laid out so, from the cache or made now; it takes the handle first."""
    return call_of(_ENTRIES[step], pinned.kind, *_TYPES[step])
