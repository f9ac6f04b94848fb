"""Batches at a server: how predictions change where it serves several requests at once, or waits.

A server that waits for a larger batch has requests and no start of a service. Those that are served
along with the first of a batch stand behind it, each with no service time of its own.
"""

from __future__ import annotations

import numpy as np

from inferway.site.compiled import jit
from inferway.site.selection import predicted_service
from inferway.site.view import Site


@jit
def ready(site: Site, server: int) -> None:
    """Before one joins the server, or its first leaves: where it waits, that could start now."""
    if site.queue[server] > 0 and np.isnan(site.started_s[server]):
        now_s, all_s = site.clock_s[0], site.free_s[server] - site.ends_s[server]
        site.started_s[server] = now_s
        site.ends_s[server] = now_s + site.expected_s[server, site.head[server]]
        site.free_s[server] = now_s + all_s


@jit
def begin(site: Site, server: int, taken: int) -> None:
    """The server starts its first `taken` requests as one batch, or waits for more with 0.

    Nothing was in service at the server but, as far as predictions go, its first request; or the
    same batch with another size, which is corrected.
    """
    if site.queue[server] == 0:
        return
    now_s, places = site.clock_s[0], site.arrived_s.shape[1]
    head = site.head[server]
    rows = site.rows[server, head]
    if site.expected_s[server, head] == 0.0:  # it was to be served along with another
        site.expected_s[server, head] = predicted_service(site, server, rows)
    ahead_s = site.free_s[server] - site.ends_s[server]
    for offset in range(1, site.queue[server]):
        place = (head + offset) % places
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
