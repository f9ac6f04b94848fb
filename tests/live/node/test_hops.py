"""Requests on their way through nodes: what a hop must not lose, as clients see it."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from row import BODY, row, until

NAMES = ("edge", "metro", "cloud")
PAIR = ("edge", "cloud")


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


def of_rows(count: int, value: float = 0.5) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [count, 2], "data": [value] * 2 * count}
    return json.dumps({"inputs": [tensor]}).encode()


def test_the_answer_names_variant_node_path_and_time(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES) as (edge, metro, cloud):
            client = await edge.client()
            answer = await client.ask(headers="X-Request-Id: mine\r\n")
            assert answer.status == 200, answer.body
            assert answer.json["outputs"][0]["data"] == [2.0, 4.0]
            parameters = answer.json["parameters"]
            assert (parameters["variant"], parameters["node"]) == ("big", "cloud")
            assert "accuracy_balance" not in parameters
            assert answer.headers["inferway-node"] == "cloud"
            assert answer.headers["inferway-variant"] == "big"
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            assert answer.headers["x-request-id"] == "mine"
            assert "inferway-unserved" not in answer.headers
            times = [float(one) for one in answer.headers["inferway-time-ms"].split(",")]
            assert len(times) == 3
            assert times == sorted(times, reverse=True)
            assert edge.status()["forwarded"] == metro.status()["passed"] == 1
            assert cloud.status()["served"] == 1
            # Who let it in keeps the balance.
            owed = [
                json.loads(await one.get("/status"))["tasks"]["task"]["accuracy_balance"]
                for one in (edge, cloud)
            ]
            assert owed == [pytest.approx(0.9 - 0.8), 0.0]
            explain = "/v2/models/task/explain/mine"
            here, there = [json.loads(await one.get(explain, admin=False)) for one in (edge, cloud)]
            assert here["variant"] == "big@cloud"
            # Who ran it knows with how many others, and counts the run.
            assert here["batch"] is None
            assert there["batch"] == {"requests": 1, "rows": 1}
            runs = [
                await edge.counted("inferway_batch_size_count"),
                await cloud.counted("inferway_batch_size_count", variant="big"),
            ]
            assert runs == [0.0, 1.0]

    run(main())


def test_each_node_tells_what_a_request_takes_of_it(run: Any, tmp_path: Path) -> None:
    """Also one that has none of its own, and passes on what others ask."""

    async def main() -> None:
        async with row(tmp_path, *NAMES) as members:
            client = await members[0].client()
            for member in members:
                assert "overhead" not in json.loads(await member.get("/status"))
                assert await member.counted("inferway_request_overhead_seconds") == 0.0
                member.measure()
            for _ in range(5):
                for _ in range(25):
                    answer = await client.ask()
                    assert answer.headers["inferway-path"] == "edge,metro,cloud"
                for member in members:
                    member.measure()
            assert members[1].status()["passed"] == 125
            for member in members:
                told = json.loads(await member.get("/status"))["overhead"]
                assert (told["by"], told["intervals"]) == ("measured", 5)
                assert told["seconds"] == told["measured_s"] > 0.0
                shown = await member.counted("inferway_request_overhead_seconds")
                assert shown == told["seconds"]

    run(main())


def test_what_is_served_at_the_entry_says_so_too(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *PAIR) as (edge, _):
            client = await edge.client()
            answer = await client.ask(variant="tiny")
            assert answer.json["parameters"]["node"] == "edge"
            assert answer.headers["inferway-path"] == "edge"
            assert answer.headers["inferway-variant"] == "tiny"
            assert len(answer.headers["inferway-time-ms"].split(",")) == 1
            answer = await client.ask(b"{")
            assert (answer.status, answer.headers["inferway-node"]) == (400, "edge")

    run(main())


def test_a_client_cannot_pretend_to_be_a_neighbor(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *PAIR) as (_, cloud):
            answer = await (await cloud.client()).ask(
                headers="Inferway-Node: edge\r\nInferway-Path: cloud\r\n"
                "Inferway-Variant: tiny\r\nInferway-Deadline-Ms: 0\r\n"
            )
            assert (answer.status, answer.headers["inferway-path"]) == (200, "cloud")

    run(main())


def test_forms_of_bodies_pass(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES) as (edge, _, cloud):
            client = await edge.client()
            answer = await client.ask(gzip.compress(BODY), "Content-Encoding: gzip\r\n")
            assert answer.json["outputs"][0]["data"] == [2.0, 4.0]
            raw = np.array([1.0, 3.0], np.float32).tobytes()
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
            tensor["parameters"] = {"binary_data_size": len(raw)}
            asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
            text = json.dumps(asked).encode()
            answer = await client.ask(
                text + raw, f"Inference-Header-Content-Length: {len(text)}\r\n"
            )
            at = int(answer.headers["inference-header-content-length"])
            assert np.frombuffer(answer.body[at:], np.float32).tolist() == [2.0, 6.0]
            answer = await client.ask(of_rows(600), "Accept-Encoding: gzip\r\n")
            assert answer.headers["content-encoding"] == "gzip"
            unpacked = json.loads(gzip.decompress(answer.body))
            assert unpacked["outputs"][0]["data"] == [1.0] * 1200
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            # The last request's 600 rows are runs of 64 at most.
            assert await cloud.counted("inferway_batch_size_count", variant="big") == 2 + 10

    run(main())


def test_the_deadline_of_a_request_goes_along(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *PAIR) as (edge, _):
            client = await edge.client()
            body = json.loads(BODY) | {"parameters": {"deadline_ms": 5000.0}}
            assert (await client.ask(json.dumps(body).encode())).node == "cloud"
            (left_ms,) = re.findall(rb"(?i)inferway-deadline-ms: ([\d.]+)", edge.wire.asked)
            assert 0.0 < float(left_ms) < 5000.0
            edge.wire.asked.clear()
            assert (await client.ask()).node == "cloud"
            assert edge.wire.asked
            assert b"deadline" not in edge.wire.asked.lower()

    run(main())


def test_a_client_that_goes_is_noticed_at_the_other_end(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES, rate=3000) as (edge, metro, cloud):
            cloud.model.gate.clear()
            client, other = await edge.client(), await edge.client()
            client.send()
            await until(lambda: cloud.model.waiting == 1)
            other.send()
            await until(lambda: metro.status()["passed"] == 2)
            client.writer.transport.abort()
            await edge.canceled()
            cloud.model.gate.set()
            assert (await other.read()).status == 200
            await cloud.canceled()
            balance = json.loads(await edge.get("/status"))["tasks"]["task"]["accuracy_balance"]
            assert balance == pytest.approx(0.9 - 0.8)

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_node_that_dies_in_mid_request(run: Any, tmp_path: Path, idempotent: bool) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES, idempotent=idempotent) as (edge, metro, cloud):
            cloud.model.gate.clear()
            client = await edge.client()
            client.send()
            await until(lambda: cloud.model.waiting == 1)
            metro.wire.refuse()
            metro.wire.end()
            answer = await client.read()
            cloud.model.gate.set()
            ran = await edge.counted("inferway_answers_total", variant="tiny")
            if idempotent:
                assert answer.status == 200, answer.error
                assert answer.headers["inferway-path"] == "edge"
                assert ran == 1.0
            else:
                assert answer.status == 502
                assert "node cloud closed the connection before it answered" in answer.error
                assert "inferway-unserved" not in answer.headers
                assert answer.headers["inferway-path"] == "edge,metro"
                assert ran == 0.0

    run(main())


def test_what_is_nested_too_deep_is_refused_on_the_peer_port(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, *PAIR) as (edge, cloud):
            heading = "Inferway-Node: cloud\r\nInferway-Variant: big\r\nInferway-Path: edge\r\n"
            peer, client = await cloud.client(peer=True), await edge.client()
            deep = b"[" * 100_000 + b"]" * 100_000
            for body in (deep, b'{"x": %s}' % deep, BODY.replace(b"[1.0, 2.0]", deep)):
                for answer in (await peer.ask(body, heading), await client.ask(body)):
                    assert answer.status == 400
                    assert answer.error.startswith("the request is not valid: ")
            assert (await peer.ask(BODY, heading)).status == 200
            assert (await client.ask()).status == 200

    run(main())


MALFORMED = [
    ("[1.0, null]", "the data of input 'x' is not FP32"),
    ("[1.0, 2.0, 3.0]", "input 'x' has 3 elements, its shape [1, 2] says 2"),
    ('[[1.0, "a"]]', "the data of input 'x' is "),
    ("[1e999, 0.0]", "the data of input 'x' is "),
]


@pytest.mark.parametrize(("data", "said"), MALFORMED)
def test_malformed_numbers_are_refused_by_whoever_decodes_them(
    run: Any, tmp_path: Path, data: str, said: str
) -> None:
    async def main() -> None:
        async with row(tmp_path, *PAIR) as (edge, cloud):
            text = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": %s}]}'
            client = await edge.client()
            runs = edge.model.runs, cloud.model.runs
            far = [await client.ask((text % data).encode()) for _ in range(5)]
            near = [await client.ask((text % data).encode(), variant="tiny") for _ in range(5)]
            for answer in far + near:
                assert answer.status == 400, answer.body
                assert answer.error.startswith(said)
                assert "inferway-unserved" not in answer.headers
            assert {one.headers["inferway-path"] for one in far} == {"edge,cloud"}
            assert {one.headers["inferway-path"] for one in near} == {"edge"}
            # Nothing of it is the models' fault, and it does not count.
            assert (edge.model.runs, cloud.model.runs) == runs
            hop = edge.hop("cloud")
            assert (hop.usable, hop.errors) == (True, 0)
            assert await edge.counted("inferway_requests_total", outcome="invalid") == 10.0
            balance = json.loads(await edge.get("/status"))["tasks"]["task"]["accuracy_balance"]
            assert balance == 0.0
            assert (await client.ask()).json["outputs"][0]["data"] == [2.0, 4.0]

    run(main())


def test_a_node_that_has_died_costs_nobody_an_answer_and_is_taken_back(
    run: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        async with row(tmp_path, *NAMES) as (edge, _, _):
            client = await edge.client()
            assert (await client.ask()).node == "cloud"
            edge.wire.refuse()
            edge.wire.end()
            for _ in range(30):
                answer = await client.ask()
                assert answer.status == 200, answer.error
                assert answer.node == "edge"
            assert not edge.hop("metro").usable
            await edge.wire.open(port=edge.wire.port)
            await until(lambda: edge.hop("metro").usable)
            # What it offers may be told a moment later; until then the copy here answers.
            async with asyncio.timeout(60):
                while (answer := await client.ask()).node != "cloud":
                    assert answer.node == "edge"

    run(main())
