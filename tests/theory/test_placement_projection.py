"""Algorithm 2, with and without sorting, against convex optimization."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.placement import project, project_sorted


def problem(seed: int, n: int, spread: float) -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.1, 5, n)
    return np.exp(rng.normal(0, spread, n)), size, float(rng.uniform(0.01, 0.99) * size.sum())


@pytest.mark.parametrize("seed", range(8))
def test_both_are_the_bregman_projection(seed: int) -> None:
    import cvxpy as cp

    y, size, budget = problem(seed, 12, 1.5)
    z = cp.Variable(len(y))
    divergence = cp.sum(cp.multiply(size, cp.kl_div(z, y)))  # z log(z / y) - z + y
    cp.Problem(cp.Minimize(divergence), [z <= 1, size @ z == budget]).solve(solver=cp.CLARABEL)
    found = project(y, size, budget)
    assert found == pytest.approx(z.value, abs=1e-3)
    assert project_sorted(y, size, budget) == pytest.approx(found, abs=1e-12)
    # The solver stops early; what is found is no farther away.
    assert size @ (found * np.log(found / y) - found + y) <= divergence.value + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0, 12))
def test_both_are_the_same_point_and_spend_the_budget(seed: int, n: int, spread: float) -> None:
    y, size, budget = problem(seed, n, spread)
    found = project(y, size, budget)
    assert found == pytest.approx(project_sorted(y, size, budget), rel=1e-9, abs=1e-12)
    assert size @ found == pytest.approx(budget)
    assert 0 <= found.min() <= found.max() <= 1
    below = found < 1
    if below.any():  # one scale for all that is not capped (eq. 74), and caps above it (eq. 75)
        scale = (found / y)[below]
        assert scale == pytest.approx(np.full(len(scale), scale[0]))
        assert np.all(y[~below] * scale[0] >= 1 - 1e-9)


def test_what_is_feasible_stays() -> None:
    y = np.array([0.2, 1.0, 0.5])
    size = np.array([1.0, 2.0, 4.0])
    assert project(y, size, float(size @ y)) == pytest.approx(y)


def test_all_models_fit_a_large_budget_and_none_an_empty_one() -> None:
    assert project([0.1, 3.0], [1.0, 1.0], 2.5).tolist() == [1.0, 1.0]
    assert project_sorted([0.1, 3.0], [1.0, 1.0], 2.5).tolist() == [1.0, 1.0]
    assert project([0.1, 3.0], [1.0, 1.0], 0.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("y", "size", "budget", "sentence"),
    [
        ([1.0], [1.0, 2.0], 1.0, r"\(1,\) numbers cannot be projected with \(2,\) sizes"),
        ([0.0, 1.0], [1.0, 2.0], 1.0, "the negative entropy is for positive numbers"),
        ([1.0, 1.0], [1.0, 0.0], 1.0, "every size must be positive"),
        ([1.0, 1.0], [1.0, 1.0], -1.0, "the budget is -1.0"),
    ],
)
def test_what_cannot_be_projected_is_said(y, size, budget, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        project(y, size, budget)
