"""A model that doubles what it is given, once it is let, and requests to it."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import numpy as np

from inferway.live import InferRequest, Outcome, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S = 10.0


class Gate(NullRuntime):
    """Doubles what it is given, once it is opened; fails at what is negative."""

    def __init__(self, signature: Signature = SIGNATURE) -> None:
        super().__init__(signature)
        self.opened = threading.Event()
        self.opened.set()
        self.runs: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.broken = False

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        x = inputs["x"]
        self.runs.put(len(x))
        assert self.opened.wait(LIMIT_S)
        if self.broken or (x < 0).any():
            raise ValueError("negative")
        return {"y": 2 * x}

    def seen(self) -> list[int]:
        """Rows of each run since this was asked last."""
        found = []
        while not self.runs.empty():
            found.append(self.runs.get())
        return found


class One:
    """A request and what tells of its end."""

    def __init__(self, value: float, rows: int = 1, width: int = 2) -> None:
        self.ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
        inputs = {"x": np.full((rows, width), value, np.float32)}
        self.request = InferRequest(inputs, rows, self.ended.set_result)

    async def answer(self) -> list[Any]:
        await asyncio.wait_for(self.ended, LIMIT_S)
        assert self.request.outcome is Outcome.ANSWERED, self.request.reason
        assert self.request.outputs is not None
        found: list[Any] = self.request.outputs["y"].tolist()
        return found

    @property
    def outcome(self) -> Outcome | None:
        return self.request.outcome


def give(site: TaskSite, *ones: One) -> None:
    for one in ones:
        site.submit(one.request)
