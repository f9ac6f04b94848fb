"""What actor and critic learn from, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from burst import SMALL, control

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.learning.ppo import (  # noqa: E402
    Learner,
    Potential,
    RunningScale,
    advantages_of,
    symlog,
)
from inferway.learning.site import SlottedSites  # noqa: E402

DEADLINE_S = 0.3


def test_advantages_are_the_sums_of_eq_11_with_gamma() -> None:
    random = np.random.default_rng(1)
    rewards, values = random.normal(size=(12, 3)), random.normal(size=(13, 3))
    gamma, trace = 0.9, 0.7
    expected = np.zeros_like(rewards)
    for t in range(12):
        for k in range(t, 12):
            difference = rewards[k] + gamma * values[k + 1] - values[k]
            expected[t] += (gamma * trace) ** (k - t) * difference
    np.testing.assert_allclose(advantages_of(rewards, values, gamma, trace), expected)


def test_advantages_of_the_true_values_vanish() -> None:
    """A constant reward r is worth r / (1 - gamma) for ever: nothing ends."""
    rewards, values = np.full((50, 2), 3.0), np.full((51, 2), 3.0 / (1 - 0.99))
    np.testing.assert_allclose(advantages_of(rewards, values, 0.99, 0.95), 0, atol=1e-10)


def test_running_scale_is_the_deviation_of_discounted_sums() -> None:
    random = np.random.default_rng(2)
    rewards = random.normal(3.0, 2.0, (60, 4))
    scale = RunningScale(4, 0.9)
    assert scale.value == 1.0
    for part in np.split(rewards, [7, 20]):
        scale.see(part)
    sums, row = [], np.zeros(4)
    for reward in rewards:
        row = 0.9 * row + reward
        sums.append(row)
    assert scale.value == pytest.approx(np.std(sums), rel=1e-12)


def test_symlog() -> None:
    values = np.array([-np.e + 1, 0.0, 2 * (np.e - 1)])
    np.testing.assert_allclose(symlog(values, 1.0)[:2], [-1.0, 0.0])
    assert symlog(values, 2.0)[2] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "weight", "expected"),
    [(None, 1.0, 0.0), (-1.0, 2.0, 2 * 0.7769), (0.5, 2.0, 1.0)],
)
def test_baseline(given: float | None, weight: float, expected: float) -> None:
    learner = Learner(control(accuracy_weight=weight), replace(SMALL, baseline=given))
    assert learner.baselines == [expected]


@pytest.mark.parametrize("kind", ["queues", "outcomes"])
def test_potential_counts_the_requests_that_are_there(kind: str) -> None:
    place = control()
    sites = SlottedSites(place, count=64, seed=3)
    routing = np.tile([0.1, 0.2, 0.3, 0.4], (64, 1))
    for _ in range(40):
        sites.step(routing, None)
    seen = sites.observation
    gain, mean_s = [0.7769, 0.7769, 0.8278, 0.8278], [0.0107, 0.0107, 0.0429, 0.0429]
    expected, late = np.zeros(64), 0
    for e, row in enumerate(seen):
        for s in range(4):
            part = row[s * 33 : (s + 1) * 33]
            queue = int(part[:16].argmax())
            for i in range(queue):
                age_s = part[17 + i] * 15 * 0.0429
                sojourn_s = age_s + (i + 1) * mean_s[s] - part[16] * mean_s[s]
                timely = sojourn_s <= DEADLINE_S or kind == "queues"
                expected[e] += gain[s] if timely else -1.0
                late += not timely
    assert (late > 0) == (kind == "outcomes")
    np.testing.assert_allclose(Potential(kind, place).of(seen), expected, atol=1e-5)


def test_outcomes_are_foreseen() -> None:
    """With fixed service times, what is predicted of the requests at a site is what they bring."""
    place = control()
    sites = SlottedSites(place, count=50, seed=4)
    heavy = np.tile([0.0, 0.0, 0.5, 0.5], (50, 1))
    for _ in range(30):
        sites.step(heavy, None)
    promised = Potential("outcomes", place).of(sites.observation)
    light = np.tile([0.5, 0.5, 0.0, 0.0], (50, 1))
    sites.clear()
    paid = sites.step(light, None)
    # What waited at the heavy servers is answered within the slot: 15 of 42.9 ms are 0.64 s.
    counts = sites.counts
    assert (counts.arrived[:, 0].sum(), counts.sent[:, 0].sum()) != (0, 0)
    own = 0.8278 * counts.answered[:, :, 1, 0].sum(1) - counts.answered[:, :, 1, 1].sum(1)
    assert np.abs(promised - own).max() < 1e-4
    assert paid.shape == (50,)
