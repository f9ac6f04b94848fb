"""Three nodes in a row, each with its own ports, on one loop: what a hop must not lose."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import uvloop
from chain import BODY, Held, Node, line, until

from inferway.deployment.nodes import MAX_HOPS
from inferway.live import Outcome, Request
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.hops.answer import Answer
from inferway.live.hops.headers import Trail
from inferway.live.http import connection
from inferway.live.http.listener import Listener
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


def test_the_answer_names_variant_node_path_and_time(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            answer = await client.ask(headers="X-Request-Id: mine\r\n")
            assert answer.status == 200, answer.body
            assert answer.json["outputs"][0]["data"] == [2.0, 4.0]
            parameters = answer.json["parameters"]
            assert (parameters["variant"], parameters["node"]) == ("tiny", "cloud")
            assert "accuracy_balance" not in parameters
            assert answer.headers["inferway-node"] == "cloud"
            assert answer.headers["inferway-variant"] == "tiny"
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            assert answer.headers["x-request-id"] == "mine"
            assert "inferway-unserved" not in answer.headers
            times = [float(one) for one in answer.headers["inferway-time-ms"].split(",")]
            assert len(times) == 3
            assert times == sorted(times, reverse=True)
            assert metro.seen == [("task", "edge", False, "tiny")]
            assert cloud.seen == [("task", "edge", True, "tiny")]
            assert edge.site.stats.rows == [0, 1]
            assert edge.site.pool.dispatcher.balance == pytest.approx(0.9 - 0.8)
            assert cloud.site.pool.dispatcher.balance == 0.0
            found = edge.site.log.explain(b"mine")
            assert found is not None
            assert found["variant"] == "tiny@cloud"
            # Who ran it knows with how many others, and counts the run.
            assert found["batch"] is None
            assert edge.site.stats.batch_rows == [0, 0]
            there = cloud.site.log.explain(b"mine")
            assert there is not None
            assert there["batch"] == {"requests": 1, "rows": 1}
            assert cloud.site.stats.batch_rows == [1]

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


def test_a_client_cannot_pretend_to_be_a_neighbor(run: Any) -> None:
    async def main() -> None:
        async with line("edge") as (edge,):
            await edge.serve()
            client = await edge.client()
            answer = await client.ask(
                headers="Inferway-Node: cloud\r\nInferway-Path: edge\r\n"
                "Inferway-Variant: big\r\nInferway-Deadline-Ms: 0\r\n"
            )
            assert (answer.status, answer.headers["inferway-path"]) == (200, "edge")

    run(main())


def test_forms_of_bodies_pass(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, _, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            answer = await client.ask(gzip.compress(BODY), "Content-Encoding: gzip\r\n")
            assert answer.json["outputs"][0]["data"] == [2.0, 4.0]
            raw = np.array([1.0, 3.0], np.float32).tobytes()
            text = json.dumps(
                {
                    "inputs": [
                        {
                            "name": "x",
                            "datatype": "FP32",
                            "shape": [1, 2],
                            "parameters": {"binary_data_size": len(raw)},
                        }
                    ],
                    "parameters": {"binary_data_output": True},
                }
            ).encode()
            answer = await client.ask(
                text + raw, f"Inference-Header-Content-Length: {len(text)}\r\n"
            )
            at = int(answer.headers["inference-header-content-length"])
            assert np.frombuffer(answer.body[at:], np.float32).tolist() == [2.0, 6.0]
            many = json.dumps(
                {
                    "inputs": [
                        {"name": "x", "datatype": "FP32", "shape": [600, 2], "data": [0.5] * 1200}
                    ]
                }
            ).encode()
            answer = await client.ask(many, "Accept-Encoding: gzip\r\n")
            assert answer.headers["content-encoding"] == "gzip"
            unpacked = json.loads(gzip.decompress(answer.body))
            assert unpacked["outputs"][0]["data"] == [1.0] * 1200
            # Three for its warm-up; the last request's 600 rows are runs of 64 at most.
            assert cloud.runtime.runs == 3 + 2 + 10

    run(main())


def test_the_deadline_of_a_request_holds_at_its_end(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            given: list[float] = []
            submit = cloud.site.submit

            def see(request: Request) -> None:
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


def test_a_client_that_goes_is_noticed_at_the_other_end(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, metro, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "metro"))
            client, other = await edge.client(), await edge.client()
            client.send()
            await until(lambda: cloud.site.in_flight == 1)
            other.send()
            await until(lambda: cloud.site.in_flight == 2)
            client.writer.transport.abort()
            await until(lambda: edge.site.stats.total(Outcome.CANCELED) == 1)
            await until(lambda: metro.hops["cloud"].in_flight == 1)
            await until(lambda: len(cloud.peers.connections) == 1)
            held.gate.set()
            assert (await other.read()).status == 200
            await until(lambda: cloud.site.stats.total(Outcome.CANCELED) == 1)
            assert edge.site.pool.dispatcher.balance == pytest.approx(0.9 - 0.8)

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


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_node_that_dies_in_mid_request(run: Any, idempotent: bool) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, metro, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "metro"), idempotent=idempotent)
            client = await edge.client()
            client.send()
            await until(lambda: cloud.site.in_flight == 1)
            cloud.peers.close()
            cloud.peers.abort()
            answer = await client.read()
            held.gate.set()
            if idempotent:
                assert answer.status == 200, answer.error
                assert answer.headers["inferway-path"] == "edge"
                assert (edge.runtime.runs, edge.site.stats.moved) == (3 + 1, [0, 1])
            else:
                assert answer.status == 502
                assert "node cloud closed the connection before it answered" in answer.error
                assert "inferway-unserved" not in answer.headers
                assert answer.headers["inferway-path"] == "edge,metro"
                assert edge.runtime.runs == 3  # its warm-up
            assert metro.seen == [("task", "edge", False, "tiny")]

    run(main())


def test_nodes_write_what_nodes_read_in_one_step(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    request, answer = connection.whole, Answer.whole
    monkeypatch.setattr(connection, "whole", lambda data: found.append(request(data)) or found[-1])
    monkeypatch.setattr(Answer, "whole", lambda data: found.append(answer(data)) or found[-1])

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


MALFORMED = [
    ("[1.0, null]", "the data of input 'x' is not FP32"),
    ("[1.0, 2.0, 3.0]", "input 'x' has 3 elements, its shape [1, 2] says 2"),
    ('[[1.0, "a"]]', "the data of input 'x' is "),
    ("[1e999, 0.0]", "the data of input 'x' is "),
]


def test_what_is_nested_too_deep_is_refused_on_the_peer_port(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            heading = "Inferway-Node: cloud\r\nInferway-Variant: tiny\r\nInferway-Path: edge\r\n"
            peer, client = await cloud.client(peer=True), await edge.client()
            deep = b"[" * 100_000 + b"]" * 100_000
            for body in (deep, b'{"x": %s}' % deep, BODY.replace(b"[1.0, 2.0]", deep)):
                for answer in (await peer.ask(body, heading), await client.ask(body)):
                    assert answer.status == 400
                    assert answer.error.startswith("the request is not valid: ")
            assert (await peer.ask(BODY, heading)).status == 200
            assert (await client.ask()).status == 200

    run(main())


@pytest.mark.parametrize(("data", "said"), MALFORMED)
def test_malformed_numbers_are_refused_by_whoever_decodes_them(
    run: Any, data: str, said: str
) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            text = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": %s}]}'
            client = await edge.client()
            refused = [await client.ask((text % data).encode()) for _ in range(5)]
            edge.hops["cloud"].lose("gone")
            alone = [await client.ask((text % data).encode()) for _ in range(5)]
            for answer in refused + alone:
                assert answer.status == 400, answer.body
                assert answer.error.startswith(said)
                assert "inferway-unserved" not in answer.headers
            assert {one.headers["inferway-path"] for one in refused} == {"edge,cloud"}
            assert {one.headers["inferway-path"] for one in alone} == {"edge"}
            # Nothing of it is the models' fault, and it does not count.
            assert edge.runtime.runs == cloud.runtime.runs == 3
            assert edge.site.pool.health.healthy[0]
            assert all(cloud.site.pool.health.healthy)
            assert edge.site.pool.dispatcher.balance == 0.0
            assert edge.site.stats.total(Outcome.INVALID) == 10
            assert edge.site.in_flight == 0
            assert (await client.ask()).json["outputs"][0]["data"] == [2.0, 4.0]

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
            edge.hops["cloud"].lose("gone")
            assert (await client.ask()).headers["inferway-path"] == "edge"
            assert decoded == ["x", "x"]

    run(main())


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def test_a_node_that_has_died_costs_nobody_an_answer_and_is_taken_back(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud") as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            client = await edge.client()
            assert (await client.ask()).headers["inferway-node"] == "cloud"
            port = metro.peers.port
            metro.peers.close()
            metro.peers.abort()
            while await listens(port):
                pass
            for _ in range(30):
                answer = await client.ask()
                assert answer.status == 200, answer.error
                assert answer.headers["inferway-node"] == "edge"
            assert edge.site.pool.health.healthy == [True, False, False]
            metro.peers = Listener(metro.relay.find, metro._broken, hops=True)
            await metro.peers.start("127.0.0.1", port)
            await until(lambda: all(edge.site.pool.health.healthy))
            assert (await client.ask()).headers["inferway-node"] == "cloud"

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


def trail_of(node: Node) -> Trail:
    assert node.site.trail is not None
    return node.site.trail


def test_a_degraded_node_says_so(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            cloud.relay.trail.degraded = "unheard"
            trail_of(cloud).degraded = "cloud is short of memory"
            client = await edge.client()
            assert (await client.ask()).headers["inferway-degraded"] == "cloud is short of memory"
            trail_of(edge).degraded = "no way to isp"
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
