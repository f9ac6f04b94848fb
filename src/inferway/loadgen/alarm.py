"""A wake-up at a given instant, finer than the millisecond that event loop timers resolve."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Final

_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = 0o4000 | 0o2000000
_ABSOLUTE: Final = 1


class Alarm:
    """Calls back once per `set`, at or shortly after the given reading of `time.monotonic`.

    This one is the event loop's own timer, for systems without timerfd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop, self._due = loop, due
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when_s: float) -> None:
        """Wake at `when_s`; a second call before that moves the wake-up."""
        self.close()
        self._handle = self._loop.call_at(when_s, self._due)

    def close(self) -> None:
        """Free what the alarm holds; no call-back comes after it."""
        if self._handle is not None:
            self._handle.cancel()


class KernelAlarm(Alarm):
    """Linux timerfd: about 30 µs late at the median here, where loop timers are up to 1 ms off.

    Python has `os.timerfd_create` only from 3.13 on, hence ctypes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        super().__init__(loop, due)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "the kernel gave no timer")
        # A struct itimerspec: the interval and the time, each in seconds and nanoseconds.
        self._spec = (ctypes.c_long * 4)()
        self._when_s = 0.0
        self._armed = False
        loop.add_reader(self._fd, self._fired)

    def set(self, when_s: float) -> None:
        """Wake at `when_s`."""
        self._when_s, self._armed = when_s, True
        # Zero would disarm the timer; one nanosecond fires at once, like any time in the past.
        self._spec[2], self._spec[3] = divmod(max(int(when_s * 1e9), 1), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._spec, None)

    def close(self) -> None:
        """Close the timer."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        if time.monotonic() < self._when_s:  # set again between the wake-up and this call
            return
        self._armed = False
        self._due()
        if not self._armed:  # else setting it has made it unreadable, one system call less
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)


def alarm(loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> Alarm:
    """Make the finest alarm of this system; `due` is called in the loop, and may set it again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return KernelAlarm(loop, due)
    return Alarm(loop, due)
