"""A node's recordings: a section for each site that a task has had.

A recording has one fleet and one policy, and a node's fleets change as variants and offers do. So
whatever site takes a task over begins another section, a folder beside the one before: ``TASK``,
``TASK.2``, ``TASK.3``. What the site before it still answers goes into its own section.

Where the disk refuses a section, the next one begins once there is room again.

A section bounds itself as any recording does. All of them together are bounded here: those that
were written to longest ago go first, and none goes while its site writes to it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferway.dispatch.recording import Losses, Recording
from inferway.dispatch.replay import header, recordings
from inferway.live.errors import ServeError
from inferway.live.site import TaskSite

KEPT: Final = 256  # sections of a task
KEPT_BYTES: Final = 2 * 1024**3  # of all sections: two and a half that are as long as one may get


@dataclass(slots=True, eq=False)
class _Section:
    """One recording's folder, and its number among the task's.

    `recording` writes to it; None where nothing does any more. The size of its files and when the
    youngest of them was written are of when they were last looked at.
    """

    folder: Path
    task: str
    number: int
    recording: Recording | None = None
    size_bytes: int = 0
    written_ns: int = 0
    seen: bool = False

    def look(self) -> None:
        """Look at its files; once more and no more after the last has been written."""
        self.seen = self.recording is None
        self.size_bytes = self.written_ns = 0
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(FileNotFoundError):  # its oldest files go as it grows
                    found = file.stat()
                    self.size_bytes += found.st_size
                    self.written_ns = max(self.written_ns, found.st_mtime_ns)

    def remove(self) -> None:
        """Remove it from the disk."""
        with suppress(FileNotFoundError):
            # What is left where the process dies meanwhile is a shorter recording, which the next
            # run counts: oldest files first, and last what says whose it is.
            for file in sorted(self.folder.iterdir()):
                file.unlink()
            self.folder.rmdir()


class RecordingRotation:
    """Records each site from the moment it takes its task over.

    What an earlier run of the node left in the folder stays, and is counted. At most `keep`
    sections of a task stay, and `keep_bytes` of all as they are found when one begins, has another
    file or ends: they have more by what is written until the next time, or where those that are
    written to have more. ServeError where nothing can be written there.
    """

    def __init__(
        self, folder: Path, log: Any, *, keep: int = KEPT, keep_bytes: int = KEPT_BYTES
    ) -> None:
        self._folder, self._log, self._keep, self._keep_bytes = folder, log, keep, keep_bytes
        self._sections: list[_Section] = []
        # By task: the number of its last section; and what could not be recorded.
        self._last: Counter[str] = Counter()
        self._losses: dict[str, Losses] = defaultdict(Losses)
        # Recordings that may begin further sections, and whose.
        self._written: dict[Recording, str] = {}
        self._grown = False
        self._shrinking: asyncio.Task[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            earlier = recordings(folder)
        except OSError as error:
            reason = error.strerror or error
            raise ServeError(f"nothing can be recorded in {folder}: {reason}") from error
        except ValueError:
            earlier = []
        for one in earlier:
            with suppress(ValueError):
                task = header(one)["fleet"]["task"]
                if one.parent == folder:
                    self._add(one, task)

    def begin(self, site: TaskSite) -> None:
        """Record a site from now on; what cannot be is said, and the site serves all the same."""
        task = site.task
        site.pool.record(
            self._following(task),
            self._log,
            told=self._look,
            following=lambda: self._following(task),
            losses=self._losses[task],
            patient=True,
        )
        assert site.pool.recording is not None
        self._written[site.pool.recording] = task
        self._look()

    def _add(self, folder: Path, task: str, recording: Recording | None = None) -> None:
        ending = folder.name.removeprefix(f"{task}.")
        number = int(ending) if ending.isdecimal() else 1
        self._sections.append(_Section(folder, task, number, recording))
        self._last[task] = max(number, self._last[task])

    def _following(self, task: str) -> Path:
        numbers = itertools.count(self._last[task] + 1)
        names = (task if number == 1 else f"{task}.{number}" for number in numbers)
        return next(path for name in names if not (path := self._folder / name).exists())

    def _look(self) -> None:
        """Take in new sections, and have what is too much removed soon."""
        known = {one.folder for one in self._sections}
        for recording, task in list(self._written.items()):
            if recording.folder not in known and recording.writing:
                self._add(recording.folder, task, recording)
            if not recording.writing and recording.gap is None:
                del self._written[recording]
        self._grown = True
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        while self._grown:
            self._grown = False
            for one in self._sections:
                kept = one.recording
                if kept is not None and not (kept.writing and kept.folder == one.folder):
                    one.recording = None
            # The files of a busy section take longer than the loop should wait.
            for one in [one for one in self._sections if not one.seen]:
                await asyncio.to_thread(one.look)
            for one in self._surplus():
                self._sections.remove(one)
                try:
                    await asyncio.to_thread(one.remove)
                except OSError as error:
                    self._log.error("a recording stays", task=one.task, reason=str(error))

    def _surplus(self) -> list[_Section]:
        """Sections that have to go, oldest first."""
        total_bytes = sum(one.size_bytes for one in self._sections)
        of = Counter(one.task for one in self._sections)
        surplus = []
        ended = (one for one in self._sections if one.recording is None)
        for one in sorted(ended, key=lambda one: (one.written_ns, one.number)):
            if total_bytes > self._keep_bytes or of[one.task] > self._keep:
                surplus.append(one)
                total_bytes -= one.size_bytes
                of[one.task] -= 1
        return surplus
