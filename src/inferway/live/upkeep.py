"""What a site does beside its requests, again and again while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferway.dispatch.recording import Recording
    from inferway.live.site import Site

REMEMBER_S = 60.0
"""How often the measured service times are kept."""


class Upkeep:
    """Follows the arrival rate, keeps what was measured, brings recordings to the disk.

    Parameters
    ----------
    site
        Whose.
    window_s
        Over which the arrival rate is estimated; None estimates none.
    remember
        Keeps what was measured; None keeps nothing.
    """

    def __init__(
        self, site: Site, window_s: float | None, remember: Callable[[], None] | None
    ) -> None:
        self._site, self._window_s, self._remember = site, window_s, remember
        self.recording: Recording | None = None
        """Writes down what the dispatcher is given and decides; None where nothing does."""
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Begin what the file asks for."""
        if self._window_s is not None:
            self._tasks.append(asyncio.create_task(self._follow_rate(self._window_s)))
        if self._remember is not None:
            self._tasks.append(asyncio.create_task(self._keep()))

    def record(self, dispatcher: Any, folder: Path, log: Any = None, **options: Any) -> Any:
        """Make what takes the dispatcher's place and writes down its calls."""
        from inferway.dispatch.recording import Recording
        from inferway.live.recorder import Recorder

        self.recording = Recording(dispatcher, folder, **options)
        recorder = Recorder(self.recording, self._site.task, log)
        self._tasks.append(asyncio.create_task(recorder.keep()))
        return self.recording

    def stop(self) -> None:
        """Do nothing again from now on."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Write and keep what is left."""
        if self.recording is not None:
            self.recording.close()
        await self.remember()

    async def remember(self) -> None:
        """Keep what was measured, where that is wanted."""
        if self._remember is not None:
            await asyncio.to_thread(self._remember)

    async def _follow_rate(self, window_s: float) -> None:
        site = self._site
        seen, seen_s = 0, site.now()
        while True:
            await asyncio.sleep(window_s)
            arrived, now_s = site.arrived, site.now()
            rate_per_s = (arrived - seen) / (now_s - seen_s)
            seen, seen_s = arrived, now_s
            if rate_per_s <= 0.0:
                continue
            # Planned in another thread: linear programs take milliseconds, which the loop has not
            # to give. Adopted here, between two decisions, where a replay can put it too.
            with suppress(ValueError):  # the policy goes on with the plan that it has
                plan = await asyncio.to_thread(site.dispatcher.plan, rate_per_s)
                site.dispatcher.adopt(plan)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(REMEMBER_S)
            await self.remember()
