"""Three nodes in a row, each with its own ports, on one loop: what a hop must not lose."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import pytest
import uvloop
from chain import BODY, Node, line

from inferway.deployment.nodes import MAX_HOPS
from inferway.live import InferRequest
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.http import connection
from inferway.live.request import NodeCondition
from inferway.live.upstream.headers import Response
from inferway.protocol import tensors


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


@pytest.mark.parametrize("nodes", [20, MAX_HOPS + 1])
def test_a_long_way_is_gone_there_and_back(run: Any, nodes: int) -> None:
    # As long names as a file may give them, in an alphabet that headers have to spell out.
    names = [f"\N{CYRILLIC SMALL LETTER ZHE}{'e' * 400}{i}" for i in range(nodes)]

    async def main() -> None:
        async with line(*names) as chain:
            await chain[-1].serve()
            await chain[0].serve(("tiny", names[-1], names[1]))
            answer = await (await chain[0].client()).ask()
            assert answer.status == 200, answer.body
            assert answer.json["parameters"]["node"] == names[-1]
            assert unquote(answer.headers["inferway-path"]).split(",") == names
            assert len(answer.headers["inferway-time-ms"].split(",")) == nodes

    run(main())


def test_what_is_served_at_the_entry_says_so_too(run: Any) -> None:
    async def main() -> None:
        async with line("edge") as (edge,):
            await edge.serve()
            client = await edge.client()
            answer = await client.ask()
            assert answer.json["parameters"]["node"] == "edge"
            assert answer.json["parameters"]["accuracy_balance"] == pytest.approx(-0.1)
            assert answer.headers["inferway-path"] == "edge"
            assert answer.headers["inferway-variant"] == "tiny"
            assert len(answer.headers["inferway-time-ms"].split(",")) == 1
            edge.runtime.broken = True
            answer = await client.ask()
            assert answer.status == 500
            assert answer.headers["inferway-path"] == "edge"
            assert "inferway-unserved" not in answer.headers
            answer = await client.ask(b"{")
            assert (answer.status, answer.headers["inferway-node"]) == (400, "edge")

    run(main())


def test_the_deadline_of_a_request_holds_at_its_end(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            given: list[float] = []
            submit = cloud.site.submit

            def see(request: InferRequest) -> None:
                given.append(request.deadline_s - request.received_s)
                submit(request)

            cloud.site.submit = see  # type: ignore[method-assign]
            client = await edge.client()
            body = json.loads(BODY) | {"parameters": {"deadline_ms": 5000.0}}
            assert (await client.ask(json.dumps(body).encode())).status == 200
            assert (await client.ask()).status == 200
            assert 4.0 < given[0] < 5.0
            assert given[1] == math.inf

    run(main())


def test_a_variant_that_has_gone_is_replaced_by_another_class(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", "cloud", "cloud"))
            client = await edge.client()
            answer = await client.ask(headers="X-Request-Id: mine\r\n")
            assert answer.status == 200
            assert answer.headers["inferway-path"] == "edge"
            assert edge.site.stats.moved == [0, 1]
            answer = await client.ask(variant="big")
            assert answer.status == 503
            assert "does not run on cloud now" in answer.error
            assert answer.headers["inferway-unserved"] == "1"
            assert answer.headers["inferway-path"] == "edge,cloud"

    run(main())


def test_nodes_write_what_nodes_read_in_one_step(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    request, answer = connection.whole, Response.whole
    monkeypatch.setattr(connection, "whole", lambda data: found.append(request(data)) or found[-1])
    monkeypatch.setattr(Response, "whole", lambda data: found.append(answer(data)) or found[-1])

    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, _, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            timed = json.loads(BODY) | {"parameters": {"deadline_ms": 5000.0}}
            many = {"name": "x", "datatype": "FP32", "shape": [600, 2], "data": [0.5] * 1200}
            for body, headers in (
                (BODY, ""),
                (json.dumps(timed).encode(), "X-Request-Id: mine\r\nContent-Type: text/json\r\n"),
                (BODY, "Accept-Encoding: gzip, deflate\r\n"),
                (json.dumps({"inputs": [many]}).encode(), "Accept-Encoding: gzip\r\n"),
            ):
                found.clear()
                told = await client.ask(body, headers)
                assert told.headers["inferway-path"] == "edge,metro,cloud"
                assert len(found) == 4
                assert None not in found

    run(main())


def test_numbers_of_a_forwarded_request_stay_undecoded(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    before = tensors.from_json

    def from_json(name: str, *rest: Any) -> Any:
        decoded.append(name)
        return before(name, *rest)

    monkeypatch.setattr(tensors, "from_json", from_json)

    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", "cloud", "cloud"), ("tiny", "cloud", "cloud"))
            client = await edge.client()
            assert (await client.ask(variant="big")).status == 503  # nobody runs it
            assert decoded == []
            assert (await client.ask()).headers["inferway-path"] == "edge,cloud"
            assert decoded == ["x"]  # by cloud
            edge.upstreams["cloud"].lose("gone")
            assert (await client.ask()).headers["inferway-path"] == "edge"
            assert decoded == ["x", "x"]

    run(main())


def test_emulated_latencies_add_up_along_the_path(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud", rtt_s=0.02) as (edge, _, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            answer = await client.ask()
            edge_ms, metro_ms, cloud_ms = map(float, answer.headers["inferway-time-ms"].split(","))
            assert edge_ms >= metro_ms + 19.0
            assert metro_ms >= cloud_ms + 19.0

    run(main())


def condition_of(node: Node) -> NodeCondition:
    assert node.site.node is not None
    return node.site.node


def test_a_degraded_node_says_so(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            cloud.proxy.node.degraded = "unheard"
            condition_of(cloud).degraded = "cloud is short of memory"
            client = await edge.client()
            assert (await client.ask()).headers["inferway-degraded"] == "cloud is short of memory"
            condition_of(edge).degraded = "no way to isp"
            assert (await client.ask()).headers["inferway-degraded"] == "no way to isp"

    run(main())


def test_too_many_rows_are_refused_by_who_would_run_them_and_the_sentence_comes_back(
    run: Any,
) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, _, cloud):
            demand = MemoryNeed((0, 100), 300, 2, "measured")
            await cloud.serve(headroom=Headroom(1024**2), demands=[demand])
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            tensor = {"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1.0] * 6}
            answer = await client.ask(json.dumps({"inputs": [tensor]}).encode())
            assert answer.status == 413
            assert answer.error.endswith("1 MiB, leaves room for 2")
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            assert cloud.runtime.runs == 3  # of its warm-up
            assert edge.site.pool.dispatcher.balance == 0.0
            assert (await client.ask()).status == 200

    run(main())
