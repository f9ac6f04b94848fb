"""Ten minutes at 70 % load: no errors, and memory that stays.

``INFERWAY_SOAK_S=30 pytest -m slow tests/live/test_soak.py`` tries it for half a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from inferway.loadgen import drive

SERVICE_S, INSTANCES, LOAD = 0.02, 4, 0.7
WARM = 0.2
"""Share of the time after which memory must stay: until then, rings and buffers fill."""
GROWTH_BYTES = 8 * 1024**2

_PROGRAM = f"""
import json
import numpy as np
from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, Server, ServerOptions, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

signature = Signature((Tensor("image", "FP32", (-1, 64)),), (Tensor("scores", "FP32", (-1, 10)),))
rate = np.array([1 / {SERVICE_S}] * 2)
fleet = Fleet(("tiny", "big"), rate, np.array([0.7, 0.9]), np.array([2, 2]), buffer=64)
runtimes = [NullRuntime(signature, service_s={SERVICE_S}) for _ in range({INSTANCES})]
dispatcher = Dispatcher(fleet, "priced", target=0.8)
site = TaskSite.of(Pool("digits", signature, dispatcher, runtimes, PoolOptions(target=0.8)))
options = ServerOptions(http_port=0, admin_port=0, drain_delay_s=0.0, log_level="warning")
Server([site], options).run(
    lambda server: print(json.dumps(server.http_port), flush=True)
)
"""


def _watch(
    process: psutil.Process, found: list[int], stop: threading.Event, every_s: float
) -> None:
    while not stop.wait(every_s):
        found.append(process.memory_info().rss)


@pytest.mark.slow
def test_a_long_run_at_seventy_percent() -> None:
    duration_s = float(os.environ.get("INFERWAY_SOAK_S", "600"))
    generator = np.random.default_rng(7)
    rate_per_s = LOAD * INSTANCES / SERVICE_S
    gaps_s = generator.exponential(1 / rate_per_s, int(duration_s * rate_per_s))
    images = generator.random((32, 64), np.float32)
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    ) as server:
        stop = threading.Event()
        memory: list[int] = []
        watching = threading.Thread(
            target=_watch, args=(psutil.Process(server.pid), memory, stop, duration_s / 200)
        )
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())
            watching.start()
            times_s = np.cumsum(gaps_s)
            record = drive(f"http://127.0.0.1:{port}", "digits", times_s, images)
            server.terminate()
            _, log = server.communicate(timeout=30)
        finally:
            stop.set()
            server.kill()
    watching.join()
    statuses, counts = np.unique(record.status, return_counts=True)
    assert statuses.tolist() == [200], dict(zip(statuses.tolist(), counts.tolist(), strict=True))
    assert (server.returncode, log) == (0, b"")
    warm = memory[int(len(memory) * WARM) :]
    tenth = max(1, len(warm) // 10)
    growth = float(np.median(warm[-tenth:]) - np.median(warm[:tenth]))
    assert growth < GROWTH_BYTES, f"{growth / 1e6:.1f} MB more in {duration_s:g} s"
    print(f"{len(times_s)} requests, {growth / 1e6:+.2f} MB after the first fifth")
