"""Fleets: order, totals, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.site import Fleet, fleet_of

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_classes_come_fastest_first() -> None:
    fleet = Fleet(("slow", "quick"), np.array([1.0, 4.0]), np.array([0.9, 0.5]), np.array([3, 2]))
    assert fleet.variants == ("quick", "slow")
    assert fleet.accuracy.tolist() == [0.5, 0.9]
    assert fleet.first.tolist() == [0, 2, 5]
    assert fleet.capacity.tolist() == [8.0, 3.0]
    assert fleet.servers == 5
    assert fleet.ordered


def test_an_unknown_accuracy_counts_as_none_at_all() -> None:
    fleet = Fleet(
        ("slow", "quick"), np.array([1.0, 4.0]), np.array([np.nan, 0.5]), np.array([3, 2])
    )
    for one in (fleet, replace(fleet, buffer=1)):
        assert one.accuracy.tolist() == [0.5, 0.0]
        assert one.graded.tolist() == [True, False]
        assert one.grades == [0.5, None]


def test_a_dominated_class_is_not_ordered() -> None:
    fleet = Fleet(("a", "b"), np.array([2.0, 1.0]), np.array([0.8, 0.8]), np.array([1, 1]))
    assert not fleet.ordered


@pytest.mark.parametrize(
    ("rate", "accuracy", "count", "sentence"),
    [
        ([0.0], [0.5], [1], "service rates are above 0"),
        ([np.inf], [0.5], [1], "service rates are above 0"),
        ([1.0], [95.0], [1], r"accuracies are in 0\.\.1"),
        ([1.0], [0.5], [0], "at least one server"),
        ([1.0, 2.0], [0.5], [1], "shape"),
    ],
)
def test_bad_numbers_are_refused(
    rate: list[float], accuracy: list[float], count: list[int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Fleet(("a",), np.array(rate), np.array(accuracy), np.array(count))


def test_the_fleet_of_a_deployment() -> None:
    fleet = fleet_of(inferway.load(EXAMPLES / "paper-fleet.yaml"), "classify")
    assert fleet.rate == pytest.approx([2, 1, 0.9, 0.1])
    assert fleet.accuracy == pytest.approx([0.70, 0.75, 0.80, 1.0])
    assert fleet.count.tolist() == [16] * 4


def test_unknown_tasks_and_nodes_are_refused() -> None:
    deployment = inferway.load(EXAMPLES / "paper-fleet.yaml")
    with pytest.raises(ValueError, match="unknown task 'nothing'; the file has classify"):
        fleet_of(deployment, "nothing")
    with pytest.raises(ValueError, match="unknown node 'nowhere'"):
        fleet_of(deployment, "classify", "nowhere")


def test_energies_follow_their_classes() -> None:
    fleet = Fleet(
        ("slow", "quick"),
        np.array([1.0, 4.0]),
        np.array([0.9, 0.5]),
        np.array([3, 2]),
        energy=np.array([5.0, 1.0]),
    )
    assert fleet.energy.tolist() == [1.0, 5.0]
    plain = fleet_of(inferway.load(EXAMPLES / "paper-fleet.yaml"), "classify")
    assert plain.energy.tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="energies are 0 J or more"):
        Fleet(("a",), np.array([1.0]), np.array([0.5]), np.array([1]), energy=np.array([-1.0]))
