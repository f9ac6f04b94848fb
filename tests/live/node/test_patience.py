"""Neighbors whose health is well and whose answers do not come, or never end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from chain import Answered, Client, Held, Node, line, until
from wire import ENDLESS, Spoil, announced, replaced, swallowed

LONGEST_S = 15.0
"""Five times as long as what was predicted to take less than 250 ms may take in all."""
LATE = "node cloud did not answer within 2 s"
FAULTS: dict[str, tuple[Spoil, int, str]] = {
    "never answers": (swallowed, 0, LATE),
    "drips quickly and without end": (
        replaced(ENDLESS),
        16_384,
        "node cloud did not end its answer within 2 s",
    ),
    "announces more than is ever read": (
        announced(10**15),
        0,
        "node cloud is not understood: it announces 1000000000000000 bytes",
    ),
}


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


def spoil(node: Node, neighbor: str, how: Spoil, piece: int = 0) -> None:
    """Spoil what a neighbor answers, but not what it says of its health."""
    wire = node.wires[neighbor]
    wire.spoil, wire.piece, wire.sparing = how, piece, True


def node_of(answer: Answered) -> str:
    return answer.headers["inferway-node"]


async def read_in_time(clients: list[Client], begun_s: float) -> list[Answered]:
    answers = [await client.read() for client in clients]
    assert time.monotonic() - begun_s < LONGEST_S
    return answers


@pytest.mark.parametrize(("how", "piece", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_may_be_run_twice_is_taken_back_and_given_to_others(
    run: Any, how: Spoil, piece: int, reason: str
) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=True, copies=40)
            # More than the budget of retries has at the beginning.
            clients = [await edge.client() for _ in range(40)]
            client, hop = clients[0], edge.hops["cloud"]
            assert node_of(await client.ask()) == "cloud"
            spoil(edge, "cloud", how, piece)
            begun_s = time.monotonic()
            for one in clients:
                one.send()
            answers = await read_in_time(clients, begun_s)
            assert {(one.status, node_of(one)) for one in answers} == {(200, "edge")}
            assert hop.breaker.opened == 1
            assert reason in hop.reason
            # What comes then is answered by others, but for one now and then that tries it.
            for _ in range(20):
                answer = await client.ask()
                assert (answer.status, node_of(answer)) == (200, "edge")
            assert hop.sent <= 41 + hop.breaker.tried
            edge.wires["cloud"].heal()
            await until(lambda: all(edge.site.pool.health.healthy))
            assert node_of(await client.ask()) == "cloud"
            await until(lambda: hop.breaker.closed)

    run(main())


@pytest.mark.parametrize(("how", "piece", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_may_not_be_run_twice_is_taken_back_and_told_so(
    run: Any, how: Spoil, piece: int, reason: str
) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            client, hop = await edge.client(), edge.hops["cloud"]
            assert node_of(await client.ask()) == "cloud"
            spoil(edge, "cloud", how, piece)
            begun_s, answers = time.monotonic(), []
            while hop.works:
                client.send()
                answers += await read_in_time([client], begun_s)
            assert {answer.status for answer in answers} == {502}
            for answer in answers:
                assert answer.error.startswith(reason)
                assert answer.error.endswith("; the request may have been run")
                assert "inferway-unserved" not in answer.headers
            answers = [await client.ask() for _ in range(20)]
            failed = [answer for answer in answers if answer.status != 200]
            assert {answer.status for answer in failed} <= {502}
            assert len(failed) <= hop.breaker.tried
            edge.wires["cloud"].heal()
            await until(lambda: all(edge.site.pool.health.healthy))

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_the_node_before_it_takes_back_first_and_is_not_blamed(run: Any, idempotent: bool) -> None:
    async def main() -> None:
        async with line("edge", "metro", "cloud", wired=True) as (edge, metro, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"), idempotent=idempotent)
            client = await edge.client()
            assert node_of(await client.ask()) == "cloud"
            spoil(metro, "cloud", swallowed)
            begun_s = time.monotonic()
            client.send()
            (answer,) = await read_in_time([client], begun_s)
            if idempotent:
                assert (answer.status, node_of(answer)) == (200, "edge")
            else:
                assert (answer.status, node_of(answer)) == (502, "metro")
                assert "node cloud did not answer within 1.6 s" in answer.error
                assert answer.error.endswith("; the request may have been run")
            assert (metro.hops["cloud"].hung, edge.hops["metro"].hung) == (1, 0)
            assert edge.hops["metro"].breaker.closed

    run(main())


def test_one_that_answers_others_meanwhile_is_not_left_out(run: Any) -> None:
    async def main() -> None:
        async with line("edge", "cloud", wired=True) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"), idempotent=True)
            stuck, client = await edge.client(), await edge.client()
            hop, swallowing = edge.hops["cloud"], [True]
            assert node_of(await client.ask()) == "cloud"

            def first(data: bytes) -> bytes:
                return b"" if swallowing and swallowing.pop() else data

            spoil(edge, "cloud", first)
            stuck.send()
            await until(lambda: not swallowing)
            ended = asyncio.create_task(stuck.read())
            while not ended.done():
                assert (await client.ask()).status == 200
            assert (ended.result().status, node_of(ended.result())) == (200, "edge")
            assert (hop.failures, hop.hung, hop.breaker.opened) == (1, 0, 0)
            assert node_of(await client.ask()) == "cloud"

    run(main())


@pytest.mark.parametrize("names", [("edge", "cloud"), ("edge", "metro", "cloud")], ids=len)
def test_what_was_predicted_to_take_long_may(run: Any, names: tuple[str, ...]) -> None:
    async def main() -> None:
        async with line(*names) as (edge, *between, cloud):
            held = Held()
            cloud.runtime = held
            await cloud.serve()
            held.gate.clear()
            # In four seconds; the whole is as long as a client waits here.
            await edge.serve(("tiny", "cloud", names[1]), rate=0.25)
            client, begun_s = await edge.client(), time.monotonic()
            client.send()
            await until(lambda: time.monotonic() - begun_s > 3.0)
            held.gate.set()
            answer = await client.read()
            assert (answer.status, node_of(answer)) == (200, "cloud")
            for node in (edge, *between):
                assert all(hop.failures == 0 for hop in node.hops.values())

    run(main())
