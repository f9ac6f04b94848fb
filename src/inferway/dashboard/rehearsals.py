"""Questions that pages ask, from the server that they are about to the twin and back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from inferway.dashboard.question import POLICIES, ObservedTask, Question, WhatIfError
from inferway.dashboard.reader import Reader
from inferway.dashboard.twin import SUPERSEDED, SupersededError, TwinProcess
from inferway.dashboard.watched import UnreadError, WatchedServer
from inferway.deployment.policies import DISPATCH, ESCALATE

_WINDOW_S: Final = 300.0
_LOOK_S: Final = 1.0
_PAGES: Final = 1024
"""Pages of which it is known which question is the newest."""
_AHEAD: Final = 8
"""Tasks for which the twin is compiled before anybody asks; of others, when somebody does."""


class Rehearsals:
    """The twin of what a reader reads.

    Parameters
    ----------
    reader
        Of the servers.
    folder
        That the files of their policies start from; None where no code of theirs is run here.
    """

    def __init__(self, reader: Reader, folder: str | None = None) -> None:
        self._reader, self._folder = reader, folder
        self._twin = TwinProcess(reader.again)
        self._preparing: asyncio.Task[None] | None = None
        self._ready: set[tuple[str, str]] = set()
        self._number, self._newest = 0, dict[str, int]()
        reader.twin = lambda: self._twin.state
        reader.leaving.append(self._twin.leave)

    def begin(self) -> None:
        """Compile from now on what the tasks that are shown will need."""
        self._preparing = asyncio.create_task(self._prepare())

    async def end(self) -> None:
        """End the twin."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        await self._twin.end()

    async def _prepare(self) -> None:
        while True:
            for source in self._reader.sources:
                # While somebody measures with them, nothing is compiled beside.
                answers = source.state == "answers" and not self._reader.doing
                tasks = [*source.status.get("tasks", {})] if answers else []
                for task in tasks:
                    if (source.url, task) not in self._ready and len(self._ready) < _AHEAD:
                        self._ready.add((source.url, task))
                        with suppress(UnreadError):
                            told = await asyncio.to_thread(
                                observed, source, task, folder=self._folder
                            )
                            await self._twin.prepare(told)
            await asyncio.sleep(_LOOK_S)

    async def ask(self, asker: str, question: Question) -> dict[str, Any]:
        """Answer a question of a page.

        Raises
        ------
        UnreadError
            When its server cannot be asked.
        WhatIfError
            When there is no answer.
        """
        source, self._number = self._reader.source(question.server), self._number + 1
        number = self._newest[asker] = self._number
        if len(self._newest) > _PAGES:
            del self._newest[next(iter(self._newest))]
        told = await asyncio.to_thread(
            observed, source, question.task, folder=self._folder, requests=True
        )
        # What the older of two questions needs may have come after what the newer one does.
        if self._newest.get(asker, number) > number:
            raise SupersededError(SUPERSEDED)
        return await self._twin.ask(asker, question, told)


def observed(
    source: WatchedServer, task: str, *, folder: str | None = None, requests: bool = False
) -> ObservedTask:
    """Ask a server of a task, and of those that targets or devices join it with. Blocks.

    Its last requests are left out unless `requests` is given; `folder` is that of `ObservedTask`.

    Raises
    ------
    UnreadError
        When the server cannot be asked.
    WhatIfError
        Where the twin does not replay such a fleet.
    """
    content = source.told("/deployment")["content"] or {}
    since_s = source.times[-1] - _WINDOW_S - 1.0 if source.times else 0.0
    fleets = {task: fleet_of(source, task)}
    if fleets[task].get("devices"):
        others = [one for one in source.status.get("tasks", {}) if one != task]
        fleets |= {one: fleet_of(source, one) for one in others}
    told = []
    for name in joined_by(content, task, fleets):
        fleet = fleets[name] if name in fleets else fleet_of(source, name)
        rows = source.requests(name, since_s) if requests else b""
        told.append(ObservedTask({}, fleet, rows))
    balances: dict[str, float] = {}
    if len(told) > 1:
        targets = source.told("/status").get("targets", {})
        balances = {name: one["balance"] for name, one in targets.items()}
    first, *beside = told
    return ObservedTask(content, first.fleet, first.requests, folder, beside, balances)


def joined_by(
    content: Mapping[str, Any], task: str, fleets: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """List a task and those that targets or devices join it with, itself first.

    Devices join those of these fleets whose instances there cannot all run at once.
    """
    found = [task]
    groups = [*_sharing(fleets), *(one["tasks"] for one in content.get("targets", {}).values())]
    for name in found:  # which grows meanwhile
        for group in groups:
            if name in group:
                found += [one for one in group if one not in found]
    return found


def _sharing(fleets: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """List for each device that not all instances can run on at once the tasks that have some."""
    wanted: dict[str, dict[str, int]] = {}
    slots: dict[str, int] = {}
    for name, fleet in fleets.items():
        slots |= fleet.get("devices") or {}
        for one in fleet["classes"]:
            if one.get("device"):
                of = wanted.setdefault(one["device"], {})
                of[name] = of.get(name, 0) + one["instances"] * one["slots"]
    return [
        [name for name, taken in of.items() if taken > 0]
        for device, of in wanted.items()
        if sum(of.values()) > slots[device]
    ]


def fleet_of(source: WatchedServer, task: str) -> dict[str, Any]:
    """Ask which fleet answers a task; UnreadError where that cannot be said. Blocks."""
    return source.told(f"/deployment/{quote(task, safe='')}")


def choices(source: WatchedServer, task: str) -> dict[str, Any]:
    """Tell what can be asked about a task, and what is in force. Blocks.

    Raises
    ------
    UnreadError
        When the server cannot be asked.
    """
    fleet = fleet_of(source, task)
    classes = fleet["classes"]
    known = [one["accuracy"] for one in classes if one["accuracy"] is not None]
    others = [name for one in classes for name in (one["by"], one["node"]) if one["by"]]
    sure = fleet.get("confidence") is not None
    joint = bool(fleet.get("targets"))
    policies = [
        name
        for name in POLICIES
        if (sure or name != ESCALATE) and (not joint or DISPATCH[name].joint)
    ]
    if not classes:
        raise WhatIfError(f"nothing answers the task {task!r} now")
    return {
        "target": fleet["target"],
        "least_accuracy": min(known, default=None),
        "most_accuracy": max(known, default=None),
        "policy": fleet["policy"],
        "policies": list(dict.fromkeys((fleet["policy"], *policies))),
        "classes": [
            {"name": one["name"], "instances": one["instances"], "here": not one["by"]}
            for one in classes
        ],
        "nodes": list(dict.fromkeys(others)),
        "node": fleet["node"],
    }
