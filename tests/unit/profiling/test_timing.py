"""Service times are of what was called, at each size, alone and at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from inferway.catalog import zoo
from inferway.deployment import Model, Variant
from inferway.profiling.memory import memory_of
from inferway.profiling.timing import Arrays, Timed, bearable, service_times

ROWS: Arrays = {"x": np.arange(6.0)[:, None]}


class Sleeper:
    """Sleeps for a while per row, and remembers who came."""

    def __init__(self, row_s: float = 0.0) -> None:
        self.row_s, self.inside, self.most = row_s, 0, 0
        self.asked: list[list[float]] = []
        self._lock = threading.Lock()

    def run(self, inputs: Arrays) -> Arrays:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.asked.append(inputs["x"].ravel().tolist())
        time.sleep(self.row_s * len(inputs["x"]))
        with self._lock:
            self.inside -= 1
        return inputs


def test_a_time_is_of_a_whole_batch_and_its_numbers_agree() -> None:
    sleeper = Sleeper(0.002)
    (times,) = service_times([Timed("one", [sleeper.run], ROWS, (1, 4))], rounds=2, round_s=0.02)
    assert [one.batch for one in times] == [1, 4]
    for one in times:
        assert 0.002 * one.batch <= one.mean_s < 1.0
        assert one.p50_s <= one.p95_s <= one.p99_s
        assert one.calls >= 10
        assert one.cpu_s < one.mean_s
    assert sleeper.most == 1


def test_one_call_in_a_hundred_that_is_interrupted_does_not_count() -> None:
    calls = 0

    def run(inputs: Arrays) -> Arrays:
        nonlocal calls
        calls += 1
        time.sleep(0.5 if calls == 60 else 0.0001)
        return inputs

    ((one,),) = service_times([Timed("one", [run], ROWS, (1,))], rounds=1, round_s=1.0)
    assert one.p99_s < 0.5 < one.mean_s * one.calls
    assert one.steady_s < one.mean_s - 0.2 / one.calls


def test_of_fewer_calls_than_a_hundred_the_longest_counts_too() -> None:
    sleeper = Sleeper(0.01)
    ((one,),) = service_times([Timed("one", [sleeper.run], ROWS, (1,))], rounds=1, round_s=0.02)
    assert one.calls < 100
    assert one.steady_s == pytest.approx(one.mean_s)


def test_busy_cores_call_all_at_once() -> None:
    sleeper = Sleeper(0.005)
    timed = Timed("one", [sleeper.run] * 3, ROWS, (1,))
    ((one,),) = service_times([timed], busy=True, rounds=1, round_s=0.05)
    assert sleeper.most == 3
    assert one.calls >= 30


def test_rows_go_round_where_a_batch_has_more() -> None:
    sleeper = Sleeper()
    service_times([Timed("one", [sleeper.run], ROWS, (4, 9))], rounds=1, round_s=0.0)
    assert [0, 1, 2, 3] in sleeper.asked
    assert [0, 1, 2, 3, 4, 5, 0, 1, 2] in sleeper.asked


@pytest.mark.parametrize("busy", [False, True])
def test_an_error_of_a_run_is_the_callers(busy: bool) -> None:
    def fails(inputs: Arrays) -> Arrays:
        raise ValueError("it does not run")

    with pytest.raises(ValueError, match="it does not run"):
        service_times(
            [Timed("one", [fails, Sleeper().run], ROWS, (1,))], busy=busy, rounds=1, round_s=0.0
        )


def test_no_size_is_tried_after_one_that_takes_over_a_second() -> None:
    def run(inputs: Arrays) -> Arrays:
        time.sleep(1.1 if len(inputs["x"]) >= 4 else 0)
        return inputs

    assert bearable(run, ROWS, (1, 2, 4, 8, 16)) == (1, 2, 4)


def test_a_first_call_that_takes_long_ends_nothing() -> None:
    calls: list[int] = []

    def run(inputs: Arrays) -> Arrays:
        calls.append(len(inputs["x"]))
        time.sleep(1.1 if len(calls) == 1 else 0)
        return inputs

    assert bearable(run, ROWS, (1, 2, 4)) == (1, 2, 4)
    assert calls == [1, 1, 2, 4]


def test_memory_is_of_the_loaded_model_and_of_its_largest_run() -> None:
    path: Path = zoo.model_path("digits", "small")
    images = {"image": np.zeros((64, 1, 32, 32), np.float32)}
    found = memory_of(Variant("small", model=Model(path, str(path))), None, images)
    assert path.stat().st_size < found.loaded_bytes < found.peak_bytes


def test_memory_of_what_does_not_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    variant = Variant("no", model=Model(tmp_path / "no.onnx", "no.onnx"))
    with pytest.raises(ValueError, match=r"its memory could not be measured: .*not a whole ONNX"):
        memory_of(variant, None, ROWS)
