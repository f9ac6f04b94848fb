"""The twin of a recording has the times that were measured: one queue, with and without batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import inferway
from inferway import loadgen
from scripted import Asked, Scripted

FILE = """
tasks:
  double:
    variants:
      tiny: {{remote: "{url}", accuracy: 0.7, service: {{mean: 20 ms}}{batch}}}
nodes: {{here: {{instances: {{double/tiny: 2}}}}}}
dispatch: {{policy: fastest-only}}
"""
BATCH = ", batch: {sizes: [1, 2, 4], service: [20 ms, 26 ms, 36 ms], min: 4}"
TIMES_S = {1: 0.02, 2: 0.026, 4: 0.036}
ROW_BYTES = 8
REQUESTS = 400


def curve(asked: Asked) -> None:
    """As a script: answer after as long as the file says that so many rows take."""
    length = asked.headers.get("inference-header-content-length")
    if asked.path.endswith("/infer") and length is not None:
        rows = (len(asked.body) - int(length)) // ROW_BYTES
        time.sleep(next(time_s for size, time_s in TIMES_S.items() if size >= rows))


def runs(running: Any) -> tuple[float, float]:
    """How many runs there were, and of how many requests."""
    page = running.get("/metrics", admin=True).body.decode()
    found = [
        sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))
        for name in ("inferway_batch_size_count{", "inferway_batch_size_sum{")
    ]
    return found[0], found[1]


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "rate_per_s"), [("", 70.0), (BATCH, 150.0)])
def test_the_twin_of_a_recording_has_its_times(
    start: Callable[..., Any], tmp_path: Path, batch: str, rate_per_s: float
) -> None:
    upstream = Scripted()
    upstream.script = curve
    file = tmp_path / "double.yaml"
    file.write_text(FILE.format(batch=batch, url=upstream.url))
    deployment = inferway.load(file)
    running = start(deployment=deployment, record=tmp_path / "run")
    between_s = np.random.default_rng(3).exponential(1 / rate_per_s, REQUESTS)
    rows = np.random.default_rng(0).random((8, 2))
    sent = loadgen.drive(f"http://{running.url}", "double", np.cumsum(between_s), rows, grace_s=0.5)
    made, together = runs(running)
    running.wait(running.server.stop())
    upstream.close()
    assert sent.answered.sum() >= REQUESTS - 6  # the last ones may wait for a fourth
    assert together == (4 if batch else 1) * made > REQUESTS - 7
    found = inferway.simulate(deployment, trace=tmp_path / "run").tasks["double"].trace
    assert found is not None
    assert found.error.mean == pytest.approx(0.0, abs=0.1)
    assert found.error.p95 == pytest.approx(0.0, abs=0.2)
