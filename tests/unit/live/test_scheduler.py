"""A scheduler that looks at real queues, slot by slot, on a clock that stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubling import SIGNATURE, Gate, One, give

from inferway.dispatch import Dispatcher
from inferway.dispatch.replay import replay
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.pool import schedule
from inferway.scheduling import ForOneTask, Routing, Signal
from inferway.site import Fleet


class Shares:
    """All to the server with the shortest queue, and what it was asked is written down."""

    sees_phase = False

    def __init__(self, slot_s: float = 1.0, on_rejection: bool = False) -> None:
        self.slot_s, self.on_rejection = slot_s, on_rejection
        self.seen: list[tuple[float, list[int]]] = []
        self.failure: Exception | None = None
        self.away = False

    def observe(self, site: Any, signal: Signal) -> list[int]:
        assert signal.phase == -1
        self.seen.append((float(site.clock_s[0]), site.queue.tolist()))
        away = [0 if healthy else 99 for healthy in site.healthy.tolist()]
        return [*away, *site.queue.tolist()]

    def act(self, observation: list[int]) -> Routing | None:
        if self.failure is not None:
            raise self.failure
        if self.away:
            return None
        count = len(observation) // 2
        loads = np.array(observation[:count]) + np.array(observation[count:])
        ones = np.ones(2, np.int64)
        return Routing(np.eye(count)[int(np.argmin(loads))], ones, ones)


def site_of(controller: Any, *gates: Gate, policy: str = "alias", **options: Any) -> TaskSite:
    """One server of each of two variants."""
    fleet = Fleet(
        ("tiny", "big"),
        np.array([1e3, 1e2]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        buffer=options.pop("buffer", 4),
    )
    made = Dispatcher(fleet, policy, target=None)
    given = gates or (Gate(), Gate())
    asked = None if controller is None else ForOneTask(controller)
    return TaskSite.of(
        Pool("task", SIGNATURE, made, given, PoolOptions(controller=asked, **options))
    )


def held(*gates: Gate) -> None:
    for gate in gates:
        gate.seen()
        gate.opened.clear()


def test_each_slot_sets_the_routing_from_the_real_queues(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = Gate(), Gate()
        controller = Shares()
        site = site_of(controller, *gates, now=patient.time)
        await site.start()
        held(*gates)
        ones = [One(1.0) for _ in range(3)]
        give(site, *ones[:2])
        assert [one.request.server for one in ones[:2]] == [0, 0]
        began_s = patient.time()
        assert controller.seen[-1] == (began_s, [0, 0])
        await patient.let(0.9)
        assert controller.seen[-1][0] == began_s
        await patient.let(0.2)
        assert controller.seen[-1][0] == pytest.approx(began_s + 1.1)
        assert controller.seen[-1][1] == [2, 0]
        give(site, ones[2])
        assert ones[2].request.server == 1
        assert site.pool.dispatcher.routing.tolist() == [0.0, 1.0]
        # A loop that was held up does not make up for the slots that it missed.
        assert site.pool.scheduler is not None
        slots = site.pool.scheduler.slots
        await patient.let(10.0)
        assert site.pool.scheduler.slots == slots + 1
        await patient.let(1.0)
        assert site.pool.scheduler.slots == slots + 2
        for gate in gates:
            gate.opened.set()
        for one in ones:
            await one.answer()
        await site.stop()
        seen = len(controller.seen)
        await patient.let(5.0)
        assert len(controller.seen) == seen

    run(main())


def test_failures_and_returns_are_decided_on_at_once(run: Any, patient: Any) -> None:
    async def main() -> None:
        controller = Shares(slot_s=1e6)
        site = site_of(controller, policy="steered", now=patient.time)
        await site.start()
        assert site.pool.dispatcher.routing.tolist() == [1.0, 0.0]
        site.pool._mark(0, False, "broken")
        assert site.pool.dispatcher.routing.tolist() == [0.0, 1.0]
        # No policy for what is left: each request is left to `deadline`.
        controller.away = True
        site.pool._mark(0, True, "")
        assert site.pool.dispatcher.routing is None
        one = One(1.0)
        give(site, one)
        await one.answer()
        assert one.request.variant == "big"
        await site.stop()

    run(main())


def test_rejections_of_one_pass_are_one_event(run: Any, patient: Any) -> None:
    async def main() -> None:
        gates = Gate(), Gate()
        controller = Shares(slot_s=1e6, on_rejection=True)
        site = site_of(controller, *gates, buffer=2, now=patient.time)
        await site.start()
        held(*gates)
        before = len(controller.seen)
        ones = [One(1.0) for _ in range(5)]
        give(site, *ones)
        assert [one.outcome for one in ones[2:]] == [Outcome.REJECTED] * 3
        await patient.let(0.0)
        assert len(controller.seen) == before + 1
        more = One(1.0)
        give(site, more)
        assert more.request.server == 1
        for gate in gates:
            gate.opened.set()
        await site.stop(10.0)

    run(main())


def test_a_controller_that_breaks_leaves_the_routing(run: Any, patient: Any) -> None:
    async def main() -> None:
        controller = Shares()
        site = site_of(controller, now=patient.time)
        await site.start()
        told: list[Any] = []
        patient.set_exception_handler(lambda _, what: told.append(what["exception"]))
        controller.failure = ValueError("nan")
        await patient.let(1.0)
        assert told == [controller.failure]
        assert site.pool.dispatcher.routing.tolist() == [1.0, 0.0]
        controller.failure = None
        await patient.let(1.0)
        assert len(told) == 1
        assert site.pool.scheduler is not None
        assert site.pool.scheduler.slots == 3
        await site.stop()

    run(main())


def test_an_heir_routes_by_its_own_scheduler(run: Any, patient: Any) -> None:
    async def main() -> None:
        class Other(Shares):
            def act(self, observation: list[int]) -> Routing:
                ones = np.ones(2, np.int64)
                return Routing(np.array([0.25, 0.75]), ones, ones)

        site = site_of(Shares(), policy="steered", now=patient.time)
        new = site_of(Other(), policy="steered", now=patient.time).pool
        await site.start()
        await site.prepare(new)
        site.swap(new)
        assert new.dispatcher.routing.tolist() == [0.25, 0.75]
        await site.stop()

    run(main())


def test_an_explanation_says_the_probabilities(run: Any, patient: Any) -> None:
    async def main() -> None:
        site = site_of(Shares(), now=patient.time)
        await site.start()
        one = One(1.0)
        one.request.id = b"x"
        give(site, one)
        await one.answer()
        told = site.log.explain(b"x")
        assert told is not None
        assert [each["probability"] for each in told["candidates"]] == [[1.0], [0.0]]
        assert told["reason"] == (
            "the scheduler's probabilities drew tiny; they were 1 tiny, 0 big"
        )
        await site.stop()

    run(main())


@pytest.mark.parametrize("rows", [50, 1_000_000])
def test_a_replay_follows_the_routing(run: Any, patient: Any, tmp_path: Path, rows: int) -> None:
    async def main() -> None:
        controller = Shares(slot_s=0.05)
        site = site_of(controller, policy="steered", buffer=3, now=patient.time)
        await site.start()
        site.pool.record(tmp_path / "run")
        recording: Any = site.pool.dispatcher
        recording._rows = rows
        ones = []
        for step in range(300):
            controller.away = step % 100 > 80
            ones.append(One(1.0))
            give(site, ones[-1])
            if step % 3 == 0:
                await patient.let(0.04)
        await site.stop(10.0)
        found = replay(tmp_path / "run", requests=None)
        assert found.differences == ()
        assert found.requests == 300 if rows > 300 else 16 * 5 < found.requests <= 300
        assert {one.request.server for one in ones} >= {0, 1}

    run(main())


class Together:
    """Sends each task's requests to one of its servers, and writes down what it was shown."""

    sees_phase = False

    def __init__(self, slot_s: float = 1.0, on_rejection: bool = False) -> None:
        self.slot_s, self.on_rejection = slot_s, on_rejection
        self.seen: list[tuple[list[float], list[list[int]]]] = []

    def decide(self, sites: Any, signals: list[Signal]) -> list[Routing]:
        assert [one.phase for one in signals] == [-1] * len(sites)
        clocks = [float(site.clock_s[0]) for site in sites]
        self.seen.append((clocks, [site.queue.tolist() for site in sites]))
        ones = np.ones(2, np.int64)
        # The busier task has its first server, and the other one its second.
        first, second = (sum(queue) for queue in self.seen[-1][1])
        return [
            Routing(np.eye(2)[0 if mine >= other else 1], ones, ones)
            for mine, other in ((first, second), (second, first))
        ]


def both(controller: Together, now: Any, buffer: int = 4) -> tuple[list[TaskSite], list[Gate]]:
    gates = [Gate() for _ in range(4)]
    sites = [site_of(None, *gates[k : k + 2], now=now, buffer=buffer) for k in (0, 2)]
    schedule(controller, [site.pool for site in sites])
    return sites, gates


def test_one_controller_routes_the_requests_of_several_tasks(run: Any, patient: Any) -> None:
    async def main() -> None:
        controller = Together()
        sites, gates = both(controller, patient.time)
        await sites[0].start()
        assert controller.seen == []  # the other one is not there yet
        await sites[1].start()
        assert controller.seen[-1] == ([patient.time()] * 2, [[0, 0], [0, 0]])
        held(*gates)
        ones = [One(1.0), One(1.0)]
        give(sites[1], *ones)
        await patient.let(1.0)
        assert controller.seen[-1] == ([patient.time()] * 2, [[0, 0], [2, 0]])
        assert [site.pool.dispatcher.routing.tolist() for site in sites] == [[0, 1], [1, 0]]
        schedulers = [site.pool.scheduler for site in sites]
        assert [one and one.slots for one in schedulers] == [2, 2]
        loop_s = sum(one.spent_s for one in schedulers if one is not None)
        assert 0.0 < loop_s <= 2 * max(one.longest_s for one in schedulers if one is not None)
        # A failure of one task's instance is decided on for both.
        seen = len(controller.seen) + 1
        sites[0].pool._mark(0, False, "broken")
        assert len(controller.seen) == seen
        for gate in gates:
            gate.opened.set()
        for one in ones:
            await one.answer()
        for site in sites:
            await site.stop()
        await patient.let(5.0)
        assert len(controller.seen) == seen

    run(main())


def test_a_rejection_of_one_task_is_an_event_for_all(run: Any, patient: Any) -> None:
    async def main() -> None:
        controller = Together(slot_s=1e6, on_rejection=True)
        sites, gates = both(controller, patient.time, buffer=2)
        for site in sites:
            await site.start()
        held(*gates)
        before = len(controller.seen)
        give(sites[0], *(One(1.0) for _ in range(5)))
        await patient.let(0.0)
        assert len(controller.seen) == before + 1
        assert [site.pool.dispatcher.routing.tolist() for site in sites] == [[1, 0], [0, 1]]
        for gate in gates:
            gate.opened.set()
        for site in sites:
            await site.stop(10.0)

    run(main())


def test_fleets_that_take_over_count_on(run: Any, patient: Any) -> None:
    async def main() -> None:
        before, after = Together(), Together()
        sites, _ = both(before, patient.time)
        for site in sites:
            await site.start()
        for _ in range(3):
            await patient.let(1.0)
        slots = [site.pool.scheduler.slots for site in sites if site.pool.scheduler is not None]
        assert slots == [4, 4]
        others, _ = both(after, patient.time)
        for site, other in zip(sites, others, strict=True):
            await site.prepare(other.pool)
        leaving = [site.swap(other.pool) for site, other in zip(sites, others, strict=True)]
        for site in sites:
            assert site.pool.scheduler is not None
            assert site.pool.scheduler.slots == 5
        for one in leaving:
            if one is not None:
                await one
        seen = len(before.seen)
        for _ in range(2):
            await patient.let(1.0)
        assert len(before.seen) == seen
        assert [site.pool.scheduler.slots for site in sites if site.pool.scheduler] == [7, 7]
        for site in sites:
            await site.stop()

    run(main())
