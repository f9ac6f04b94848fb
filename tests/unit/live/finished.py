"""What an instance that stands alone tells, and how it is started and closed."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

from inferway.live.local import LocalInstance
from inferway.live.request import Job


class Finished(queue.Queue[Any]):
    """Keeps what has ended."""

    def posted(self, job: Job) -> None:
        self.put(job)

    def done(self, job: Job) -> None:
        self.put(job)

    def soon(self, _: object) -> None:
        pytest.fail("no run here is brief")

    slower = None  # nothing here is elsewhere


def start(instance: LocalInstance, finished: Finished) -> None:
    """Warm up and begin."""
    asyncio.run(instance.start(finished))


def close(instance: LocalInstance) -> None:
    """End it after what it has."""
    assert asyncio.run(instance.close(10))
