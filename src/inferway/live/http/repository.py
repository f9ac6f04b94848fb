"""The repository index: which tasks there are, and which variants of them answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from inferway.live.http.compression import decompress
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.site import Site
from inferway.protocol.messages import IndexEntry, decode_index, encode
from inferway.protocol.refusal import RefusalError
from inferway.unreadable import UNREADABLE, fault

_LONGEST: Final = 64 * 1024
"""Bytes that a packed question may unpack to."""


class Index:
    """Answers POST /v2/repository/index: an entry for each variant of each task.

    Parameters
    ----------
    sites
        Lists the tasks that are served, as of when it is asked.
    ready
        Whether the server as a whole is.
    limits
        Caps on requests.
    """

    def __init__(
        self, sites: Callable[[], Iterable[Site]], ready: Callable[[], bool], limits: Limits
    ) -> None:
        self._sites, self._ready, self._limits = sites, ready, limits

    def __call__(self, exchange: Exchange) -> None:
        """List all, or what is ready."""
        body = exchange.body
        try:
            if exchange.encoding is not None:
                limit = min(_LONGEST, self._limits.body_bytes)
                body = bytes(decompress(body, exchange.encoding, limit))
            # Clients of Triton send no body at all where they want everything.
            only_ready = bool(body) and decode_index(body).ready
        except RefusalError as refusal:
            exchange.refuse(refusal.status, refusal.reason)
        except UNREADABLE as error:
            exchange.refuse(400, f"the request is not valid: {fault(error)}")
        else:
            listed = self._entries()
            if only_ready:
                listed = [entry for entry in listed if entry.state == "READY"]
            exchange.respond(200, encode(listed))

    def _entries(self) -> list[IndexEntry]:
        all_ready = self._ready()
        entries = []
        for site in self._sites():
            for variant in site.versions:
                reason = ""
                if not all_ready:
                    reason = "the server is not ready"
                elif not site.serves(variant):
                    reason = "no instance of it is healthy"
                state: Any = "UNAVAILABLE" if reason else "READY"
                entries.append(IndexEntry(site.task, variant, state, reason))
        return entries
