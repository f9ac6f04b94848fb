"""Real servers on loopback, each loop in a thread of its own, and raw-socket clients."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "docs"))

from patient import Patient
from small_disk import disk as disk

from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, Server, ServerOptions, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime, Runtime
from inferway.site import Fleet

DIGITS = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 3)),))
LIMIT_S = 20.0
START_S = 120.0
"""A first start compiles its policies, beside whatever else the machine does."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what looks at real clocks a second try: on shared machines, processes stand still."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.flaky(reruns=1))


class Response(NamedTuple):
    """One response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A raw connection to a server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._rest = b""

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def read(self, *, head: bool = False) -> Response:
        """Read one response; `head` when it has no body whatever its length says."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        top, _, self._rest = self._rest.partition(b"\r\n\r\n")
        line, *lines = top.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
        length = 0 if head else int(headers.get("content-length", 0))
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Response(int(line.split()[1]), headers, body)

    def closed(self) -> bool:
        """Whether the server ends the connection, with nothing more to read."""
        return self._rest == b"" and self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {self._rest!r}")
        self._rest += piece


class Running:
    """A server whose loop runs in a thread."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.server = server
        self.loop = loop or uvloop.new_event_loop()
        # A stop that fails must not keep the tests from ending.
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.deployment: Any = None
        self._wires: list[Wire] = []

    def call(self, function: Callable[[], Any]) -> Any:
        """Call on the server's loop."""

        async def inside() -> Any:
            return function()

        return self.wait(inside())

    def begin(self, work: Any) -> Any:
        """Run a coroutine on the server's loop; returns its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Any) -> Any:
        return self.begin(work).result(LIMIT_S)

    @property
    def site(self) -> TaskSite:
        """Of its first task."""
        return next(iter(self.server.sites.values()))

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.http_port}"

    def wire(self, *, admin: bool = False) -> Wire:
        """Connect; closed with the server, if not before."""
        wire = Wire(self.server.admin_port if admin else self.server.http_port)
        self._wires.append(wire)
        return wire

    def ask(self, raw: bytes, *, admin: bool = False) -> Response:
        """Send bytes on a connection of their own and read one response."""
        wire = Wire(self.server.admin_port if admin else self.server.http_port)
        with closing(wire):
            wire.send(raw)
            return wire.read(head=raw.startswith(b"HEAD"))

    def get(self, path: str, *, admin: bool = False) -> Response:
        return self.ask(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode(), admin=admin)

    @staticmethod
    def post(body: Any, headers: str = "", path: str = "/v2/models/digits/infer") -> bytes:
        """Build an infer request; anything but bytes is sent as JSON."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n{headers}"
        return f"{head}\r\n".encode() + body

    def infer(
        self, body: Any, headers: str = "", path: str = "/v2/models/digits/infer"
    ) -> Response:
        return self.ask(self.post(body, headers, path))

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        stopping = self.begin(self.server.stop(grace_s=2.0))
        if isinstance(self.loop, Patient):  # the stop may wait for a clock that stands still
            for _ in range(1000):
                if wait([stopping], 0.01).done:
                    break
                self.loop.advance(0.1)
        stopping.result(LIMIT_S)
        for _ in range(3):  # what was accepted or closed last
            self.wait(asyncio.sleep(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LIMIT_S)
        self.loop.close()


class Gate:
    """A runtime that answers once it is opened, or fails if told to."""

    def __init__(self, signature: Signature = DIGITS) -> None:
        self.signature = signature
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        self.runs = 0
        self.failure: Exception | None = None
        self._null = NullRuntime(signature)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        self.entered.release()
        if not self.opened.wait(LIMIT_S):
            raise TimeoutError
        if self.failure is not None:
            raise self.failure
        return self._null.run(inputs)

    def close(self) -> None:
        pass


def build_site(
    runtimes: Sequence[Runtime] | None = None,
    *,
    task: str = "digits",
    signature: Signature = DIGITS,
    policy: str = "fastest-only",
    buffer: int | None = None,
    count: tuple[int, int] = (1, 1),
    target: float | None = 0.8,
    devices: Any = None,
    **options: Any,
) -> TaskSite:
    """Two variants: `tiny` (1 ms, accuracy .7) and `big` (10 ms, .9)."""
    fleet = Fleet(
        *(("tiny", "big"), np.array([1e3, 1e2]), np.array([0.7, 0.9]), np.array(count)),
        buffer=buffer,
        devices=devices,
    )
    narrow = options.get("drop_late", True)
    dispatcher = Dispatcher(fleet, policy, target=target, rate_per_s=100.0, narrow=narrow)
    if runtimes is None:
        runtimes = [NullRuntime(signature) for _ in range(sum(count))]
    return TaskSite.of(
        Pool(task, signature, dispatcher, runtimes, PoolOptions(seed=1, target=target, **options))
    )


def starting() -> Iterator[Callable[..., Running]]:
    """Start servers, and stop them at the end."""
    running: list[Running] = []

    def begin(
        *sites: TaskSite,
        wait: bool = True,
        deployment: Any = None,
        loop: Any = None,
        **options: Any,
    ) -> Running:
        served = deployment or sites
        options.setdefault("log_level", "critical")
        server = Server(served, ServerOptions(http_port=0, admin_port=0, **options))
        one = Running(server, loop)
        one.deployment = deployment
        running.append(one)
        if wait:
            one.begin(server.start()).result(START_S)
        return one

    yield begin
    for one in running:
        one.close()


start = pytest.fixture(starting, name="start")
start_shared = pytest.fixture(starting, scope="module", name="start_shared")
"""As `start`, for servers that the tests of a module share."""


@pytest.fixture(scope="module")
def digits() -> Iterator[Running]:
    """One server with the task `digits` for tests that leave no trace in it."""
    running = Running(
        Server([build_site()], ServerOptions(http_port=0, admin_port=0, log_level="critical"))
    )
    running.wait(running.server.start())
    yield running
    running.close()


@pytest.fixture
def site_of() -> Callable[..., TaskSite]:
    return build_site


@pytest.fixture
def patient() -> Patient:
    return Patient()


@pytest.fixture
def gates() -> Iterator[list[Gate]]:
    """Two runtimes that wait; opened after the test in any case."""
    made = [Gate(), Gate()]
    yield made
    for gate in made:
        gate.opened.set()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition, with a deadline."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            pause.wait(0.002)

    return wait
