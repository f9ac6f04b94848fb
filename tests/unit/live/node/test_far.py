"""Sites made anew while a link is slow: what is known of it counts once."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import inferway
from inferway.live.node.fleets import Fleets
from inferway.live.node.models import LoadedModels
from inferway.live.node.plan import plan_of
from inferway.live.options import ServerOptions
from inferway.live.request import NodeCondition
from inferway.live.server import Server
from inferway.live.site import TaskSite
from inferway.live.store.store import ModelStore
from inferway.live.upstream.headers import Response
from inferway.live.upstream.rtt import ENOUGH, FIRST
from inferway.live.upstream.upstream import Upstream
from inferway.network.offers import Offer
from inferway.site.transitions import measure

FILE = """
tasks:
  digits:
    variants:
      mini: {model: zoo://digits/mini}
      small: {model: zoo://digits/small}
      large: {model: zoo://digits/large}
nodes:
  metro: {repository: true, instances: {digits/large: 1}}
  edge: {budget: 500 kB}
network: {links: [{between: [metro, edge], rtt: 5 ms}]}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
SMALL = Offer("digits", "small", "metro", 0.85, 0.001, 0.005, 100.0, ("metro",), False)
LARGE = Offer("digits", "large", "metro", 0.9, 0.004, 0.005, 100.0, ("metro",), True)


_SECONDS = map(float, count(1))


def hear(hop: Upstream, rtt_s: float, times: int) -> None:
    """Let the hop have answers that took so long, each asked for when the last had come."""
    for _ in range(times):
        now_s = next(_SECONDS)
        answer = Response(200, b"", b"", b"metro", b"small", b"edge,metro", b"0.00")
        hop.trips.learn(answer, now_s - rtt_s, now_s)


def times_of(site: TaskSite, name: str) -> Any:
    """Predicted times of the servers of a class, s."""
    k = site.pool.variants.index(name)
    return site.pool.dispatcher.site.row_s[site.pool.first[k] : site.pool.first[k + 1], 0]


def test_what_is_known_of_a_link_counts_once(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "two.yaml"
        file.write_text(FILE)
        deployment = inferway.load(file)
        store = ModelStore(tmp_path / "store", limit_bytes=10_000_000)
        models = LoadedModels(deployment, store)
        await models.load("digits", "mini")
        offers = [SMALL]
        hop = Upstream("metro", "127.0.0.1", 9)
        server = Server(
            [TaskSite("digits", node=NodeCondition("edge"))], ServerOptions(log_level="critical")
        )
        heard = SimpleNamespace(offers=lambda task: offers, signature=lambda task: None)
        fleets = Fleets(
            deployment,
            plan_of(deployment, "edge"),
            server.sites,
            server.replace,
            models,
            heard,  # type: ignore[arg-type]
            {"metro": hop},
        )
        await fleets.run({("digits", "mini"): 1})
        site = server.sites["digits"]
        hear(hop, 0.005, FIRST)
        hear(hop, 0.305, ENOUGH)
        assert times_of(site, "small@metro") == pytest.approx(0.306)
        near = site.pool.first[site.pool.variants.index("small@metro")]
        measure(site.pool.dispatcher.site, near, 1, 0.32)
        # What has been measured is carried over as it is; what is new counts on the file's 5 ms.
        offers.append(LARGE)
        await fleets.run({("digits", "mini"): 2})
        site = server.sites["digits"]
        assert times_of(site, "small@metro") == pytest.approx(0.32)
        assert times_of(site, "large@metro") == pytest.approx(0.309)
        # Both follow from then on.
        hear(hop, 0.005, ENOUGH)
        assert times_of(site, "small@metro") == pytest.approx(0.02)
        assert times_of(site, "large@metro") == pytest.approx(0.009)
        assert times_of(site, "mini").max() < 0.1
        await server.stop(1.0)
        hop.close()
        models.close()
        store.close()

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())
