"""A clock that stands still: a second passes when a test says so."""

from __future__ import annotations

import asyncio


class Patient(asyncio.SelectorEventLoop):
    """A loop whose timers, and what is given its `time` as the clock, wait for `advance`."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> None:
        """Let time pass; from any thread."""

        def step() -> None:
            self.now_s += by_s

        self.call_soon_threadsafe(step)

    async def let(self, by_s: float) -> None:
        """Let time pass, and what is due then happen; on the loop itself."""
        self.now_s += by_s
        for _ in range(4):
            await asyncio.sleep(0)
