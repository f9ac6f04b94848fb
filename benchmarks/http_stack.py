"""Compare HTTP stacks by the CPU time that one small JSON request costs the server.

Every stack runs the same handler in a server process of its own: decode about 1 KB of JSON with
msgspec, answer with a few numbers. One client process sends the same requests over the same number
of keep-alive connections to each, and reads the server's CPU time (user and system, its children
included) before and after.

Run with the extra ``bench`` installed::

    python benchmarks/http_stack.py [--requests 20000] [--connections 8] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import psutil

PATH = b"/v2/models/echo/infer"
BODY = msgspec.json.encode(
    {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 160],
                "data": [round(i / 160, 4) for i in range(160)],
            }
        ]
    }
)
STACKS = ("httptools", "granian-rsgi", "uvicorn-asgi", "starlette", "fastapi")


class Tensor(msgspec.Struct):
    """A tensor in a request."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class Call(msgspec.Struct):
    """The request."""

    inputs: list[Tensor]


_decoder = msgspec.json.Decoder(Call)


def answer(body: bytes) -> bytes:
    """Do the same work in every stack: decode, look at the numbers, encode ten of them."""
    tensor = _decoder.decode(body).inputs[0]
    return msgspec.json.encode(
        {
            "model_name": "echo",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [1, 10], "data": tensor.data[:10]}
            ],
        }
    )


def serve_httptools(port: int) -> None:
    import httptools
    import uvloop

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)
            self.parser = httptools.HttpRequestParser(self)
            self.body: list[bytes] = []
            self.headers: list[tuple[bytes, bytes]] = []

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_url(self, url: bytes) -> None:
            self.url = url

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers.append((name.lower(), value))

        def on_body(self, chunk: bytes) -> None:
            self.body.append(chunk)

        def on_message_complete(self) -> None:
            found = self.url == PATH
            reply = answer(b"".join(self.body)) if found else b"{}"
            self.transport.write(
                b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (b"200 OK" if found else b"404 Not Found", len(reply), reply)
            )
            self.body.clear()
            self.headers.clear()

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(main())


async def rsgi(scope: Any, protocol: Any) -> None:
    """Answer through granian's own interface."""
    body = await protocol()
    found = scope.path.encode() == PATH
    protocol.response_bytes(
        200 if found else 404,
        [("content-type", "application/json")],
        answer(body) if found else b"{}",
    )


def serve_granian(port: int) -> None:
    from granian.constants import Interfaces, Loops
    from granian.server import Server

    Server(
        "http_stack:rsgi",
        address="127.0.0.1",
        port=port,
        interface=Interfaces.RSGI,
        loop=Loops.uvloop,
        workers=1,
        log_enabled=False,
    ).serve()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Answer as a bare ASGI application."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    found = scope["raw_path"] == PATH
    reply = answer(body) if found else b"{}"
    await send(
        {
            "type": "http.response.start",
            "status": 200 if found else 404,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(reply)).encode()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": reply})


def starlette_application() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def infer(request: Request) -> Response:
        return Response(answer(await request.body()), media_type="application/json")

    return Starlette(routes=[Route(PATH.decode(), infer, methods=["POST"])])


def fastapi_application() -> Any:
    import fastapi
    import pydantic

    class TensorModel(pydantic.BaseModel):
        name: str
        datatype: str
        shape: list[int]
        data: list[float]

    class CallModel(pydantic.BaseModel):
        inputs: list[TensorModel]

    class AnswerModel(pydantic.BaseModel):
        model_name: str
        outputs: list[TensorModel]

    application = fastapi.FastAPI()

    async def infer(call: CallModel) -> AnswerModel:
        tensor = TensorModel(
            name="y", datatype="FP32", shape=[1, 10], data=call.inputs[0].data[:10]
        )
        return AnswerModel(model_name="echo", outputs=[tensor])

    # Names inside this function are not visible to evaluated annotations.
    infer.__annotations__ = {"call": CallModel, "return": AnswerModel}
    application.post(PATH.decode())(infer)
    return application


def serve_uvicorn(application: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(
        application,
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
    )


def serve(stack: str, port: int) -> None:
    """Run one stack until killed."""
    match stack:
        case "httptools":
            serve_httptools(port)
        case "granian-rsgi":
            serve_granian(port)
        case "uvicorn-asgi":
            serve_uvicorn(asgi, port)
        case "starlette":
            serve_uvicorn(starlette_application(), port)
        case "fastapi":
            serve_uvicorn(fastapi_application(), port)
        case _:
            raise SystemExit(f"no stack {stack!r}; there are {', '.join(STACKS)}")


def request_bytes(path: bytes, body: bytes, extra: bytes = b"") -> bytes:
    """Build one request, as plain clients send it."""
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s"
        % (path, len(body), extra, body)
    )


class Caller(asyncio.Protocol):
    """One connection that sends the next request as soon as the answer is whole."""

    def __init__(self, request: bytes, share: Callable[[], bool], done: asyncio.Future[None]):
        self.request, self.share, self.done = request, share, done
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self.transport = cast("asyncio.Transport", transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Count the answer and send the next request."""
        self.buffer += data
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self.buffer[:head_end].lower()
        if not head.startswith(b"http/1.1 200"):
            self.done.set_exception(RuntimeError(self.buffer.decode()))
            self.transport.close()
            return
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self.buffer) >= head_end + 4 + length:
            self.buffer = b""
            self._next()

    def _next(self) -> None:
        if self.share():
            self.transport.write(self.request)
        else:
            self.transport.close()
            if not self.done.done():
                self.done.set_result(None)


async def _closed_loop(port: int, request: bytes, count: int, connections: int) -> None:
    loop = asyncio.get_running_loop()
    left = count

    def share() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    waits: list[Awaitable[None]] = []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(
            lambda done=done: Caller(request, share, done), "127.0.0.1", port
        )  # type: ignore[misc]
        waits.append(done)
    await asyncio.gather(*waits)


def drive(port: int, request: bytes, count: int, connections: int) -> float:
    """Send `count` requests and return the seconds that it took."""
    import uvloop

    started = time.perf_counter()
    uvloop.run(_closed_loop(port, request, count, connections))
    return time.perf_counter() - started


def cpu_seconds(pid: int) -> float:
    """Tell the user and system time of a process and its children, in seconds."""
    process = psutil.Process(pid)
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        total += times.user + times.system
    return total


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], limit_s: float = 60.0) -> None:
    """Wait until the port accepts connections."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server did not start")


def machine() -> str:
    """Name the processor, the cores and the Python version."""
    import platform
    from pathlib import Path

    info = Path("/proc/cpuinfo")
    name = platform.processor()
    if info.exists():
        models = [line for line in info.read_text().splitlines() if "model name" in line]
        name = models[0].split(":")[1].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def measure(stack: str, count: int, connections: int) -> dict[str, Any]:
    """Run one stack and one client; return the cost of a request."""
    port = free_port()
    server = subprocess.Popen([sys.executable, __file__, "--serve", stack, "--port", str(port)])
    try:
        wait_for(port, server)
        request = request_bytes(PATH, BODY)
        drive(port, request, max(500, count // 10), connections)
        before = cpu_seconds(server.pid)
        wall = drive(port, request, count, connections)
        cpu = cpu_seconds(server.pid) - before
    finally:
        server.terminate()
        server.wait(10)
    return {
        "stack": stack,
        "cpu_us_per_request": round(cpu / count * 1e6, 1),
        "requests_per_s": round(count / wall),
    }


def main() -> None:
    """Run the comparison, or one stack as a server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="STACK", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port)
        return
    rows = [measure(stack, options.requests, options.connections) for stack in STACKS]
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "stacks": rows}))
        return
    print(
        f"{machine()}; {options.requests} requests of {len(BODY)} bytes,"
        f" {options.connections} connections"
    )
    for row in rows:
        print(
            f"{row['stack']:14} {row['cpu_us_per_request']:8.1f} µs CPU/request"
            f" {row['requests_per_s']:8d} requests/s"
        )


if __name__ == "__main__":
    main()
