"""CPU time of the load generator per request, against a server that does next to nothing.

    python benchmarks/generator.py

The server answers from memory in a process of its own, with the headers of a node of a network or
without them, so that the generator's own work is what is measured. What other programs do to the
machine's caches is in the numbers: the least of the repetitions is the generator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from inferway.loadgen import drive

_TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 28, 28]}
_SCORES = {"name": "y", "datatype": "FP32", "shape": [1, 10]}
_NODE = (
    b"Inferway-Node: cloud\r\nInferway-Variant: tiny\r\nInferway-Path: edge-1,metro,cloud\r\n"
    b"Inferway-Time-Ms: 12.31,10.02,5.01\r\n"
)


def _framed(content: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(content), extra, content)


def _answer(headers: bytes) -> bytes:
    described: dict[str, Any] = _SCORES | {"parameters": {"binary_data_size": 40}}
    head = json.dumps(
        {
            "model_name": "t",
            "model_version": "tiny",
            "outputs": [described],
            "parameters": {"predicted_latency_ms": 2.5},
        }
    ).encode()
    length = b"Inference-Header-Content-Length: %d\r\n" % len(head)
    scores = np.arange(10, dtype=np.float32).tobytes()
    return _framed(head + scores, b"Content-Type: application/octet-stream\r\n" + length + headers)


class _Server(asyncio.Protocol):
    """Answers by the request's first bytes, once its body is whole."""

    def __init__(self, answer: bytes) -> None:
        metadata = {"inputs": [_TENSOR], "outputs": [_SCORES | {"shape": [-1, 10]}]}
        self._answer, self._metadata = answer, _framed(json.dumps(metadata).encode())
        self._transport: Any = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, whole, body = self._received.partition(b"\r\n\r\n")
        if not whole:
            return
        if head.startswith(b"GET"):
            self._received = b""
            self._transport.write(self._metadata)
            return
        length = int(head.rpartition(b"Content-Length: ")[2])
        if len(body) >= length:
            self._received = b""
            self._transport.write(self._answer)


def _serve(answer: bytes, told: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Server(answer), "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


def main() -> None:
    """Print the CPU time of each repetition, in microseconds per request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second")
    parser.add_argument("--duration", type=float, default=5.0, help="seconds per repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    asked = parser.parse_args()
    times_s = np.arange(0.0, asked.duration, 1.0 / asked.rate)
    images = np.random.default_rng(0).random((64, 28, 28), np.float32)
    for name, headers in (("without headers", b""), ("headers of a node", _NODE)):
        here, there = multiprocessing.Pipe()
        server = multiprocessing.Process(target=_serve, args=(_answer(headers), there))
        server.start()
        try:
            url = f"http://127.0.0.1:{here.recv()}"
            found = []
            for _ in range(asked.repetitions):
                record = drive(url, "t", times_s, images)
                assert record.answered.all(), "the server failed"
                found.append(1e6 * record.cpu_s / record.generated)
            each = ", ".join(f"{one:.1f}" for one in found)
            print(f"{name:18} {min(found):6.1f} µs least of {each}")
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
