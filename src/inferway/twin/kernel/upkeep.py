"""How much of the site's view a run keeps up, by what its policy reads.

Most policies read queue lengths and who is idle; keeping up every time and prediction as well
would halve the speed of a run for nobody. Two sets of transitions with one face.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from inferway.site import batch
from inferway.site.compiled import jit
from inferway.site.handle import made_of
from inferway.site.parts import INLINE
from inferway.site.selection import predicted_service, predicted_wait
from inferway.site.transitions import admit, join, leave, release
from inferway.site.view import Site
from inferway.twin.kernel.state import UNLIMITED, Times


def enter(upkeep: Any, site: Site, server: int, places: int) -> int:
    """A request joins the server; its class."""
    return (_enter_times if isinstance(upkeep, Times) else join)(site, server, places)


def exit_(upkeep: Any, site: Site, server: int, k: int) -> None:
    """The first request of the server, of class k, leaves it."""
    (_exit_times if isinstance(upkeep, Times) else leave)(site, server, k)


def begin(upkeep: Any, site: Site, server: int, taken: int) -> None:
    """The server starts a batch of so many requests, or stays free with 0."""
    if isinstance(upkeep, Times):
        _begin_times(site, server, taken)


def foreseen(upkeep: Any, site: Site, server: int) -> tuple[float, float]:
    """Predicted wait and service time of a request that joins the server now, s."""
    return _foreseen_times(site, server) if isinstance(upkeep, Times) else (np.nan, np.nan)


def depth(upkeep: Any, site: Site, places: int) -> int:
    """Requests at a server above which the view needs more places."""
    return _depth_times(site, places) if isinstance(upkeep, Times) else UNLIMITED


def deeper(site: Site) -> Site:
    """The same view with twice the places at each server."""
    places = site.arrived_s.shape[1]
    turn = (site.head[:, None] + np.arange(places)) % places
    grown = {}
    for name in ("arrived_s", "rows", "expected_s"):
        ring = getattr(site, name)
        straight = np.take_along_axis(ring, turn, axis=1)
        grown[name] = np.concatenate([straight, np.zeros_like(straight)], axis=1)
    site.head[:] = 0
    site.open[:] = site.healthy
    return site._replace(**grown)


@jit
def _foreseen_times(site: Site, server: int) -> tuple[float, float]:
    return predicted_wait(site, server), predicted_service(site, server, 1)


@jit
def _depth_times(site: Site, places: int) -> int:
    return UNLIMITED if places < UNLIMITED else site.arrived_s.shape[1] // 2


@jit
def _enter_times(site: Site, server: int, places: int) -> int:
    batch.ready(site, server)
    admit(site, server, 1)
    return site.server_class[server]


@jit
def _exit_times(site: Site, server: int, k: int) -> None:
    batch.ready(site, server)
    release(site, server)


@jit
def _begin_times(site: Site, server: int, taken: int) -> None:
    batch.ready(site, server)
    batch.begin(site, server, taken)


@overload(enter, strict=False, jit_options=INLINE)
def _enter(upkeep: Any, site: Any, server: Any, places: Any) -> Any:
    chosen = _enter_times if _times(upkeep) else join
    return lambda upkeep, site, server, places: chosen(site, server, places)


@overload(exit_, strict=False, jit_options=INLINE)
def _exit(upkeep: Any, site: Any, server: Any, k: Any) -> Any:
    chosen = _exit_times if _times(upkeep) else leave

    def act(upkeep: Any, site: Any, server: Any, k: Any) -> None:
        chosen(site, server, k)

    return act


@overload(begin, strict=False, jit_options=INLINE)
def _begin(upkeep: Any, site: Any, server: Any, taken: Any) -> Any:
    if _times(upkeep):
        return lambda upkeep, site, server, taken: _begin_times(site, server, taken)
    return lambda upkeep, site, server, taken: None


@overload(foreseen, strict=False, jit_options=INLINE)
def _foreseen(upkeep: Any, site: Any, server: Any) -> Any:
    if _times(upkeep):
        return lambda upkeep, site, server: _foreseen_times(site, server)
    return lambda upkeep, site, server: (np.nan, np.nan)


@overload(depth, strict=False, jit_options=INLINE)
def _depth(upkeep: Any, site: Any, places: Any) -> Any:
    if _times(upkeep):
        return lambda upkeep, site, places: _depth_times(site, places)
    return lambda upkeep, site, places: UNLIMITED


def _times(kind: Any) -> bool:
    return made_of(kind) is Times
