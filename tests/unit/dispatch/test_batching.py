"""Batches as files offer them, what predictions make of them, and their measured times."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from inferway.deployment import Batch
from inferway.dispatch import Dispatcher
from inferway.dispatch.batching import Rule, foresee, least_s, most_per_s, row_s_of, rule_of
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
    assert [rule.rounded(rows) for rows in range(8)] == [0, 1, 1, 3, 3, 5, 5, 5]
    assert rule_of(None) == Rule((1,), 1, 1)
    assert rule_of(Batch((2, 4), (0.1, 0.2), 2, 4)).sizes == (1, 2, 4)


def test_predictions_start_from_the_file() -> None:
    made = dispatcher()
    made.arrive(0.0, 0, rows=4)
    assert made.predicted_service_s == pytest.approx(0.25)  # in a run like that of 5
    made.arrive(0.0, 0, rows=8)
    assert made.predicted_service_s == pytest.approx(0.25 + 0.2)  # in runs of 5 and 3


def test_what_servers_take_at_least_and_at_most_is_by_the_batches_that_they_form() -> None:
    row_s = row_s_of(dispatcher().site, 0)
    rule = rule_of(CURVE)
    assert (least_s(row_s, rule), most_per_s(row_s, rule)) == pytest.approx((0.2, 20.0))
    alone, few = Rule(), Rule((1, 3, 5), 1, 3)
    assert (least_s(row_s, alone), most_per_s(row_s, alone)) == pytest.approx((0.1, 10.0))
    assert (least_s(row_s, few), most_per_s(row_s, few)) == pytest.approx((0.1, 15.0))


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
        assert site.free_s[0] == pytest.approx(1.4)
    made.begin(0, 1, 1.2)
    assert (site.ends_s[0], site.free_s[0]) == pytest.approx((1.3, 1.4))


def test_a_server_that_waits_could_start_now() -> None:
    made = filled(2)
    site = made.site
    made.begin(0, 0, 1.0)
    assert np.isnan(site.started_s[0])
    assert site.free_s[0] == pytest.approx(1.2)
    made.arrive(5.0, 0)
    assert site.free_s[0] == pytest.approx(5.2)  # three run together
    made.begin(0, 3, 5.0)
    assert (site.started_s[0], site.ends_s[0], site.free_s[0]) == pytest.approx((5.0, 5.2, 5.2))


def test_a_batch_that_loses_one_before_it_starts_is_a_smaller_batch() -> None:
    for position in (0, 1, 2):
        made = filled(4)
        site = made.site
        made.begin(0, 3, 1.0)
        made.withdraw(0, position, 1.0)
        made.begin(0, 2, 1.0)
        assert site.ends_s[0] == pytest.approx(1.15)  # two rows, between one and three
        assert site.free_s[0] == pytest.approx(1.25)


def test_a_batch_that_falls_apart_waits_for_another() -> None:
    made = filled(4)
    made.begin(0, 3, 1.0)
    made.begin(0, 1, 2.0)
    assert made.site.ends_s[0] == pytest.approx(2.1)
    assert made.site.free_s[0] == pytest.approx(2.3)


def test_a_request_is_predicted_to_run_with_the_last_of_those_that_wait() -> None:
    made = filled(5)
    made.begin(0, 1, 1.0)  # four wait: of five, one run
    for waiting, expected in ((4, (0.1, 0.25)), (5, (0.1 + 0.25, 0.1))):
        assert made.site.waiting_rows[0] == waiting
        assert made.predict(0, 1, 1.0) == pytest.approx(expected)
        assert made.arrive(1.0, 0) == 0
    assert made.predict(0, 1, 1.04) == pytest.approx((0.06 + 0.25 + 0.1, 0.1))
    assert made.site.free_s[0] == pytest.approx(1.1 + 0.25 + 0.1)
    # Who leaves makes place for others, in a run that is shorter.
    made.withdraw(0, 6, 1.04)
    made.withdraw(0, 3, 1.04)
    assert made.site.free_s[0] == pytest.approx(1.1 + 0.2 + 0.1)


@pytest.mark.parametrize(
    ("waiting", "left_s", "formed"),
    [
        (1, np.inf, (1, 0.1)),
        (2, np.inf, (1, 0.1)),
        (4, np.inf, (3, 0.2)),
        (9, np.inf, (5, 0.25)),
        (9, 0.22, (3, 0.2)),  # the first is to be in time
        (9, 0.15, (1, 0.1)),
        (9, 0.05, (5, 0.25)),  # it cannot be
    ],
)
def test_a_batch_serves_the_most_per_second_that_keeps_the_first_in_time(
    waiting: int, left_s: float, formed: tuple[int, float]
) -> None:
    assert dispatcher().form(0, waiting, left_s) == pytest.approx(formed)


def test_sizes_that_serve_no_more_are_not_taken() -> None:
    made = Dispatcher(FLEET, "fastest-only", target=None)
    foresee(made.site, [Batch((1, 2, 4, 8), (0.1, 0.2, 0.3, 0.7), 1, 8)])
    assert [made.form(0, rows).rows for rows in (1, 2, 3, 4, 7, 8, 9)] == [1, 1, 1, 4, 4, 4, 4]


def test_rows_that_fill_no_size_are_padded_where_that_is_quicker() -> None:
    made = Dispatcher(FLEET, "fastest-only", target=None)
    batch = Batch((1, 4, 8), (0.1, 0.16, 0.2), 1, 8, pad=True)
    foresee(made.site, [batch])
    # Of two in a run of four 12.5/s, of one alone 10/s; of five in one of eight 25/s, as of four.
    taken = [made.form(0, rows) for rows in (1, 2, 5, 6, 8)]
    run = [(one.rows, rule_of(batch).padded(one.rows)) for one in taken]
    assert run == [(1, 1), (2, 4), (4, 4), (6, 8), (8, 8)]
    assert [one.run_s for one in taken] == pytest.approx([0.1, 0.16, 0.16, 0.2, 0.2])


def test_a_batch_waits_for_more_no_longer_than_its_first_can_be_in_time() -> None:
    made = Dispatcher(FLEET, "fastest-only", target=None)
    batch = Batch((1, 4), (0.1, 0.2), 1, 4, wait_s=0.5)
    foresee(made.site, [batch])
    form, rule = partial(made.form, 0), rule_of(batch)
    for rows, latest_s, until_s in (
        (2, np.inf, 3.5),
        (2, 3.4, 3.3),  # a run of one takes 0.1 s
        (4, np.inf, -np.inf),  # no batch could be better
        (9, np.inf, -np.inf),
    ):
        assert rule.form(form, rows, 3.0, 3.0, latest_s)[1] == pytest.approx(until_s)
    assert rule.form(form, 2, 3.5, 3.0, np.inf)[1] == -np.inf


def test_rows_count_in_batches() -> None:
    made = filled(2, rows=2)
    made.begin(0, 2, 1.0)
    assert made.site.ends_s[0] == pytest.approx(1.0 + 0.25)


def test_times_are_learned_by_size_and_sizes_unseen_keep_their_part() -> None:
    made = dispatcher(measure=True)
    made.mark(1, False, 0.0)
    made.arrive(0.0, 0)
    made.finish(0, 0.3, 0.3)  # three times the file's
    row_s = made.site.row_s[0]
    assert row_s[[0, 2, 3]] == pytest.approx([0.3, 3 * 0.25 / 4, 3 * 0.25 / 8])
    for _ in range(3):
        made.arrive(1.0, 0)
    made.begin(0, 3, 1.0)
    for measured in (3, -1, -1):
        made.finish(0, 1.9, 0.9, measured)
    assert made.site.measured[0].tolist() == [1, 0, 1, 0, 0, 0, 0, 0]
    # A run of two is known to take 0.45 s, one of three 0.9 s, so one of four 1.35 s.
    assert row_s[[0, 2]] == pytest.approx([0.3, 1.35 / 4])
    assert row_s[3] == pytest.approx(3 * 0.25 / 8 * 1.35 / 0.75)


def test_what_is_learned_goes_no_further_than_what_was_seen() -> None:
    made = dispatcher(measure=True)
    made.mark(1, False, 0.0)
    generator = np.random.default_rng(1)
    for at in range(200):
        made.arrive(float(at), 0)
        made.finish(0, at + 0.5, 0.3 * generator.uniform(0.99, 1.01))
        # The first steps are large; times that differ by a hundredth stay within it.
        assert abs(made.site.row_s[0, 0] / 0.3 - 1.0) <= 0.0101


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
    assert fresh.site.row_s[:, 2] == pytest.approx([0.45 / 4, 1.65 / 4])
    assert fresh.site.row_s[:, 0] == pytest.approx([0.1, 0.1])
