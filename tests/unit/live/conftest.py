"""Sites on a clock that stands still; it is the live tests', as is what nodes are tested with."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "live"))
sys.path.insert(0, str(Path(__file__).parents[2] / "live" / "node"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "theory"))

from patient import Patient
from small_disk import disk as disk


@pytest.fixture
def patient() -> Iterator[Patient]:
    loop = Patient()
    yield loop
    loop.close()


@pytest.fixture
def run(patient: Patient) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a test's coroutine on the loop whose clock stands."""

    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: patient) as runner:
            runner.run(main)

    return to_its_end
