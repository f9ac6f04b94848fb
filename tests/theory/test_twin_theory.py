"""The twin against closed forms: means, losses, distributions and percentiles of known queues."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from systems import HERE, VERSATILE, phases, poisson

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import Arrivals, MapArrivals
from inferway.site import Fleet
from inferway.twin import Failures, Scenario, TaskResult, run
from inferway.twin.engine import Kind, engine_of
from inferway.twin.kernel.state import quantiles

QUERIES = 400_000
# Standard errors that a mean may be away; with fixed seeds, a test that passes keeps passing.
ERRORS = 4.0


def servers(
    count: int,
    arrivals: Arrivals,
    service: ServiceTime | None = None,
    buffer: int | None = None,
    **options: object,
) -> Scenario:
    """One class, whose mean service time is the unit."""
    fleet = Fleet(("one",), np.ones(1), np.array([0.9]), np.array([count]), buffer=buffer)
    service = service or ServiceTime("exponential", 1.0)
    given: dict[str, object] = {"policy": "tad-op", "target": 0.9}
    return Scenario(fleet, (service,), arrivals, **{**given, **options})  # type: ignore[arg-type]


def mean_is(result: TaskResult, expected_s: float, within: float = 0.05) -> None:
    """The mean response time, with an error small enough to mean something."""
    found = result.response_time_s
    assert found.stderr < within * expected_s
    assert abs(found.mean - expected_s) < ERRORS * found.stderr + 1e-12
    # Little's law, by the means.
    assert result.in_system == pytest.approx(
        result.rate_per_s * (1 - result.rejected) * found.mean, rel=1e-3
    )


def erlang_b(count: int, load: float) -> float:
    blocked = 1.0
    for n in range(1, count + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


@pytest.mark.parametrize("kind", ["markov", "general"])
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_m_m_1(kind: Kind, load: float) -> None:
    result = run(servers(1, poisson(load)), queries=QUERIES, seed=1, engine=kind)
    slack = 1 / (1 - load)
    mean_is(result, slack, 0.1)
    assert result.engine == kind
    assert result.shares == {"one": 1.0}
    assert result.accuracy.mean == pytest.approx(0.9)
    assert result.utilization["one"] == pytest.approx(load, rel=0.02)
    lengths = result.classes["one"].queue_lengths
    assert lengths.sum() == pytest.approx(1)
    geometric = (1 - load) * load ** np.arange(4)
    assert lengths[:4] == pytest.approx(geometric, rel=0.1)
    within = 0.02 if load == 0.5 else 0.15
    for found, level in ((result.p50_s, 0.5), (result.p95_s, 0.95), (result.p99_s, 0.99)):
        assert found == pytest.approx(-math.log(1 - level) * slack, rel=within)


@pytest.mark.parametrize("kind", ["markov", "general"])
def test_m_m_1_response_times_are_exponential(kind: Kind) -> None:
    engine = engine_of(servers(1, poisson(0.5)), seed=4, kind=kind)
    engine.advance(10_000)
    engine.count_anew()
    engine.advance(1_000_000)
    counts = engine.tally.histogram.sum(axis=(0, 1))
    levels = np.linspace(0.001, 0.999, 999)
    expected = stats.expon(scale=2).cdf(quantiles(counts, levels.tolist()))
    # Successive response times depend on each other: by that 1e6 of them are worth some 2e4.
    assert np.abs(levels - expected).max() < 1.63 / math.sqrt(2e4)


@pytest.mark.parametrize("kind", ["markov", "general"])
def test_m_m_1_k_loses_what_theory_says(kind: Kind) -> None:
    load, places = 0.8, 4
    scenario = servers(1, poisson(load), buffer=places)
    result = run(scenario, queries=QUERIES, seed=2, engine=kind)
    share = load ** np.arange(places + 1)
    share /= share.sum()
    blocked = float(share[-1])
    assert result.rejected == pytest.approx(blocked, rel=0.02)
    assert result.violation_ratio == result.rejected
    assert result.goodput == pytest.approx(0.9 * (1 - result.rejected), rel=1e-3)
    mean_is(result, float(share @ np.arange(places + 1)) / (load * (1 - blocked)))
    assert result.classes["one"].queue_lengths[: places + 1] == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("kind", ["markov", "general"])
def test_erlang_b(kind: Kind) -> None:
    count, load = 8, 6.0
    result = run(servers(count, poisson(load), buffer=1), queries=QUERIES, seed=3, engine=kind)
    assert result.rejected == pytest.approx(erlang_b(count, load), rel=0.03)
    mean_is(result, 1.0)


def test_erlang_c_in_a_central_queue() -> None:
    count, load = 8, 7.0
    result = run(servers(count, poisson(load), queue="central"), queries=QUERIES, seed=4)
    blocked = erlang_b(count, load)
    waits = blocked / (1 - (load / count) * (1 - blocked))
    mean_is(result, 1 + waits / (count - load))
    assert result.utilization["one"] == pytest.approx(load / count, rel=0.01)


def test_m_m_n_k_in_a_central_queue() -> None:
    count, load, buffer = 3, 3.5, 3
    scenario = servers(count, poisson(load), queue="central", buffer=buffer)
    result = run(scenario, queries=QUERIES, seed=4)
    places = count * buffer
    weights = [load**n / math.factorial(n) for n in range(count + 1)]
    weights += [weights[count] * (load / count) ** n for n in range(1, places - count + 1)]
    share = np.array(weights) / sum(weights)
    assert result.rejected == pytest.approx(share[-1], rel=0.03)
    mean_is(result, float(share @ np.arange(places + 1)) / (load * (1 - share[-1])))


@pytest.mark.parametrize("kind", ["ordered", "general"])
def test_m_d_1(kind: Kind) -> None:
    load = 0.8
    scenario = servers(1, poisson(load), ServiceTime("deterministic", 1.0))
    result = run(scenario, queries=QUERIES, seed=5, engine=kind)
    mean_is(result, 1 + load / (2 * (1 - load)))


SAMPLES = np.array([0.2, 0.3, 0.5, 1.0, 4.0])
SAMPLES *= 1 / SAMPLES.mean()
LAWS = {
    "lognormal": (ServiceTime("lognormal", 1.0, cv=1.5), 1.5**2),
    "erlang": (ServiceTime("erlang", 1.0, stages=3), 1 / 3),
    "hyperexponential": (ServiceTime("hyperexponential", 1.0, cv=2.0), 4.0),
    "empirical": (
        ServiceTime("empirical", 1.0, samples_s=tuple(SAMPLES.tolist())),
        float(SAMPLES.var()),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_pollaczek_and_khinchine(law: str) -> None:
    load, (service, variation) = 0.6, LAWS[law]
    result = run(servers(1, poisson(load), service), queries=2 * QUERIES, seed=6)
    mean_is(result, 1 + load * (1 + variation) / (2 * (1 - load)))
    assert result.utilization["one"] == pytest.approx(load, rel=0.02)


def test_map_m_1_by_matrices() -> None:
    """Quasi-birth-death: pi_n = pi_0 R^n, and R solves D1 + R (D0 - mu I) + R^2 mu = 0."""
    d0 = np.array([[-1.7, 0.2], [0.1, -0.4]])
    d1 = np.array([[1.5, 0.0], [0.0, 0.3]])
    mu = 1.0
    r = np.zeros((2, 2))
    inverse = np.linalg.inv(mu * np.eye(2) - d0)
    for _ in range(20_000):
        r = (d1 + mu * r @ r) @ inverse
    rest = np.linalg.inv(np.eye(2) - r)
    # pi_0 (D0 + R mu) = 0 and pi_0 (I - R)^-1 1 = 1.
    equations = np.vstack([(d0 + mu * r).T, rest.sum(axis=1)])
    pi0 = np.linalg.lstsq(equations, np.array([0.0, 0.0, 1.0]))[0]
    in_system = float((pi0 @ r @ rest @ rest).sum())
    arrivals = MapArrivals.read({"process": "map", "d0": d0.tolist(), "d1": d1.tolist()})
    rate = arrivals.mean_rate_per_s()
    assert float((pi0 @ r @ rest).sum()) == pytest.approx(rate)  # rho
    result = run(servers(1, arrivals), queries=4 * QUERIES, seed=7)
    mean_is(result, in_system / rate, 0.1)
    assert result.in_system == pytest.approx(in_system, rel=0.05)


def test_batches_served_by_one_server() -> None:
    """A free server takes up to K at once, for a time that does not depend on how many.

    While it is busy, i wait with probability proportional to r^i, where r is the root in (0, 1) of
    mu r^(K + 1) - (lambda + mu) r + lambda = 0 (balance of the states from 1 on).
    """
    load, most = 1.5, 3
    roots = np.roots([1.0, *[0.0] * (most - 1), -(load + 1), load])
    (r,) = [root.real for root in roots if abs(root.imag) < 1e-12 and 0 < root.real < 1 - 1e-9]
    busy_none_waits = 1 / (1 / (1 - r) + 1 / load)
    wait_s = busy_none_waits * r / (1 - r) ** 2 / load
    sizes = tuple(range(1, most + 1))
    scenario = servers(
        1,
        poisson(load),
        policy=VERSATILE,
        folder=HERE,
        options={"most": most, "alone": 0.0},
        batches=(Batch(sizes, (1.0,) * most, 1, most),),
    )
    result = run(scenario, queries=QUERIES, seed=8)
    mean_is(result, 1 + wait_s)


def test_a_server_that_fails() -> None:
    """It loses what it serves; states idle, busy and away."""
    load, fails, returns = 0.7, 0.1, 0.25
    scenario = servers(
        1, poisson(load), buffer=1, failures={"one": Failures(1 / fails, 1 / returns)}
    )
    result = run(scenario, queries=QUERIES, seed=9)
    rates = np.array([[0, load, fails], [1, 0, fails], [returns, 0, 0.0]])
    generator = rates - np.diag(rates.sum(axis=1))
    equations = np.vstack([generator.T, np.ones(3)])
    idle, busy, away = np.linalg.lstsq(equations, np.array([0, 0, 0, 1.0]))[0]
    assert idle + busy + away == pytest.approx(1)
    lost = busy + away + fails * busy / load
    assert result.rejected == pytest.approx(lost, rel=0.02)
    assert result.utilization["one"] == pytest.approx(busy, rel=0.02)


@pytest.mark.parametrize("kind", ["markov", "general"])
def test_phases_are_queues_of_their_own_where_they_last(kind: Kind) -> None:
    long_s = 20_000.0
    arrivals = phases((long_s, 0.3, 0.8), (long_s, 0.7, None))
    result = run(servers(1, arrivals), queries=200_000, seed=10, engine=kind)
    light, heavy = result.phases
    assert (light.accuracy_target, heavy.accuracy_target) == (0.8, 0.9)
    assert light.response_time_s == pytest.approx(1 / 0.7, rel=0.05)
    assert heavy.response_time_s == pytest.approx(1 / 0.3, rel=0.1)
    assert light.p50_s == pytest.approx(math.log(2) / 0.7, rel=0.05)
    assert light.queries + heavy.queries == result.queries == 200_000
    assert heavy.queries / result.queries == pytest.approx(0.7, rel=0.05)
    assert sum(one.queries * one.goodput for one in result.phases) == pytest.approx(
        result.queries * result.goodput
    )


FLEET = Fleet(("a", "b"), np.array([1.0, 0.4]), np.array([0.6, 0.9]), np.array([3, 4]), buffer=5)
MEANS = (ServiceTime("exponential", 1.0), ServiceTime("exponential", 2.5))


@pytest.mark.parametrize(
    "arrivals",
    [poisson(3.8), phases((30.0, 1.5, 0.65), (20.0, 5.0, 0.75))],
    ids=["poisson", "phases"],
)
def test_markov_and_general_are_one_distribution(arrivals: Arrivals) -> None:
    """Independent runs of both: their means differ by chance alone."""
    scenario = Scenario(FLEET, MEANS, arrivals, policy="tad-op", target=0.7)
    kinds: tuple[Kind, Kind] = ("markov", "general")
    found = {
        kind: [
            run(scenario, queries=30_000, seed=seed, engine=kind, warmup=2000, workers=1)
            for seed in range(place * 100, place * 100 + 12)
        ]
        for place, kind in enumerate(kinds)
    }
    for value in (
        lambda one: one.response_time_s.mean,
        lambda one: one.p95_s,
        lambda one: one.rejected,
        lambda one: one.accuracy.mean,
        lambda one: one.shares["a"],
        lambda one: one.utilization["b"],
        lambda one: one.in_system,
        lambda one: one.phases[-1].response_time_s,
        lambda one: one.phases[0].accuracy,
    ):
        samples = [[value(one) for one in found[kind]] for kind in kinds]
        assert stats.ttest_ind(*samples, equal_var=False).pvalue > 1e-3
        assert stats.ks_2samp(*samples).pvalue > 1e-3
