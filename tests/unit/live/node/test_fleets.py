"""A node's sites, made of real models and of offers that a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lone_node import CLOUD, METRO, World
from neighbor import Neighbor, Visit

from inferway.catalog import zoo
from inferway.live import admin
from inferway.live.errors import ServeError
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import balances_of
from inferway.live.upstream.remote import RemoteInstance
from inferway.live.upstream.upstream import Upstream
from inferway.network.node import REMEMBERED_S
from inferway.network.offers import Offer
from inferway.runtime import inspect

JOINT = """
tasks:
  digits: &both
    variants:
      mini: {{model: zoo://digits/mini}}
      large: {{model: zoo://digits/large}}
  forms: *both
targets: {{both: {{tasks: [digits, forms], accuracy: 0.9}}}}
nodes: {{cloud: {{repository: true}}, metro: {{}}, edge: {{}}}}
network: {{links: [{{between: [cloud, metro], rtt: 5 ms}}, {{between: [metro, edge], rtt: 5 ms}}]}}
workload:
  digits: {{arrivals: {{process: poisson, rate: 20/s}}, entries: {{nodes: [edge]}}}}
"""


async def _never(visit: Visit) -> None:
    await visit.writer.wait_closed()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    def main(work: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def bounded() -> None:
            world = World(tmp_path, **options)
            async with asyncio.timeout(60):
                await work(world)
                await world.server.stop(1.0)
            world.upstreams["metro"].close()
            world.models.close()
            world.store.close()

        asyncio.run(bounded())

    return main


def test_what_runs_and_what_is_offered_are_classes(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        world.offers = [CLOUD, METRO]
        await world.fleets.run({("digits", "mini"): 2})
        assert set(world.site.pool.variants) == {"mini", "small@metro", "large@cloud"}
        k = world.site.pool.variants.index("mini")
        assert world.site.pool.first[k + 1] - world.site.pool.first[k] == 2
        assert sum(isinstance(one, RemoteInstance) for one in world.site.pool.instances) > 2

    run(work)


def test_offers_that_come_and_go_leave_the_site_standing(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        world.offers = [CLOUD, METRO]
        await world.fleets.run({("digits", "mini"): 1})
        before = world.site.pool
        world.offers = [METRO]
        assert not world.fleets.heed("digits")
        assert not world.site.pool.health.any_of(world.site.pool.mask_of("large"))
        assert world.site.pool.health.any_of(world.site.pool.mask_of("small"))
        world.offers = [CLOUD, METRO]
        assert not world.fleets.heed("digits")
        assert await world.fleets.refresh("digits") is None
        assert world.site.pool is before
        assert world.site.pool.health.any_of(world.site.pool.mask_of("large"))

    run(work)


def test_an_offer_keeps_its_class_for_a_while_after_it_was_taken_back(
    run: Callable[..., None],
) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        world.offers = [CLOUD, METRO]
        await world.fleets.run({("digits", "mini"): 1})
        # It has held for long when it goes, and another copy comes.
        world.later_s += 10 * REMEMBERED_S
        world.offers = [CLOUD]
        world.fleets.heed("digits")
        await world.fleets.run({("digits", "mini"): 2})
        assert "small@metro" in world.site.pool.variants
        assert not world.site.pool.health.any_of(world.site.pool.mask_of("small"))
        world.later_s += 0.9 * REMEMBERED_S
        await world.fleets.run({("digits", "mini"): 1})
        assert "small@metro" in world.site.pool.variants
        world.later_s += 0.2 * REMEMBERED_S
        await world.fleets.run({("digits", "mini"): 2})
        assert "small@metro" not in world.site.pool.variants

    run(work)


def test_where_no_repository_is_left_nothing_is_saturated(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        world.offers = [CLOUD]
        await world.fleets.run({("digits", "mini"): 1})
        own, far = (1 << world.site.pool.variants.index(name) for name in ("mini", "large@cloud"))
        assert world.site.pool.dispatcher.lasting == far  # type: ignore[attr-defined]
        world.offers = []
        world.fleets.heed("digits")
        assert world.site.pool.dispatcher.lasting & own  # type: ignore[attr-defined]
        # Behind the first ones each would wait for more than `max_wait`.
        waiting = [world.ask(rows=64) for _ in range(20)]
        assert not [one.reason for one in waiting if one.outcome is Outcome.REJECTED]
        async with asyncio.timeout(30):
            while any(one.outcome is None for one in waiting):
                await asyncio.sleep(0.01)
        assert {one.outcome for one in waiting} == {Outcome.ANSWERED}
        world.offers = [CLOUD]
        world.fleets.heed("digits")
        assert world.site.pool.dispatcher.lasting == far  # type: ignore[attr-defined]

    run(work)


def test_a_target_that_nothing_within_reach_meets_is_no_reason_not_to_serve(
    run: Callable[..., None],
) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        await world.fleets.run({("digits", "mini"): 1})
        answered = world.ask()
        async with asyncio.timeout(30):
            while answered.outcome is None:
                await asyncio.sleep(0.01)
        assert answered.outcome is Outcome.ANSWERED
        owed = world.site.pool.dispatcher.balance
        assert owed < 0.0
        # Others come within reach; what is owed goes along.
        world.offers = [CLOUD]
        await world.fleets.refresh("digits")
        assert world.site.pool.dispatcher.balance == pytest.approx(owed)

    run(work, task="accuracy_target: 0.9")


def test_targets_over_several_tasks_are_kept_by_all_fleets_of_the_node(
    run: Callable[..., None],
) -> None:
    async def answered(world: World, task: str) -> None:
        request = world.ask(task=task)
        async with asyncio.timeout(30):
            while request.outcome is None:
                await asyncio.sleep(0.01)
        assert request.outcome is Outcome.ANSWERED

    async def work(world: World) -> None:
        await world.load("mini")
        await world.load("mini", task="forms")
        await world.fleets.run({("digits", "mini"): 1, ("forms", "mini"): 1})
        await answered(world, "digits")
        await answered(world, "forms")
        status: Any = admin.status(world.server.served(), ready=True)
        accuracy = world.site.pool.dispatcher.fleet.accuracy[0]
        told = status["targets"]["both"]
        assert (told["tasks"], told["answers"]) == (["digits", "forms"], 2)
        assert told["mean"] == pytest.approx(accuracy)
        assert told["balance"] == pytest.approx(2 * (accuracy - 0.9))
        # What is behind goes along with the fleet that takes over, and its price.
        (before,) = world.site.pool.targets
        world.offers = [CLOUD]
        await world.fleets.refresh("digits")
        (after,) = world.site.pool.targets
        assert world.site.pool.variants == ("mini", "large@cloud")
        assert (after.answers, after.price) == (2, before.price)
        await answered(world, "forms")
        assert after.answers == before.answers == 3

    run(work, text=JOINT)


def test_what_is_owed_waits_while_nothing_serves_the_task(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        await world.fleets.run({("digits", "mini"): 1})
        first = world.site
        answered = world.ask()
        async with asyncio.timeout(30):
            while answered.outcome is None:
                await asyncio.sleep(0.01)
        owed = first.pool.dispatcher.balance
        assert owed < 0.0
        await world.fleets.run({})
        assert world.site.present is None
        assert balances_of([world.site]) == {"digits": (0.9, owed, False)}
        await world.fleets.run({("digits", "mini"): 1})
        assert world.site.pool.dispatcher.balance == owed
        # From one site to the next it goes along as before, once.
        world.offers = [CLOUD]
        await world.fleets.refresh("digits")
        assert world.site.pool.dispatcher.balance == owed

    run(work, task="accuracy_target: 0.9")


@pytest.mark.parametrize("policy", ["priced", "r-jiq", "r-jsq"])
def test_a_policy_that_needs_a_rate_serves_where_nothing_enters(
    run: Callable[..., None], policy: str
) -> None:
    async def work(world: World) -> None:
        await world.load("large")
        await world.fleets.run({("digits", "large"): 1})
        assert world.site.pool.variants == ("large",)

    task = f"accuracy_target: 0.9\n    dispatch: {{policy: {policy}}}"
    run(work, node="metro", task=task)


def test_offers_of_tasks_that_nobody_knows_are_passed_over(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        world.offers = [Offer("others", "x", "cloud", 0.9, 0.1, 0.0, 1.0, ("metro", "cloud"), True)]
        assert not world.fleets.heed("others")
        assert await world.fleets.refresh("others") is None

    run(work)


def test_a_node_without_any_file_of_a_task_forwards(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        for name in ("mini", "small", "large"):
            described = world.fleets._plan.tasks["digits"].variants[name]
            object.__setattr__(described.model, "path", Path("/nowhere"))
        world.offers = [CLOUD]
        assert world.fleets.heed("digits")
        await world.fleets.refresh("digits")
        assert world.site.present is None
        # Not known yet is not known for good.
        assert world.fleets.heed("digits")
        world.said = inspect(zoo.model_path("digits", "mini"))
        await world.fleets.refresh("digits")
        assert world.site.pool.variants == ("large@cloud",)
        assert not world.fleets.heed("digits")

    run(work)


def test_nobody_takes_over_from_sites_that_are_being_stopped(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini", "small")
        await world.fleets.run({("digits", "mini"): 1})
        before = world.site.pool
        await world.server.stop(1.0)
        with pytest.raises(ServeError, match="is ending"):
            await world.fleets.run({("digits", "mini"): 1, ("digits", "small"): 1})
        assert world.site.pool is before
        # What the other one was lent has come back.
        world.models.release("digits", "small")
        assert ("digits", "small") not in world.models

    run(work)


def test_only_what_leaves_is_waited_for(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        silent = await Neighbor(_never).start()
        world.upstreams["metro"] = Upstream("metro", "127.0.0.1", silent.port)
        world.offers = [METRO]
        await world.fleets.run({("digits", "mini"): 1})
        site, before = world.site, world.site.pool
        image = np.zeros((1, 1, 32, 32), np.float32)
        # On its way to a neighbor that takes long.
        stuck = InferRequest({"image": image}, 1, lambda request: None, None, site.now())
        stuck.classes = site.pool.mask_of("small")
        site.submit(stuck)
        assert before.in_flight == 1
        async with asyncio.timeout(30.0):
            await world.fleets.run({("digits", "mini"): 2})
        assert world.site is site
        assert site.pool is not before
        # It is there when the other has its answer, or gives up.
        leaving = site._retiring[before]
        site.cancel(stuck)
        await asyncio.wait_for(leaving, 30.0)
        world.upstreams["metro"].close()
        await silent.stop()

    run(work)


def test_copies_take_the_batches_that_the_file_offers(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        silent = await Neighbor(_never).start()
        world.upstreams["metro"] = Upstream("metro", "127.0.0.1", silent.port)
        await world.load("mini")
        world.offers = [METRO]
        await world.fleets.run({("digits", "mini"): 1})
        here = [world.ask() for _ in range(9)]
        for one in here:
            assert world.site.pool.names[world.site.pool.class_of[one.server]] == ("mini", "edge")
        # One that is forwarded is on its way alone.
        image = np.zeros((1, 1, 32, 32), np.float32)
        there = InferRequest({"image": image}, 1, lambda request: None, None, world.site.now())
        there.classes = world.site.pool.mask_of("small")
        world.site.submit(there)
        async with asyncio.timeout(30):
            while any(one.outcome is None for one in here):
                await asyncio.sleep(0.01)
        assert {one.outcome for one in here} == {Outcome.ANSWERED}
        assert (4, 4) in {one.together for one in here}
        assert world.site.in_flight == 1
        world.site.cancel(there)
        async with asyncio.timeout(10):
            while world.site.in_flight:
                await asyncio.sleep(0.01)
        assert there.outcome is Outcome.CANCELED
        world.upstreams["metro"].close()
        await silent.stop()

    batch = "{sizes: [1, 2, 4], service: [1 ms, 1.5 ms, 2 ms], min: 1, max: 4}"
    run(work, task="dispatch: {policy: fastest-only}", mini=f", batch: {batch}")


def test_a_site_has_the_servers_that_the_batches_of_others_need(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        def servers() -> int:
            k = world.site.pool.variants.index("small@metro")
            return world.site.pool.first[k + 1] - world.site.pool.first[k]

        await world.load("mini")
        world.offers = [CLOUD, METRO]
        await world.fleets.run({("digits", "mini"): 1})
        few, first = servers(), world.site.pool
        world.offers = [CLOUD, msgspec.structs.replace(METRO, together=6)]
        # Until then the offer is taken as before.
        assert world.fleets.heed("digits")
        assert all(first.health.healthy)
        await world.fleets.refresh("digits")
        assert world.site.pool is not first
        assert servers() == few + 6
        for together in (6, 2):
            world.offers = [CLOUD, msgspec.structs.replace(METRO, together=together)]
            assert not world.fleets.heed("digits")

    run(work)


def test_confidences_of_offers_are_by_the_profiles_of_the_nodes_own_file(
    run: Callable[..., None],
) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        # Nothing here is as accurate; the node does what it can until others are heard of.
        await world.fleets.run({("digits", "mini"): 1})
        assert world.site.pool.dispatcher.policy_name == "deadline"
        world.offers = [CLOUD, METRO]
        await world.fleets.refresh("digits")
        pool = world.site.pool
        assert pool.dispatcher.policy_name == "escalate"
        fleet = pool.dispatcher.fleet
        tables = fleet.confidence
        assert tables is not None
        task = world.fleets._plan.tasks["digits"]
        names = [pool.names[k][0] for k in pool.classes]
        assert sorted(names) == ["large", "mini", "small"]
        assert names != list(pool.variants)
        for k, name in enumerate(names):
            bins = task.variants[name].confidence_bins
            assert bins is not None
            assert tables.mass[k].tolist() == pytest.approx(bins.mass)
        assert tables.expected_accuracy() == pytest.approx(fleet.accuracy, abs=1e-6)
        # Whoever answers, the same part of an answer says how sure it is.
        outputs = {"probabilities": np.full((1, 10), 0.1, np.float32)}
        assert len(pool.options.confidences) == 3
        assert all(read is not None for read in pool.options.confidences)
        assert {read(outputs).shape for read in pool.options.confidences if read} == {(1,)}

    task = "accuracy_target: 0.86\n    dispatch: {policy: escalate}"
    run(work, task=task)


def test_no_confidences_are_laid_out_for_policies_that_ask_once(run: Callable[..., None]) -> None:
    async def work(world: World) -> None:
        await world.load("mini")
        world.offers = [CLOUD]
        await world.fleets.run({("digits", "mini"): 1})
        assert world.site.pool.dispatcher.fleet.confidence is None
        assert world.site.pool.options.confidences == ()

    run(work, task="accuracy_target: 0.85")
