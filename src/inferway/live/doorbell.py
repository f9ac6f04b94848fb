"""How an instance's thread wakes the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable


class Doorbell:
    """Calls a function on the loop soon after any thread has rung; rings in between are one.

    The loop's own `call_soon_threadsafe` writes to its wake-up file while the thread holds the
    interpreter's lock, so that the loop wakes only to wait for that lock: 20 us of CPU for a round
    trip between loop and thread, against 10 us here, where the write lets go of the lock
    (`benchmarks/request_cost.py` has the whole request).

    Parameters
    ----------
    loop
        Whose thread calls the function.
    answer
        The function.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        self._loop = loop
        self._answer = answer
        self._rung = self._closed = False
        self._ends: tuple[socket.socket, ...] = ()
        if hasattr(os, "eventfd"):
            self._out = self._in = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._ends = socket.socketpair()
            for end in self._ends:
                end.setblocking(False)
            self._out, self._in = (end.fileno() for end in self._ends)
        loop.add_reader(self._in, self._open)

    def ring(self) -> None:
        """Wake the loop, unless it has been woken and has not looked yet.

        What the function is to find must be in place before.
        """
        if not self._rung:
            self._rung = True
            os.write(self._out, b"\1\0\0\0\0\0\0\0")

    def close(self) -> None:
        """Let go of the file; no thread may ring from now on, for its number may be used again.

        A second call does nothing.
        """
        self.mute()
        if self._closed:
            return
        self._closed = True
        if self._ends:
            for end in self._ends:
                end.close()
        else:
            os.close(self._in)

    def mute(self) -> None:
        """Answer no more, though threads may go on ringing."""
        if not self._closed:
            self._loop.remove_reader(self._in)

    def _open(self) -> None:
        os.read(self._in, 8)
        # Cleared before the function looks: whoever comes later rings again.
        self._rung = False
        self._answer()
