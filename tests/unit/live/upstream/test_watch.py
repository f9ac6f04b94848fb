"""What a site makes of what its hops know of their links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from doubling import SIGNATURE, Gate, One, give
from neighbor import Neighbor, Visit

from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, TaskSite
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.rtt import ENOUGH, FIRST
from inferway.live.upstream.upstream import Upstream
from inferway.site import Fleet

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

OWN, METRO, CLOUD = slice(0, 1), slice(1, 5), slice(5, 9)
"""Servers of the classes of `edge`."""


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


async def double(visit: Visit) -> None:
    """Response as metro does, which took no time, or as cloud, where it took 5 ms of 25."""
    there = visit.headers["inferway-node"] == "cloud"
    body = msgspec.json.encode(
        {
            "model_name": "task",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2.0, 2.0]}],
        }
    )
    visit.answer(
        b"HTTP/1.1 200 OK\r\nInferway-Node: %s\r\nInferway-Path: %s\r\nInferway-Time-Ms: %s\r\n"
        b"Content-Length: %d\r\n\r\n%s"
        % (
            b"cloud" if there else b"metro",
            b"edge,metro,cloud" if there else b"edge,metro",
            b"0.00,0.00" if there else b"0.00",
            len(body),
            body,
        )
    )


def site_at(hop: Upstream, rtt_s: float | None = None) -> TaskSite:
    """The node's own server, four virtual ones of metro's, and four of cloud's through metro."""
    fleet = Fleet(
        ("tiny", "tiny@metro", "tiny@cloud"),
        np.array([1e3, 1e2, 5e1]),
        np.array([0.7, 0.8, 0.9]),
        np.array([1, 4, 4]),
    )
    dispatcher = Dispatcher(fleet, "jiq-accurate", target=0.8, measure=True)
    ways = [
        Forwarding(hop, path[-1], "tiny", path, rtt_s=rtt_s)
        for path in (("metro",), ("metro", "cloud"))
        for _ in range(4)
    ]
    return TaskSite.of(
        Pool("task", SIGNATURE, dispatcher, [Gate(), *ways], PoolOptions(node="edge"))
    )


@asynccontextmanager
async def begun() -> AsyncIterator[tuple[Upstream, TaskSite]]:
    neighbor = await Neighbor(double).start()
    hop = Upstream("metro", "127.0.0.1", neighbor.port)
    site = site_at(hop)
    await site.start()
    try:
        yield hop, site
    finally:
        await site.stop()
        hop.close()
        await neighbor.stop()


async def ask(site: TaskSite, k: int, times: int) -> None:
    """Have a class answer so many requests, one after the other."""
    for _ in range(times):
        one = One(1.0)
        one.request.classes = 1 << k
        give(site, one)
        await one.answer()


def test_all_servers_behind_a_link_move_at_once(run: Any) -> None:
    async def main() -> None:
        async with begun() as (hop, site):
            view = site.pool.dispatcher.site
            await ask(site, 1, FIRST)
            await ask(site, 2, FIRST)
            before = view.row_s[:, 0].copy()
            assert np.ptp(before[CLOUD]) > 0.0  # some have measured, others have not
            hop.rtt_s = 0.2
            await ask(site, 2, ENOUGH)
            by_s = view.row_s[:, 0] - before
            assert by_s[OWN] == pytest.approx(0.0)
            assert by_s[METRO] == pytest.approx(0.2, abs=0.09)
            assert by_s[CLOUD] == pytest.approx(0.2, abs=0.09)
            assert view.rate[1] == pytest.approx(1.0 / view.row_s[METRO, 0].mean())
            hop.rtt_s = 0.0
            await ask(site, 1, ENOUGH)
            assert view.row_s[:, 0] == pytest.approx(before, abs=0.09)
            assert site.pool.dispatcher.balance != 0.0

    run(main())


def test_what_the_hop_learns_no_server_learns_again(run: Any) -> None:
    async def main() -> None:
        async with begun() as (hop, site):
            view = site.pool.dispatcher.site
            await ask(site, 1, FIRST)
            hop.rtt_s = 0.2
            # Servers that have measured nothing yet, or little: the first would take all of it.
            await ask(site, 2, ENOUGH - 1)
            assert view.measured[CLOUD, 0].sum() == 0
            await ask(site, 1, ENOUGH + 5)
            assert view.row_s[CLOUD, 0] == pytest.approx(0.22, abs=0.09)
            assert view.row_s[METRO, 0].max() < 0.35
            await ask(site, 2, 1)
            assert view.measured[CLOUD, 0].sum() == 1

    run(main())


def test_a_new_site_begins_with_what_is_known(run: Any) -> None:
    async def main() -> None:
        async with begun() as (hop, site):
            hop.rtt_s = 0.2
            await ask(site, 1, FIRST)
            # Its times are those of offers that count on 10 ms; of the far link nothing is known.
            young = site_at(hop, rtt_s=0.01)
            await young.start()
            view = young.pool.dispatcher.site
            assert view.row_s[OWN, 0] == pytest.approx(1e-3)
            assert view.row_s[METRO, 0] == pytest.approx(0.2, abs=0.05)
            assert view.row_s[CLOUD, 0] == pytest.approx(0.02)
            # One that has learned at this distance has nothing to add.
            heir = site_at(hop, rtt_s=hop.trips.round_trip_s(("metro",)))
            await heir.start()
            assert heir.pool.dispatcher.site.row_s[METRO, 0] == pytest.approx(0.01)
            hop.rtt_s = 0.0
            await young.stop()
            before = view.row_s.copy()
            await ask(site, 1, ENOUGH)
            assert (view.row_s == before).all()  # it follows no more
            await heir.stop()

    run(main())
