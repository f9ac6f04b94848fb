"""What a server says, and writes down, of an instance that fails and recovers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inferway

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
TASK = "/v2/models/digits"
FAILURES = 3
"""One after the other, and an instance rests."""


def metrics(running: Any) -> list[str]:
    page: str = running.get("/metrics", admin=True).body.decode()
    return [line for line in page.splitlines() if line.startswith("inferway_instance_healthy{")]


@pytest.fixture
def running(start: Any, site_of: Any, gates: Any, patient: Any, tmp_path: Path) -> Any:
    """Two instances of the fast variant and one of the other; they fail when told to."""
    for gate in gates:
        gate.opened.set()
    tiny, big = gates
    site = site_of([tiny, tiny, big], count=(2, 1), policy="jiq-fast", now=patient.time)
    return start(site, loop=patient, now=patient.time, record=tmp_path / "run")


def test_it_is_taken_out_probed_and_taken_back(
    running: Any, gates: Any, until: Any, patient: Any, tmp_path: Path
) -> None:
    tiny, big = gates
    site = running.site
    tiny.failure = RuntimeError("no memory")
    for _ in range(2 * FAILURES):
        assert running.infer(ONE, path=f"{TASK}/versions/tiny/infer").status == 500
    assert running.call(lambda: site.pool.health.healthy) == [False, False, True]
    assert metrics(running) == [
        'inferway_instance_healthy{instance="0",task="digits",variant="tiny"} 0.0',
        'inferway_instance_healthy{instance="1",task="digits",variant="tiny"} 0.0',
        'inferway_instance_healthy{instance="0",task="digits",variant="big"} 1.0',
    ]
    status = running.get("/status", admin=True).json["tasks"]["digits"]
    assert status["variants"]["tiny"]["healthy"] == [False, False]
    # The task goes on with what there is; the variant is not ready.
    assert running.get(f"{TASK}/ready").status == 200
    assert running.get(f"{TASK}/versions/tiny/ready").status == 503
    assert running.get(f"{TASK}/versions/big/ready").status == 200
    assert running.infer(ONE).json["model_version"] == "big"
    refused = running.infer(ONE, path=f"{TASK}/versions/tiny/infer")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    # Then nothing is left, and a server without any task that is ready is not ready.
    big.failure = RuntimeError("no memory")
    for _ in range(FAILURES):
        assert running.infer(ONE).status == 500
    for path in ("/v2/health/ready", f"{TASK}/ready", f"{TASK}/versions/big/ready"):
        assert running.get(path).status == 503, path
    assert running.infer(ONE).status == 503
    assert running.get("/v2/health/live").status == 200
    tiny.failure = big.failure = None

    def passed() -> bool:
        patient.advance(1.0)
        healthy: list[bool] = running.call(lambda: list(site.pool.health.healthy))
        return all(healthy)

    until(passed)
    assert running.get("/v2/health/ready").status == 200
    assert {line.split()[1] for line in metrics(running)} == {"1.0"}
    assert running.infer(ONE).json["model_version"] == "tiny"
    stopping = running.begin(running.server.stop())

    def stopped() -> bool:
        patient.advance(0.1)
        done: bool = stopping.done()
        return done

    until(stopped)
    # The replay finds the same decisions: who was out is part of what is recorded. By its rule, the
    # policy would have given to what was idle and out.
    found = inferway.replay(tmp_path / "run" / "digits")
    assert found.differences == ()
    assert found.requests == 2 * FAILURES + 2 + FAILURES + 1


def test_each_change_is_a_line_of_the_log(
    start: Any, site_of: Any, gates: Any, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates), log_level="info")
    gates[0].failure = RuntimeError("no memory")
    for _ in range(FAILURES):
        running.infer(ONE)
    gates[0].failure = None
    until(lambda: running.site.pool.health.healthy == [True, True])
    running.wait(running.server.stop())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [line for line in lines if "healthy" in line["event"]]
    assert [(one["level"], one["event"], one["instance"]) for one in said] == [
        ("warning", "unhealthy", "digits/tiny#0"),
        ("info", "healthy again", "digits/tiny#0"),
    ]
    assert said[0]["reason"] == "digits/tiny#0 failed: no memory"
