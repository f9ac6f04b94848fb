"""Batches at a site: who is run with whom, who leaves before, and what each gets."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubling import LIMIT_S, SIGNATURE, Gate, One, give

from inferway.deployment import Batch
from inferway.dispatch import Dispatcher
from inferway.dispatch.alias import set_routing
from inferway.dispatch.batching import Rule, foresee
from inferway.dispatch.replay import replay
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.errors import WarmUpError
from inferway.protocol import Signature, Tensor
from inferway.site import Fleet

OPEN = Signature((Tensor("x", "FP32", (-1, -1)),), (Tensor("y", "FP32", (-1, -1)),))
SIZES = (1, 3, 5)


def site_of(
    *gates: Gate,
    least: int = 1,
    most: int = 5,
    policy: str = "alias",
    signature: Signature = SIGNATURE,
    buffer: int | None = None,
    **options: Any,
) -> TaskSite:
    """One variant with a server per gate."""
    fleet = Fleet(("a",), np.array([100.0]), np.array([0.7]), np.array([len(gates)]), buffer=buffer)
    narrow = options.get("drop_late", True)
    made = Dispatcher(fleet, policy, target=0.8, measure=True, narrow=narrow)
    if policy == "alias":
        ones = np.ones(1, np.int64)
        set_routing(made.policy, made.policy.probabilities, least * ones, most * ones)
    extra = {name: options.pop(name) for name in ("pad", "wait_s") if name in options}
    rules = [Rule(SIZES, least, most, **extra)]
    # Batches are worth it.
    foresee(made.site, [Batch(SIZES, (0.01, 0.01, 0.01), pad=rules[0].pad)])
    return TaskSite.of(
        Pool("task", signature, made, gates, PoolOptions(target=0.8, rules=rules, **options))
    )


async def opened(site: TaskSite, *gates: Gate) -> None:
    """Start, and hold back whoever comes from now on."""
    await site.start()
    for gate in gates:
        gate.seen()
        gate.opened.clear()


def is_empty(site: TaskSite) -> bool:
    """Whether the view says so too, in each of its parts."""
    view = site.pool.dispatcher.site
    return (
        site.in_flight == 0
        and not view.queue.any()
        and np.isnan(view.started_s).all()
        and (view.free_s <= view.clock_s[0]).all()
    )


@pytest.mark.parametrize("policy", ["alias", "fastest-only"])
def test_those_who_wait_are_run_together_and_each_gets_its_own(run: Any, policy: str) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, policy=policy)
        await opened(site, gate)
        ones = [One(float(value)) for value in range(6)]
        give(site, *ones[:5])
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        gate.opened.set()
        # Four wait: three is the largest size that they fill.
        for value, one in enumerate(ones[:5]):
            assert await one.answer() == [[2.0 * value] * 2]
        assert gate.seen() == [3, 1]
        assert [one.request.together for one in ones[:5]] == [(1, 1), *[(3, 3)] * 3, (1, 1)]
        give(site, ones[5])
        assert await ones[5].answer() == [[10.0, 10.0]]
        assert is_empty(site)
        assert site.pool.dispatcher.balance == pytest.approx(6 * (0.7 - 0.8))
        counters = site.stats
        assert (counters.rows, counters.batch_rows(0), sum(counters.batches(0))) == ([6], 6, 4)
        assert counters.batches(0)[:3] == [3, 0, 1]
        # Of the batch's service time the dispatcher has learned once, and as of three rows.
        assert site.pool.dispatcher.site.measured[0, :4].tolist() == [3, 0, 1, 0]
        await site.stop()

    run(main())


@pytest.mark.parametrize("policy", ["alias", "fastest-only"])
def test_a_server_waits_for_the_smallest_batch(run: Any, patient: Any, policy: str) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, policy=policy, least=3, now=patient.time)
        await opened(site, gate)
        gate.opened.set()
        ones = [One(1.0) for _ in range(3)]
        give(site, *ones[:2])
        await patient.let(1.0)
        assert gate.seen() == []
        view = site.pool.dispatcher.site
        assert np.isnan(view.started_s[0])
        # As if the first could start now.
        assert site.pool.servers.idle_s(1) == pytest.approx(2 / 100)
        give(site, ones[2])
        assert await ones[0].answer() == [[2.0, 2.0]]
        assert gate.seen() == [3]
        assert is_empty(site)
        await site.stop()

    run(main())


def test_rows_count_and_a_larger_request_is_run_by_itself(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate)
        await opened(site, gate)
        rows = [1, 2, 2, 2, 7, 1]
        ones = [One(float(number), rows[number]) for number in range(6)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        gate.opened.set()
        for number, one in enumerate(ones):
            assert await one.answer() == [[2.0 * number] * 2] * rows[number]
        # Five ask for fourteen rows: five are the most, and two requests fit; seven are two runs.
        assert gate.seen() == [4, 2, 5, 2, 1]
        assert is_empty(site)
        await site.stop()

    run(main())


def test_only_what_fits_is_run_together(run: Any) -> None:
    async def main() -> None:
        gate = Gate(OPEN)
        site = site_of(gate, signature=OPEN)
        await opened(site, gate)
        ones = [One(1.0, width=width) for width in (1, 2, 2, 2, 3, 2)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        gate.opened.set()
        for one in ones:
            await one.answer()
        assert gate.seen() == [3, 1, 1]
        await site.stop()

    run(main())


def test_who_goes_leaves_a_batch_that_has_not_begun(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=3, most=3)
        await opened(site, gate)
        # The instance is busy with something else.
        site.pool.instances[0].probe(lambda _: None)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        ones = [One(float(value)) for value in range(4)]
        give(site, *ones)
        site.cancel(ones[0].request)
        site.cancel(ones[3].request)
        assert [one.outcome for one in ones] == [Outcome.CANCELED, None, None, Outcome.CANCELED]
        assert [one.request for one in ones[1:3]] == list(site.pool.queues[0])
        gate.opened.set()
        assert await ones[1].answer() == [[2.0, 2.0]]
        assert await ones[2].answer() == [[4.0, 4.0]]
        assert gate.seen() == [2]
        assert is_empty(site)
        assert site.pool.dispatcher.balance == pytest.approx(2 * (0.7 - 0.8))
        await site.stop()

    run(main())


def test_who_goes_during_a_run_costs_nobody_an_answer(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=3)
        await opened(site, gate)
        ones = [One(1.0) for _ in range(3)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 3
        site.cancel(ones[1].request)
        gate.opened.set()
        assert await ones[0].answer() == await ones[2].answer()
        assert ones[1].outcome is Outcome.CANCELED
        assert not ones[1].ended.done()
        assert site.stats.total(Outcome.ANSWERED) == 2
        assert is_empty(site)
        await site.stop()

    run(main())


def test_who_waits_for_a_batch_has_a_deadline_all_the_same(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=3, now=patient.time)
        await opened(site, gate)
        gate.opened.set()
        ones = [One(1.0) for _ in range(4)]
        ones[0].request.deadline_s = patient.time() + 5.0
        give(site, *ones[:2])
        await patient.let(5.1)
        assert ones[0].outcome is Outcome.EXPIRED
        assert np.isnan(site.pool.dispatcher.site.started_s[0])
        assert site.pool.servers.idle_s(1) == pytest.approx(1 / 100)
        give(site, *ones[2:])
        for one in ones[1:]:
            await one.answer()
        assert gate.seen() == [3]
        assert is_empty(site)
        await site.stop()

    run(main())


class Dropping:
    """A dispatcher whose policy drops what stands before the last."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        _, take = self._inner.pull(server, now_s, draw)
        return int(self.site.queue[server]) - 1, take


def test_what_the_policy_drops_is_told_so(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate)
        site.pool.servers.dispatcher = Dropping(site.pool.dispatcher)
        await opened(site, gate)
        ones = [One(1.0) for _ in range(4)]
        again = One(3.0)
        # Whoever hears of it may ask again at once.
        ones[1].request.deliver = lambda one: give(site, again)
        give(site, *ones)
        gate.opened.set()
        for one in (ones[0], ones[3], again):
            await one.answer()
        assert [one.outcome for one in ones[1:3]] == [Outcome.EXPIRED] * 2
        assert "the policy dropped the request" in ones[2].request.reason
        assert is_empty(site)
        assert site.pool.dispatcher.balance == pytest.approx(3 * (0.7 - 0.8))
        await site.stop()

    run(main())


def test_one_bad_request_costs_the_others_no_answer(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=5)
        await opened(site, gate)
        ones = [One(float(value)) for value in (1, 2, -3, 4, 5)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 5
        site.cancel(ones[4].request)
        gate.opened.set()
        for value in (1, 2, 4):
            assert await ones[value - 1].answer() == [[2.0 * value] * 2]
        await asyncio.wait_for(ones[2].ended, LIMIT_S)
        assert ones[2].outcome is Outcome.FAILED
        assert "negative" in ones[2].request.reason
        assert gate.seen() == [1, 1, 1, 1]
        assert ones[4].outcome is Outcome.CANCELED
        assert is_empty(site)
        await site.stop()

    run(main())


def test_who_waits_at_a_server_that_fails_goes_to_another(run: Any) -> None:
    async def main() -> None:
        bad, good = Gate(), Gate()
        site = site_of(bad, good, least=3, most=3)
        await opened(site, bad, good)
        site.pool.dispatcher.mark(1, False, site.now())
        ones = [One(1.0) for _ in range(5)]
        give(site, *ones)
        assert await asyncio.to_thread(bad.runs.get, True, LIMIT_S) == 3
        assert len(site.pool.queues[0]) == 5
        site.pool.dispatcher.mark(1, True, site.now())
        bad.broken = True
        bad.opened.set()
        good.opened.set()
        # The batch fails, then the first two of it by themselves: three failures, and at zeros too.
        for one in ones[:2]:
            await asyncio.wait_for(one.ended, LIMIT_S)
            assert one.outcome is Outcome.FAILED
        assert await ones[2].answer() == [[2.0, 2.0]]
        await site.stop(LIMIT_S)
        assert [one.outcome for one in ones[3:]] == [Outcome.ANSWERED] * 2

    run(main())


def test_nobody_waits_for_a_batch_when_the_site_drains(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=5)
        await opened(site, gate)
        gate.opened.set()
        ones = [One(1.0) for _ in range(6)]
        give(site, *ones[:4])
        assert gate.seen() == []
        site.flush()
        for one in ones[:4]:
            await one.answer()
        give(site, ones[4])
        await ones[4].answer()
        assert gate.seen() == [3, 1, 1]
        await site.stop()

    run(main())


def test_stop_runs_what_waits_and_tells_the_rest(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, least=5, now=patient.time)
        await opened(site, gate)
        ones = [One(1.0) for _ in range(4)]
        give(site, *ones)
        stopping = asyncio.create_task(site.stop(1.0))
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 3
        await patient.let(1.1)
        await patient.let(0.0)
        assert ones[3].outcome is Outcome.UNAVAILABLE
        gate.opened.set()
        await asyncio.wait_for(stopping, LIMIT_S)
        answered = [one.outcome for one in ones[:3]]
        assert answered in ([Outcome.ANSWERED] * 3, [None] * 3)

    run(main())


def test_a_request_of_higher_priority_takes_a_place_outside_the_batch(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, buffer=4, most=3, least=3)
        await opened(site, gate)
        ones = [One(1.0) for _ in range(4)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 3
        urgent, other = One(2.0), One(2.0)
        urgent.request.priority = 1
        give(site, urgent, other)
        assert "higher priority" in ones[3].request.reason
        assert other.outcome is Outcome.REJECTED
        site.flush()
        gate.opened.set()
        assert await urgent.answer() == [[4.0, 4.0]]
        for one in ones[:3]:
            await one.answer()
        await site.stop()

    run(main())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("fails", r"task/a#0 cannot serve batches of 3, .*; export the model with a free first"),
        ("shrinks", r"task/a#0 cannot serve batches of 3, .*: output 'y' has 1 rows then; export"),
    ],
)
def test_a_model_that_takes_one_row_only_is_refused(run: Any, wrong: str, sentence: str) -> None:
    class Fixed(Gate):
        def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
            if wrong == "fails" and len(inputs["x"]) > 1:
                raise ValueError("reshape [1, 2]")
            return {"y": inputs["x"][:1]}

    async def main() -> None:
        site = site_of(Fixed())
        with pytest.raises(WarmUpError, match=sentence):
            await site.start()
        await site.stop()

    run(main())


@pytest.mark.parametrize("policy", ["alias", "fastest-only"])
def test_a_replay_of_batches_decides_the_same(run: Any, tmp_path: Path, policy: str) -> None:
    async def main() -> None:
        gates = [Gate(), Gate()]
        site = site_of(*gates, policy=policy, least=2, buffer=9)
        await site.start()
        site.pool.record(tmp_path / "run")
        generator = np.random.default_rng(1)
        ones: list[One] = []
        for step in range(600):
            one = One(-1.0 if step % 50 == 7 else 1.0, rows=int(generator.integers(1, 4)))
            one.request.priority = int(step % 9 == 0)
            one.request.deadline_s = site.now() + 0.05 if step % 5 == 0 else math.inf
            ones.append(one)
            give(site, one)
            if step % 11 == 0:
                site.cancel(ones[int(generator.integers(step + 1))].request)
            if step % 4 == 0:
                await asyncio.sleep(0)
            while step % 20 == 0 and site.in_flight > 3:
                await asyncio.sleep(0)
        site.flush()
        await site.stop(LIMIT_S)
        assert is_empty(site)
        found = replay(tmp_path / "run", requests=None)
        assert found.differences == ()
        assert found.same_code
        assert (found.batches > 50) is (policy == "alias")
        sizes = {one.request.together[0] for one in ones}
        assert {1, 2} <= sizes

    run(main())


def test_rows_that_fill_no_size_are_padded(run: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, policy="fastest-only", pad=True)
        await opened(site, gate)
        ones = [One(float(value)) for value in range(5)]
        give(site, *ones)
        assert await asyncio.to_thread(gate.runs.get, True, LIMIT_S) == 1
        gate.opened.set()
        # Four wait, and are run as five; each gets its own row, and nobody the fifth.
        for value, one in enumerate(ones):
            assert await one.answer() == [[2.0 * value] * 2]
        assert gate.seen() == [5]
        stats = site.stats
        assert (stats.total_rows, stats.batch_rows(0)) == (5, 1 + 5)
        # What was measured counts for the size that was run.
        assert site.pool.dispatcher.site.measured[0, :4].tolist() == [1, 0, 0, 1]
        assert is_empty(site)
        await site.stop()

    run(main())


def test_a_batch_waits_for_more_and_no_longer_than_it_may(run: Any, patient: Any) -> None:
    async def main() -> None:
        gate = Gate()
        site = site_of(gate, policy="fastest-only", wait_s=2.0, now=patient.time)
        await opened(site, gate)
        gate.opened.set()
        ones = [One(float(value)) for value in range(5)]
        for one in ones:
            one.request.received_s = patient.time()
        give(site, *ones[:4])
        await patient.let(1.9)
        assert gate.seen() == []
        await patient.let(0.2)
        for one in ones[:4]:
            await one.answer()
        assert gate.seen() == [3, 1]
        # The first one's deadline ends the wait before that.
        ones[4].request.received_s = patient.time()
        ones[4].request.deadline_s = patient.time() + 0.5
        give(site, ones[4])
        await patient.let(0.4)
        assert gate.seen() == []
        await patient.let(0.095)
        await ones[4].answer()
        assert gate.seen() == [1]
        assert is_empty(site)
        await site.stop()

    run(main())
