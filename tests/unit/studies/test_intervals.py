"""Intervals of claims: over trials, over the simulator's errors, and where there is neither."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from inferway.experiments.results import METHODS
from inferway.experiments.study import Study
from inferway.studies import Claim, Results, checked


def study_of(*claims):
    """A study whose claims are functions of the results that give a value."""
    return Study(
        name="made",
        source="here",
        shows="Nothing.",
        scales={"smoke": None, "quick": None, "paper": None},
        points=lambda _: [],
        figure=lambda *_: None,
        claims=lambda _, results: [
            Claim("Sec. 1", "It holds.", "how much", of(results), at_most=1.0) for of in claims
        ],
    )


def mean(results):
    return results.measure("x").mean


def trials(values, **more):
    return Results([{"trial": k, "x": value, **more} for k, value in enumerate(values)])


def test_over_trials_a_mean_has_students_interval():
    values = [0.8, 0.9, 1.0, 1.2]
    (claim,) = checked(study_of(mean), None, trials(values))
    wanted = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (claim.low, claim.high) == pytest.approx(wanted)
    assert claim.method == METHODS["jackknife"]
    assert (claim.verdict, claim.reproduced) == ("not settled", None)


def test_many_trials_are_left_out_in_groups():
    values = np.random.default_rng(3).normal(0.5, 0.1, 400)
    (claim,) = checked(study_of(mean), None, trials(values.tolist()))
    assert claim.high - claim.low == pytest.approx(4 * 0.1 / math.sqrt(400), rel=0.5)
    assert claim.verdict == "yes"


def test_one_trial_has_the_simulators_own_error():
    (claim,) = checked(study_of(mean), None, trials([0.9], x_se=0.1))
    assert claim.method == METHODS["bootstrap"]
    assert claim.low == pytest.approx(0.9 - 1.96 * 0.1, abs=0.05)
    assert claim.high == pytest.approx(0.9 + 1.96 * 0.1, abs=0.05)
    again = checked(study_of(mean), None, trials([0.9], x_se=0.1))
    assert again == [claim]


def test_the_largest_of_many_is_not_taken_for_larger_than_it_is():
    chance = np.random.default_rng(5)
    rows = [
        {"trial": 0, "place": place, "x": 0.5 + chance.normal(0, 0.1), "x_se": 0.1}
        for place in range(30)
    ]

    def largest(results):
        return max(row["x"] for row in results.rows)

    (claim,) = checked(study_of(largest), None, Results(rows))
    assert claim.low < 0.5 + 0.1 < claim.value <= claim.high


def test_what_chance_cannot_change_has_no_interval():
    found = checked(study_of(lambda _: 0.5, lambda _: math.nan), None, trials([1.0, 2.0, 3.0]))
    assert [(claim.low, claim.verdict) for claim in found] == [(None, "yes"), (None, "-")]
    (claim,) = checked(study_of(mean), None, Results([{"x": 0.5}]))
    assert (claim.low, claim.method, claim.verdict) == (None, "", "yes")


def test_a_claim_that_brings_its_own_interval_keeps_it():
    made = study_of(mean)
    own = Claim("Sec. 1", "It holds.", "how much", 0.5, low=0.4, high=0.6, method="ours")
    made = replace(made, claims=lambda *_: [own])
    assert checked(made, None, trials([0.1, 0.5, 0.9])) == [own]


def test_rows_of_no_trial_are_never_left_out():
    rows = [*trials([0.8, 0.9, 1.0]).rows, {"bound": 2.0}]

    def over_bound(results):
        return results.measure("x").mean / results.measure("bound").mean

    (claim,) = checked(study_of(over_bound), None, Results(rows))
    assert claim.value == pytest.approx(0.45)
    assert claim.low < 0.45 < claim.high
