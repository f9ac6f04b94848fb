"""The study of a pool of devices runs the example, replays traces and tells ways apart."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import inferway
from inferway.deployment.workloads import PhasedArrivals
from inferway.studies import Results, study
from inferway.studies.queueing import device_pool
from inferway.studies.queueing.device_pool import FILE, TRACES, planned
from inferway.workload.arrivals import mean_rate

EXAMPLE = Path(__file__).parents[3] / "examples" / "device-pool.yaml"


def test_the_file_is_the_example() -> None:
    own, shown = (file.read_text(encoding="utf-8") for file in (FILE, EXAMPLE))
    assert own == shown


def test_plans_fit_and_serve_every_task() -> None:
    file = inferway.load(FILE)
    rates = {name: mean_rate(one.arrivals) for name, one in file.workload.items()}
    for times in (1.0, 1.25):
        copies = planned(file, rates, times)
        assert {key[0] for key in copies} == set(file.tasks)
        used: Counter[str] = Counter()
        for (_, _, device), count in copies.items():
            used[device] += count
        assert all(count <= file.nodes["pool"].devices[name].slots for name, count in used.items())


def test_a_trace_is_replayed_from_another_ninth_by_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    # Ninety minutes, of which the last ten have three times the requests of the others.
    for minute in range(90):
        for number in range(30 if minute >= 80 else 10):
            at = begin + timedelta(minutes=minute, seconds=number)
            lines.append(f"{at:%Y-%m-%d %H:%M:%S.%f}0,1,1")
    (tmp_path / TRACES["conversation"]).write_text("\n".join(lines))
    monkeypatch.setenv(device_pool.VARIABLE, str(tmp_path))
    assert device_pool.trace("code") is None
    file = device_pool.trace("conversation")
    assert file is not None
    rates = {f"t{k}": 100.0 * (k + 1) for k in range(9)}
    workload = device_pool._replayed(file, rates, 89 * 60.0, seed=0)
    busiest = []
    for name, rate in rates.items():
        document = {
            "tasks": {name: {"variants": {"v": {"accuracy": 1, "service": {"mean": "1 s"}}}}}
        }
        arrivals = inferway.load({**document, "workload": {name: workload[name]}}).workload[name]
        assert isinstance(arrivals.arrivals, PhasedArrivals)
        assert mean_rate(arrivals.arrivals) == pytest.approx(rate, rel=0.01)
        levels = [phase.rate / rate for phase in arrivals.arrivals.phases]
        busiest.append(next(k for k, level in enumerate(levels) if level > 2.0))
    assert len(set(busiest)) == 9
    kinds = {
        point.label["kind"] for point in device_pool._points(study("device-pool").scales["smoke"])
    }
    assert kinds == {"map", "conversation"}


def test_what_is_far_from_the_bound_is_seen() -> None:
    one = study("device-pool")
    near = {"kind": "map", "goodput": 0.87, "bound": 0.875, "gap": 0.005, "violations": 0.002}
    others = [
        {**near, "way": way, "goodput": 0.86, "trial": 0, "moves": 0}
        for way in ("mean", "peak", "hindsight", "infaas", "assign-p95")
    ]
    settings = one.scales["quick"]
    for change, right in (({}, True), ({"gap": 0.02, "violations": 0.03, "goodput": 0.85}, False)):
        rows = [{**near, **change, "way": "assign", "trial": 0, "moves": 9}, *others]
        assert all(one.reproduced is right for one in one.claims(settings, Results(rows)))
