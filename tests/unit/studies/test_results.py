from __future__ import annotations

import math

import pytest

from inferway.experiments.results import Results


def rows(values, **more):
    return [{"load": 0.5, "trial": i, "x": x, **more} for i, x in enumerate(values)]


def test_few_trials_trust_the_errors_of_the_runs():
    found = Results(rows([1.0, 2.0], x_se=0.3)).measure("x", load=0.5)
    assert found.mean == 1.5
    assert found.stderr == pytest.approx(math.sqrt(2 * 0.3**2) / 2)
    assert found.trials == 2


def test_many_trials_are_their_own_error():
    values = [1.0, 2.0] * 5
    found = Results(rows(values, x_se=99.0)).measure("x")
    deviation = math.sqrt(10 * 0.25 / 9)
    assert found.stderr == pytest.approx(deviation / math.sqrt(10))


def test_an_unstable_trial_is_marked_and_has_no_value():
    results = Results([*rows([1.0], stable=True), *rows([9.0], stable=False)])
    assert not results.measure("x").stable
    assert math.isnan(results.value("x"))
    assert results.value("x", stable=True) == 1.0


def test_what_was_not_run_is_no_number():
    found = Results([]).measure("x", load=0.1)
    assert math.isnan(found.mean)
    assert found.trials == 0
    assert Results([]).one("x") is None


def test_rows_are_chosen_by_every_label():
    results = Results([{"a": 1, "b": 1, "x": 1}, {"a": 1, "b": 2, "x": 2}, {"a": 2, "b": 2}])
    assert results.where(a=1, b=2).rows == [{"a": 1, "b": 2, "x": 2}]
    assert results.distinct("b") == [1, 2]
    assert results.one("x", a=1) == 1
    assert len(results.where(c=1)) == 0
