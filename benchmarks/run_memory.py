"""Measure what large requests take of a server's memory, and what that costs ordinary ones.

`inferway serve` runs the zoo's `huge` and `ensemble`, one instance of each, in a process of its
own. Requests of one row come first, many of them: CPU is user and system time of the process for
each. Then one of 1,024 rows goes to `ensemble` and one of 4,096 rows to `huge`, as binary tensors:
how much resident memory grew at its highest, as the kernel marks it, and what it was ten seconds
after the answer, as a multiple of what it was before.

Run (Linux)::

    python benchmarks/run_memory.py [--rounds 5] [--requests 200] [--json]

With ``--beside DIR``, a checkout of another version, its server takes its turns beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil

FILE = """
tasks:
  digits:
    variants:
      huge: {model: zoo://digits/huge}
      ensemble: {model: zoo://digits/ensemble}
nodes: {here: {buffer: 15}}
dispatch: {policy: fastest-only}
"""
LARGE = {"ensemble": 1024, "huge": 4096}
AFTER_S = 10.0
GOAL_BYTES, GOAL_AFTER, GOAL_CPU = 512 * 1024**2, 1.2, 1.05


class Served:
    """One server and its client."""

    def __init__(self, tree: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "digits.yaml").write_text(FILE)
        command = [sys.executable, "-m", "inferway", "serve", str(folder / "digits.yaml")]
        command += ["--http-port", "0", "--admin-port", "0", "--log-level", "error", "--json"]
        known = os.environ | {"PYTHONPATH": str(tree / "src"), "XDG_STATE_HOME": str(folder)}
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, env=known)
        assert self.server.stdout is not None
        port = json.loads(self.server.stdout.readline())["http_port"]
        self.process = psutil.Process(self.server.pid)
        self.wire = socket.create_connection(("127.0.0.1", port), 600.0)

    def ask(self, variant: str, rows: int) -> None:
        """Have so many rows answered."""
        data = np.random.default_rng(rows).random((rows, 1, 32, 32), np.float32)
        tensor = {
            "name": "image",
            "datatype": "FP32",
            "shape": data.shape,
            "parameters": {"binary_data_size": data.nbytes},
        }
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        text = json.dumps(asked).encode()
        head = (
            f"POST /v2/models/digits/versions/{variant}/infer HTTP/1.1\r\nHost: here\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\n"
            f"Content-Length: {len(text) + data.nbytes}\r\n\r\n"
        )
        self.wire.sendall(head.encode() + text + data.tobytes())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.wire.recv(1 << 16)
        top, _, rest = answer.partition(b"\r\n\r\n")
        if not top.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"{variant}, {rows} rows: {answer[:300]!r}")
        lines = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
        left = int(lines[b"content-length"]) - len(rest)
        while left > 0:
            left -= len(self.wire.recv(1 << 16))

    def cpu_s(self) -> float:
        """What all of its threads have used, as the scheduler counts it."""
        tasks = Path(f"/proc/{self.server.pid}/task")
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
        )

    def single_s(self, variant: str, requests: int) -> float:
        """Tell the CPU time of a request of one row, s."""
        before_s = self.cpu_s()
        for _ in range(requests):
            self.ask(variant, 1)
        return (self.cpu_s() - before_s) / requests

    def large(self, variant: str, rows: int) -> dict[str, float]:
        """Tell what a request of so many rows takes and leaves."""
        before, before_s = self.process.memory_info().rss, self.cpu_s()
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")
        self.ask(variant, rows)
        used_s = self.cpu_s() - before_s
        time.sleep(AFTER_S)
        found = Path(f"/proc/{self.server.pid}/status").read_text().split("VmHWM:")[1]
        return {
            "grew_bytes": int(found.split()[0]) * 1024 - before,
            "after": self.process.memory_info().rss / before,
            "cpu_s": used_s,
        }

    def stop(self) -> None:
        """End both."""
        self.wire.close()
        self.server.send_signal(signal.SIGINT)
        self.server.wait(60)


def measure(trees: dict[str, Path], rounds: int, requests: int) -> dict[str, Any]:
    """Measure each version."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = {}
        for name, tree in trees.items():
            servers[name] = Served(tree, Path(folder) / name)
            stack.callback(servers[name].stop)
        single: dict[str, dict[str, list[float]]]
        single = {name: {variant: [] for variant in LARGE} for name in servers}
        for served in servers.values():
            for variant in LARGE:
                served.single_s(variant, 5)
        for _ in range(rounds):
            for variant in LARGE:
                count = requests if variant == "huge" else max(1, requests // 8)
                for name, served in servers.items():
                    single[name][variant].append(served.single_s(variant, count))
        return {
            name: {
                "single_s": single[name],
                "large": {variant: served.large(variant, rows) for variant, rows in LARGE.items()},
            }
            for name, served in servers.items()
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trees = {"ours": Path(__file__).resolve().parent.parent}
    if options.beside is not None:
        trees["before"] = options.beside.resolve()
    found = measure(trees, options.rounds, options.requests)
    if options.json:
        print(json.dumps({"schema": 1, "versions": found}))
        return
    for name, one in found.items():
        for variant, rows in LARGE.items():
            large, single_s = one["large"][variant], np.median(one["single_s"][variant])
            print(
                f"{name:7} {variant:9} one row {single_s * 1e3:7.3f} ms; {rows} rows "
                f"{large['cpu_s']:6.2f} s, {large['grew_bytes'] / 1024**2:+6.0f} MiB at the "
                f"highest, {large['after']:.2f} times ten seconds later"
            )
    ours = found["ours"]
    for variant in LARGE:
        large = ours["large"][variant]
        _goal(f"{variant}: memory in MiB", large["grew_bytes"] / 1024**2, GOAL_BYTES / 1024**2)
        _goal(f"{variant}: ten seconds later", large["after"], GOAL_AFTER)
        if "before" in found:
            pairs = np.divide(ours["single_s"][variant], found["before"]["single_s"][variant])
            _goal(f"{variant}: one row beside", float(np.median(pairs)), GOAL_CPU)


def _goal(what: str, value: float, goal: float) -> None:
    print(f"{what} {value:.3g}, goal {goal:g}: {'met' if value <= goal else 'MISSED'}")


if __name__ == "__main__":
    main()
