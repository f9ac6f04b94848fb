"""Memory that large requests have left behind goes back to the system soon after them."""

from __future__ import annotations

import asyncio
import mmap
from pathlib import Path
from typing import Final

from inferway.runtime.allocator import trim

LOOK_S: Final = 2.0
"""How often it is seen what the process takes."""
SPARE_BYTES: Final = 8 * 1024**2
"""So much more than after the last time is worth the work."""
_FRUITLESS: Final = 8
"""After so many times in a row that freed nothing, what there is counts as needed."""
_PAGES: Final = Path("/proc/self/statm")


class Tidying:
    """Looks at the resident memory of the process again and again, and has freed pages go.

    Freed pages stay with the process for the next that needs some. After a large request the next
    may be long in coming.
    """

    def __init__(self) -> None:
        self._floor_bytes = 0
        self._fruitless = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin; what the process takes now, it needs."""
        if resident_bytes():
            self._floor_bytes = resident_bytes()
            self._task = asyncio.create_task(self._look())

    def end(self) -> None:
        """Do nothing again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            before = resident_bytes()
            self._floor_bytes = min(self._floor_bytes, before)
            if before < self._floor_bytes + SPARE_BYTES:
                continue
            await asyncio.to_thread(trim)
            after = resident_bytes()
            self._fruitless = 0 if before - after > SPARE_BYTES // 4 else self._fruitless + 1
            if self._fruitless >= _FRUITLESS:
                self._floor_bytes, self._fruitless = after, 0


def resident_bytes() -> int:
    """What the process takes of the machine's memory now; 0 where the system does not say."""
    try:
        pages = int(_PAGES.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * mmap.PAGESIZE
