"""A confidence sequence holds at every step at once, where a usual interval does not."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.profiling.intervals import wilson

RUNS, STEPS = 150, 400


def _values(kind: str, random: np.random.Generator) -> tuple[float, np.ndarray]:
    if kind == "bernoulli":
        return 0.9, (random.random(STEPS) < 0.9).astype(float)
    if kind == "even":
        return 0.5, (random.random(STEPS) < 0.5).astype(float)
    return 0.75, random.beta(3.0, 1.0, STEPS)


@pytest.mark.parametrize("kind", ["bernoulli", "even", "beta"])
def test_it_holds_at_every_step_in_95_of_100_runs(kind: str) -> None:
    random = np.random.default_rng(7)
    missed = 0
    for _ in range(RUNS):
        sequence, wrong = ConfidenceSequence(points=100), False
        mean, values = _values(kind, random)
        for value in values:
            sequence.add(value)
            low, high = sequence.interval
            wrong |= not low <= mean <= high
        missed += wrong
    assert missed <= 0.05 * RUNS


def test_an_interval_of_a_fixed_count_does_not() -> None:
    random, missed = np.random.default_rng(7), 0
    for _ in range(RUNS):
        mean, values = _values("even", random)
        right = np.cumsum(values)
        limits = [wilson(float(right[n]) / (n + 1), n + 1) for n in range(9, STEPS)]
        missed += any(not low <= mean <= high for low, high in limits)
    assert missed > 0.05 * RUNS


def test_it_narrows_and_has_both_ends() -> None:
    sequence = ConfidenceSequence()
    assert sequence.mean is None
    assert sequence.interval == (0.0, 1.0)
    random = np.random.default_rng(3)
    for value in random.random(3000) < 0.9:
        sequence.add(float(value))
    low, high = sequence.interval
    assert low < sequence.mean < high
    assert high - low < 0.05


def test_it_goes_on_where_it_was() -> None:
    whole, part = ConfidenceSequence(points=50), ConfidenceSequence(points=50)
    values = np.random.default_rng(1).random(60)
    for value in values[:30]:
        whole.add(value)
        part.add(value)
    part = ConfidenceSequence.unpack(part.pack(), points=50)
    for value in values[30:]:
        whole.add(value)
        part.add(value)
    assert part.pack() == whole.pack()
    assert part.interval == whole.interval
    with pytest.raises(ValueError, match="other capital"):
        ConfidenceSequence.unpack(part.pack(), points=60)
