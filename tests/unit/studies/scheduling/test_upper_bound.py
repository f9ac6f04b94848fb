from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from inferway.studies.scheduling.burst import upper_bound
from inferway.studies.scheduling.deadlines import bound
from inferway.studies.scheduling.trial import evaluated

SITE = {"counts": (2, 2), "service_s": (0.0107, 0.0429), "accuracy": (0.7769, 0.8278)}


def test_the_bound_of_the_paper_s_site():
    assert bound() == pytest.approx(0.80895, abs=1e-5)
    without = upper_bound(180.0, deadline_s=0.0, lasts_s=1.0, **SITE)[0]
    # 2 / 0.0429 s of 180 requests a second, the rest at the light servers.
    assert without == pytest.approx(0.7769 + 0.0509 * (2 / 0.0429) / 180)
    assert upper_bound(10.0, deadline_s=0.3, lasts_s=5000.0, **SITE) == (0.8278, (0.0, 1.0))


def test_it_is_the_linear_program():
    random = np.random.default_rng(1)
    for _ in range(50):
        counts, service_s = random.integers(1, 4, 3), random.uniform(0.01, 0.1, 3)
        accuracy, rate = random.uniform(0.1, 1.0, 3), random.uniform(5, 300)
        most = counts / service_s * (1 + 0.2 / 10) / rate
        found = linprog(
            -accuracy, A_ub=np.ones((1, 3)), b_ub=[1.0], bounds=[(0, one) for one in most]
        )
        goodput, shares = upper_bound(
            rate,
            counts=counts,
            service_s=service_s,
            accuracy=accuracy,
            deadline_s=0.2,
            lasts_s=10.0,
        )
        assert goodput == pytest.approx(-found.fun)
        assert sum(shares) <= 1 + 1e-12


def test_more_than_all_can_be_served():
    goodput, shares = upper_bound(1e5, deadline_s=0.0, lasts_s=math.inf, **SITE)
    assert sum(shares) < 0.01
    assert goodput < 0.01


def test_deadline_keeps_below_it_and_near():
    found = evaluated("deadline", "map", 40_000, 3)
    assert bound() - 0.0005 <= found["goodput"] <= bound() + 0.0005
    assert found["violations"] < 1e-5
