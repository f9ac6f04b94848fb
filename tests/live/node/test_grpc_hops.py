"""A request that came over gRPC is forwarded, and answered over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from chain import LIMIT_S, Held, Node, line, until
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from inferway.live import Outcome
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


def test_it_goes_two_hops_and_the_answer_says_where_it_was(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            async with over_grpc(edge) as client:
                for values in ([[1.0, 2.0]], [[1.0, 2.0], [3.0, -4.0], [0.5, 0.0]]):
                    answer = await client.infer("task", rows(values))
                    assert answer.as_numpy("y").tolist() == (2 * np.array(values)).tolist()
                    said = answer.get_response(as_json=True)
                    assert said["model_version"] == "tiny"
                    assert said["parameters"]["node"] == {"string_param": "cloud"}
            assert [told[1:] for told in metro.seen] == [("edge", False, "tiny")] * 2
            assert cloud.runtime.runs == 3 + 2  # three for its warm-up
            assert edge.site.stats.rows == [0, 4]

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_node_that_dies_in_mid_request(run: Any, idempotent: bool) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=idempotent)
            async with over_grpc(edge) as client:
                asked = asyncio.ensure_future(client.infer("task", rows([[1.0, 2.0]])))
                await until(lambda: cloud.site.in_flight == 1)
                cloud.peers.close()
                cloud.peers.abort()
                if idempotent:
                    answer = await asyncio.wait_for(asked, LIMIT_S)
                    assert answer.as_numpy("y").tolist() == [[2.0, 4.0]]
                    said = answer.get_response(as_json=True)
                    assert said["parameters"]["node"] == {"string_param": "edge"}
                else:
                    with pytest.raises(InferenceServerException, match="closed the connection"):
                        await asyncio.wait_for(asked, LIMIT_S)
                held.gate.set()

    run(main())


def test_the_deadline_of_the_call_goes_along_and_its_end_is_told(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "cloud"))
            async with over_grpc(edge) as client:
                asked = asyncio.ensure_future(
                    client.infer("task", rows([[1.0, 2.0]]), client_timeout=0.5)
                )
                await until(lambda: cloud.site.in_flight == 1)
                (request,) = cloud.site.pool.queues[0]
                assert 0.0 < request.deadline_s - request.received_s < 0.5
                with pytest.raises(InferenceServerException) as refused:
                    await asyncio.wait_for(asked, LIMIT_S)
                assert refused.value.status() == str(grpc.StatusCode.DEADLINE_EXCEEDED)
                # The client has gone: so has its request, on both nodes.
                await until(lambda: edge.site.stats.total(Outcome.CANCELED) == 1)
                await until(lambda: edge.hops["cloud"].in_flight == 0)
                held.gate.set()
                await until(lambda: cloud.site.in_flight == 0)

    run(main())


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
