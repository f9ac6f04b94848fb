"""Neighbors whose control plane may live and whose HTTP hangs, drips, announces or fails."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from row import Answered, Member, row, until
from wire import Spoil, announced, replaced

LIMIT_S = 30.0
LEAST_WAIT_S = 0.1
"""Between two tries of a neighbor that does not work."""
EMPTY = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


async def ask_together(node: Member, count: int) -> list[Answered]:
    clients = [await node.client() for _ in range(count)]
    for client in clients:
        client.send()
    return [await client.read() for client in clients]


async def answered_by(node: str, entry: Member) -> None:
    """Ask until a node answers; meanwhile others do."""
    client = await entry.client()
    async with asyncio.timeout(LIMIT_S):
        while (answer := await client.ask()).node != node:
            assert answer.status == 200, answer.error


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_a_hung_neighbor_has_is_given_to_others_and_it_is_taken_back(
    run: Any, tmp_path: Path, encrypted: bool
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", rate=3000, encrypted=encrypted) as (edge, _):
            client, wire = await edge.client(), edge.wire
            assert (await client.ask()).node == "cloud"
            wire.cut()
            # More than the budget of retries has at the beginning.
            answers = await ask_together(edge, 40)
            assert [answer.status for answer in answers] == [200] * 40
            assert {answer.node for answer in answers} == {"edge"}
            # Where a probe had the connection that is kept, none could be made in time.
            assert edge.hop("cloud").hung <= 1
            assert not edge.hop("cloud").usable
            sent = edge.hop("cloud").sent
            for _ in range(20):
                answer = await client.ask()
                assert (answer.status, answer.node) == (200, "edge")
            assert edge.hop("cloud").sent == sent
            wire.heal()
            await until(lambda: edge.hop("cloud").usable)
            await answered_by("cloud", edge)
            await until(lambda: edge.hop("cloud").usable)

    run(main())


def test_what_may_not_be_run_twice_is_told_so(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            client = await edge.client()
            assert (await client.ask()).node == "cloud"
            edge.wire.cut()
            answer = await client.ask()
            assert answer.status == 502
            assert answer.error == (
                "node cloud did not say within 500 ms that it lives; the request may have been run"
            )
            assert "inferway-unserved" not in answer.headers
            assert (await client.ask()).node == "edge"
            page = await edge.get("/metrics")
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
def test_a_relay_notices_what_hangs_behind_it_and_is_not_blamed(
    run: Any, tmp_path: Path, idempotent: bool
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "metro", "cloud", idempotent=idempotent) as (
            edge,
            metro,
            _,
        ):
            client = await edge.client()
            assert (await client.ask()).node == "cloud"
            metro.wire.cut()
            answer = await client.ask()
            if idempotent:
                assert (answer.status, answer.node) == (200, "edge")
            else:
                assert answer.status == 502
                assert "node cloud did not say within 500 ms that it lives" in answer.error
                assert answer.error.endswith("the request may have been run")
                assert answer.headers["inferway-path"] == "edge,metro"
            assert (metro.hop("cloud").hung, edge.hop("metro").hung) == (1, 0)
            assert edge.hop("metro").usable
            for _ in range(5):
                assert (await client.ask()).node == "edge"
            metro.wire.heal()
            await until(lambda: metro.hop("cloud").usable)
            await answered_by("cloud", edge)

    run(main())


def test_a_neighbor_that_is_slow_and_lives_is_waited_for(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", mean="4 s") as (edge, cloud):
            cloud.model.gate.clear()
            client = await edge.client()
            client.send()
            await until(lambda: edge.hop("cloud").asked >= 3)
            cloud.model.gate.set()
            answer = await client.read()
            assert (answer.status, answer.node) == (200, "cloud")
            # Whoever was asked on a connection of its own keeps it for what comes.
            await until(lambda: edge.wire.connections >= 1 + edge.hop("cloud").asked)
            assert (edge.hop("cloud").hung, edge.hop("cloud").lost) == (0, 0)
            assert edge.hop("cloud").usable

    run(main())


def test_one_that_takes_no_more_connections_still_answers(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, cloud):
            cloud.model.gate.clear()
            client = await edge.client()
            client.send()
            await until(lambda: cloud.model.waiting == 1)
            edge.wire.refuse()
            await until(lambda: not edge.hop("cloud").usable)
            cloud.model.gate.set()
            answer = await client.read()
            assert (answer.status, answer.node) == (200, "cloud")

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
    run: Any, tmp_path: Path, spoil: Spoil | None, piece: int, idempotent: bool, sparing: bool
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=idempotent) as (edge, _):
            client, wire = await edge.client(), edge.wire
            assert (await client.ask()).node == "cloud"
            wire.spoil, wire.piece, wire.sparing = spoil, piece, sparing
            answers = [await client.ask() for _ in range(5)]
            if idempotent:
                assert {(one.status, one.node) for one in answers} == {(200, "edge")}
            else:
                assert answers[0].status == 502
                assert "node cloud" in answers[0].error
                assert answers[0].error.endswith("the request may have been run")
            await until(lambda: not edge.hop("cloud").usable)
            wire.heal()
            await until(lambda: edge.hop("cloud").usable)
            await answered_by("cloud", edge)
            assert edge.hop("cloud").usable

    run(main())


def test_an_answer_that_is_slow_and_gets_on_is_waited_for(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            edge.wire.piece = 4096
            client = await edge.client()
            rows = 10_000
            many = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": [0.5] * 2 * rows}
            answer = await client.ask(json.dumps({"inputs": [many]}).encode())
            assert (answer.status, answer.node) == (200, "cloud")
            assert len(answer.body) > 10 * 4096
            assert edge.hop("cloud").lost == 0

    run(main())


@pytest.mark.parametrize("code", ["500", "502", "599", "302"])
def test_errors_that_no_node_wrote_are_put_into_words_and_count(
    run: Any, tmp_path: Path, code: str
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            client, wire = await edge.client(), edge.wire
            assert (await client.ask()).node == "cloud"
            wire.spoil = replaced(EMPTY.replace(b"500", code.encode()))
            refused = [await client.ask() for _ in range(3)]
            for answer in refused:
                assert answer.status == 502
                assert answer.headers["content-type"] == "application/json"
                assert answer.error == (
                    f"node cloud answered {code}, and no node wrote that; "
                    "the request may have been run"
                )
            assert (edge.hop("cloud").errors, edge.hop("cloud").usable) == (3, False)
            assert (await client.ask()).node == "edge"
            wire.heal()
            await until(lambda: edge.hop("cloud").usable)
            await answered_by("cloud", edge)

    run(main())


def test_errors_that_no_node_wrote_are_given_to_others_where_that_may_be(
    run: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "metro", "cloud") as (edge, metro, _):
            client, wire = await edge.client(), metro.wire
            assert (await client.ask()).node == "cloud"
            wire.spoil, wire.sparing = replaced(EMPTY), True
            for _ in range(10):
                answer = await client.ask()
                assert (answer.status, answer.node) == (200, "edge")
            # Whoever is behind the relay is at fault, and not the relay.
            assert metro.hop("cloud").errors >= 3
            assert edge.hop("metro").usable
            assert edge.hop("metro").errors == 0

    run(main())


def test_a_node_that_fails_at_everything_is_left_out(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            client, wire = await edge.client(), edge.wire
            wire.spoil, wire.sparing = failing, True
            begun_s = time.monotonic()
            answers = [await client.ask() for _ in range(20)]
            took_s = time.monotonic() - begun_s
            failed = [answer for answer in answers if answer.status != 200]
            assert {answer.status for answer in failed} == {500}
            assert {answer.node for answer in failed} == {"cloud"}
            # Five in a row, and one each time that it is tried again.
            assert 5 <= len(failed) <= 6 + took_s / LEAST_WAIT_S
            assert answers[5].node == "edge"
            wire.heal()
            await until(lambda: edge.hop("cloud").usable)
            await answered_by("cloud", edge)

    run(main())


def failing(data: bytes) -> bytes:
    """Turn an answer into an error of the same node, without a word."""
    head, _, _ = data.partition(b"\r\n\r\n")
    head = head.replace(b"200 OK", b"500 Internal Server Error")
    return re.sub(rb"Content-Length: \d+", b"Content-Length: 0", head) + b"\r\n\r\n"


def test_an_empty_refusal_is_put_into_words(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            edge.wire.spoil = failing
            client = await edge.client()
            answer = await client.ask(variant="big")
            assert answer.status == 500
            assert answer.error == "node cloud answered 500"
            assert answer.headers["content-type"] == "application/json"

    run(main())
