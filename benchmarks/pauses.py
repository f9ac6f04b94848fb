"""How long the garbage collector holds the server: every collection of a long run, timed inside.

    python benchmarks/pauses.py [--seconds 600] [--connections 16] [--json]

The server is the one that `inferway serve` runs, in a process that also times each collection: on
the clock, which is what requests wait, and in processor time, which leaves out what other processes
took meanwhile. Clients in another process send JSON and binary requests in turn, on connections
that are opened anew every few seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from array import array
from typing import Any

import numpy as np
from http_stack import drive, machine
from request_cost import input_of, requests_for, sites_of

LIMIT_S = 5e-3
"""The goal: no pause is longer."""
ROUND = 20_000
"""Requests between two sets of connections."""


def serve(model: str) -> None:
    """Serve until told to end; print the port, and at the end every pause by generation, s."""
    from inferway.live import Server, ServerOptions

    waited = [array("d") for _ in range(3)]
    worked = [array("d") for _ in range(3)]
    begun: tuple[float, float] = (0.0, 0.0)

    def told(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        now = time.perf_counter(), time.thread_time()
        if phase == "start":
            begun = now
        else:
            waited[info["generation"]].append(now[0] - begun[0])
            worked[info["generation"]].append(now[1] - begun[1])

    def ready(server: Server) -> None:
        gc.callbacks.append(told)
        print(json.dumps(server.http_port), flush=True)

    sites = sites_of(model)
    Server(
        sites, ServerOptions(http_port=0, admin_port=0, drain_delay_s=0.0, log_level="error")
    ).run(ready)
    gc.callbacks.remove(told)
    print(json.dumps([[one.tolist() for one in kind] for kind in (waited, worked)]))


def measure(model: str, seconds: float, connections: int) -> dict[str, Any]:
    """Run server and clients; tell counts and quantiles, by generation."""
    command = [sys.executable, __file__, "--serve", "--model", model]
    sent = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())
            tensor = input_of(port)
            size = int(np.prod([max(axis, 1) for axis in tensor["shape"]]))
            requests = list(requests_for(tensor, size).values())
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                drive(port, requests[sent // ROUND % len(requests)], ROUND, connections)
                sent += ROUND
            server.terminate()
            waited, worked = json.loads(server.stdout.read())
        finally:
            server.kill()
    rows = []
    for generation, (clock_s, processor_s) in enumerate(zip(waited, worked, strict=True)):
        row: dict[str, Any] = {"generation": generation, "collections": len(clock_s)}
        for name, found_s in (("clock", clock_s), ("processor", processor_s)):
            if found_s:
                row[f"{name}_p99_ms"] = round(float(np.percentile(found_s, 99)) * 1e3, 3)
                row[f"{name}_max_ms"] = round(max(found_s) * 1e3, 3)
        rows.append(row)
    over = sum(pause_s > LIMIT_S for kind in waited for pause_s in kind)
    return {
        "seconds": seconds,
        "connections": connections,
        "requests": sent,
        "rows": rows,
        "over_limit": over,
        "share_of_time": sum(map(sum, waited)) / seconds,
    }


def main() -> None:
    """Run the measurement, or the server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--model", choices=("linear", "null"), default="linear")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model)
        return
    found = measure(options.model, options.seconds, options.connections)
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "model": options.model} | found))
        return
    print(
        f"{machine()}; {options.model}; {found['requests']} requests in {options.seconds:g} s over "
        f"{options.connections} connections"
    )
    for row in found["rows"]:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    print(
        f"{found['over_limit']} pauses above {LIMIT_S * 1e3:g} ms; "
        f"{found['share_of_time']:.3%} of the time was the collector's"
    )


if __name__ == "__main__":
    main()
