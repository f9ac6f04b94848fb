"""A request that came over gRPC is forwarded, and answered over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from row import LIMIT_S, Member, row, until
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


@contextlib.asynccontextmanager
async def over_grpc(member: Member) -> AsyncIterator[Any]:
    """A client of a node's gRPC port."""
    client = tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{member.grpc_port}")
    try:
        yield client
    finally:
        await client.close()


def rows(values: Any) -> list[Any]:
    array = np.array(values, np.float32)
    tensor = InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def test_it_goes_two_hops_and_the_answer_says_where_it_was(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "metro", "cloud", grpc=True) as (edge, metro, cloud):
            before = cloud.model.runs
            async with over_grpc(edge) as client:
                for values in ([[1.0, 2.0]], [[1.0, 2.0], [3.0, -4.0], [0.5, 0.0]]):
                    answer = await client.infer("task", rows(values))
                    assert answer.as_numpy("y").tolist() == (2 * np.array(values)).tolist()
                    said = answer.get_response(as_json=True)
                    assert said["model_version"] == "big"
                    assert said["parameters"]["node"] == {"string_param": "cloud"}
            # One counts rows, the other requests.
            assert (edge.status()["forwarded"], metro.status()["passed"]) == (4, 2)
            assert cloud.model.runs == before + 2
            assert await edge.counted("inferway_answers_total", variant="big@cloud") == 4.0

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_node_that_dies_in_mid_request(run: Any, tmp_path: Path, idempotent: bool) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=idempotent, grpc=True) as (
            edge,
            cloud,
        ):
            cloud.model.gate.clear()
            async with over_grpc(edge) as client:
                asked = asyncio.ensure_future(client.infer("task", rows([[1.0, 2.0]])))
                await until(lambda: cloud.model.waiting == 1)
                edge.wire.refuse()
                edge.wire.end()
                if idempotent:
                    answer = await asyncio.wait_for(asked, LIMIT_S)
                    assert answer.as_numpy("y").tolist() == [[2.0, 4.0]]
                    said = answer.get_response(as_json=True)
                    assert said["parameters"]["node"] == {"string_param": "edge"}
                else:
                    with pytest.raises(InferenceServerException, match="closed the connection"):
                        await asyncio.wait_for(asked, LIMIT_S)
                cloud.model.gate.set()

    run(main())


def test_the_deadline_of_the_call_goes_along_and_its_end_is_told(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False, grpc=True) as (edge, cloud):
            cloud.model.gate.clear()
            async with over_grpc(edge) as client:
                asked = asyncio.ensure_future(
                    client.infer("task", rows([[1.0, 2.0]]), client_timeout=0.5)
                )
                await until(lambda: cloud.model.waiting == 1)
                (left_ms,) = re.findall(rb"(?i)inferway-deadline-ms: ([\d.]+)", edge.wire.asked)
                assert 0.0 < float(left_ms) < 510.0  # the call says it rounded up
                with pytest.raises(InferenceServerException) as refused:
                    await asyncio.wait_for(asked, LIMIT_S)
                assert refused.value.status() == str(grpc.StatusCode.DEADLINE_EXCEEDED)
                # The client has gone: so has its request, on both nodes.
                await edge.canceled()
                cloud.model.gate.set()
                await cloud.canceled()

    run(main())
