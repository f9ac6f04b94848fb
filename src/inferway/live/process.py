"""The process that serves: its file descriptors, its collector's pauses, its freed memory."""

from __future__ import annotations

import asyncio
import errno
import gc
import mmap
import os
import resource
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from inferway.runtime.growth import trim

# Looks without a file descriptor, one a second, after which it is said again.
AGAIN: Final = 60
# Upper ends of the histogram's buckets, in seconds; one more bucket has no end.
PAUSE_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
# How often it is seen what the process takes.
LOOK_S: Final = 2.0
# So much more than after the last time is worth the work.
SPARE_BYTES: Final = 8 * 1024**2
# After so many times in a row that freed nothing, what there is counts as needed.
_FRUITLESS: Final = 8
_PAGES: Final = Path("/proc/self/statm")


def descriptor_watch(log: Any) -> Callable[[], None]:
    """Make what says in a log when no file descriptor is left, and when there are some again.

    It is to be called every second. The event loop accepts what it cannot keep, closes it at once,
    and tells nobody.
    """
    without = 0

    def look() -> None:
        nonlocal without
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return
            if without % AGAIN == 0:
                whose = "process" if error.errno == errno.EMFILE else "system"
                log.error(
                    f"no file descriptor of the {whose} is left: new connections are dropped; "
                    "raise the limit, or lower --max-connections",
                    limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                )
            without += 1
        else:
            if without:
                log.info("there are file descriptors again", seconds=without)
            without = 0

    return look


class Pauses:
    """Counts the pauses of this process, by `PAUSE_BOUNDS_S`, all together, and the longest.

    Nothing else runs in it while the collector does.
    """

    def __init__(self) -> None:
        self.buckets = [0] * (len(PAUSE_BOUNDS_S) + 1)
        self.sum_s = self.longest_s = self._begun_s = 0.0

    def begin(self) -> None:
        """Count from now on."""
        gc.callbacks.append(self._hear)

    def end(self) -> None:
        """Count no more."""
        with suppress(ValueError):
            gc.callbacks.remove(self._hear)

    def _hear(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_s = time.perf_counter()
            return
        pause_s = time.perf_counter() - self._begun_s
        self.buckets[bisect_left(PAUSE_BOUNDS_S, pause_s)] += 1
        self.sum_s += pause_s
        self.longest_s = max(self.longest_s, pause_s)


def settle() -> None:
    """Keep the collector from what stands now: it need not look at it again during requests."""
    gc.collect()
    gc.freeze()


async def tidy() -> None:
    """Have freed pages go back to the system soon, again and again, until canceled.

    They stay with the process for the next that needs some; after a large request that may be long
    in coming. Nothing is done where the system does not say what the process takes.
    """
    floor_bytes, fruitless = resident_bytes(), 0
    while floor_bytes:
        await asyncio.sleep(LOOK_S)
        before = resident_bytes()
        floor_bytes = min(floor_bytes, before)
        if before < floor_bytes + SPARE_BYTES:
            continue
        await asyncio.to_thread(trim)
        after = resident_bytes()
        fruitless = 0 if before - after > SPARE_BYTES // 4 else fruitless + 1
        if fruitless >= _FRUITLESS:
            floor_bytes, fruitless = after, 0


def resident_bytes() -> int:
    """Tell what the process takes of the machine's memory now; 0 where the system does not say."""
    try:
        pages = int(_PAGES.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * mmap.PAGESIZE
