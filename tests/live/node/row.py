"""Nodes in a row, all in this process: requests enter at the first, the last has the best model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from certificates import issue
from prometheus_client.parser import text_string_to_metric_families
from wire import Wire

import inferway
from inferway.dispatch import Dispatcher
from inferway.live import Addresses, LiveNode, Pool, Server, ServerOptions, TaskSite, Tracer
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet
from ports import free_ports

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
).encode()
LIMIT_S = 30.0
FILE = """\
tasks:
  task:
    accuracy_target: 0.8
    idempotent: {idempotent}
    max_instances: 1
    variants:
      tiny: {{remote: '{first}', accuracy: 0.7, size: 1 MB, service: {{mean: 1 ms}}}}
      big: {{remote: '{last}', accuracy: 0.9, size: 5 MB, service: {{mean: {mean}}}}}
nodes:
{nodes}
network: {{links: [{links}]}}
dispatch: {{policy: jiq-accurate}}
placement: {{policy: repository-only, slot: 1 h}}
workload:
  task: {{arrivals: {{process: poisson, rate: {rate}/s}}, entries: {{nodes: [{entry}]}}}}
"""


class Doubles(NullRuntime):
    """Doubles what it is given, once it may, or fails where told so."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.runs = 0
        self.broken = False
        self.waiting = 0
        self.gate = threading.Event()
        self.gate.set()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.waiting += 1
        assert self.gate.wait(LIMIT_S)
        self.waiting -= 1
        self.runs += 1
        if self.broken:
            raise ValueError("broken")
        return {"y": 2 * inputs["x"]}


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

    @property
    def node(self) -> str:
        """Who answered."""
        return self.headers["inferway-node"]


class Client:
    """A kept connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(
        self, body: bytes = BODY, headers: str = "", variant: str = "", task: str = "task"
    ) -> None:
        version = f"/versions/{variant}" if variant else ""
        head = (
            f"POST /v2/models/{task}{version}/infer HTTP/1.1\r\nHost: test\r\n"
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

    async def ask(
        self, body: bytes = BODY, headers: str = "", variant: str = "", task: str = "task"
    ) -> Answered:
        self.send(body, headers, variant, task)
        return await self.read()


class Member:
    """One of the nodes, the model behind its copies, and the wire to the next node."""

    def __init__(self, name: str, at: Addresses, grpc_port: int) -> None:
        self.name, self.at, self.grpc_port = name, at, grpc_port
        self.model = Doubles()
        self.asking: list[Client] = []
        self.wire: Wire = Wire("")
        self._node: LiveNode | None = None

    async def start(self, *node: Any, options: ServerOptions, **own: Any) -> None:
        self._node = LiveNode(*node, replace(options, log_level="critical"), **own)
        await self._node.start()

    def hop(self, neighbor: str) -> Any:
        """Tell how it stands with a neighbor, as its page says it."""
        return SimpleNamespace(**self.status()["hops"][neighbor])

    def status(self) -> dict[str, Any]:
        assert self._node is not None
        return self._node.status()

    def measure(self) -> None:
        """Measure what requests take of it besides models, up to now."""
        assert self._node is not None
        self._node.server.meter.look()

    async def counted(self, metric: str, **labels: str) -> float:
        """Sum a metric's samples that have these labels."""
        page = text_string_to_metric_families(await self.get("/metrics"))
        return sum(
            sample.value
            for family in page
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        )

    async def canceled(self, count: int = 1) -> None:
        """Wait until so many requests' clients have gone before they were answered."""
        async with asyncio.timeout(LIMIT_S):
            while await self.counted("inferway_requests_total", outcome="canceled") < count:
                await asyncio.sleep(0.01)

    async def get(self, path: str, *, admin: bool = True) -> str:
        url = f"http://{self.at.admin if admin else self.at.http}{path}"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                text: str = answer.read().decode()
                return text

        return await asyncio.to_thread(read)

    async def variants(self, task: str = "task") -> set[str]:
        """Tell what a task's requests may be answered by."""
        tasks = json.loads(await self.get("/status"))["tasks"]
        return set(tasks[task]["variants"]) if task in tasks else set()

    async def client(self, *, peer: bool = False) -> Client:
        host, _, port = (self.at.peer if peer else self.at.http).rpartition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        self.asking.append(client)
        return client

    async def stop(self) -> None:
        for client in self.asking:
            await client.close()
        self.model.gate.set()
        if self._node is not None:
            await self._node.stop(0.0)


@contextlib.asynccontextmanager
async def models(members: list[Member]) -> AsyncIterator[list[str]]:
    """Serve each member's model at one server; gives the addresses."""
    fleet = Fleet(("only",), np.array([1e3]), np.array([0.9]), np.array([1]))
    sites = [
        TaskSite.of(
            Pool(
                f"m{k}",
                SIGNATURE,
                Dispatcher(fleet, "fastest-only", target=None),
                [member.model],
            )
        )
        for k, member in enumerate(members)
    ]
    server = Server(sites, ServerOptions(http_port=0, admin_port=0, log_level="critical"))
    await server.start()
    try:
        yield [f"http://127.0.0.1:{server.http_port}/v2/models/m{k}" for k in range(len(members))]
    finally:
        await server.stop(0.0)


@contextlib.asynccontextmanager
async def row(
    folder: Path,
    *names: str,
    idempotent: bool = True,
    mean: str = "10 ms",
    rate: int = 20,
    encrypted: bool = False,
    tracers: Mapping[str, Tracer] | None = None,
    grpc: bool = False,
    text: str = FILE,
    tasks: Sequence[str] = ("task",),
) -> AsyncIterator[list[Member]]:
    """Run the nodes; the first has `tiny` and forwards to `big`, which the last one has.

    So it is of all `tasks` of the file, whose `text` is as `FILE` has it. What lies between two
    neighbors' listeners for requests is a wire that does as it is told. At the higher `rate`, more
    requests may be under way at once.
    """
    ports = iter(free_ports(5 * len(names)))
    members = [
        Member(name, Addresses(*(f"127.0.0.1:{next(ports)}" for _ in range(4))), next(ports))
        for name in names
    ]
    entry, *_, last = members
    async with contextlib.AsyncExitStack() as stack:
        first, *_, best = await stack.enter_async_context(models(members))
        kinds = dict.fromkeys(names, "{budget: 2 MB}")
        tiny, big = (", ".join(f"{of}/{one}: 1" for of in tasks) for one in ("tiny", "big"))
        kinds[entry.name] = f"{{budget: 2 MB, pinned: {{{tiny}}}}}"
        kinds[last.name] = f"{{repository: true, instances: {{{big}}}}}"
        links = (f"{{between: [{a}, {b}], rtt: 1 ms}}" for a, b in itertools.pairwise(names))
        file = folder / "row.yaml"
        file.write_text(
            text.format(
                idempotent=str(idempotent).lower(),
                first=first,
                last=best,
                mean=mean,
                nodes="\n".join(f"  {name}: {kind}" for name, kind in kinds.items()),
                links=", ".join(links),
                rate=rate,
                entry=entry.name,
            )
        )
        if encrypted:
            issue(names, folder / "certs")
        deployment = inferway.load(file)
        for member, following in itertools.pairwise([*members, None]):
            at = {one.name: one.at for one in members}
            if following is not None:
                wire = member.wire = Wire(following.at.peer)
                await wire.open()
                stack.push_async_callback(wire.close)
                near = following.at
                at[following.name] = Addresses(near.http, wire.address, near.control, near.admin)
            stack.push_async_callback(member.stop)
            await member.start(
                deployment,
                member.name,
                at,
                options=ServerOptions(
                    tracer=(tracers or {}).get(member.name),
                    grpc_port=member.grpc_port if grpc else None,
                ),
                folder=folder / member.name,
                credentials=folder / "certs" if encrypted else None,
            )
        async with asyncio.timeout(LIMIT_S):
            for task in tasks:
                while f"big@{last.name}" not in await entry.variants(task):
                    await asyncio.sleep(0.01)
        yield members
