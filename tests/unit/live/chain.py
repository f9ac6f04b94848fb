"""Nodes in a row without their control plane, each with its own ports, on one loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
from wire import Wire

from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, TaskSite
from inferway.live.http.connection import Listener
from inferway.live.http.exchange import Limits
from inferway.live.http.routes import inference_routes
from inferway.live.node.proxy import Proxy
from inferway.live.request import NodeCondition
from inferway.live.security.tls import Credentials, file_name
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
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


class Held(Doubles):
    """Doubles, once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        assert self.gate.wait(LIMIT_S)
        return super().run(inputs)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, within limits."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


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

    def __init__(self, name: str, spans: Spans | None = None) -> None:
        self.name = name
        self.spans = spans
        self.runtime = Doubles()
        self.upstreams: dict[str, Upstream] = {}
        self.wires: dict[str, Wire] = {}
        self.ways: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.proxy = Proxy(
            NodeCondition(name),
            lambda to, been: self.upstreams.get(self.ways.get(to, to)),
            passed=lambda *told: self.seen.append(told),
            spans=spans,
        )
        self.peers = Listener(self.proxy.find, self._broken, hops=True)
        self.clients: Listener | None = None
        self._site: TaskSite | None = None
        self.asking: list[Client] = []
        self.errors: list[BaseException] = []

    def _broken(self, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def site(self) -> TaskSite:
        assert self._site is not None
        return self._site

    async def serve(self, *offers: tuple[str, str, str], accuracy: float = 0.7, **kw: Any) -> None:
        """Serve a variant, and what the neighbors offer: (variant, node, neighbor), at a rate."""
        names = [kw.pop("own", "tiny"), *(f"{variant}@{node}" for variant, node, _ in offers)]
        accuracies = [accuracy, *(0.9 + 0.01 * i for i in range(len(offers)))]
        offered = kw.pop("rate", 1e2)
        rates = [1e3, *(offered for _ in offers)]
        copies = kw.pop("copies", 2)
        counts = [1, *(copies for _ in offers)]
        dispatcher, policy = kw.pop("dispatcher", None), kw.pop("policy", "jiq-accurate")
        if dispatcher is None:
            numbers = map(np.array, (rates, accuracies, counts))
            fleet = Fleet(tuple(names), *numbers, confidence=kw.pop("tables", None))
            dispatcher = Dispatcher(fleet, policy, target=0.8)
        fleet = dispatcher.fleet
        ways = {
            f"{variant}@{node}": Forwarding(
                self.upstreams[neighbor], node, variant, (neighbor, node), self.spans
            )
            for variant, node, neighbor in offers
        }
        of_class = [ways.get(name, self.runtime) for name in fleet.variants]
        runtimes: list[Any] = np.repeat(of_class, fleet.count).tolist()
        self._site = TaskSite.of(
            Pool(
                "task",
                SIGNATURE,
                dispatcher,
                runtimes,
                PoolOptions(node=self.name, **({"target": 0.8} | kw)),
            )
        )
        if self.spans is not None:
            self._site.trace(self.spans.ended)
        await self.site.start()
        routes = inference_routes({"task": self.site}, lambda: True, Limits())
        self.proxy.serve(self.site)
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
        if self._site is not None:
            await self._site.stop()
        for upstream in self.upstreams.values():
            upstream.close()
        for wire in self.wires.values():
            await wire.close()
        assert self.errors == []


@contextlib.asynccontextmanager
async def line(
    *names: str,
    rtt_s: float = 0.0,
    certs: dict[str, Path] | None = None,
    spans: dict[str, Spans] | None = None,
    wired: bool = False,
    **options: Any,
) -> AsyncIterator[list[Node]]:
    """Nodes in a row, each with a hop to the next one, that they all use for what is beyond.

    With the folders of their certificates, each speaks TLS. Wired, what lies between two of them
    does as it is told.
    """
    nodes = [Node(name, (spans or {}).get(name)) for name in names]
    proofs = {name: Credentials.of(name, folder) for name, folder in (certs or {}).items()}
    for node in nodes:
        proof = proofs.get(node.name)
        secured = {} if proof is None else {"ssl": proof.context(server=True)}
        await node.peers.start("127.0.0.1", 0, **secured)
    for i, (node, following) in enumerate(itertools.pairwise(nodes)):
        known: dict[str, Any] = {}
        if node.name in proofs:
            known["tls"] = proofs[node.name].context(server=False)
            known["server_name"] = file_name(following.name)
        port = following.peers.port
        if wired:
            wire = node.wires[following.name] = Wire(f"127.0.0.1:{port}")
            await wire.open()
            port = wire.port
        node.upstreams[following.name] = Upstream(
            following.name, "127.0.0.1", port, rtt_s=rtt_s, **known, **options
        )
        for beyond in nodes[i + 1 :]:
            node.ways[beyond.name] = following.name
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.stop()
