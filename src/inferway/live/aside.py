"""Long work beside the event loop, for which nobody waits when the process ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NAME: Final = "aside"


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of its own; as `asyncio.to_thread`, but for the end.

    The loop's own threads are waited for when it closes, a minute for a policy that compiles. This
    one is left to itself where whoever waits is canceled.

    Raises
    ------
    BaseException
        What the function raises.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if ended.cancelled():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as raised:  # the one who waits is to have it
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name=_NAME, daemon=True).start()
    return await ended


def working() -> bool:
    """Whether such work goes on: the interpreter must not be taken down under it."""
    return any(thread.name == _NAME for thread in threading.enumerate())
