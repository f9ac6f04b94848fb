"""What reads and writes files holds where several threads do it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inferway import files


@pytest.fixture
def stopped_often() -> Iterator[None]:
    """Let other threads go on whenever memory is collected, which is often."""

    def pause(phase: str, _: Any) -> None:
        if phase == "stop":
            time.sleep(1e-4)

    kept = gc.get_threshold()
    gc.set_threshold(500)
    gc.callbacks.append(pause)
    yield
    gc.callbacks.remove(pause)
    gc.set_threshold(*kept)


def test_threads_parse_at_the_same_time(stopped_often: None) -> None:
    source = Path(files.__file__).read_bytes()
    with ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(files.syntax_tree, [source] * 40))
    assert {len(tree.body) for tree in trees} == {len(files.syntax_tree(source).body)}
