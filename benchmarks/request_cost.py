"""Measure the CPU time that one inference request costs the server, from socket to socket.

The server is a process of its own; its user and system time are read before and after a bounded
run of requests that another process sends over keep-alive connections, each as soon as the one
before it has been answered. The model is a linear classifier of 160 inputs in ONNX Runtime (a
request of about 1 KB), nothing at all (a null runtime: the cost of serving), or a deployment
file's own.

Run::

    python benchmarks/request_cost.py [linear | null | FILE] [--requests 20000] [--json]
    python benchmarks/request_cost.py --beside ../older    # another checkout's server, in turns
    python benchmarks/request_cost.py FILE --against OTHER # another file's, likewise

    python benchmarks/request_cost.py FILE --against OTHER --labels 0.05

With `--labels`, a share of the answers of a task with `feedback` is labeled once a second by the
server's process itself, right as often as profiles say: all that a label costs but its way over
HTTP.

With another checkout or file, the ratio of CPU time to its server's has an interval, over
`--turns` turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from beside import Ratio, add_options, order, ratio_of, spent_s
from http_stack import drive, machine, request_bytes

HERE = Path(__file__).resolve()
TASK = "digits"
SHAPE = (1, 160)
ROUNDS = 5
"""Without another checkout; the least of the rounds counts: what else runs here only adds."""
PATH = f"/v2/models/{TASK}/infer".encode()


def serve(model: str, labels: float) -> None:
    """Run the server until it is told to stop; print its port when it is ready.

    A share of its answers is labeled.
    """
    import uvloop

    from inferway.live import Server, ServerOptions

    deployment: Any = sites_of(model) if model in ("linear", "null") else load(model)
    server = Server(deployment, ServerOptions(http_port=0, admin_port=0, log_level="warning"))

    async def main() -> None:
        await server.start()
        print(json.dumps({"http_port": server.http_port}), flush=True)
        while labels:
            await asyncio.sleep(1.0)
            book = server.sites[TASK].answers
            if book is None:
                raise SystemExit(f"task {TASK} keeps no answers; give it `feedback: {{}}`")
            await asyncio.to_thread(label, book, labels)
        await asyncio.Event().wait()

    uvloop.run(main())


def label(book: Any, share: float) -> None:
    """Label a share of the answers of the last moment."""
    import random

    from inferway.live.feedback import FeedbackItem

    with book._lock:
        book._write()
        found = book._base.execute(
            "SELECT id, variant FROM answers WHERE number > (SELECT coalesce(max(number), 0) "
            "FROM answers WHERE score IS NOT NULL)"
        ).fetchall()
    every = max(1, round(1.0 / share))
    # The last one, so that those before it are not looked at again.
    book.join(
        [
            FeedbackItem(id=one, correct=random.random() < (book.profile(variant) or 0.0))
            for one, variant in found[::-1][::every]
        ]
    )


def load(file: str) -> Any:
    """Load a deployment file."""
    import inferway

    return inferway.load(file)


def sites_of(model: str) -> list[Any]:
    """Make one task of two variants, both the same model."""
    from inferway.dispatch import Dispatcher
    from inferway.live import Pool, PoolOptions, TaskSite
    from inferway.protocol import Signature, Tensor
    from inferway.runtime import NullRuntime
    from inferway.site import Fleet

    signature = Signature((Tensor("x", "FP32", (-1, SHAPE[1])),), (Tensor("y", "FP32", (-1, 10)),))
    fleet = Fleet(("tiny", "big"), np.array([1e4, 5e3]), np.array([0.7, 0.9]), np.array([1, 1]))
    dispatcher = Dispatcher(fleet, "priced", target=0.8, rate_per_s=1e3)
    runtime: Any = NullRuntime(signature) if model == "null" else linear()
    return [
        TaskSite.of(Pool(TASK, signature, dispatcher, [runtime, runtime], PoolOptions(target=0.8)))
    ]


def linear() -> Any:
    """Make a linear classifier with softmax, in ONNX Runtime."""
    import tempfile

    from onnx import TensorProto, helper, numpy_helper

    from inferway.runtime import OnnxRuntime

    weights = np.random.default_rng(1).normal(size=(SHAPE[1], 10)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["z"]),
            helper.make_node("Softmax", ["z"], ["y"], axis=1),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, SHAPE[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 10])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.onnx"
        path.write_bytes(made.SerializeToString())
        return OnnxRuntime(path)


def requests_for(tensor: dict[str, Any], size: int) -> dict[str, bytes]:
    """Build the same request as JSON and as binary."""
    shape = [1, *(max(axis, 1) for axis in tensor["shape"][1:])]
    values = np.round(np.arange(size, dtype=np.float32) / size, 4)
    given = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape}
    text = msgspec.json.encode(
        {"inputs": [given | {"data": [round(value, 4) for value in values.tolist()]}]}
    )
    raw = values.tobytes()
    head = msgspec.json.encode(
        {
            "inputs": [given | {"parameters": {"binary_data_size": len(raw)}}],
            "parameters": {"binary_data_output": True},
        }
    )
    length = b"Inference-Header-Content-Length: %d\r\n" % len(head)
    return {
        "json": request_bytes(PATH, text),
        "binary": request_bytes(PATH, head + raw, length),
    }


def input_of(port: int) -> dict[str, Any]:
    """Ask the server for the task's first input."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/v2/models/{TASK}") as response:
        found: dict[str, Any] = json.load(response)["inputs"][0]
    return found


@contextmanager
def server(checkout: Path, model: str, labels: float) -> Iterator[tuple[int, int]]:
    """Run a checkout's server; yields process id and port."""
    command = [sys.executable, str(checkout / "benchmarks" / HERE.name), "--serve", model]
    command += ["--labels", str(labels)] if labels else []
    paths = {"PYTHONPATH": str(checkout / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | paths) as process:
        try:
            assert process.stdout is not None
            yield process.pid, json.loads(process.stdout.readline())["http_port"]
        finally:
            process.kill()


def measure(
    count: int,
    connections: int,
    served: dict[str, tuple[Path, str]],
    rounds: int,
    labels: float = 0.0,
) -> list[dict[str, Any]]:
    """Run the servers and the clients; one row per wire format and server.

    Of each server, its checkout and its model.
    """
    rows = []
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(server(checkout, model, labels))
            for name, (checkout, model) in served.items()
        }
        tensor = input_of(next(iter(servers.values()))[1])
        size = int(np.prod([max(axis, 1) for axis in tensor["shape"][1:]]))
        for form, request in requests_for(tensor, size).items():
            costs_us: dict[str, list[float]] = {name: [] for name in servers}
            rates: dict[str, list[int]] = {name: [] for name in servers}
            for _, port in servers.values():
                drive(port, request, max(500, count // 10), connections)
            for turn in range(rounds):
                for name in order(servers, turn):
                    pid, port = servers[name]
                    before = spent_s(pid)
                    wall_s = drive(port, request, count // rounds, connections)
                    cpu_s = spent_s(pid) - before
                    costs_us[name].append(cpu_s / (count // rounds) * 1e6)
                    rates[name].append(round(count // rounds / wall_s))
            rows += [
                {
                    "checkout": name,
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
    parser.add_argument("model", nargs="?", default="linear", help="linear, null or a file")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    add_options(parser)
    parser.add_argument("--against", help="another file, measured in turns")
    parser.add_argument("--labels", type=float, default=0.0, help="share of answers with a label")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model, options.labels)
        return
    model = Path(options.model).name
    served, rounds = {"here": (HERE.parents[1], options.model)}, ROUNDS
    if options.beside:
        rounds = options.turns
        served[str(options.beside)] = options.beside.resolve(), options.model
    elif options.against:
        rounds = options.turns
        served[options.against] = HERE.parents[1], options.against
    rows = [
        {"connections": connections} | row
        for connections in options.connections
        for row in measure(options.requests, connections, served, rounds, options.labels)
    ]
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "model": model, "rows": rows}))
        return
    print(f"{machine()}; {model}; {options.requests} requests")
    for row in rows:
        print(
            f"{row['form']:7} {row['request_bytes']:6d} bytes, {row['connections']:3d} connections:"
            f" {row['cpu_us_per_request']:6.1f} µs CPU each (median {row['cpu_us_median']:.1f}),"
            f" {row['requests_per_s']:6d} requests/s, {row['checkout']}"
        )
        if "ratio" in row:
            print(f"{'':7} CPU over the other's: {Ratio(row['ratio'], row['low'], row['high'])}")


if __name__ == "__main__":
    main()
