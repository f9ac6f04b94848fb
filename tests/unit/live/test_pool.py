"""How a pool closes, and what it counts of requests that end without an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.in_force import fleet_told
from inferway.live.request import InferRequest
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet
from inferway.site.chances import PAUSE
from inferway.site.confidence import difficulty_tables
from inferway.site.transitions import measure

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S = 20.0


class Broken(NullRuntime):
    """Fails where it is given anything but zeros, with which it is warmed up."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["x"].any():
            raise ValueError("broken")
        return {"y": inputs["x"]}


def pool_of(runtimes: list[NullRuntime], **options: Any) -> Pool:
    fleet = Fleet(("a", "b"), np.array([1e3, 1e3]), np.array([0.6, 0.9]), np.array([1, 1]))
    dispatcher = Dispatcher(fleet, "fastest-only", target=None)
    return Pool("task", SIGNATURE, dispatcher, runtimes, PoolOptions(**options))


@pytest.mark.parametrize(("draining_s", "left_s"), [(0.0, 3.0), (1.0, 2.0), (3.0, 0.0), (4.0, 0.0)])
def test_instances_have_what_is_left_of_a_close_s_limit(
    monkeypatch: pytest.MonkeyPatch, draining_s: float, left_s: float
) -> None:
    clock_s, limits_s = [1000.0], []
    pool = pool_of([NullRuntime(SIGNATURE)] * 2, now=lambda: clock_s[0])

    async def drain(limit_s: float) -> list[InferRequest]:
        limits_s.append(limit_s)
        clock_s[0] += draining_s
        return []

    async def close(limit_s: float) -> bool:
        limits_s.append(limit_s)
        return True

    monkeypatch.setattr(pool.servers, "drain", drain)
    for instance in pool.instances:
        monkeypatch.setattr(instance, "close", close)
    asyncio.run(pool.close(3.0))
    assert limits_s == [3.0, left_s, left_s]


@pytest.mark.parametrize("place", [0, 1])
def test_a_request_that_fails_is_counted_for_the_variant_that_had_it(place: int) -> None:
    async def main() -> None:
        site = TaskSite.of(pool_of([Broken(SIGNATURE), Broken(SIGNATURE)]))
        await site.start()
        answered = asyncio.Event()
        request = InferRequest(
            {"x": np.ones((1, 2), np.float32)}, 1, lambda request: answered.set(), None, site.now()
        )
        request.classes = 1 << place
        site.submit(request)
        async with asyncio.timeout(LIMIT_S):
            await answered.wait()
        assert request.outcome is Outcome.FAILED
        expected = [0, 0, 0]
        expected[place] = 1
        assert site.stats.outcomes[Outcome.FAILED] == expected
        await site.stop(1.0)

    asyncio.run(main())


def test_a_pool_goes_on_with_what_escalate_has_learned_and_with_its_own_accuracies() -> None:
    accuracy = np.array([0.6, 0.9])
    tables = difficulty_tables(accuracy, 0.8, 0.8)
    fleet = Fleet(("a", "b"), np.array([1e3, 5e2]), accuracy, np.array([1, 1]), confidence=tables)
    fresh, before, pool = (Dispatcher(fleet, "escalate", target=0.75) for _ in range(3))
    old, new = (
        Pool("task", SIGNATURE, one, [NullRuntime(SIGNATURE)] * 2, PoolOptions(target=0.75))
        for one in (before, pool)
    )
    old.correct({"b": 0.7})
    # Who rehearses what is in force is told accuracies and confidences that belong together.
    told = fleet_told(old, None)
    assert [one["accuracy"] for one in told["classes"]] == [0.6, 0.7]
    said = np.array(told["confidence"]["expected"])[1, :, 1] @ tables.mass[1]
    assert said == pytest.approx(0.7, abs=1e-3)
    before.policy.price[:] = 3.0
    new.follow(old.balance, old)
    assert pool.policy.price.item() == 3.0
    # Its site goes by profiles until it is corrected as well, and so does what follows from them.
    assert pool.site.accuracy.tolist() == accuracy.tolist()
    for name in ("best", "own", "most_gain", "gains", "mass", "gained"):
        np.testing.assert_array_equal(getattr(pool.policy, name), getattr(fresh.policy, name))


def test_an_explanation_says_that_a_request_tries_who_was_slow() -> None:
    async def main() -> None:
        fleet = Fleet(("a", "b"), np.array([1e3, 1e3]), np.array([0.6, 0.9]), np.array([1, 1]))
        dispatcher = Dispatcher(fleet, "deadline", target=None, measure=True)
        measure(dispatcher.site, 1, 1, 1e3)  # b, and nothing is as slow any more
        site = TaskSite.of(Pool("task", SIGNATURE, dispatcher, [NullRuntime(SIGNATURE)] * 2))
        await site.start()
        said: dict[str, dict[str, int]] = {"a": {}, "b": {}}
        for number in range(2 * PAUSE):
            answered = asyncio.Event()
            request = InferRequest(
                {"x": np.ones((1, 2), np.float32)},
                1,
                lambda request, answered=answered: answered.set(),  # type: ignore[misc]
                str(number).encode(),
                site.now(),
            )
            request.deadline_s = site.now() + 500.0
            site.submit(request)
            async with asyncio.timeout(LIMIT_S):
                await answered.wait()
            told = site.log.explain(request.id)
            assert told is not None
            by_reason = said[told["variant"]]
            by_reason[told["reason"]] = by_reason.get(told["reason"], 0) + 1
        only = "was the only variant that was allowed, healthy and predicted to be in time"
        assert said == {
            "a": {f"a {only}": PAUSE - 1},
            "b": {
                "b was too slow when it ran last, and one request tries whether it still is": 1,
                "the policy chose b of 2 variants; idle were a, b": PAUSE,
            },
        }
        await site.stop(1.0)

    asyncio.run(main())
