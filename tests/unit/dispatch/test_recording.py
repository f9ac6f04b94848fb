"""Recordings: what is written is what was decided, and a replay finds every difference."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import (
    ANSWER,
    BALANCE,
    BIN,
    EVENT,
    FALL_BACK,
    LASTING,
    OVERHEAD,
    RECORDED,
    RECORDED_OF_DEVICES,
    SETTLE,
    SHARED,
    Losses,
    Recording,
    restore,
)
from inferway.dispatch.replay import events, header, recordings, replay
from inferway.site import ACCEPT, ALL_CLASSES, ConfidenceTables, Fleet
from inferway.site.confidence import difficulty_tables
from inferway.site.devices import DeviceSlots
from inferway.version import __version__

FLEET = Fleet(
    ("a", "b", "c"),
    np.array([8.0, 3.0, 1.0]),
    np.array([0.6, 0.8, 0.95]),
    np.array([2, 2, 3]),
    buffer=4,
    task="digits",
)


def record(folder: Path, policy: str, requests: int, **limits: int) -> list[int]:
    """Decisions of a busy course of events."""
    dispatcher = Dispatcher(FLEET, policy, target=0.8, rate_per_s=6.0, measure=True)
    recording = Recording(dispatcher, folder, **limits)
    generator = np.random.default_rng(4)
    found = []
    for step in range(requests):
        now, word = step / 9, int(generator.integers(-(2**63), 2**63))
        deadline = now + 1.3 if step % 5 == 0 else np.inf
        classes = 0b110 if step % 11 == 0 else ALL_CLASSES
        floor = 0.8 if step % 13 == 0 else 0.0  # the accuracy of b, which must not be lost
        found.append(recording.arrive(now, word, deadline, floor, 1, classes, 2, step % 11 != 0))
        for server in np.flatnonzero(recording.site.queue).tolist():
            if recording.site.queue[server] > 1 and generator.random() < 0.05:
                recording.withdraw(server, 1, now)
            elif generator.random() < 0.2:
                recording.finish(server, now, float(generator.gamma(4, 0.03)))
        if step == requests // 3:
            recording.mark(3, False, now)
            recording.retune(7.5)
    recording.close()
    return found


@pytest.mark.parametrize("policy", ["priced", "tad-op", "r-jsq-d"])
def test_a_replay_decides_the_same(tmp_path: Path, policy: str) -> None:
    decisions = record(tmp_path / "run", policy, 3_000)
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.same_code) == (3_000, (), True)
    assert found.events > 5_000
    ((_, rows),) = events(tmp_path / "run")
    assert rows["server"][rows["kind"] == 0].tolist() == decisions


def test_a_changed_decision_is_found_and_does_not_hide_the_next(tmp_path: Path) -> None:
    record(tmp_path / "run", "tad-op", 500)
    (file,) = (tmp_path / "run").glob("*.events")
    rows = np.fromfile(file, EVENT)
    arrivals = np.flatnonzero((rows["kind"] == 0) & (rows["server"] >= 0))
    for changed in arrivals[[20, 200]]:
        rows["word"][changed] += 1
        rows["classes"][changed] = 1 << (0 if rows["server"][changed] > 1 else 2)
    rows.tofile(file)
    found = replay(tmp_path / "run", requests=None)
    assert len(found.differences) == 2
    assert found.differences[0].recorded != found.differences[0].replayed


def test_files_rotate_and_the_oldest_left_says_where_to_start(tmp_path: Path) -> None:
    record(tmp_path / "run", "priced", 2_000, rows=1_000, keep=2)
    files = sorted(path.name for path in (tmp_path / "run").glob("*.events"))
    assert len(files) == 2
    assert files[0] != "000001.events"
    found = replay(tmp_path / "run", requests=None)
    assert found.differences == ()
    assert found.requests > 300


def test_a_row_cut_off_is_left_out(tmp_path: Path) -> None:
    record(tmp_path / "run", "priced", 200)
    (file,) = (tmp_path / "run").glob("*.events")
    assert replay(tmp_path / "run").losses == ()
    file.write_bytes(file.read_bytes()[:-7])
    found = replay(tmp_path / "run")
    assert found.differences == ()
    (said,) = found.losses
    assert said.startswith(f"{file} ends within an event, which is left out; ")
    assert said.endswith(f" {file.stat().st_size // EVENT.itemsize} are whole")


@pytest.mark.parametrize("kept", [0, 30, 900])
def test_a_state_that_is_not_whole_costs_its_file_only(tmp_path: Path, kept: int) -> None:
    record(tmp_path / "run", "priced", 2_000, rows=1_000)
    before = replay(tmp_path / "run", requests=None)
    second, third = sorted((tmp_path / "run").glob("*.state.npz"))[1:3]
    second.write_bytes(second.read_bytes()[:kept])
    third.unlink()
    found = replay(tmp_path / "run", requests=None)
    assert found.differences == ()
    assert before.events - found.events == 2_000
    assert found.losses[0].startswith(f"{second} cannot be read, and so 000002.events is left out")
    assert found.losses[1].startswith(f"{third} cannot be read, and so 000003.events is left out")
    with pytest.raises(ValueError, match="cannot be read"):
        list(events(tmp_path / "run"))


HOLDER = """
from typing import NamedTuple
from inferway.site import HOLD

class Longest(NamedTuple):
    'Holds while fewer than so many wait; what waits by then decides who gets the rest.'
    most: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(3)

    def choose(self, site, request, draw):
        if site.held[0] < self.most:
            return HOLD
        return site.held[0] % len(site.queue)
"""


def test_the_central_queues_length_is_part_of_what_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HOLDER)
    dispatcher = Dispatcher(FLEET, "mine.py:Longest", target=None, folder=tmp_path)
    recording = Recording(dispatcher, tmp_path / "run", rows=50)
    generator = np.random.default_rng(2)
    servers = set()
    for step in range(300):
        server = recording.arrive(float(step), step)
        servers.add(server)
        # The world's own book, as the live server keeps it.
        recording.site.held[0] = generator.integers(12)
        if server >= 0:
            recording.finish(server, step + 0.5, 0.1)
    recording.close()
    assert len(servers) == FLEET.servers + 1
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences) == (300, ())


def test_a_folder_in_use_and_a_folder_without_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "run", "priced", 10)
    with pytest.raises(ValueError, match="already holds a recording"):
        Recording(Dispatcher(FLEET, "priced", target=0.8), tmp_path / "run")
    with pytest.raises(ValueError, match="holds no recording"):
        replay(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no recording"):
        recordings(tmp_path / "nothing")
    assert recordings(tmp_path) == [tmp_path / "run"]
    head = tmp_path / "run" / "recording.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "schema": 99}))
    with pytest.raises(ValueError, match="is not a recording of schema 11"):
        replay(tmp_path / "run")


def test_fields_of_a_later_release_are_left_aside(tmp_path: Path) -> None:
    record(tmp_path / "run", "priced", 200)
    head = tmp_path / "run" / "recording.json"
    said = json.loads(head.read_text())
    assert said["inferway"] == __version__
    said["fleet"]["carbon"] = [1.0]
    head.write_text(json.dumps({**said, "machine": {"cores": 2}}))
    (state,) = (tmp_path / "run").glob("*.state.npz")
    with np.load(state) as arrays:
        np.savez(state, **arrays, **{"site.tomorrow": np.zeros(3)})
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (200, (), ())


def test_recordings_below_nodes_and_tasks_are_found_in_their_order(tmp_path: Path) -> None:
    names = ["t", "t.2", "t.10", "node-2/t", "node-10/t", "node-10/t.2"]
    for name in names:
        Recording(Dispatcher(FLEET, "priced", target=0.8), tmp_path / name).close()
    assert [str(one.relative_to(tmp_path)) for one in recordings(tmp_path)] == names


@pytest.mark.parametrize("rows", [1_000_000, 300])
def test_which_classes_last_is_part_of_what_is_recorded(tmp_path: Path, rows: int) -> None:
    dispatcher = Dispatcher(FLEET, "priced", target=0.8, rate_per_s=20.0, max_wait_s=0.05)
    dispatcher.set_lasting(0b100)
    recording = Recording(dispatcher, tmp_path / "run", rows=rows, keep=4)
    generator = np.random.default_rng(3)
    for step in range(1_000):
        now = step / 30
        recording.arrive(now, int(generator.integers(-(2**63), 2**63)))
        for server in np.flatnonzero(recording.site.queue).tolist():
            if generator.random() < 0.1:
                recording.finish(server, now, 0.1)
        # Mostly as it was.
        recording.set_lasting(0b001 if step // 100 % 2 else 0b110)
    recording.close()
    found = [state["dispatcher.lasting"].item() for state, _ in events(tmp_path / "run")]
    assert set(found) <= {0b100, 0b001, 0b110}
    written = np.concatenate([one for _, one in events(tmp_path / "run")])
    assert 4 <= np.count_nonzero(written["kind"] == LASTING) <= 11
    assert replay(tmp_path / "run", requests=None).differences == ()
    # It is what the decisions hang on.
    for file in (tmp_path / "run").glob("*.events"):
        changed = np.fromfile(file, EVENT)
        changed["classes"][changed["kind"] == LASTING] = 0b010
        changed.tofile(file)
    assert replay(tmp_path / "run", requests=None).differences != ()


def test_what_others_add_to_the_balance_is_part_of_what_is_recorded(tmp_path: Path) -> None:
    dispatcher = Dispatcher(FLEET, "tad-op", target=0.8, rate_per_s=6.0)
    recording = Recording(dispatcher, tmp_path / "run", rows=400)
    generator = np.random.default_rng(5)
    for step in range(1_000):
        recording.arrive(step / 9, int(generator.integers(-(2**63), 2**63)))
        for server in np.flatnonzero(recording.site.queue).tolist():
            if generator.random() < 0.2:
                recording.finish(server, step / 9, 0.1)
        if step % 50 == 0:
            # As of requests of the site before, which have left without an answer.
            recording.site.balance[0] += generator.normal(0.0, 3.0)
    recording.close()
    written = np.concatenate([one for _, one in events(tmp_path / "run")])
    assert 15 <= np.count_nonzero(written["kind"] == BALANCE) <= 20
    assert replay(tmp_path / "run", requests=None).differences == ()


@pytest.mark.parametrize("call", ["set_lasting", "retune", "route"])
def test_the_balance_is_looked_at_before_calls_that_do_not_move_it(
    tmp_path: Path, call: str
) -> None:
    policy = "hw-e" if call == "route" else "tad-op"
    recording = Recording(Dispatcher(FLEET, policy, target=0.8, rate_per_s=6.0), tmp_path / "run")
    recording.arrive(0.0, 1)
    balance = recording.site.balance[0] + 25.0
    recording.site.balance[0] = balance
    if call == "set_lasting":
        recording.set_lasting(0b100)
    elif call == "retune":
        recording.retune(7.0)
    else:
        recording.route(None)
    recording.arrive(1.0, 2)
    recording.close()
    ((_, rows),) = events(tmp_path / "run")
    assert rows["value"][rows["kind"] == BALANCE].tolist() == [balance]


@pytest.mark.parametrize("rows", [10, 1_000_000])
def test_a_state_that_cannot_be_written_ends_the_recording(tmp_path: Path, rows: int) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "000001.state.npz").mkdir()
    recording = Recording(Dispatcher(FLEET, "priced", target=0.8), folder, rows=rows)
    for step in range(30):
        recording.finish(recording.arrive(float(step), step), step + 0.5, 0.1)
    recording.flush()
    while recording.gap is None:  # until the state is tried
        recording.flush()
    assert (recording.gap.reason, recording.gap.after) == ("Is a directory", "run")
    recording.arrive(31.0, 31)
    assert vars_of(recording.losses) == (1, 31, 61)
    recording.close()
    # Without the state they are worth nothing.
    assert not list(folder.glob("*.events"))
    found = replay(folder)
    assert (found.requests, found.gap) == (0, None)
    assert found.ended is not None
    assert (found.ended.decisions, found.ended.events) == (31, 61)
    (said,) = found.losses
    assert said.startswith("it ends early: nothing more was recorded from ")
    assert said.endswith("31 decisions and 30 other events are missing (Is a directory)")


def test_a_disk_that_refuses_ends_the_recording_and_not_the_dispatcher(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "000001.events").symlink_to("/dev/full")
    recording = Recording(Dispatcher(FLEET, "priced", target=0.8), folder)
    for step in range(3_000):
        server = recording.arrive(float(step), step)
        recording.finish(server, step + 0.5, 0.1)
    assert recording.gap is not None
    assert recording.gap.reason == "No space left on device"
    assert recording.site.queue.sum() == 0
    assert vars_of(recording.losses) == (1, 3_000, 6_000)
    recording.close()


class Full(FileIO):
    """A file on a disk with so much room."""

    room = 0

    def write(self, content: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = super().write(memoryview(content)[: self.room])
        self.room -= done
        return done


def vars_of(losses: Losses) -> tuple[int, int, int]:
    return losses.gaps, losses.decisions, losses.events


@pytest.mark.parametrize("policy", ["priced", "r-jsq-d"])
def test_it_goes_on_as_a_section_that_names_what_is_missing(tmp_path: Path, policy: str) -> None:
    dispatcher = Dispatcher(FLEET, policy, target=0.8, rate_per_s=6.0, measure=True)
    sections = (tmp_path / f"run.{number}" for number in count(2))
    recording = Recording(dispatcher, tmp_path / "run", following=lambda: next(sections))
    recorded = tmp_path / "run" / "000001.events"
    generator = np.random.default_rng(4)
    step = 0

    def go(steps: int) -> None:
        nonlocal step
        for _ in range(steps):
            step += 1
            now = step / 9
            recording.arrive(now, int(generator.integers(-(2**63), 2**63)))
            for server in np.flatnonzero(recording.site.queue).tolist():
                if generator.random() < 0.2:
                    recording.finish(server, now, float(generator.gamma(4, 0.03)))

    go(400)
    recording.flush()
    assert recording._file is not None
    recording._file.close()
    recording._file = full = Full(recorded, "a")
    full.room = 100 * EVENT.itemsize + 7  # within the next buffer, and within an event
    go(3_000)
    assert recording.gap is not None
    assert recording.gap.reason == "No space left on device"
    assert not recording.writing
    assert recorded.stat().st_size % EVENT.itemsize == 0
    go(500)
    missing = recording.losses
    assert recording.go_on()
    assert (recording.gap, recording.folder) == (None, tmp_path / "run.2")
    go(400)
    recording.close()
    first, second = (replay(one, requests=None) for one in recordings(tmp_path))
    assert (first.differences, second.differences) == ((), ())
    assert second.requests == 400
    assert missing.decisions == step - first.requests - second.requests > 3_000
    assert vars_of(missing) == (1, missing.decisions, missing.events)
    assert second.gap is not None
    assert (second.gap.decisions, second.gap.events) == (missing.decisions, missing.events)
    assert (second.gap.after, second.gap.until) >= ("run", second.gap.since)
    assert first.ended is not None
    assert (first.ended.since, first.ended.until) == (second.gap.since, None)
    (ended,), (gap,) = first.losses, second.losses
    assert ended.startswith("it ends early: nothing more was recorded from ")
    assert gap.startswith("nothing was recorded from ")
    assert f": {missing.decisions:,} decisions and " in gap
    assert gap.endswith(" other events are missing (No space left on device)")


def test_a_gap_lasts_until_a_section_holds(tmp_path: Path) -> None:
    """A full disk often has room for names, and for nothing in them."""
    folders = [tmp_path / f"run.{number}" for number in range(2, 6)]
    for folder, part in zip(folders, ("000001.events", "000001.state.npz"), strict=False):
        folder.mkdir()
        (folder / part).symlink_to("/dev/full")
    following = iter(folders)
    recording = Recording(
        Dispatcher(FLEET, "priced", target=0.8), tmp_path / "run", following=lambda: next(following)
    )
    recording.arrive(0.0, 1)
    recording.flush()
    assert recording._file is not None
    recording._file.close()
    recording._file = Full(tmp_path / "run" / "000001.events", "a")
    recording.arrive(1.0, 2)
    recording.flush()
    gap = recording.gap
    assert gap is not None
    assert vars_of(recording.losses) == (1, 1, 1)
    for tries in (1, 2):
        assert recording.go_on()
        recording.arrive(3.0, 4)
        while recording.gap is None:
            recording.flush()
        assert recording.gap is gap
        assert vars_of(recording.losses) == (1, 1 + tries, 1 + tries)
        assert [one.name for one in recordings(tmp_path)] == ["run"]
    assert recording.go_on()
    recording.arrive(4.0, 5)
    recording.close()
    first, last = (replay(one) for one in recordings(tmp_path))
    assert (first.requests, last.requests) == (1, 1)
    assert last.gap is not None
    assert (last.gap.decisions, last.gap.after) == (3, "run")


def test_what_cannot_begin_is_refused_or_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    dispatcher = Dispatcher(FLEET, "priced", target=0.8)
    with pytest.raises(FileExistsError):
        Recording(dispatcher, tmp_path / "run")
    recording = Recording(
        dispatcher, tmp_path / "run", following=lambda: tmp_path / "run.2", patient=True
    )
    recording.arrive(0.0, 1)
    assert recording.go_on()
    recording.arrive(1.0, 2)
    recording.close()
    found = replay(tmp_path / "run.2")
    assert found.gap is not None
    assert (found.requests, found.gap.decisions, found.gap.after) == (1, 1, "")


@pytest.mark.parametrize(
    "gap",
    ["soon", {"since": 1.0}, {"since": "x", "reason": ""}, {"since": 1e300, "reason": ""}, [1]],
)
def test_a_gap_that_makes_no_sense_is_said(tmp_path: Path, gap: object) -> None:
    record(tmp_path / "run", "priced", 10)
    head = tmp_path / "run" / "recording.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | {"gap": gap}))
    with pytest.raises(ValueError, match="is damaged: its `gap` makes no sense"):
        replay(tmp_path / "run")


def test_a_plan_changes_nothing_until_it_is_adopted() -> None:
    dispatcher = Dispatcher(FLEET, "r-jiq", target=0.8, rate_per_s=2.0)
    before = dispatcher.policy.probabilities.copy()
    plan = dispatcher.plan(9.0)
    assert dispatcher.policy.probabilities.tolist() == before.tolist()
    dispatcher.adopt(plan)
    assert dispatcher.policy.probabilities.tolist() == plan.policy.probabilities.tolist()
    assert abs(dispatcher.policy.probabilities - before).max() > 0.01


def test_batches_are_predicted_in_a_replay_as_they_were(tmp_path: Path) -> None:
    fleet = Fleet(("a",), np.array([10.0]), np.array([0.8]), np.array([1]), buffer=9)
    dispatcher = Dispatcher(fleet, "alias", target=None)
    dispatcher.site.row_s[:, 2:] = 0.05
    recording = Recording(dispatcher, tmp_path / "run")
    for _ in range(3):
        recording.arrive(0.0, 1)
    assert recording.pull(0, 0.0, 1) == (0, 1)
    recording.begin(0, 3, 0.0)
    # Three together take 0.2 s, and one after the other 0.3 s: these two tell them apart.
    assert recording.arrive(0.0, 1, 0.29) == -1
    assert recording.arrive(0.0, 1, 0.31) == 0
    for measured in (3, -1, -1):
        recording.finish(0, 0.2, 0.15, measured)
    recording.begin(0, 0, 0.2)
    assert recording.arrive(0.3, 1, 0.49) == -1
    assert recording.arrive(0.3, 1, 0.51) == 0
    recording.close()
    found = replay(tmp_path / "run")
    assert (found.requests, found.batches, found.differences) == (7, 1, ())
    (file,) = (tmp_path / "run").glob("*.events")
    rows = np.fromfile(file, EVENT)
    pulled = rows["kind"] == 4
    rows["rows"][pulled], rows["classes"][pulled] = 2, 1
    rows.tofile(file)
    differences = replay(tmp_path / "run").differences
    assert [(one.request, one.what, one.recorded, one.replayed) for one in differences] == [
        (2, "drop", 1, 0),
        (2, "take", 2, 1),
    ]


@pytest.mark.parametrize("first", range(4))
def test_a_routing_is_whole_wherever_a_file_begins(tmp_path: Path, first: int) -> None:
    dispatcher = Dispatcher(FLEET, "steered", target=None)
    recording = Recording(dispatcher, tmp_path / "run", rows=10, keep=2)
    for number in range(first):
        recording.mark(0, bool(number % 2), 0.0)
    generator = np.random.default_rng(1)
    ones = np.ones(3, np.int64)
    for step in range(40):
        shares = generator.dirichlet(np.ones(7))
        if step % 5 == 4:
            recording.route(None)
        else:
            recording.route(shares, ones, 1 + step % 3 * ones)
        server = recording.arrive(float(step), int(generator.integers(2**63)))
        if server >= 0:
            assert recording.pull(server, float(step), 1) == (0, 1)
            recording.begin(server, 1, float(step))
            recording.finish(server, step + 0.5, 0.5)
    recording.close()
    assert len(list((tmp_path / "run").glob("*.events"))) == 2
    found = replay(tmp_path / "run")
    assert (found.differences, found.losses) == ((), ())
    assert found.requests > 0


class Asking:
    """Requests of several rows, some of which are asked again, and some of these in vain."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.random = np.random.default_rng(5)
        self.now_s = 0.0
        # By server, in order: the row count, who answered before and with what, what is credited.
        self.queues: list[list[tuple[int, int, float, float]]] = [
            [] for _ in range(recording.fleet.servers)
        ]
        self.decided: list[int] = []

    def word(self) -> int:
        return int(self.random.integers(-(2**63), 2**63))

    def come(self) -> None:
        rows = int(self.random.integers(1, 4))
        server = self.recording.arrive(self.now_s, self.word(), rows=rows)
        if server >= 0:
            self.queues[server].append((rows, -1, np.nan, self.recording.credit))

    def answer(self, server: int) -> None:
        rows, first, in_hand, credit = self.queues[server].pop(0)
        if first >= 0 and self.random.random() < 0.3:
            self.recording.fall_back(
                server, 0, self.now_s, first=first, in_hand=in_hand, credit=credit
            )
            return
        values = self.random.random(rows)
        if rows == 3:
            values[1] = np.nan
        to = self.recording.settle(
            server,
            self.now_s,
            self.word(),
            values,
            credit,
            count=1 if first < 0 else 2,
            rows=rows,
            entered_s=self.now_s - 0.1,
        )
        self.decided.append(to)
        if to >= 0:
            self.queues[to].append((rows, server, self.recording.in_hand, self.recording.credit))
        self.recording.finish(server, self.now_s, 0.1)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += 1 / 9
            self.come()
            for server, queue in enumerate(self.queues):
                if queue and self.random.random() < 0.4:
                    self.answer(server)
        self.recording.close()


def asking(folder: Path, tables: ConfidenceTables | None = None, **limits: int) -> Asking:
    tables = tables or difficulty_tables(FLEET.accuracy, 0.8, 0.5)
    fleet = replace(FLEET, confidence=tables)
    dispatcher = Dispatcher(fleet, "escalate", target=0.8, rate_per_s=6.0, measure=True)
    return Asking(Recording(dispatcher, folder, **limits))


def test_a_replay_decides_the_same_on_every_answer(tmp_path: Path) -> None:
    course = asking(tmp_path / "run", rows=1_500)
    course.go(1_000)
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (1_000, (), ())
    assert found.same_code
    assert found.answers == len(course.decided) > 900
    files = [rows for _, rows in events(tmp_path / "run")]
    assert len(files) > 2
    # What belongs together stands in one file.
    assert all(rows["kind"][0] not in (BIN, SETTLE) for rows in files)
    rows = np.concatenate(files)
    settled = rows[rows["kind"] == SETTLE]
    assert settled["server"].tolist() == course.decided
    assert 50 < (settled["server"] != ACCEPT).sum() < 900
    assert (rows["kind"] == FALL_BACK).sum() > 15
    assert set(rows["server"][rows["kind"] == BIN].tolist()) == set(range(20))
    assert (rows["kind"] == ANSWER).sum() == len(settled)


def test_what_a_policy_has_learned_is_in_a_state_and_nothing_that_follows_from_the_fleet(
    tmp_path: Path,
) -> None:
    asking(tmp_path / "run").go(20)
    ((state, _),) = events(tmp_path / "run")
    policy = {name for name in state if name.startswith("policy.")}
    assert policy == {"policy.price", "policy.memory", "policy.record"}
    told = header(tmp_path / "run")["fleet"]["confidence"]
    assert np.array(told["mass"]).shape == (3, 20)


def test_a_class_with_fewer_bins_is_read_back(tmp_path: Path) -> None:
    tables = difficulty_tables(FLEET.accuracy, 0.8, 0.5)
    tables.mass[0], tables.mass[2] = 0.0, 0.0
    tables.mass[0, :4] = 0.25
    tables.edges[0, 3:], tables.edges[2] = np.inf, np.inf
    course = asking(tmp_path / "run", tables)
    course.go(400)
    found = replay(tmp_path / "run", requests=None)
    assert (found.differences, found.losses) == ((), ())
    assert found.answers == len(course.decided)


def test_a_changed_decision_on_an_answer_is_found(tmp_path: Path) -> None:
    asking(tmp_path / "run").go(300)
    (file,) = (tmp_path / "run").glob("*.events")
    rows = np.fromfile(file, EVENT)
    # As if the first one that was asked again had been sure.
    (again, *_) = np.flatnonzero((rows["kind"] == SETTLE) & (rows["server"] >= 0))
    first = np.flatnonzero(rows["kind"][:again] == ANSWER)[-1]
    rows["server"][first + 1 : again] = 19
    rows.tofile(file)
    found = replay(tmp_path / "run", requests=None)
    assert found.differences[0].what == "answer"
    assert found.differences[0].recorded == rows["server"][again]
    assert found.differences[0].replayed == ACCEPT
    assert found.to_json()["answers"] == found.answers


def test_recordings_of_the_version_before_are_read(tmp_path: Path) -> None:
    record(tmp_path / "run", "priced", 200)
    file = tmp_path / "run" / "recording.json"
    head = json.loads(file.read_text())
    head["schema"] = 4
    del head["fleet"]["confidence"]
    file.write_text(json.dumps(head))
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences) == (200, ())
    head["schema"] = 3
    file.write_text(json.dumps(head))
    with pytest.raises(ValueError, match="not a recording of schema 11"):
        replay(tmp_path / "run")


TOLD: Any = [
    {
        "name": "both", "tasks": ["digits", "words"], "accuracy": 0.8,
        "start": 0.5, "scale": 0.5, "span": 0.35,
    }
]  # fmt: skip


def test_what_others_do_to_a_shared_target_is_part_of_what_is_recorded(tmp_path: Path) -> None:
    """Another task moves the price between any two requests; a replay without it differs."""
    dispatcher, other = (
        Dispatcher(replace(FLEET, task=task), "priced", target=None, targets=TOLD)
        for task in ("digits", "words")
    )
    other.share_targets(dispatcher.policy.shared)
    recording = Recording(dispatcher, tmp_path / "run", rows=300)
    generator = np.random.default_rng(2)
    for step in range(400):
        word = int(generator.integers(-(2**63), 2**63))
        other.arrive(step / 9, word, classes=1 << int(generator.integers(3)))
        recording.arrive(step / 9, word)
        for one in (other, recording):
            for server in np.flatnonzero(one.site.queue).tolist():
                one.finish(server, step / 9, 0.1)
    recording.close()
    found = replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences, found.losses) == (400, (), ())
    file = sorted((tmp_path / "run").glob("*.events"))[-1]
    rows = np.frombuffer(file.read_bytes(), EVENT).copy()
    shared = rows["kind"] == SHARED
    assert shared.any()
    rows["kind"][shared] = LASTING  # that no class is left out, which changes nothing
    rows["classes"][shared] = 0
    file.write_bytes(rows.tobytes())
    assert replay(tmp_path / "run", requests=None).differences
    rows["kind"][shared], rows["server"][shared] = SHARED, 1000
    file.write_bytes(rows.tobytes())
    (loss,) = replay(tmp_path / "run", requests=None).losses
    assert "no such memory is shared with other tasks" in loss


def sharing() -> Dispatcher:
    """A dispatcher whose servers share four cores of two devices."""
    devices = DeviceSlots(
        names=("gpu", "cpu"),
        slots=np.array([1, 4]),
        exclusive=np.zeros(2, bool),
        overhead_s=np.array([0.0, 0.05]),
        device=np.array([1, 1, 0]),
        taken=np.ones(3, np.int64),
    )
    fleet = replace(FLEET, devices=devices)
    return Dispatcher(fleet, "priced", target=0.8, measure=True)


def record_overheads(folder: Path, requests: int, **limits: int) -> None:
    """Requests with deadlines, while what they take of the device becomes more and less."""
    recording = Recording(sharing(), folder, **limits)
    generator = np.random.default_rng(5)
    for step in range(requests):
        now, word = step / 9, int(generator.integers(-(2**63), 2**63))
        if step % 20 == 10:
            recording.set_overhead(1, float(generator.random()))
        server = recording.arrive(now, word, now + 0.9)
        for one in np.flatnonzero(recording.site.devices.holds).tolist():
            recording.end_run(one, now)
            recording.finish(one, now, float(generator.gamma(4, 0.03)))
            if (following := recording.next_turn(one, now)) >= 0:
                recording.start_run(following, 1, now)
        if server >= 0 and recording.site.queue[server] and recording.ask_turn(server, now, now):
            recording.start_run(server, 1, now)
    recording.close()


@pytest.mark.parametrize("rows", [10**6, 97])
def test_what_requests_take_of_a_device_is_part_of_what_is_recorded(
    tmp_path: Path, rows: int
) -> None:
    record_overheads(tmp_path / "run", 400, rows=rows, keep=8)
    found = replay(tmp_path / "run", requests=None)
    assert (found.losses, found.differences) == ((), ())
    assert found.requests == 400 if rows > 400 else 60 < found.requests < 400
    for file in (tmp_path / "run").glob("*.events"):
        content = np.fromfile(file, EVENT)
        content["value"][content["kind"] == OVERHEAD] = 0.8
        file.write_bytes(content.tobytes())
    assert replay(tmp_path / "run", requests=None).differences


def test_recordings_from_before_it_changed_are_read(tmp_path: Path) -> None:
    recording = Recording(sharing(), tmp_path / "run")
    for step in range(20):
        recording.arrive(step / 9, step, step / 9 + 0.9)
    recording.close()
    file = tmp_path / "run" / "recording.json"
    head = json.loads(file.read_text())
    assert head["schema"] == 11
    file.write_text(json.dumps(head | {"schema": 7}))
    (beginning,) = (tmp_path / "run").glob("*.state.npz")
    with np.load(beginning) as state:
        before = {name: array for name, array in state.items() if name != "devices.lead_s"}
    np.savez_compressed(beginning, **before)
    found = replay(tmp_path / "run", requests=None)
    assert (found.losses, found.differences, found.requests) == ((), (), 20)


@pytest.mark.parametrize(("device", "seconds"), [(2, 0.1), (-1, 0.1), (1, -0.1), (1, np.inf)])
def test_what_requests_cannot_take_is_refused(tmp_path: Path, device: int, seconds: float) -> None:
    record_overheads(tmp_path / "run", 100)
    (file,) = (tmp_path / "run").glob("*.events")
    content = np.fromfile(file, EVENT)
    (first, *_) = np.flatnonzero(content["kind"] == OVERHEAD)
    content["server"][first], content["value"][first] = device, seconds
    file.write_bytes(content.tobytes())
    found = replay(tmp_path / "run", requests=None)
    assert "damaged" in found.losses[0]
    assert found.requests == 10


def test_who_is_idle_at_a_device_is_known_where_a_file_begins() -> None:
    devices = DeviceSlots(
        names=("cpu",),
        slots=np.array([1]),
        exclusive=np.zeros(1, bool),
        overhead_s=np.zeros(1),
        device=np.zeros(3, np.int64),
        taken=np.ones(3, np.int64),
    )
    fleet = replace(FLEET, count=np.array([1, 2, 3]), devices=devices)
    busy, begun = (Dispatcher(fleet, "tad-op", target=0.8, rate_per_s=6.0) for _ in range(2))
    server = busy.arrive(0.0, 1, np.inf, 0.0, 0, 0b001, 1, True)
    assert busy.ask_turn(server, 3.0, 0.0)
    busy.start_run(server, 1, 0.0)
    state = {f"site.{one}": getattr(busy.site, one) for one in RECORDED}
    state |= {f"devices.{one}": getattr(busy.site.devices, one) for one in RECORDED_OF_DEVICES}
    restore(begun, {name: array.copy() for name, array in state.items()})
    for one in (busy, begun):
        assert one.site.devices.resting_classes.tolist() == [0b110]
        assert one.site.idle_classes.tolist() == [0]
        one.end_run(server, 0.1)
        assert one.site.idle_classes.tolist() == [0b110]
