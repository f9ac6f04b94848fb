"""A wake-up at a given instant, finer than the millisecond that event loop timers resolve."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = 0o4000 | 0o2000000
_ABSOLUTE: Final = 1


class Alarm(Protocol):
    """Calls back once per `set`, at or shortly after the given reading of `time.monotonic`."""

    def set(self, when_s: float) -> None:
        """Wake at `when_s`; a second call before that moves the wake-up."""

    def close(self) -> None:
        """Free what the alarm holds; no call-back comes after it."""


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class _KernelTimer:
    """Linux timerfd: about 30 µs late at the median here, where loop timers are up to 1 ms off.

    Python has `os.timerfd_create` only from 3.13 on, hence ctypes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "the kernel gave no timer")
        self._spec = _Itimerspec()
        self._pointer = ctypes.byref(self._spec)
        self._due = due
        self._loop = loop
        self._when_s = 0.0
        self._armed = False
        loop.add_reader(self._fd, self._fired)

    def set(self, when_s: float) -> None:
        self._when_s, self._armed = when_s, True
        # Zero would disarm the timer; one nanosecond fires at once, like any time in the past.
        self._spec.value.s, self._spec.value.ns = divmod(max(int(when_s * 1e9), 1), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._pointer, None)

    def close(self) -> None:
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


class _LoopTimer:
    """The event loop's own timer, for systems without timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop = loop
        self._due = due
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when_s: float) -> None:
        self.close()
        self._handle = self._loop.call_at(when_s, self._due)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def alarm(loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> Alarm:
    """Return the finest alarm that this system has.

    Parameters
    ----------
    loop
        The loop in which `due` is called.
    due
        Called with no arguments; it may set the alarm again.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return _KernelTimer(loop, due)
    return _LoopTimer(loop, due)
