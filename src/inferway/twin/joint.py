"""Tasks that share devices, simulated in one loop: their engines, and what keeps them in step.

A task asks for something: so many arrivals, a time, or that its requests leave. The loop runs on
until one of the tasks has that, while all others go on as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numba.core.types import float64, int64

from inferway.dispatch.contract import policy_class
from inferway.dispatch.dispatcher import faults_of
from inferway.site.compiled import address_of, call_of, entry
from inferway.site.handle import Pinned, pin
from inferway.site.joined import joined
from inferway.site.view import ALL_CLASSES, Floats
from inferway.twin.engine import CrowdedError, GeneralEngine, reads_times
from inferway.twin.kernel import joint, others, state
from inferway.twin.kernel.joint import ARRIVING, AT, DRAINING, IDLE, MODE, STOP, Seat
from inferway.twin.kernel.others import AS_ASKED
from inferway.twin.kernel.state import DONE, Records
from inferway.twin.scenario import Scenario

_ACT, _RUN = entry(joint.act), entry(joint.run)


def share_devices(scenarios: Mapping[str, Scenario]) -> bool:
    """Tell whether runs of one of these tasks may wait for those of another at a device."""
    wanted: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    slots: dict[str, int] = {}
    for one in scenarios.values():
        devices = one.fleet.devices
        if devices is None:
            continue
        here = devices.load(np.ones(len(one.fleet.rate))) @ one.fleet.count
        slots |= dict(zip(devices.names, devices.slots.tolist(), strict=True))
        for name, taken in zip(devices.names, here.tolist(), strict=True):
            wanted[name] += taken
            tasks[name] += taken > 0
    return any(tasks[name] > 1 and wanted[name] > count for name, count in slots.items())


class SharingEngine(GeneralEngine):
    """The general engine of a task whose devices others share; a `JointLoop` moves it."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        replication: int,
        sink: Callable[[Records], None] | None,
        shared: Floats | None,
        times: bool,
    ) -> None:
        records = sink is not None
        super().__init__(scenario, seed, replication, "general", records, sink, shared, times)
        self.until_s = np.inf
        self.course = np.array([0, 0, IDLE])
        self.seat = Pinned(None, None)
        self._laid: tuple[Any, Any] = None, None

    def going(self, arrivals: int, until_s: float) -> Generator[float, None, int]:
        """Run as `advance` does; it gives the time where the loop has to go on."""
        left = arrivals
        while left > 0 and self.now_s < until_s:
            if self._at == len(self._times_s) and not self.fetch():
                break
            before = self._at
            self.course[:] = before, min(before + left, len(self._times_s)), ARRIVING
            yield from self._asking(until_s)
            self._at = int(self.course[AT])
            left -= self._at - before
        return arrivals - left

    def exploring(self, k: int) -> Generator[float, None, int]:
        """Run until one more request has arrived, which goes to class k; how many have arrived."""
        self.world.counts[state.CLASSES] = 1 << k
        try:
            return (yield from self.going(1, np.inf))
        finally:
            self.world.counts[state.CLASSES] = ALL_CLASSES

    def emptying(self) -> Generator[float, None, None]:
        """Run until the site is empty, or until nothing that is left will leave."""
        self.course[MODE] = DRAINING
        yield from self._asking(np.inf)

    def _asking(self, until_s: float) -> Generator[float, None, None]:
        self.until_s = until_s
        try:
            yield self.now_s
        finally:  # nothing more arrives until it asks again
            self.until_s = np.inf
            self.course[STOP], self.course[MODE] = self.course[AT], IDLE

    def lay_out(self) -> None:
        """Make what the loop looks at that of now."""
        laid = self.world, self._times_s
        if laid[0] is not self._laid[0] or laid[1] is not self._laid[1]:
            seat = Seat(
                self.world,
                np.require(self._times_s, np.float64, ["C", "W"]),
                np.require(self._phases, np.int64, ["C", "W"]),
                self.course,
            )
            self.seat = pin(seat, None if self._laid[0] is None else self.seat)
            self._laid = laid
        self.world.since_s[1] = self.now_s


class JointLoop:
    """Moves the engines of tasks that share devices."""

    def __init__(self, engines: Sequence[SharingEngine]) -> None:
        self._engines = engines
        sites = joined([one.site for one in engines])
        every = sites[0].devices.joined.every
        servers = np.cumsum([0, *(len(one.queue) for one in sites)])
        self._others = others.alone(servers, every.held, np.full(len(engines), np.inf))
        for number, (engine, site) in enumerate(zip(engines, sites, strict=True)):
            engine.world = engine.world._replace(
                bound=engine.world.bound._replace(site=site),
                others=self._others._replace(number=number),
            )
            engine.lay_out()
            with faults_of(engine.scenario.policy, engine.policy):
                self._others.act[number] = address_of(_ACT, engine.seat.kind, int64, float64)
        self._pinned = pin(self._others)
        self._run = call_of(_RUN, self._pinned.kind, float64, float64)

    def advance(self) -> dict[int, CrowdedError | None]:
        """Run until a task has what it asked for; which ones, and why one has to be given up."""
        engines, told = self._engines, self._others
        while True:
            for number, engine in enumerate(engines):
                engine.lay_out()
                told.seat[number] = engine.seat.handle
            began_s = engines[0].now_s
            self._call(began_s, min(one.until_s for one in engines))
            met: dict[int, CrowdedError | None] = {}
            for number, engine in enumerate(engines):
                engine.count_lengths(began_s)
                ended = int(told.ended[number])
                if ended == AS_ASKED or engine.until_s <= engine.now_s:
                    met[number] = None
                if ended in (DONE, AS_ASKED):
                    continue
                try:
                    engine.check(ended)
                    engine.mend(ended)
                except CrowdedError as error:
                    met[number] = error
            if met:
                return met

    def _call(self, now_s: float, until_s: float) -> None:
        engines, told = self._engines, self._others
        start_s, before = time.thread_time(), [int(one.course[AT]) for one in engines]
        try:
            now_s = self._run(self._pinned.handle, now_s, until_s)
        except Exception:
            engine = engines[int(told.acting[0])]
            with faults_of(engine.scenario.policy, engine.policy):
                raise
        took_s = time.thread_time() - start_s
        # Tasks share what it takes by how many requests came.
        came = [1 + int(one.course[AT]) - at for one, at in zip(engines, before, strict=True)]
        for number, engine in enumerate(engines):
            engine.cpu_s += took_s * came[number] / sum(came)
            present = engine.world.counts[state.PRESENT]
            engine.tally.area[0] += present * (now_s - told.counted_s[number])
            told.counted_s[number] = now_s
        engines[0].site.clock_s[0] = now_s


def engines_of(
    scenarios: Sequence[Scenario],
    *,
    seeds: Sequence[int],
    replication: int,
    sinks: Sequence[Callable[[Records], None] | None],
    shared: Floats | None,
) -> list[SharingEngine]:
    """Engines of tasks that share devices, at time 0.

    Where the policy of one looks at predictions, the times of all are kept up. ValueError where one
    has an exclusive device.
    """
    for one in scenarios:
        devices = one.fleet.devices
        if devices is not None and devices.exclusive[devices.device[devices.device >= 0]].any():
            raise ValueError(
                f"{one.fleet.task or 'a task'} has an exclusive device, and in the twin tasks that "
                "share devices have none"
            )
    times = any(
        one.deadline_s is not None
        or one.scheduling is not None
        or reads_times(policy_class(one.policy, one.folder), devices=True)
        for one in scenarios
    )
    return [
        SharingEngine(one, seed, replication, sink, shared if one.targets else None, times)
        for one, seed, sink in zip(scenarios, seeds, sinks, strict=True)
    ]
