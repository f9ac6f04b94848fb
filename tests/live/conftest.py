"""Real servers on loopback, in a thread of their own, over null runtimes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import uvloop

from inferway.dispatch import Dispatcher
from inferway.live import Server, Site
from inferway.runtime import NullRuntime, Runtime, Signature, Tensor
from inferway.site import Fleet

DIGITS = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 3)),))
LIMIT_S = 20.0


class Running:
    """A server whose loop runs in a thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def call(self, function: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            return function()

        return self.wait(inside())

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.http_port}"

    @property
    def admin(self) -> str:
        return f"127.0.0.1:{self.server.admin_port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.http_port), LIMIT_S)

    def close(self) -> None:
        self.wait(self.server.stop(grace_s=2.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LIMIT_S)
        self.loop.close()


def site_of(
    runtimes: Sequence[Runtime] | None = None,
    *,
    task: str = "digits",
    signature: Signature = DIGITS,
    policy: str = "fastest-only",
    buffer: int | None = None,
    count: tuple[int, int] = (1, 1),
    target: float | None = 0.8,
    **options: Any,
) -> Site:
    """Two variants: `tiny`, 1 ms and .7; `big`, 10 ms and .9."""
    fleet = Fleet(
        ("tiny", "big"), np.array([1e3, 1e2]), np.array([0.7, 0.9]), np.array(count), buffer=buffer
    )
    dispatcher = Dispatcher(fleet, policy, target=target, rate_per_s=100.0)
    if runtimes is None:
        runtimes = [NullRuntime(signature) for _ in range(sum(count))]
    return Site(task, signature, dispatcher, runtimes, seed=1, target=target, **options)


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, and stops them after the test."""
    running: list[Running] = []

    def begin(*sites: Site, wait: bool = True, **options: Any) -> Running:
        server = Server(sites, http_port=0, admin_port=0, log_level="error", **options)
        one = Running(server)
        running.append(one)
        if wait:
            one.wait(server.start())
        return one

    yield begin
    for one in running:
        one.close()


def read_response(connection: socket.socket, buffer: bytes = b"") -> tuple[int, dict, bytes, bytes]:
    """Read one response: status, headers in lower case, body, and what came after it."""
    while b"\r\n\r\n" not in buffer:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {buffer!r}")
        buffer += piece
    head, _, rest = buffer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {
        name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)
    }
    length = int(headers.get("content-length", 0))
    while len(rest) < length:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError("closed inside a body")
        rest += piece
    return int(lines[0].split()[1]), headers, rest[:length], rest[length:]


def ask(running: Running, raw: bytes) -> tuple[int, dict, bytes]:
    """Send bytes on a connection of its own and read one response."""
    with closing(running.connect()) as connection:
        connection.sendall(raw)
        return read_response(connection)[:3]
