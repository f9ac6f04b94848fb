"""The comparison of schedulers: its load, what is counted, what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import inferway
from inferway.experiments.results import cluster_bootstrap
from inferway.loadgen import Record
from inferway.site.fleet import Fleet, fleet_of
from inferway.studies.live import burst
from inferway.studies.live.burst import PHASES, choose, claims, draw, mean_of
from inferway.studies.live.comparison import LiveComparison, template, with_service, write
from inferway.studies.live.servers import DemoError

FLEET = Fleet(
    ("small", "ensemble"), np.array([2000.0, 80.0]), np.array([0.86, 0.93]), np.array([2, 2])
)
GOOD = {"goodput": 0.9, "violation_ratio": 0.0, "accuracy": 0.91, "heavy": 0.6}
BAD = {"goodput": 0.1, "violation_ratio": 0.9, "accuracy": 0.93, "heavy": 1.0}


def row(scheduler, calm, burst_, twin):
    phases = {"calm": calm, "burst": burst_}
    return {
        "scheduler": scheduler,
        "phases": phases,
        "goodput_interval": {"calm": [0.85, 0.95], "burst": [0.89, 0.91]},
        "twin": twin,
        "offered": {"calm": 100, "burst": 1000},
        "send_lag_p99_s": 1e-3,
        "failed": 0.0,
        "overall": mean_of(phases),
        "predicted": mean_of(twin) if twin else None,
    }


DEADLINE = row("deadline", GOOD, GOOD | {"heavy": 0.2}, {"calm": GOOD, "burst": GOOD})
HEAVY = row("hw", GOOD, BAD, {})


def test_the_load_is_that_of_the_paper_on_this_machines_scale() -> None:
    load = choose(FLEET, 8, 16.0)
    assert load.heavy_per_s == pytest.approx(160)  # two at 12.5 ms
    assert load.burst_per_s == pytest.approx(18 * load.calm_per_s)
    assert load.calm_per_s / load.heavy_per_s == pytest.approx(10 * 42.9e-3 / 2, abs=0.01)
    # With two cores, what the server and the generator need is not the instances'.
    assert choose(FLEET, 2, 16.0).heavy_per_s == pytest.approx(1.7 * 80)
    assert load.deadline_s == 0.08
    slower = Fleet(FLEET.variants, FLEET.rate / 1.2, FLEET.accuracy, FLEET.count)
    assert choose(slower, 8, 16.0).deadline_s == 0.16
    times_s = load.arrivals(1)
    counts = np.bincount(load.phase_of(times_s))
    assert counts == pytest.approx([load.calm_per_s * 10, load.burst_per_s * 6], rel=0.15)
    assert load.phase_of(np.array([0.0, 4.9, 5.1, 7.9, 8.1])).tolist() == [0, 0, 1, 1, 0]


def test_each_scheduler_gets_a_file_that_can_be_served(tmp_path: Path) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text(template("burst.yaml"))
    load = choose(FLEET, 2, 16.0)
    service_s = {"small": 5e-4, "ensemble": 12.5e-3}
    served = with_service(inferway.load(plain), service_s, load.changes)
    for name in burst.SCHEDULERS:
        deployment = inferway.load(write(burst.scheduled(served, name), tmp_path / f"{name}.yaml"))
        assert deployment.unserved() == []
        assert deployment.tasks["digits"].deadline_s == pytest.approx(load.deadline_s)
        assert fleet_of(deployment, "digits").rate == pytest.approx(FLEET.rate)
        arrivals = deployment.workload["digits"].arrivals
        assert [one.rate for one in arrivals.phases] == pytest.approx(  # type: ignore[union-attr]
            [load.calm_per_s, load.burst_per_s]
        )
        spec = deployment.scheduling
        assert name == "deadline" if spec is None else spec.policy == name
    checkpoint = tmp_path / "policy.npz"
    path = write(burst.scheduled(served, "rl-po", checkpoint), tmp_path / "rl-po.yaml")
    spec = inferway.load(path).scheduling
    assert spec is not None
    assert spec.options["checkpoint"] == checkpoint
    assert spec.options["slot"] == burst.SLOT_S


def test_what_is_counted() -> None:
    load = choose(FLEET, 2, 16.0)
    count = 8
    intended_s = np.array([0.0, 1.0, 2.0, 3.0, 5.5, 6.0, 6.5, 7.0])
    took_s = np.array([0.01, 0.01, 0.2, 0.01, 0.01, 0.01, 0.01, 0.01])
    status = np.array([200, 200, 200, 429, 200, 504, 200, 0])
    record = Record(
        task="digits",
        variants=("ensemble", "small"),
        intended_s=intended_s,
        sent_s=intended_s,
        done_s=intended_s + took_s,
        status=status.astype(np.int16),
        variant=np.array([0, 1, 0, -1, 1, -1, 0, -1], np.int16),
        predicted_class=np.array([1, 2, 1, -1, 1, -1, 1, -1], np.int32),
        predicted_s=np.zeros(count),
        item=np.arange(count, dtype=np.int32),
        label=np.ones(count, np.int32),
        waited=np.zeros(count, np.bool_),
        cpu_s=0.0,
        generated=count,
    )

    def interval(values: NDArray[np.bool_], item: NDArray[np.integer]) -> list[float]:
        assert len(values) == len(item)
        return list(cluster_bootstrap(values, item, seed=1))

    found = burst.measured("hw", record, "ensemble", load, interval, {})
    # One wrong, one right but late, one refused; then one refused, one lost.
    calm = {"goodput": 0.25, "violation_ratio": 0.5, "accuracy": 2 / 3, "heavy": 2 / 3}
    assert found["phases"]["calm"] == calm
    second = {"goodput": 0.5, "violation_ratio": 0.5, "accuracy": 1.0, "heavy": 0.5}
    assert found["phases"]["burst"] == second
    assert found["overall"]["goodput"] == pytest.approx(0.375)
    assert found["offered"] == {"calm": 4, "burst": 4}
    assert found["failed"] == pytest.approx(1 / 8)
    assert found["predicted"] is None


def test_claims_hold_or_not() -> None:
    assert [claim.reproduced for claim in claims([DEADLINE, HEAVY])] == [True, True, True]
    late = HEAVY | {"scheduler": "deadline"}
    # As good as another is no better.
    assert [claim.reproduced for claim in claims([late, HEAVY])] == [False, False, True]
    assert claims([]) == []


def test_json_and_text() -> None:
    load = choose(FLEET, 2, 16.0)
    rows = [DEADLINE, HEAVY]
    result = LiveComparison(
        rows=rows,
        found={"schedulers": rows},
        claims=claims(rows),
        tables=[burst.overall_table(rows, load), burst.phases_table(rows)],
        closing=[],
        seed=1,
        seconds=1.0,
        warnings=["hw: late"],
    )
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    deadline, heavy = document["schedulers"]
    assert deadline["overall"]["heavy"] == pytest.approx(0.4)
    assert heavy["predicted"] is None
    console = Console(file=io.StringIO(), width=80)
    for part in result.to_text():
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for phase in PHASES:
        assert phase in text
    assert "Deadline 80 ms" in text
    assert "deadline  " in text  # no name is broken into lines
    assert "yes  hw fails most requests of a burst (violation ratio 90.00% there)" in text
    assert "Warning: hw: late" in text


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    for path in draw(tmp_path / "burst", [DEADLINE, HEAVY]):
        assert path.stat().st_size > 5_000


def test_a_checkpoint_for_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"the checkpoint does not fit: .*nothing\.npz"):
        burst.check(tmp_path / "nothing.npz", FLEET, choose(FLEET, 2, 16.0))
