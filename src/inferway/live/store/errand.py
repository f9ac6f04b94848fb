"""Work in a thread that is never left behind: whoever waits for it waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from inferway.live.aside import aside

__all__ = ["errand"]

T = TypeVar("T")


async def errand(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Do work aside; if canceled, tell it to stop and wait until it has.

    As the work writes to files, the next one to write there must not begin before it has ended.

    Parameters
    ----------
    work
        Done in a thread of its own.
    stop
        Makes it end soon.

    Raises
    ------
    BaseException
        What the work raises.
    """
    going = asyncio.ensure_future(aside(work))
    try:
        return await asyncio.shield(going)
    except asyncio.CancelledError:
        stop()
        while not going.done():
            with suppress(asyncio.CancelledError):  # told again, as when all tasks are ended
                await asyncio.wait({going})
        going.exception()
        raise
