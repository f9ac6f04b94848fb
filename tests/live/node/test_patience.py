"""Neighbors whose health is well and whose answers do not come, or never end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from row import Answered, Client, Member, row, until
from wire import ENDLESS, Spoil, announced, replaced, swallowed

LONGEST_S = 15.0
"""Five times as long as what was predicted to take less than 250 ms may take in all."""
LEAST_WAIT_S = 0.1
"""Between two tries of a neighbor that does not work."""
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


def spoil(member: Member, how: Spoil, piece: int = 0) -> None:
    """Spoil what the next node answers, but not what it says of its health."""
    wire = member.wire
    wire.spoil, wire.piece, wire.sparing = how, piece, True


async def answered_by(node: str, client: Client) -> None:
    """Ask until a node answers; meanwhile others do."""
    async with asyncio.timeout(LONGEST_S):
        while (answer := await client.ask()).node != node:
            assert answer.status == 200, answer.error


async def read_in_time(clients: list[Client], begun_s: float) -> list[Answered]:
    answers = [await client.read() for client in clients]
    assert time.monotonic() - begun_s < LONGEST_S
    return answers


@pytest.mark.parametrize(("how", "piece", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_may_be_run_twice_is_taken_back_and_given_to_others(
    run: Any, tmp_path: Path, how: Spoil, piece: int, reason: str
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", rate=3000) as (edge, _):
            # More than the budget of retries has at the beginning.
            clients = [await edge.client() for _ in range(40)]
            client = clients[0]
            assert (await client.ask()).node == "cloud"
            before = edge.hop("cloud")
            spoil(edge, how, piece)
            begun_s = time.monotonic()
            for one in clients:
                one.send()
            answers = await read_in_time(clients, begun_s)
            assert {(one.status, one.node) for one in answers} == {(200, "edge")}
            hop = edge.hop("cloud")
            assert reason in hop.reason
            assert hop.lost - before.lost >= 40
            # What comes then is answered by others, but for one now and then that tries it.
            again_s = time.monotonic()
            for _ in range(20):
                answer = await client.ask()
                assert (answer.status, answer.node) == (200, "edge")
            tried = edge.hop("cloud").sent - hop.sent
            assert tried <= 1 + (time.monotonic() - again_s) / LEAST_WAIT_S
            edge.wire.heal()
            await until(lambda: edge.hop("cloud").usable)
            await answered_by("cloud", client)

    run(main())


@pytest.mark.parametrize(("how", "piece", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_may_not_be_run_twice_is_taken_back_and_told_so(
    run: Any, tmp_path: Path, how: Spoil, piece: int, reason: str
) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud", idempotent=False) as (edge, _):
            client = await edge.client()
            assert (await client.ask()).node == "cloud"
            spoil(edge, how, piece)
            begun_s, answers = time.monotonic(), []
            while edge.hop("cloud").usable:
                client.send()
                answers += await read_in_time([client], begun_s)
            assert {answer.status for answer in answers} == {502}
            for answer in answers:
                assert answer.error.startswith(reason)
                assert answer.error.endswith("; the request may have been run")
                assert "inferway-unserved" not in answer.headers
            again_s = time.monotonic()
            answers = [await client.ask() for _ in range(20)]
            failed = [answer for answer in answers if answer.status != 200]
            assert {answer.status for answer in failed} <= {502}
            assert len(failed) <= 1 + (time.monotonic() - again_s) / LEAST_WAIT_S
            edge.wire.heal()
            await until(lambda: edge.hop("cloud").usable)

    run(main())


@pytest.mark.parametrize("idempotent", [True, False])
def test_the_node_before_it_takes_back_first_and_is_not_blamed(
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
            spoil(metro, swallowed)
            begun_s = time.monotonic()
            client.send()
            (answer,) = await read_in_time([client], begun_s)
            if idempotent:
                assert (answer.status, answer.node) == (200, "edge")
            else:
                assert (answer.status, answer.node) == (502, "metro")
                assert "node cloud did not answer within 1.6 s" in answer.error
                assert answer.error.endswith("; the request may have been run")
            assert (metro.hop("cloud").hung, edge.hop("metro").hung) == (1, 0)
            assert edge.hop("metro").usable

    run(main())


def test_one_that_answers_others_meanwhile_is_not_left_out(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        async with row(tmp_path, "edge", "cloud") as (edge, _):
            stuck, client = await edge.client(), await edge.client()
            swallowing = [True]
            assert (await client.ask()).node == "cloud"

            def first(data: bytes) -> bytes:
                return b"" if swallowing and swallowing.pop() else data

            spoil(edge, first)
            stuck.send()
            await until(lambda: not swallowing)
            ended = asyncio.create_task(stuck.read())
            while not ended.done():
                assert (await client.ask()).status == 200
            assert (ended.result().status, ended.result().node) == (200, "edge")
            hop = edge.hop("cloud")
            assert (hop.lost, hop.hung, hop.usable) == (1, 0, True)
            assert (await client.ask()).node == "cloud"

    run(main())


@pytest.mark.parametrize("names", [("edge", "cloud"), ("edge", "metro", "cloud")], ids=len)
def test_what_was_predicted_to_take_long_may(
    run: Any, tmp_path: Path, names: tuple[str, ...]
) -> None:
    async def main() -> None:
        # In four seconds; the whole is as long as a client waits here.
        async with row(tmp_path, *names, mean="4 s") as members:
            edge, *_, cloud = members
            cloud.model.gate.clear()
            client, begun_s = await edge.client(), time.monotonic()
            client.send()
            await until(lambda: time.monotonic() - begun_s > 3.0)
            cloud.model.gate.set()
            answer = await client.read()
            assert (answer.status, answer.node) == (200, "cloud")
            for node, following in itertools.pairwise(members):
                assert node.hop(following.name).lost == 0

    run(main())
