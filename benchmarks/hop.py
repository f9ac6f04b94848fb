"""Measure what one hop between nodes adds: CPU time and latency, with nginx as the reference.

The same request, as an entry node writes it, goes to the same stub of a node that serves: straight;
through nginx as a reverse proxy (one worker, kept connections upstream, no log); and through a
relay, which is what a node on the way does. With the same body, as a client writes it, it goes
through an entry node, which checks, decides and forwards. Each is a process of its own, all stay
up, and they take turns in every round, so that what else runs on the machine meets them all. CPU is
user and system time of that one process, as the scheduler counts it (Linux's schedstat), between
the same requests; latency is that of one connection that sends its next request when it has its
answer.

Run (nginx must be installed: ``apt-get install -y nginx-light``)::

    python benchmarks/hop.py [--requests 20000] [--connections 8] [--rounds 7] [--json]

With ``--beside DIR``, a checkout of another version, its relay and its entry node take their turns
beside ours, in nginx's place, in seven rounds at least, and ours may cost at most `GOAL_BESIDE`
times as much. A ratio is the mean of the rounds' ratios, with its 95 % interval in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from beside import TURNS, Ratio, order, ratio_of, spent_s
from http_stack import BODY, Caller, drive, free_port, machine, request_bytes, wait_for

TASK = "digits"
PATH = f"/v2/models/{TASK}/infer".encode()
ANSWER = json.dumps(
    {
        "model_name": TASK,
        "model_version": "tiny",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 10], "data": [0.1] * 10}],
    }
).encode()
GOAL_CPU, GOAL_P50_S = 2.0, 0.5e-3
GOAL_BESIDE = 1.05
BEFORE = ", before"
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c;
    keepalive_requests 1000000; client_max_body_size 64m;
    upstream stub {{ server 127.0.0.1:{stub}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://stub; proxy_http_version 1.1; proxy_set_header Connection "";
        }}
    }}
}}
"""


def serve(kind: str, port: int, stub: int) -> None:
    """Run one of ours until it is told to stop."""
    import uvloop

    uvloop.run({"stub": _stub, "relay": _relay, "entry": _entry}[kind](port, stub))


async def _stub(port: int, _: int) -> None:
    from inferway.live.http.connection import Listener
    from inferway.live.request import NodeCondition
    from inferway.live.upstream.headers import ResponseHeaders

    headers = ResponseHeaders(NodeCondition("cloud"))

    def answer(exchange: Any) -> None:
        exchange.respond(200, ANSWER, extra=headers.own(b"edge,metro", 1e-3, "tiny", False))

    await Listener(lambda _method, _target: answer, _broken, hops=True).start("127.0.0.1", port)
    await asyncio.Event().wait()


async def _relay(port: int, stub: int) -> None:
    from inferway.live.http.connection import Listener
    from inferway.live.node.proxy import Proxy
    from inferway.live.process import settle
    from inferway.live.request import NodeCondition
    from inferway.live.upstream.upstream import Upstream

    upstream = Upstream("cloud", "127.0.0.1", stub)
    proxy = Proxy(NodeCondition("metro"), lambda *_: upstream)
    await Listener(proxy.find, _broken, hops=True).start("127.0.0.1", port)
    settle()
    await asyncio.Event().wait()


async def _entry(port: int, stub: int) -> None:
    from inferway.dispatch import Dispatcher
    from inferway.live import Pool, PoolOptions, TaskSite
    from inferway.live.http.connection import Listener
    from inferway.live.http.exchange import Limits
    from inferway.live.http.routes import inference_routes
    from inferway.live.process import settle
    from inferway.live.upstream.remote import Forwarding
    from inferway.live.upstream.upstream import Upstream
    from inferway.protocol import Signature, Tensor
    from inferway.site import Fleet

    signature = Signature((Tensor("x", "FP32", (-1, 160)),), (Tensor("y", "FP32", (-1, 10)),))
    upstream = Upstream("cloud", "127.0.0.1", stub)
    names, servers = ("tiny@cloud", "big@cloud"), np.array([64, 16])
    fleet = Fleet(names, np.array([1e3, 5e2]), np.array([0.7, 0.9]), servers)
    runtimes = [
        Forwarding(upstream, "cloud", name.partition("@")[0], ("cloud",))
        for name, count in zip(names, servers, strict=True)
        for _ in range(count)
    ]
    dispatcher = Dispatcher(fleet, "priced", target=0.8, rate_per_s=1e3)
    site = TaskSite.of(
        Pool(TASK, signature, dispatcher, runtimes, PoolOptions(target=0.8, node="edge"))
    )
    await site.start()
    routes = inference_routes({TASK: site}, lambda: True, Limits())
    await Listener(routes.find, _broken).start("127.0.0.1", port)
    settle()
    await asyncio.Event().wait()


def _broken(error: BaseException) -> None:
    raise error


def forwarded() -> bytes:
    """Write a request as an entry node does."""
    from inferway.live.http.exchange import TraceContext
    from inferway.live.upstream.headers import forward_head, target_of

    lines = TraceContext(None, None).headers() + b"Content-Type: application/json\r\n"
    target = target_of(TASK, "127.0.0.1", 8003)
    return (
        forward_head(target, (b"cloud", b"tiny"), b"edge", math.inf, 0.0, lines, len(BODY)) + BODY
    )


@contextmanager
def process(
    command: list[str], port: int, version: Path | None = None
) -> Iterator[tuple[int, int]]:
    """Run a server, of this version or another; yields its process id and port."""
    source = {}
    if version is not None:  # each is set up by its own copy of this file
        own = str(version / "benchmarks" / Path(__file__).name)
        command = [own if part == __file__ else part for part in command]
        source = {"PYTHONPATH": str(version / "src")}
    with subprocess.Popen(command, env={**os.environ, **source}) as one:
        try:
            wait_for(port, one)
            yield one.pid, port
        finally:
            one.terminate()


def ours(kind: str, stub: int) -> tuple[list[str], int]:
    """Make the command of one of our servers, and choose its port."""
    port = free_port()
    return [sys.executable, __file__, "--serve", kind, str(port), str(stub)], port


def reference(stub: int, folder: Path) -> tuple[list[str], int]:
    """Write nginx's configuration; its command and port."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        sys.exit("nginx is not installed; it is the reference: apt-get install -y nginx-light")
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port, stub=stub))
    return [found, "-e", "stderr", "-p", str(folder), "-c", str(file)], port


class _Timed(Caller):
    """Notes how long each answer takes."""

    times_s: list[float]
    begun_s: float

    def _next(self) -> None:
        now_s = time.perf_counter()
        if hasattr(self, "begun_s"):
            self.times_s.append(now_s - self.begun_s)
        self.begun_s = now_s
        super()._next()


def latencies(port: int, request: bytes, count: int) -> list[float]:
    """Send requests one after the other on one connection; seconds that each took."""
    import uvloop

    times_s: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        left, done = iter(range(count)), loop.create_future()

        def caller() -> _Timed:
            one = _Timed(request, lambda: next(left, None) is not None, done)
            one.times_s = times_s
            return one

        await loop.create_connection(caller, "127.0.0.1", port)
        await done

    uvloop.run(run())
    return times_s


def measure(
    count: int, connections: int, rounds: int, beside: Path | None = None
) -> list[dict[str, Any]]:
    """Run everything; one row per way, the cost of that against which it counts being 1."""
    plain, hop = request_bytes(PATH, BODY), forwarded()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command, stub = ours("stub", 0)
        ways = {"straight": (*stack.enter_context(process(command, stub)), hop)}
        made = {"relay": (ours("relay", stub), hop), "entry": (ours("entry", stub), plain)}
        if beside is None:
            made = {"nginx": (reference(stub, folder), hop), **made}
        for name, ((command, port), request) in made.items():
            ways[name] = (*stack.enter_context(process(command, port)), request)
            if beside is not None:
                command, port = ours(name, stub)
                before = stack.enter_context(process(command, port, beside))
                ways[name + BEFORE] = (*before, request)
        costs_us: dict[str, list[float]] = {name: [] for name in ways}
        times_s: dict[str, list[float]] = {name: [] for name in ways}
        for _, port, request in ways.values():
            drive(port, request, max(500, count // 10), connections)
        for turn in range(rounds):
            for name in order(ways, turn):
                pid, port, request = ways[name]
                before = spent_s(pid)
                drive(port, request, count // rounds, connections)
                used_s = spent_s(pid) - before
                costs_us[name].append(used_s / (count // rounds) * 1e6)
            for name, (_, port, request) in ways.items():
                times_s[name] += latencies(port, request, count // rounds // 4)
    straight_s = np.quantile(times_s["straight"], (0.5, 0.99))
    against = {
        name: costs_us["nginx" if beside is None else name.removesuffix(BEFORE) + BEFORE]
        for name in ways
        if name != "straight" or beside is None
    }
    rows = []
    for name in ways:
        p50_s, p99_s = np.quantile(times_s[name], (0.5, 0.99))
        known = name in against and against[name] is not costs_us[name]
        rows.append(
            {
                "way": name,
                "cpu_us": round(min(costs_us[name]), 1),
                "cpu_us_median": round(float(np.median(costs_us[name])), 1),
                **(ratio_of(costs_us[name], against[name])._asdict() if known else {}),
                "p50_ms": round(p50_s * 1e3, 3),
                "p99_ms": round(p99_s * 1e3, 3),
                "added_p50_ms": round((p50_s - straight_s[0]) * 1e3, 3),
                "added_p99_ms": round((p99_s - straight_s[1]) * 1e3, 3),
            }
        )
    return rows


def main() -> None:
    """Run the measurement, or one of its servers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=TURNS)
    parser.add_argument("--beside", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, port, stub = options.serve
        serve(kind, int(port), int(stub))
        return
    if options.beside is not None and options.rounds < TURNS:
        parser.error(f"--rounds is at least {TURNS} with --beside")
    rows = measure(options.requests, options.connections, options.rounds, options.beside)
    if options.json:
        print(json.dumps({"schema": 1, "machine": machine(), "rows": rows}))
        return
    print(f"{machine()}; {options.requests} requests, {options.connections} connections")
    against = "of nginx" if options.beside is None else "of before"
    print(f"{'':14}{'CPU, µs (median)':>20}{against:>24}{'p50, ms':>9}{'p99, ms':>9}{'added':>16}")
    for row in rows:
        cpu = f"{row['cpu_us']:.1f} ({row['cpu_us_median']:.1f})"
        added = f"{row['added_p50_ms']:.3f}, {row['added_p99_ms']:.3f}"
        ratio = str(Ratio(row["ratio"], row["low"], row["high"])) if "ratio" in row else ""
        print(
            f"{row['way']:14}{cpu:>20}{ratio:>24}"
            f"{row['p50_ms']:9.3f}{row['p99_ms']:9.3f}{added:>16}"
        )
    for row in rows:
        if row["way"] not in ("relay", "entry"):
            continue
        if options.beside is None:
            met = row["ratio"] <= GOAL_CPU and row["added_p50_ms"] < GOAL_P50_S * 1e3
            most_ms = GOAL_P50_S * 1e3
            goals = f"CPU at most {GOAL_CPU:g} times nginx's, p50 added below {most_ms:g} ms"
        else:
            met = row["ratio"] <= GOAL_BESIDE
            goals = f"CPU at most {GOAL_BESIDE:g} times the version's before"
        print(f"{row['way']}: {'goals met' if met else 'goals NOT met'} ({goals})")


if __name__ == "__main__":
    main()
