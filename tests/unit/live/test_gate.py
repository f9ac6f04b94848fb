"""Runs of several tasks stand in one line at the devices that they share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubling import Gate, give
from test_turns import began, one_of, opened, site_of

import inferway
from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.live import Outcome, TaskSite
from inferway.live.admin import status
from inferway.live.gate import DeviceGate
from inferway.site import Fleet
from inferway.site.claims import COLUMNS, DEVICE, HOLDS, TAKEN, UNTIL_S, WORK_S, no_claims
from inferway.site.devices import DeviceSlots


async def both_of(
    gates: list[Gate], *, cores: int = 1, taken: tuple[int, int] = (1, 1), **options: Any
) -> tuple[DeviceGate, TaskSite, TaskSite]:
    """Two tasks of a server each, on one device, which has been joined in one gate."""
    gate = DeviceGate()
    sites = [
        site_of([one], [slots], cores, **options) for one, slots in zip(gates, taken, strict=True)
    ]
    for site, one in zip(sites, gates, strict=True):
        site.pool.servers.share(gate)
        await opened(site, [one])
    return gate, *sites


async def passed(patient: Any, task: asyncio.Task[Any]) -> None:
    """Let time pass until a task has ended."""
    while not task.done():
        await patient.let(0.02)
        await asyncio.to_thread(lambda: None)
    task.result()


def busy(gate: DeviceGate) -> tuple[int, int]:
    """Slots that runs hold, and servers that wait."""
    told = gate.status()["cpu"]
    return told["busy"], told["waiting"]


def test_runs_of_one_task_wait_for_those_of_another(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate()]
        gate, first, second = await both_of(gates, now=patient.time)
        one, other, third = one_of(0), one_of(0), one_of(0)
        other.request.received_s, third.request.received_s = 1.0, 2.0
        give(first, one)
        give(second, other)
        await began(gates[0])
        give(first, third)
        assert gates[1].runs.empty()
        assert busy(gate) == (1, 1)
        told = status([first, second], ready=True)
        assert told["devices"] == {"cpu": {"slots": 1, "busy": 1, "waiting": 1}}
        gates[0].opened.set()
        await one.answer()
        # The other task's came before the first one's second.
        await began(gates[1])
        assert gates[0].runs.empty()
        assert busy(gate) == (1, 1)
        gates[1].opened.set()
        await other.answer()
        await third.answer()
        assert busy(gate) == (0, 0)
        await first.stop()
        await second.stop()

    run(main())


def test_who_is_due_first_is_next_of_whichever_task(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate(), Gate()]
        gate = DeviceGate()
        sites = [site_of([one], [1], now=patient.time) for one in gates]
        for site, one in zip(sites, gates, strict=True):
            site.pool.servers.share(gate)
            await opened(site, [one])
        now_s = patient.time()
        running, *waiting = one_of(0), one_of(0, now_s + 60.0), one_of(0, now_s + 50.0)
        give(sites[0], running)
        await began(gates[0])
        for site, one in zip(sites[1:], waiting, strict=True):
            give(site, one)
        gates[0].opened.set()
        await began(gates[2])
        assert gates[1].runs.empty()
        gates[2].opened.set()
        await began(gates[1])
        gates[1].opened.set()
        for one in (running, *waiting):
            await one.answer()
        assert busy(gate) == (0, 0)
        for site in sites:
            await site.stop()

    run(main())


def test_what_others_hold_is_in_predictions_and_in_what_is_idle(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate()]
        _, first, second = await both_of(gates, now=patient.time)
        one, other = one_of(0), one_of(0)
        give(first, one)
        await began(gates[0])
        pool = second.pool
        now_s = patient.time()
        service_s = first.pool.dispatcher.predict(0, 1, now_s)[1]
        assert pool.dispatcher.predict(0, 1, now_s)[0] == pytest.approx(service_s, rel=0.05)
        pool.dispatcher.look(now_s)
        assert pool.dispatcher.site.idle.tolist() == [0]
        other.request.id = b"other"
        give(second, other)
        gates[0].opened.set()
        gates[1].opened.set()
        await one.answer()
        await other.answer()
        (candidate,) = second.log.explain(b"other")["candidates"]
        assert candidate["predicted_wait_ms"] == pytest.approx(service_s * 1e3, rel=0.05)
        assert candidate["idle"] == 0
        pool.dispatcher.look(patient.time())
        assert pool.dispatcher.site.idle.tolist() == [1]
        await first.stop()
        await second.stop()

    run(main())


@pytest.mark.parametrize("end", ["fails", "cancelled", "closed"])
def test_whatever_ends_a_run_lets_another_task_start(run: Any, patient: Any, end: str) -> None:
    async def main() -> None:
        gates = [Gate(), Gate()]
        gate, first, second = await both_of(gates, now=patient.time)
        one, waiting, other = one_of(0), one_of(0), one_of(0)
        waiting.request.received_s, other.request.received_s = 1.0, 2.0
        if end == "fails":
            one.request.inputs["x"][:] = -1.0
        give(first, one)
        await began(gates[0])
        give(first, waiting)
        give(second, other)
        gates[1].opened.set()
        if end == "closed":
            leaving = first.swap(None)
            assert leaving is not None
            gates[0].opened.set()
            await passed(patient, leaving)
        else:
            if end == "cancelled":
                first.cancel(waiting.request)
                assert waiting.outcome is Outcome.CANCELED
            gates[0].opened.set()
        await other.answer()
        if end != "cancelled":
            await waiting.answer()
        assert busy(gate) == (0, 0)
        await first.stop()
        await second.stop()
        assert gate.status() == {}

    run(main())


def test_who_leaves_the_line_lets_another_task_behind_start(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate(), Gate()]
        gate = DeviceGate()
        sites = [
            site_of([one], [slots], 2, now=patient.time)
            for one, slots in zip(gates, (1, 2, 1), strict=True)
        ]
        for site, one in zip(sites, gates, strict=True):
            site.pool.servers.share(gate)
            await opened(site, [one])
        small, wide, behind = one_of(0), one_of(0), one_of(0)
        behind.request.received_s = 1.0
        for site, one in zip(sites, (small, wide, behind), strict=True):
            give(site, one)
        await began(gates[0])
        # A core is free, but the first in line takes two, and nobody overtakes.
        assert gates[1].runs.empty()
        assert gates[2].runs.empty()
        assert busy(gate) == (1, 2)
        sites[1].cancel(wide.request)
        await began(gates[2])
        for one in gates:
            one.opened.set()
        await small.answer()
        await behind.answer()
        assert busy(gate) == (0, 0)
        for site in sites:
            await site.stop()

    run(main())


def test_what_a_fleet_that_is_gone_held_is_nobodys(run: Any, patient: Any) -> None:
    """A run that outlasts its fleet's end holds nothing, and changes nothing when it ends."""

    async def main() -> None:
        gates = [Gate(), Gate()]
        gate, first, second = await both_of(gates, now=patient.time)
        held, other = one_of(0), one_of(0)
        give(first, held)
        await began(gates[0])
        give(second, other)
        gates[1].opened.set()
        assert busy(gate) == (1, 1)
        closing = asyncio.create_task(first.pool.close(0.0))
        await passed(patient, closing)
        await other.answer()
        assert busy(gate) == (0, 0)
        gates[0].opened.set()
        await second.stop()

    run(main())


def test_what_a_fleet_holds_that_was_alone_counts_for_who_joins(run: Any, patient: Any) -> None:
    """As where another file is applied, or copies move, while a run of the only task goes on."""

    async def main() -> None:
        gates = [Gate(), Gate()]
        gate = DeviceGate()
        first, second = (site_of([one], [1], now=patient.time) for one in gates)
        first.pool.servers.share(gate)
        await opened(first, gates[:1])
        one, other = one_of(0), one_of(0)
        give(first, one)
        await began(gates[0])
        second.pool.servers.share(gate)
        await opened(second, gates[1:])
        give(second, other)
        assert busy(gate) == (1, 1)
        assert gates[1].runs.empty()
        for each in gates:
            each.opened.set()
        await one.answer()
        await other.answer()
        assert busy(gate) == (0, 0)
        await first.stop()
        await second.stop()

    run(main())


def fleet_of(name: str) -> Fleet:
    return Fleet(
        (name,),
        np.array([100.0]),
        np.array([0.7]),
        np.array([2]),
        buffer=8,
        task=name,
        devices=DeviceSlots(
            names=("cpu",),
            slots=np.array([2]),
            exclusive=np.zeros(1, bool),
            overhead_s=np.zeros(1),
            device=np.zeros(1, np.int64),
            taken=np.ones(1, np.int64),
        ),
    )


def test_what_decisions_saw_of_other_tasks_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside runs that others have just begun, no deadline is met; the next step, each is."""
    one, other = (
        Dispatcher(fleet_of(name), "deadline", target=None, measure=False) for name in "ab"
    )
    claims, numbers = no_claims(4), np.array([3])
    other.share_devices(claims, 2, numbers)
    recording = Recording(one, tmp_path / "a", rows=40)
    # It is shared when the recording has begun, as where another file is applied.
    recording.share_devices(claims, 0, numbers)
    decided = []
    for step in range(64):
        now_s = step * 0.02
        for server in np.flatnonzero(other.site.devices.holds).tolist():
            other.end_run(server, now_s)
            other.finish(server, now_s, 0.01)
        for _ in range(2 if step % 4 == 0 else 0):
            server = other.arrive(now_s, step)
            assert other.ask_turn(server, now_s, now_s)
            other.start_run(server, 1, now_s)
        server = recording.arrive(now_s, step, now_s + 0.015)
        decided.append(server >= 0)
        if server >= 0:
            assert recording.ask_turn(server, now_s, now_s)
            recording.start_run(server, 1, now_s)
            recording.end_run(server, now_s + 0.01)
            recording.finish(server, now_s + 0.01, 0.01)
    recording.close()
    assert decided == [step % 4 != 0 for step in range(64)]
    assert len(list((tmp_path / "a").glob("*.events"))) > 2
    found = inferway.replay(tmp_path / "a", requests=None)
    assert found.differences == ()
    assert found.losses == ()
    assert found.requests == 64
    # Others are what makes the difference.
    monkeypatch.setattr("inferway.dispatch.replay.share_as_recorded", lambda *_: None)
    monkeypatch.setattr("inferway.dispatch.recording.share_as_recorded", lambda *_: None)
    monkeypatch.setattr("inferway.dispatch.replay._Course._claim", lambda *_: None)
    assert len(inferway.replay(tmp_path / "a", requests=None).differences) == 16


def test_a_recording_goes_on_where_devices_are_shared_with_nobody_any_more(tmp_path: Path) -> None:
    one, other = (
        Dispatcher(fleet_of(name), "deadline", target=None, measure=False) for name in "ab"
    )
    claims, numbers = no_claims(4), np.array([3])
    recording = Recording(one, tmp_path / "a")
    recording.share_devices(claims, 0, numbers)
    other.share_devices(claims, 2, numbers)
    for step in range(2):
        server = other.arrive(0.0, step)
        assert other.ask_turn(server, 0.0, 0.0)
        other.start_run(server, 1, 0.0)
    assert recording.arrive(0.0, 1, 0.015) < 0
    recording.share_devices(no_claims(0), 0, numbers)
    claims[:2] = no_claims(1)
    server = recording.arrive(0.0, 2, 0.015)
    assert server >= 0
    recording.withdraw(server, 0, 0.1)
    recording.close()
    found = inferway.replay(tmp_path / "a", requests=None)
    assert found.differences == ()
    assert found.requests == 2


def test_rows_are_given_once_and_given_again(run: Any) -> None:
    async def main() -> None:
        gate = DeviceGate()
        pools = [site_of([Gate() for _ in range(n)], [1] * n).pool for n in (3, 1, 2, 4)]
        for pool in pools[:3]:
            pool.servers.share(gate)
        rows = [
            (int(pool.dispatcher.site.devices.at), pool.dispatcher.fleet.servers)
            for pool in pools[:3]
        ]
        assert rows == [(0, 3), (3, 1), (4, 2)]
        pools[0].servers.leave()
        pools[3].servers.share(gate)
        assert int(pools[3].dispatcher.site.devices.at) == 6
        claims = pools[3].dispatcher.site.devices.claims
        assert claims is pools[1].dispatcher.site.devices.claims
        assert len(pools[0].dispatcher.site.devices.claims) == 0
        assert claims.shape[1] == COLUMNS
        assert (claims[:, DEVICE] == -1).all()

    run(main())


def test_a_server_tells_what_it_holds_and_has_to_do() -> None:
    made = Dispatcher(fleet_of("a"), "deadline", target=None, measure=False)
    claims = no_claims(2)
    made.share_devices(claims, 0, np.array([0]))
    for _ in range(3):
        made.arrive(0.0, 1, classes=1)
    server = int(made.site.queue.argmax())
    assert made.ask_turn(server, 5.0, 0.0)
    made.start_run(server, 1, 0.0)
    row = claims[server]
    assert row[[DEVICE, TAKEN, HOLDS]].tolist() == [0, 1, 1]
    assert row[UNTIL_S] == pytest.approx(0.01)
    assert row[WORK_S] == pytest.approx(0.01 * (made.site.queue[server] - 1))
    made.end_run(server, 0.01)
    assert claims[server, HOLDS] == 0
    assert claims[server, UNTIL_S] == np.inf
