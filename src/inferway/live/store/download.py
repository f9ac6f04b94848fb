"""Models over HTTPS: redirections, interruptions and servers that are too slow."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final

from inferway.live.store.allowed import Allowed, Source, shown
from inferway.live.store.error import UnavailableError
from inferway.live.store.partial import Partial
from inferway.live.store.transfer import CutError, Get
from inferway.live.threads import run_detached, run_in_thread

HOPS: Final = 5
"""Redirections that are followed."""

TRIES: Final = 5
"""Requests for the rest, one right after the other, while each brings something."""

LEAST_BYTES: Final = 64 * 1024
"""What has to come in the time that the store is patient; slower servers are given up."""


async def download(
    source: Source, partial: Partial, allowed: Allowed, context: ssl.SSLContext, patience_s: float
) -> None:
    """Take a model, or the rest of it, from a server.

    Every name is resolved once per request, and only what it resolved to is connected to.

    Parameters
    ----------
    source
        Where it is said to be.
    partial
        Takes the bytes; what it has is not asked for again.
    allowed
        Where it may come from.
    context
        Of TLS.
    patience_s
        Seconds in which `LEAST_BYTES` have to come, the first time with all that precedes them.

    Raises
    ------
    ForbiddenSourceError, UnavailableError, DamagedError, NoRoomError
        If it does not come; what has come stays in `partial`, if that still is.
    """
    tries = 0
    while True:
        try:
            await _follow(source, partial, allowed, context, patience_s)
            return
        except CutError as cut:
            tries += 1
            if not cut.again or tries == TRIES:
                raise


async def _follow(
    source: Source, partial: Partial, allowed: Allowed, context: ssl.SSLContext, patience_s: float
) -> None:
    here = source
    for _ in range(HOPS + 1):
        addresses = allowed.addresses(here, await _resolved(here, patience_s))
        get = Get(here, source.uri, addresses, partial, context, patience_s)
        location = await _watched(get, patience_s)
        if location is None:
            return
        here = allowed.redirected(here, location)
    raise UnavailableError(f"{shown(source.uri)} redirects more than {HOPS} times")


async def _resolved(source: Source, patience_s: float) -> list[Any]:
    try:
        # The loop's own look-up would be waited for when the process ends.
        async with asyncio.timeout(patience_s):
            return await run_detached(
                socket.getaddrinfo, source.host, source.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        reason = f"no answer for {patience_s:g} s"
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise UnavailableError(f"the host {source.host} cannot be found: {reason}")


async def _watched(get: Get, patience_s: float) -> str | None:
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    seen = 0

    def look() -> None:
        nonlocal seen, timer
        if get.brought - seen < LEAST_BYTES:
            get.stop(f"in {patience_s:g} s, {get.brought - seen:,} bytes have come, too few")
        seen = get.brought
        timer = loop.call_later(patience_s, look)

    timer = loop.call_later(patience_s, look)
    try:
        return await run_in_thread(get.run, get.stop)
    finally:
        timer.cancel()
