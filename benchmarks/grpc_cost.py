"""Measure the CPU time that one request over gRPC costs the server, beside the same over HTTP.

The server is a process of its own that listens for both; its user and system time are read before
and after a bounded run of requests that this process sends over one connection, a given number of
them at a time, each as soon as one has been answered. Requests and model are those of
`request_cost.py`.

Run with the extras ``grpc`` and ``test`` installed::

    python benchmarks/grpc_cost.py [linear | null] [--requests 10000] [--json]
    python benchmarks/grpc_cost.py --beside ../older    # another checkout's server, in turns
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from beside import Ratio, add_options, order, ratio_of, spent_s
from http_stack import drive, machine
from request_cost import SHAPE, TASK, requests_for, sites_of

HERE = Path(__file__).resolve()
ROUNDS = 5
"""The least of so many rounds counts: what else runs on the machine only adds."""
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def serve(model: str) -> None:
    """Run the server until it is told to stop; print its ports when it is ready."""
    import uvloop

    from inferway.live import Server, ServerOptions
    from inferway.live.grpc import endpoint_class

    server = Server(sites_of(model), ServerOptions(http_port=0, admin_port=0, log_level="warning"))
    endpoint = endpoint_class()(lambda: server.ready, server.log.error)

    async def main() -> None:
        await server.start()
        await endpoint.start("127.0.0.1", 0)
        endpoint.serve(server.served())
        print(json.dumps({"http": server.http_port, "grpc": endpoint.port}), flush=True)
        await asyncio.Event().wait()

    uvloop.run(main())


def messages() -> dict[str, bytes]:
    """Build the request with raw and with typed contents."""
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    values = np.round(np.arange(SHAPE[1], dtype=np.float32) / SHAPE[1], 4)
    packed = {}
    for form in ("raw", "typed"):
        request = ModelInferRequest(model_name=TASK)
        given = request.inputs.add(name="x", datatype="FP32", shape=SHAPE)
        if form == "raw":
            request.raw_input_contents.append(values.tobytes())
        else:
            given.contents.fp32_contents.extend(values.tolist())
        packed[form] = request.SerializeToString()
    return packed


def call(port: int, request: bytes, count: int, at_once: int) -> float:
    """Send `count` requests and return the seconds that it took."""
    import grpc.aio
    import uvloop

    async def closed_loop() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary(METHOD)

            async def worker(share: int) -> None:
                for _ in range(share):
                    await method(request)

            await asyncio.gather(*(worker(count // at_once) for _ in range(at_once)))

    started = time.perf_counter()
    uvloop.run(closed_loop())
    return time.perf_counter() - started


@contextmanager
def server(checkout: Path, model: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Run a checkout's server; yields process id and ports."""
    command = [sys.executable, str(checkout / "benchmarks" / HERE.name), "--serve", model]
    paths = {"PYTHONPATH": str(checkout / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | paths) as process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            process.kill()


def measure(
    model: str, count: int, at_once: int, checkouts: dict[str, Path], rounds: int
) -> list[dict[str, Any]]:
    """Run the servers and the clients; one row per protocol, form and checkout."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, SHAPE[1]]}
    jobs = [("http", form, one, drive) for form, one in requests_for(tensor, SHAPE[1]).items()]
    jobs += [("grpc", form, one, call) for form, one in messages().items()]
    share, rows = count // rounds, []
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(server(checkout, model))
            for name, checkout in checkouts.items()
        }
        for protocol, form, request, send in jobs:
            costs_us: dict[str, list[float]] = {name: [] for name in servers}
            rates: dict[str, list[int]] = {name: [] for name in servers}
            for _, ports in servers.values():
                send(ports[protocol], request, max(200, count // 10), at_once)
            for turn in range(rounds):
                for name in order(servers, turn):
                    pid, ports = servers[name]
                    before = spent_s(pid)
                    wall_s = send(ports[protocol], request, share, at_once)
                    costs_us[name].append((spent_s(pid) - before) / share * 1e6)
                    rates[name].append(round(share / wall_s))
            rows += [
                {
                    "checkout": name,
                    "at_once": at_once,
                    "protocol": protocol,
                    "form": form,
                    "request_bytes": len(request),
                    "cpu_us_per_request": round(min(costs_us[name]), 1),
                    "cpu_us_median": round(float(np.median(costs_us[name])), 1),
                    "requests_per_s": max(rates[name]),
                }
                for name in servers
            ]
            if len(servers) > 1:
                here, other = costs_us.values()
                rows[-2].update(ratio_of(here, other)._asdict())
    return rows


def main() -> None:
    """Run the measurement, or the server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="linear", choices=["linear", "null"])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    add_options(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model)
        return
    checkouts, rounds = {"here": HERE.parents[1]}, ROUNDS
    if options.beside:
        rounds = options.turns
        checkouts[str(options.beside)] = options.beside.resolve()
    rows = [
        row
        for at_once in options.at_once
        for row in measure(options.model, options.requests, at_once, checkouts, rounds)
    ]
    if options.json:
        report = {"schema": 1, "machine": machine(), "model": options.model, "rows": rows}
        print(json.dumps(report))
        return
    print(f"{machine()}; {options.model}; {options.requests} requests")
    for row in rows:
        print(
            f"{row['protocol']} {row['form']:6} {row['request_bytes']:5d} bytes, "
            f"{row['at_once']:3d} at once: {row['cpu_us_per_request']:6.1f} µs CPU each "
            f"(median {row['cpu_us_median']:.1f}), {row['requests_per_s']:6d} requests/s, "
            f"{row['checkout']}"
        )
        if "ratio" in row:
            print(f"{'':11} CPU over the other's: {Ratio(row['ratio'], row['low'], row['high'])}")


if __name__ == "__main__":
    main()
