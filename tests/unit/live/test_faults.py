"""What failures mean, one by one, and how many of them an instance bears."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from finished import Finished

from inferway.live.instance import FAILURES, RETRY_S, PoolTerms, RetryBudget
from inferway.live.local import verdict
from inferway.live.request import InferRequest, Outcome
from inferway.live.upstream.remote import ServerInstance
from inferway.protocol import Signature, Tensor
from inferway.runtime import Fault, RemoteError


class Remote:
    """Fails with a fault at what is not zeros, and says so of itself like a remote model."""

    def __init__(self) -> None:
        self.signature = Signature((Tensor("x", "FP32", (-1, 1)),), (Tensor("y", "FP32", (-1, 1)),))
        self.known_signature = self.signature
        self.fault: Fault | None = None
        self.down, self.apart = "", False
        self.runs = self.zeros = 0

    async def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        zeros = not inputs["x"].any()
        self.zeros += zeros
        self.runs += not zeros
        if self.fault is not None and not zeros:
            raise RemoteError(self.fault, "it went wrong")
        return {"y": inputs["x"]}


@pytest.fixture
def remote() -> Remote:
    return Remote()


def instance_of(remote: Remote) -> ServerInstance:
    signature = remote.signature
    terms = PoolTerms("task", signature, "", True, time.monotonic, RetryBudget())
    return ServerInstance("task/far#0", remote, terms, sizes=(1,), most_rows=64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "outcome", "bears", "asks_zeros"),
    [
        (Fault.REFUSED, Outcome.INVALID, FAILURES, True),
        (Fault.OVERLOADED, Outcome.REJECTED, None, False),
        (Fault.UNAVAILABLE, Outcome.UNAVAILABLE, FAILURES, False),
        (Fault.UNREACHABLE, Outcome.UNAVAILABLE, 1, False),
        (Fault.LATE, Outcome.EXPIRED, FAILURES, False),
        (Fault.BROKEN, Outcome.FAILED, FAILURES, True),
        (Fault.UNFIT, Outcome.FAILED, 1, False),
    ],
)
def test_how_many_failures_an_instance_bears(
    remote: Remote, fault: Fault, outcome: Outcome, bears: int | None, asks_zeros: bool
) -> None:
    async def main() -> None:
        done, instance = Finished(), instance_of(remote)
        await instance.start(done)
        remote.zeros, remote.fault = 0, fault
        for number in range(1, FAILURES + 2):
            if instance.resting:
                break
            instance.put(InferRequest({"x": np.ones((1, 1), np.float32)}, 1, lambda _: None))
            while done.empty():
                await asyncio.sleep(0)
            ended = done.get()
            assert (ended.outcome, ended.reason) == (outcome, "task/far#0 failed: it went wrong")
            assert instance.resting is (number == bears and not asks_zeros)
        assert await instance.close(10)

    asyncio.run(main())
    # Where zeros decide, they have been answered, and so the requests were at fault.
    assert remote.zeros == (1 if asks_zeros else 0)


def test_each_fault_has_a_verdict() -> None:
    for fault in Fault:
        for unserved in (False, True):
            assert verdict(RemoteError(fault, "", unserved=unserved)).unserved is unserved
    assert verdict(RuntimeError("no memory")).outcome is Outcome.FAILED


def test_clients_hear_when_to_come_back() -> None:
    for fault in (Fault.OVERLOADED, Fault.UNAVAILABLE, Fault.UNREACHABLE):
        assert verdict(RemoteError(fault, "")).retry_after_s == RETRY_S
        assert verdict(RemoteError(fault, "", retry_after_s=7.0)).retry_after_s == 7.0
    assert verdict(RemoteError(Fault.BROKEN, "", retry_after_s=7.0)).retry_after_s == 0.0


def test_one_whose_server_is_down_rests_before_it_is_asked(remote: Remote) -> None:
    remote.down = "connection refused"
    instance = instance_of(remote)
    asyncio.run(instance.start(Finished()))
    assert (instance.resting, instance.complaint, remote.zeros) == (True, "connection refused", 0)
