"""Neighbors whose control plane may live and whose HTTP hangs, drips, announces or fails."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import issue
from chain import Answered, Held, Node, line, until
from prometheus_client import generate_latest
from wire import Spoil, announced, replaced

from inferway.live.metrics import registry_of
from inferway.live.pauses import Pauses

EMPTY = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


async def ask_together(node: Node, count: int) -> list[Answered]:
    clients = [await node.client() for _ in range(count)]
    for client in clients:
        client.send()
    return [await client.read() for client in clients]


def node_of(answer: Answered) -> str:
    return answer.headers["inferway-node"]


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_a_hung_neighbor_has_is_given_to_others_and_it_is_taken_back(
    run: Any, tmp_path: Path, encrypted: bool
) -> None:
    certs: dict[str, Path] = {}
    if encrypted:
        issue(["edge", "cloud"], tmp_path)
        certs = dict.fromkeys(("edge", "cloud"), tmp_path)

    async def main() -> None:
        async with line("edge", "cloud", wired=True, certs=certs) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=True, copies=40)
            client, hop, wire = await edge.client(), edge.hops["cloud"], edge.wires["cloud"]
            assert node_of(await client.ask()) == "cloud"
            wire.cut()
            # More than the budget of retries has at the beginning.
            answers = await ask_together(edge, 40)
            assert [answer.status for answer in answers] == [200] * 40
            assert {node_of(answer) for answer in answers} == {"edge"}
            assert hop.hung == 1
            assert not hop.breaker.closed
            sent = hop.sent
            for _ in range(20):
                answer = await client.ask()
                assert (answer.status, node_of(answer)) == (200, "edge")
            assert hop.sent == sent
            wire.heal()
            await until(lambda: all(edge.site.pool.health.healthy))
            assert node_of(await client.ask()) == "cloud"
            await until(lambda: hop.breaker.closed)

    run(main())


def test_what_may_not_be_run_twice_is_told_so(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            client = await edge.client()
            assert node_of(await client.ask()) == "cloud"
            edge.wires["cloud"].cut()
            answer = await client.ask()
            assert answer.status == 502
            assert answer.error == (
                "node cloud did not say within 500 ms that it lives; the request may have been run"
            )
            assert "inferway-unserved" not in answer.headers
            assert node_of(await client.ask()) == "edge"
            page = generate_latest(registry_of([edge.site], Pauses())).decode()
            for counted in (
                'requests_total{neighbor="cloud"} 2.0',
                'faults_total{fault="hung",neighbor="cloud"} 1.0',
                'faults_total{fault="lost",neighbor="cloud"} 1.0',
                'faults_total{fault="error",neighbor="cloud"} 0.0',
                'health_requests_total{neighbor="cloud"} 1.0',
                'usable{neighbor="cloud"} 0.0',
            ):
                assert f"inferway_neighbor_{counted}" in page

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_relay_notices_what_hangs_behind_it_and_is_not_blamed(run: Any, idempotent: bool) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud", wired=True) as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"), idempotent=idempotent)
            client = await edge.client()
            assert node_of(await client.ask()) == "cloud"
            metro.wires["cloud"].cut()
            answer = await client.ask()
            if idempotent:
                assert (answer.status, node_of(answer)) == (200, "edge")
            else:
                assert answer.status == 502
                assert "node cloud did not say within 500 ms that it lives" in answer.error
                assert answer.error.endswith("the request may have been run")
                assert answer.headers["inferway-path"] == "edge,metro"
            assert (metro.hops["cloud"].hung, edge.hops["metro"].hung) == (1, 0)
            assert edge.hops["metro"].breaker.closed
            for _ in range(5):
                assert node_of(await client.ask()) == "edge"
            metro.wires["cloud"].heal()
            await until(lambda: metro.hops["cloud"].works)
            assert node_of(await client.ask()) == "cloud"

    run(main())


def test_a_neighbor_that_is_slow_and_lives_is_waited_for(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=True, rate=0.25)
            client, hop = await edge.client(), edge.hops["cloud"]
            client.send()
            await until(lambda: hop.asked >= 3)
            held.gate.set()
            answer = await client.read()
            assert (answer.status, node_of(answer)) == (200, "cloud")
            # Whoever was asked on a connection of its own keeps it for what comes.
            await until(lambda: hop.opened >= 1 + hop.asked)
            assert (hop.hung, hop.failures) == (0, 0)
            assert hop.breaker.closed

    run(main())


def test_one_that_takes_no_more_connections_still_answers(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            await edge.serve(("tiny", "cloud", "cloud"))
            client, hop = await edge.client(), edge.hops["cloud"]
            client.send()
            await until(lambda: cloud.site.in_flight == 1)
            cloud.peers.close()
            await until(lambda: not hop.breaker.closed)
            held.gate.set()
            answer = await client.read()
            assert (answer.status, node_of(answer)) == (200, "cloud")

    run(main())


HANGING = {
    "drips": (None, 1),
    "announces more than comes": (announced(5_000), 0),
    "announces more than is read": (announced(10**15), 0),
    "stops in its headers": (lambda data: data[:20], 0),
}


@pytest.mark.parametrize("sparing", [True, False])
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(("spoil", "piece"), HANGING.values(), ids=HANGING)
def test_an_answer_that_does_not_get_on_is_given_up(
    run: Any, spoil: Spoil | None, piece: int, idempotent: bool, sparing: bool
) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=idempotent)
            client, wire = await edge.client(), edge.wires["cloud"]
            assert node_of(await client.ask()) == "cloud"
            wire.spoil, wire.piece, wire.sparing = spoil, piece, sparing
            answers = [await client.ask() for _ in range(5)]
            if idempotent:
                assert {(one.status, node_of(one)) for one in answers} == {(200, "edge")}
            else:
                assert answers[0].status == 502
                assert "node cloud" in answers[0].error
                assert answers[0].error.endswith("the request may have been run")
            await until(lambda: not all(edge.site.pool.health.healthy))
            wire.heal()
            await until(lambda: all(edge.site.pool.health.healthy))
            assert node_of(await client.ask()) == "cloud"
            assert edge.hops["cloud"].breaker.closed

    run(main())


def test_an_answer_that_is_slow_and_gets_on_is_waited_for(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            edge.wires["cloud"].piece = 4096
            client = await edge.client()
            rows = 10_000
            many = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": [0.5] * 2 * rows}
            answer = await client.ask(json.dumps({"inputs": [many]}).encode())
            assert (answer.status, node_of(answer)) == (200, "cloud")
            assert len(answer.body) > 10 * 4096
            assert edge.hops["cloud"].failures == 0

    run(main())


@pytest.mark.parametrize("code", ["500", "502", "599", "302"])
def test_errors_that_no_node_wrote_are_put_into_words_and_count(run: Any, code: str) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            client, hop, wire = await edge.client(), edge.hops["cloud"], edge.wires["cloud"]
            assert node_of(await client.ask()) == "cloud"
            wire.spoil = replaced(EMPTY.replace(b"500", code.encode()))
            refused = [await client.ask() for _ in range(3)]
            for answer in refused:
                assert answer.status == 502
                assert answer.headers["content-type"] == "application/json"
                assert answer.error == (
                    f"node cloud answered {code}, and no node wrote that; "
                    "the request may have been run"
                )
            assert (hop.errors, hop.breaker.closed) == (3, False)
            assert node_of(await client.ask()) == "edge"
            wire.heal()
            await until(lambda: all(edge.site.pool.health.healthy))
            assert node_of(await client.ask()) == "cloud"

    run(main())


def test_errors_that_no_node_wrote_are_given_to_others_where_that_may_be(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud", wired=True) as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"), idempotent=True)
            client, wire = await edge.client(), metro.wires["cloud"]
            assert node_of(await client.ask()) == "cloud"
            wire.spoil, wire.sparing = replaced(EMPTY), True
            for _ in range(10):
                answer = await client.ask()
                assert (answer.status, node_of(answer)) == (200, "edge")
            # Whoever is behind the relay is at fault, and not the relay.
            assert metro.hops["cloud"].errors >= 3
            assert edge.hops["metro"].breaker.closed
            assert edge.hops["metro"].errors == 0

    run(main())


def test_a_node_that_fails_at_everything_is_left_out(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            client, hop, wire = await edge.client(), edge.hops["cloud"], edge.wires["cloud"]
            wire.spoil, wire.sparing = failing, True
            answers = [await client.ask() for _ in range(20)]
            failed = [answer for answer in answers if answer.status != 200]
            assert {answer.status for answer in failed} == {500}
            assert {node_of(answer) for answer in failed} == {"cloud"}
            # Five in a row, and one each time that it is tried again.
            assert 5 <= len(failed) <= 5 + hop.breaker.tried
            assert node_of(answers[5]) == "edge"
            wire.heal()
            await until(lambda: hop.works)
            assert node_of(await client.ask()) == "cloud"

    run(main())


def failing(data: bytes) -> bytes:
    """Turn an answer into an error of the same node, without a word."""
    head, _, _ = data.partition(b"\r\n\r\n")
    head = head.replace(b"200 OK", b"500 Internal Server Error")
    return re.sub(rb"Content-Length: \d+", b"Content-Length: 0", head) + b"\r\n\r\n"


def test_an_empty_refusal_is_put_into_words(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            edge.wires["cloud"].spoil = failing
            client = await edge.client()
            answer = await client.ask(variant="tiny")
            assert answer.status == 500
            assert answer.error == "node cloud answered 500"
            assert answer.headers["content-type"] == "application/json"

    run(main())
