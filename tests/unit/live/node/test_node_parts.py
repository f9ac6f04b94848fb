"""A whole node, of which some parts are held: what it learns goes on, what goes is not offered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from test_batched import MANY, batching
from test_node import LIMIT_S, world

import inferway
from inferway.dispatch import recordings

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)


@pytest.fixture
def run() -> Callable[[Awaitable[None]], None]:
    def to_its_end(main: Awaitable[None]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * LIMIT_S):
                await main

        asyncio.run(limited())

    return to_its_end


def test_slots_end_and_what_was_learned_is_taken_up_again(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            await both.start("cloud")
            edge = await both.start("edge")
            await both.met()
            before = edge.placement.policy.state.y.copy()
            ended = edge.status()["slots"]
            for _ in range(20):
                assert (await both.ask("/versions/large")).status_code == 200
            await both.until(lambda: edge.status()["slots"] >= ended + 2)
            learned = edge.placement.policy.state.y.copy()
            assert (learned != before).any()
            slot = edge.placement.slot
            await both.stop("edge")
            edge = await both.start("edge")
            assert edge.placement.slot >= slot
            assert (edge.placement.policy.state.y == learned).all()
            assert edge.placement.wanted == {
                key: copies for key, copies in edge.placement.wanted.items() if copies
            }

    run(main())


def test_what_goes_is_offered_no_more_before_it_moves(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with world(tmp_path, "repository-only") as both:
            edge = await both.start("edge")
            small = ("digits-0", "small")
            # No slot is to come in between.
            for task in tuple(edge._tasks):
                task.cancel()
            assert await edge.reconciler.toward({small: 1})
            assert small in edge.fleets.running
            happened: list[str] = []
            offer, run_sites = edge.offer_table.offer, edge.fleets.run

            def offered(own: Any) -> None:
                told = list(own)
                there = any((one.task, one.variant) == small for one in told)
                happened.append("offered" if there else "not offered")
                offer(told)

            async def ran(running: Any) -> None:
                happened.append("moved")
                await run_sites(running)

            edge.offer_table.offer, edge.fleets.run = offered, ran  # type: ignore[method-assign]
            # As when what failed is tried again: nobody has said anew what is wanted.
            assert await edge.reconciler.toward({})
            assert "offered" not in happened
            assert happened.index("not offered") < happened.index("moved")
            await edge.reconciler.toward({small: 1})
            assert happened[-1] == "offered"

    run(main())


def test_what_nodes_with_batches_decided_is_decided_again(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async with batching(tmp_path) as both:
            for variant in ("mini", "large"):
                await both.ask_all(variant)
            # A copy comes in the middle of requests, and forms batches as well.
            asking = asyncio.create_task(both.ask_all("mini"))
            assert await both.edge.reconciler.toward({("digits-0", "large"): 1})
            await asking
            for _ in range(5):
                await both.ask_all("mini")
                await both.ask_all("large")
            assert (await both.runs("edge", "large"))[1] > 0

    run(main())
    asked = 0
    for node in ("edge", "cloud"):
        for folder in recordings(tmp_path / "recorded" / node):
            found = inferway.replay(folder, requests=None)
            assert (found.differences, found.losses) == ((), ())
            asked += found.requests
    assert asked > 12 * MANY
