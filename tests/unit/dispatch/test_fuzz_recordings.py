"""Recordings: whatever is in their files, replays and twins say it in a line."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzzed import JSON_TOKENS
from fuzzing import FEW, Course, few_or_many, in_a_line, scratch
from inferway.cli import main
from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import EVENT, Recording
from inferway.dispatch.replay import replay
from inferway.site import ALL_CLASSES, Fleet
from inferway.site.claims import no_claims, no_contents
from inferway.site.confidence import difficulty_tables
from inferway.site.devices import DeviceSlots
from inferway.twin.trace import read as read_trace
from mutation import damaged, mutated, respelled

FLEET = Fleet(
    ("a", "b"),
    np.array([8.0, 2.0]),
    np.array([0.6, 0.9]),
    np.array([2, 2]),
    buffer=4,
    task="t",
    confidence=difficulty_tables(np.array([0.6, 0.9]), 0.8, 0.5, bins=3),
)
CPU = DeviceSlots(
    names=("cpu",),
    slots=np.array([1]),
    exclusive=np.zeros(1, bool),
    overhead_s=np.zeros(1),
    device=np.zeros(2, np.int64),
    taken=np.ones(2, np.int64),
)
GPU = CPU._replace(slots=np.array([2]), exclusive=np.ones(1, bool), load_s=np.array([0.05, 0.1]))
FIELDS = {name: 1 << (8 * EVENT[name].itemsize - 1) for name in EVENT.names or ()}
ODD = (-1, -2, 0, 1, 3, 4, 5, 127, 2**31 - 1, 2**62, -(2**31))
STEPS = 16
HEAD_KEYS = ("schema", "policy", "options", "target", "fleet", "gap", "ended", "lasting", "folder")
SHARED = "jiq-fast, with a device"
EXCLUSIVE = "jiq-fast, with a device that holds one variant of two tasks"
POLICIES = ("jiq-fast", SHARED, EXCLUSIVE, pytest.param("escalate", marks=pytest.mark.slow))


def record(folder: Path, policy: str = "jiq-fast") -> None:
    """A short course of events: all kinds, a queue, one that is full."""
    devices = {SHARED: CPU, EXCLUSIVE: GPU}.get(policy)
    fleet = replace(FLEET, devices=devices)
    name = policy.partition(",")[0]
    dispatcher = Dispatcher(fleet, name, target=0.8, rate_per_s=6.0, measure=True)
    chance = random.Random(4)
    another = beside(dispatcher, chance) if policy == EXCLUSIVE else None
    recording = Recording(dispatcher, folder)
    sure = np.array([0.1, 0.9])
    for step in range(STEPS):
        now = step / 9
        recording.arrive(now, chance.getrandbits(62), now + 3.0, 0.0, 1, ALL_CLASSES, 2, True)
        for server in np.flatnonzero(recording.site.queue).tolist():
            if another is not None:
                next(another)
            if devices is not None:
                take_turns(recording, server, now)
            elif chance.random() < 0.2:
                recording.begin(server, 1, now)
                if policy == "escalate":
                    more = {"rows": 2, "count": chance.randrange(1, 3)}
                    recording.settle(server, now, chance.getrandbits(62), sure, 0.7, **more)
                recording.finish(server, now, 0.1)
        if policy == "escalate" and recording.site.queue[2]:
            recording.fall_back(2, 0, now, first=0, in_hand=0.4, credit=0.9)
        if recording.site.queue[3] > 1:
            recording.withdraw(3, 1, now)
        recording.mark(1, step % 2 == 0, now)
        recording.shift(0, 4, 0.001, 0.0, now)
    recording.correct(np.array([0.5, 0.85]))
    recording.retune(7.5)
    recording.close()


def take_turns(recording: Recording, server: int, now_s: float) -> None:
    """A server runs, where it may, and whoever ran before ends."""
    devices = recording.site.devices
    for other in np.flatnonzero(devices.holds).tolist():
        recording.end_run(other, now_s)
        recording.finish(other, now_s, 0.1)
        if (following := recording.next_turn(other, now_s)) >= 0:
            start(recording, following, now_s)
    if not recording.site.queue[server] or devices.holds[server]:
        return
    if recording.ask_turn(server, now_s + 3.0, now_s):
        start(recording, server, now_s)
    elif server == 3:
        recording.leave_line(server, now_s)


def start(made: Recording | Dispatcher, server: int, now_s: float) -> None:
    """A server whose turn it is runs, once its device holds its variant."""
    if made.changes and made.needs_change(server):
        made.begin_change(server, now_s)
        made.end_change(server, True, now_s)
    made.start_run(server, 1, now_s)


def beside(dispatcher: Dispatcher, chance: random.Random) -> Iterator[None]:
    """Another task that shares its device: runs, waits and changes, of which some fail."""
    other = Dispatcher(dispatcher.fleet, "jiq-fast", target=0.8, rate_per_s=6.0, measure=True)
    claims, contents = no_claims(8), no_contents(1)
    for made, at in ((other, 4), (dispatcher, 0)):
        made.hold_nothing()
        made.share_devices(claims, at, np.zeros(1, np.int64), contents)

    def course() -> Iterator[None]:
        while True:
            now_s = float(dispatcher.site.clock_s[0])
            server = other.arrive(now_s, chance.getrandbits(62))
            if server >= 0 and other.site.queue[server] == 1:
                if other.ask_turn(server, now_s + chance.random(), now_s):
                    start(other, server, now_s)
                elif chance.random() < 0.5:
                    other.leave_line(server, now_s)
                    other.withdraw(server, 0, now_s)
            yield
            for one in np.flatnonzero(other.site.devices.holds).tolist():
                other.end_run(one, now_s)
                other.finish(one, now_s, 0.1)
            if not (other.site.devices.used.any() or dispatcher.site.devices.used.any()):
                other.begin_change(0, now_s)
                other.end_change(0, chance.random() < 0.5, now_s)
            yield

    return course()


class Damage:
    """Makes damaged recordings of a whole one."""

    def __init__(self, folder: Path, policy: str) -> None:
        record(folder, policy)
        self.head = json.loads((folder / "recording.json").read_text())
        (beginning,) = folder.glob("*.state.npz")
        self.state = beginning.read_bytes()
        (events,) = folder.glob("*.events")
        self.events = events.read_bytes()
        self.names = {"head": "recording.json", "state": beginning.name, "events": events.name}
        with np.load(beginning) as state:
            self.arrays = dict(state)

    def __call__(self, choose: random.Random) -> tuple[str, bytes]:
        match choose.randrange(10):
            case 0 | 1:
                head: Any = self.head
                for _ in range(choose.randrange(1, 3)):
                    head = mutated(head, choose, HEAD_KEYS)
                text = json.dumps(head).encode()
                if choose.random() < 0.2:
                    text = respelled(text, JSON_TOKENS, choose)
                return "head", text
            case 2:
                return "state", damaged(self.state, choose)
            case 3:
                return "state", self._otherwise(choose)
            case 4:
                return "events", damaged(self.events, choose)
            case _:
                return "events", self._moved(choose)

    def _moved(self, choose: random.Random) -> bytes:
        """Some fields of some events changed; some events elsewhere, twice or left out."""
        rows = np.frombuffer(self.events, EVENT).copy()
        for _ in range(choose.randrange(1, 4)):
            at, name = choose.randrange(len(rows)), choose.choice(list(FIELDS))
            if EVENT[name].kind == "f":
                rows[at][name] = choose.choice([np.nan, np.inf, -np.inf, -1.0, 1e308, 0.0])
            else:
                rows[at][name] = (choose.choice(ODD) + FIELDS[name]) % (2 * FIELDS[name]) - (
                    FIELDS[name] if EVENT[name].kind == "i" else 0
                )
            if choose.random() < 0.3:
                other = choose.randrange(len(rows))
                rows[[at, other]] = rows[[other, at]]
            if choose.random() < 0.2:
                rows = np.delete(rows, choose.randrange(len(rows)))
        return rows.tobytes()

    def _otherwise(self, choose: random.Random) -> bytes:
        """A state with another array in it."""
        arrays = dict(self.arrays)
        name = choose.choice(list(arrays))
        array = arrays[name].copy()
        match choose.randrange(5):
            case 0:
                del arrays[name]
            case 1:
                arrays[choose.choice([f"{name}x", "site.nothing", "else.queue"])] = array
            case 2:
                arrays[name] = np.resize(array, choose.choice([(), (0,), (3,), (4, 4), (2, 2, 2)]))
            case 3:
                arrays[name] = array.astype(choose.choice(["<f4", "<i2", "?", "<U4", "<c8"]))
            case _:
                odd = choose.choice([*ODD, np.nan, np.inf])
                with np.errstate(all="ignore"), suppress(ValueError, OverflowError, IndexError):
                    array.reshape(-1)[choose.randrange(max(1, array.size)) % max(1, array.size)] = (
                        odd
                    )
                arrays[name] = array
        return as_npz(arrays)


def as_npz(arrays: dict[str, np.ndarray]) -> bytes:
    from io import BytesIO

    with np.errstate(all="ignore"):
        written = BytesIO()
        np.savez(written, **arrays)  # type: ignore[arg-type]
    return written.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with scratch(tmp_path) as made:
        yield made


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("policy", POLICIES)
@few_or_many
def test_recordings(
    folder: Path, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    make = Damage(tmp_path / "whole", policy)
    # Of half the time it takes, and none of what came: which code of policies this is.
    monkeypatch.setattr("inferway.dispatch.replay.code_of", lambda _: make.head["code"])
    contents = {
        "head": json.dumps(make.head).encode(),
        "state": make.state,
        "events": make.events,
    }
    for part, name in make.names.items():
        (folder / name).write_bytes(contents[part])
    good = replay(folder)
    assert (good.requests, good.differences, good.losses) == (STEPS, (), ())

    def feed(given: tuple[str, bytes]) -> None:
        part, raw = given
        file = folder / make.names[part]
        file.write_bytes(raw)
        try:
            readers = (replay, read_trace) if raw[-1:] < b"\x40" else (replay,)
            for reader in readers:
                with in_a_line(ValueError):
                    reader(folder)  # type: ignore[operator]
        finally:
            file.write_bytes(contents[part])

    # For `escalate`, each replay solves linear programs first; and each is a file that is written.
    # The course of exclusive devices is the longest, and has what the one of devices has, too.
    share = 20 if policy == "escalate" else 4 if count == FEW or policy == EXCLUSIVE else 1
    Course(f"recordings of {policy}", make, count // share).run(feed)
    assert replay(folder).differences == ()


@pytest.mark.parametrize("policy", ["jiq-fast", SHARED])
@pytest.mark.parametrize("field", ["idle_classes", "busy_classes"])
@pytest.mark.parametrize("bit", [0, 2, 40])
def test_bits_of_classes_say_what_their_numbers_do(
    tmp_path: Path, policy: str, field: str, bit: int
) -> None:
    """Whoever follows them would come to memory beyond the two classes."""
    make = Damage(tmp_path / "t", policy)
    make.arrays[f"site.{field}"][0] ^= 1 << bit
    (tmp_path / "t" / make.names["state"]).write_bytes(as_npz(make.arrays))
    assert field in str(replay(tmp_path / "t").losses)


@pytest.mark.parametrize(
    ("policy", "kind", "field", "value"),
    [
        ("jiq-fast", 1, "server", 2**31 - 1),
        ("jiq-fast", 1, "server", -7),
        ("jiq-fast", 2, "rows", 40),
        ("jiq-fast", 0, "server", 4),
        ("jiq-fast", 9, "rows", 9),
        ("jiq-fast", 16, "server", 2),
        ("jiq-fast", 16, "server", 1),
        (SHARED, 17, "value", np.nan),
        (SHARED, 18, "rows", 0),
        (SHARED, 18, "server", 7),
        (SHARED, 21, "server", -1),
        (EXCLUSIVE, 23, "server", 4),
        (EXCLUSIVE, 26, "rows", 3),
        (EXCLUSIVE, 28, "classes", 1 << 40),
        (EXCLUSIVE, 28, "floor", np.nan),
        (EXCLUSIVE, 28, "value", -1.0),
        (EXCLUSIVE, 28, "server", -1),
        (EXCLUSIVE, 29, "server", 1),
        (EXCLUSIVE, 29, "word", -1),
        (EXCLUSIVE, 29, "classes", -2),
        ("escalate", 16, "value", 2),
        ("escalate", 12, "server", 4),
        ("escalate", 12, "classes", 3),
        ("escalate", 13, "server", 3),
        ("escalate", 13, "rows", 3),
        ("escalate", 14, "server", -1),
        ("escalate", 15, "classes", 4),
    ],
)
def test_replay_tells_an_event_that_could_not_have_happened(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    kind: int,
    field: str,
    value: float,
) -> None:
    record(tmp_path / "t", policy)
    (file,) = (tmp_path / "t").glob("*.events")
    rows = np.frombuffer(file.read_bytes(), EVENT).copy()
    place = int(np.flatnonzero(rows["kind"] == kind)[0])
    rows[place][field] = value
    file.write_bytes(rows.tobytes())
    main(["replay", str(tmp_path / "t")])
    printed = capsys.readouterr()
    assert "is damaged, and left out from there on" in printed.out + printed.err
    assert "bug" not in printed.err
