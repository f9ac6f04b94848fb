"""One ring of nodes for all tests here; each test gets it whole, and leaves its figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clients import Clients
from ring import TASKS, Ring

from inferway.lab import obstacle

Send = Callable[..., Clients]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = obstacle()
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.slow)
        if reason is not None and "ring" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with Ring(tmp_path_factory.mktemp("ring")) as ring:
        yield ring


@pytest.fixture
def ring(running: Ring) -> Ring:
    """A ring in which everything is as its file says, whatever the test before did to it."""
    running.whole()
    return running


@pytest.fixture
def send(ring: Ring, tmp_path: Path) -> Iterator[Send]:
    """Give a function that starts clients; they end with the test."""
    started: list[Clients] = []

    def start(seconds: float, **options: Any) -> Clients:
        started.append(Clients(ring.up, tmp_path, seconds, tasks=TASKS, **options))
        return started[-1]

    yield start
    for clients in started:
        clients.end()
