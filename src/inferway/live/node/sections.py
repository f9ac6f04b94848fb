"""A node's recordings: a section for each site that a task has had.

A recording has one fleet and one policy, and a node's fleets change as variants and offers do. So
whatever site takes a task over begins another section, a folder beside the one before: ``TASK``,
``TASK.2``, ``TASK.3``. What the site before it still answers goes into its own section.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from pathlib import Path
from typing import Any, Final

from inferway.dispatch.replay import header, recordings
from inferway.live.assembly import ServeError
from inferway.live.site import Site

__all__ = ["Sections"]

KEPT: Final = 256
"""Sections of a task; the oldest go, as files within a recording do."""


class Sections:
    """Records each site from the moment it takes its task over.

    Parameters
    ----------
    folder
        Where; what an earlier run of the node left there stays, and is counted.
    log
        Told what cannot be recorded.
    keep
        Sections of a task.

    Raises
    ------
    ServeError
        Where nothing can be written there.
    """

    def __init__(self, folder: Path, log: Any, *, keep: int = KEPT) -> None:
        self._folder, self._log, self._keep = folder, log, keep
        self._of: dict[str, deque[Path]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = recordings(folder)
        except OSError as error:
            raise ServeError(f"nothing can be recorded: {error}") from error
        except ValueError:
            found = []
        for one in found:
            try:
                task = header(one)["fleet"]["task"]
            except ValueError:
                continue
            if one.parent == folder:
                self._of.setdefault(task, deque()).append(one)

    def begin(self, site: Site) -> None:
        """Record a site from now on; what cannot be is said, and the site serves all the same."""
        sections = self._of.setdefault(site.task, deque())
        section = self._following(site.task, sections)
        try:
            site.record(section)
        except (ValueError, OSError) as error:
            self._log.error("no longer recording", task=site.task, reason=str(error))
            return
        sections.append(section)
        while len(sections) > self._keep:
            # Files of a busy section take the disk longer than the loop should wait.
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, shutil.rmtree, sections.popleft(), True)

    def _following(self, task: str, sections: deque[Path]) -> Path:
        number = 0
        if sections:
            ending = sections[-1].name.removeprefix(f"{task}.")
            number = int(ending) if ending.isdecimal() else 1
        while True:
            number += 1
            section = self._folder / (task if number == 1 else f"{task}.{number}")
            if not section.exists():
                return section
