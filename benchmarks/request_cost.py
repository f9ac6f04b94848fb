"""Measure the CPU time that one inference request costs the server, from socket to socket.

The server is a process of its own; its user and system time are read before and after a bounded
run of requests that another process sends over keep-alive connections, each as soon as the one
before it has been answered. The model is a linear classifier of 160 inputs in ONNX Runtime (a
request of about 1 KB), nothing at all (a null runtime: the cost of serving), or a deployment
file's own.

Run::

    python benchmarks/request_cost.py [linear | null | digits | FILE] [--requests 20000] [--json]
    python benchmarks/request_cost.py --beside ../older    # another checkout's server
    python benchmarks/request_cost.py FILE --against OTHER # another file's, likewise

    python benchmarks/request_cost.py --labels 0.05        # a promise on what is measured
    python benchmarks/request_cost.py digits --beside ../older

With `--labels`, a share of the answers of a task with `feedback` is labeled once a second by the
server's process itself, right as often as profiles say: all that a label costs but its way over
HTTP. Without files, a promise on what is measured is held against one on profiles.

With another checkout or file, both servers get their requests at the same time, so that what else
runs on the machine meets both alike, over `--turns` turns, each of servers of its own. The ratio
of CPU time to the other's has an interval, and a last line says whether it is at most
`--at-most`. Both variants of ``digits`` are the same model, so that another mix of them costs
nothing, and no feature is switched on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from beside import Ratio, add_options, order, ratio_of, spent_s, verdict_of
from http_stack import drive, machine, request_bytes

HERE = Path(__file__).resolve()
TASK = "digits"
SHAPE = (1, 160)
ROUNDS = 5
"""Without another checkout; the least of the rounds counts: what else runs here only adds."""
LABELED_S = 3.0
"""Which the shortest run takes at least, so that labels come in each."""
AT_MOST = {"beside": 1.05, "against": 1.1}
DIGITS = """
tasks:
  digits:
    accuracy_target: {target}
    variants:
      small: {{model: zoo://digits/tiny, accuracy: 0.8}}
      large: {{model: zoo://digits/tiny, accuracy: 0.94}}
{more}
nodes: {{here: {{instances: {{digits/small: 1, digits/large: 1}}, buffer: 64}}}}
dispatch: {{policy: priced}}
workload: {{digits: {{arrivals: {{process: poisson, rate: 1000/s}}}}}}
"""
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


def digits(folder: Path, name: str, target: str = "0.88", more: str = "") -> str:
    """Write a file of two variants, both the same model, with a promise on these accuracies."""
    file = folder / f"{name}.yaml"
    file.write_text(DIGITS.format(target=target, more=more))
    return str(file)


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


def at_once(
    clients: ThreadPoolExecutor,
    servers: dict[str, tuple[int, int]],
    request: bytes,
    connections: int,
    number: int,
) -> dict[str, float]:
    """Send so many requests to each server at the same time; the seconds that took, by name."""
    driving = {
        name: clients.submit(drive, port, request, number, connections)
        for name, (_, port) in servers.items()
    }
    return {name: one.result() for name, one in driving.items()}


def measure(
    count: int,
    connections: int,
    served: dict[str, tuple[Path, str]],
    rounds: int,
    labels: float = 0.0,
) -> list[dict[str, Any]]:
    """Run the servers and the clients; one row per wire format and server.

    Of each server, its checkout and its model. Where there are two, each round has servers of its
    own, so that the luck of a process is one round's alone.
    """
    each, beside = count // rounds, len(served) > 1
    costs_us: dict[tuple[str, str], list[float]] = {}
    rates: dict[tuple[str, str], list[int]] = {}
    sizes: dict[str, int] = {}
    for turn in range(rounds if beside else 1):
        with ExitStack() as stack, ThreadPoolExecutor(len(served)) as clients:
            servers = {
                name: stack.enter_context(server(*served[name], labels))
                for name in order(served, turn)
            }
            tensor = input_of(next(iter(servers.values()))[1])
            size = int(np.prod([max(axis, 1) for axis in tensor["shape"][1:]]))
            for form, request in requests_for(tensor, size).items():
                sizes[form] = len(request)
                drive_all = partial(at_once, clients, servers, request, connections)
                drive_all(max(500, each // 2 if beside else count // 10))
                for _ in range(1 if beside else rounds):
                    before = {name: spent_s(pid) for name, (pid, _) in servers.items()}
                    for name, wall_s in drive_all(each).items():
                        cost_us = (spent_s(servers[name][0]) - before[name]) / each * 1e6
                        costs_us.setdefault((form, name), []).append(cost_us)
                        rates.setdefault((form, name), []).append(round(each / wall_s))
    rows: list[dict[str, Any]] = []
    for form, request_size in sizes.items():
        rows += [
            {
                "checkout": name,
                "form": form,
                "request_bytes": request_size,
                "cpu_us_per_request": round(min(costs_us[form, name]), 1),
                "cpu_us_median": round(float(np.median(costs_us[form, name])), 1),
                "requests_per_s": max(rates[form, name]),
            }
            for name in served
        ]
        if beside:
            here, other = (costs_us[form, name] for name in served)
            rows[-2].update(ratio_of(here, other)._asdict(), turns=[here, other])
    return rows


def verdict(rows: list[dict[str, Any]], other: str, at_most: float) -> dict[str, Any]:
    """Say, over the turns of all formats and connections, whether it costs at most so much."""
    turns = [row.pop("turns") for row in rows if "turns" in row]
    here, others = ([cost for turn in turns for cost in turn[side]] for side in (0, 1))
    ratio, load = ratio_of(here, others), os.getloadavg()[0]
    return {
        "other": other,
        "at_most": at_most,
        **ratio._asdict(),
        "pairs": len(here),
        "load": round(load, 1),
        "verdict": verdict_of(ratio, at_most),
    }


def main() -> None:
    """Run the measurement, or the server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="", help="linear, null, digits or a file")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    add_options(parser)
    parser.add_argument("--against", help="another file, measured in turns")
    parser.add_argument("--labels", type=float, default=0.0, help="share of answers with a label")
    parser.add_argument("--at-most", type=float, help="times the other's, as the last line says")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model, options.labels)
        return
    with tempfile.TemporaryDirectory() as folder:
        report(options, Path(folder))


def report(options: argparse.Namespace, folder: Path) -> None:
    """Measure what the command line asks for, and print it."""
    here, model, rounds, kind = HERE.parents[1], options.model, options.turns, "against"
    files = [
        digits(folder, by, f"{{mean: 0.88, by: {by}}}", "    feedback: {}")
        for by in ("measured", "profile")
    ]
    if options.labels and not model:
        model, options.against = files
    elif model == "digits":
        model = digits(folder, "digits")
    model = model or "linear"
    served = {"here": (here, model)}
    if options.beside:
        kind = "beside"
        served[str(options.beside)] = options.beside.resolve(), model
    elif options.against:
        served[Path(options.against).name] = here, options.against
    else:
        rounds = ROUNDS
    rows = [
        {"connections": connections} | row
        for connections in options.connections
        for row in measure(options.requests, connections, served, rounds, options.labels)
    ]
    seconds = min(options.requests / rounds / row["requests_per_s"] for row in rows)
    if options.labels and seconds < LABELED_S:
        print(
            f"a run takes {seconds:.1f} s, and labels come once a second: more --requests say more",
            file=sys.stderr,
        )
    settled = None
    if len(served) > 1:
        at_most = AT_MOST[kind] if options.at_most is None else options.at_most
        settled = verdict(rows, list(served)[1], at_most)
    model = Path(model).name
    if options.json:
        found = {"schema": 1, "machine": machine(), "model": model, "rows": rows}
        print(json.dumps(found if settled is None else found | {"verdict": settled}))
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
    if settled is not None:
        ratio = Ratio(settled["ratio"], settled["low"], settled["high"])
        print(
            f"{model} over {settled['other']}: {ratio} in {settled['pairs']} pairs of runs, load "
            f"{settled['load']}; at most {settled['at_most']:g}: {settled['verdict']}"
        )


if __name__ == "__main__":
    main()
