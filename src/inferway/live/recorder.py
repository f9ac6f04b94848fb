"""One site's recording kept going: brought to the disk, and begun anew where that refused it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from inferway.dispatch.recording import has_room

if TYPE_CHECKING:
    from inferway.dispatch.recording import Recording, RecordingGap

FLUSH_S: Final = 1.0
"""A process that dies loses what has been recorded for so long at most."""
STEADY_S: Final = 60.0
"""A section that is refused sooner came too early: the next one waits for longer."""
LONGEST_PAUSE_S: Final = 30.0


class Recorder:
    """Looks after a recording, on the event loop.

    Parameters
    ----------
    recording
        It goes on in a new section once the disk has room again, where it is told a folder.
    task
        For the log.
    log
        Told when the disk refuses, and when there is room again; None tells nobody.
    """

    def __init__(self, recording: Recording, task: str, log: Any) -> None:
        self.recording = recording
        self._task, self._log = task, log
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._told: RecordingGap | None = None
        """The gap that has been said, and whose end has not."""
        self._begun_s, self._pause_s, self._again_s = self._clock(), FLUSH_S, 0.0
        self._resumed = False

    async def keep(self) -> None:
        """Do so until canceled."""
        recording = self.recording
        while True:
            await asyncio.sleep(FLUSH_S)
            recording.flush()
            if recording.gap is None:
                self._say_end()
                continue
            self._say_gap(recording.gap)
            folder = recording.following
            if folder is None or self._clock() < self._again_s:
                continue
            if await asyncio.to_thread(has_room, folder.parent) and recording.go_on():
                self._begun_s, self._resumed = self._clock(), True

    def _say_gap(self, gap: RecordingGap) -> None:
        if gap is self._told and not self._resumed:
            return
        # Where the disk is full again and again, it is asked less and less often.
        now_s = self._clock()
        self._resumed, flapping = False, now_s - self._begun_s < STEADY_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if flapping else FLUSH_S
        self._again_s = now_s + (self._pause_s if flapping else 0.0)
        if gap is not self._told and self._log is not None:
            folder = str(self.recording.folder)
            self._log.error(
                "no longer recording", task=self._task, folder=folder, reason=gap.reason
            )
        self._told = gap

    def _say_end(self) -> None:
        gap, self._told = self._told, None
        self._resumed = False
        if gap is None or gap.until is None or self._log is None:
            return
        self._log.warning(
            "recording again",
            task=self._task,
            folder=str(self.recording.folder),
            missing_s=round(gap.until - gap.since, 1),
            missing_decisions=gap.decisions,
            missing_events=gap.events,
        )
