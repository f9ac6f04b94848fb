"""Gains of runs beside the best static allocation, and beside the best of each slot."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.placement import relaxation
from inferway.studies.placement.regretted import regretted
from inferway.studies.placement.trial import scenario


def test_the_best_of_each_slot_is_the_static_one_where_nothing_changes() -> None:
    fixed = regretted("fixed", "olag", "II", 3.0, 7500.0, [2, 4], seed=1)
    assert fixed["dynamic_ms"] == pytest.approx(fixed["best_ms"], rel=1e-6)


def test_the_best_of_each_slot_is_above_the_static_one_where_requests_change() -> None:
    row = regretted("sliding", "olag", "II", 3.0, 7500.0, [60, 120], seed=1)
    # For an hour nothing changes; then other tasks are asked for.
    assert row["dynamic_ms"][0] == pytest.approx(row["best_ms"][0], rel=1e-6)
    assert row["dynamic_ms"][1] > 1.01 * row["best_ms"][1]
    assert all(own < each for own, each in zip(row["own_ms"], row["dynamic_ms"], strict=True))


@pytest.mark.parametrize("policy", ["exchange", "infida-marginal"])
def test_every_policy_of_the_study_runs_under_an_adversary(policy: str) -> None:
    row = regretted("adversarial", policy, "II", 3.0, 7500.0, [3, 6], seed=1)
    assert len(row["own_ms"]) == len(row["dynamic_ms"]) == 2
    assert row["own_ms"][1] <= row["dynamic_ms"][1]
    assert row["best_ms"][1] <= row["dynamic_ms"][1] * (1 + 1e-9)


def test_the_bound_of_a_slot_is_the_lp_s() -> None:
    network, demand, _ = scenario("II", alpha=3.0, rate_per_s=7500.0, sliding=False, seed=1)
    requests = demand.expected(0)
    row = regretted("fixed", "olag", "II", 3.0, 7500.0, [1], seed=1)
    asked = demand.counts(0).sum()
    assert row["dynamic_ms"][0] == pytest.approx(relaxation(network, requests[None]) / asked)
    assert np.isfinite(row["bound_ms"]).all()
