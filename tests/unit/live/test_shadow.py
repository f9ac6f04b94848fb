"""Shadows run where a server is idle, give way to requests, and count nowhere but in the book."""

from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment.tasks import Feedback
from inferway.dispatch import Dispatcher
from inferway.live import InferRequest, Outcome, Pool, PoolOptions, TaskSite
from inferway.live.answers import AnswerBook, ServedModel, noting
from inferway.live.feedback import FeedbackItem
from inferway.live.shadow import Shadowing, shadowing
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.site.view import ALL_CLASSES

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "INT64", (-1,)),))
LIMIT_S = 10.0
SERVED = {"tiny": ServedModel("t", 0.7), "big": ServedModel("b", 0.9)}


class Classes(NullRuntime):
    """Answers the sum of each row, or another class; waits to be opened, after its warm-up."""

    def __init__(self, more: int = 0) -> None:
        super().__init__(SIGNATURE)
        self.more, self.opened = more, threading.Event()
        self.opened.set()
        self.runs: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs.put(len(inputs["x"]))
        assert self.opened.wait(LIMIT_S)
        return {"y": inputs["x"].sum(axis=1).astype(np.int64) + self.more}


class Failing(Classes):
    """Fails at what is not zeros."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["x"].any():
            raise ValueError("no")
        return super().run(inputs)


class Serving:
    """A site of a small variant and a large one, with shadows."""

    def __init__(
        self,
        big: Classes,
        share: float = 1.0,
        path: Path | None = None,
        devices: DeviceSlots | None = None,
    ) -> None:
        fleet = Fleet(
            ("tiny", "big"),
            np.array([1e3, 1e2]),
            np.array([0.7, 0.9]),
            np.array([1, 1]),
            devices=devices,
        )
        self.tiny, self.big = Classes(), big
        dispatcher = Dispatcher(fleet, "fastest-only", target=0.8, rate_per_s=50)
        options = PoolOptions(target=0.8)
        pool = Pool("task", SIGNATURE, dispatcher, (self.tiny, big), options)
        self.site = TaskSite.of(pool)
        self.book = AnswerBook(path, "task", None)
        self.book.follow(Feedback(), SERVED)
        noted = noting(self.book, SERVED, lambda request, column: None)
        self.site.note(shadowing(pool, self.book, SERVED, share, noted))
        self.asked = 0

    async def start(self) -> None:
        await self.site.start()
        while not self.big.runs.empty():
            self.big.runs.get()

    def ask(self, value: float = 1.0, rows: int = 1, classes: int = ALL_CLASSES) -> Any:
        ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
        inputs = {"x": np.full((rows, 2), value, np.float32)}
        one = InferRequest(inputs, rows, ended.set_result, classes=classes)
        one.id = str(self.asked).encode()
        self.asked += 1
        self.site.submit(one)
        return ended

    async def until(self, condition: Any) -> None:
        ends_s = asyncio.get_running_loop().time() + LIMIT_S
        while not condition():
            assert asyncio.get_running_loop().time() < ends_s, "it did not come true"
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        await self.site.stop(LIMIT_S)
        await self.book.close()


def test_answers_are_compared_and_nothing_else_counts(tmp_path: Path) -> None:
    async def main() -> None:
        serving = Serving(Classes(), path=tmp_path / "answers")
        await serving.start()
        stats = serving.site.stats
        for number in range(6):
            serving.big.more = number % 2  # every other answer is another one
            answer = await asyncio.wait_for(serving.ask(number), LIMIT_S)
            assert (answer.variant, answer.outputs["y"].tolist()) == ("tiny", [2 * number])
            await serving.until(lambda: len(serving.book._line) == 2 * serving.asked)
        serving.book.join([FeedbackItem(id="none", correct=True)])
        told = serving.book.measured["tiny"]
        assert (told.compared, told.agreed, told.agreement) == (6, 3, 0.5)
        assert serving.book.measured["big"].compared == 0
        assert stats.rows == [6, 0]
        assert [stats.total(outcome) for outcome in Outcome] == [6, 0, 0, 0, 0, 0, 0]
        assert serving.site.balance.item() == pytest.approx(6 * (0.7 - 0.8))
        assert serving.site.pool.dispatcher.site.queue.tolist() == [0, 0]
        # The same after a restart; an answer of several rows agrees in a part of them.
        await serving.stop()
        serving = Serving(Classes(), path=tmp_path / "answers")
        await serving.start()
        assert serving.book.join([FeedbackItem(id="0", correct=True)]).matched == 1
        told = serving.book.measured["tiny"]
        assert (told.compared, told.agreement, told.labels) == (6, 0.5, 1)
        await serving.stop()

    asyncio.run(main())


def test_a_shadow_never_runs_where_somebody_waits(tmp_path: Path) -> None:
    async def main() -> None:
        serving = Serving(Classes())
        await serving.start()
        serving.big.opened.clear()
        first = serving.ask(classes=0b10)
        await asyncio.to_thread(serving.big.runs.get, True, LIMIT_S)
        await asyncio.wait_for(serving.ask(), LIMIT_S)
        assert serving.book.shadows.busy == 1
        serving.big.opened.set()
        await asyncio.wait_for(first, LIMIT_S)
        await asyncio.wait_for(serving.ask(), LIMIT_S)  # now the large one is idle
        await serving.until(lambda: len(serving.book._line) == 4)
        assert serving.book.shadows.busy == 1
        await serving.stop()

    asyncio.run(main())


def test_a_shadow_takes_no_core_that_a_request_waits_for() -> None:
    async def main() -> None:
        core = DeviceSlots(
            names=("cpu",),
            slots=np.array([1]),
            exclusive=np.zeros(1, bool),
            overhead_s=np.zeros(1),
            device=np.zeros(2, np.int64),
            taken=np.array([1, 1]),
        )
        serving = Serving(Classes(), devices=core)
        await serving.start()
        # The core is free for a moment after each of them, and the next one is waiting.
        await asyncio.wait_for(asyncio.gather(*(serving.ask() for _ in range(4))), LIMIT_S)
        assert serving.book.shadows.busy == 3
        await serving.until(lambda: len(serving.book._line) == 5)
        await serving.stop()

    asyncio.run(main())


def test_a_shadow_gives_way_to_a_request() -> None:
    async def main() -> None:
        serving = Serving(Classes())
        await serving.start()
        serving.big.opened.clear()
        await asyncio.wait_for(serving.ask(), LIMIT_S)
        await asyncio.to_thread(serving.big.runs.get, True, LIMIT_S)
        # To policies the server is idle all the while, and one shadow at a time runs there.
        assert serving.site.pool.dispatcher.site.idle.tolist() == [1, 1]
        await asyncio.wait_for(serving.ask(), LIMIT_S)
        assert serving.book.shadows.busy == 1
        shadow = serving.site.pool.servers._shadows[1]
        real = serving.ask(classes=0b10)
        assert shadow.abandoned
        serving.big.opened.set()
        answer = await asyncio.wait_for(real, LIMIT_S)
        assert (answer.variant, answer.outcome) == ("big", Outcome.ANSWERED)
        assert serving.book.shadows.gave_way == 1
        serving.book.join([])
        assert serving.book.measured["tiny"].compared == 0
        # At the end nobody waits for a shadow either.
        serving.big.opened.clear()
        await asyncio.wait_for(serving.ask(), LIMIT_S)
        closing = asyncio.create_task(serving.site.stop(LIMIT_S))
        await serving.until(lambda: not serving.site.pool.servers._shadows)
        serving.big.opened.set()
        await closing
        assert serving.book.shadows.gave_way == 2

    asyncio.run(main())


def test_a_shadow_that_fails_is_no_answer() -> None:
    async def main() -> None:
        serving = Serving(Failing())
        await serving.start()
        for _ in range(4):
            await asyncio.wait_for(serving.ask(), LIMIT_S)
            await serving.until(lambda: not serving.site.pool.servers._shadows)
        assert serving.book.shadows.failed == 4
        assert serving.site.pool.health.healthy == [True, True]
        assert [serving.site.stats.total(outcome) for outcome in Outcome] == [4, 0, 0, 0, 0, 0, 0]
        await serving.stop()

    asyncio.run(main())


def test_the_share_is_the_propensity() -> None:
    async def main() -> None:
        serving = Serving(Classes(), share=0.1)
        pool = serving.site.pool
        look = Shadowing(pool, serving.book, SERVED, 0.1)
        gaps = [look._gap() for _ in range(4_000)]
        assert min(gaps) == 1
        assert np.mean(gaps) == pytest.approx(10.0, abs=0.7)
        assert np.mean([gap == 1 for gap in gaps]) == pytest.approx(0.1, abs=0.03)
        noted = lambda request, column: None  # noqa: E731
        assert shadowing(pool, serving.book, SERVED, 0.0, noted) is noted
        alone = {"tiny": SERVED["tiny"], "big": ServedModel("b", None)}
        assert shadowing(pool, serving.book, alone, 0.1, noted) is noted

    asyncio.run(main())
