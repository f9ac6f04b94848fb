"""Compare the CPU time of one request to a Python echo with MLServer's and LitServe's.

Each server runs the same echo of 64 numbers: Inferway as a Python variant in its worker process,
MLServer 1.7.1 as a custom runtime, in its own process and in a worker process, LitServe 0.2.19 with
one worker, over its plain queue and its fast one. A client beside them sends the same numbers as
JSON over as many kept connections, a bounded count, each as soon as the one before is answered.
The time that all processes of a server have had a core is read before and after, from Linux's
scheduler. In a turn all are measured, in changing order; a ratio has its 95 % interval over the
turns.

MLServer and LitServe get virtual environments of their own, which are made where they are missing::

    python benchmarks/python_variant.py [--requests 4000] [--turns 7] [--connections 4] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import psutil
from beside import TURNS, Ratio, order, ratio_of, spent_s
from http_stack import drive, free_port, machine, request_bytes
from mlserver import stopped

HERE = Path(__file__).parent
FOLDER = HERE / "python_variant"
ROOT = HERE.parent
START_S = 90.0
OURS = "inferway"
VALUES = [round(i / 64, 4) for i in range(64)]
PROTOCOL = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": VALUES}]}
).encode()
LITSERVE = json.dumps({"x": VALUES}).encode()
NEEDED = {
    "mlserver": HERE / "mlserver" / "requirements.txt",
    "litserve": FOLDER / "requirements-litserve.txt",
}


class Served(NamedTuple):
    """A server: its first process, its port, and the bytes of a request to it."""

    pid: int
    port: int
    request: bytes


def environment(name: str) -> Path:
    """Find a server's virtual environment, or make it."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    mark = folder / "made"
    if not (folder / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if not mark.exists():
        install = [python, "-m", "pip", "install", "--quiet", "-r", NEEDED[name]]
        subprocess.run(install, check=True)
        mark.touch()
    return python


@contextmanager
def inferway() -> Iterator[Served]:
    """Serve the Python variant."""
    command = [sys.executable, "-m", "inferway", "serve", str(FOLDER / "echo.yaml"), "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, stopped(process):
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["http_port"]
        yield Served(process.pid, port, request_bytes(b"/v2/models/echo/infer", PROTOCOL))


@contextmanager
def mlserver(settings: str) -> Iterator[Served]:
    """Serve MLServer's custom runtime."""
    python = environment("mlserver")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("runtime.py", "model-settings.json"):
            shutil.copy(FOLDER / file, folder)
        http, grpc, metrics = (free_port() for _ in range(3))
        ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
        given = json.loads((HERE / "mlserver" / "settings" / f"{settings}.json").read_text())
        (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1"} | ports | given))
        command = [python.parent / "mlserver", "start", folder]
        with started(command, folder) as process:
            served = Served(process.pid, http, request_bytes(b"/v2/models/echo/infer", PROTOCOL))
            wait_until_answered(served, process)
            yield served


@contextmanager
def litserve(queue: str) -> Iterator[Served]:
    """Serve with LitServe."""
    port = free_port()
    command = [environment("litserve"), FOLDER / "litserve_echo.py", str(port), queue]
    with started(command, FOLDER) as process:
        served = Served(process.pid, port, request_bytes(b"/predict", LITSERVE))
        wait_until_answered(served, process)
        yield served


@contextmanager
def started(command: list[str | Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server of others, and end it and what it has started."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with stopped(process):
            yield process
    finally:
        for one in psutil.process_iter():
            try:
                if os.getpgid(one.pid) == process.pid:
                    one.kill()
            except (OSError, psutil.Error):
                continue


def wait_until_answered(served: Served, process: subprocess.Popen[bytes]) -> None:
    """Wait until a request is answered."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with status {process.returncode}")
        try:
            drive(served.port, served.request, 1, 1)
        except (OSError, RuntimeError):
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"{process.args} was not ready after {START_S:g} s")


def used_s(pid: int) -> float:
    """Tell the time that a server's processes have had a core."""
    process = psutil.Process(pid)
    return sum(spent_s(one.pid) for one in (process, *process.children(recursive=True)))


SERVERS: dict[str, Callable[[], object]] = {
    OURS: inferway,
    "mlserver 1.7.1, in process": lambda: mlserver("in-process-leanest"),
    "mlserver 1.7.1, one worker": lambda: mlserver("one-worker-leanest"),
    "litserve 0.2.19": lambda: litserve("plain"),
    "litserve 0.2.19, fast queue": lambda: litserve("fast"),
}


def measure(count: int, turns: int, connections: int) -> dict[str, list[float]]:
    """Measure every server in each turn: CPU time per request, us."""
    costs_us: dict[str, list[float]] = {name: [] for name in SERVERS}
    with ExitStack() as stack:
        served = {name: stack.enter_context(begin()) for name, begin in SERVERS.items()}  # type: ignore[arg-type,var-annotated]
        for one in served.values():
            drive(one.port, one.request, max(200, count // 5), connections)
        for turn in range(turns):
            for name in order(served, turn):
                one = served[name]
                before_s = used_s(one.pid)
                drive(one.port, one.request, count, connections)
                costs_us[name].append((used_s(one.pid) - before_s) / count * 1e6)
                print(f"turn {turn + 1}: {name}: {costs_us[name][-1]:.0f} us", file=sys.stderr)
    return costs_us


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    costs_us = measure(options.requests, options.turns, options.connections)
    ratios: dict[str, Ratio] = {
        name: ratio_of(costs_us[OURS], others) for name, others in costs_us.items() if name != OURS
    }
    best = max(ratios, key=lambda name: ratios[name].ratio)
    if options.json:
        rows = {
            name: {
                "cpu_us": list(np.round(costs, 1)),
                "ratio": ratios[name]._asdict() if name in ratios else None,
            }
            for name, costs in costs_us.items()
        }
        shared = {"schema": 1, "machine": machine(), "connections": options.connections}
        print(json.dumps(shared | {"servers": rows, "best": best}, default=float))
        return
    print(f"{machine()}; {options.connections} connections, {options.turns} turns")
    print("| server | CPU, median, µs | least, µs | Inferway over it |")
    print("|---|---:|---:|---:|")
    for name, costs in costs_us.items():
        print(f"| {name} | {median(costs):.0f} | {min(costs):.0f} | {ratios.get(name, '-')} |")
    print(f"beside the better of the two, {best}: {ratios[best]}")


if __name__ == "__main__":
    main()
