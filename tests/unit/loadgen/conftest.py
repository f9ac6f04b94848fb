"""A tiny Open Inference Protocol server in a thread, to drive; it obeys a script."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

Reply = tuple[int, bytes, bytes]


@dataclass
class TinyServer:
    """Answers tasks `t` (FP32, 4 values) with the input itself as scores.

    `behave` is awaited before each inference answer and may return a status other than 200;
    `headers` come with each answer, and `complaint` is the error that goes with other statuses.
    `asks` is the Authorization header without which it answers 401, but for whether it is ready.
    """

    behave: Callable[[int], Awaitable[int]]
    ready: bool = True
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    tasks: tuple[str, ...] = ("t",)
    headers: bytes = b""
    complaint: str = "no"
    output: str = "y"
    asks: str = ""
    shown: list[tuple[str, str]] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if not self.tls else f"https://localhost:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                pairs = [line.split(": ", 1) for line in lines[1:] if line]
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, extra, content = await self.reply(lines[0].split()[1], headers, body)
                if status == 0:
                    return
                writer.write(
                    b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n%b\r\n%b"
                    % (status, len(content), extra, content)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def reply(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        authorization = headers.get("authorization", "")
        self.shown.append((path, authorization))
        if path == "/v2/health/ready":
            return (200 if self.ready else 503), b"", b""
        if self.asks not in ("", authorization):
            complaint = self.complaint.replace("{shown}", authorization)
            return 401, b"", json.dumps({"error": complaint}).encode()
        if path in [f"/v2/models/{task}" for task in self.tasks]:
            tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
            metadata = {"inputs": [tensor], "outputs": [tensor | {"name": "y"}]}
            return 200, b"", json.dumps(metadata).encode()
        if not path.endswith("/infer"):
            return 404, b"", b'{"error": "no"}'
        number = len(self.requests)
        self.requests.append((path, body))
        self.arrived_s.append(time.monotonic())
        status = await self.behave(number)
        if status != 200:
            complaint = self.complaint.replace("{number}", str(number))
            return status, b"", json.dumps({"error": complaint}).encode()
        answer: dict[str, object] = {
            "model_version": "even" if number % 2 == 0 else "odd",
            "parameters": {"predicted_latency_ms": 250.0},
        }
        output: dict[str, object] = {"name": self.output, "datatype": "FP32", "shape": [1, 4]}
        length = headers.get("inference-header-content-length")
        if length is None:
            output["data"] = json.loads(body)["inputs"][0]["data"]
            return 200, self.headers, json.dumps(answer | {"outputs": [output]}).encode()
        raw = body[int(length) :]
        assert len(raw) == 16
        output["parameters"] = {"binary_data_size": 16}
        encoded = json.dumps(answer | {"outputs": [output]}).encode()
        extra = b"Inference-Header-Content-Length: %d\r\n" % len(encoded)
        return 200, extra + self.headers, encoded + raw


async def at_once(number: int) -> int:
    return 200


Serve = Callable[..., TinyServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers: `serve(behave)`; they stop when the test ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening: list[asyncio.Server] = []

    def start(
        behave: Callable[[int], Awaitable[int]] = at_once, tls: ssl.SSLContext | None = None
    ) -> TinyServer:
        server = TinyServer(behave, tls=tls)

        async def listen() -> None:
            listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
            listening.append(listener)
            server.listener = listener
            server.port = listener.sockets[0].getsockname()[1]

        asyncio.run_coroutine_threadsafe(listen(), loop).result(5)
        return server

    yield start

    async def stop() -> None:
        for listener in listening:
            listener.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A transport that is closed lets go of its socket in the turn that follows.
        for _ in range(2):
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture
def images() -> np.ndarray:
    """Four inputs whose greatest value is at index 0, 1, 2, 3."""
    return np.eye(4, dtype=np.float32)
