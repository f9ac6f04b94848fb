"""Three nodes in a row, each with its own ports, on one loop: what a hop must not lose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import uvloop

from inferway.dispatch import Dispatcher
from inferway.live import Outcome, Request, Site
from inferway.live.http.limits import Limits
from inferway.live.http.listener import Listener
from inferway.live.http.routes import inference_routes
from inferway.live.node.breaker import Breaker
from inferway.live.node.forwarder import Forwarding
from inferway.live.node.headers import MOST_NODES
from inferway.live.node.hop import Hop
from inferway.live.node.relay import Relay
from inferway.runtime import NullRuntime, Signature, Tensor
from inferway.site import Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
).encode()
LIMIT_S = 20.0


class Doubles(NullRuntime):
    """Doubles what it is given, or fails where told so."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.runs = 0
        self.broken = False

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        if self.broken:
            raise ValueError("broken")
        return {"y": 2 * inputs["x"]}


class Answered:
    """One response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Client:
    """A kept connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, body: bytes = BODY, headers: str = "", variant: str = "") -> None:
        version = f"/versions/{variant}" if variant else ""
        head = (
            f"POST /v2/models/task{version}/infer HTTP/1.1\r\nHost: test\r\n"
            f"Content-Length: {len(body)}\r\n{headers}\r\n"
        )
        self.writer.write(head.encode() + body)

    async def read(self) -> Answered:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LIMIT_S)).decode()
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answered(int(line.split()[1]), headers, body)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def ask(self, body: bytes = BODY, headers: str = "", variant: str = "") -> Answered:
        self.send(body, headers, variant)
        return await self.read()


class Node:
    """A node without its control plane: a site, a port for clients and one for neighbors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runtime = Doubles()
        self.hops: dict[str, Hop] = {}
        self.ways: dict[str, str] = {}
        self.seen: list[tuple[str, str, bool, str]] = []
        self.relay = Relay(
            name,
            lambda to: self.hops.get(self.ways.get(to, to)),
            passed=lambda *told: self.seen.append(told),
        )
        self.peers = Listener(self.relay.find, self._broken, hops=True)
        self.site: Site | None = None
        self.clients: Listener | None = None
        self.asking: list[Client] = []
        self.errors: list[BaseException] = []

    def _broken(self, error: BaseException) -> None:
        self.errors.append(error)

    async def serve(self, *offers: tuple[str, str, str], accuracy: float = 0.7, **kw: Any) -> None:
        """Serve `tiny`, and what the neighbors offer: (variant, node, neighbor)."""
        names = ["tiny", *(f"{variant}@{node}" for variant, node, _ in offers)]
        accuracies = [accuracy, *(0.9 + 0.01 * i for i in range(len(offers)))]
        rates = [1e3, *(1e2 for _ in offers)]
        counts = [1, *(2 for _ in offers)]
        fleet = Fleet(tuple(names), np.array(rates), np.array(accuracies), np.array(counts))
        dispatcher = Dispatcher(fleet, kw.pop("policy", "jiq-accurate"), target=0.8)
        runtimes: list[Any] = [self.runtime]
        for variant, node, neighbor in offers:
            forwarding = Forwarding(self.hops[neighbor], node, variant, (neighbor, node))
            runtimes += [forwarding] * 2
        self.site = Site("task", SIGNATURE, dispatcher, runtimes, node=self.name, **kw)
        await self.site.start()
        routes = inference_routes([self.site], lambda: True, Limits())
        self.relay.serve([self.site])
        self.clients = Listener(routes.find, self._broken)
        await self.clients.start("127.0.0.1", 0)

    async def client(self, *, peer: bool = False) -> Client:
        listener = self.peers if peer else self.clients
        assert listener is not None
        client = Client(*await asyncio.open_connection("127.0.0.1", listener.port))
        self.asking.append(client)
        return client

    async def stop(self) -> None:
        for client in self.asking:
            await client.close()
        for listener in (self.clients, self.peers):
            if listener is not None:
                listener.close()
                listener.abort()
        if self.site is not None:
            await self.site.stop()
        for hop in self.hops.values():
            hop.close()
        assert self.errors == []


@contextlib.asynccontextmanager
async def line(*names: str, rtt_s: float = 0.0, **options: Any) -> AsyncIterator[list[Node]]:
    """Nodes in a row, each with a hop to the next one, that they all use for what is beyond."""
    nodes = [Node(name) for name in names]
    for node in nodes:
        await node.peers.start("127.0.0.1", 0)
    for i, (node, following) in enumerate(zip(nodes, nodes[1:], strict=False)):
        node.hops[following.name] = Hop(
            following.name, "127.0.0.1", following.peers.port, rtt_s=rtt_s, **options
        )
        for beyond in nodes[i + 1 :]:
            node.ways[beyond.name] = following.name
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


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
            assert edge.site is not None and cloud.site is not None
            assert edge.site.counters.rows == [0, 1]
            assert edge.site.dispatcher.balance == pytest.approx(0.9 - 0.8)
            assert cloud.site.dispatcher.balance == 0.0
            found = edge.site.memory.explain(b"mine")
            assert found is not None and found["variant"] == "tiny@cloud"
            assert cloud.site.memory.explain(b"mine") is not None

    run(main())
