"""Requests that an instance has a process asked for from the event loop, and those it has not."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from inferway.live.instance import Events
from inferway.live.local import LIGHT_BYTES, LocalInstance
from inferway.live.request import InferRequest, Job, Outcome
from inferway.protocol import Signature, Tensor
from inferway.runtime import Fault, WorkerError

PATIENCE_S = 30.0
ROW = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))


class Process:
    """A runtime whose process answers when the test says so; a thread it answers at once."""

    def __init__(self, signature: Signature = ROW) -> None:
        self.signature = signature
        self.free, self.asked = True, list[list[Any]]()
        self.run_here = list[float]()
        self.opened = threading.Event()
        self.opened.set()
        self._left, self._ended = list[Any](), list[Any]()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        assert self.opened.wait(PATIENCE_S)
        self.run_here.append(float(np.ravel(inputs["x"])[0]))
        if self.run_here[-1] < 0:
            raise WorkerError(Fault.BROKEN, "as asked")
        return {"y": inputs["x"]}

    def ask(self, batches: list[dict[str, Any]], ended: Callable[..., None]) -> bool:
        if not self.free:
            return False
        self.free = False
        self.asked.append([float(one["x"].ravel()[0]) for one in batches])
        self._left, self._ended = list(batches), [ended]
        return True

    def answer(self, count: int = 1, took_s: float = 1e-5) -> None:
        for _ in range(count):
            self._tell({"y": self._left[0]["x"]}, None, took_s)

    def fail(self, error: WorkerError | None) -> None:
        self._tell(None, error, 0.0)

    def _tell(self, outputs: Any, error: Any, took_s: float) -> None:
        self._left.pop(0)
        self.free = not self._left
        self._ended[0](outputs, error, took_s)

    def close(self) -> None:
        pass


class Bench:
    """An instance on a loop, and what it has told."""

    def __init__(self, process: Process, **options: Any) -> None:
        self.process = process
        self.instance = LocalInstance("task/own#0", process, **options)
        self.ended = list[Job]()
        self._posted: queue.SimpleQueue[Job] = queue.SimpleQueue()

    async def start(self) -> None:
        soon = asyncio.get_running_loop().call_soon
        events = Events(self.ended.append, self._posted.put, lambda run: (soon(run), None)[1])
        await self.instance.start(events)
        self.process.run_here.clear()

    def put(self, *values: float, rows: int = 1) -> list[InferRequest]:
        requests = []
        for value in values:
            array = np.full((rows, *self.process.signature.inputs[0].shape[1:]), value, np.float32)
            requests.append(
                InferRequest({"x": np.abs(array) * np.sign(value)}, rows, lambda _: None)
            )
            self.instance.put(requests[-1])
        return requests

    async def pass_(self) -> None:
        """Let the loop take its next turn."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def have(self, count: int) -> list[tuple[Outcome | None, float]]:
        """Wait until so many have ended; how, and which."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.ended) < count:
                while not self._posted.empty():
                    self.ended.append(self._posted.get())
                await asyncio.sleep(1e-3)
        return [(job.outcome, float(np.ravel(job.inputs["x"])[0])) for job in self.ended]


def on_a_bench(
    steps: Callable[[Bench], Awaitable[None]], process: Process | None = None, **options: Any
) -> None:
    async def main() -> None:
        bench = Bench(process or Process(), **options)
        await bench.start()
        await steps(bench)
        bench.process.opened.set()
        assert await bench.instance.close(PATIENCE_S)

    asyncio.run(main())


ANSWERED, FAILED = Outcome.ANSWERED, Outcome.FAILED


def test_what_comes_in_one_turn_is_asked_at_once_and_told_in_order() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1, 2, 3)
        assert bench.process.asked == []
        await bench.pass_()
        assert bench.process.asked == [[1, 2, 3]]
        bench.put(4, 5)
        bench.process.answer(2)
        assert await bench.have(2) == [(ANSWERED, 1), (ANSWERED, 2)]
        assert bench.process.asked == [[1, 2, 3]]
        bench.process.answer()
        assert bench.process.asked == [[1, 2, 3], [4, 5]]
        bench.process.answer(2)
        assert await bench.have(5) == [(ANSWERED, value) for value in range(1, 6)]
        assert bench.process.run_here == []
        assert bench.ended[0].service_s == 1e-5

    on_a_bench(steps)


def test_slow_runs_are_asked_one_by_one() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(*range(1, 101))
        await bench.pass_()
        assert len(bench.process.asked[0]) == 8  # so many at most, however brief
        while bench.process.asked[-1] != [100]:
            bench.process.answer(len(bench.process.asked[-1]), took_s=2e-3)
        assert [len(one) for one in bench.process.asked[-20:]] == [1] * 20
        bench.process.answer()
        await bench.have(100)

    on_a_bench(steps)


def test_one_that_fails_and_those_behind_it_are_told_by_the_thread() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1, 2, 3)
        await bench.pass_()
        bench.process.opened.clear()
        bench.process.fail(WorkerError(Fault.BROKEN, "as asked"))
        bench.process.answer(2)
        bench.put(4)
        bench.process.opened.set()
        assert await bench.have(4) == [(FAILED, 1), (ANSWERED, 2), (ANSWERED, 3), (ANSWERED, 4)]
        assert bench.ended[0].reason == "task/own#0 failed: as asked"
        # The thread has nothing: the loop asks again.
        bench.put(5)
        await bench.pass_()
        assert bench.process.asked[1:] == [[5]]
        bench.process.answer()
        await bench.have(5)

    on_a_bench(steps)


def test_what_was_not_begun_is_run_in_its_order() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1, 2, 3)
        await bench.pass_()
        bench.put(4)
        bench.process.fail(WorkerError(Fault.BROKEN, "it died"))
        bench.process.fail(None)
        bench.process.fail(None)
        assert await bench.have(4) == [(FAILED, 1), (ANSWERED, 2), (ANSWERED, 3), (ANSWERED, 4)]
        assert bench.process.run_here == [2, 3, 4]

    on_a_bench(steps)


def test_three_failures_and_one_on_zeros_have_it_rest() -> None:
    process = Process(Signature((Tensor("x", "FP32", (-1, 2)),), ROW.outputs))

    async def steps(bench: Bench) -> None:
        bench.put(1, 2, 3, 4)
        await bench.pass_()
        bench.process.run = lambda _: (_ for _ in ()).throw(WorkerError(Fault.BROKEN, "zeros"))  # type: ignore[method-assign]
        for _ in range(4):
            bench.process.fail(WorkerError(Fault.BROKEN, "as asked"))
        await bench.have(4)
        assert bench.instance.resting
        (kept,) = bench.put(5)
        await bench.pass_()
        assert bench.process.asked == [[1, 2, 3, 4]]
        assert bench.instance.cancel(kept)

    on_a_bench(steps, process)


@pytest.mark.parametrize("reason", ["no worker is free", "many bytes", "many rows", "late"])
def test_the_thread_has_what_the_loop_cannot_ask(reason: str) -> None:
    process = Process()

    async def steps(bench: Bench) -> None:
        rows, outcome = 1, ANSWERED
        if reason == "no worker is free":
            process.free = False
        elif reason == "many bytes":
            rows = LIGHT_BYTES // 16 + 1
        elif reason == "many rows":
            rows = 3
        (first,) = bench.put(1, rows=rows)
        if reason == "late":
            first.deadline_s, outcome = 1e-9, Outcome.EXPIRED
        bench.put(2)
        await bench.pass_()
        assert process.asked == []
        assert await bench.have(2) == [(outcome, 1), (ANSWERED, 2)]

    most_rows = 2 if reason == "many rows" else LIGHT_BYTES
    on_a_bench(steps, process, most_rows=most_rows)


def test_a_heavy_request_waits_for_those_before_it() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1)
        bench.put(2, rows=LIGHT_BYTES // 16 + 1)
        bench.put(3)
        await bench.pass_()
        assert bench.process.asked == [[1]]
        assert bench.process.run_here == []
        bench.process.answer()
        assert await bench.have(3) == [(ANSWERED, 1), (ANSWERED, 2), (ANSWERED, 3)]
        assert bench.process.run_here == [2, 3]

    on_a_bench(steps, most_rows=LIGHT_BYTES)


def test_large_answers_of_unknown_size_are_the_threads_from_then_on() -> None:
    open_axes = Signature((Tensor("x", "FP32", (-1, 1)),), (Tensor("y", "FP32", (-1, -1)),))
    process = Process(open_axes)

    async def steps(bench: Bench) -> None:
        bench.put(1)
        await bench.pass_()
        process._left[0] = {"x": np.ones((1, LIGHT_BYTES), np.float32)}
        process.answer()
        bench.put(2)
        await bench.pass_()
        assert process.asked == [[1]]
        await bench.have(2)

    on_a_bench(steps, process)


def test_only_what_waits_can_be_canceled() -> None:
    async def steps(bench: Bench) -> None:
        asked, also = bench.put(1, 2)
        await bench.pass_()
        waits, last = bench.put(3, 4)
        assert not bench.instance.cancel(asked)
        assert not bench.instance.cancel(also)
        assert bench.instance.cancel(waits)
        bench.process.answer(2)
        assert bench.process.asked[-1] == [4]
        bench.process.answer()
        assert bench.ended == [asked, also, last]

    on_a_bench(steps)


def test_it_is_closed_after_what_it_has() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1)
        await bench.pass_()
        bench.put(2, 3)
        closing = asyncio.create_task(bench.instance.close(PATIENCE_S))
        await bench.pass_()
        assert not closing.done()
        bench.process.answer()
        assert await closing
        assert await bench.have(3) == [(ANSWERED, 1), (ANSWERED, 2), (ANSWERED, 3)]

    on_a_bench(steps)


def test_a_close_waits_no_longer_than_it_may() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1)
        await bench.pass_()
        assert not await bench.instance.close(0.01)
        assert bench.instance._thread.is_alive()
        bench.process.answer()
        bench.instance._thread.join(PATIENCE_S)
        assert not bench.instance._thread.is_alive()

    on_a_bench(steps)


def test_nothing_asked_yet_is_no_reason_to_wait() -> None:
    async def steps(bench: Bench) -> None:
        bench.put(1)
        assert await bench.instance.close(PATIENCE_S)
        assert await bench.have(1) == [(ANSWERED, 1)]

    on_a_bench(steps)
