"""Confidence tables: their layout in a fleet, and how they are made of a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.catalog.profile import ConfidenceBins, PairBins
from inferway.deployment import Deployment, Difficulty, Task
from inferway.site import ConfidenceTables, Fleet, fleet_of
from inferway.site.confidence import confidence_tables

FILE = """
tasks:
  read:
    variants:
      large: {accuracy: 0.9, service: {mean: 20 ms}}
      small: {accuracy: 0.6, service: {mean: 1 ms}}
      blind: {accuracy: 0.7, service: {mean: 5 ms}}
nodes:
  here: {instances: {read/large: 1, read/small: 1, read/blind: 1}}
"""


def bins(accuracy: tuple[float, ...], mass: tuple[float, ...]) -> ConfidenceBins:
    edges = tuple(np.linspace(0.0, 1.0, len(mass) + 1)[1:-1].tolist())
    observed = (None,) * len(mass)
    return ConfidenceBins("probability", None, False, edges, accuracy, mass, observed, 0.01)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    file = tmp_path / "read.yaml"
    file.write_text(FILE)
    return inferway.load(file)


def profiled(deployment: Deployment, *pairs: PairBins) -> Task:
    task = deployment.tasks["read"]
    variants = dict(task.variants)
    variants["small"] = replace(
        variants["small"], confidence_bins=bins((0.2, 0.5, 0.8), (0.25, 0.25, 0.5))
    )
    variants["large"] = replace(variants["large"], confidence_bins=bins((0.7, 0.95), (0.5, 0.5)))
    return replace(task, variants=variants, pairs=pairs)


PAIR = PairBins("small", "large", (0.2, 0.5, 0.8), (0.6, 0.9, 0.95))
NAMES = ("large", "small", "blind")
PLAIN = np.array([0.9, 0.6, 0.7])


def test_bins_and_pairs_of_a_profile_are_laid_out(deployment: Deployment) -> None:
    tables = confidence_tables(profiled(deployment, PAIR), NAMES, PLAIN)
    assert tables is not None
    assert tables.mass.tolist() == [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 0.0]]
    assert tables.edges.tolist() == [[0.5, np.inf], [1 / 3, 2 / 3], [np.inf, np.inf]]
    assert tables.sure.tolist() == [True, True, False]
    # Nobody has measured `large` against `blind`, nor what `blind` is sure of.
    assert tables.expected[0, :2, 2] == pytest.approx([0.7, 0.7])
    assert tables.expected[2] == pytest.approx(np.broadcast_to(PLAIN, (3, 3)))
    assert tables.expected[1, :, 0][0] < tables.expected[1, :, 0][1] < tables.expected[1, :, 0][2]


def test_bins_are_moved_to_the_mean_that_counts_for_the_variant(deployment: Deployment) -> None:
    tables = confidence_tables(profiled(deployment, PAIR), NAMES, PLAIN)
    assert tables is not None
    assert tables.expected_accuracy() == pytest.approx(PLAIN, abs=1e-12)
    assert tables.mass[1] @ tables.expected[1] == pytest.approx(PLAIN, abs=1e-12)
    # All bins by the same in log-odds.
    own = tables.expected[1, :, 1]
    moved = np.log(own / (1 - own)) - np.log(np.array([0.2, 0.5, 0.8]) / [0.8, 0.5, 0.2])
    assert moved == pytest.approx(moved[0])
    assert moved[0] > 0  # the bins' own mean is 0.575


def test_certain_variants_are_right_in_each_bin(deployment: Deployment) -> None:
    task = profiled(deployment, PAIR)
    tables = confidence_tables(task, NAMES, np.array([1.0, 0.6, 0.7]))
    assert tables is not None
    assert tables.expected[1, :, 0].tolist() == [1.0] * 3


def test_a_copy_elsewhere_answers_as_the_one_here(deployment: Deployment) -> None:
    task = profiled(deployment, PAIR)
    names = ("small", "small")
    tables = confidence_tables(task, names, np.array([0.6, 0.6]))
    assert tables is not None
    assert (tables.expected[0, :, 0] == tables.expected[0, :, 1]).all()
    assert (tables.mass[0] == tables.mass[1]).all()


def test_without_bins_or_accuracy_there_are_no_tables(deployment: Deployment) -> None:
    task = deployment.tasks["read"]
    assert confidence_tables(task, NAMES, PLAIN) is None
    assert fleet_of(deployment, "read").confidence is None
    ungraded = np.array([np.nan, np.nan, 0.7])
    assert confidence_tables(profiled(deployment), NAMES, ungraded) is None


def test_the_fleet_of_a_deployment_has_them_in_its_order(deployment: Deployment) -> None:
    fleet = fleet_of(replace(deployment, tasks={"read": profiled(deployment)}), "read")
    assert fleet.variants == ("small", "blind", "large")
    assert fleet.confidence is not None
    assert fleet.confidence.sure.tolist() == [True, False, True]
    assert fleet.confidence.expected_accuracy() == pytest.approx(fleet.accuracy)


def test_a_difficulty_stands_for_what_is_not_measured(deployment: Deployment) -> None:
    task = replace(deployment.tasks["read"], difficulty=Difficulty(0.9, 0.5))
    fleet = fleet_of(replace(deployment, tasks={"read": task}), "read")
    assert fleet.confidence is not None
    assert fleet.confidence.mass == pytest.approx(np.full((3, 20), 0.05))
    assert fleet.confidence.expected_accuracy() == pytest.approx([0.6, 0.7, 0.9])
    small, blind, large = (fleet.confidence.expected[0, 0, j] for j in range(3))
    assert small < 0.1 < blind < large
    # A copy elsewhere errs where the one here does.
    twice = confidence_tables(task, ("small", "small"), np.array([0.6, 0.6]))
    assert twice is not None
    assert twice.expected[0, :, 1].tolist() == twice.expected[0, :, 0].tolist()
    assert twice.edges[1, [0, -1]] == pytest.approx([0.05, 0.95])


def tables_of(accuracy: list[float]) -> ConfidenceTables:
    """Two bins of the same mass for each class, told apart by the class's place."""
    classes = len(accuracy)
    mass = np.full((classes, 2), 0.5)
    expected = np.broadcast_to(np.array(accuracy), (classes, 2, classes)).copy()
    expected[:, 0, :] -= 0.01 * np.arange(1, classes + 1)[:, None]
    expected[:, 1, :] += 0.01 * np.arange(1, classes + 1)[:, None]
    return ConfidenceTables(mass, expected, np.arange(classes, dtype=float)[:, None])


def test_a_fleet_orders_its_tables_along_with_its_classes() -> None:
    rate, accuracy, count = np.array([1.0, 4.0]), np.array([0.9, 0.5]), np.array([3, 2])
    fleet = Fleet(("slow", "quick"), rate, accuracy, count, confidence=tables_of([0.9, 0.5]))
    for one in (fleet, replace(fleet, buffer=1)):
        assert one.confidence is not None
        assert one.confidence.edges.tolist() == [[1.0], [0.0]]
        assert one.confidence.expected[0, 0].tolist() == pytest.approx([0.48, 0.88])
        assert one.confidence.expected[1, 1].tolist() == pytest.approx([0.51, 0.91])
        assert one.confidence.expected_accuracy() == pytest.approx([0.5, 0.9])
        assert all(column.flags.c_contiguous for column in one.confidence)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("mass", [[0.5, 0.6], [0.5, 0.5]], "sum to 1"),
        ("mass", [[1.5, -0.5], [0.5, 0.5]], "sum to 1"),
        ("mass", [[1.0], [1.0]], "have shapes"),
        ("mass", [1.0, 1.0], "have shapes"),
        ("expected", np.full((2, 2, 2), 1.1), "expected accuracies"),
        ("expected", np.full((2, 2, 2), np.nan), "expected accuracies"),
        ("edges", [[np.nan], [0.0]], "do not fall"),
        ("edges", [[0.0, 1.0], [0.0, 1.0]], "have shapes"),
    ],
)
def test_bad_tables_are_refused(field: str, value: object, sentence: str) -> None:
    tables = tables_of([0.5, 0.9])._replace(**{field: np.array(value)})
    rate, accuracy, count = np.array([4.0, 1.0]), np.array([0.5, 0.9]), np.array([1, 1])
    with pytest.raises(ValueError, match=sentence):
        Fleet(("quick", "slow"), rate, accuracy, count, confidence=tables)


def test_edges_that_fall_are_refused() -> None:
    tables = ConfidenceTables(
        np.full((1, 3), 1 / 3), np.full((1, 3, 1), 0.5), np.array([[0.5, 0.4]])
    )
    with pytest.raises(ValueError, match="do not fall"):
        Fleet(("one",), np.array([1.0]), np.array([0.5]), np.array([1]), confidence=tables)
