"""Copies elsewhere that end one by one: what one has lost goes to another of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferway.protocol import Signature, Tensor
from inferway.runtime import Arrays, AwaitedRuntime, Fault, NullRuntime, RemoteError

DOUBLE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
ONE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]}]}


class Copies(AwaitedRuntime):
    """Doubles; a script says how a request fails, and zeros never do unless all is over."""

    apart = True

    def __init__(self) -> None:
        super().__init__(DOUBLE)
        self.script: list[RemoteError] = []
        self.asked = 0
        self.gone = False

    async def describe(self) -> None:
        pass

    async def infer(self, inputs: Arrays) -> Arrays:
        if self.gone:
            raise RemoteError(Fault.UNREACHABLE, "no copy runs now", unserved=True)
        if np.any(inputs["x"]):
            self.asked += 1
            if self.script:
                error = self.script.pop(0)
                self.faults[error.fault] += 1
                raise error
        return {"y": 2 * inputs["x"]}

    def close(self) -> None:
        pass


def died() -> RemoteError:
    return RemoteError(Fault.DIED, "the copy has ended")


def absent() -> RemoteError:
    return RemoteError(Fault.UNREACHABLE, "the copy is not there", unserved=True)


@pytest.fixture
def five(start: Any, site_of: Any, patient: Any) -> Any:
    """Five copies elsewhere, the fast ones, and one server here; probes wait for the clock."""

    def begin(**options: Any) -> tuple[Any, Copies]:
        copies = Copies()
        runtimes = [*[copies] * 5, NullRuntime(DOUBLE)]
        options = {"policy": "jiq-fast", "signature": DOUBLE, "idempotent": True} | options
        site = site_of(runtimes, count=(5, 1), now=patient.time, **options)
        return start(site, loop=patient, now=patient.time), copies

    return begin


def moved(running: Any) -> str:
    page: str = running.get("/metrics", admin=True).body.decode()
    name = "inferway_remote_moved_requests_total{"
    return next(line for line in page.splitlines() if line.startswith(name)).rpartition(" ")[2]


@pytest.mark.parametrize(
    "script", [[died()], [died(), died()], [absent()] * 3, [absent(), died(), absent(), died()]]
)
def test_a_request_goes_to_the_next_copy(five: Any, script: list[RemoteError]) -> None:
    running, copies = five()
    copies.script = [*script]
    answer = running.infer(ONE)
    assert answer.status == 200, answer.body
    assert answer.json["model_version"] == "tiny"
    assert answer.json["outputs"][0]["data"] == [2.0, 5.0]
    assert copies.asked == len(script) + 1
    assert moved(running) == f"{len(script)}.0"


def test_what_may_not_run_twice_is_lost_with_its_copy(five: Any) -> None:
    running, copies = five(idempotent=False)
    copies.script = [died()]
    answer = running.infer(ONE)
    assert answer.status == 502
    assert "the copy has ended" in answer.json["error"]
    assert copies.asked == 1
    copies.script = [absent()]  # which it was certainly not run by
    assert running.infer(ONE).status == 200


def test_a_request_that_ends_whatever_runs_it_is_given_up(five: Any) -> None:
    running, copies = five()
    copies.script = [died() for _ in range(9)]
    answer = running.infer(ONE)
    assert answer.status == 502
    assert answer.json["error"].endswith("3 instances have ended under this request")
    assert copies.asked == 3


def test_a_pinned_request_stays_with_its_variant(five: Any) -> None:
    running, copies = five()
    path = "/v2/models/digits/versions/tiny/infer"
    copies.script = [died()]
    assert running.infer(ONE, path=path).json["model_version"] == "tiny"
    copies.script = [absent() for _ in range(9)]
    answer = running.infer(ONE, path=path)
    assert answer.status == 503


def test_another_variant_answers_where_no_copy_is_left_and_they_come_back(
    five: Any, patient: Any, until: Callable[..., None]
) -> None:
    running, copies = five()
    copies.gone = True
    for _ in range(2):
        assert running.infer(ONE).json["model_version"] == "big"
    copies.gone = False
    patient.advance(120.0)
    until(lambda: running.infer(ONE).json["model_version"] == "tiny")
