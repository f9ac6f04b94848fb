"""What servers may tell, and what the pages are told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
from inferway.dashboard.__main__ import PageSource, sources_of
from inferway.dashboard.reader import Reader
from inferway.dashboard.view import Curves, prepare
from inferway.dashboard.watched import WatchedServer
from inferway.live.history import TASK_FIELDS, VARIANT_FIELDS
from inferway.loadgen import Access

NOW = 1_000_000_000.0
VARIANT = {
    "accuracy": 0.9,
    "profile_service_s": 0.01,
    "mean_service_s": 0.01,
    "mean_latency_s": 0.02,
    "instances": 1,
    "healthy": [True],
    "queue": [0],
}


class Told(WatchedServer):
    """A server whose answers are given here."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:8002", Access())
        self.samples: list[tuple[float, float | None]] = []
        self.now_s, self.asked = NOW, list[str]()
        task = {"accuracy_target": None, "variants": {"own": VARIANT}}
        self.said: dict[str, Any] = {"ready": True, "tasks": {"t": task}}
        self._has_node = False

    def _get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if path == "/status":
            return self.said
        if path == "/decisions":
            return {"tasks": {}}
        since_s = float(path.partition("=")[2])
        shown = [(at, value) for at, value in self.samples if at > since_s]
        values = [value for _, value in shown]
        own = dict.fromkeys(VARIANT_FIELDS, values)
        task = dict.fromkeys(TASK_FIELDS, values)
        return {
            "times": [at for at, _ in shown],
            "now": self.now_s,
            "more": False,
            "response_bounds_s": [0.1],
            "tasks": {"t": {**task, "variants": {"own": own}, "response_times": {"own": [0, 0]}}},
        }

    def ask(self) -> None:
        """Have what `follow` has in one round."""
        self._take(self._ask(self.times[-1] if self.times else 0.0))


async def told(reader: Reader) -> dict[str, Any]:
    """Have the next message of a reader that tells."""
    page: asyncio.Queue[bytes | None] = asyncio.Queue()
    reader._pages.add(page)
    reader._changed.set()
    message = await asyncio.wait_for(page.get(), 60.0)
    reader._pages.discard(page)
    assert message is not None
    found: dict[str, Any] = json.loads(message)
    return found


def test_a_task_that_came_has_no_numbers_before_and_is_told() -> None:
    source = Told()
    source.samples = [(NOW - 2, None), (NOW - 1, 1.0)]

    async def main() -> dict[str, Any]:
        reader = Reader([source])
        telling = asyncio.create_task(reader._tell())
        source.ask()
        message = await told(reader)
        telling.cancel()
        return message

    (task,) = asyncio.run(main())["tasks"]
    assert task["series"]["times"] == [NOW - 1]
    assert task["rate_per_s"] == 1.0


def test_what_cannot_be_told_is_logged_and_the_pages_hear_of_the_rest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = Told()
    source.samples = [(NOW - 1, 1.0)]

    async def main() -> dict[str, Any]:
        reader = Reader([source])
        telling = asyncio.create_task(reader._tell())
        whole, source.said = source.said, {"tasks": {"t": {"variants": {"own": {}}}}}
        source.ask()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(told(reader), 1.0)
        source.said = whole
        source.ask()
        message = await told(reader)
        telling.cancel()
        return message

    assert asyncio.run(main())["tasks"][0]["task"] == "t"
    assert "the pages could not be told what is new" in capfd.readouterr().err


def test_a_server_whose_clock_is_set_back_is_told_anew() -> None:
    source = Told()
    source.samples = [(NOW - 2, 1.0), (NOW - 1, 1.0)]

    async def main() -> dict[str, Any]:
        reader = Reader([source])
        telling = asyncio.create_task(reader._tell())
        source.ask()
        await told(reader)
        source.now_s, source.samples = NOW - 3600, [(NOW - 3601, 2.0)]
        source.ask()
        message = await told(reader)
        telling.cancel()
        return message

    message = asyncio.run(main())
    assert message["whole"]
    assert message["tasks"][0]["series"]["times"] == [NOW - 3601]
    # It is asked for everything once.
    source.asked.clear()
    source.ask()
    assert sum(path.startswith("/history") for path in source.asked) == 1


def test_bounds_are_computed_once_however_many_tasks_there_are() -> None:
    def status(service_s: float) -> dict[str, Any]:
        own = VARIANT | {"profile_service_s": service_s}
        return {"accuracy_target": None, "variants": {"own": own}}

    tasks = {f"t{i}": status(0.01 + i / 1000) for i in range(70)}
    curves: Curves = {}
    assert prepare([{"tasks": tasks}], curves, 120.0)
    assert len(curves) == 70
    # There is no time for even one more.
    assert prepare([{"tasks": tasks}], curves, 0.0)
    assert not prepare([{"tasks": tasks | {"new": status(2.0)}}], curves, 0.0)
    assert prepare([{"tasks": {"t0": tasks["t0"]}}], curves, 0.0)
    assert len(curves) == 1


def test_what_is_shown_changes_and_one_that_has_ended_stays_as_it_was() -> None:
    first, second = Told(), Told()
    first.samples, second.samples = [(NOW - 1, 1.0)], [(NOW - 1, 2.0)]
    second.url = "http://127.0.0.1:8003"

    async def main() -> list[dict[str, Any]]:
        reader = Reader()
        reader.begin()
        messages = reader.messages()
        found = [json.loads(await anext(messages))]

        async def until(accepted: Callable[[dict[str, Any]], bool]) -> None:
            async with asyncio.timeout(60.0):
                while not accepted(message := json.loads(await anext(messages))):
                    pass
            found.append(message)

        reader.show([first], "measuring")
        await until(lambda one: bool(one["tasks"]))
        first.end()
        reader.show([first, second], "answering")
        await until(lambda one: [s["state"] for s in one["sources"]] == ["ended", "answers"])
        asked = len(first.asked)
        reader.show([second])
        await until(lambda one: len(one["sources"]) == 1)
        assert len(first.asked) == asked
        await reader.end()
        return found

    empty, measuring, answering, last = asyncio.run(main())
    assert (empty["sources"], empty["tasks"], empty["doing"]) == ([], [], "")
    assert measuring["doing"] == "measuring"
    assert (answering["doing"], last["doing"]) == ("answering", "")
    ended, other = answering["tasks"]
    assert (ended["ended"], other["ended"]) == (True, False)
    assert ended["promise"]["reason"] == "The task has no accuracy target. It has ended."
    assert [task["url"] for task in last["tasks"]] == [second.url]


def test_pages_hear_something_while_there_is_nothing_to_ask() -> None:
    async def main() -> None:
        reader = Reader()
        reader.begin()
        messages = reader.messages()
        for _ in range(3):
            await asyncio.wait_for(anext(messages), 60.0)
        await reader.end()

    asyncio.run(main())


def test_a_server_that_came_to_the_port_of_one_that_has_ended_is_another() -> None:
    access = Access()
    begun = sources_of([PageSource("http://127.0.0.1:1", "a")], [], access)
    (ended,) = sources_of([PageSource("http://127.0.0.1:1", "a", ended=True)], begun, access)
    assert ended is begun[0]
    assert ended.ending
    (again,) = sources_of([PageSource("http://127.0.0.1:1", "a")], [ended], access)
    assert again is not ended
    assert (again.name, again.ending) == ("a", False)


def test_it_ends_although_something_has_changed_at_that_moment() -> None:
    async def main() -> None:
        reader = Reader()
        reader.begin()
        await anext(reader.messages())
        async with asyncio.timeout(60.0):
            for _ in range(20):  # it waits for a change by then
                await asyncio.sleep(0)
            reader.again()
            await reader.end()

    asyncio.run(main())
