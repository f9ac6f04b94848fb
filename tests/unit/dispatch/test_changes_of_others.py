"""Tasks that share a device that holds one variant at a time: what each knows of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.site import Fleet
from inferway.site.claims import DEVICE, LOAD_S, NEXT_S, VARIANT, no_claims, no_contents
from inferway.site.devices import DeviceSlots

MEAN_S, LOADS_S = (0.01, 0.02), (1.0, 2.0)
FIRST, SECOND = 0, 3  # Rows of the two tasks
FOREVER_S = 1e9


def fleet_of(task: str, slots: int = 1) -> Fleet:
    """Two classes of one server each, on one device."""
    return Fleet(
        (f"{task}-fast", f"{task}-slow"),
        1.0 / np.array(MEAN_S),
        np.array([0.7, 0.8]),
        np.ones(2, np.int64),
        buffer=4,
        task=task,
        devices=DeviceSlots(
            names=("gpu",),
            slots=np.array([slots]),
            exclusive=np.ones(1, bool),
            overhead_s=np.zeros(1),
            device=np.zeros(2, np.int64),
            taken=np.ones(2, np.int64),
            load_s=np.array(LOADS_S),
        ),
    )


def both(policy: str = "fastest-only", slots: int = 1) -> tuple[Dispatcher, Dispatcher]:
    """Two tasks, of which none has loaded anything."""
    one, other = (
        Dispatcher(fleet_of(task, slots), policy, target=None, measure=False) for task in "ab"
    )
    claims, contents, numbers = no_claims(6), no_contents(3), np.array([2])
    for made, at in ((one, FIRST), (other, SECOND)):
        made.hold_nothing()
        made.share_devices(claims, at, numbers, contents)
        made.look(0.0)
    return one, other


def load(made: Dispatcher, server: int, now_s: float, *, works: bool = True) -> None:
    made.begin_change(server, now_s)
    made.end_change(server, works, now_s)


def give(made: Dispatcher, k: int, now_s: float, due_s: float = FOREVER_S) -> bool:
    """Have a request join class k and, if its server is free, ask for its turn; whether it has."""
    free = made.site.queue[k] == 0
    assert made.arrive(now_s, 1, classes=1 << k) == k
    return bool(free and made.ask_turn(k, due_s, now_s))


def held(*dispatchers: Dispatcher) -> list[int]:
    for one in dispatchers:
        one.look(9.0)
    return [int(one.site.devices.changes.held[0]) for one in dispatchers]


def waits_s(made: Dispatcher, now_s: float) -> list[float]:
    return [made.predict(server, 1, now_s)[0] for server in range(2)]


def test_who_changes_the_device_last_holds_it() -> None:
    one, other = both()
    assert held(one, other) == [-1, -1]
    assert [made.site.idle.tolist() for made in (one, other)] == [[0, 0], [0, 0]]
    load(one, 0, 0.0)
    assert held(one, other) == [0, -1]
    assert [made.site.idle.tolist() for made in (one, other)] == [[1, 0], [0, 0]]
    load(other, 1, 1.0)
    assert held(one, other) == [-1, 1]
    # Of a change that another has made and that came to nothing, as if nobody had looked meanwhile.
    load(one, 1, 2.0)
    load(one, 0, 2.0, works=False)
    assert held(other, one) == [-1, -1]
    assert [made.site.idle.tolist() for made in (one, other)] == [[0, 0], [0, 0]]


def test_a_change_waits_for_the_runs_of_others_and_nobody_overtakes_it() -> None:
    one, other = both(slots=2)
    load(one, 0, 0.0)
    assert give(one, 0, 0.0)
    one.start_run(0, 1, 0.0)
    assert not give(other, 0, 0.001, due_s=0.5)
    assert one.next_turn(0, 0.002) == -2 - SECOND  # but it cannot start yet
    assert other.next_turn(0, 0.002) == -1
    one.end_run(0, 0.01)
    one.finish(0, 0.01, 0.01)
    assert not give(one, 0, 0.011, due_s=0.6)  # a slot is free, but the other is first
    assert one.next_turn(0, 0.012) == -2 - SECOND
    assert other.next_turn(0, 0.012) == 0
    assert other.needs_change(0)
    other.begin_change(0, 0.012)
    assert one.next_turn(0, 0.5) == -1  # a change takes all slots
    other.end_change(0, True, 1.0)
    other.start_run(0, 1, 1.0)
    assert one.next_turn(0, 1.0) == -1
    other.end_run(0, 1.02)
    assert one.next_turn(0, 1.02) == 0
    assert one.needs_change(0)


def test_waits_behind_the_turns_of_others_are_predicted() -> None:
    one, other = both()
    assert waits_s(one, 0.0) == pytest.approx([1.0, 2.0])  # nothing is held
    load(one, 0, 0.0)
    assert waits_s(one, 0.0) == pytest.approx([0.0, 2.0])
    assert waits_s(other, 0.0) == pytest.approx([1.0, 2.0])
    assert give(one, 0, 0.0)
    one.start_run(0, 1, 0.0)
    assert waits_s(other, 0.004) == pytest.approx([0.006 + 1.0, 0.006 + 2.0])
    # One of the others waits: who comes now needs another change behind it.
    assert not give(other, 1, 0.004, due_s=0.5)
    assert waits_s(one, 0.004) == pytest.approx([0.006 + 2.0 + 0.02 + load_s for load_s in LOADS_S])
    assert waits_s(other, 0.004) == pytest.approx([0.006 + 2.0 + 0.02 + 1.0, 0.006 + 2.0 + 0.02])
    # Another of this task's, behind it.
    assert not give(one, 1, 0.005, due_s=0.6)
    behind_s = 0.005 + 2.0 + 0.02 + 2.0 + 0.02
    assert waits_s(one, 0.005) == pytest.approx([behind_s + 1.0, behind_s])
    assert waits_s(other, 0.005) == pytest.approx([behind_s + load_s for load_s in LOADS_S])


def test_what_is_due_before_the_turn_of_another_comes_before_it() -> None:
    """One of the other task's waits; whether its turn is between the two of this one's or not."""
    for due_s, wait_s in ((0.9, 0.02 + 2.0 + 0.02 + 1.0), (0.02, 2 * 0.01 + 2.0 + 1.0 + 0.02)):
        one, other = both()
        load(one, 0, 0.0)
        assert give(one, 0, 0.0, due_s=0.1)
        one.start_run(0, 1, 0.0)
        give(one, 0, 0.001)  # due as long after it came as the first
        assert not give(other, 1, 0.002, due_s=due_s)
        assert waits_s(one, 0.0)[0] == pytest.approx(wait_s)


def test_what_waits_is_due_as_it_has_said() -> None:
    """Whatever others of the same task have said since."""
    one, other = both()
    load(other, 0, 0.0)
    assert give(other, 0, 0.0, due_s=0.1)
    other.start_run(0, 1, 0.0)
    assert not give(one, 1, 0.0, due_s=5.0)
    assert not give(one, 0, 0.0, due_s=0.1)
    assert not give(other, 1, 0.0, due_s=1.0)
    first_s, second_s, third_s = 1.0 + 0.01, 2.0 + 0.02, 2.0 + 0.02
    behind_s = 0.01 + first_s + second_s + third_s
    assert waits_s(one, 0.0) == pytest.approx([behind_s + 1.0, behind_s])


def test_a_server_of_another_task_runs_one_after_the_other() -> None:
    one, other = both(slots=2)
    load(other, 1, 0.0)
    assert give(other, 1, 0.0)
    other.start_run(1, 1, 0.0)
    give(other, 1, 0.0)
    assert waits_s(one, 0.0) == pytest.approx([0.02 + 0.02 + load_s for load_s in LOADS_S])


def test_what_others_could_not_load_they_have_to_load_again() -> None:
    one, other = both()
    load(other, 0, 0.0, works=False)
    assert give(other, 0, 0.0, due_s=0.1)  # its change has not begun yet
    assert waits_s(one, 0.0) == pytest.approx([1.0 + 0.01 + load_s for load_s in LOADS_S])


def test_a_change_for_another_is_foreseen_to_its_end() -> None:
    one, other = both()
    load(one, 0, 0.0)
    assert give(other, 1, 0.0)
    other.begin_change(1, 0.0)
    assert waits_s(one, 0.5) == pytest.approx([1.5 + 0.02 + load_s for load_s in LOADS_S])
    assert waits_s(one, 2.5) == pytest.approx([0.02 + load_s for load_s in LOADS_S])


def test_a_server_tells_what_it_needs_of_the_device() -> None:
    one, other = both()
    claims = one.site.devices.claims
    load(one, 1, 0.0)
    assert claims[:, DEVICE].tolist() == [-1.0] * 6
    assert give(one, 1, 1.0, due_s=1.5)
    one.start_run(1, 1, 1.0)
    give(one, 1, 2.0)
    row = claims[FIRST + 1]
    assert row[[DEVICE, VARIANT, LOAD_S]].tolist() == [2.0, FIRST + 1, 2.0]
    assert row[NEXT_S] == pytest.approx(2.5)
    assert not give(other, 0, 2.0, due_s=7.0)
    assert claims[SECOND, [VARIANT, NEXT_S]].tolist() == [SECOND, 7.0]
    other.leave_line(0, 2.0)
    other.withdraw(0, 0, 2.0)
    assert claims[SECOND, NEXT_S] == np.inf


def test_who_changes_the_device_last_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines are met only while the device holds the task's own variant."""
    one, other = both("deadline")
    recording = Recording(one, tmp_path / "a", rows=40)
    decided, now_s = [], 0.0
    for step in range(48):
        now_s += 10.0
        if step % 3 == 0:
            recording.begin_change(0, now_s)
            recording.end_change(0, True, now_s)
        elif step % 3 == 2:
            load(other, 1, now_s, works=step % 2 == 0)
        server = recording.arrive(now_s, step, now_s + 0.5)
        decided.append(server >= 0)
        if server >= 0:
            assert recording.ask_turn(server, now_s + 0.5, now_s)
            recording.start_run(server, 1, now_s)
            recording.end_run(server, now_s + 0.01)
            recording.finish(server, now_s + 0.01, 0.01)
    recording.close()
    assert decided == [step % 3 != 2 for step in range(48)]
    assert len(list((tmp_path / "a").glob("*.events"))) > 2
    found = inferway.replay(tmp_path / "a", requests=None)
    assert found.differences == ()
    assert found.losses == ()
    assert found.requests == 48
    monkeypatch.setattr("inferway.dispatch.replay._Course._change", lambda *_: None)
    assert len(inferway.replay(tmp_path / "a", requests=None).differences) > 8


def test_the_lines_of_others_are_replayed(tmp_path: Path) -> None:
    """A wait that is predicted behind another task's turn, which its claims say."""
    one, other = both("deadline")
    recording = Recording(one, tmp_path / "a")
    decided, now_s = [], 0.0
    for step in range(32):
        now_s += 10.0
        recording.begin_change(0, now_s)
        recording.end_change(0, True, now_s)
        if step % 2:
            assert give(other, 1, now_s, due_s=now_s + 0.2)
        # In time without the other's load of 2 s, and its own afterwards of 1 s.
        server = recording.arrive(now_s, step, now_s + 2.5)
        decided.append(server)
        if server >= 0:
            recording.withdraw(server, 0, now_s)
        if step % 2:
            other.leave_line(1, now_s)
            other.withdraw(1, 0, now_s)
    recording.close()
    assert decided == [-1 if step % 2 else 1 for step in range(32)]
    found = inferway.replay(tmp_path / "a", requests=None)
    assert found.differences == ()
    assert found.losses == ()
