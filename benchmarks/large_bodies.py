"""Measure what others wait for while large and packed bodies come in: the ratio of their p99.

One client sends a small request every few milliseconds, and counts latency from when it was due.
Seconds with it alone and seconds beside a process that sends three large bodies a second come in
turns, so that both see the same machine. What others pay is the ratio of the 99th percentiles; the
goal for packed bodies is at most 2.

Run::

    python benchmarks/large_bodies.py [CASE ...] [--rounds 5] [--json]
    python benchmarks/large_bodies.py --beside ../older    # another checkout's server, in turns
"""

from __future__ import annotations

import argparse
import gzip
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from http_stack import machine, request_bytes
from request_cost import PATH, SHAPE, input_of, requests_for, server

HERE = Path(__file__).resolve()
EVERY_S = 0.005
"""Between two small requests."""
PER_S = 3
"""Large bodies a second."""
SPAN_S = 4.0
MIB = 1024**2


def _binary(rows: int, packed: bool) -> bytes:
    size = rows * SHAPE[1] * 4
    given = {"name": "x", "datatype": "FP32", "shape": [rows, SHAPE[1]]}
    head = json.dumps({"inputs": [given | {"parameters": {"binary_data_size": size}}]}).encode()
    extra = b"Inference-Header-Content-Length: %d\r\n" % len(head)
    return _sent(head + bytes(size), packed, extra)


def _json(mib: int, packed: bool, number: bytes = b"0", nested: bool = False) -> bytes:
    width = SHAPE[1]
    row = b",".join([number] * width)
    if nested:
        row = b"[%s]" % row
    rows = (mib * MIB - 200) // (len(row) + 1)
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,%d],"data":[%s]}]}'
    return _sent(text % (rows, width, b",".join([row] * rows)), packed)


def _sent(body: bytes, packed: bool, extra: bytes = b"") -> bytes:
    if packed:
        body, extra = gzip.compress(body, 9), extra + b"Content-Encoding: gzip\r\n"
    return request_bytes(PATH, body, extra)


CASES: Final[dict[str, Callable[[], bytes]]] = {
    "packed JSON, 64 MiB": lambda: _json(64, packed=True),
    "packed binary, 64 MiB": lambda: _binary(100_000, packed=True),
    "packed JSON, 8 MiB": lambda: _json(8, packed=True),
    "packed binary, 7 MiB": lambda: _binary(11_000, packed=True),
    "JSON, 8 MiB": lambda: _json(8, packed=False),
    "nested JSON, 8 MiB": lambda: _json(8, packed=False, number=b"0.125", nested=True),
    "binary, 7 MiB": lambda: _binary(11_000, packed=False),
}
"""Bodies that three a second are sent of; the first two are beyond the limits."""


def probe(port: int, request: bytes, seconds: float) -> list[float]:
    """Send the small request at its times; latencies from them, s."""
    latencies = []
    with closing(socket.create_connection(("127.0.0.1", port))) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun_s = time.perf_counter()
        for number in range(int(seconds / EVERY_S)):
            due_s = begun_s + number * EVERY_S
            left_s = due_s - time.perf_counter()
            if left_s > 0:
                time.sleep(left_s)
            wire.sendall(request)
            _read(wire)
            latencies.append(time.perf_counter() - due_s)
    return latencies


def _read(wire: socket.socket) -> int:
    data = b""
    while b"\r\n\r\n" not in data:
        data += wire.recv(65536)
    head, _, rest = data.partition(b"\r\n\r\n")
    left = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]) - len(rest)
    while left > 0:
        left -= len(wire.recv(1 << 20))
    return int(head[9:12])


def send(port: int, case: str) -> None:
    """Send large bodies while lines say so; tell what they were answered."""
    request = CASES[case]()
    print(json.dumps(len(request)), flush=True)
    statuses: Counter[int] = Counter()
    for _ in sys.stdin:
        for number in range(int(PER_S * SPAN_S)):
            time.sleep(1 / PER_S if number else 0.0)
            with closing(socket.create_connection(("127.0.0.1", port))) as wire:
                wire.sendall(request)
                statuses[_read(wire)] += 1
    print(json.dumps(statuses))


def measure(case: str, rounds: int, checkouts: dict[str, Path]) -> list[dict[str, Any]]:
    """Run servers and senders; one row per checkout."""
    rows = []
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(server(checkout, "linear"))[1]
            for name, checkout in checkouts.items()
        }
        small = requests_for(input_of(next(iter(ports.values()))), SHAPE[1])["json"]
        alone: dict[str, list[float]] = {name: [] for name in ports}
        beside: dict[str, list[float]] = {name: [] for name in ports}
        senders = {}
        for name, port in ports.items():
            command = [sys.executable, str(HERE), "--send", str(port), case]
            senders[name] = sender = stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            )
            assert sender.stdout is not None
            size = json.loads(sender.stdout.readline())
            probe(port, small, 1.0)
        for _ in range(rounds):
            for name, port in ports.items():
                alone[name] += probe(port, small, SPAN_S)
                print("on", file=senders[name].stdin)
                beside[name] += probe(port, small, SPAN_S)
        for name, sender in senders.items():
            told, _ = sender.communicate()
            row = {"checkout": name, "case": case, "bytes": size, "statuses": json.loads(told)}
            for word, found in (("alone", alone[name]), ("beside", beside[name])):
                p50, p99 = np.percentile(np.array(found) * 1e3, (50, 99))
                row |= {f"{word}_p50_ms": round(p50, 2), f"{word}_p99_ms": round(p99, 2)}
            row["ratio"] = round(row["beside_p99_ms"] / row["alone_p99_ms"], 2)
            rows.append(row)
    return rows


def main() -> None:
    """Run the measurement, or one of its senders."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send", nargs=2, metavar=("PORT", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(int(options.send[0]), options.send[1])
        return
    checkouts = {"here": HERE.parents[1]}
    if options.beside:
        checkouts[str(options.beside)] = options.beside.resolve()
    rows = [
        row for case in options.case or CASES for row in measure(case, options.rounds, checkouts)
    ]
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "rows": rows}))
        return
    print(f"{machine()}; {PER_S} bodies a second")
    for row in rows:
        print(
            f"{row['case']:22} {row['bytes']:8d} bytes, p50 {row['alone_p50_ms']:6.2f} to "
            f"{row['beside_p50_ms']:6.2f} ms, p99 {row['alone_p99_ms']:6.2f} to "
            f"{row['beside_p99_ms']:7.2f} ms, ratio {row['ratio']:6.2f}, answers "
            f"{row['statuses']}, {row['checkout']}"
        )


if __name__ == "__main__":
    main()
