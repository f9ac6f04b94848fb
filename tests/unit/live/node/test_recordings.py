"""RecordingRotation of a node's recordings: how much of them is kept, and which of them go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import _PACKING, EVENT, Recording
from inferway.dispatch.replay import replay
from inferway.live.node.recordings import RecordingRotation
from inferway.site import Fleet

LIMIT_S = 20.0
ROWS = 1_000
"""Events of a file; a recording has two files at most."""


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


class Log:
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def error(self, sentence: str, **more: Any) -> None:
        self.said.append(f"{sentence}: {more}")


class Busy:
    """Of a site, and its pool, the dispatcher, which is recorded, and as much as is asked."""

    def __init__(self, task: str) -> None:
        self.task, self.pool = task, self
        fleet = Fleet(("a",), np.array([10.0]), np.array([0.9]), np.array([2]), task=task)
        self.dispatcher: Any = Dispatcher(fleet, "priced", target=0.8, rate_per_s=6.0)
        self.asked = 0

    def record(
        self, folder: Path, _log: Any, told: Callable[[], None] | None = None, **_others: Any
    ) -> None:
        self.dispatcher = Recording(self.dispatcher, folder, rows=ROWS, keep=2, told=told)
        self.recording = self.dispatcher
        _PACKING.submit(int).result(LIMIT_S)  # behind the state that the first file begins with

    def decide(self, count: int) -> None:
        for _ in range(count):
            self.asked += 1
            self.dispatcher.arrive(0.01 * self.asked, self.asked)
        self.dispatcher.flush()

    def stop(self) -> None:
        self.dispatcher.close()


class Recorded:
    """A node's sections, and the sites that they are of."""

    def __init__(self, folder: Path, **bounds: int) -> None:
        self.folder, self.log = folder, Log()
        self.sections: Any = RecordingRotation(folder, self.log, **bounds)

    def begin(self, task: str, count: int = 0) -> Busy:
        site: Any = Busy(task)
        self.sections.begin(site)
        site.decide(count)
        return site  # type: ignore[no-any-return]

    async def kept(self) -> list[str]:
        """Names of what there is, once what is too much has gone."""
        if self.sections._shrinking is not None:
            await asyncio.wait_for(self.sections._shrinking, LIMIT_S)
        assert self.log.said == []
        return sorted(one.name for one in self.folder.iterdir())

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def aged(folder: Path, age_s: float) -> None:
    """Have a section be older than its files are."""
    for file in folder.iterdir():
        at_ns = file.stat().st_mtime_ns - int(age_s * 1e9)
        os.utime(file, ns=(at_ns, at_ns))


def test_the_oldest_sections_go_whatever_task_they_are_of(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        one = Recorded(tmp_path / "run", keep_bytes=300_000)
        for age_s, task in enumerate(("b", "a", "a", "c")):  # about 34 kB each
            number = sum(name.startswith(task) for name in await one.kept()) + 1
            one.begin(task, 500).stop()
            await one.kept()
            name = task if number == 1 else f"{task}.{number}"
            aged(tmp_path / "run" / name, 100.0 - 10.0 * age_s)
        # What an earlier run has left counts.
        again = Recorded(tmp_path / "run", keep_bytes=115_000)
        assert await again.kept() == ["a", "a.2", "b", "c"]
        last = again.begin("c", 500)
        last.stop()
        assert await again.kept() == ["a.2", "c", "c.2"]
        assert again.size_bytes() < 115_000

    run(main())


def test_a_section_that_grows_has_the_others_go_but_not_itself(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        one = Recorded(tmp_path / "run", keep_bytes=ROWS * EVENT.itemsize)
        one.begin("a", 100).stop()
        busy = one.begin("b", 100)
        assert await one.kept() == ["a", "b"]
        busy.decide(3 * ROWS)
        # It is too much by itself, and nothing is left that could go for it.
        assert await one.kept() == ["b"]
        assert one.size_bytes() > ROWS * EVENT.itemsize
        assert busy.dispatcher.writing
        busy.stop()
        assert await one.kept() == []

    run(main())


@pytest.mark.parametrize("bounds", [{"keep_bytes": 1}, {"keep": 1}])
def test_what_a_retiring_site_writes_to_stays_until_it_has_gone(
    tmp_path: Path, run: Any, bounds: dict[str, int]
) -> None:
    async def main() -> None:
        one = Recorded(tmp_path / "run", **bounds)
        old, new, newest = (one.begin("a", 10) for _ in range(3))
        assert await one.kept() == ["a", "a.2", "a.3"]
        new.stop()
        assert await one.kept() == ["a", "a.3"]
        old.decide(10)
        old.pool.dispatcher.flush()
        found = replay(tmp_path / "run" / "a", requests=None)
        assert (found.requests, found.differences, found.losses) == (20, (), ())
        old.stop()
        assert await one.kept() == ["a.3"]
        newest.stop()

    run(main())


def test_numbers_go_on_where_all_sections_have_gone(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        one = Recorded(tmp_path / "run", keep_bytes=1)
        for _ in range(2):
            one.begin("a", 10).stop()
            assert await one.kept() == []
        last = one.begin("a", 10)
        assert await one.kept() == ["a.3"]
        last.stop()

    run(main())


def test_what_cannot_be_removed_is_said(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        one = Recorded(tmp_path / "run", keep_bytes=1)
        site = one.begin("a", 10)
        (tmp_path / "run" / "a" / "0").mkdir()
        site.stop()
        with pytest.raises(AssertionError):
            await one.kept()
        (said,) = one.log.said
        assert said.startswith("a recording stays: {'task': 'a', 'reason': ")
        # What was not removed can still be replayed.
        assert replay(tmp_path / "run" / "a", requests=None).requests == 10

    run(main())
