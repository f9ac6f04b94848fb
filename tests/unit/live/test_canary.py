"""Requests beside a canary: who is asked, what a recording has of it, and what is said."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment.tasks import Canary
from inferway.dispatch import Dispatcher
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet
from inferway.twin.trace import RecordedTrace, read

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S = 20.0
SHARE, ASKED = 0.5, 60


class Gated(NullRuntime):
    """Answers once it may."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.gate = threading.Event()
        self.gate.set()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        assert self.gate.wait(LIMIT_S)
        return {"y": inputs["x"]}


class Beside:
    """A task with a canary that gets half of the requests, if it can take them."""

    def __init__(self) -> None:
        fleet = Fleet(
            ("tiny", "big"),
            np.array([1e3, 0.01]),
            np.array([0.7, 0.9]),
            np.array([1, 1]),
            buffer=1,
            task="a",
        )
        dispatcher = Dispatcher(fleet, "fastest-only", target=0.6, rate_per_s=10.0)
        self.tiny, self.big = Gated(), Gated()
        terms = Canary(variant="big", share=SHARE, at_least=0.95)
        self.options = PoolOptions(target=0.6, canary=terms)
        self.pool = Pool("a", SIGNATURE, dispatcher, [self.tiny, self.big], self.options)
        self.site = TaskSite.of(self.pool)
        self.asked = 0

    def ask(self, **more: Any) -> asyncio.Future[InferRequest]:
        ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
        inputs = {"x": np.zeros((1, 2), np.float32)}
        request = InferRequest(inputs, 1, ended.set_result, received_s=self.site.now(), **more)
        request.id = str(self.asked).encode()
        self.asked += 1
        self.site.submit(request)
        return ended


@pytest.mark.parametrize("why", ["no place", "late", "inaccurate"])
def test_a_canary_that_cannot_take_its_share_is_not_asked(why: str, tmp_path: Path) -> None:
    """A recording has each request once, and none of them was pinned or refused."""

    async def main() -> RecordedTrace:
        beside = Beside()
        await beside.site.start()
        beside.pool.record(tmp_path / "run")
        waiting, more = [], dict[str, Any]()
        if why == "no place":
            beside.big.gate.clear()
            while not beside.pool.queues[1]:
                waiting.append(beside.ask())
                if not beside.pool.queues[1]:
                    await asyncio.wait_for(waiting[-1], LIMIT_S)
        elif why == "inaccurate":
            beside.pool.correct({"big": 0.65})
            more["floor"] = 0.68
        before = beside.asked
        for _ in range(ASKED):
            if why == "late":  # by its profile it takes 100 s
                more["deadline_s"] = beside.site.now() + LIMIT_S
            answer = await asyncio.wait_for(beside.ask(**more), LIMIT_S)
            assert (answer.outcome, answer.variant) == (Outcome.ANSWERED, "tiny")
        beside.big.gate.set()
        await asyncio.gather(*waiting)
        await beside.site.stop(LIMIT_S)
        canary = beside.pool.canary
        assert canary is not None
        assert canary.requests == (1 if why == "no place" else 0)
        trace = read(tmp_path / "run")
        assert len(trace.arrived_s) == before + ASKED == beside.asked
        return trace

    trace = asyncio.run(main())
    assert (trace.pins, int((trace.taken_by < 0).sum())) == (0, 0)
