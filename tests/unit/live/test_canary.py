"""Requests of a canary and beside it: who is asked, what a recording has, and what is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated import LIMIT_S, SIGNATURE, Gated

from inferway.deployment.tasks import Canary
from inferway.dispatch import Dispatcher
from inferway.dispatch.measured import EXPLORED
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import TaskSite
from inferway.site import Fleet
from inferway.twin.trace import RecordedTrace, read

SHARE, ASKED = 0.5, 60


class Beside:
    """A task with a canary that gets half of the requests, if it can take them."""

    def __init__(self, places: int = 1, *, canary: bool = True) -> None:
        fleet = Fleet(
            ("tiny", "big"),
            np.array([1e3, 0.01]),
            np.array([0.7, 0.9]),
            np.array([1, 1]),
            buffer=places,
            task="a",
        )
        dispatcher = Dispatcher(fleet, "fastest-only", target=0.6, rate_per_s=10.0)
        self.tiny, self.big = Gated(), Gated()
        terms = Canary(variant="big", share=SHARE, at_least=0.95)
        options = PoolOptions(target=0.6, measured=not canary, canary=terms if canary else None)
        self.pool = Pool("a", SIGNATURE, dispatcher, [self.tiny, self.big], options)
        self.site = TaskSite.of(self.pool)
        self.asked = 0

    def ask(self, **more: Any) -> asyncio.Future[InferRequest]:
        ended: asyncio.Future[InferRequest] = asyncio.get_running_loop().create_future()
        inputs = {"x": np.zeros((1, 2), np.float32)}
        request = InferRequest(inputs, 1, ended.set_result, received_s=self.site.now(), **more)
        request.id = str(self.asked).encode()
        self.asked += 1
        self.site.submit(request)
        return ended

    def reason(self, request: InferRequest) -> str:
        found = self.site.log.explain(request.id)
        assert found is not None
        return str(found["reason"])


@pytest.mark.parametrize("why", ["no place", "late", "inaccurate"])
def test_a_canary_that_cannot_take_its_share_is_not_asked(why: str, tmp_path: Path) -> None:
    """A recording has each request once, and none of them was pinned or refused."""

    async def main() -> RecordedTrace:
        beside = Beside()
        await beside.site.start()
        beside.pool.record(tmp_path / "run")
        waiting, more = [], dict[str, Any]()
        if why == "no place":
            beside.big.gate.clear()
            while not beside.pool.queues[1]:
                waiting.append(beside.ask())
                if not beside.pool.queues[1]:
                    await asyncio.wait_for(waiting[-1], LIMIT_S)
        elif why == "inaccurate":
            beside.pool.correct({"big": 0.65})
            more["floor"] = 0.68
        before = beside.asked
        for _ in range(ASKED):
            if why == "late":  # by its profile it takes 100 s
                more["deadline_s"] = beside.site.now() + LIMIT_S
            answer = await asyncio.wait_for(beside.ask(**more), LIMIT_S)
            assert (answer.outcome, answer.variant) == (Outcome.ANSWERED, "tiny")
        beside.big.gate.set()
        await asyncio.gather(*waiting)
        await beside.site.stop(LIMIT_S)
        canary = beside.pool.canary
        assert canary is not None
        assert canary.requests == (1 if why == "no place" else 0)
        trace = read(tmp_path / "run")
        assert len(trace.arrived_s) == before + ASKED == beside.asked
        return trace

    trace = asyncio.run(main())
    assert (trace.pins, int((trace.taken_by < 0).sum())) == (0, 0)


CANARY_S = "big is tried as a canary, and the request is one of its share"
BESIDE_S = (
    "tiny was the only variant, the canary aside, that was allowed, healthy and predicted to be in "
    "time"
)


def test_an_explanation_says_what_a_canary_has_to_do_with_it() -> None:
    async def main() -> None:
        beside = Beside(places=2)
        await beside.site.start()
        said = dict[str, set[str]]()
        while len(said) < 2:
            answer = await asyncio.wait_for(beside.ask(), LIMIT_S)
            said.setdefault(answer.variant, set()).add(beside.reason(answer))
        assert said == {"big": {CANARY_S}, "tiny": {BESIDE_S}}
        pinned = await asyncio.wait_for(beside.ask(classes=0b10, counted=False), LIMIT_S)
        assert beside.reason(pinned) == "the request was pinned to big"
        # Where the canary has it and does not answer it, another one is asked.
        beside.big.gate.clear()
        beside.big.begun.clear()
        waiting = []
        while len(beside.pool.queues[1]) < 2:
            asked = beside.ask()
            if beside.pool.queues[0]:
                await asyncio.wait_for(asked, LIMIT_S)
            else:
                waiting.append(asked)
        assert await asyncio.to_thread(beside.big.begun.wait, LIMIT_S)
        beside.pool.health.rest(1, "for once")
        moved = await asyncio.wait_for(waiting[1], LIMIT_S)
        assert (moved.variant, beside.reason(moved)) == ("tiny", BESIDE_S)
        beside.big.gate.set()
        assert beside.reason(await asyncio.wait_for(waiting[0], LIMIT_S)) == CANARY_S
        await beside.site.stop(LIMIT_S)

    asyncio.run(main())


def test_an_explanation_says_that_a_request_explores() -> None:
    async def main() -> None:
        beside = Beside(canary=False)
        await beside.site.start()
        beside.pool.correct({"big": 0.65})
        said = dict[str, set[str]]()
        for _ in range(EXPLORED):
            answer = await asyncio.wait_for(beside.ask(), LIMIT_S)
            said.setdefault(answer.variant, set()).add(beside.reason(answer).split(";")[0])
        explored = (
            f"labels have ruled big out, and one request in {EXPLORED} explores whether it is "
            "better by now"
        )
        assert said == {"big": {explored}, "tiny": {"the policy chose tiny of 2 variants"}}
        await beside.site.stop(LIMIT_S)

    asyncio.run(main())


def test_a_fleet_that_takes_over_goes_on_counting_what_the_same_canary_was_given() -> None:
    first, second, without = Beside(), Beside(), Beside(canary=False)
    assert first.pool.canary is not None
    assert second.pool.canary is not None
    first.pool.canary.requests = 7
    second.pool.go_on_trying(without.pool)
    assert second.pool.canary.requests == 0
    second.pool.go_on_trying(first.pool)
    assert second.pool.canary.requests == 7


def test_a_fleet_that_takes_over_explores_as_soon_as_that_of_before_would_have() -> None:
    async def main() -> None:
        beside, after = Beside(canary=False), Beside(canary=False)
        await beside.site.start()
        variants = []
        for at in range(EXPLORED):
            if at in (0, EXPLORED // 2):
                if at:
                    await beside.site.prepare(after.pool)
                    beside.site.swap(after.pool)
                beside.site.pool.correct({"big": 0.65})
            variants.append((await asyncio.wait_for(beside.ask(), LIMIT_S)).variant)
        assert variants == ["tiny"] * (EXPLORED - 1) + ["big"]
        await beside.site.stop(LIMIT_S)

    asyncio.run(main())
