"""What tests of readers of foreign bytes share: inputs by their numbers, and what may come of them.

Inputs are valid ones with something changed, or bytes of no sense. Each has a number, and the seed
and the number make it again: with `INFERWAY_FUZZ_SEED=1`, `INFERWAY_FUZZ_FIRST=4711` and
`INFERWAY_FUZZ_INPUTS=1` a slow target takes that one alone. Without the last it takes 100,000.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FEW, MANY = 2_000, 100_000
SEED = int(os.environ.get("INFERWAY_FUZZ_SEED", "1"))
FIRST = int(os.environ.get("INFERWAY_FUZZ_FIRST", "0"))
ASKED = os.environ.get("INFERWAY_FUZZ_INPUTS")
BATCH = 50
LIMIT_S = 60
"""For one input, or a batch: far more than any takes, a first compilation included."""
GROWTH_KIB = 160 * 1024
"""Of resident memory, once a tenth of the inputs has been read."""

few_or_many = pytest.mark.parametrize(
    "count", [FEW, pytest.param(int(ASKED or MANY), marks=pytest.mark.slow)], ids=["few", "many"]
)


@contextmanager
def limited(seconds: int = LIMIT_S) -> Iterator[None]:
    """Raise TimeoutError in what hangs."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_a_line(kind: type[Exception]) -> Iterator[None]:
    """Let a refusal pass that is one line for people."""
    said = "nothing"
    try:
        yield
    except kind as error:
        said = str(error)
    assert said
    assert "\n" not in said, said
    assert len(said) < 2_000, said


class Course:
    """Gives one input after another, says which one broke what, and looks at the memory."""

    def __init__(self, name: str, make: Callable[[random.Random], Any], count: int) -> None:
        self.name, self.make, self.count = name, make, count
        self.kib: int | None = None

    def batches(self, size: int) -> Iterator[list[Any]]:
        last = FIRST + self.count
        for start in range(FIRST, last, size):
            self.numbers = range(start, min(start + size, last))
            self.given = [
                self.make(random.Random(f"{SEED} {self.name} {number}")) for number in self.numbers
            ]
            yield self.given
            if self.kib is None and start - FIRST >= self.count // 10:
                self.kib = resident_kib()
        grown = resident_kib() - (self.kib or resident_kib())
        assert grown < GROWTH_KIB, f"{self.name}: memory grew by {grown} KiB"

    def run(self, feed: Callable[[Any], object]) -> None:
        """Feed each input; whatever it raises is said with the input."""
        for batch in self.batches(BATCH):
            for place, one in enumerate(batch):
                try:
                    with limited():
                        feed(one)
                except Exception as error:
                    raise AssertionError(self.told(place)) from error

    def told(self, place: int) -> str:
        return (
            f"{self.name}: INFERWAY_FUZZ_SEED={SEED} INFERWAY_FUZZ_FIRST={self.numbers[place]}: "
            f"{self.given[place]!r:.4000}"
        )


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


@contextmanager
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Give a folder where a file a millisecond wears nothing out."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = memory / f"inferway-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for one in folder.iterdir():
            one.unlink()
        folder.rmdir()
