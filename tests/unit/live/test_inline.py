from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inferway.live.instance import FAILURES
from inferway.live.local import BRIEF_S, LocalInstance, RunTime
from inferway.live.request import InferRequest, Job, Outcome
from inferway.live.threads import InlineRunner
from inferway.protocol import Signature, Tensor

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
OPEN = Signature((Tensor("x", "FP32", (-1, -1)),), (Tensor("y", "FP32", (-1, 2)),))
TEXT = Signature((Tensor("x", "BYTES", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))


class Clock:
    """Each model below moves it on by what its run is to take."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Model:
    steady = True

    def __init__(self, clock: Clock, signature: Signature = SIGNATURE) -> None:
        self.clock, self.signature = clock, signature
        self.takes_s = BRIEF_S / 2
        self.failure: Exception | None = None
        self.threads: list[str] = []

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.threads.append(threading.current_thread().name)
        self.clock.now_s += self.takes_s
        if self.failure is not None:
            raise self.failure
        return {"y": inputs["x"]}

    def close(self) -> None:
        pass


class Loop:
    """An instance beside a loop that goes on one pass at a time."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.loop = asyncio.new_event_loop()
        self.done: list[Any] = []
        self.collected: list[int] = []
        self.threaded = threading.Semaphore(0)
        self.instance = LocalInstance("task/tiny#0", model, now=clock)
        self.soon = InlineRunner(
            self.loop, self.done.append, lambda: self.collected.append(len(self.done))
        ).plan
        self.loop.run_until_complete(self.instance.start(self))
        model.threads.clear()

    def posted(self, job: Job) -> None:
        self.done.append(job)
        self.threaded.release()

    def stop(self) -> None:
        assert self.loop.run_until_complete(self.instance.close(10))

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def close(self) -> None:
        self.stop()
        self.loop.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model(clock: Clock) -> Model:
    return Model(clock)


@pytest.fixture
def beside(model: Model, clock: Clock) -> Iterator[Loop]:
    made = Loop(model, clock)
    yield made
    made.close()


def request(rows: int = 1, deadline_s: float = float("inf")) -> InferRequest:
    made = InferRequest({"x": np.zeros((rows, 2), np.float32)}, rows, lambda _: None)
    made.deadline_s = deadline_s
    return made


def test_brief_requests_are_run_together_on_the_loop(beside: Loop, model: Model) -> None:
    given = [request() for _ in range(3)]
    for one in given:
        beside.instance.put(one)
    assert model.threads == []
    beside.turn()
    assert beside.done == given
    assert [one.outcome for one in given] == [Outcome.ANSWERED] * 3
    assert beside.collected == [3]
    assert set(model.threads) == {threading.current_thread().name}


def test_a_turn_ends_when_models_have_had_its_time(beside: Loop) -> None:
    for _ in range(100):
        beside.instance.put(request())
    beside.turn()
    first = len(beside.done)
    assert 0 < first < 100
    while len(beside.done) < 100:
        beside.turn()
    assert beside.collected[0] == first
    assert beside.collected[-1] == 100


def test_what_was_cancelled_before_its_turn_is_not_run(beside: Loop, model: Model) -> None:
    kept, gone = request(), request()
    beside.instance.put(gone)
    beside.instance.put(kept)
    assert beside.instance.cancel(gone)
    beside.turn()
    assert beside.done == [kept]
    assert len(model.threads) == 1
    assert not beside.instance.cancel(kept)


def test_a_deadline_that_passed_before_the_turn_is_kept(beside: Loop, clock: Clock) -> None:
    late = request(deadline_s=clock.now_s + 1.0)
    beside.instance.put(late)
    clock.now_s += 2.0
    beside.turn()
    assert late.outcome is Outcome.EXPIRED
    assert late.started_s == 0.0


def test_many_rows_are_the_threads_and_the_order_stays(beside: Loop, model: Model) -> None:
    given = [request(), request(rows=2), request()]
    for one in given[:2]:
        beside.instance.put(one)
    for _ in range(2):
        assert beside.threaded.acquire(timeout=10)
    beside.turn()
    assert beside.done == given[:2]
    assert set(model.threads) == {"task/tiny#0"}


def test_what_is_queued_at_the_end_is_the_threads(beside: Loop, model: Model) -> None:
    given = [request() for _ in range(3)]

    async def end() -> None:
        for one in given:
            beside.instance.put(one)
        assert await beside.instance.close(10)

    beside.loop.run_until_complete(end())
    assert beside.done == given
    assert set(model.threads) == {"task/tiny#0"}
    beside.turn()
    assert beside.done == given


def test_a_model_that_grows_slow_goes_to_the_thread(beside: Loop, model: Model) -> None:
    model.takes_s = 100 * BRIEF_S
    for _ in range(10):
        beside.instance.put(request())
        beside.turn()
    beside.stop()
    assert "task/tiny#0" in model.threads
    slow = model.threads.index("task/tiny#0")
    assert slow < 5
    assert set(model.threads[slow:]) == {"task/tiny#0"}


def test_failures_on_the_loop_make_an_instance_rest(beside: Loop, model: Model) -> None:
    model.failure = ValueError("bad weights")
    given = [request() for _ in range(FAILURES + 2)]
    for one in given:
        beside.instance.put(one)
    beside.turn()
    assert beside.done == given[:FAILURES]
    assert beside.instance.resting
    # The site takes the others back.
    assert all(beside.instance.cancel(one) for one in given[FAILURES:])


@pytest.mark.parametrize("signature", [OPEN, TEXT], ids=["free axis", "text"])
def test_what_takes_as_long_as_its_input_is_never_brief(clock: Clock, signature: Signature) -> None:
    run_time = RunTime(Model(clock, signature))
    run_time.begin(0.0)
    assert not run_time.is_brief(1)


def test_only_steady_runtimes_are_brief(model: Model) -> None:
    model.steady = False
    run_time = RunTime(model)
    run_time.begin(0.0)
    assert not run_time.is_brief(1)


def test_one_interruption_does_not_make_a_model_slow(model: Model) -> None:
    run_time = RunTime(model)
    run_time.begin(BRIEF_S / 4)
    run_time.observe_inline(1.0)
    assert run_time.is_brief(1)
    for _ in range(20):
        run_time.observe_inline(1.0)
    assert not run_time.is_brief(1)
    run_time.observe_threaded(2.0)
    assert not run_time.is_brief(1)
    for _ in range(60):
        run_time.observe_threaded(BRIEF_S / 4)
    assert run_time.is_brief(1)
