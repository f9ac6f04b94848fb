"""Measure the CPU time that one request over gRPC costs the server, beside the same over HTTP.

The server is a process of its own that listens for both; its user and system time are read before
and after a bounded run of requests that this process sends over one connection, a given number of
them at a time, each as soon as one has been answered. Requests and model are those of
`request_cost.py`.

Run with the extras ``grpc`` and ``test`` installed::

    python benchmarks/grpc_cost.py [linear | null] [--requests 10000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from http_stack import cpu_seconds, drive, machine
from request_cost import SHAPE, TASK, requests_for, sites_of

ROUNDS = 5
"""The least of so many rounds counts: what else runs on the machine only adds."""
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def serve(model: str) -> None:
    """Run the server until it is told to stop; print its ports when it is ready."""
    import uvloop

    from inferway.live import Server
    from inferway.live.grpc import endpoint_class

    server = Server(sites_of(model), http_port=0, admin_port=0, log_level="warning")
    endpoint = endpoint_class()(lambda: server.ready, server.log.error)

    async def main() -> None:
        await server.start()
        await endpoint.start("127.0.0.1", 0)
        endpoint.serve(server.sites)
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


def measure(model: str, count: int, at_once: int) -> list[dict[str, Any]]:
    """Run the server and the clients; return one row per protocol and form."""
    command = [sys.executable, __file__, "--serve", model]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            ports = json.loads(server.stdout.readline())
            tensor = {"name": "x", "datatype": "FP32", "shape": [-1, SHAPE[1]]}
            jobs = [
                ("http", form, ports["http"], request, drive)
                for form, request in requests_for(tensor, SHAPE[1]).items()
            ]
            jobs += [
                ("grpc", form, ports["grpc"], request, call) for form, request in messages().items()
            ]
            for protocol, form, port, request, send in jobs:
                send(port, request, max(200, count // 10), at_once)
                costs_us, rates = [], []
                for _ in range(ROUNDS):
                    before = cpu_seconds(server.pid)
                    wall_s = send(port, request, count // ROUNDS, at_once)
                    cpu_s = cpu_seconds(server.pid) - before
                    costs_us.append(round(cpu_s / (count // ROUNDS) * 1e6, 1))
                    rates.append(round(count // ROUNDS / wall_s))
                rows.append(
                    {
                        "at_once": at_once,
                        "protocol": protocol,
                        "form": form,
                        "request_bytes": len(request),
                        "cpu_us_per_request": min(costs_us),
                        "cpu_us_median": sorted(costs_us)[ROUNDS // 2],
                        "requests_per_s": max(rates),
                    }
                )
        finally:
            server.kill()
    return rows


def main() -> None:
    """Run the measurement, or the server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="linear", choices=["linear", "null"])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model)
        return
    rows = [
        row
        for at_once in options.at_once
        for row in measure(options.model, options.requests, at_once)
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
            f"(median {row['cpu_us_median']:.1f}), {row['requests_per_s']:6d} requests/s"
        )


if __name__ == "__main__":
    main()
