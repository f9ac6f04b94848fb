"""The waiting time in the M/D/1 queue against closed forms, Erlang's own sum, and simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate

from inferway.scheduling.sa import at_departures, later_than


@pytest.mark.parametrize("load", [0.05, 0.3, 0.7, 0.9, 0.97])
def test_its_mean_is_pollaczek_and_khinchins(load: float) -> None:
    assert later_than(0.0, load, 1.0) == pytest.approx(load, abs=1e-14)
    # Beyond 15 / (1 - load) some exp(-30) is left. At whole numbers it has kinks, which fade.
    ends = [*range(20), *range(20, math.ceil(15 / (1 - load)) + 5, 5)]
    pieces = (
        integrate.quad(later_than, low, high, args=(load, 1.0), epsabs=1e-12)[0]
        for low, high in pairwise(ends)
    )
    assert sum(pieces) == pytest.approx(load / (2 * (1 - load)), rel=1e-7)


@pytest.mark.parametrize("load", [0.2, 0.8])
def test_it_is_erlangs_sum(load: float) -> None:
    """With exact fractions his terms cancel without a loss; floats lose all digits in the tail."""
    for wait in (Fraction(1, 2), Fraction(5, 2), Fraction(13), Fraction(81, 4)):
        rate, found = Fraction(load), Fraction(0)
        for k in range(math.floor(wait) + 1):
            lag = rate * (wait - k)
            power = sum((lag**n / math.factorial(n) for n in range(120)), Fraction(0))  # e ** lag
            found += (-lag) ** k / math.factorial(k) * power
        exact = 1 - (1 - rate) * found
        assert later_than(float(wait), load, 1.0) == pytest.approx(float(exact), abs=1e-13)


def test_numbers_in_the_queue() -> None:
    found = at_departures(0.5, 60)
    # 1 - rho, (1 - rho)(e^rho - 1), (1 - rho) e^rho (e^rho - 1 - rho) (Kleinrock I, 5.6).
    e = math.exp(0.5)
    assert found[:3] == pytest.approx([0.5, 0.5 * (e - 1), 0.5 * e * (e - 1.5)], rel=1e-13)
    assert found.sum() == pytest.approx(1.0, abs=1e-14)
    assert found @ np.arange(60) == pytest.approx(0.5 + 0.25 / (2 * 0.5), rel=1e-12)
    assert (at_departures(0.99, 3000) > 0).all()


def test_against_simulation() -> None:
    generator = np.random.default_rng(4)
    gaps = generator.exponential(1 / 0.8, 1_000_000).tolist()
    waits, wait = [], 0.0
    for gap in gaps:
        waits.append(wait)
        wait = max(0.0, wait + 1.0 - gap)
    for limit in (0.5, 1.0, 2.25, 6.0):
        share = np.mean(np.array(waits) > limit)
        assert share == pytest.approx(later_than(limit, 0.8, 1.0), rel=0.03)


def test_edges() -> None:
    assert later_than(-0.1, 0.5, 1.0) == 1.0
    assert later_than(3.0, 0.0, 1.0) == 0.0
    assert later_than(3.0, 1.0, 1.0) == 1.0
    assert later_than(200.0, 0.5, 1.0) == pytest.approx(0.0, abs=1e-15)
    # Seconds or milliseconds.
    assert later_than(250.0, 0.018, 42.9) == pytest.approx(later_than(0.25, 18.0, 0.0429))
