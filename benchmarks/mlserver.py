"""Compare the CPU time of one request with MLServer's: same model, same client, same cores.

Both serve the digits zoo's smallest model with one ONNX Runtime thread. The client, a process of
its own, sends the same bytes over the same number of kept connections; each server's user and
system time, of all its processes, is read before and after. MLServer runs once with each of the
settings in ``benchmarks/mlserver/settings``; its HTTP endpoint has no binary tensors, so its binary
form is gRPC with raw contents, one call at a time on each of as many channels.

MLServer needs an environment of its own, by default ``.venv-mlserver``::

    python3.11 -m venv .venv-mlserver
    .venv-mlserver/bin/pip install -r benchmarks/mlserver/requirements.txt
    python benchmarks/mlserver.py [--requests 4000] [--connections 8] [--json]
    python benchmarks/mlserver.py --conformance defaults
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from http_stack import cpu_seconds, drive, free_port, machine
from request_cost import TASK, input_of, requests_for

HERE = Path(__file__).parent / "mlserver"
ROUNDS = 5
"""The least of so many rounds counts: what else runs on the machine only adds."""
START_S = 90.0

Drive = Callable[[int], float]
"""Sends so many requests and tells the seconds that it took."""


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop a server at the end, by its process id."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def inferway() -> Iterator[tuple[int, int]]:
    """Serve with Inferway; yields process id and port."""
    command = [sys.executable, "-m", "inferway", "serve", str(HERE / "tiny.yaml"), "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, stopped(process):
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())["http_port"]


@contextmanager
def mlserver(program: Path, settings: Path, model: Path) -> Iterator[tuple[int, int, int]]:
    """Serve with MLServer; yields process id, HTTP port and gRPC port."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("runtime.py", "model-settings.json"):
            shutil.copy(HERE / file, folder)
        http, grpc, metrics = (free_port() for _ in range(3))
        ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
        given = {"host": "127.0.0.1"} | ports | json.loads(settings.read_text(encoding="utf-8"))
        (folder / "settings.json").write_text(json.dumps(given), encoding="utf-8")
        process = subprocess.Popen(
            [program, "start", folder],
            cwd=folder,
            env=os.environ | {"INFERWAY_BENCHMARK_MODEL": str(model), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with stopped(process):
            wait_until_ready(http, process)
            yield process.pid, http, grpc


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the model is ready."""
    from urllib.error import URLError
    from urllib.request import urlopen

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"MLServer ended with status {process.returncode}")
        try:
            with urlopen(f"http://127.0.0.1:{port}/v2/models/{TASK}/ready", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit(f"MLServer was not ready after {START_S:g} s")


def over_http(port: int, request: bytes, connections: int) -> Drive:
    """Drive an HTTP server with one request's bytes."""
    return lambda count: drive(port, request, count, connections)


def over_grpc(port: int, tensor: dict[str, Any], connections: int) -> Drive:
    """Drive a gRPC server with raw contents, one call at a time on each channel."""
    from grpc import aio
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    shape = [1, *(max(axis, 1) for axis in tensor["shape"][1:])]
    size = int(np.prod(shape))
    values = np.round(np.arange(size, dtype=np.float32) / size, 4)
    request = service_pb2.ModelInferRequest(model_name=TASK)
    request.inputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=shape)
    request.raw_input_contents.append(values.tobytes())

    async def channel(count: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(f"127.0.0.1:{port}", options) as wire:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(wire)
            for _ in range(count):
                answer = await stub.ModelInfer(request, timeout=30)
                assert answer.raw_output_contents

    async def all_channels(count: int) -> None:
        shares = [count // connections + (n < count % connections) for n in range(connections)]
        await asyncio.gather(*map(channel, shares))

    def send(count: int) -> float:
        started = time.perf_counter()
        asyncio.run(all_channels(count))
        return time.perf_counter() - started

    return send


def cost(pid: int, send: Drive, count: int) -> dict[str, float]:
    """Measure one server with one form of request."""
    send(max(200, count // 10))
    costs_us, rates = [], []
    for _ in range(ROUNDS):
        before = cpu_seconds(pid)
        wall_s = send(count // ROUNDS)
        costs_us.append((cpu_seconds(pid) - before) / (count // ROUNDS) * 1e6)
        rates.append(count // ROUNDS / wall_s)
    return {
        "cpu_us_per_request": round(min(costs_us), 1),
        "cpu_us_median": round(sorted(costs_us)[ROUNDS // 2], 1),
        "requests_per_s": round(max(rates)),
    }


def measure(program: Path, count: int, connections: int, grpc: bool) -> list[dict[str, Any]]:
    """Run every server in turn; one row per server, settings and form."""
    from inferway.catalog import zoo

    model = zoo.resolve("zoo://digits/tiny")[0]
    rows = []
    with inferway() as (pid, port):
        tensor = input_of(port)
        requests = requests_for(tensor, int(np.prod([max(axis, 1) for axis in tensor["shape"]])))
        for form, request in requests.items():
            # Ours answers faster: more requests, so that the clock's 10 ms do not count.
            found = cost(pid, over_http(port, request, connections), 5 * count)
            rows.append({"server": "inferway", "settings": "", "form": form} | found)
    for settings in sorted((HERE / "settings").glob("*.json")):
        with mlserver(program, settings, model) as (pid, port, grpc_port):
            sends = {"json": over_http(port, requests["json"], connections)}
            if grpc:
                sends["binary (gRPC)"] = over_grpc(grpc_port, tensor, connections)
            for form, send in sends.items():
                row = {"server": "mlserver 1.7.1", "settings": settings.stem, "form": form}
                rows.append(row | cost(pid, send, count))
    return rows


def conform(program: Path, settings: str) -> None:
    """Run the conformance suite against MLServer and print its table."""
    from rich.console import Console

    from inferway import conformance
    from inferway.catalog import zoo

    model = zoo.resolve("zoo://digits/tiny")[0]
    with mlserver(program, HERE / "settings" / f"{settings}.json", model) as (_, port, grpc):
        report = conformance.run(
            f"http://127.0.0.1:{port}", task=TASK, grpc_url=f"127.0.0.1:{grpc}"
        )
    Console(highlight=False).print(report.table())


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Divide MLServer's least cost by ours, for JSON and for binary."""
    found = {}
    for form in ("json", "binary"):
        costs: dict[bool, list[float]] = {True: [], False: []}
        for row in rows:
            if row["form"].startswith(form):
                costs[row["server"] == "inferway"].append(row["cpu_us_per_request"])
        if costs[True] and costs[False]:
            found[form] = round(min(costs[False]) / min(costs[True]), 1)
    return found


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--no-grpc", action="store_true", help="leave MLServer's gRPC out")
    parser.add_argument(
        "--mlserver", type=Path, default=HERE.parents[1] / ".venv-mlserver/bin/mlserver"
    )
    parser.add_argument("--conformance", metavar="SETTINGS", help="check MLServer instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.mlserver.exists():
        raise SystemExit(f"{options.mlserver} is missing: {__doc__.split('MLServer needs')[1]}")
    if options.conformance:
        conform(options.mlserver, options.conformance)
        return
    rows = measure(options.mlserver, options.requests, options.connections, not options.no_grpc)
    found = ratios(rows)
    if options.json:
        shared = {"schema": 1, "machine": machine(), "connections": options.connections}
        print(json.dumps(shared | {"rows": rows, "ratios": found}))
        return
    print(f"{machine()}; {options.connections} connections")
    print("| server | settings | form | CPU, µs | median, µs | requests/s |")
    print("|---|---|---|---:|---:|---:|")
    for row in rows:
        print("| " + " | ".join(str(value) or "-" for value in row.values()) + " |")
    for form, ratio in found.items():
        print(f"{form}: {ratio} times less CPU than MLServer's best")


if __name__ == "__main__":
    main()
