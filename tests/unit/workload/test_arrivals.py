"""Arrival processes against their closed forms: moments, distributions, rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from inferway.deployment.workloads import Arrivals, MapArrivals, PhasedArrivals, recorded
from inferway.workload import PhaseCourse, mean_rate, peak_rate, stream, times
from inferway.workload.arrivals import CHUNK, Clock

ARRIVALS: TypeAdapter[Arrivals] = TypeAdapter(Arrivals)

POISSON = {"process": "poisson", "rate": "5/s"}
CONSTANT = {"process": "constant", "rate": "8/s"}
SINUSOIDAL = {"process": "sinusoidal", "rate": "50/s", "amplitude": 0.8, "period": "10 s"}
PHASES = {
    "process": "phases",
    "phases": [{"for": "4 s", "rate": "100/s"}, {"for": "1 s", "rate": "300/s"}],
}
MAP = {"process": "map", "d0": [[-21, 1], [0.5, -2.5]], "d1": [[20, 0], [0, 2]]}


def process(written: Mapping[str, object]) -> Arrivals:
    return ARRIVALS.validate_python(written)


@pytest.fixture
def trace(tmp_path: Path) -> Arrivals:
    path = tmp_path / "trace.csv"
    path.write_text("time\n0.5\n1\n1.25\n4.5\n", encoding="utf-8")
    return process({"process": "trace", "file": str(path), "speed": 2})


EVERY = [POISSON, CONSTANT, SINUSOIDAL, PHASES, MAP]
NAMES = [str(written["process"]) for written in EVERY]


@pytest.mark.parametrize("written", EVERY, ids=NAMES)
def test_sorted_seeded_and_cut_without_changing_what_is_before(written: dict[str, object]) -> None:
    arrivals = process(written)
    long = times(arrivals, horizon_s=500, seed=3)
    assert long.dtype == np.float64
    assert (np.diff(long) >= 0).all()
    assert long[0] >= 0
    assert long[-1] < 500
    short = times(arrivals, horizon_s=123.4, seed=3)
    assert (short == long[long < 123.4]).all()
    assert (times(arrivals, count=len(long), seed=3) == long).all()
    if written is not CONSTANT:
        assert times(arrivals, count=1, seed=4)[0] != long[0]


@pytest.mark.parametrize("written", EVERY, ids=NAMES)
def test_the_mean_rate_is_what_is_stated(written: dict[str, object]) -> None:
    arrivals = process(written)
    horizon = 20_000.0
    counts = [len(times(arrivals, horizon_s=horizon, seed=seed)) for seed in range(5)]
    assert np.mean(counts) / horizon == pytest.approx(mean_rate(arrivals), rel=0.02)
    assert mean_rate(arrivals) <= peak_rate(arrivals)


@pytest.mark.parametrize("written", EVERY, ids=NAMES)
def test_nothing_in_no_time(written: dict[str, object]) -> None:
    assert len(times(process(written), horizon_s=0)) == 0
    assert len(times(process(written), count=0)) == 0


def test_poisson_gaps_are_exponential_and_independent() -> None:
    gaps = np.diff(times(process(POISSON), count=20_001, seed=1), prepend=0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 5).cdf).pvalue > 0.001
    lags = [np.corrcoef(gaps[:-lag], gaps[lag:])[0, 1] for lag in (1, 2, 10)]
    assert np.abs(lags).max() < 4 / np.sqrt(len(gaps))


def test_constant_gaps_are_equal() -> None:
    drawn = times(process(CONSTANT), count=100_000)
    assert drawn[0] == 0
    assert drawn[-1] == 99_999 / 8
    assert np.diff(drawn) == pytest.approx(1 / 8)


def test_phases_are_poisson_at_their_own_rate() -> None:
    drawn = times(process(PHASES), horizon_s=5000, seed=2)
    cycle, within = np.divmod(drawn, 5.0)
    for low, high, rate in ((0, 4, 100), (4, 5, 300)):
        inside = (within >= low) & (within < high)
        counts = np.bincount(cycle[inside].astype(int), minlength=1000)
        mean = rate * (high - low)
        # Mean and variance of a Poisson count agree; 1000 cycles give them to a few percent.
        assert counts.mean() == pytest.approx(mean, rel=0.01)
        assert counts.var() == pytest.approx(mean, rel=0.15)
        spread = stats.kstest(within[inside], stats.uniform(low, high - low).cdf)
        assert spread.pvalue > 0.001


def test_phases_by_load() -> None:
    written = {
        "process": "phases",
        "phases": [{"for": "1 s", "load": 0.5}, {"for": "3 s", "rate": "10/s"}],
    }
    arrivals = process(written)
    assert mean_rate(arrivals, 100.0) == (50 + 30) / 4
    assert peak_rate(arrivals, 100.0) == 50
    drawn = times(arrivals, horizon_s=4000, capacity_per_s=100, seed=1)
    assert len(drawn) / 4000 == pytest.approx(20, rel=0.02)


def test_sinusoidal_counts_follow_the_rate() -> None:
    drawn = times(process(SINUSOIDAL), horizon_s=10_000, seed=2)
    edges = np.linspace(0, 10, 21)
    counts, _ = np.histogram(np.mod(drawn, 10), edges)
    turn = 2 * np.pi * edges / 10
    expected = 1000 * 50 * (np.diff(edges) + 0.8 * 10 / (2 * np.pi) * -np.diff(np.cos(turn)))
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 0.001
    assert counts.sum() == pytest.approx(expected.sum(), rel=0.01)
    assert peak_rate(process(SINUSOIDAL)) == pytest.approx(90)


def test_a_trace_is_replayed_at_its_speed(trace: Arrivals) -> None:
    assert times(trace, count=4).tolist() == [0.25, 0.5, 0.625, 2.25]
    assert times(trace, horizon_s=0.6).tolist() == [0.25, 0.5]
    assert times(trace, horizon_s=100).tolist() == [0.25, 0.5, 0.625, 2.25]
    assert mean_rate(trace) == pytest.approx(3 / 2)
    assert peak_rate(trace) == 3
    with pytest.raises(ValueError, match="the trace holds 4 arrivals, fewer than 5"):
        times(trace, count=5)


def test_a_load_needs_a_capacity() -> None:
    arrivals = process({"process": "poisson", "load": 0.5})
    assert mean_rate(arrivals, 10.0) == 5
    assert len(times(arrivals, horizon_s=1000, capacity_per_s=10, seed=1)) == pytest.approx(
        5000, rel=0.1
    )
    with pytest.raises(ValueError, match="only where the greatest feasible rate is known"):
        times(arrivals, horizon_s=1)


@pytest.mark.parametrize(
    "limits",
    [{}, {"horizon_s": 1.0, "count": 1}, {"horizon_s": -1.0}, {"count": -1}, {"horizon_s": np.inf}],
)
def test_limits_that_make_no_sense(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="horizon_s"):
        times(process(POISSON), **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", EVERY, ids=NAMES)
def test_a_stream_goes_on_where_its_chunk_ends(written: dict[str, object]) -> None:
    arrivals = process(written)
    chunks = list(islice(stream(arrivals, seed=3), 4))
    for chunk in chunks:
        assert 0 < len(chunk.times_s) == len(chunk.phase) <= CHUNK
        assert chunk.times_s.dtype == np.float64
        assert chunk.phase.dtype == np.int64
    drawn = np.concatenate([chunk.times_s for chunk in chunks])
    assert (np.diff(drawn) >= 0).all()
    assert (drawn == times(arrivals, count=len(drawn), seed=3)).all()
    again = next(stream(arrivals, seed=np.random.default_rng(3)))
    assert (again.times_s == chunks[0].times_s).all()
    phase = np.concatenate([chunk.phase for chunk in chunks])
    if isinstance(arrivals, PhasedArrivals):
        course = PhaseCourse(arrivals)
        assert phase.tolist() == [course.at(time_s)[0] for time_s in drawn]
        assert set(phase) == {0, 1}
    elif isinstance(arrivals, MapArrivals):
        assert set(phase) == set(range(len(arrivals.d0)))
    else:
        assert not phase.any()


def test_a_load_without_a_capacity_is_refused_before_the_first_arrival() -> None:
    with pytest.raises(ValueError, match="only where the greatest feasible rate is known"):
        stream(process({"process": "poisson", "load": 0.5}))


def test_a_trace_comes_in_pieces_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    count = 2 * CHUNK + 10
    path.write_text("\n".join(f"{i / 8}" for i in range(count)), encoding="utf-8")
    trace = process({"process": "trace", "file": str(path), "speed": 4})
    chunks = list(stream(trace))
    assert [len(chunk.times_s) for chunk in chunks] == [CHUNK, CHUNK, 10]
    drawn = np.concatenate([chunk.times_s for chunk in chunks])
    assert (drawn == np.arange(count) / 32).all()
    assert mean_rate(trace) == pytest.approx(32)


def test_times_that_are_known_are_a_trace_without_a_file(tmp_path: Path) -> None:
    times_s = np.cumsum(np.random.default_rng(1).exponential(0.1, CHUNK + 10))
    path = tmp_path / "trace.csv"
    np.savetxt(path, times_s, fmt="%.17g")
    of_file = process({"process": "trace", "file": str(path)})
    known = recorded(times_s)
    drawn = list(stream(known))
    assert [len(chunk.times_s) for chunk in drawn] == [CHUNK, 10]
    for one, other in zip(drawn, stream(of_file), strict=True):
        assert (one.times_s == other.times_s).all()
    assert mean_rate(known) == mean_rate(of_file)
    assert peak_rate(known) == peak_rate(of_file)
    with pytest.raises(ValidationError):  # no file says them
        process({"process": "trace", "file": str(path), "times_s": [1.0]})


def test_time_loses_nothing_over_many_chunks() -> None:
    rng = np.random.default_rng(1)
    clock, gaps = Clock(), [rng.standard_exponential(1000) for _ in range(2000)]
    for gap in gaps:
        clock.after(gap.copy())
    exact = math.fsum(np.concatenate(gaps))
    assert clock.base + clock.rest == pytest.approx(exact, rel=1e-15)


def test_time_goes_on_where_gaps_are_below_its_last_digit() -> None:
    clock = Clock()
    clock.base = 1e9
    for _ in range(100):
        at = clock.after(np.full(4, 1e-8))
        assert (np.diff(at) >= 0).all()
    assert clock.base + clock.rest - 1e9 == pytest.approx(4e-6, abs=2e-7)
