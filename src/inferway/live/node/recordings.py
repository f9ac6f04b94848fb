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
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from inferway.dispatch.recording import Losses, Recording
from inferway.dispatch.replay import header, recordings
from inferway.live.errors import ServeError
from inferway.live.site import TaskSite

KEPT: Final = 256
"""Sections of a task."""
KEPT_BYTES: Final = 2 * 1024**3
"""Of all tasks' sections: two and a half that are as long as a section may get."""


class _Section:
    """One recording's folder.

    Parameters
    ----------
    folder, task, number
        Where it is, whose, and which of the task's.
    recording
        Writes to it; None where nothing does any more.

    Attributes
    ----------
    size_bytes, written_ns
        Of its files, when they were last looked at, and when the youngest of them was written.
    """

    __slots__ = ("_seen", "folder", "number", "recording", "size_bytes", "task", "written_ns")

    def __init__(
        self, folder: Path, task: str, number: int, recording: Recording | None = None
    ) -> None:
        self.folder, self.task, self.number, self.recording = folder, task, number, recording
        self.size_bytes = self.written_ns = 0
        self._seen = False

    def settle(self) -> None:
        """Let go of a recording that has ended."""
        if self.recording is not None and not (
            self.recording.writing and self.recording.folder == self.folder
        ):
            self.recording = None

    def look(self) -> None:
        """Look at its files; once more and no more after the last has been written."""
        if self._seen:
            return
        self._seen = self.recording is None
        size_bytes = written_ns = 0
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(FileNotFoundError):  # its oldest files go as it grows
                    found = file.stat()
                    size_bytes += found.st_size
                    written_ns = max(written_ns, found.st_mtime_ns)
        self.size_bytes, self.written_ns = size_bytes, written_ns

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

    Parameters
    ----------
    folder
        Where; what an earlier run of the node left there stays, and is counted.
    log
        Told what cannot be recorded, and what cannot be removed.
    keep
        Sections of a task.
    keep_bytes
        Of all sections, as they are found when one begins, has another file or ends: they have
        more by what is written until the next time, or where those that are written to have more.

    Raises
    ------
    ServeError
        Where nothing can be written there.
    """

    def __init__(
        self, folder: Path, log: Any, *, keep: int = KEPT, keep_bytes: int = KEPT_BYTES
    ) -> None:
        self._folder, self._log = folder, log
        self._keep, self._keep_bytes = keep, keep_bytes
        self._sections: list[_Section] = []
        self._last: dict[str, int] = {}
        """By task, the number of its last section."""
        self._losses: dict[str, Losses] = {}
        """By task, what could not be recorded, by whatever site."""
        self._written: dict[Recording, str] = {}
        """Recordings that may begin further sections, and whose."""
        self._grown = False
        self._shrinking: asyncio.Task[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = recordings(folder)
        except OSError as error:
            reason = error.strerror or error
            raise ServeError(f"nothing can be recorded in {folder}: {reason}") from error
        except ValueError:
            found = []
        for one in found:
            try:
                task = header(one)["fleet"]["task"]
            except ValueError:
                continue
            if one.parent == folder:
                ending = one.name.removeprefix(f"{task}.")
                number = int(ending) if ending.isdecimal() else 1
                self._sections.append(_Section(one, task, number))
                self._last[task] = max(number, self._last.get(task, 0))

    def begin(self, site: TaskSite) -> None:
        """Record a site from now on; what cannot be is said, and the site serves all the same."""
        task = site.task
        site.pool.record(
            self._following(task),
            self._log,
            told=self._look,
            following=lambda: self._following(task),
            losses=self._losses.setdefault(task, Losses()),
            patient=True,
        )
        assert site.pool.recording is not None
        self._written[site.pool.recording] = task
        self._look()

    def _following(self, task: str) -> Path:
        number = self._last.get(task, 0)
        while True:
            number += 1
            folder = self._folder / (task if number == 1 else f"{task}.{number}")
            if not folder.exists():
                return folder

    def _look(self) -> None:
        """Take in new sections, and have what is too much removed soon."""
        here = {one.folder for one in self._sections}
        for recording, task in list(self._written.items()):
            if recording.folder not in here and recording.writing:
                ending = recording.folder.name.removeprefix(f"{task}.")
                number = int(ending) if ending.isdecimal() else 1
                self._sections.append(_Section(recording.folder, task, number, recording))
                self._last[task] = max(number, self._last.get(task, 0))
            if not recording.writing and recording.gap is None:
                del self._written[recording]
        self._grown = True
        if self._shrinking is None or self._shrinking.done():
            self._shrinking = asyncio.create_task(self._shrink())

    async def _shrink(self) -> None:
        while self._grown:
            self._grown = False
            for one in self._sections:
                one.settle()
            # The files of many sections, or of a busy one, take longer than the loop should wait.
            await asyncio.to_thread(_look_at, tuple(self._sections))
            for one in self._surplus():
                self._sections.remove(one)
                try:
                    await asyncio.to_thread(one.remove)
                except OSError as error:
                    self._log.error("a recording stays", task=one.task, reason=str(error))

    def _surplus(self) -> list[_Section]:
        """Replicas that have to go, oldest first."""
        total_bytes = sum(one.size_bytes for one in self._sections)
        of = Counter(one.task for one in self._sections)
        found = []
        ended = (one for one in self._sections if one.recording is None)
        for one in sorted(ended, key=lambda one: (one.written_ns, one.number)):
            if total_bytes > self._keep_bytes or of[one.task] > self._keep:
                found.append(one)
                total_bytes -= one.size_bytes
                of[one.task] -= 1
        return found


def _look_at(sections: Iterable[_Section]) -> None:
    for one in sections:
        one.look()
