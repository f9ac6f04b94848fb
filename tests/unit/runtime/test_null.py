"""The null runtime answers zeros of the right shape, after the time it was told."""

import time

import numpy as np
import pytest

from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime, Runtime

SIGNATURE = Signature(
    (Tensor("image", "FP32", (-1, 1, 4, 4)),),
    (
        Tensor("probabilities", "FP32", (-1, 10)),
        Tensor("boxes", "INT64", (-1, -1, 4)),
        Tensor("names", "BYTES", (-1,)),
    ),
)


def test_zeros_of_the_signature() -> None:
    runtime: Runtime = NullRuntime(SIGNATURE)
    answer = runtime.run({"image": np.ones((3, 1, 4, 4), np.float32)})
    assert list(answer) == ["probabilities", "boxes", "names"]
    assert [a.shape for a in answer.values()] == [(3, 10), (3, 1, 4), (3,)]
    assert [a.dtype for a in answer.values()] == [np.float32, np.int64, np.object_]
    assert not answer["probabilities"].any()
    assert list(answer["names"]) == [b"", b"", b""]
    runtime.close()


def test_holds_the_thread() -> None:
    runtime = NullRuntime(SIGNATURE, service_s=0.02)
    start = time.perf_counter()
    runtime.run({"image": np.ones((1, 1, 4, 4), np.float32)})
    assert time.perf_counter() - start >= 0.02


@pytest.mark.parametrize("service_s", [-1.0, float("nan"), float("inf")])
def test_refuses_a_time_that_is_none(service_s: float) -> None:
    with pytest.raises(ValueError, match="must be a finite time in seconds, 0 or more"):
        NullRuntime(SIGNATURE, service_s=service_s)
