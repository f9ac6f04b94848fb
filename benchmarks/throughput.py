"""Requests per second against cores and connections, and who is busy meanwhile.

    python benchmarks/throughput.py [--connections 1 16 64 256] [--cores 1 2] [--json]

The server is pinned to its cores, and the client to the others, or to all where there are no others
(the table says so). Each connection sends its next request as soon as the last one is answered. Of
the server's threads and of the client the table tells the share of one core that each used, so that
what is near 100 % is what the rest waits for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from http_stack import Caller, machine
from request_cost import input_of, requests_for

SERVER = Path(__file__).parent / "request_cost.py"
WARM = 0.2
"""Share of the time that is not counted."""


class Timed(Caller):
    """A connection that notes when each answer came, and after how long."""

    sent_s = 0.0

    def __init__(self, request: bytes, end_s: float, found: list[tuple[float, float]]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(request, lambda: time.perf_counter() < end_s, done)
        self.found = found

    def _next(self) -> None:
        now_s = time.perf_counter()
        if self.sent_s:
            self.found.append((now_s, now_s - self.sent_s))
        self.sent_s = now_s
        super()._next()


async def _drive(
    port: int, request: bytes, connections: int, seconds: float
) -> list[tuple[float, float]]:
    loop = asyncio.get_running_loop()
    found: list[tuple[float, float]] = []
    end_s = time.perf_counter() + seconds
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: Timed(request, end_s, found), "127.0.0.1", port
        )
        callers.append(caller.done)
    await asyncio.gather(*callers)
    return found


def busy_s(pid: int) -> tuple[float, float]:
    """Processor time of a process's first thread, which runs the loop, and of all others, s."""
    loop_s = others_s = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used_s = int((task / "schedstat").read_text().split()[0]) / 1e9
        if task.name == str(pid):
            loop_s = used_s
        else:
            others_s += used_s
    return loop_s, others_s


def one_run(
    pid: int, port: int, request: bytes, connections: int, seconds: float
) -> dict[str, Any]:
    """Measure one number of connections with one form of request."""
    uvloop.run(_drive(port, request, connections, seconds * WARM))
    before, own_s, started_s = busy_s(pid), time.process_time(), time.perf_counter()
    found = np.array(uvloop.run(_drive(port, request, connections, seconds)))
    took_s = time.perf_counter() - started_s
    after = busy_s(pid)
    loop_s, others_s = (end - begin for begin, end in zip(before, after, strict=True))
    p50, p99 = np.percentile(found[:, 1] * 1e3, (50, 99))
    return {
        "requests_per_s": round(len(found) / took_s),
        "cpu_us": round((loop_s + others_s) / len(found) * 1e6, 1),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "loop": round(loop_s / took_s, 2),
        "other_threads": round(others_s / took_s, 2),
        "client": round((time.process_time() - own_s) / took_s, 2),
    }


def measure(
    model: str, cores: list[int], connections: list[int], seconds: float
) -> list[dict[str, Any]]:
    """Run the server on so many cores, each with so many connections; one row per form."""
    here = sorted(os.sched_getaffinity(0))
    rows = []
    for count in cores:
        server_cores = set(here[:count])
        client_cores = set(here[count:]) or set(here)
        command = [sys.executable, str(SERVER), "--serve", model]
        os.sched_setaffinity(0, server_cores)  # the server inherits it
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            os.sched_setaffinity(0, client_cores)
            try:
                assert server.stdout is not None
                port = json.loads(server.stdout.readline())["http_port"]
                tensor = input_of(port)
                size = int(np.prod([max(axis, 1) for axis in tensor["shape"]]))
                for form, request in requests_for(tensor, size).items():
                    for number in connections:
                        row = {"cores": count, "shared": not here[count:]}
                        row |= {"form": form, "connections": number}
                        rows.append(row | one_run(server.pid, port, request, number, seconds))
            finally:
                server.kill()
                os.sched_setaffinity(0, here)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="linear", help="linear or null")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.model, options.cores, options.connections, options.seconds)
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "model": options.model, "rows": rows}))
        return
    print(f"{machine()}; {options.model}; {options.seconds:g} s a run")
    print("| cores | form | connections | requests/s | CPU, µs | p50, ms | p99, ms "
          "| loop | other threads | client |")  # fmt: skip
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        shared = " (shared)" if row.pop("shared") else ""
        cells = [f"{row.pop('cores')}{shared}", *row.values()]
        shares = [f"{share:.0%}" for share in cells[-3:]]
        print(f"| {' | '.join(map(str, cells[:-3] + shares))} |")


if __name__ == "__main__":
    main()
