"""A link that becomes slow: with measured delays, placement follows it there and back."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wire import Wire

import inferway
from inferway.live import Addresses, LiveNode, ServerOptions
from ports import free_ports

pytest.importorskip("zenoh", reason="nodes need the extra `network`")
pytestmark = pytest.mark.slow

# At the edge there is room for one `medium`, or for a `small` of both tasks: 12 ms of inaccuracy
# more for each request. With as many requests for each task the latter is better from 24 ms on.
FILE = """
tasks:
  digits:
    count: 2
    max_instances: 1
    variants:
      small: {model: zoo://digits/small, accuracy: 0.90}
      medium: {model: zoo://digits/medium, accuracy: 0.96}
nodes:
  cloud: {repository: true}
  edge: {budget: 180 kB}
network:
  links: [{between: [cloud, edge], rtt: 16 ms}]
cost: {alpha: 2}
dispatch: {policy: least-cost}
placement: {policy: POLICY, slot: 1 s, delays: DELAYS}
workload:
  digits: {arrivals: {process: poisson, rate: 40/s}, entries: {nodes: [edge]}}
"""
IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
LIMIT_S = 120.0
QUICK_S, SLOW_S = 0.016, 0.4
PAUSE_S = 0.05


class World:
    """An edge and a cloud, with clients at the edge and a wire between that takes its time."""

    def __init__(self, folder: Path, policy: str, delays: str) -> None:
        self.folder = folder
        file = folder / "two.yaml"
        file.write_text(FILE.replace("POLICY", policy).replace("DELAYS", delays))
        self.deployment = inferway.load(file)
        ports = iter(free_ports(8))
        self.at = {
            name: Addresses(*(f"127.0.0.1:{next(ports)}" for _ in range(4)))
            for name in ("cloud", "edge")
        }
        self.wire = Wire(self.at["cloud"].peer)
        self.wire.delay_s = QUICK_S / 2
        self.nodes: dict[str, LiveNode] = {}
        self.clients: list[asyncio.Task[None]] = []

    async def start(self, name: str) -> LiveNode:
        at = dict(self.at)
        if name == "edge":
            at["cloud"] = msgspec.structs.replace(at["cloud"], peer=self.wire.address)
        node = LiveNode(
            self.deployment,
            name,
            at,
            ServerOptions(log_level="error"),
            folder=self.folder / name,
        )
        await node.start()
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop(1.0)

    async def begin(self) -> None:
        await self.wire.open()
        await self.start("cloud")
        await self.start("edge")
        self.clients = [asyncio.create_task(self._ask(f"digits-{k}")) for k in range(2)]

    async def end(self) -> None:
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)
        for name in list(self.nodes):
            await self.stop(name)
        await self.wire.close()

    async def _ask(self, task: str) -> None:
        """As many requests for each task, however long they take."""
        body = json.dumps({"inputs": [IMAGE]}).encode()
        url = f"http://{self.at['edge'].http}/v2/models/{task}/infer"

        def post() -> None:
            try:
                with urllib.request.urlopen(url, body, timeout=LIMIT_S) as answer:
                    answer.read()
            except OSError:
                pass

        asked: set[asyncio.Future[None]] = set()
        try:
            while True:
                await asyncio.sleep(PAUSE_S)
                if len(asked) < 16:
                    one = asyncio.ensure_future(asyncio.to_thread(post))
                    asked.add(one)
                    one.add_done_callback(asked.discard)
        finally:
            await asyncio.gather(*asked, return_exceptions=True)

    def runs(self, *variants: str) -> Callable[[], bool]:
        def holds() -> bool:
            running = self.nodes["edge"].status()["running"]
            return sorted(name.partition("/")[2] for name in running) == sorted(variants)

        return holds

    async def until(self, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not holds():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            edge = self.nodes["edge"].status()
            shown = {k: edge[k] for k in ("running", "delays", "hops", "slots")}
            raise AssertionError(shown) from None


@asynccontextmanager
async def world(folder: Path, policy: str, delays: str) -> AsyncIterator[World]:
    made = World(folder, policy, delays)
    try:
        await made.begin()
        yield made
    finally:
        await made.end()


@pytest.fixture
def run() -> Callable[[Awaitable[None]], None]:
    def to_its_end(main: Awaitable[None]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(5 * LIMIT_S):
                await main

        asyncio.run(limited())

    return to_its_end


def rtt_s(both: World) -> float:
    found: Any = both.nodes["edge"].status()["delays"]["links"]["cloud"]["rtt_s"]
    return found or 0.0


def test_copies_follow_a_link_that_becomes_slow_and_quick_again(
    tmp_path: Path, run: Callable[[Awaitable[None]], None]
) -> None:
    async def main() -> None:
        async with world(tmp_path, "exchange", "measured") as both:
            await both.until(both.runs("medium"))
            await both.until(lambda: rtt_s(both) >= QUICK_S)
            both.wire.delay_s = SLOW_S / 2
            await both.until(both.runs("small", "small"))
            assert rtt_s(both) > 0.024
            # A node that begins again knows it before it has measured anything.
            await both.stop("edge")
            edge = await both.start("edge")
            assert edge.status()["delays"]["links"]["cloud"]["rtt_s"] > 0.024
            await both.until(both.runs("small", "small"))
            both.wire.delay_s = QUICK_S / 2
            await both.until(both.runs("medium"))

    run(main())


def test_by_the_file_copies_stay_whatever_links_take(
    tmp_path: Path, run: Callable[[Awaitable[None]], None]
) -> None:
    async def main() -> None:
        async with world(tmp_path, "exchange", "file") as both:
            await both.until(both.runs("medium"))
            both.wire.delay_s = SLOW_S / 2
            edge = both.nodes["edge"]
            await both.until(lambda: (edge.status()["hops"]["cloud"]["rtt_s"] or 0.0) > SLOW_S / 2)
            slots = edge.status()["slots"]
            await both.until(lambda: edge.status()["slots"] >= slots + 4)
            assert both.runs("medium")()
            assert edge.status()["delays"] is None

    run(main())
