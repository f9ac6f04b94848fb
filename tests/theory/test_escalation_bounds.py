"""The bound with escalation against cases by hand, brute force, duality and the bound without."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import naive
import numpy as np
import pytest
from fleets import any_fleets, fleet, loads, targets
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferway.dispatch import (
    best_accuracy,
    escalation_bound,
    escalation_price,
    max_escalation_rate,
    max_rate,
    solve,
    solve_escalation,
)
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.escalation_bounds import full_load, greatest_rate
from inferway.dispatch.promise import overloads
from inferway.site import ConfidenceTables, Fleet


def two() -> Fleet:
    """A quick class whose halves are right at 0.5 and 0.9, and a slow one at 0.8 and 0.96."""
    expected = np.array([[[0.5, 0.8], [0.9, 0.96]], [[0.7, 0.88], [0.7, 0.88]]])
    mass, edges = np.array([[0.5, 0.5], [0.0, 0.0]]), np.array([[0.6], [np.inf]])
    of = fleet([10.0, 1.0], [0.7, 0.88], [1, 4])
    return replace(of, confidence=ConfidenceTables(mass, expected, edges))


def test_two_classes_and_two_bins_by_hand() -> None:
    # The unsure half asked again: 0.7 + 0.5 * 0.3 = 0.85 for 0.1 + 0.5 s, 3.3 s per unit. The slow
    # one first: 0.88 for 1 s, 13.3 s per unit from there; the surer half would cost 0.5 s for 0.03.
    of = two()
    below, at, above = (solve_escalation(of, target, 1.0) for target in (0.76, 0.85, 0.87))
    assert below.first == pytest.approx([1.0, 0.0])
    assert below.then[0, :, 1] == pytest.approx([0.2, 0.0], abs=1e-9)
    assert below.response_time_s == pytest.approx(0.3)
    assert below.price_s == pytest.approx(1.0 / 0.3)
    assert below.capacity_price == pytest.approx([0.0, 0.0])
    assert at.then[0, :, 1] == pytest.approx([0.5, 0.0], abs=1e-9)
    assert at.response_time_s == pytest.approx(0.6)
    assert above.first == pytest.approx([1 / 3, 2 / 3])
    assert above.then[0, :, 1] == pytest.approx([1 / 6, 0.0], abs=1e-9)
    assert above.response_time_s == pytest.approx(0.6 / 3 + 2 / 3)
    assert above.price_s == pytest.approx(0.4 / 0.03)


def test_the_greatest_rate_by_hand() -> None:
    of = two()
    # All that the slow one carries, 4/s, goes to the unsure half of 8/s.
    assert max_escalation_rate(of, 0.85) == pytest.approx(8.0)
    # The quick one is full with 10/s, which owe 0.06 each: 2/3 of the slow one's 4/s earn 0.3 as
    # second answers and 10/3 earn 0.12 as first ones. Asked once, they carry 8 + 4.
    assert max_escalation_rate(of, 0.76) == pytest.approx(10 + 10 / 3)
    assert max_rate(of, 0.76) == pytest.approx(12.0)
    assert max_escalation_rate(of, 0.7) == pytest.approx(14.0)
    assert max_escalation_rate(of, None) == pytest.approx(14.0)


def test_the_best_accuracy_by_hand() -> None:
    of = two()
    assert best_accuracy(of) == pytest.approx(0.88)
    assert of.confidence is not None
    expected = of.confidence.expected.copy()
    expected[0, :, 1] = [0.9, 0.5]  # the slow one is worse where the quick one is sure
    higher = replace(of, confidence=of.confidence._replace(expected=expected))
    assert best_accuracy(higher) == pytest.approx(0.7 + 0.2)
    assert solve_escalation(higher, 0.9, 0.1).response_time_s == pytest.approx(0.6)
    with pytest.raises(
        UnreachableError, match=r"0\.91 is above the best accuracy 0\.9 that asking"
    ):
        max_escalation_rate(higher, 0.91)
    assert best_accuracy(fleet([2.0, 1.0], [0.7, 0.75])) == 0.75


def test_what_is_asked_again_is_named() -> None:
    found = escalation_bound(two(), target=0.76, rate_per_s=1.0)
    assert found.to_json() == {
        "max_rate_per_s": pytest.approx(10 + 10 / 3),
        "least_response_time_s": pytest.approx(0.3),
        "first": {"v0": pytest.approx(1.0), "v1": pytest.approx(0.0)},
        "then": [{"from": "v0", "bin": 0, "to": "v1", "share": pytest.approx(0.2)}],
    }
    assert found.sure == ("v0",)
    assert found.then is not None
    assert (found.then[0].above, found.then[0].below) == (-np.inf, 0.6)
    beyond = escalation_bound(two(), target=0.76, rate_per_s=13.4).to_json()
    assert [beyond[key] for key in ("least_response_time_s", "first", "then")] == [None] * 3


@st.composite
def sure_fleets(draw: st.DrawFn, max_classes: int = 4, max_bins: int = 4) -> Fleet:
    """Fleets of which most classes have a confidence that keeps their mean accuracies."""
    of = draw(any_fleets(max_classes))
    classes, bins = len(of.rate), draw(st.integers(1, max_bins))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    mass = random.dirichlet(np.ones(bins), classes) * (random.random((classes, 1)) < 0.8)
    swing = random.uniform(-1, 1, (classes, bins, classes))
    swing -= (mass[:, :, None] * swing).sum(axis=1, keepdims=True)
    room = np.minimum(of.accuracy, 1 - of.accuracy)
    swing *= room / np.abs(swing).max(axis=1, keepdims=True, initial=1.0)
    swing[mass.sum(axis=1) == 0] = 0.0
    edges = np.sort(random.random((classes, bins - 1)), axis=1)
    tables = ConfidenceTables(mass, (of.accuracy + swing).clip(0, 1), edges)
    return replace(of, confidence=tables)


def blurred(of: Fleet, part: float) -> Fleet:
    """A fleet whose confidences are heard in this part of all cases, and else drawn at random."""
    assert of.confidence is not None
    expected = part * of.confidence.expected + (1 - part) * of.accuracy
    return replace(of, confidence=of.confidence._replace(expected=expected))


@settings(max_examples=60, deadline=None)
@given(sure_fleets(max_classes=2, max_bins=2), targets, loads)
def test_the_lp_is_the_best_vertex(of: Fleet, where: float, load: float) -> None:
    target = where * best_accuracy(of)
    rate = load * max_escalation_rate(of, target)
    assert solve_escalation(of, target, rate).response_time_s == pytest.approx(
        naive.least_time_asking_twice(of, target, rate), rel=1e-6
    )


def weights(of: Fleet) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean accuracies of first answers, and what second ones gain."""
    assert of.confidence is not None
    own = np.diagonal(of.confidence.expected, axis1=0, axis2=2).T
    return of.confidence.expected_accuracy(), of.confidence.expected - own[:, :, None]


@settings(max_examples=150, deadline=None)
@given(sure_fleets(), targets, loads, st.one_of(st.none(), st.floats(0.02, 1.5)))
def test_duality(of: Fleet, where: float, load: float, spare: float | None) -> None:
    of = replace(of, energy=np.random.default_rng(7).uniform(0.1, 10, len(of.rate)))
    target, budget = where * float(of.accuracy.max()), None
    if spare is not None:
        least = of.energy[of.accuracy >= target].min()
        budget = float(least + spare * (of.energy.max() - least))
    optimum = solve_escalation(of, target, load * max_escalation_rate(of, target, budget), budget)
    service_s, mass = 1 / of.rate, of.confidence.mass  # type: ignore[union-attr]
    accuracy, gain = weights(of)
    scale = float(service_s.max())
    # Primal feasible, ...
    asked, again = optimum.first, optimum.then
    used = asked + again.sum(axis=(0, 1))
    assert asked.sum() == pytest.approx(1)
    assert (used <= optimum.room * (1 + 1e-8) + 1e-9).all()
    assert (again.sum(axis=2) <= asked[:, None] * mass + 1e-9).all()
    assert asked @ accuracy + (again * gain).sum() >= target - 1e-8
    assert budget is None or used @ of.energy <= budget * (1 + 1e-7)
    assert used @ service_s == pytest.approx(optimum.response_time_s)
    # dual feasible, ...
    assert optimum.price_s >= 0
    assert (optimum.capacity_price <= 1e-9 * scale).all()
    assert (optimum.bin_price <= 1e-9 * scale).all()
    runs = service_s - optimum.capacity_price + optimum.energy_price_s * of.energy
    level = optimum.level_s + optimum.price_s * (accuracy - target)
    level -= (mass * optimum.bin_price).sum(axis=1)
    first = runs - level - optimum.energy_price_s * (budget or 0.0)
    then = runs - optimum.price_s * gain - optimum.bin_price[:, :, None]
    terms = 1 + (optimum.energy_price_s * (budget or 0.0) + optimum.price_s) / scale
    assert (first >= -1e-7 * scale * terms).all()
    assert (then[mass > 0] >= -1e-7 * scale * terms).all()
    # and the two are equal.
    assert optimum.level_s + optimum.room @ optimum.capacity_price == pytest.approx(
        optimum.response_time_s, rel=1e-6
    )


@settings(max_examples=150, deadline=None)
@given(sure_fleets(), targets, loads)
def test_without_confidence_it_is_the_bound(of: Fleet, where: float, load: float) -> None:
    target = where * float(of.accuracy.max())
    rate = load * max_rate(of, target)
    for without in (replace(of, confidence=None), blurred(of, 0.0)):
        found = escalation_bound(without, target=target, rate_per_s=rate)
        assert found.max_rate_per_s == pytest.approx(max_rate(of, target))
        assert found.best_accuracy == pytest.approx(of.accuracy.max())
        assert found.least_response_time_s == pytest.approx(
            solve(of, target, rate).response_time_s, rel=1e-7
        )


@settings(max_examples=150, deadline=None)
@given(sure_fleets(), targets, loads, st.floats(0, 1))
def test_what_is_heard_better_is_worth_no_less(
    of: Fleet, where: float, load: float, part: float
) -> None:
    target = where * float(of.accuracy.max())
    rate = load * max_rate(of, target)
    times_s = [solve(of, target, rate).response_time_s]
    greatest, best = [max_rate(of, target)], [float(of.accuracy.max())]
    for heard in (part, 1.0):
        some = blurred(of, heard)
        times_s.append(solve_escalation(some, target, rate).response_time_s)
        greatest.append(max_escalation_rate(some, target))
        best.append(best_accuracy(some))
    assert all(better <= worse * (1 + 1e-8) for worse, better in pairwise(times_s))
    assert all(better >= worse * (1 - 1e-8) for worse, better in pairwise(greatest))
    assert all(better >= worse * (1 - 1e-8) for worse, better in pairwise(best))


@settings(max_examples=150, deadline=None)
@given(sure_fleets(), targets)
def test_the_greatest_rate_is_where_the_lp_ends(of: Fleet, where: float) -> None:
    target = where * best_accuracy(of)
    greatest = max_escalation_rate(of, target)
    assert np.isfinite(solve_escalation(of, target, greatest).response_time_s)
    with pytest.raises(UnreachableError, match="not between 0 and the greatest"):
        solve_escalation(of, target, greatest * 1.001)
    if of.confidence is not None and max(of.confidence.mass.shape) <= 2:
        assert naive.least_time_asking_twice(of, target, greatest * 1.001) == np.inf


@settings(max_examples=150, deadline=None)
@given(sure_fleets(), st.floats(0.0, 0.98), loads)
def test_the_price_is_what_more_accuracy_costs(of: Fleet, where: float, load: float) -> None:
    best = best_accuracy(of)
    low, high = where * best, (where + 0.02) * best
    rate = load * max_escalation_rate(of, high)
    for at in (None, rate):
        less, more = (solve_escalation(of, target, at) for target in (low, high))
        costs_s = more.response_time_s - less.response_time_s
        slack = 1e-7 * (1 + more.response_time_s + more.price_s)
        assert less.price_s * (high - low) <= costs_s + slack
        assert more.price_s * (high - low) >= costs_s - slack
        assert escalation_price(of, low, at) >= less.price_s - slack


def test_a_price_is_there_at_any_rate() -> None:
    of = two()
    assert escalation_price(of, 0.76, None) == pytest.approx(1.0 / 0.3)
    assert escalation_price(of, 0.76, 1.0) == pytest.approx(1.0 / 0.3)
    assert escalation_price(of, 0.5, None) == 0.0
    # Where both are full, the mean is above 0.71 anyway; with room again it is not.
    assert solve_escalation(of, 0.71, 13.0).price_s == pytest.approx(0.0)
    assert escalation_price(of, 0.71, 13.0) == pytest.approx(1.0 / 0.3)
    near = solve_escalation(of, 0.76, 0.99 * (10 + 10 / 3)).price_s
    for rate in (13.3, 14.0, 1e9):
        assert escalation_price(of, 0.76, rate) == pytest.approx(max(near, 1.0 / 0.3))
    with pytest.raises(UnreachableError):
        escalation_price(of, 0.9, None)


def test_a_budget_counts_both_answers() -> None:
    # Half asked again takes 1 + 0.5 * 4 J; within 2.6 J 0.4 are, and 0.7 + 0.4 * 0.3 is reached.
    of = replace(two(), energy=np.array([1.0, 4.0]))
    assert solve_escalation(of, 0.82, 1.0, 2.6).then.sum() == pytest.approx(0.4)
    with pytest.raises(UnreachableError, match=r"keeps a mean accuracy of 0\.83 within 2\.6 J"):
        max_escalation_rate(of, 0.83, 2.6)


def test_each_policy_has_its_greatest_rate() -> None:
    of = two()
    assert greatest_rate("priced", of, 0.76) == pytest.approx(12.0)
    assert greatest_rate("escalate", of, 0.76) == pytest.approx(10 + 10 / 3)
    # A load of 1 is the same for all, as long as there is one.
    assert full_load(of, 0.76) == pytest.approx(12.0)
    assert of.confidence is not None
    more = of.confidence._replace(expected=of.confidence.expected + np.array([0.0, 0.03])[:, None])
    assert full_load(replace(of, confidence=more), 0.885) > 0
    with pytest.raises(UnreachableError, match="above the best variant's accuracy"):
        full_load(replace(of, confidence=None), 0.885)


def test_a_rate_overloads_a_policy_above_its_greatest() -> None:
    of = two()
    assert overloads(13.0, of, 0.76)
    assert overloads(13.0, of, 0.76, policy="priced")
    assert not overloads(13.0, of, 0.76, policy="escalate")
    assert not overloads(11.9, of, 0.76, policy="escalate")
    assert overloads(13.4, of, 0.76, policy="escalate")
    assert overloads(1.0, of, 0.9, policy="escalate")
    assert not overloads(np.nan, of, 0.9, policy="escalate")
