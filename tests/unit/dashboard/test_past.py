"""The last minutes of a task, from a server's rows."""

from __future__ import annotations

import numpy as np
import pytest
from lately import SURE, fleet, rows

from inferway.dashboard.past import (
    FEWEST,
    MOST,
    Past,
    PastError,
    course,
    past_of,
    scaled,
    tables_told,
)
from inferway.live.recent import PINNED, SECOND
from inferway.live.request import Outcome

HEAD = {"variants": ["tiny", "big"], "clock_s": 1000.0}


def past(kept: object = None, **keys: object) -> Past:
    return past_of(HEAD, rows() if kept is None else kept, fleet(**keys))  # type: ignore[arg-type]


def test_it_is_what_the_server_did() -> None:
    kept = rows()
    found = past(kept)
    assert found.trace.arrived_s[0] == 0.0
    assert found.from_s == pytest.approx(1000.0 + kept["received_s"][0] + 1e-4)
    assert found.trace.variants == ("tiny", "big")
    assert found.trace.taken_by[:4].tolist() == [0, 1, 0, 1]
    assert found.trace.occupied_s[0] == pytest.approx(1.2e-3, rel=1e-3)
    assert found.lead_s == pytest.approx(1e-4)
    # As many were above the target as below, by as much.
    assert found.gained(0.8) == pytest.approx(0.0)
    assert found.live.mean_s == pytest.approx(np.full(len(found.ends_s), 3.3e-3), rel=0.1)
    assert np.nanmax(found.live.p99_s) == pytest.approx(5.3e-3)
    assert found.live.accuracy == pytest.approx(np.full(len(found.ends_s), 0.8), abs=0.02)
    assert found.ends_s[-1] == found.trace.arrived_s[-1]


def test_a_past_begins_where_it_is_to() -> None:
    kept = rows()
    whole = past(kept)
    half_s = whole.from_s + whole.trace.arrived_s[1000] - 1e-6
    part = past_of(HEAD, kept, fleet(), since_s=half_s)
    assert len(part.trace.arrived_s) == 1000
    assert part.from_s == pytest.approx(half_s, abs=1e-5)
    assert part.counted == 1000.0
    assert whole.gained(None) == 0.0
    assert whole.energy_j == 0.0


def test_an_answer_counts_what_it_was_expected_to_be() -> None:
    kept = rows(200)
    kept["expected"][:100] = 0.75
    # Of the second of two that were asked: from receipt it took what the first took as well.
    kept["flags"][1], kept["ended_s"][1] = SECOND, kept["ended_s"][1] + 7e-3
    found = past(kept)
    assert found.expected[:100] == pytest.approx(np.full(100, 0.75))
    assert found.expected[100:102].tolist() == [0.7, 0.9]
    assert found.gained(0.8) == pytest.approx(-0.05 * 100, abs=1e-6)
    assert found.live.accuracy[0] == pytest.approx(0.75)
    assert found.trace.occupied_s[1] == pytest.approx(5.2e-3, rel=1e-3)


@pytest.mark.parametrize("alone", [False, True])
def test_what_waits_for_its_device_does_not_take_its_server(alone: bool) -> None:
    kept, usual = rows(200), fleet()
    # What shares the device waits for it, or until it has loaded the variant; one in five does not.
    waits_s = np.where(np.arange(200) // 2 % 5 == 0, 0.0, 2e-3)
    shares = np.ones(200, bool) if alone else kept["column"] == 0
    kept["received_s"] = 5.0 + 20e-3 * np.arange(200)
    kept["ended_s"] += np.where(shares, waits_s, 0.0)
    devices = ["gpu", "gpu" if alone else None]
    classes = [one | {"device": d} for one, d in zip(usual["classes"], devices, strict=True)]
    found = past_of(HEAD, kept, usual | {"classes": classes})
    assert found.trace.occupied_s == pytest.approx(kept["model_s"] + 2e-4, rel=2e-3)


def test_what_confidences_say_is_read() -> None:
    assert tables_told(fleet()) is None
    tables = tables_told(fleet(confidence=SURE))
    assert tables is not None
    assert tables.checked(2).edges.tolist() == [[0.5], [np.inf]]


def test_a_server_is_taken_from_the_end_of_the_one_before() -> None:
    kept = rows(100)
    kept["column"] = kept["server"] = 1
    kept["received_s"] = 5.0 + 2e-3 * np.arange(100)  # sooner than they are served
    kept["ended_s"] = kept["decided_s"] + 3e-3 * np.arange(1, 101)  # each 5 ms after the last
    found = past(kept)
    assert found.trace.occupied_s[0] == pytest.approx(3e-3, rel=1e-3)
    assert found.trace.occupied_s[1:] == pytest.approx(np.full(99, 5e-3), rel=1e-3)


def test_a_batch_takes_its_server_once() -> None:
    kept = rows(120)
    kept["column"] = kept["server"] = 1
    kept["received_s"] = 5.0 + np.repeat(np.arange(40.0), 3) + np.tile([0.0, 1e-3, 2e-3], 40)
    kept["ended_s"] = np.tile([12e-3, 11e-3, 10e-3], 40)
    kept["model_s"], kept["together"] = 10e-3, 3
    found = past(kept).trace
    assert found.together.tolist() == [3, 0, 0] * 40
    assert found.occupied_s[::3] == pytest.approx(np.full(40, 10e-3), rel=1e-3)
    assert np.isnan(found.occupied_s[1::3]).all()


def test_what_was_refused_came_all_the_same_and_what_was_malformed_did_not() -> None:
    kept = rows(200)
    kept["outcome"][:20], kept["column"][:20] = Outcome.REJECTED, -1
    kept["outcome"][20:30], kept["flags"][40] = Outcome.INVALID, PINNED
    found = past(kept)
    assert len(found.trace.arrived_s) == 190
    assert found.trace.answered.sum() == 170
    assert found.trace.pins == 1
    assert found.gained(0.8) == pytest.approx(0.1)  # but for the pinned one, of `tiny`


def test_five_minutes_are_the_most_and_fifty_requests_the_fewest() -> None:
    found = past(rows(40_000))
    assert 295.0 < found.trace.arrived_s[-1] <= 300.0
    with pytest.raises(PastError, match="49 requests came"):
        past(rows(FEWEST - 1))
    at_once = rows(100)
    at_once["received_s"] = 5.0
    with pytest.raises(PastError, match="at once"):
        past(at_once)
    assert len(past(rows(MOST + 10, 1e4)).trace.arrived_s) <= MOST


def test_a_course_is_of_those_that_came_in_each_stretch() -> None:
    arrived_s = np.array([0.1, 0.2, 0.3, 2.5])
    found = course(
        arrived_s,
        np.array([1.0, 3.0, 2.0, 7.0]),
        np.array([0.5, 0.7, 0.6, np.nan]),
        np.arange(1.0, 4.0),
    )
    assert found.mean_s == pytest.approx([2.0, np.nan, 7.0], nan_ok=True)
    assert found.p99_s == pytest.approx([3.0, np.nan, 7.0], nan_ok=True)
    assert found.accuracy == pytest.approx([0.6, np.nan, np.nan], nan_ok=True)


@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0, 1.5, 3.0])
def test_more_or_fewer_come_over_the_same_time_with_the_same_course(factor: float) -> None:
    random = np.random.default_rng(3)
    times_s = np.sort(np.concatenate([random.uniform(0, 60, 6000), random.uniform(30, 40, 6000)]))
    made = scaled(times_s, factor)
    assert (np.diff(made) >= 0).all()
    assert made[0] >= times_s[0]
    assert made[-1] <= times_s[-1]
    was, now = (np.histogram(one, 12, (0, 60))[0] for one in (times_s, made))
    assert now == pytest.approx(factor * was, rel=0.15)
    # As Poisson arrivals do, they come one by one, and not in heaps.
    assert np.diff(made).std() == pytest.approx(np.diff(made).mean(), rel=0.6)
