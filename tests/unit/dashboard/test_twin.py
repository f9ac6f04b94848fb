"""The twin's process: its worker, what goes over its pipes, and the page's end of it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from lately import fleet, told

from inferway.dashboard.question import (
    Ask,
    Cancel,
    Doing,
    Done,
    ObservedTask,
    Order,
    Prepare,
    Question,
    WhatIfError,
    framed,
    frames,
)
from inferway.dashboard.twin import SupersededError, TwinProcess
from inferway.dashboard.twin_process import TwinWorker

QUESTION = Question("http://here:8002", "digits")
LIMIT_S = 120.0


def worked(*orders: Order) -> list[Doing | Done]:
    said: list[Doing | Done] = []
    worker = TwinWorker(said.append)
    for order in orders:
        worker.take(order)
    worker.end()
    worker.work()
    return said


def test_messages_come_whole_or_not_at_all() -> None:
    orders = [Prepare(1, told()), Ask(2, QUESTION, told()), Cancel(2)]
    raw = b"".join(map(framed, orders))
    assert list(frames(io.BytesIO(raw), Order)) == orders
    assert list(frames(io.BytesIO(raw[:-1]), Order)) == orders[:2]


def test_orders_are_worked_off_one_after_the_other() -> None:
    said = worked(Prepare(1, told()), Ask(2, QUESTION, told()))
    first, second = (one for one in said if isinstance(one, Done))
    assert (first.number, first.document, first.error) == (1, {}, "")
    assert second.document is not None
    assert second.document["numbers"]["live"]["mean_s"] > 0.0
    words = [one.words for one in said if isinstance(one, Doing) and one.number == 2]
    assert "replaying what was" in words


def test_what_is_canceled_before_its_turn_is_not_begun() -> None:
    (only,) = worked(Ask(1, QUESTION, told()), Cancel(1), Cancel(7))
    assert only == Done(1)


def test_what_is_wrong_is_a_sentence_and_the_next_question_is_answered() -> None:
    wrong = Question("http://here:8002", "digits", target=0.95)
    broken = ObservedTask({}, {"task": "digits"})
    said = worked(Ask(1, wrong, told()), Prepare(2, broken), Ask(3, QUESTION, told()))
    first, second, third = (one for one in said if isinstance(one, Done))
    assert first.error.startswith("0.95 is above the best variant")
    assert second.error.startswith("the twin failed: KeyError")
    assert third.document is not None


def running(test: Callable[[TwinProcess], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        twin = TwinProcess()
        try:
            await asyncio.wait_for(test(twin), LIMIT_S)
        finally:
            await twin.end()

    asyncio.run(main())


def test_it_answers_in_a_process_of_its_own_and_the_newest_question_of_each_page() -> None:
    async def test(twin: TwinProcess) -> None:
        assert twin.state["state"] == "off"
        assert await twin.prepare(told()) == ""
        state = twin.state
        assert (state["state"], state["done"], state["of"]) == ("ready", 1, 1)
        assert "needs at least 1" in await twin.prepare(ObservedTask({}, fleet(classes=[])))
        older = asyncio.create_task(twin.ask("a page", QUESTION, told()))
        other = asyncio.create_task(twin.ask("another", QUESTION, told()))
        await asyncio.sleep(0)
        newer = asyncio.create_task(twin.ask("a page", QUESTION, told()))
        with pytest.raises(SupersededError, match="a newer question took its place"):
            await older
        assert (await other)["numbers"] == (await newer)["numbers"]
        with pytest.raises(WhatIfError, match="above the best variant"):
            await twin.ask("a page", Question("u", "digits", target=0.95), told())

    running(test)


def test_whoever_waits_is_told_when_it_ends_and_the_next_one_starts_it_again() -> None:
    async def test(twin: TwinProcess) -> None:
        await twin.begin()
        process = twin._process
        assert process is not None
        asked = asyncio.create_task(twin.ask("a page", QUESTION, told()))
        await asyncio.sleep(0)
        process.kill()
        with pytest.raises(WhatIfError, match="has ended: ask again"):
            await asked
        assert twin.state["state"] == "off"
        assert (await twin.ask("a page", QUESTION, told()))["requests"] == 2000

    running(test)
