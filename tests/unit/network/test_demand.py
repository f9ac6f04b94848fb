from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from inferway.deployment.workloads import Arrivals, Popularity
from inferway.network.demand import Demand, TaskStream, peaks
from inferway.workload import times

ADAPTER: TypeAdapter[Any] = TypeAdapter(Arrivals)


def arrivals(folder: Path = Path(), **said: Any) -> Any:
    return ADAPTER.validate_python(said, context={"folder": folder})


def demand(process: Any, *, tasks: int = 1, entries: int = 1, slot_s: float = 60.0,
           popularity: Popularity | None = None, seed: int = 1) -> Demand:  # fmt: skip
    types = np.arange(tasks * entries).reshape(tasks, entries)
    return Demand((TaskStream(process, popularity, types),), tasks * entries, slot_s, seed)


def test_constant_arrivals_are_counted_exactly() -> None:
    paper = demand(arrivals(process="constant", rate="7500/s"))
    assert [paper.counts(k).tolist() for k in range(3)] == [[450_000]] * 3
    for rate, slot_s in (("0.3/s", 1.0), ("7/s", 0.1), ("10/s", 0.25)):
        process = arrivals(process="constant", rate=rate)
        found = [int(n[0]) for n in map(demand(process, slot_s=slot_s).counts, range(40))]
        listed = times(process, horizon_s=40 * slot_s + 1)
        counted = np.bincount((listed / slot_s + 1e-9).astype(int))[:40]
        assert found == counted.tolist()


PROCESSES = [
    {"process": "poisson", "rate": "50/s"},
    {"process": "sinusoidal", "rate": "50/s", "amplitude": 0.8, "period": "20 s"},
    {
        "process": "phases",
        "phases": [{"for": "3 s", "rate": "9/s"}, {"for": "9 s", "rate": "60/s"}],
    },
    {"process": "map", "d0": [[-40, 1], [2, -12]], "d1": [[39, 0], [0, 10]]},
]


@pytest.mark.parametrize("said", PROCESSES, ids=lambda said: str(said["process"]))
def test_counts_have_the_mean_of_the_process(said: dict[str, Any]) -> None:
    process = arrivals(**said)
    slots, slot_s = 400, 5.0
    one = demand(process, slot_s=slot_s)
    counts = np.array([n[0] for n in map(one.counts, range(slots))])
    expected = np.array([one.expected(k)[0] for k in range(slots)])
    listed = np.bincount((times(process, horizon_s=slots * slot_s, seed=7) / slot_s).astype(int))
    for found in (counts, listed):
        deviation = np.sqrt(expected.sum() * 2 if said["process"] != "map" else expected.sum() * 60)
        assert abs(found.sum() - expected.sum()) < 5 * deviation
    if said["process"] in {"sinusoidal", "phases"}:
        assert np.corrcoef(expected, counts)[0, 1] > 0.8
        assert np.corrcoef(expected, listed)[0, 1] > 0.8


def test_any_slot_can_be_asked_for_first() -> None:
    for said in PROCESSES:
        process = arrivals(**said)
        one, other = demand(process, tasks=3, entries=2), demand(process, tasks=3, entries=2)
        late = one.counts(9).tolist()
        assert (
            [n.tolist() for n in map(other.counts, range(10))][9] == late == one.counts(9).tolist()
        )
        assert demand(process, tasks=3, entries=2, seed=2).counts(9).tolist() != late


def test_requests_spread_by_popularity_and_evenly_over_entries() -> None:
    popularity = Popularity.read({"zipf": 1.2, "sliding": {"shift": 1, "every": "60 s"}})
    one = demand(
        arrivals(process="constant", rate="1000/s"), tasks=4, entries=2, popularity=popularity
    )
    weights = np.arange(1, 5) ** -1.2 / (np.arange(1, 5) ** -1.2).sum()
    for slot in range(5):
        mean = np.repeat(60_000 * np.roll(weights, -slot) / 2, 2)
        assert one.expected(slot).tolist() == pytest.approx(mean.tolist())
        counts = one.counts(slot)
        assert counts.sum() == 60_000
        assert (np.abs(counts - mean) < 5 * np.sqrt(mean)).all()


def test_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0.5\n1.5\n1.75\n9.0\n")
    one = demand(arrivals(tmp_path, process="trace", file="t.csv"), slot_s=1.0)
    assert [int(n[0]) for n in map(one.counts, range(12))] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert one.expected(1).tolist() == [2.0]
    assert peaks(one.streams, 1, 1.0).tolist() == [2.0]
    fast = demand(arrivals(tmp_path, process="trace", file="t.csv", speed=2.0), slot_s=1.0)
    assert [int(n[0]) for n in map(fast.counts, range(5))] == [3, 0, 0, 0, 1]


@pytest.mark.parametrize("said", PROCESSES, ids=lambda said: str(said["process"]))
def test_no_slot_passes_the_peak(said: dict[str, Any]) -> None:
    popularity = Popularity.read({"zipf": 1.0, "sliding": {"shift": 1, "every": "7 s"}})
    one = demand(arrivals(**said), tasks=3, entries=2, slot_s=5.0, popularity=popularity)
    peak = peaks(one.streams, 6, 5.0)
    most = np.max(list(map(one.counts, range(300))), axis=0)
    assert (most <= peak).all()
    # And is not far from it: the repositories are planned for it.
    assert (most > 0.4 * peak).all()


def test_the_peak_of_constant_arrivals_for_one_task_is_exact() -> None:
    stream = demand(arrivals(process="constant", rate="7500/s")).streams
    assert peaks(stream, 1, 60.0).tolist() == [450_000.0]


def test_streams_add_up() -> None:
    steady = arrivals(process="constant", rate="10/s")
    both = Demand(
        (
            TaskStream(steady, None, np.array([[0], [1]])),
            TaskStream(arrivals(process="constant", rate="1/s"), None, np.array([[2]])),
        ),
        3,
        10.0,
    )
    counts = both.counts(0)
    assert counts[:2].sum() == 100
    assert counts[2] == 10
    assert both.expected(0).tolist() == [50.0, 50.0, 10.0]


def test_another_seed_counts_anew() -> None:
    one = demand(arrivals(**PROCESSES[3]), slot_s=5.0)
    before = [int(n[0]) for n in map(one.counts, range(20))]
    other = replace(one, seed=2)
    assert [int(n[0]) for n in map(other.counts, range(20))] != before
    assert [int(n[0]) for n in map(replace(other, seed=1).counts, range(20))] == before
