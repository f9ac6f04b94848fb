"""A request over gRPC with too many rows for the memory, here and at a neighbor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from chain import Node, line
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from inferway.live.grpc import endpoint_class
from inferway.live.headroom import Headroom, MemoryNeed


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


@contextlib.asynccontextmanager
async def over_grpc(node: Node) -> AsyncIterator[Any]:
    """A client of a node's gRPC port."""
    broken: list[BaseException] = []
    endpoint = endpoint_class()(lambda: True, broken.append)
    await endpoint.start("127.0.0.1", 0)
    endpoint.serve([node.site])
    client = tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{endpoint.port}")
    try:
        yield client
    finally:
        await client.close()
        await endpoint.stop(1.0)
    assert broken == []


def rows(values: Any) -> list[Any]:
    array = np.array(values, np.float32)
    tensor = InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def test_too_many_rows_for_the_memory_are_an_invalid_argument_here_and_elsewhere(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            demand = MemoryNeed((0, 100), 300, 2, "measured")
            await cloud.serve(headroom=Headroom(1024**2), demands=[demand])
            await edge.serve(("tiny", "cloud", "cloud"))
            for node in (cloud, edge):
                async with over_grpc(node) as client:
                    with pytest.raises(InferenceServerException) as refused:
                        await client.infer("task", rows([[1.0, 2.0]] * 3))
                    assert refused.value.status() == str(grpc.StatusCode.INVALID_ARGUMENT)
                    assert "1 MiB, leaves room for 2" in refused.value.message()

    run(main())
