"""Instances that fail and recover, on a clock that stands still."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.live import InferRequest, Outcome, Pool, PoolOptions, TaskSite
from inferway.live.instance import FAILURES
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
OPEN = Signature((Tensor("x", "FP32", (-1, -1)),), (Tensor("y", "FP32", (-1, -1)),))
LIMIT_S = 10.0


class Sick(NullRuntime):
    """Fails while it is told to; each run waits for `opened`."""

    def __init__(self, signature: Signature = SIGNATURE) -> None:
        super().__init__(signature)
        self.sick = False
        self.picky = False
        """Whether it fails at anything but zeros."""
        self.opened = threading.Event()
        self.opened.set()
        self.runs: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs.put(len(inputs["x"]))
        assert self.opened.wait(LIMIT_S)
        if self.sick or inputs["x"].size == 1 or (self.picky and inputs["x"].any()):
            # Zeros for open axes do not fit.
            raise RuntimeError("out of order")
        return super().run(inputs)


def site_of(
    first: Any, second: Any, patient: Any, signature: Signature = SIGNATURE, **options: Any
) -> TaskSite:
    fleet = Fleet(
        ("tiny", "big"),
        np.array([1e3, 1e2]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        buffer=options.pop("buffer", None),
    )
    dispatcher = Dispatcher(fleet, "jiq-fast", target=0.8, rate_per_s=50)
    site = TaskSite.of(
        Pool(
            "task", signature, dispatcher, (first, second), PoolOptions(now=patient.time, **options)
        )
    )
    site.told = lambda name, healthy, why: told.put_nowait((name, healthy, why))
    told: asyncio.Queue[tuple[str, bool, str]] = asyncio.Queue()
    site.news = told  # type: ignore[attr-defined]
    return site


def submit(site: Any, classes: int = -1, value: float = 0.0) -> asyncio.Future[InferRequest]:
    ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
    one = InferRequest(
        {"x": np.full((1, 2), value, np.float32)}, 1, ended.set_result, None, site.now()
    )
    one.classes = classes
    one.id = b"last"
    site.submit(one)
    return ended


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until what another thread has told it has arrived."""
    while not condition():
        await asyncio.sleep(0)


async def fail(site: Any, times: int = FAILURES) -> None:
    for _ in range(times):
        assert (await submit(site)).outcome is Outcome.FAILED


def test_what_waits_at_a_failing_instance_is_answered_by_another(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient)
        await site.start()
        first.sick = True
        first.opened.clear()
        site.pool.dispatcher.mark(1, False, site.now())  # so that all wait at the first
        waiting = [submit(site) for _ in range(10)]
        assert len(site.pool.queues[0]) == 10
        site.pool.dispatcher.mark(1, True, site.now())
        first.opened.set()
        ended = [await one for one in waiting]
        failed = [one for one in ended if one.outcome is Outcome.FAILED]
        # Those in a row; all others have their answers elsewhere.
        assert failed == ended[:FAILURES]
        rest = [one for one in ended if one not in failed]
        assert all(one.outcome is Outcome.ANSWERED and one.variant == "big" for one in rest)
        assert site.pool.dispatcher.balance == pytest.approx(len(rest) * (0.9 - 0.8))
        assert site.pool.dispatcher.site.queue.tolist() == [0, 0]
        assert site.pool.dispatcher.site.healthy.tolist() == [False, True]
        name, healthy, why = await site.news.get()
        assert (name, healthy) == ("task/tiny#0", False)
        assert why == "task/tiny#0 failed: out of order"
        # The fastest is passed over, and the explanation says so.
        assert site.ready
        assert (await submit(site)).variant == "big"
        tiny, big = site.log.explain(b"last")["candidates"]
        assert (tiny["healthy"], tiny["idle"], big["healthy"], big["idle"]) == (0, 0, 1, 1)
        assert "healthy" in site.log.explain(b"last")["reason"]
        await site.stop()

    run(main())


def test_probes_come_at_growing_intervals_until_one_is_answered(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient)
        await site.start()
        first.sick = True
        await fail(site)
        waits = []
        for _ in range(9):
            # The probe before this wait has failed.
            await until(lambda: 0.0 < site.pool.health.retry_s(1) < math.inf)
            waits.append(round(site.pool.health.retry_s(1), 3))
            while not first.runs.empty():
                first.runs.get()
            await patient.let(waits[-1] - 0.01)
            assert first.runs.empty()
            await patient.let(0.01)
            assert await asyncio.to_thread(first.runs.get, True, LIMIT_S) == 1
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        await until(lambda: site.pool.health.retry_s(1) > 0.0)
        first.sick = False
        await patient.let(60.0)
        assert (await site.news.get())[1] is False
        assert await site.news.get() == ("task/tiny#0", True, "")
        assert site.pool.dispatcher.site.healthy.tolist() == [True, True]
        assert (await submit(site)).variant == "tiny"
        await site.stop()

    run(main())


def test_an_instance_that_is_back_is_on_trial(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient)
        await site.start()

        async def away(times: int) -> None:
            first.sick = True
            await fail(site, times)
            first.sick = False  # it answers probes, and fails at what clients send
            assert (await site.news.get())[1] is False

        await away(FAILURES)
        assert (await site.news.get())[1] is True  # the first probe comes at once
        await away(1)
        # Now there is a wait before it.
        assert site.pool.health.retry_s(1) == pytest.approx(1.0)
        await patient.let(1.0)
        assert (await site.news.get())[1] is True
        # An answer ends the trial: it takes as many failures as ever.
        assert (await submit(site)).variant == "tiny"
        await away(FAILURES)
        assert site.pool.health.retry_s(1) == pytest.approx(0.0)
        await site.stop()

    run(main())


def test_a_task_without_a_healthy_instance_is_not_ready(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient)
        await site.start()
        first.sick = second.sick = True
        await fail(site)
        assert site.serves("big")
        assert not site.serves("tiny")
        pinned = await submit(site, site.pool.mask_of("tiny"))
        assert pinned.outcome is Outcome.UNAVAILABLE
        assert "no instance of task 'task' that may answer this request" in pinned.reason
        await until(lambda: 0.0 < site.pool.health.retry_s(1) < math.inf)
        pinned = await submit(site, site.pool.mask_of("tiny"))
        assert pinned.retry_after_s == pytest.approx(1.0)
        second.opened.clear()
        waiting = [submit(site) for _ in range(FAILURES + 3)]
        second.opened.set()
        ended = [(await one).outcome for one in waiting]
        assert ended == [Outcome.FAILED] * FAILURES + [Outcome.UNAVAILABLE] * 3
        assert not site.ready
        assert (await submit(site)).reason == "task 'task' is not ready"
        first.sick = False
        await patient.let(1.0)
        await until(lambda: site.ready)
        assert (await submit(site)).variant == "tiny"
        await site.stop()
        assert not site.ready

    run(main())


def test_what_was_taken_waits_where_the_others_are_full(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient, buffer=6)
        await site.start()
        first.sick = True
        first.opened.clear()
        second.opened.clear()
        busy = [submit(site, site.pool.mask_of("big")) for _ in range(6)]
        waiting = [submit(site) for _ in range(6)]
        first.opened.set()
        await until(lambda: not site.pool.health.healthy[0] and not site.pool.queues[0])
        assert len(site.pool.held) == 6 - FAILURES
        second.opened.set()
        assert {(await one).outcome for one in busy} == {Outcome.ANSWERED}
        ended = [(await one).outcome for one in waiting]
        assert ended == [Outcome.FAILED] * FAILURES + [Outcome.ANSWERED] * (6 - FAILURES)
        await site.stop()

    run(main())


def test_where_zeros_do_not_fit_an_instance_comes_back_on_trial(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(OPEN), Sick(OPEN)
        site: Any = site_of(first, second, patient, OPEN)
        assert await site.start() == ["task/tiny#0", "task/big#0"]
        first.sick = True
        await fail(site)
        first.sick = False
        assert (await site.news.get())[1] is False
        await patient.let(0.9)
        assert not site.pool.health.healthy[0]
        await patient.let(0.2)
        assert (await site.news.get())[1] is True
        assert (await submit(site)).variant == "tiny"
        await site.stop()

    run(main())


def test_failures_between_answers_are_borne(run: Any, patient: Any) -> None:
    async def main() -> None:
        first, second = Sick(), Sick()
        site: Any = site_of(first, second, patient)
        await site.start()
        for _ in range(3):
            first.sick = True
            await fail(site, FAILURES - 1)
            first.sick = False
            assert (await submit(site)).variant == "tiny"
        assert site.pool.health.healthy == [True, True]
        await site.stop()

    run(main())


@pytest.mark.parametrize("signature", [SIGNATURE, OPEN], ids=["fixed", "open axes"])
@pytest.mark.parametrize("brief", [True, False], ids=["in the loop", "in a thread"])
def test_requests_that_fail_do_not_rest_an_instance_that_works(
    run: Any, patient: Any, monkeypatch: pytest.MonkeyPatch, signature: Signature, brief: bool
) -> None:
    monkeypatch.setattr("inferway.live.local.RunTime.is_brief", lambda *_: brief)

    async def main() -> None:
        first, second = Sick(signature), Sick(signature)
        site: Any = site_of(first, second, patient, signature)
        await site.start()
        # What is answered shows which zeros fit an open axis.
        assert (await submit(site)).variant == "tiny"
        first.picky = True
        for _ in range(5 * FAILURES):
            failed = await submit(site, value=1.0)
            assert (failed.outcome, failed.reason) == (
                Outcome.FAILED,
                "task/tiny#0 failed: out of order",
            )
        assert site.pool.health.healthy == [True, True]
        assert site.news.empty()
        assert (await submit(site)).variant == "tiny"
        # A model that fails at whatever it is given is found as soon as ever.
        first.sick = True
        await fail(site)
        assert site.pool.health.healthy == [False, True]
        await site.stop()

    run(main())
