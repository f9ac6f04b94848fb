from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from finished import Finished, close, start

from inferway.live.errors import WarmUpError
from inferway.live.local import WARM_UP_RUNS, LocalInstance
from inferway.live.request import InferRequest, Outcome
from inferway.protocol import Signature, Tensor
from inferway.runtime import zeros

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))


class Model:
    def __init__(self) -> None:
        self.signature = SIGNATURE
        self.failure: Exception | None = None
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()
        self.opened.set()
        self.seen: list[dict[str, Any]] = []

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.begun.release()
        assert self.opened.wait(10)
        self.seen.append(inputs)
        if self.failure is not None:
            raise self.failure
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        pass


def started(made: LocalInstance, model: Model, done: Finished) -> LocalInstance:
    start(made, done)
    model.seen.clear()
    while model.begun.acquire(blocking=False):
        pass
    return made


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def done() -> Finished:
    return Finished()


@pytest.fixture
def instance(model: Model, done: Finished) -> Iterator[LocalInstance]:
    made = started(LocalInstance("task/tiny#0", model), model, done)
    yield made
    model.opened.set()
    close(made)


def request(value: float = 1.0) -> InferRequest:
    return InferRequest({"x": np.full((1, 2), value, np.float32)}, 1, lambda _: None)


def test_requests_are_answered_in_order(instance: LocalInstance, done: Finished) -> None:
    given = [request(i) for i in range(5)]
    for one in given:
        instance.put(one)
    found = [done.get(timeout=10) for _ in given]
    assert found == given
    assert [one.outcome for one in found] == [Outcome.ANSWERED] * 5
    assert found[3].outputs is not None
    assert found[3].outputs["y"].tolist() == [[6.0, 6.0]]
    assert all(one.service_s > 0 for one in found)


def test_a_failure_ends_the_request_and_not_the_instance(
    instance: LocalInstance, model: Model, done: Finished
) -> None:
    model.failure = ValueError("bad\n  weights")
    instance.put(request())
    failed = done.get(timeout=10)
    assert failed.outcome is Outcome.FAILED
    assert failed.reason == "task/tiny#0 failed: bad weights"
    model.failure = None
    instance.put(request())
    assert done.get(timeout=10).outcome is Outcome.ANSWERED


def test_only_what_waits_can_be_canceled(
    instance: LocalInstance, model: Model, done: Finished
) -> None:
    model.opened.clear()
    running, waiting, last = request(1), request(2), request(3)
    for one in (running, waiting, last):
        instance.put(one)
    assert model.begun.acquire(timeout=10)
    assert instance.cancel(waiting)
    assert not instance.cancel(waiting)
    assert not instance.cancel(running)
    model.opened.set()
    assert [done.get(timeout=10), done.get(timeout=10)] == [running, last]
    assert len(model.seen) == 2


@pytest.mark.parametrize("drop", [True, False])
def test_late_requests(model: Model, done: Finished, drop: bool) -> None:
    instance = started(LocalInstance("i", model, drop_late=drop), model, done)
    late = request()
    late.deadline_s = 0.0
    instance.put(late)
    found = done.get(timeout=10)
    close(instance)
    assert found.outcome is (Outcome.EXPIRED if drop else Outcome.ANSWERED)
    assert len(model.seen) == (0 if drop else 1)


def test_warm_up(model: Model) -> None:
    instance = LocalInstance("i", model)
    instance.warm_up()
    assert not instance.cold
    assert len(model.seen) == WARM_UP_RUNS
    assert model.seen[0]["x"].shape == (1, 2)
    model.failure = RuntimeError("no")
    with pytest.raises(WarmUpError, match="i failed its warm-up: no"):
        instance.warm_up()
    model.signature = Signature((Tensor("x", "FP32", (-1, -1)),), ())
    instance.warm_up()
    assert instance.cold
    close(instance)


def test_zeros_fit_every_datatype() -> None:
    signature = Signature((Tensor("a", "BYTES", (-1, 2)), Tensor("b", "BOOL", (-1, -1, 3))), ())
    made = zeros(signature.inputs)
    assert made["a"].tolist() == [[b"", b""]]
    assert made["b"].shape == (1, 1, 3)
    assert made["b"].dtype == np.bool_


@pytest.mark.parametrize(("took_s", "reads_each"), [(1e-3, True), (1e-4, False)])
def test_the_clock_is_read_for_one_brief_run_in_sixteen(
    model: Model, monkeypatch: pytest.MonkeyPatch, took_s: float, reads_each: bool
) -> None:
    reads = 0

    def thread_time() -> float:  # each read is so much later than the one before
        nonlocal reads
        reads += 1
        return reads * took_s

    monkeypatch.setattr("inferway.live.local.thread_time", thread_time)
    instance = LocalInstance("one", model)
    instance.profiled_s = lambda rows: rows * took_s / 4
    rounds = 11  # whose runs are one more than a multiple of sixteen
    for _ in range(rounds):
        instance.warm_up()
    runs = rounds * WARM_UP_RUNS
    assert runs % 16 == 1
    assert reads == 2 * (runs if reads_each else 1 + runs // 16)
    assert instance.run_cpu_s == pytest.approx(runs * took_s)
    assert instance.stretched_s == pytest.approx(runs * took_s * 3 / 4)
