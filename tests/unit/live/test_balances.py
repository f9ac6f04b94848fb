"""Accuracy balances of tasks whose fleets go and come again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from gated import LIMIT_S, SIGNATURE, Gated

from inferway.dispatch import Dispatcher
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import Balance, TaskSite, balances_of, take_up
from inferway.site import Fleet

SHORT: Any = pytest.approx(-0.2)
"""What an answer of accuracy 0.6 is short of a target of 0.8."""


class World:
    """Tasks whose fleets a test lets come and go, as a node does."""

    def __init__(self) -> None:
        targets = {"a": 0.8, "b": 0.8, "free": None}
        self.sites = {task: TaskSite(task, target) for task, target in targets.items()}
        self.leaving: list[asyncio.Task[None]] = []
        self.runtime = Gated()

    async def come(self, task: str = "a", target: float | None = 0.8) -> TaskSite:
        self.runtime = Gated()
        fleet = Fleet(("tiny",), np.array([1e3]), np.array([0.6]), np.array([1]))
        dispatcher = Dispatcher(fleet, "fastest-only", target=target)
        pool = Pool(task, SIGNATURE, dispatcher, [self.runtime], PoolOptions(target=target))
        site = self.sites[task]
        await site.prepare(pool)
        leaving = site.swap(pool)
        if leaving is not None:
            self.leaving.append(leaving)
        return site

    async def go(self, task: str = "a") -> asyncio.Task[None]:
        leaving = self.sites[task].swap(None)
        assert leaving is not None
        return leaving

    def ask(self, task: str = "a") -> InferRequest:
        site = self.sites[task]
        request = InferRequest(
            {"x": np.zeros((1, 2), np.float32)}, 1, lambda request: None, None, site.now()
        )
        site.submit(request)
        return request

    async def answered(self, request: InferRequest) -> None:
        async with asyncio.timeout(LIMIT_S):
            while request.outcome is None:
                await asyncio.sleep(0.001)

    def held(self, task: str = "a") -> float:
        return balances_of(self.sites.values()).get(task, Balance(0.8, 0.0)).balance


@pytest.fixture
def run() -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    def to_its_end(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            world = World()
            async with asyncio.timeout(60):
                await work(world)
                for site in world.sites.values():
                    await site.stop(1.0)

        asyncio.run(bounded())

    return to_its_end


def test_what_is_owed_waits_for_the_next_site(run: Any) -> None:
    async def work(world: World) -> None:
        assert balances_of(world.sites.values()) == {}
        await world.come()
        await world.answered(world.ask())
        assert balances_of(world.sites.values()) == {"a": Balance(0.8, SHORT)}
        await (await world.go())
        assert balances_of(world.sites.values()) == {"a": Balance(0.8, SHORT)}
        site = await world.come()
        assert site.pool.dispatcher.balance == SHORT
        await world.answered(world.ask())
        assert world.held() == pytest.approx(-0.4)
        # Twice as well, and other tasks owe nothing.
        await (await world.go())
        site = await world.come()
        assert site.pool.dispatcher.balance == pytest.approx(-0.4)
        assert (await world.come("b")).pool.dispatcher.balance == 0.0

    run(work)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_site_undoes_while_it_leaves_counts(run: Any, again: bool) -> None:
    async def work(world: World) -> None:
        await world.come()
        await world.answered(world.ask())
        old = world.runtime
        old.gate.clear()
        request = world.ask()
        assert world.held() == pytest.approx(-0.4)
        leaving = await world.go()
        assert world.held() == pytest.approx(-0.4)
        if again:
            await world.come()
            await world.answered(world.ask())
            assert world.held() == pytest.approx(-0.6)
        old.broken = True
        old.gate.set()
        await world.answered(request)
        assert request.outcome is Outcome.FAILED
        await leaving
        await asyncio.sleep(0)
        assert world.held() == pytest.approx(-0.4 if again else -0.2)

    run(work)


def test_one_site_after_another_carries_it_once(run: Any) -> None:
    async def work(world: World) -> None:
        await world.come()
        await world.answered(world.ask())
        await (await world.go())
        for _ in range(3):
            site = await world.come()
            assert site.pool.dispatcher.balance == SHORT
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*world.leaving)
        assert world.held() == SHORT

    run(work)


def test_saved_balances_are_taken_up_with_and_without_a_site(run: Any) -> None:
    async def work(world: World) -> None:
        await world.come()
        await world.answered(world.ask())
        saved = {
            "a": Balance(0.8, 1.5),
            "b": Balance(0.8, -2.5),
            "free": Balance(0.8, 1.0),
            "gone": Balance(0.8, 1.0),
        }
        take_up(world.sites, saved)
        assert balances_of(world.sites.values()) == {
            "a": (0.8, pytest.approx(1.3), False),
            "b": saved["b"],
        }
        assert (await world.come("b")).pool.dispatcher.balance == -2.5
        take_up(world.sites, {"b": Balance(0.9, 7.0)})
        take_up(world.sites, {"b": Balance(0.8, 7.0, measured=True)})
        assert world.held("b") == -2.5

    run(work)


def test_a_changed_target_is_another_promise(run: Any) -> None:
    async def work(world: World) -> None:
        site = await world.come()
        await world.answered(world.ask())
        assert site.promise is not None
        assert (site.promise.answers, site.promise.mean) == (1, 0.6)
        await world.come()
        assert site.promise.answers == 1
        await world.come(target=0.5)
        promise = site.promise
        assert (promise.target, promise.answers, promise.balance) == (0.5, 0, 0.0)
        await world.answered(world.ask())
        assert site.promise.balance == pytest.approx(0.1)
        assert (await world.come("free", target=None)).promise is None

    run(work)
