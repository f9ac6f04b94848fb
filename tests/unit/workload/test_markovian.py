"""The Markovian arrival process against matrix formulas.

With M = (-D0)^-1, P = M D1 and alpha its stationary vector, gaps X have E[X^k] = k! alpha M^k 1 and
E[X_0 X_j] = alpha M P^j M 1 (Lucantoni 1991, doi:10.1080/15326349108807174).
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from inferway.deployment.workloads import MapArrivals
from inferway.workload import (
    PhaseCourse,
    mean_rate,
    peak_rate,
    phases_of,
    stream,
    times,
)
from inferway.workload.arrivals import CHUNK, MOST_PHASES, markovian

Matrix = NDArray[np.float64]

CASES = {
    # Two phases with Poisson arrivals each.
    "modulated": ([[-21, 1], [0.5, -2.5]], [[20, 0], [0, 2]]),
    # Every arrival changes the phase: Erlang-2 gaps.
    "erlang": ([[-4, 4], [0, -4]], [[0, 0], [4, 0]]),
    # Arrivals with and without a change of phase, silent changes too.
    "general": (
        [[-10, 1, 0], [0.5, -4, 0.5], [0, 1, -3]],
        [[6, 1, 2], [0, 2, 1], [1.5, 0.5, 0]],
    ),
}


def arrivals_of(name: str) -> MapArrivals:
    d0, d1 = CASES[name]
    return MapArrivals.read({"process": "map", "d0": d0, "d1": d1})


class Closed:
    def __init__(self, d0: object, d1: object) -> None:
        self.m: Matrix = np.linalg.inv(-np.array(d0, float))
        self.p: Matrix = self.m @ np.array(d1, float)
        values, vectors = np.linalg.eig(self.p.T)
        alpha = np.real(vectors[:, np.argmin(np.abs(values - 1))])
        self.alpha: Matrix = alpha / alpha.sum()

    def moment(self, k: int) -> float:
        power = np.linalg.matrix_power(self.m, k)
        return float(np.prod(range(1, k + 1)) * (self.alpha @ power).sum())

    def autocorrelation(self, lag: int) -> float:
        joint = self.alpha @ self.m @ np.linalg.matrix_power(self.p, lag) @ self.m
        mean = self.moment(1)
        return float((joint.sum() - mean**2) / (self.moment(2) - mean**2))


@pytest.mark.parametrize("name", CASES)
def test_moments_and_autocorrelation_of_the_gaps(name: str) -> None:
    arrivals, closed = arrivals_of(name), Closed(*CASES[name])
    gaps = np.diff(times(arrivals, count=400_000, seed=7))
    assert mean_rate(arrivals) == pytest.approx(1 / closed.moment(1), rel=1e-9)
    assert gaps.mean() == pytest.approx(closed.moment(1), rel=0.02)
    assert (gaps**2).mean() == pytest.approx(closed.moment(2), rel=0.04)
    centered = gaps - gaps.mean()
    for lag in (1, 2, 5, 20):
        measured = (centered[:-lag] * centered[lag:]).mean() / centered.var()
        assert measured == pytest.approx(closed.autocorrelation(lag), abs=0.015)


def test_erlang_gaps_to_the_letter() -> None:
    gaps = np.diff(times(arrivals_of("erlang"), count=20_001, seed=5))
    assert stats.kstest(gaps, stats.gamma(2, scale=1 / 4).cdf).pvalue > 0.001


def test_the_start_is_stationary() -> None:
    """The first second brings as many arrivals on average as any other."""
    arrivals = arrivals_of("modulated")
    firsts = [len(times(arrivals, horizon_s=1, seed=seed)) for seed in range(1000)]
    error = np.std(firsts) / np.sqrt(len(firsts))
    assert np.mean(firsts) == pytest.approx(mean_rate(arrivals), abs=4 * error)


def test_counts_over_time_vary_as_the_index_of_dispersion_says() -> None:
    """For two modulated phases: Heffes and Lucantoni, doi:10.1109/JSAC.1986.1146393, eq. 4."""
    arrivals = arrivals_of("modulated")
    (leave0, leave1), (fast, slow) = (1.0, 0.5), (20.0, 2.0)
    total = leave0 + leave1
    limit = 1 + 2 * (fast - slow) ** 2 * leave0 * leave1 / (
        total**2 * (fast * leave1 + slow * leave0)
    )
    width = 50.0
    settled = limit - (limit - 1) * (1 - np.exp(-total * width)) / (total * width)
    drawn = times(arrivals, horizon_s=200_000, seed=11)
    counts = np.bincount((drawn // width).astype(int))
    assert counts.var() / counts.mean() == pytest.approx(settled, rel=0.1)


def test_the_edge_example_has_long_bursts() -> None:
    written = {
        "process": "map",
        "d0": [[-180.0036, 0.0036], [0.0002, -10.0002]],
        "d1": [[180, 0], [0, 10]],
    }
    arrivals = MapArrivals.read(written)
    assert arrivals.stationary == pytest.approx([1 / 19, 18 / 19])
    assert mean_rate(arrivals) == pytest.approx((180 + 18 * 10) / 19)
    assert peak_rate(arrivals) == 180
    counts = np.bincount(times(arrivals, horizon_s=50_000, seed=4).astype(int), minlength=50_000)
    by_minute = np.convolve(counts, np.ones(60) / 60, "valid")
    assert ((by_minute < 14) | (by_minute > 160)).mean() > 0.95


def test_a_long_stay_costs_no_more_than_its_first_arrivals() -> None:
    """A phase that lasts for days must not be drawn at once to look at its first second."""
    written = {
        "process": "map",
        "d0": [[-1e6 - 1e-9, 1e-9], [1e-9, -1e6 - 1e-9]],
        "d1": [[1e6, 0], [0, 1e6]],
    }
    drawn = times(MapArrivals.read(written), count=200_000, seed=1)
    assert drawn[-1] == pytest.approx(0.2, rel=0.02)


def test_the_plain_walk_takes_the_same_steps() -> None:
    d0, d1 = (np.array(matrix, float) for matrix in CASES["general"])
    start = np.array([1.0, 0, 0])
    compiled = next(markovian(d0, d1, start, np.random.default_rng(3)))
    # By hand: one exponential and one uniform number per step, silent changes first.
    rng = np.random.default_rng(3)
    rng.random()
    gaps, picks = rng.standard_exponential(CHUNK), rng.random(CHUNK)
    ways = np.hstack([d0 * (1 - np.eye(3)), d1])
    phase, now, found, during = 0, 0.0, [], []
    switch_s, switch_to = [0.0], [0]
    for gap, pick in zip(gaps[:2000], picks, strict=False):
        now += gap / ways[phase].sum()
        way = int((np.cumsum(ways[phase]) / ways[phase].sum() <= pick).sum())
        if way >= 3:
            found.append(now)
            during.append(phase)
        if way % 3 != phase:
            switch_s.append(now)
            switch_to.append(way % 3)
        phase = way % 3
    assert compiled.times_s[: len(found)] == pytest.approx(found, rel=1e-12)
    assert compiled.phase[: len(found)].tolist() == during
    assert compiled.switch_s[: len(switch_s)] == pytest.approx(switch_s, rel=1e-12)
    assert compiled.switch_to[: len(switch_to)].tolist() == switch_to
    assert set(switch_to) == {0, 1, 2}


def test_time_and_arrivals_in_each_phase() -> None:
    written = {"process": "map", "d0": [[-7, 2], [1, -4]], "d1": [[4, 1], [0, 3]]}
    arrivals = MapArrivals.read(written)
    course, spent, came = PhaseCourse(arrivals), np.zeros(2), np.zeros(2)
    for chunk in islice(stream(arrivals, seed=5), 3):
        course.follow(chunk)
        came += np.bincount(chunk.phase, minlength=2)
        ends = np.append(chunk.switch_s[1:], chunk.times_s[-1])
        np.add.at(spent, chunk.switch_to, ends - chunk.switch_s)
    assert spent / spent.sum() == pytest.approx(arrivals.stationary, rel=0.02)
    assert came / spent == pytest.approx([5, 3], rel=0.02)
    # In between, the course tells the phase of any time, and since when.
    moments = [course.at(time_s) for time_s in np.arange(0.0, 20_000.0, 0.5)]
    in_first = np.mean([phase == 0 for phase, _ in moments])
    assert in_first == pytest.approx(arrivals.stationary[0], rel=0.03)
    mean_since_s = np.mean([since_s for phase, since_s in moments if phase == 0])
    assert mean_since_s == pytest.approx(1 / 3, rel=0.05)  # exponential times have no memory


def test_many_phases_are_not_told_apart() -> None:
    size = MOST_PHASES + 1
    around = np.roll(np.eye(size), 1, axis=1)
    written = {
        "process": "map",
        "d0": (around - 3 * np.eye(size)).tolist(),
        "d1": (2 * np.eye(size)).tolist(),
    }
    arrivals = MapArrivals.read(written)
    assert len(phases_of(arrivals)) == 1
    chunk = next(stream(arrivals, seed=1))
    assert not chunk.phase.any()
    assert len(chunk.switch_s) == 0


def test_a_phase_that_is_never_left() -> None:
    written = {"process": "map", "d0": [[-3, 2], [0, -7]], "d1": [[1, 0], [0, 7]]}
    arrivals = MapArrivals.read(written)
    assert arrivals.stationary == pytest.approx([0, 1])
    gaps = np.diff(times(arrivals, count=20_001, seed=1))
    assert stats.kstest(gaps, stats.expon(scale=1 / 7).cdf).pvalue > 0.001
