"""Batches as files offer them, what predictions make of them, and their measured times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferway.deployment import Batch
from inferway.dispatch import Dispatcher
from inferway.dispatch.batching import Rule, foresee, least_s, most_per_s, rule_of
from inferway.dispatch.service_times import recall, remember
from inferway.site import Fleet

FLEET = Fleet(("a",), np.array([10.0]), np.array([0.7]), np.array([2]), buffer=8)
CURVE = Batch((1, 3, 5), (0.1, 0.2, 0.25), 3, 5)
KEYS = {"a": "sha256:a on cpu"}


def dispatcher(*, measure: bool = False) -> Dispatcher:
    made = Dispatcher(FLEET, "fastest-only", target=None, measure=measure)
    foresee(made.site, [CURVE])
    return made


def filled(count: int, rows: int = 1) -> Dispatcher:
    """A dispatcher whose first server has so many requests."""
    made = dispatcher()
    made.mark(1, False, 0.0)
    for _ in range(count):
        assert made.arrive(0.0, 0, rows=rows) == 0
    return made


def test_the_modified_neuts_rule_of_a_file() -> None:
    rule = rule_of(CURVE)
    assert rule == Rule((1, 3, 5), 3, 5)
    assert [rule.take(waiting) for waiting in (1, 2, 3, 4, 5, 9)] == [0, 0, 3, 4, 5, 5]
    assert [rule.rounded(rows) for rows in range(8)] == [0, 1, 1, 3, 3, 5, 5, 5]
    assert rule_of(None) == Rule((1,), 1, 1)
    assert rule_of(Batch((2, 4), (0.1, 0.2), 2, 4)).sizes == (1, 2, 4)


def test_predictions_start_from_the_file() -> None:
    made = dispatcher()
    made.arrive(0.0, 0, rows=4)
    assert made.predicted_service_s == pytest.approx(4 * 0.2 / 3)
    made.arrive(0.0, 0, rows=8)
    assert made.predicted_service_s == pytest.approx(0.25 + 0.2)  # in runs of 5 and 3


def test_what_servers_take_at_least_and_at_most_is_by_the_batches_that_they_form() -> None:
    site = dispatcher().site
    rule = rule_of(CURVE)
    assert (least_s(site, 0, rule), most_per_s(site, 0, rule)) == pytest.approx((0.2, 20.0))
    alone, few = Rule(), Rule((1, 3, 5), 1, 3)
    assert (least_s(site, 0, alone), most_per_s(site, 0, alone)) == pytest.approx((0.1, 10.0))
    assert (least_s(site, 0, few), most_per_s(site, 0, few)) == pytest.approx((0.1, 15.0))


def test_a_batch_is_predicted_as_a_whole_and_leaves_one_by_one() -> None:
    made = filled(5)
    site = made.site
    made.begin(0, 3, 1.0)
    # Three together, then two one after the other.
    assert site.ends_s[0] == pytest.approx(1.2)
    assert site.free_s[0] == pytest.approx(1.4)
    for left in (4, 3, 2):
        made.finish(0, 1.2, 0.2)
        assert site.queue[0] == left
        # What was served along takes no more time.
        assert site.free_s[0] == pytest.approx(1.2 + (0.1 * left if left == 2 else 0.1 + 0.2))
    made.begin(0, 1, 1.2)
    assert (site.ends_s[0], site.free_s[0]) == pytest.approx((1.3, 1.4))


def test_a_server_that_waits_could_start_now() -> None:
    made = filled(2)
    site = made.site
    made.begin(0, 0, 1.0)
    assert np.isnan(site.started_s[0])
    assert site.free_s[0] == pytest.approx(1.2)
    made.arrive(5.0, 0)
    assert site.free_s[0] == pytest.approx(5.3)
    made.begin(0, 3, 5.0)
    assert (site.started_s[0], site.ends_s[0], site.free_s[0]) == pytest.approx((5.0, 5.2, 5.2))


def test_a_batch_that_loses_one_before_it_starts_is_a_smaller_batch() -> None:
    for position in (0, 1, 2):
        made = filled(4)
        site = made.site
        made.begin(0, 3, 1.0)
        made.withdraw(0, position, 1.0)
        made.begin(0, 2, 1.0)
        assert site.ends_s[0] == pytest.approx(1.2)  # two rows, at single times
        assert site.free_s[0] == pytest.approx(1.3)


def test_a_batch_that_falls_apart_is_served_one_by_one() -> None:
    made = filled(4)
    made.begin(0, 3, 1.0)
    made.begin(0, 1, 2.0)
    assert made.site.ends_s[0] == pytest.approx(2.1)
    assert made.site.free_s[0] == pytest.approx(2.4)


def test_rows_count_in_batches() -> None:
    made = filled(2, rows=2)
    made.begin(0, 2, 1.0)
    assert made.site.ends_s[0] == pytest.approx(1.0 + 4 * 0.2 / 3)


def test_times_are_learned_by_size_and_sizes_unseen_keep_their_part() -> None:
    made = dispatcher(measure=True)
    made.mark(1, False, 0.0)
    made.arrive(0.0, 0)
    made.finish(0, 0.3, 0.3)  # three times the file's
    row_s = made.site.row_s[0]
    assert row_s[[0, 2, 3]] == pytest.approx([0.3, 0.2, 0.15])
    for _ in range(3):
        made.arrive(1.0, 0)
    made.begin(0, 3, 1.0)
    for measured in (3, -1, -1):
        made.finish(0, 1.9, 0.9, measured)
    assert made.site.measured[0].tolist() == [1, 0, 1, 0, 0, 0, 0, 0]
    assert row_s[[0, 2]] == pytest.approx([0.3, 0.3])
    assert row_s[3] == pytest.approx(0.225)


def test_times_are_kept_by_instance_and_size(tmp_path: Path) -> None:
    made = dispatcher(measure=True)
    made.mark(1, False, 0.0)
    for server, service_s in ((0, 0.3), (1, 0.9)):
        made.mark(server, True, 0.0)
        made.mark(1 - server, False, 0.0)
        for _ in range(3):
            assert made.arrive(0.0, 0) == server
        made.begin(server, 3, 0.0)
        for measured in (3, -1, -1):
            made.finish(server, 1.0, service_s, measured)
    remember(made, KEYS, tmp_path / "times.json")
    fresh = dispatcher(measure=True)
    assert recall(fresh, KEYS, tmp_path / "times.json") == ["a"]
    assert fresh.site.row_s[:, 2] == pytest.approx([0.1, 0.3])
    assert fresh.site.row_s[:, 0] == pytest.approx([0.1, 0.1])
