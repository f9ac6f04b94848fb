"""A recording read back: whose request took how long, and what the twin is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.site import ACCEPT, Fleet
from inferway.site.confidence import difficulty_tables
from inferway.twin.result import Error, Numbers
from inferway.twin.trace import calibrated, departures, measured, read, replayed, traces
from inferway.workload import times

FILE = """
tasks:
  words:
    accuracy_target: 0.75
    variants:
      small: {accuracy: 0.7, service: {mean: 10 ms}}
      large: {accuracy: 0.9, service: {mean: 40 ms}}
nodes: {here: {instances: {words/small: 1, words/large: 1}, buffer: 3}}
dispatch: {policy: fastest-only}
workload: {words: {arrivals: {process: poisson, rate: 7/s}}}
"""
BOTH, SMALL, LARGE = -1, 1, 2


@pytest.fixture
def deployment(tmp_path: Path) -> inferway.Deployment:
    file = tmp_path / "words.yaml"
    file.write_text(FILE)
    return inferway.load(file)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    fleet = Fleet(
        ("small", "large"),
        np.array([100.0, 25.0]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        buffer=3,
        task="words",
        node="here",
    )
    dispatcher = Dispatcher(fleet, "fastest-only", target=0.75, rate_per_s=7.0)
    return Recording(dispatcher, tmp_path / "recording" / "words")


def folder(recording: Recording, tmp_path: Path) -> Path:
    recording.close()
    return tmp_path / "recording" / "words"


def test_a_server_is_occupied_from_the_end_of_the_one_before(
    recording: Recording, tmp_path: Path
) -> None:
    for arrived_s in (10.0, 10.1, 12.0):
        assert recording.arrive(arrived_s, 0) == 0
        if arrived_s == 10.1:
            recording.finish(0, 10.5, 0.3)
            recording.finish(0, 10.9, 0.2)
    recording.finish(0, 12.25, 0.1)
    trace = read(folder(recording, tmp_path))
    np.testing.assert_allclose(trace.arrived_s, [0.0, 0.1, 2.0])
    np.testing.assert_allclose(trace.left_s, [0.5, 0.9, 2.25])
    np.testing.assert_allclose(trace.occupied_s, [0.5, 0.4, 0.25])
    np.testing.assert_allclose(trace.model_s, [0.3, 0.2, 0.1])
    assert trace.taken_by.tolist() == [0, 0, 0]
    assert trace.told_rate_per_s == 7.0


def test_a_second_answer_has_its_own_servers_time_and_what_it_is_expected_to_have(
    tmp_path: Path,
) -> None:
    tables = difficulty_tables(np.array([0.7, 0.9]), 0.8, 0.5, bins=2)
    fleet = Fleet(
        ("small", "large"),
        np.array([100.0, 25.0]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        buffer=4,
        task="words",
        confidence=tables,
    )
    dispatcher = Dispatcher(fleet, "escalate", target=0.8, rate_per_s=7.0, price=1e-6)
    recording = Recording(dispatcher, tmp_path / "recording" / "words")
    sure, unsure, dear = np.array([0.9]), np.array([0.1]), np.array([1.0])
    for arrived_s in (10.0, 11.0, 12.0, 13.0):
        assert recording.arrive(arrived_s, 0, classes=SMALL) == 0
    assert recording.settle(0, 13.5, 0, sure, recording.credit) == ACCEPT
    recording.finish(0, 13.5, 0.3)
    # As dear as it has to be for all others to be asked again where they are unsure.
    dispatcher.policy.price[:] = dear
    assert recording.settle(0, 14.0, 0, unsure, 0.7) == 1
    in_hand, credit = recording.in_hand, recording.credit
    recording.finish(0, 14.0, 0.2)
    assert recording.settle(1, 14.75, 0, np.zeros(0), credit, count=2) == ACCEPT
    recording.finish(1, 14.75, 0.6)
    assert recording.settle(0, 15.0, 0, unsure, 0.7) == 1
    recording.finish(0, 15.0, 0.2)
    recording.fall_back(1, 0, 16.0, first=0, in_hand=in_hand, credit=credit)
    trace = read(folder(recording, tmp_path))
    assert trace.again == 2
    assert trace.taken_by.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(trace.left_s, [3.5, 4.75, 6.0, np.nan])
    np.testing.assert_allclose(trace.occupied_s, [3.5, 0.75, np.nan, np.nan])
    own = tables.expected[0, :, 0]
    np.testing.assert_allclose(trace.worth, [own[1], tables.expected[0, 0, 1], own[0], np.nan])
    assert measured(trace).accuracy == pytest.approx(trace.worth[:3].mean())


def test_a_batch_occupies_its_server_once(recording: Recording, tmp_path: Path) -> None:
    recording.arrive(10.0, 0)
    recording.begin(0, 1, 10.0)
    recording.arrive(10.1, 0)
    recording.arrive(10.2, 0)
    recording.finish(0, 10.5, 0.4, 1)
    recording.begin(0, 2, 10.5)
    recording.finish(0, 11.0, 0.45, 2)
    recording.finish(0, 11.01, 0.45, -1)
    recording.arrive(12.0, 0)
    recording.begin(0, 0, 12.0)
    recording.arrive(13.0, 0)
    recording.begin(0, 2, 13.0)
    recording.withdraw(0, 1, 13.1)
    recording.begin(0, 1, 13.1)
    recording.finish(0, 13.5, 0.3, 1)
    trace = read(folder(recording, tmp_path))
    np.testing.assert_allclose(trace.left_s, [0.5, 1.0, 1.01, 3.5, np.nan])
    np.testing.assert_allclose(trace.occupied_s, [0.5, 0.51, np.nan, 0.4, np.nan])
    assert trace.together.tolist() == [1, 2, 0, 1, 0]


def test_batches_are_learned_by_their_sizes(recording: Recording, tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    offer = "service: {mean: 10 ms}, batch: {sizes: [2, 3, 4], service: [12 ms, 15 ms, 20 ms]}"
    file.write_text(FILE.replace("service: {mean: 10 ms}", offer))
    deployment = inferway.load(file)
    for step in range(40):
        size = 1 + step % 3 % 2  # 1, 2, 1, 1, 2, 1, ...
        took_s = (0.02 if size == 1 else 0.03) + (0.004 if step < 20 else 0.0)
        for _ in range(size):
            recording.arrive(step, 0)
        recording.begin(0, size, step)
        for first in (True, False)[:size]:
            recording.finish(0, step + took_s, took_s / 2, size if first else -1)
    trace = read(folder(recording, tmp_path))
    with replayed(deployment, trace) as scenario:
        told = calibrated(scenario, trace)
        notes = departures(scenario, trace)
    small, _ = told.service
    runs = trace.together > 0
    one_s = trace.occupied_s[trace.together == 1].mean()
    two_s = trace.occupied_s[trace.together == 2].mean()
    assert small.mean_s == pytest.approx(one_s)
    assert len(small.samples_s) == runs.sum() == 40
    assert np.mean(small.samples_s) == pytest.approx(one_s)
    assert told.batches[1] is None
    assert told.batches[0] is not None
    # Of what did not come about, the file's times in the same proportion.
    pace = trace.occupied_s[runs].sum() / (0.01 * 27 + 0.012 * 13)
    assert told.batches[0].service_s == pytest.approx((two_s, 0.015 * pace, 0.02 * pace))
    site = told.site(0.75, 3)
    assert site.row_s[0, :2] == pytest.approx([one_s / 2, two_s / 4], rel=0.2)
    assert site.rate[0] == pytest.approx(1 / site.row_s[0, 0])
    assert not any("this machine" in note for note in notes)


def test_who_leaves_and_who_is_refused_has_no_answer(recording: Recording, tmp_path: Path) -> None:
    for step in range(4):  # three places: the fourth is refused
        recording.arrive(float(step), 0)
    recording.withdraw(0, 1, 4.0)
    recording.finish(0, 5.0, 1.0)
    recording.withdraw(0, 0, 7.0)
    assert recording.arrive(8.0, 0) == 0
    recording.finish(0, 9.0, 1.0)
    trace = read(folder(recording, tmp_path))
    assert trace.taken_by.tolist() == [0, 0, 0, -1, 0]
    assert trace.answered.tolist() == [True, False, False, False, True]
    # The server was free at 7, when the one in service left.
    np.testing.assert_allclose(trace.occupied_s[[0, 4]], [5.0, 1.0])
    live = measured(trace)
    assert (live.rejected, live.dropped, live.queries) == (0.2, 0.4, 5)
    assert live.mean_s == pytest.approx(3.0)
    assert live.accuracy == pytest.approx(0.7)


def test_a_recording_that_begins_in_the_middle_skips_what_was_there(
    recording: Recording, tmp_path: Path
) -> None:
    recording.arrive(0.0, 0)
    recording.arrive(1.0, 0)
    path = folder(recording, tmp_path)
    dispatcher = recording._dispatcher
    late = Recording(dispatcher, tmp_path / "late" / "words")
    late.arrive(2.0, 0)
    for end_s in (3.0, 4.0, 5.0):
        late.finish(0, end_s, 0.5)
    late.close()
    trace = read(tmp_path / "late" / "words")
    assert trace.begun == 2
    np.testing.assert_allclose(trace.occupied_s, [1.0])
    np.testing.assert_allclose(trace.left_s - trace.arrived_s, [3.0])
    assert len(read(path).arrived_s) == 2


def test_the_scenario_has_the_file_s_fleet_and_the_recorded_arrivals(
    deployment: inferway.Deployment, recording: Recording, tmp_path: Path
) -> None:
    for step in range(40):
        recording.arrive(0.1 * step, 0, classes=LARGE if step % 4 == 3 else BOTH)
        recording.finish(1 if step % 4 == 3 else 0, 0.1 * step + 0.02 + 0.001 * (step % 2), 0.005)
    trace = read(folder(recording, tmp_path))
    with replayed(deployment, trace) as scenario:
        drawn = times(scenario.arrivals, count=40)
        np.testing.assert_allclose(drawn, trace.arrived_s, atol=1e-9)
        assert scenario.told_rate_per_s == 7.0
        told = calibrated(scenario, trace)
    assert [one.mean_s for one in scenario.service] == pytest.approx([0.01, 0.04])
    small, large = told.service
    assert (small.distribution, large.distribution) == ("empirical", "empirical")
    assert len(small.samples_s) == 30
    assert small.mean_s == pytest.approx(np.mean(small.samples_s))
    assert large.mean_s == pytest.approx(0.021)
    # The policy's fleet is the file's; the site predicts by what the models took.
    np.testing.assert_allclose(told.fleet.rate, [100.0, 25.0])
    site = told.site(0.75, 3)
    np.testing.assert_allclose(site.rate, [200.0, 200.0])
    np.testing.assert_allclose(site.row_s[:, 0], [0.005, 0.005])


def test_what_cannot_be_followed_is_counted(
    deployment: inferway.Deployment, recording: Recording, tmp_path: Path
) -> None:
    asks = [{}, {"floor": 0.8}, {"classes": SMALL}, {"rows": 3}, {"priority": 1}]
    asks += [{"deadline_s": 100.0}, {"counted": False}]
    for step, ask in enumerate(asks):
        server = recording.arrive(float(step), 0, **ask)  # type: ignore[arg-type]
        if server >= 0:
            recording.finish(server, step + 0.01, 0.01)
    trace = read(folder(recording, tmp_path))
    with replayed(deployment, trace) as scenario:
        notes = departures(scenario, trace)
        other = departures(replace(scenario, policy="priced"), trace)
    # Who may answer is narrowed for others as well, as beside a canary.
    assert [note for note in notes if note.startswith("1 of 7 requests were pinned")]
    for what in ("an accuracy floor", "several rows", "a priority", "a deadline other"):
        assert [note for note in notes if note.startswith("1 of 7 requests") and what in note], what
    assert "the recording is of policy fastest-only, and the file names priced" in other


def test_the_file_s_deadline_is_no_departure(
    deployment: inferway.Deployment, recording: Recording, tmp_path: Path
) -> None:
    for step in range(5):  # received a moment before it was dispatched
        recording.arrive(float(step), 0, deadline_s=step - 4e-4 + 0.3)
        recording.finish(0, step + 0.01, 0.01)
    trace = read(folder(recording, tmp_path))
    with replayed(deployment, trace) as scenario:
        kept = departures(replace(scenario, deadline_s=0.3), trace)
        shorter = departures(replace(scenario, deadline_s=0.2), trace)
    assert not any("deadline" in note for note in kept)
    assert any(note.startswith("5 of 5 requests had a deadline") for note in shorter)


def test_a_machine_that_changes_is_said(
    deployment: inferway.Deployment, recording: Recording, tmp_path: Path
) -> None:
    for step in range(200):
        recording.arrive(float(step), 0)
        recording.finish(0, step + (0.01 if step < 100 else 0.02), 0.01)
    trace = read(folder(recording, tmp_path))
    with replayed(deployment, trace) as scenario:
        notes = departures(scenario, trace)
    assert any("small +100%" in note for note in notes)
    assert any("no answer came from large" in note for note in notes)


def test_requests_without_a_time_are_refused(recording: Recording, tmp_path: Path) -> None:
    path = folder(recording, tmp_path)
    with pytest.raises(ValueError, match="holds no request"):
        read(path)
    with pytest.raises(ValueError, match="holds no recording"):
        traces(tmp_path / "nothing")


def test_errors_are_relative_and_in_accuracy_absolute() -> None:
    same: Any = {"p50_s": 0.1, "p99_s": 0.3, "rejected": 0.0, "dropped": 0.0, "shares": {}}
    live = Numbers(mean_s=0.10, p95_s=0.2, accuracy=0.930, queries=10, **same)
    twin = Numbers(mean_s=0.11, p95_s=0.18, accuracy=0.935, queries=10, **same)
    found = Error.of(twin, live)
    assert found.mean == pytest.approx(0.1)
    assert found.p95 == pytest.approx(-0.1)
    assert found.accuracy == pytest.approx(0.005)
