"""Runs of the twin as a whole: errors that cover, warm-up, verdicts, seeds, records, early ends."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from systems import (
    HERE,
    SETTLING,
    VERSATILE,
    close,
    constant,
    phases,
    poisson,
    records,
    systems,
)

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import Arrivals, TraceArrivals
from inferway.site import Fleet
from inferway.twin import Failures, Scenario, run
from inferway.twin.replication import replicate, truncation
from inferway.twin.simulation import INTERRUPTED


def one_server(rate: float = 0.5, **options: Any) -> Scenario:
    """M/M/1 with a service rate of 1/s."""
    fleet = Fleet(("one",), np.ones(1), np.array([0.9]), np.array([1]))
    given = {"policy": "tad-op", "target": 0.9, **options}
    return Scenario(fleet, (ServiceTime("exponential", 1.0),), poisson(rate), **given)


def two_classes(law: str = "exponential", arrivals: Arrivals | None = None) -> Scenario:
    """Three fast servers and two slow ones, with places for four at each."""
    rates = np.array([2.0, 0.5])
    fleet = Fleet(("a", "b"), rates, np.array([0.6, 0.9]), np.array([3, 2]), buffer=4)
    service = tuple(ServiceTime(law, float(1 / rate)) for rate in rates)
    return Scenario(fleet, service, arrivals or poisson(6.5), policy="tad-op", target=0.62)


def trace(file: Path) -> Arrivals:
    """The arrivals in a file."""
    return TraceArrivals.read({"process": "trace", "file": str(file)})


def numbers(result: Any) -> dict[str, Any]:
    """All of a result that the machine has no part in."""
    return {**result.to_json(), "queries_per_cpu_s": None}


# --- errors


@pytest.mark.parametrize(("replications", "runs", "queries"), [(1, 150, 20_000), (8, 60, 4000)])
def test_intervals_cover_the_mean(replications: int, runs: int, queries: int) -> None:
    covered = 0
    for seed in range(runs):
        result = run(one_server(), queries=queries, replications=replications, seed=seed, workers=1)
        error = abs(result.response_time_s.mean - 2)
        covered += error < 1.96 * result.response_time_s.stderr
    # 95 % of the runs, less a few standard deviations of their number and of short runs.
    assert 0.87 * runs <= covered <= 0.995 * runs


def test_the_error_falls_with_the_length() -> None:
    short, long = (
        run(one_server(), queries=queries, seed=3).response_time_s.stderr
        for queries in (20_000, 2_000_000)
    )
    assert long == pytest.approx(short / 10, rel=0.5)


# --- warm-up


def test_a_known_transient_is_cut_off() -> None:
    random = np.random.default_rng(1)
    steps = np.arange(100)
    noise = random.normal(0, 0.05, 100)
    assert truncation(5 * np.exp(-steps / 5) + noise) in range(12, 40)
    assert truncation(1 - np.exp(-steps / 5) + noise) in range(10, 50)
    assert truncation(noise) < 50
    assert truncation(np.where(steps < 10, 3.0, 0.0) + noise) == 10


def test_the_warm_up_takes_the_bias_of_an_empty_start_away() -> None:
    scenario = one_server(0.9)
    cold = [run(scenario, queries=300, warmup=0, seed=seed, workers=1) for seed in range(200)]
    warm = [run(scenario, queries=300, seed=seed, workers=1) for seed in range(200)]
    assert np.mean([one.response_time_s.mean for one in cold]) < 9  # of 10
    assert np.mean([one.response_time_s.mean for one in warm]) > 9.5
    assert all(one.warmup > 0 for one in warm)
    assert all(one.warmup == 0 for one in cold)


def test_a_warm_up_that_is_given_is_kept() -> None:
    result = run(one_server(), queries=5000, warmup=1234, seed=1, replications=3)
    assert (result.warmup, result.queries) == (3 * 1234, 15_000)
    assert result.replications == 3
    assert run(one_server(), queries=1, warmup=0).queries == 1


@pytest.mark.parametrize("kind", ["markov", "general"])
@pytest.mark.parametrize("warmup", [1, 2, 5, 100])
def test_who_is_there_at_the_end_of_the_warm_up_does_not_count(kind: Any, warmup: int) -> None:
    result = run(two_classes(), queries=300, warmup=warmup, seed=2, engine=kind)
    assert result.queries == 300
    lost = result.rejected * 300
    answered = sum(one.share for one in result.classes.values()) * (300 - lost)
    assert answered == pytest.approx(300 - lost)


@pytest.mark.parametrize("warmup", [0, 1, 2, 3, 10, 13])
def test_the_warm_up_may_end_among_equal_times(tmp_path: Path, warmup: int) -> None:
    file = tmp_path / "times.csv"
    file.write_text("\n".join(str(number // 5) for number in range(100)))
    arrivals = trace(file)
    result = run(two_classes(arrivals=arrivals), queries=80, warmup=warmup)
    assert result.queries == 80
    assert run(two_classes(arrivals=constant(4.0)), queries=50, warmup=warmup).queries == 50


# --- verdicts


@pytest.mark.parametrize("seed", range(4))
def test_instability_is_said_and_not_invented(seed: int) -> None:
    over = run(one_server(1.05), queries=100_000, seed=seed, workers=1)
    assert not over.stable
    assert any(note.startswith("unstable: ") for note in over.notes)
    for load in (0.5, 0.95):
        under = run(one_server(load), queries=100_000, seed=seed, workers=1)
        assert under.stable
        assert under.notes == ()


def test_what_never_leaves_does_not_keep_a_run_from_ending() -> None:
    waits = {"least": 3, "most": 3, "alone": 0.0}
    fleet = Fleet(("one",), np.ones(1), np.array([0.9]), np.array([2]))
    failing = replace(
        one_server(policy=VERSATILE, options=waits, folder=HERE),
        fleet=fleet,
        batches=(Batch((1, 3), (1.0, 1.5), 1, 3),),
        failures={"one": Failures(every_s=50.0, for_s=5.0)},
    )
    outcome = replicate(failing, queries=101, seed=1, replication=0, warmup=0)
    left = int(outcome.tally.answered.sum() + outcome.tally.rejected.sum())
    assert 0 < 101 - left < 3  # they wait for a third, for ever


def test_a_trace_that_is_simulated_to_its_end_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("\n".join(str(number / 4) for number in range(200)))
    result = run(two_classes(arrivals=trace(file)), queries=1000)
    assert result.queries == 200
    assert result.complete
    assert result.notes == ()
    assert result.stable


# --- seeds


@pytest.mark.parametrize(
    ("kind", "law"),
    [("markov", "exponential"), ("ordered", "deterministic"), ("general", "exponential")],
)
def test_same_seed_same_numbers_whatever_the_workers(kind: Any, law: str) -> None:
    scenario = two_classes(law)
    options = {"queries": 20_000, "replications": 3, "engine": kind}
    first = numbers(run(scenario, seed=5, workers=1, **options))
    assert numbers(run(scenario, seed=5, workers=3, **options)) == first
    assert numbers(run(scenario, seed=6, workers=1, **options)) != first


def test_replications_are_independent() -> None:
    means = np.array(
        [
            [
                run_.tally.response_s.sum() / run_.tally.answered.sum()
                for replication in range(3)
                for run_ in [
                    replicate(
                        one_server(), queries=400, seed=seed, replication=replication, warmup=50
                    )
                ]
            ]
            for seed in range(150)
        ]
    )
    correlations = np.corrcoef(means.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(len(means))
    # Nor is a replication of one seed the neighbor of the next.
    assert abs(np.corrcoef(means[1:, 0], means[:-1, 1])[0, 1]) < 4 / np.sqrt(len(means))


def test_policies_and_engines_see_the_same_arrivals() -> None:
    one = records(two_classes("exponential"), 500, 3, "general")
    other = records(two_classes("deterministic"), 500, 3, "ordered")
    assert sorted(left.arrived_s for left in one) == sorted(left.arrived_s for left in other)


# --- early ends, records, samples, windows


def interrupting(after: int) -> Callable[[int], None]:
    """Ctrl-C, once, as the main thread gets it, when so many queries are done."""
    done = [0]

    def told(more: int) -> None:
        before = done[0]
        done[0] += more
        if before < after <= done[0]:
            _thread.interrupt_main()

    return told


def test_ctrl_c_gives_what_is_known_by_then() -> None:
    result = run(one_server(), queries=10**11, warmup=0, seed=1, progress=interrupting(10**6))
    assert not result.complete
    assert 10**6 <= result.queries < 10**9
    assert INTERRUPTED in result.notes
    assert result.response_time_s.mean == pytest.approx(2, rel=0.05)


def test_progress_adds_up() -> None:
    told: list[int] = []
    run(one_server(), queries=12_345, replications=2, progress=told.append)
    assert sum(told) == 2 * 12_345
    assert len(told) > 2


def test_records_agree_with_the_counts(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "task.parquet"
    scenario = replace(
        two_classes(), policy=VERSATILE, folder=HERE, deadline_s=1.5, late="serve", options={}
    )
    result = run(scenario, queries=3000, replications=2, warmup=100, seed=2, records=file)
    frame = pq.read_table(file).to_pandas()
    assert len(frame) == result.queries == 6000
    assert set(frame.replication) == {0, 1}
    share = frame.outcome.value_counts(normalize=True)
    assert share["late"] == pytest.approx(result.late)
    assert share.get("rejected", 0.0) == pytest.approx(result.rejected)
    served = frame[frame.outcome.isin(["answered", "late"])]
    assert served.variant.value_counts(normalize=True).to_dict() == pytest.approx(result.shares)
    response_s = served.left_s - served.arrived_s
    assert response_s.mean() == pytest.approx(result.response_time_s.mean)
    assert (response_s > 1.5).sum() == (frame.outcome == "late").sum()
    for found, level in ((result.p50_s, 0.5), (result.p95_s, 0.95), (result.p99_s, 0.99)):
        assert found == pytest.approx(np.quantile(response_s, level), rel=0.01)
    assert frame.started_s.isna().sum() == (frame.outcome == "rejected").sum() > 0
    assert (served.started_s >= served.arrived_s).all()
    assert (served.left_s > served.started_s).all()
    for _, rows in frame.groupby("replication"):
        assert rows.left_s.is_monotonic_increasing


def test_samples_of_the_site_over_time() -> None:
    result = run(two_classes(), queries=20_000, replications=2, warmup=0, seed=1, sample_s=10.0)
    series = result.series
    assert series is not None
    assert series.time_s == pytest.approx(10.0 * np.arange(1, len(series.time_s) + 1))
    assert series.in_system.shape == series.accuracy.shape == (2, len(series.time_s))
    assert series.in_system.mean() == pytest.approx(result.in_system, rel=0.1)
    assert series.running_accuracy[:, -1].mean() == pytest.approx(result.accuracy.mean, abs=0.002)
    assert np.nanmean(series.accuracy) == pytest.approx(result.accuracy.mean, abs=0.01)
    plain = replace(result, series=None)
    unsampled = run(two_classes(), queries=20_000, replications=2, warmup=0, seed=1)
    assert plain.response_time_s.mean == pytest.approx(unsampled.response_time_s.mean, rel=0.1)


def test_sampling_changes_no_path_where_events_are_planned() -> None:
    scenario = two_classes()
    whole, sampled = (
        run(scenario, queries=5000, warmup=0, engine="general", sample_s=sample_s)
        for sample_s in (None, 0.7)
    )
    close(numbers(sampled), numbers(whole))


def test_the_policy_is_told_the_rate_of_each_window(tmp_path: Path) -> None:
    """From 3 requests a second on it sends them to the last server, below to the first."""
    file = tmp_path / "task.parquet"
    site = two_classes(arrivals=phases((50.0, 1.0, None), (50.0, 6.0, None)))
    scenario = replace(
        site,
        fleet=replace(site.fleet, buffer=None),
        policy=VERSATILE,
        folder=HERE,
        options={"mode": 5, "window": 10.0},
    )
    # Half of the greatest rate until the first window is over.
    assert scenario.told_rate_per_s == scenario.capacity_per_s / 2 == 3.5
    run(scenario, queries=1000, warmup=0, records=file)
    frame = pq.read_table(file).to_pandas()
    cycle = frame.arrived_s.mod(100.0)
    high = (frame.arrived_s < 10) | (cycle >= 60) | (cycle < 10)
    assert set(frame.server[high]) == {4}
    assert set(frame.server[~high]) == {0}
    assert 100 < high.sum() < 900


# --- second answers


@pytest.mark.slow
@pytest.mark.parametrize("policy", SETTLING)
def test_what_is_asked_again_is_neither_lost_nor_made(policy: str) -> None:
    """`replicate` checks flows and Little's law itself, also of what the warm-up leaves behind."""

    @settings(
        max_examples=200, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate]
    )
    @given(systems(policy), st.integers(0, 2**31))
    def check(scenario: Scenario, seed: int) -> None:
        note(str(scenario))
        found = replicate(scenario, queries=300, seed=seed, replication=0, warmup=40)
        assert found.again is not None
        answered = found.tally.answered.sum(axis=0)
        assert (found.again.earned.sum(axis=0) <= answered + 1e-9).all()
        assert (found.again.in_time <= found.again.earned).all()
        assert (found.again.moved.sum(axis=(0, 1)) <= answered).all()
        # Each was sent to at least one server, and who was asked again to one more.
        assert found.tally.sent.sum() >= answered.sum() + found.again.moved.sum()

    check()
