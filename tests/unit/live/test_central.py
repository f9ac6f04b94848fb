"""One queue for all servers: who waits in it, who goes when, and what becomes of deadlines."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.live import InferRequest, Outcome, Pool, PoolOptions, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S = 10.0


class Gate(NullRuntime):
    """Lets a request through each time that it is told to, after its warm-up."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.gated = False
        self.passes = threading.Semaphore(0)
        self.begun: queue.SimpleQueue[float] = queue.SimpleQueue()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.gated:
            self.begun.put(float(inputs["x"][0, 0]))
            assert self.passes.acquire(timeout=LIMIT_S)
        return super().run(inputs)


class Line:
    """A site of two servers with a central queue, on a clock that stands."""

    def __init__(self, patient: Any, policy: str = "jiq-fast", **options: Any) -> None:
        self.gates = Gate(), Gate()
        # 0.1 s and 10 s.
        fleet = Fleet(
            ("tiny", "big"), np.array([10.0, 0.1]), np.array([0.7, 0.9]), np.array([1, 1]), buffer=1
        )
        narrow = options.get("drop_late", True)
        dispatcher = Dispatcher(fleet, policy, target=0.8, rate_per_s=1.0, narrow=narrow)
        self.site = TaskSite.of(
            Pool(
                "task",
                SIGNATURE,
                dispatcher,
                self.gates,
                PoolOptions(in_order=True, now=patient.time, **options),
            )
        )
        self.patient = patient
        self.ended: list[int] = []

    async def start(self) -> Line:
        await self.site.start()
        for gate in self.gates:
            gate.gated = True
        return self

    def submit(self, number: int, within_s: float | None = None, **said: Any) -> InferRequest:
        def deliver(one: InferRequest) -> None:
            self.ended.append(number)
            event.set()

        event = asyncio.Event()
        tensor = np.full((1, 2), number, np.float32)
        one = InferRequest({"x": tensor}, 1, deliver, event, self.patient.time())
        if within_s is not None:
            one.deadline_s = self.patient.time() + within_s
        for name, value in said.items():
            setattr(one, name, value)
        self.site.submit(one)
        return one

    async def free(self, server: int, one: InferRequest) -> None:
        """Let a server answer the request that it has."""
        self.gates[server].passes.release()
        await one.context.wait()
        for _ in range(2):  # what that sets off
            await asyncio.sleep(0)

    @property
    def held(self) -> list[int]:
        return [int(one.inputs["x"][0, 0]) for one in self.site.pool.held]

    @property
    def serving(self) -> list[int | None]:
        return [int(one[0].inputs["x"][0, 0]) if one else None for one in self.site.pool.queues]

    async def stop(self) -> None:
        for gate in self.gates:
            for _ in range(20):
                gate.passes.release()
        await self.site.stop(LIMIT_S)


def test_first_come_first_served_by_whatever_falls_free(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient).start()
        one, two, three, four, _ = (line.submit(i) for i in range(1, 6))
        assert (line.serving, line.held) == ([1, 2], [3, 4, 5])
        assert line.site.pool.dispatcher.site.held[0] == 3
        await line.free(1, two)
        assert (line.serving, line.held) == ([1, 3], [4, 5])
        await line.free(0, one)
        assert (line.serving, line.held) == ([4, 3], [5])
        await line.free(0, four)
        await line.free(1, three)
        assert (line.serving, line.held) == ([5, None], [])
        assert line.ended == [2, 1, 4, 3]
        await line.stop()
        assert line.ended[-1] == 5

    run(main())


def test_its_room_bounds_it_and_priority_makes_room(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient, room=2).start()
        for i in range(1, 4):
            line.submit(i)
        low = line.submit(4, priority=5)
        refused = line.submit(5)
        assert (refused.outcome, "no room" in refused.reason) == (Outcome.REJECTED, True)
        # The first server is idle in 0.1 s, and then the first of the queue goes.
        assert refused.retry_after_s == pytest.approx(0.1)
        assert line.held == [3, 4]
        line.submit(6, priority=1)
        assert line.held == [4, 6]
        line.submit(7, priority=2)
        assert line.held == [6, 7]
        assert low.outcome is Outcome.REJECTED
        await line.stop()

    run(main())


def test_without_room_nobody_waits(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient, room=0).start()
        line.submit(1)
        line.submit(2)
        assert line.submit(3).outcome is Outcome.REJECTED
        assert line.submit(4, priority=1).outcome is Outcome.REJECTED
        await line.stop()

    run(main())


def test_who_needs_a_busy_server_waits_for_it_and_is_not_overtaken(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient).start()
        big = line.site.pool.mask_of("big")
        line.submit(1, classes=big)
        pinned = line.submit(2, classes=big)
        # Though `tiny` is idle: who was first is first.
        line.submit(3)
        assert (line.serving, line.held) == ([None, 1], [2, 3])
        # When the first goes, the next is decided at once.
        line.site.cancel(pinned)
        assert (line.serving, line.held) == ([3, 1], [])
        await line.stop()

    run(main())


def test_a_policy_that_wants_a_busy_server_waits_for_it(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient, "most-accurate-only").start()
        one = line.submit(1)
        line.submit(2)
        assert (line.serving, line.held) == ([None, 1], [2])
        await line.free(1, one)
        assert (line.serving, line.held) == ([None, 2], [])
        await line.stop()

    run(main())


def test_deadlines_in_line(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient).start()
        one = line.submit(1)
        line.submit(2)
        # No server could make it, were it idle: refused at once.
        hasty = line.submit(3, within_s=0.05)
        assert hasty.outcome is Outcome.REJECTED
        assert "no answer is predicted before" in hasty.reason
        expired = line.submit(4, within_s=1.0)
        line.submit(5)
        await patient.let(0.9)
        assert line.held == [4, 5]
        await patient.let(0.2)
        assert (expired.outcome, line.held) == (Outcome.EXPIRED, [5])
        # The slow server could not be in time for the next one; it waits for the fast one.
        line.submit(6, within_s=5.0)
        await line.free(0, one)
        assert (line.serving, line.held) == ([5, 2], [6])
        await line.stop()

    run(main())


def test_the_first_waits_for_the_server_that_is_in_time(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient).start()
        one, two = line.submit(1), line.submit(2)
        urgent = line.submit(3, within_s=5.0)
        await line.free(1, two)
        assert (line.serving, line.held) == ([1, None], [3])
        await line.free(0, one)
        assert (line.serving, line.held) == ([3, None], [])
        assert urgent.timer is None
        await line.stop()

    run(main())


def test_late_ones_are_served_where_the_file_says_so(run: Any, patient: Any) -> None:
    async def main() -> None:
        line = await Line(patient, drop_late=False).start()
        one, two = line.submit(1), line.submit(2)
        hasty, late = line.submit(3, within_s=0.05), line.submit(4, within_s=1.0)
        assert line.held == [3, 4]
        await patient.let(2.0)
        assert line.held == [3, 4]
        await line.free(1, two)
        await line.free(0, one)
        assert line.serving == [4, 3]
        await line.free(1, hasty)
        await line.free(0, late)
        assert [hasty.outcome, late.outcome] == [Outcome.ANSWERED] * 2
        assert hasty.late
        assert late.late
        assert sum(line.site.stats.late) == 2
        await line.stop()

    run(main())


def test_a_queue_at_the_servers_is_refused() -> None:
    fleet = Fleet(("a",), np.array([1.0]), np.array([0.7]), np.array([1]), buffer=2)
    with pytest.raises(ValueError, match="2 places at each server; there must be one"):
        TaskSite.of(
            Pool(
                "task",
                SIGNATURE,
                Dispatcher(fleet, "jiq-fast", target=None),
                [NullRuntime(SIGNATURE)],
                PoolOptions(in_order=True),
            )
        )
