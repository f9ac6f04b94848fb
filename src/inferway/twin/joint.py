"""Tasks that share devices or a policy, in one loop: their engines, and what keeps them in step.

A task asks for something: so many arrivals, a time, or that its requests leave. The loop runs on
until one of the tasks has that, while all others go on as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numba.core.types import float64, int64

from inferway.dispatch.contract import policy_class
from inferway.dispatch.dispatcher import faults_of
from inferway.dispatch.turns import NEVER_DUE_S
from inferway.scheduling import Controller, controller_of
from inferway.site.compiled import address_of, call_of, entry
from inferway.site.handle import Pinned, pin
from inferway.site.joined import abreast, by_itself, joined
from inferway.site.view import ALL_CLASSES, Changes, Floats, Ints
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
    exclusive: set[str] = set()
    for one in scenarios.values():
        devices = one.fleet.devices
        if devices is None:
            continue
        here = devices.load(np.ones(len(one.fleet.rate))) @ one.fleet.count
        slots |= dict(zip(devices.names, devices.slots.tolist(), strict=True))
        exclusive |= {name for d, name in enumerate(devices.names) if devices.exclusive[d]}
        for name, taken in zip(devices.names, here.tolist(), strict=True):
            wanted[name] += taken
            tasks[name] += taken > 0
    return any(
        tasks[name] > 1 and (wanted[name] > count or name in exclusive)
        for name, count in slots.items()
    )


def in_one_loop(scenarios: Mapping[str, Scenario]) -> bool:
    """Tell whether tasks go on event by event together: for devices, or for one policy."""
    return share_devices(scenarios) or any(one.together for one in scenarios.values())


def seed_among(seed: int, place: int) -> int:
    """The seed of a task among others: the first one has that of a task alone."""
    return seed if place == 0 else int(np.random.SeedSequence((seed, place)).generate_state(1)[0])


class SharingEngine(GeneralEngine):
    """The general engine of a task among others that are in its loop; a `JointLoop` moves it."""

    # Routes the requests of several tasks, of which this is one; None where none does.
    steering: JointSteering | None = None

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
        self.queues: Pinned | None = None  # Its site by itself, where others look at it

    def reroute(self) -> None:
        """Let the controller decide now: for this task, or for all that it schedules together."""
        if self.steering is None:
            super().reroute()
        else:
            self.steering.decide()

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

    def offer(self, times_s: Floats, phases: Ints, count: int, until_s: float) -> None:
        """Take the first of these arrivals, so many, of which the last is inf, for `JointLoop.run`.

        The arrays are read until it returns.
        """
        self._times_s, self._phases, self._at = times_s, phases, 0
        self.course[:] = 0, count, ARRIVING
        self.until_s = until_s

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
            changes = getattr(self.site.devices, "changes", None)
            if isinstance(changes, Changes):  # its line looks at the queues of all tasks
                self.queues = pin(by_itself(self.site), self.queues)
                changes.line.sites[self.world.others.number] = self.queues.handle
        self.world.since_s[1] = self.now_s


class JointSteering:
    """One controller that looks at the sites of several tasks and routes the requests of each.

    The engines are in the order of the controller's tasks.
    """

    def __init__(self, engines: Sequence[SharingEngine]) -> None:
        self._engines = engines
        self._decided_s = np.nan

    def decide(self) -> None:
        """Decide at the time that it is now, once, whichever of the tasks ask for it."""
        engines, now_s = self._engines, self._engines[0].now_s
        if now_s == self._decided_s:
            return
        self._decided_s = now_s
        signals = [engine.signal() for engine in engines]
        routings = engines[0].controller.decide([one.site for one in engines], signals)
        for engine, routing in zip(engines, routings, strict=True):
            engine.follow(routing)


class JointLoop:
    """Moves the engines of tasks that share devices or a policy."""

    def __init__(self, engines: Sequence[SharingEngine]) -> None:
        self._engines = engines
        alone = [one.site for one in engines]
        if engines[0].scenario.fleet.devices is None:
            sites, held = abreast(alone)
        else:
            deadlines_s = [one.scenario.deadline_s for one in engines]
            due_after_s = np.array([NEVER_DUE_S if one is None else one for one in deadlines_s])
            sites = joined(alone, due_after_s)
            held = sites[0].devices.joined.every.held
        servers = np.cumsum([0, *(len(one.queue) for one in sites)])
        self._others = others.alone(servers, held, np.full(len(engines), np.inf))
        for number, (engine, site) in enumerate(zip(engines, sites, strict=True)):
            engine.world = engine.world._replace(
                bound=engine.world.bound._replace(site=site),
                others=self._others._replace(number=number),
            )
            engine.lay_out()
            with faults_of(engine.scenario.policy, engine.policy):
                self._others.act[number] = address_of(_ACT, engine.seat.kind, int64, float64)
        # Compiled code takes one task's queues for those of any.
        assert len({one.queues and one.queues.kind for one in engines}) == 1
        by_task = {one.scenario.fleet.task: one for one in engines}
        for tasks in {one.scenario.together for one in engines} - {()}:
            steering = JointSteering([by_task[name] for name in tasks])
            for name in tasks:
                by_task[name].steering = steering
        self._pinned = pin(self._others)
        self._run = call_of(_RUN, self._pinned.kind, float64, float64)

    def run(self, until_s: float) -> None:
        """Run through the arrivals that all tasks were offered, up to a time.

        CrowdedError where there are too many requests.
        """
        while self._engines[0].now_s < until_s:
            for error in self.advance().values():
                if error is not None:
                    raise error

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
    """Engines of tasks that share devices or a policy, at time 0.

    Where the policy of one looks at predictions, the times of all are kept up. ValueError where
    some have devices and others none, or a task is missing that is scheduled together with one of
    these.
    """
    if len({one.fleet.devices is None for one in scenarios}) > 1:
        raise ValueError("tasks that share a policy all have devices of one node, or none has any")
    scenarios = _steered(scenarios)
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


def _steered(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Give tasks that are scheduled together the controller of all of them.

    ValueError where one of them is missing, or the controller lacks what it needs.
    """
    by_task = {one.fleet.task: one for one in scenarios}
    controllers: dict[tuple[str, ...], Controller | None] = {}
    for one in scenarios:
        tasks, spec = one.together, one.scheduling
        if not tasks or tasks in controllers:
            continue
        if missing := [name for name in tasks if name not in by_task]:
            raise ValueError(
                f"scheduling.tasks: {one.fleet.task} is scheduled together with "
                f"{' and '.join(missing)}, which is left out"
            )
        assert spec is not None
        conditions = [by_task[name].conditions for name in tasks]
        controllers[tasks] = controller_of(spec, conditions, one.folder)
    return [
        replace(one, steered_by=controllers[one.together]) if one.together else one
        for one in scenarios
    ]
