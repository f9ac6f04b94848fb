"""Runs take turns at the device that their servers share: in which order, and who gives it up."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from doubling import LIMIT_S, SIGNATURE, Gate, One, give

from inferway.dispatch import Dispatcher
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.admin import status
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots


def site_of(gates: list[Gate], taken: list[int], cores: int = 1, **options: Any) -> TaskSite:
    """A server for each gate, all of them on one device."""
    classes = len(gates)
    fleet = Fleet(
        tuple("abcd"[:classes]),
        np.full(classes, 100.0),
        np.full(classes, 0.7),
        np.ones(classes, np.int64),
        buffer=4,
        devices=DeviceSlots(
            names=("cpu",),
            slots=np.array([cores]),
            exclusive=np.zeros(1, bool),
            overhead_s=np.zeros(1),
            device=np.zeros(classes, np.int64),
            taken=np.array(taken),
        ),
    )
    made = Dispatcher(fleet, "fastest-only", target=None, measure=True)
    return TaskSite.of(Pool("task", SIGNATURE, made, gates, PoolOptions(**options)))


async def opened(site: TaskSite, gates: list[Gate]) -> None:
    """Start, and hold back whoever comes from now on."""
    await site.start()
    for gate in gates:
        gate.seen()
        gate.opened.clear()


def one_of(k: int, deadline_s: float = np.inf) -> One:
    """A request pinned to a class."""
    one = One(float(k))
    one.request.classes, one.request.counted = 1 << k, False
    one.request.deadline_s = deadline_s
    return one


async def began(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1


def test_who_is_due_first_is_next_and_the_core_is_never_shared(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate() for _ in range(4)]
        site = site_of(gates, [1, 1, 1, 1], now=patient.time)
        await opened(site, gates)
        now_s = patient.time()
        ones = [one_of(0), one_of(1), one_of(2, now_s + 60.0), one_of(3, now_s + 50.0)]
        give(site, *ones)
        view = site.pool.dispatcher.site
        for k in (0, 3, 2, 1):  # the one without a deadline comes last
            await began(gates[k])
            assert all(gate.runs.empty() for gate in gates)
            assert view.devices.used.tolist() == [1]
            assert view.idle.tolist() == [0, 0, 0, 0]
            gates[k].opened.set()
            await ones[k].answer()
        assert view.devices.used.tolist() == [0]
        assert view.idle.tolist() == [1, 1, 1, 1]
        await site.stop()

    run(main())


def test_who_leaves_the_line_lets_those_behind_start(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = [Gate() for _ in range(3)]
        site = site_of(gates, [1, 2, 1], cores=2, now=patient.time)
        await opened(site, gates)
        small, wide, behind = one_of(0), one_of(1), one_of(2)
        give(site, small, wide, behind)
        await began(gates[0])
        # A core is free, but the first in line takes two, and nobody overtakes.
        assert gates[1].runs.empty()
        assert gates[2].runs.empty()
        told = status([site], ready=True)["tasks"]["task"]
        assert told["devices"] == {"cpu": {"slots": 2, "busy": 1, "waiting": 2}}
        site.cancel(wide.request)
        assert wide.outcome is Outcome.CANCELED
        await began(gates[2])
        for gate in gates:
            gate.opened.set()
        await small.answer()
        await behind.answer()
        view = site.pool.dispatcher.site
        assert view.devices.used.tolist() == [0]
        assert not view.devices.waits.any()
        told = status([site], ready=True)["tasks"]["task"]
        assert told["devices"] == {"cpu": {"slots": 2, "busy": 0, "waiting": 0}}
        await site.stop()

    run(main())


@pytest.mark.parametrize("late", [False, True])
def test_who_waits_too_long_for_the_device_is_dropped_and_no_slot_is_lost(
    run: Any, patient: Any, late: bool
) -> None:
    async def main() -> None:
        gates = [Gate() for _ in range(2)]
        site = site_of(gates, [1, 1], now=patient.time)
        await opened(site, gates)
        first, second, third = one_of(0), one_of(1, patient.time() + 1.0), one_of(1)
        give(site, first, second, third)
        await began(gates[0])
        if late:
            await patient.let(2.0)
            assert second.outcome is Outcome.EXPIRED
        gates[0].opened.set()
        gates[1].opened.set()
        await first.answer()
        if not late:
            await second.answer()
        await third.answer()
        assert site.pool.dispatcher.site.devices.used.tolist() == [0]
        await site.stop()

    run(main())


def test_a_run_that_fails_gives_its_slot_back(run: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate()]
        site = site_of(gates, [1, 1])
        await site.start()
        failing, other = one_of(0), one_of(1)
        failing.request.inputs["x"][:] = -1.0
        give(site, failing, other)
        await other.answer()
        await asyncio.wait_for(failing.ended, LIMIT_S)
        assert failing.outcome is Outcome.FAILED
        assert site.pool.dispatcher.site.devices.used.tolist() == [0]
        await site.stop()

    run(main())
