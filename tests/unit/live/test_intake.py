from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.live import Limits, Pool, PoolOptions, TaskSite
from inferway.live.intake import Intake, answer_parameters, unknown
from inferway.protocol import RefusalError, Signature, Tensor
from inferway.protocol.messages import InferParameters, TensorParameters
from inferway.runtime import NullRuntime
from inferway.site import ALL_CLASSES, Fleet

SIGNATURE = Signature(
    (Tensor("a", "FP32", (-1, 2)), Tensor("b", "BYTES", (-1,))),
    (Tensor("y", "FP32", (-1, 2)), Tensor("z", "BYTES", (-1,))),
)


def served(task: str, accuracy: tuple[float, float] = (0.7, 0.9)) -> TaskSite:
    fleet = Fleet(("tiny", "big"), np.array([1e3, 1e2]), np.array(accuracy), np.array([1, 1]))
    dispatcher = Dispatcher(fleet, "fastest-only", target=0.8, rate_per_s=50)
    runtimes = [NullRuntime(SIGNATURE), NullRuntime(SIGNATURE)]
    return TaskSite.of(Pool(task, SIGNATURE, dispatcher, runtimes, PoolOptions(deadline_s=2.0)))


@pytest.fixture(scope="module")
def site() -> TaskSite:
    return served("task")


@pytest.fixture
def intake(site: TaskSite) -> Intake:
    return Intake(site, None, Limits(elements=8))


ARRAYS = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.object_)}


def make(intake: Intake, parameters: InferParameters | None = None) -> Any:
    return intake.request(ARRAYS, parameters, lambda request: None, "context", 10.0)


def test_a_request_for_the_task(intake: Intake) -> None:
    assert intake.schema.input("a", "FP32", [3, 2], {}) == (3, 2)
    assert intake.schema.input("b", "BYTES", [3], {"a": ARRAYS["a"]}) == (3,)
    request = make(intake)
    assert (request.rows, request.context, request.received_s) == (3, "context", 10.0)
    assert (request.classes, request.counted) == (ALL_CLASSES, True)
    assert (request.deadline_s, request.floor, request.priority) == (12.0, 0.0, 0)


def test_a_request_for_a_variant(site: TaskSite) -> None:
    request = make(Intake(site, "big", Limits()))
    assert (request.classes, request.counted) == (0b10, False)


@pytest.mark.parametrize(
    ("parameters", "deadline_s"),
    [
        (InferParameters(), 12.0),
        (InferParameters(timeout=0), 12.0),
        (InferParameters(timeout=500_000), 10.5),
        (InferParameters(deadline_ms=250.0), 10.25),
        (InferParameters(timeout=500_000, deadline_ms=math.inf), math.inf),
    ],
)
def test_deadlines(intake: Intake, parameters: InferParameters, deadline_s: float) -> None:
    assert make(intake, parameters).deadline_s == deadline_s


def test_accuracy_and_priority(intake: Intake) -> None:
    request = make(intake, InferParameters(accuracy=0.75, priority=3))
    assert (request.floor, request.priority) == (0.75, 3)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (InferParameters(accuracy=1.01), "accuracy is 1.01, expected 0 to 1"),
        (InferParameters(accuracy=math.nan), "accuracy is nan"),
        (InferParameters(deadline_ms=0.0), "deadline_ms is 0.0, expected above 0"),
        (InferParameters(deadline_ms=math.nan), "deadline_ms is nan"),
    ],
)
def test_parameters_out_of_range(intake: Intake, parameters: InferParameters, reason: str) -> None:
    with pytest.raises(RefusalError, match=reason) as caught:
        make(intake, parameters)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (("c", "FP32", [1, 2]), 400, r"no input 'c'; expected \(a: FP32\[-1, 2\], b: BYTES\[-1\]"),
        (("a", "FP64", [1, 2]), 400, "has datatype 'FP64', expected FP32"),
        (("a", "FP32", [1, 3]), 400, r"has shape \[1, 3\], expected \[-1, 2\]"),
        (("a", "FP32", [0, 2]), 400, r"has shape \[0, 2\]"),
        (("a", "FP32", [-1, 2]), 400, r"has shape \[-1, 2\]"),
        (("a", "FP32", [2]), 400, r"has shape \[2\]"),
        (("a", "FP32", [5, 2]), 413, "has 10 elements, the limit is 8"),
        (("b", "BYTES", [3]), 400, "'b' is given twice"),
        (("a", "FP32", [2, 2]), 400, "'a' has 2 rows and those before it have 3"),
    ],
)
def test_inputs_that_do_not_fit(
    intake: Intake, given: tuple[str, str, list[int]], status: int, reason: str
) -> None:
    with pytest.raises(RefusalError, match=reason) as caught:
        intake.schema.input(*given, {"b": ARRAYS["b"]})
    assert caught.value.status == status


def test_a_missing_input(intake: Intake) -> None:
    with pytest.raises(RefusalError, match="lacks input 'b'; expected"):
        intake.schema.complete({"a": ARRAYS["a"]})
    intake.schema.complete(ARRAYS)


def test_outputs(intake: Intake) -> None:
    assert intake.schema.output("z", {"y"}, TensorParameters(classification=0)).datatype == "BYTES"
    for name, parameters, status, reason in (
        ("x", None, 400, "no output 'x'; there is 'y', 'z'"),
        ("y", None, 400, "'y' is requested twice"),
        ("z", TensorParameters(classification=2), 501, "classification"),
        ("z", TensorParameters(shared_memory_region="r"), 501, "shared memory"),
    ):
        with pytest.raises(RefusalError, match=reason) as caught:
            intake.schema.output(name, {"y"}, parameters)
        assert caught.value.status == status


def test_what_is_not_served(site: TaskSite) -> None:
    assert unknown([site], "other", None) == "unknown task 'other'; there is task"
    assert unknown([], "other", None) == "unknown task 'other'; there is none yet"
    assert unknown([site], "task", "old") == "task 'task' has no variant 'old'; there is tiny, big"


def test_many_tasks_are_told_in_their_order_and_not_all() -> None:
    # Offers come in any order.
    sites = [served(f"digits-{number}") for number in (11, 1, 10, 3, 2, 6, 4, 5, 7, 8, 9, 0)]
    names = ", ".join(f"digits-{number}" for number in range(10))
    assert unknown(sites, "other", None) == f"unknown task 'other'; there is {names} and 2 more"
    few = "unknown task 'other'; there is digits-1, digits-10, digits-11"
    assert unknown(sites[:3], "other", None) == few


def test_what_an_answer_says_of_itself(intake: Intake) -> None:
    request = make(intake)
    request.variant, request.latency_s, request.predicted_s = "tiny", 0.00123456, 0.002
    said = answer_parameters(request)
    assert (said.variant, said.latency_ms, said.predicted_latency_ms) == ("tiny", 1.2346, 2.0)


def test_no_variant_is_held_to_a_floor_where_no_accuracy_is_known() -> None:
    intake = Intake(served("task", (np.nan, np.nan)), None, Limits())
    with pytest.raises(RefusalError) as caught:
        make(intake, InferParameters(accuracy=0.5))
    assert (caught.value.status, caught.value.reason) == (
        400,
        "no variant of task 'task' has a known accuracy, so that none can be held to 0.5; leave "
        "`accuracy` out",
    )
    assert make(intake, InferParameters(accuracy=0.0)).floor == 0.0
    assert make(intake).floor == 0.0


def test_a_floor_holds_where_some_accuracy_is_known() -> None:
    intake = Intake(served("task", (np.nan, 0.9)), None, Limits())
    assert make(intake, InferParameters(accuracy=0.5)).floor == 0.5
