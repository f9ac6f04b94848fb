"""When a node's slots end: at multiples of their length on the wall clock, so that nodes agree."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from inferway.live.errors import ServeError

WAIT_SHARE = 0.1
# A clock that was set is noticed after so long.
_LOOK_S = 1.0


class Slot(NamedTuple):
    """A slot that has ended.

    Attributes
    ----------
    number
        Its end on the wall clock, in slots since 1970; nodes whose clocks agree to within the wait
        for letters agree on it.
    lasted_s
        How long it took by a clock that nobody sets. Requests were counted for so long.
    jumped_s
        How far the wall clock was set meanwhile, forward above 0.
    """

    number: int
    lasted_s: float
    jumped_s: float


class SlotClock:
    """The slots of one node.

    A slot ends when the wall clock reaches a multiple of its length. When the clock is set, the
    node follows it, for it is what nodes agree by: set forward over the ends of several slots,
    these end together, as the last of them; set back, the slot lasts until the clock comes to a
    multiple again, and a number may come again. An end at which the slot has lasted less than half
    its length is let pass. So, however the clock is set once, a slot lasts between a half and two
    lengths by a clock that nobody sets.

    Parameters
    ----------
    slot_s
        Length.
    wait_share
        How much of a slot the node waits for letters about the last one.
    wall, steady
        Seconds since 1970, and seconds of a clock that nobody sets.
    sleep
        Waits so many seconds of `steady`.

    Raises
    ------
    ServeError
        For a length that is not above 0, or a share outside 0..0.5.
    """

    def __init__(
        self,
        slot_s: float,
        *,
        wait_share: float = WAIT_SHARE,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not (slot_s > 0 and math.isfinite(slot_s)):
            raise ServeError(f"a slot lasts {slot_s:g} s; it must be above 0")
        # Before a slot can end, the letters about the last one are through.
        if not 0 <= wait_share <= 0.5:
            raise ServeError(
                f"the share of a slot to wait for letters is {wait_share:g}, not 0..0.5"
            )
        self.slot_s, self.wait_s = slot_s, wait_share * slot_s
        self._wall, self._steady, self._sleep = wall, steady, sleep
        self._began_s, self._offset_s = steady(), wall() - steady()
        self._next = math.floor(wall() / slot_s) + 1

    @property
    def last(self) -> int:
        """Number of the last slot that has ended, by the wall clock."""
        return self._next - 1

    @property
    def due_s(self) -> float:
        """Seconds until the slot ends, if nobody sets the clock; 0 where it is over."""
        wall = self._wall()
        following = math.floor(wall / self.slot_s) + 1
        # Set back, the clock comes to an earlier multiple first.
        self._next = min(self._next, following)
        if wall >= self._next * self.slot_s and self._steady() - self._began_s < self.slot_s / 2:
            self._next = following
        return max(self._next * self.slot_s - wall, 0.0)

    def poll(self) -> Slot | None:
        """Return the slot if it has ended by now, and begin the next."""
        if self.due_s > 0:
            return None
        wall, steady = self._wall(), self._steady()
        # A product and a quotient may be rounded to different sides of a multiple.
        number = max(math.floor(wall / self.slot_s), self._next)
        offset = wall - steady
        ended = Slot(number, steady - self._began_s, offset - self._offset_s)
        self._began_s, self._offset_s, self._next = steady, offset, number + 1
        return ended

    async def ended(self) -> Slot:
        """Wait for the end of the slot."""
        while (slot := self.poll()) is None:
            await self._sleep(min(self.due_s, _LOOK_S))
        return slot

    async def letters(self) -> None:
        """Wait, from the end of a slot, until letters about it are late."""
        while (left := self._began_s + self.wait_s - self._steady()) > 0:
            await self._sleep(left)
