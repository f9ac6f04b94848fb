"""The bounds where classes share devices: cases by hand, duality, and what must not change them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleets import any_fleets, fleet, loads, targets
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.dispatch import (
    max_escalation_rate,
    max_rate,
    solve,
    solve_escalation,
)
from inferway.dispatch.bounds import device_load
from inferway.site import ConfidenceTables, Fleet
from inferway.site.devices import DeviceSlots


def sharing(of: Fleet, slots: list[int], device: list[int], taken: list[int]) -> Fleet:
    """A fleet whose classes run on these devices, with so many slots a run."""
    count = len(slots)
    return replace(
        of,
        devices=DeviceSlots(
            names=tuple(f"d{one}" for one in range(count)),
            slots=np.array(slots),
            exclusive=np.zeros(count, bool),
            overhead_s=np.zeros(count),
            device=np.array(device),
            taken=np.array(taken),
        ),
    )


def two(slots: int, taken: int = 1) -> Fleet:
    """Four quick servers of 10 ms and four of 20 ms that share so many slots."""
    return sharing(fleet([100.0, 50.0], [0.8, 0.9], [4, 4]), [slots], [0, 0], [1, taken])


@st.composite
def sharing_fleets(draw: st.DrawFn) -> Fleet:
    of = draw(any_fleets())
    classes = len(of.rate)
    devices = draw(st.integers(1, 3))
    within = st.lists(st.integers(-1, devices - 1), min_size=classes, max_size=classes)
    each = st.lists(st.integers(1, 3), min_size=classes, max_size=classes)
    slots = st.lists(st.integers(3, 9), min_size=devices, max_size=devices)
    return sharing(of, draw(slots), draw(within), draw(each))


def test_cores_are_shared_by_hand() -> None:
    # Half of each: 15 ms of one of four cores a request, or 25 ms where the slow one takes two.
    assert max_rate(two(4), 0.85) == pytest.approx(4 / 0.015)
    assert max_rate(two(4, taken=2), 0.85) == pytest.approx(4 / 0.025)
    # Servers are the limit where there are cores enough: 200/s of the slow ones.
    assert max_rate(two(64), 0.85) == pytest.approx(400)
    assert max_rate(two(4), None) == pytest.approx(400)


def test_what_requests_take_before_they_run_counts_once() -> None:
    of = two(4)
    assert of.devices is not None
    busy = replace(of, devices=of.devices._replace(overhead_s=np.array([5e-3])))
    assert max_rate(busy, 0.85) == pytest.approx(4 / 0.020)
    assert max_escalation_rate(sure(busy), 0.85) == pytest.approx(4 / (0.005 + 0.014))


def test_a_full_device_makes_requests_slower() -> None:
    # A quick class alone on a device, and a slower one, as accurate, on another.
    of = fleet([100.0, 50.0], [0.9, 0.9], [9, 9])
    apart = sharing(of, [1, 9], [0, 1], [1, 1])
    optimum = solve(apart, 0.9, 150.0)
    assert optimum.shares == pytest.approx([2 / 3, 1 / 3])
    assert optimum.response_time_s == pytest.approx((0.010 * 2 + 0.020) / 3)
    # One more core a request per second would move 100/s: 10 ms each, of 150.
    assert optimum.device_price == pytest.approx([-(2 / 3) * 0.010, 0.0])


def sure(of: Fleet) -> Fleet:
    """The quick class is right at 0.6 in its unsure half, where the slow one is at 0.85."""
    expected = np.array([[[0.6, 0.85], [1.0, 0.95]], [[0.8, 0.9], [0.8, 0.9]]])
    mass, edges = np.array([[0.5, 0.5], [0.0, 0.0]]), np.array([[0.6], [np.inf]])
    return replace(of, confidence=ConfidenceTables(mass, expected, edges))


def test_second_answers_take_slots_by_hand() -> None:
    # A fifth asked again reaches 0.85, for 10 + 4 ms of one of four cores; a mix takes 15.
    assert max_escalation_rate(sure(two(4)), 0.85) == pytest.approx(4 / 0.014)
    optimum = solve_escalation(sure(two(4)), 0.85, 100.0)
    assert optimum.first == pytest.approx([1.0, 0.0])
    assert optimum.response_time_s == pytest.approx(0.014)


@settings(max_examples=60, deadline=None)
@given(sharing_fleets(), targets, loads)
def test_duality(of: Fleet, where: float, load: float) -> None:
    target = where * float(of.accuracy.max())
    rate = load * max_rate(of, target)
    optimum, takes = solve(of, target, rate), device_load(of) * rate
    scale = float((1 / of.rate).max())
    assert optimum.shares.sum() == pytest.approx(1)
    assert (takes @ optimum.shares <= 1 + 1e-8).all()
    assert (optimum.device_price <= 1e-9 * scale).all()
    reduced = (
        1 / of.rate
        - optimum.level_s
        - optimum.price_s * (of.accuracy - target)
        - optimum.capacity_price
        - optimum.device_price @ takes
    )
    terms = 1 + optimum.price_s / scale - optimum.device_price.sum() / scale
    assert (reduced >= -1e-7 * scale * terms).all()
    told = optimum.level_s + optimum.room @ optimum.capacity_price + optimum.device_price.sum()
    assert told == pytest.approx(optimum.response_time_s, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(sharing_fleets(), st.integers(0, 100).map(lambda percent: percent / 100), loads)
def test_ample_slots_change_nothing_and_fewer_never_help(
    of: Fleet, where: float, load: float
) -> None:
    target = where * float(of.accuracy.max())
    alone = max_rate(replace(of, devices=None), target)
    assert of.devices is not None
    ample = replace(of, devices=of.devices._replace(slots=of.devices.slots * 1000))
    few = max_rate(of, target)
    assert max_rate(ample, target) == pytest.approx(alone, rel=1e-8)
    assert few <= alone * (1 + 1e-8)
    # Nobody is sure, so that asking twice gains nothing.
    unsure, rate = replace(of, confidence=None), load * few
    assert max_escalation_rate(unsure, target) == pytest.approx(few, rel=1e-7)
    one, other = solve(of, target, rate), solve_escalation(unsure, target, rate)
    assert other.response_time_s == pytest.approx(one.response_time_s, rel=1e-6)
