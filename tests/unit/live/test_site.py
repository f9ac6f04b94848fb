from __future__ import annotations

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from inferway.dispatch import Dispatcher
from inferway.dispatch.dispatcher import RetunedPolicy
from inferway.live import InferRequest, Outcome, Pool, PoolOptions, TaskSite
from inferway.live.admin import ServerCollector
from inferway.live.errors import WarmUpError
from inferway.live.process import Pauses
from inferway.protocol import RefusalError, Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import HOLD, Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S = 10.0


def site_of(*runtimes: Any, **options: Any) -> TaskSite:
    fleet = Fleet(
        ("tiny", "big"),
        np.array([1e3, 1e2]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        buffer=options.pop("buffer", None),
    )
    policy = options.pop("policy", "fastest-only")
    narrow = options.get("drop_late", True)
    folder = options.pop("folder", None)
    dispatcher = Dispatcher(fleet, policy, target=0.8, rate_per_s=50, narrow=narrow, folder=folder)
    given = runtimes or (NullRuntime(SIGNATURE), NullRuntime(SIGNATURE))
    return TaskSite.of(
        Pool("task", SIGNATURE, dispatcher, given, PoolOptions(target=0.8, **options))
    )


def request(
    rows: int = 1, received_s: float = 0.0
) -> tuple[InferRequest, asyncio.Future[InferRequest]]:
    """A request and what tells of its end."""
    ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
    inputs = {"x": np.zeros((rows, 2), np.float32)}
    return InferRequest(inputs, rows, ended.set_result, received_s=received_s), ended


class Gate(NullRuntime):
    """Waits to be opened, after its warm-up."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.opened = threading.Event()
        self.opened.set()
        self.closed = 0
        self.runs: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.runs.put(len(inputs["x"]))
        assert self.opened.wait(LIMIT_S)
        return super().run(inputs)

    def close(self) -> None:
        self.closed += 1


def test_an_answer_carries_what_was_predicted_and_measured(run: Any) -> None:
    async def main() -> None:
        site = site_of()
        assert await site.start() == []
        one, ended = request(rows=2)
        site.submit(one)
        assert await asyncio.wait_for(ended, LIMIT_S) is one
        assert (one.outcome, one.variant, one.server) == (Outcome.ANSWERED, "tiny", 0)
        assert one.predicted_s == pytest.approx(0.002)
        assert one.balance == pytest.approx(2 * (0.7 - 0.8))
        assert one.latency_s >= one.service_s > 0
        assert one.outputs is not None
        assert one.outputs["y"].shape == (2, 2)
        await site.stop()

    run(main())


def test_places_are_freed_and_the_balance_undone_whoever_leaves(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE))
        told = []
        site.trace(lambda _, ended: told.append((ended.rows, ended.outcome)))
        await site.start()
        while not gate.runs.empty():
            gate.runs.get()
        gate.opened.clear()
        given = [request(rows) for rows in (1, 2, 3)]
        for one, _ in given:
            site.submit(one)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        # The one in service stays, whoever asks; one from the middle of the queue goes.
        site.cancel(given[0][0])
        site.cancel(given[1][0])
        site.cancel(given[1][0])
        assert site.in_flight == 2
        assert site.pool.dispatcher.balance == pytest.approx(4 * (0.7 - 0.8))
        gate.opened.set()
        await asyncio.wait_for(given[2][1], LIMIT_S)
        # Nobody was sent the answers of the others: one counts.
        assert not given[0][1].done()
        assert not given[1][1].done()
        await asyncio.sleep(0)
        assert site.pool.dispatcher.balance == pytest.approx(3 * (0.7 - 0.8))
        assert gate.runs.get() == 3
        assert site.in_flight == 0
        assert site.pool.dispatcher.site.queue.tolist() == [0, 0]
        assert [site.stats.total(outcome) for outcome in Outcome] == [1, 0, 0, 0, 2, 0, 0]
        canceled = Outcome.CANCELED
        assert told == [(2, canceled), (1, canceled), (3, Outcome.ANSWERED)]
        await site.stop()

    run(main())


def test_the_balance_is_moved_back_by_what_moved_it_whatever_is_measured_since(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), measured=True)
        await site.start()
        while not gate.runs.empty():
            gate.runs.get()
        gate.opened.clear()
        given = [request(rows) for rows in (1, 2)]
        for one, _ in given:
            site.submit(one)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        site.pool.correct({"tiny": 0.5})
        site.cancel(given[1][0])
        assert site.pool.dispatcher.balance == pytest.approx(0.7 - 0.8)
        gate.opened.set()
        await asyncio.wait_for(given[0][1], LIMIT_S)
        await asyncio.sleep(0)
        # The mean is of what the balance has counted.
        assert (site.stats.promised, site.stats.promised_sum) == (1, pytest.approx(0.7))
        await site.stop()

    run(main())


def test_an_answer_that_cannot_be_sent_does_not_count_and_holds_up_no_other(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE))
        await site.start()
        gate.opened.clear()
        outcomes: list[Outcome | None] = []

        def refuse(one: InferRequest) -> None:
            outcomes.append(one.outcome)
            if one is never:
                raise RuntimeError("a bug")
            if one.outcome is Outcome.ANSWERED:
                raise RefusalError(400, "not UTF-8")

        (once, _), (never, _), (last, ended) = given = [request() for _ in range(3)]
        once.deliver = never.deliver = refuse
        for one, _ in given:
            site.submit(one)
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        gate.opened.set()
        # All are found when the loop is woken once.
        for instance in site.pool.instances:
            instance._inbox.put(None)
            instance._thread.join(LIMIT_S)
        assert (await asyncio.wait_for(ended, LIMIT_S)).outcome is Outcome.ANSWERED
        assert last.balance == pytest.approx(0.7 - 0.8)
        answered = Outcome.ANSWERED
        assert outcomes == [answered, Outcome.INVALID, answered, Outcome.FAILED]
        assert once.reason == "not UTF-8"
        assert [str(what["exception"]) for what in told] == ["a bug"] * 2
        assert site.in_flight == 0
        assert site.pool.dispatcher.balance == pytest.approx(0.7 - 0.8)
        assert [site.stats.total(outcome) for outcome in Outcome] == [1, 0, 0, 1, 0, 1, 0]
        await site.stop()

    run(main())


def test_stop_delivers_what_has_ended_meanwhile(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE))
        await site.start()
        site.pool._wakeup.mute()  # type: ignore[union-attr]
        one, ended = request()
        site.submit(one)
        await site.stop(LIMIT_S)
        assert (await asyncio.wait_for(ended, LIMIT_S)).outcome is Outcome.ANSWERED

    run(main())


def test_the_buffer_bounds_the_queue(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), buffer=3, now=patient.time)
        await site.start()
        gate.opened.clear()
        given = [request() for _ in range(4)]
        for one, _ in given:
            one.classes = site.pool.mask_of("tiny")
            site.submit(one)
        refused = await asyncio.wait_for(given[3][1], LIMIT_S)
        assert refused.outcome is Outcome.REJECTED
        assert refused.retry_after_s == pytest.approx(3 / 1e3)
        assert "no room" in refused.reason
        gate.opened.set()
        for _, ended in given[:3]:
            assert (await asyncio.wait_for(ended, LIMIT_S)).outcome is Outcome.ANSWERED
        await site.stop()

    run(main())


def test_what_is_said_of_the_future_is_what_is_decided_by(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), buffer=2, now=patient.time)
        await site.start()
        gate.opened.clear()
        site.pool.dispatcher.site.row_s[:] = [[5.0], [100.0]]  # measured: far from the profile
        given = [request(rows=2) for _ in range(3)]
        for one, _ in given:
            one.classes = site.pool.mask_of("tiny")
            site.submit(one)
        refused = await asyncio.wait_for(given[2][1], LIMIT_S)
        assert refused.retry_after_s == pytest.approx(20)
        await patient.let(1.0)
        hasty, ended = request()
        hasty.id = b"hasty"
        hasty.deadline_s = patient.time() + 12
        site.submit(hasty)
        assert "before 2.4e+04 ms, and the deadline is in 1.2e+04 ms" in (await ended).reason
        assert hasty.retry_after_s == pytest.approx(19 + 5 - 12)
        told = site.log.explain(b"hasty")
        assert told is not None
        assert [one["predicted_service_ms"] for one in told["candidates"]] == [5000, 100_000]
        assert [one["in_time"] for one in told["candidates"]] == [False, False]
        gate.opened.set()
        await site.stop(LIMIT_S)

    run(main())


def test_nobody_gives_way_to_a_request_that_could_not_be_in_time(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), buffer=3, now=patient.time)
        await site.start()
        gate.opened.clear()
        site.pool.dispatcher.site.row_s[0] = 10.0
        tiny = site.pool.mask_of("tiny")
        given = [request(received_s=float(number)) for number in range(3)]
        for one, _ in given:
            one.classes = tiny
            site.submit(one)
        queue = list(site.pool.queues[0])
        before = given[1][0].before
        for within_s, placed in ((29.9, False), (30.0, True)):
            urgent, ended = request()
            urgent.classes, urgent.priority = tiny, 1
            urgent.deadline_s = patient.time() + within_s
            site.submit(urgent)
            if not placed:
                assert "no answer is predicted before" in (await ended).reason
                assert list(site.pool.queues[0]) == queue
                assert given[1][0].before is before
        assert "higher priority" in (await given[2][1]).reason
        assert list(site.pool.queues[0]) == [*queue[:2], urgent]
        gate.opened.set()
        await site.stop(LIMIT_S)

    run(main())


@pytest.mark.parametrize("drop_late", [True, False])
def test_who_cannot_be_in_time_is_refused_or_served_late(
    run: Any, patient: Any, drop_late: bool
) -> None:
    async def main() -> None:
        site = site_of(drop_late=drop_late, now=patient.time)
        await site.start()
        site.pool.dispatcher.site.row_s[:] = 10.0
        one, ended = request()
        one.deadline_s = patient.time() + 5.0
        site.submit(one)
        if drop_late:
            assert one.outcome is Outcome.REJECTED
            assert one.retry_after_s == pytest.approx(5.0)
        else:
            assert (await ended).outcome is Outcome.ANSWERED
        await site.stop()

    run(main())


def test_a_policy_sees_the_deadline_of_who_is_served_late(
    run: Any, patient: Any, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n"
        "    x: float\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(1.0)\n"
        "    def choose(self, site, request, draw):\n"
        "        return 0 if request.deadline_s < 1e9 else 1\n"
    )

    async def main() -> None:
        site = site_of(policy="./mine.py:Mine", folder=tmp_path, drop_late=False, now=patient.time)
        await site.start()
        variants = []
        for deadline_s in (patient.time() + 1e-6, float("inf")):
            one, ended = request()
            one.deadline_s = deadline_s
            site.submit(one)
            variants.append((await ended).variant)
        assert variants == ["tiny", "big"]
        await site.stop()

    run(main())


class Holding:
    """A dispatcher whose policy holds what finds the first server busy."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def arrive(self, *given: Any) -> int:
        return HOLD if self._inner.site.queue[0] > 0 else int(self._inner.arrive(*given))


@pytest.mark.parametrize("drop_late", [True, False])
def test_each_held_request_has_its_deadline(run: Any, patient: Any, drop_late: bool) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), drop_late=drop_late, now=patient.time)
        site.pool.dispatcher = Holding(site.pool.dispatcher)
        await site.start()
        gate.opened.clear()
        given = [request() for _ in range(3)]
        given[2][0].deadline_s = patient.time() + 60.0
        for one, _ in given:
            site.submit(one)
        assert site.pool.dispatcher.site.held[0] == 2
        await patient.let(59.9)
        assert site.pool.dispatcher.site.held[0] == 2
        await patient.let(0.2)
        if drop_late:
            # Though one stands before it in the queue, and no server falls free.
            assert given[2][0].outcome is Outcome.EXPIRED
        assert site.pool.dispatcher.site.held[0] == (1 if drop_late else 2)
        gate.opened.set()
        for _, ended in given[: 2 if drop_late else 3]:
            assert (await asyncio.wait_for(ended, LIMIT_S)).outcome is Outcome.ANSWERED
        assert given[2][0].late is not drop_late
        assert site.pool.dispatcher.site.held[0] == 0
        await site.stop()

    run(main())


def test_the_central_queue_gives_way_to_priority(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, NullRuntime(SIGNATURE), room=2)
        site.pool.dispatcher = Holding(site.pool.dispatcher)
        await site.start()
        gate.opened.clear()
        given = [request() for _ in range(5)]
        for (one, _), priority in zip(given, (0, 3, 7, 7, 2), strict=True):
            one.priority = priority
            site.submit(one)
        assert "no room" in (await given[3][1]).reason
        assert "higher priority" in (await given[2][1]).reason
        assert list(site.pool.held) == [given[1][0], given[4][0]]
        site.cancel(given[1][0])
        site.cancel(given[1][0])
        assert site.pool.dispatcher.site.held[0] == 1
        # What is held when the site stops is told so.
        gate.opened.set()
        await site.stop(LIMIT_S)
        assert given[4][0].outcome is Outcome.UNAVAILABLE

    run(main())


def test_a_site_that_is_not_ready_says_so(run: Any) -> None:
    async def main() -> None:
        site = site_of()
        one, ended = request()
        site.submit(one)
        assert (await ended).outcome is Outcome.UNAVAILABLE
        await site.stop()

    run(main())


def test_stop_closes_each_runtime_once(run: Any) -> None:
    async def main() -> None:
        shared = Gate()
        site = site_of(shared, shared)
        await site.start()
        await site.stop()
        assert shared.closed == 1

    run(main())


def test_a_failed_warm_up_leaves_nothing_behind(run: Any) -> None:
    class Broken(NullRuntime):
        def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
            raise RuntimeError("no kernel")

    async def main() -> None:
        site = site_of(NullRuntime(SIGNATURE), Broken(SIGNATURE))
        with pytest.raises(WarmUpError, match="task/big#0"):
            await site.start()
        assert not site.ready
        await site.stop()

    run(main())


def test_the_arrival_rate_is_estimated_for_the_policy(run: Any, patient: Any) -> None:
    class Told(Dispatcher):
        def adopt(self, plan: RetunedPolicy) -> None:
            rates.put(plan.rate_per_s)

    rates: queue.SimpleQueue[float] = queue.SimpleQueue()

    async def main() -> None:
        site = site_of(policy="r-jiq", window_s=10.0, now=patient.time)
        site.pool.dispatcher.__class__ = Told
        await site.start()
        await patient.let(0.0)
        given = [request(rows=5) for _ in range(4)]
        for one, _ in given:
            site.submit(one)
        for _, ended in given:
            await asyncio.wait_for(ended, LIMIT_S)
        await patient.let(10.0)
        assert await asyncio.to_thread(rates.get, True, LIMIT_S) == pytest.approx(20 / 10)
        # Nobody came for a while: the plan stands.
        await patient.let(10.0)
        site.submit(request()[0])
        await patient.let(10.0)
        assert await asyncio.to_thread(rates.get, True, LIMIT_S) == pytest.approx(1 / 10)
        await site.stop()

    run(main())


def test_a_promise_is_at_risk_where_more_comes_than_the_bound_allows(
    run: Any, patient: Any
) -> None:
    async def main() -> None:
        site = site_of(now=patient.time)
        await site.start()
        await patient.let(0.0)
        registry = CollectorRegistry()
        registry.register(ServerCollector(lambda: [site], Pauses()))
        assert not site.pool.overloaded  # no window has ended
        # The two carry 200/s at a mean of 0.8.
        for rows, overloaded in ((1_900, False), (2_100, True), (10, False)):
            one, ended = request(rows=rows)
            site.submit(one)
            await asyncio.wait_for(ended, LIMIT_S)
            assert site.promise is not None
            counted = site.stats.promised
            await patient.let(10.0)
            assert site.pool.arrivals_per_s == pytest.approx(rows / 10)
            assert site.pool.overloaded == overloaded
            assert site.stats.promised == counted
        assert site.promise is not None
        assert site.promise.state == "missed"  # all by the one of 0.7
        kept = {"task": "task"}
        assert registry.get_sample_value("inferway_promise_kept", kept) == 0.0
        margin = registry.get_sample_value("inferway_promise_margin_ratio", kept)
        assert margin == pytest.approx(-0.1)
        site.stats.promised_sum = site.stats.promised * 0.85
        site.balance[0] = 1.0
        assert site.promise.state == "kept"
        assert registry.get_sample_value("inferway_promise_kept", kept) == 1.0
        one, ended = request(rows=2_100)
        site.submit(one)
        await asyncio.wait_for(ended, LIMIT_S)
        await patient.let(10.0)
        site.stats.promised_sum, site.balance[0] = site.stats.promised * 0.85, 1.0
        assert site.promise.state == "at-risk"
        await site.stop()

    run(main())


def test_nothing_is_said_of_a_promise_before_two_thousand_answers() -> None:
    registry = CollectorRegistry()
    site = site_of()
    registry.register(ServerCollector(lambda: [site], Pauses()))
    site.stats.promised, site.stats.promised_sum = 1_999, 1_999 * 0.5
    assert registry.get_sample_value("inferway_promise_kept", {"task": "task"}) is None
    margin = registry.get_sample_value("inferway_promise_margin_ratio", {"task": "task"})
    assert margin == pytest.approx(-0.3)


def test_what_labels_have_ruled_out_is_asked_once_in_a_hundred_requests(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(NullRuntime(SIGNATURE), gate, measured=True)
        await site.start()
        asked = ""

        async def ask(count: int, **said: Any) -> int:
            nonlocal asked
            for _ in range(count):
                one, ended = request()
                for name, value in said.items():
                    setattr(one, name, value)
                site.submit(one)
                asked = (await asyncio.wait_for(ended, LIMIT_S)).variant
            return site.stats.rows[1]

        site.pool.correct({"tiny": 0.85})
        assert await ask(250) == 0  # nothing speaks against it
        site.pool.correct({"big": 0.6})
        before = site.balance.item()
        assert await ask(99) == 0
        assert await ask(1) == 1
        assert asked == "big"
        # It counts as labels say.
        assert site.balance.item() - before == pytest.approx(99 * 0.05 - 0.2)
        assert await ask(99) == 1
        # Who wants more than it counts for, or is pinned, is none of those; the next one is.
        assert await ask(1, floor=0.7) == 1
        assert await ask(1, classes=0b01) == 1
        assert await ask(1) == 2
        # Nor is it asked while it has something to do, or the balance owes something.
        gate.opened.clear()
        busy, ended = request()
        busy.classes = 0b10
        site.submit(busy)
        assert await ask(150) == 2
        gate.opened.set()
        await asyncio.wait_for(ended, LIMIT_S)
        site.balance[0] = -1e9
        assert await ask(1) == 3
        site.balance[0] = 0.0
        assert await ask(1) == 4
        site.pool.correct({"big": 0.9})
        assert await ask(150) == 4
        await site.stop()

    run(main())
