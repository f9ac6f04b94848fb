"""The cascade that `escalate` is held against: its threshold, and whom it asks."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.dispatch.bounds import UnreachableError
from inferway.site import ACCEPT, ALL_CLASSES, Answer, Fleet, Request, empty_site
from inferway.site.confidence import ConfidenceTables, difficulty_tables
from inferway.studies.queueing.cascade import Cascade


def two_classes() -> Fleet:
    """A fast class that is right in 0.4, 0.8 or 1.0 of its answers, and a slow one in 0.9."""
    mass = np.array([[0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
    expected = np.full((2, 3, 2), 0.9)
    expected[0, :, 0] = 0.4, 0.8, 1.0
    expected[1, :, 0] = 0.8
    tables = ConfidenceTables(mass, expected, np.array([[0.3, 0.6], [np.inf, np.inf]]))
    return Fleet(
        ("fast", "slow"),
        np.array([100.0, 10.0]),
        np.array([0.8, 0.9]),
        np.array([1, 1]),
        confidence=tables,
    )


def built(target: float) -> Cascade:
    return Cascade.build(two_classes(), target=target, rate_per_s=None)


def test_a_class_that_is_accurate_enough_is_asked_alone() -> None:
    cascade = built(0.8)
    assert (cascade.first, cascade.second) == (0, 0)
    assert cascade.level < 0.0


def test_the_bin_at_the_threshold_is_asked_again_in_part() -> None:
    # The first bin gains 0.25 * 0.5 = 0.125 if all of it is asked again.
    below = built(0.85)
    assert (below.first, below.second, below.level) == (0, 1, 0.4)
    assert below.share == pytest.approx(0.05 / 0.125)
    # The second one 0.25 * 0.1 = 0.025 more.
    above = built(0.93)
    assert above.level == 0.8
    assert above.share == pytest.approx(0.005 / 0.025)


def test_no_cascade_reaches_more_than_all_its_gains() -> None:
    assert built(0.95).share == pytest.approx(1.0)
    with pytest.raises(UnreachableError, match=r"0\.951"):
        built(0.951)


def test_no_pair_and_threshold_takes_less_service() -> None:
    service_s, accuracy = np.array([0.5, 1.0, 1.1, 10.0]), np.array([0.7, 0.75, 0.8, 1.0])
    tables = difficulty_tables(accuracy, 0.8, 0.8)
    fleet = Fleet(tuple("abcd"), 1 / service_s, accuracy, np.ones(4, int), confidence=tables)
    cascade = Cascade.build(fleet, target=0.78, rate_per_s=None)
    mass, expected = tables.mass, tables.expected

    def cost(i: int, j: int, bins: int) -> tuple[float, float]:
        """Service time and accuracy where so many of the least sure bins are asked again."""
        gain = expected[i, :bins, j] - expected[i, :bins, i]
        asked = float(mass[i, :bins].sum())
        return service_s[i] + asked * service_s[j], accuracy[i] + float(mass[i, :bins] @ gain)

    whole = [cost(i, j, bins) for i in range(4) for j in range(4) if i != j for bins in range(21)]
    least_s = min(time_s for time_s, reached in whole if reached >= 0.78)
    i, j = cascade.first, cascade.second
    before = int((expected[i, :, i] < cascade.level - 1e-12).sum())
    own_s, reached = (
        (1 - cascade.share) * less + cascade.share * more
        for less, more in zip(cost(i, j, before), cost(i, j, before + 1), strict=True)
    )
    assert reached == pytest.approx(0.78)
    assert own_s <= least_s + 1e-12


def test_it_asks_again_below_the_threshold_and_once() -> None:
    cascade, site = built(0.93), empty_site(two_classes(), 0.93, 8)
    request = Request(0.0, np.inf, 0.0, 0, 1, ALL_CLASSES, np.ones(2, bool), False)
    assert cascade.choose(site, request, 7) == 0

    def settled(own: float, answers: int, draw: int) -> int:
        expected = np.array([own, 0.9])
        return cascade.settle(site, request, Answer(0, expected, answers), draw)

    assert {settled(0.4, 1, draw) for draw in range(50)} == {1}
    assert {settled(1.0, 1, draw) for draw in range(50)} == {ACCEPT}
    assert {settled(0.8, 1, draw) for draw in range(50)} == {1, ACCEPT}
    assert {settled(0.4, 2, draw) for draw in range(50)} == {ACCEPT}
