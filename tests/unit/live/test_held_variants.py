"""One model at a time on a device that fleets share, whoever goes while it is loaded."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from inferway.live.exclusive import HeldVariants
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots

LIMIT_S = 60.0


class Model:
    """Notes when it comes and goes, and comes once it may."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes
        self.asked, self.may = threading.Event(), threading.Event()
        self.may.set()

    def load(self) -> None:
        self.asked.set()
        assert self.may.wait(LIMIT_S)
        self.notes.append(f"load {self.name}")

    def unload(self) -> None:
        self.notes.append(f"unload {self.name}")


def held_of(task: str, model: Any) -> HeldVariants:
    devices = DeviceSlots(
        names=("gpu",),
        slots=np.ones(1, np.int64),
        exclusive=np.ones(1, bool),
        overhead_s=np.zeros(1),
        device=np.zeros(1, np.int64),
        taken=np.ones(1, np.int64),
        load_s=np.ones(1),
    )
    one = np.ones(1)
    fleet = Fleet(("v",), one, one, np.ones(1, np.int64), devices=devices)
    return HeldVariants(task, fleet, {0: model})


def test_who_comes_waits_for_a_load_whose_fleet_has_gone() -> None:
    async def main() -> None:
        notes = list[str]()
        gone, other = Model("gone", notes), Model("other", notes)
        first, second = held_of("a", gone), held_of("b", other)
        second.contents = first.contents
        gone.may.clear()
        loading = asyncio.create_task(first.load(0))
        assert await asyncio.to_thread(gone.asked.wait, LIMIT_S)
        first.leave()
        following = asyncio.create_task(second.load(0))
        gone.may.set()
        await asyncio.gather(loading, following)
        assert notes == ["load gone", "unload gone", "load other"]
        assert (first.name_of("gpu"), second.name_of("gpu")) == ("b/v", "v")

    asyncio.run(main())


def test_who_gives_up_a_load_leaves_the_device_to_nobody_before_its_end() -> None:
    async def main() -> None:
        notes = list[str]()
        slow, other = Model("slow", notes), Model("other", notes)
        first, second = held_of("a", slow), held_of("b", other)
        second.contents = first.contents
        slow.may.clear()
        loading = asyncio.create_task(first.load(0))
        assert await asyncio.to_thread(slow.asked.wait, LIMIT_S)
        loading.cancel()
        following = asyncio.create_task(second.load(0))
        await asyncio.gather(loading, return_exceptions=True)
        assert loading.cancelled()
        assert not other.asked.is_set()
        slow.may.set()
        await following
        assert notes == ["load slow", "unload slow", "load other"]

    asyncio.run(main())


def test_what_is_loaded_when_its_fleet_has_gone_is_given_up_again() -> None:
    async def main() -> None:
        notes = list[str]()
        gone = Model("gone", notes)
        held = held_of("a", gone)
        gone.may.clear()
        loading = asyncio.create_task(held.load(0))
        assert await asyncio.to_thread(gone.asked.wait, LIMIT_S)
        held.leave()
        gone.may.set()
        await loading
        assert notes == ["load gone", "unload gone"]
        assert held.name_of("gpu") is None

    asyncio.run(main())
