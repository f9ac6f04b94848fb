from __future__ import annotations

import asyncio
import time

import pytest

from inferway.loadgen import alarm as module


@pytest.mark.parametrize("kind", ["KernelAlarm", "Alarm"])
def test_wakes_once_at_each_set_and_never_early(kind):
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        woken: list[float] = []
        done = asyncio.Event()

        def due() -> None:
            woken.append(time.monotonic())
            if len(woken) < 20:
                clock.set(start + 0.005 * len(woken))
            else:
                done.set()

        clock = getattr(module, kind)(loop, due)
        start = time.monotonic() + 0.01
        clock.set(start + 3600)
        clock.set(start)
        async with asyncio.timeout(5):
            await done.wait()
        clock.close()
        return [at - start - 0.005 * i for i, at in enumerate(woken)]

    late = asyncio.run(run())
    assert len(late) == 20
    # The loop's timer may be early by the clock's resolution.
    assert min(late) > -1e-4
    # Nor late by what it does itself, which all would be; the machine makes some of them late.
    assert min(late) < 2e-3


@pytest.mark.parametrize("kind", ["KernelAlarm", "Alarm"])
def test_a_wake_up_that_is_moved_while_it_is_on_its_way_comes_once(kind):
    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        woken: list[float] = []
        came = asyncio.Event()

        def due() -> None:
            woken.append(time.monotonic())
            came.set()

        clock = getattr(module, kind)(loop, due)
        start = time.monotonic()
        clock.set(start + 0.001)
        time.sleep(0.005)  # the loop stands still while the first wake-up falls due
        clock.set(start + 0.05)
        async with asyncio.timeout(5):
            await came.wait()
        await asyncio.sleep(0.05)  # for another, which must not come
        clock.close()
        return [at - start for at in woken]

    (late,) = asyncio.run(run())
    assert late > 0.0499


def test_a_time_in_the_past_wakes_at_once():
    async def run() -> None:
        woken = asyncio.Event()
        clock = module.alarm(asyncio.get_running_loop(), woken.set)
        clock.set(0.0)
        async with asyncio.timeout(5):
            await woken.wait()
        clock.close()

    asyncio.run(run())
