"""What nodes decided, decided again from their recordings, through every site that they had."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_node import LIMIT_S, World, world

import inferway
from inferway.cli import main as cli
from inferway.dispatch import recordings
from inferway.dispatch.recording import BALANCE, FINISH, LASTING, MARK
from inferway.dispatch.replay import events, header
from inferway.live import InferRequest, Outcome, ServeError, TaskSite
from inferway.live.node.recordings import RecordingRotation

FILE = """
tasks:
  digits:
    count: 2
    accuracy_target: 0.88
    variants:
      mini: {model: zoo://digits/mini}
      small: {model: zoo://digits/small}
      large: {model: zoo://digits/large}
nodes:
  cloud: {repository: true, instances: {digits/large: 1}}
  edge: {budget: 80 kB, pinned: {digits/mini: 1}}
network:
  max_wait: 5 ms
  links: [{between: [cloud, edge], rtt: 20 ms}]
placement: {policy: repository-only, slot: 1 h}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""


@pytest.fixture
def run() -> Any:
    def to_its_end(main: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * LIMIT_S):
                await main

        asyncio.run(limited())

    return to_its_end


def prepared(both: World) -> Path:
    file = both.folder / "recorded.yaml"
    file.write_text(FILE)
    both.deployment = inferway.load(file)
    return both.folder / "recorded"


async def ask_all(both: World, count: int = 40) -> Counter[int]:
    """Requests of all kinds, eight at a time; how many ended with which status."""
    found: Counter[int] = Counter()
    for first in range(0, count, 8):
        asked = []
        for i in range(first, first + 8):
            more: dict[str, Any] = {}
            if i % 5 == 0:
                more["deadline_ms"] = (0.01, 15, 500)[i // 5 % 3]
            if i % 7 == 0:
                more["accuracy"] = (0.5, 0.92)[i // 7 % 2]
            asked.append(both.ask("/versions/mini" if i % 11 == 0 else "", **more))
        found.update(one.status_code for one in await asyncio.gather(*asked))
    return found


def replayed(folder: Path, task: str = "digits-0") -> list[Any]:
    found = [inferway.replay(one, requests=None) for one in recordings(folder)]
    assert all(one.same_code and not one.losses for one in found)
    assert [one.differences for one in found] == [()] * len(found)
    return [one for one in found if one.task == task]


def kinds(folder: Path, task: str = "digits-0") -> Counter[int]:
    """Events of a task's sections, by their kind."""
    found: Counter[int] = Counter()
    for one in recordings(folder):
        if header(one)["fleet"]["task"] == task:
            for _, rows in events(one):
                found.update(rows["kind"].tolist())
    return found


def test_every_site_has_a_section_and_every_decision_comes_out_again(
    tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    async def main() -> None:
        nonlocal asked
        async with world(tmp_path) as both:
            folder = prepared(both)

            async def answered() -> None:
                nonlocal asked
                statuses = await ask_all(both)
                assert statuses[200] > 20
                asked += statuses.total()

            edge = await both.start("edge", record=folder / "edge")
            await answered()
            cloud = await both.start("cloud", record=folder / "cloud")
            await both.met()
            await answered()
            # Copies come, in the middle of requests.
            asking = asyncio.create_task(answered())
            assert await edge.reconciler.toward({("digits-0", "small"): 1})
            await asking
            assert "small" in await both.variants()
            # Offers go and come again: marks, and other classes that last.
            await both.stop("cloud")
            await both.until(lambda: edge.status()["degraded"])
            await answered()
            cloud = await both.start("cloud", record=folder / "cloud")
            await both.until(lambda: not edge.status()["degraded"])
            await answered()
            assert cloud.demand.served

    run(main())
    found = replayed(tmp_path / "recorded" / "edge")
    assert len(found) >= 3
    # Those that were refused for their form, or decided on twice, make a difference.
    assert asked - 5 <= sum(one.requests for one in found) <= 1.2 * asked
    told = kinds(tmp_path / "recorded" / "edge")
    assert told[LASTING] >= 2
    assert told[MARK] >= 8
    assert told[FINISH] > 100
    fleets = [header(one)["fleet"] for one in recordings(tmp_path / "recorded" / "edge")]
    variants = [one["variants"] for one in fleets if one["task"] == "digits-0"]
    assert variants[0] == ["mini"]
    assert {"mini", "small", "large@cloud"} in [set(one) for one in variants]
    assert {one["node"] for one in fleets} == {"edge"}
    # What came from the neighbor was pinned, and is there as well, through two runs of the node.
    assert sum(one.requests for one in replayed(tmp_path / "recorded" / "cloud")) > 0
    assert cli(["replay", str(tmp_path / "recorded"), "--requests", "0", "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert {"edge/digits-0", "edge/digits-0.2", "cloud/digits-0"} <= set(tasks)
    assert not any(one["differing"] for one in tasks.values())
    assert cli(["replay", str(tmp_path / "recorded"), "--requests", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4  # a task at a node, two each
    assert f"in {len(found)} recordings" in next(one for one in lines if "edge/digits-0" in one)


def test_a_decision_that_differs_is_found_in_its_section(
    tmp_path: Path, run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            folder = prepared(both)
            await both.start("edge", record=folder)
            await both.start("cloud")
            await both.met()
            await ask_all(both)

    run(main())
    (section,) = [
        one
        for one in recordings(tmp_path / "recorded")
        if inferway.replay(one, requests=None).requests
        and header(one)["fleet"]["task"] == "digits-0"
    ]
    head = json.loads((section / "recording.json").read_text())
    # As if the far copy had been less accurate.
    head["fleet"]["accuracy"] = head["fleet"]["accuracy"][::-1]
    (section / "recording.json").write_text(json.dumps(head))
    for file in section.glob("*.state.npz"):
        with np.load(file) as state:
            arrays = dict(state)
        arrays["site.accuracy"] = arrays["site.accuracy"][::-1]
        np.savez(file, **arrays)
    assert inferway.replay(section, requests=None).differences
    assert cli(["replay", str(tmp_path / "recorded")]) == 1
    said = capsys.readouterr().out
    assert f"{section.name}: " in said
    assert " now" in said


class _Log:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def error(self, sentence: str, **more: Any) -> None:
        self.said.append({"sentence": sentence, **more})

    warning = error


def test_old_sections_go_and_a_restart_goes_on_behind_them(tmp_path: Path, site_of: Any) -> None:
    folder, log = tmp_path / "run", _Log()

    async def main() -> None:
        for _ in range(2):
            sections = RecordingRotation(folder, log, keep=3)
            for _ in range(2):
                site = site_of()
                site.pool.dispatcher.fleet = replace(site.pool.dispatcher.fleet, task="digits")
                await site.start()
                sections.begin(site)
                await site.stop()
        async with asyncio.timeout(LIMIT_S):
            while (folder / "digits").exists():
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert [one.name for one in recordings(folder)] == ["digits.2", "digits.3", "digits.4"]
    assert log.said == []


def test_what_the_site_before_undoes_is_part_of_the_next_ones_section(
    tmp_path: Path, site_of: Any, gates: Any
) -> None:
    def ask(site: TaskSite) -> InferRequest:
        image = {"image": np.zeros((1, 4), np.float32)}
        request = InferRequest(image, 1, lambda request: None, None, site.now())
        site.submit(request)
        return request

    async def main() -> None:
        site = site_of(gates, policy="priced")
        new = site_of(policy="priced").pool
        for gate in gates:
            gate.opened.set()  # for its warm-up
        await site.start()
        await site.prepare(new)
        for gate in gates:
            gate.opened.clear()
        waiting = [ask(site), ask(site)]
        owed = site.pool.dispatcher.balance
        assert owed != 0.0
        leaving = site.swap(new)
        new.record(tmp_path / "run")
        asked = [ask(site)]
        before = new.dispatcher.balance
        for gate in gates:
            gate.failure = ValueError("broken")
            gate.opened.set()
        await leaving
        assert {one.outcome for one in waiting} == {Outcome.FAILED}
        assert new.dispatcher.balance == pytest.approx(before - owed)
        for _ in range(50):
            asked.append(ask(site))
            await asyncio.sleep(0)
        await site.stop()
        assert {one.outcome for one in asked} <= {Outcome.ANSWERED, Outcome.REJECTED}

    asyncio.run(main())
    ((_, rows),) = events(tmp_path / "run")
    # Both were undone at once, or the new one decided in between.
    assert np.count_nonzero(rows["kind"] == BALANCE) in (1, 2)
    found = inferway.replay(tmp_path / "run", requests=None)
    assert (found.requests, found.differences) == (51, ())


def test_where_nothing_can_be_recorded_is_said(tmp_path: Path, run: Any, site_of: Any) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        async with world(tmp_path) as both:
            prepared(both)
            with pytest.raises(ServeError, match="nothing can be recorded in "):
                await both.start("edge", record=tmp_path / "file")
        log = _Log()
        sections = RecordingRotation(tmp_path / "run", log)
        (tmp_path / "run").rmdir()
        (tmp_path / "run").write_text("")
        site = site_of()
        await site.start()
        sections.begin(site)
        async with asyncio.timeout(LIMIT_S):
            while not log.said:
                await asyncio.sleep(0.01)
        assert log.said[0]["sentence"] == "no longer recording"
        # Whatever was in the way has gone.
        (tmp_path / "run").unlink()
        async with asyncio.timeout(LIMIT_S):
            while len(log.said) < 2:
                await asyncio.sleep(0.01)
        assert log.said[1]["sentence"] == "recording again"
        await site.stop()
        assert [one.name for one in recordings(tmp_path / "run")] == [site.task]

    run(main())


def test_a_node_on_a_full_disk_goes_on_in_another_section(
    tmp_path: Path, disk: Path, run: Any
) -> None:
    async def main() -> None:
        async with world(tmp_path) as both:
            prepared(both)
            edge = await both.start("edge", record=disk / "edge")
            await ask_all(both)
            site = edge.server.sites["digits-0"]
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            while site.pool.recording is not None and site.pool.recording.gap is None:
                await ask_all(both)
            await ask_all(both)
            (disk / "filler").unlink()
            await both.until(lambda: site.pool.recording.gap is None)  # type: ignore[union-attr]
            await ask_all(both)

    run(main())
    sections = (disk / "edge" / name for name in ("digits-0", "digits-0.2"))
    first, second = (inferway.replay(one, requests=None) for one in sections)
    assert (first.differences, second.differences) == ((), ())
    assert second.gap is not None
    assert second.gap.decisions > 20
    assert second.requests > 20
