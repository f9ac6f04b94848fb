"""Live against twin: the same requests at the same servers, and nearly the same times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway import loadgen
from inferway.dispatch.batching import rule_of
from inferway.dispatch.deployed import dispatcher_of
from inferway.live import Pool, PoolOptions, Site
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.twin.trace import read

DIGITS = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 3)),))
FILE = """
tasks:
  digits:
    variants:
      tiny: {{accuracy: 0.7, service: {{mean: 20 ms}}{batch}}}
nodes: {{here: {{instances: {{digits/tiny: 2}}}}}}
dispatch: {{policy: fastest-only}}
"""
BATCH = ", batch: {sizes: [1, 2, 4], service: [20 ms, 26 ms, 36 ms], min: 4}"
TIMES_S = {1: 0.02, 2: 0.026, 4: 0.036}
REQUESTS = 400


class Curve:
    """Holds its thread for as long as the file says that so many rows take."""

    def __init__(self) -> None:
        self.signature = DIGITS
        self._null = NullRuntime(DIGITS)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        time.sleep(TIMES_S[len(inputs["image"])])
        return self._null.run(inputs)

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "rate_per_s"), [("", 70.0), (BATCH, 150.0)])
def test_the_twin_of_a_recording_has_its_times(
    start: Callable[..., Any], tmp_path: Path, batch: str, rate_per_s: float
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE.format(batch=batch))
    deployment = inferway.load(file)
    rules = [rule_of(one.batch) for one in deployment.tasks["digits"].variants.values()]
    site = Site(
        Pool(
            "digits",
            DIGITS,
            dispatcher_of(deployment, "digits"),
            [Curve(), Curve()],
            PoolOptions(rules=rules if batch else None),
        )
    )
    running = start(site, record=tmp_path / "run")
    between_s = np.random.default_rng(3).exponential(1 / rate_per_s, REQUESTS)
    images = np.random.default_rng(0).random((8, 4))
    sent = loadgen.drive(
        f"http://{running.url}", "digits", np.cumsum(between_s), images, grace_s=0.5
    )
    running.wait(running.server.stop())
    assert sent.answered.sum() >= REQUESTS - 6  # the last ones may wait for a fourth
    found = inferway.simulate(deployment, trace=tmp_path / "run").tasks["digits"].trace
    assert found is not None
    assert set(read(tmp_path / "run" / "digits").together.tolist()) - {0} == ({4} if batch else {1})
    assert found.error.mean == pytest.approx(0.0, abs=0.1)
    assert found.error.p95 == pytest.approx(0.0, abs=0.2)
