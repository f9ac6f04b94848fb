"""Second answers of other nodes: the entry decides, and what it has in hand is never lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from asking import EXPECTED, FAST, SURE, TARGET, UNSURE, Network, body, chain
from chain import Answered, Held, until

from inferway.live.request import Outcome
from inferway.live.site import TaskSite


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def test_an_answer_of_two_hops_away_says_who_was_asked_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "metro", "cloud") as world:
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "metro"))
            before = world.entry.runtime.runs, world.far.runtime.runs  # On zeros
            answer = await world.ask(UNSURE, headers="Accept-Encoding: gzip\r\n")
            assert answer.status == 200, answer.body
            told = answer.json["parameters"]
            assert (told["variant"], told["node"]) == ("large", "cloud")
            assert told["escalated_from"] == "tiny"
            assert told["confidence"] == pytest.approx(2 * UNSURE)
            assert told["expected_accuracy"] == EXPECTED[UNSURE][1]
            assert told["accuracy_balance"] == pytest.approx(EXPECTED[UNSURE][1] - TARGET)
            assert answer.headers["inferway-node"] == "cloud"
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            assert answer.headers["inferway-variant"] == "large"
            assert answer.json["outputs"][0]["data"] == pytest.approx([2 * UNSURE, 4.0])
            # One node decides: those on the way see a request like any other.
            assert world.others[0].seen == [("task", "edge")]
            runs = world.entry.runtime.runs, world.far.runtime.runs
            assert runs == (before[0] + 1, before[1] + 1)
            stats = world.entry.site.stats
            assert stats.escalations == {(0, 1): 1}
            assert world.balance == pytest.approx(EXPECTED[UNSURE][1] - TARGET)
            assert world.far.site.stats.escalations == {}
            assert world.far.site.pool.balance[0] == 0.0
            explained = world.entry.site.pool.log.explain(answer.headers["x-request-id"].encode())
            assert "tiny was asked first" in explained["reason"]
            assert explained["variant"] == "large@cloud"

    run(main())


@pytest.mark.parametrize("raw", [False, True])
def test_the_confidence_of_a_neighbors_answer_is_read(tmp_path: Path, raw: bool) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve()
            await world.serve(("tiny", "cloud", "cloud"), own="large", rate=FAST)
            more = {"parameters": {"binary_data_output": raw}}
            answer = await world.ask(SURE, more=more)
            length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
            said = json.loads(answer.body[:length])
            assert said["parameters"]["node"] == answer.headers["inferway-node"] == "cloud"
            assert said["parameters"]["confidence"] == pytest.approx(2 * SURE)
            assert "escalated_from" not in said["parameters"]
            if raw:
                values = np.frombuffer(answer.body[length:], np.float32)
            else:
                values = said["outputs"][0]["data"]
            assert values == pytest.approx([2 * SURE, 4.0])
            assert answer.headers["inferway-path"] == "edge,cloud"
            assert world.balance == pytest.approx(EXPECTED[SURE][0] - TARGET)
            unsure = (await world.ask(UNSURE)).json["parameters"]
            assert (unsure["variant"], unsure["node"]) == ("large", "edge")
            assert unsure["escalated_from"] == "tiny"

    run(main())


def test_the_rows_of_a_neighbors_answer_count_for_their_mean(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve()
            await world.serve(("tiny", "cloud", "cloud"), own="large", rate=FAST)
            answer = await world.ask(UNSURE, SURE, SURE)
            expected = (EXPECTED[UNSURE][0] + 2 * EXPECTED[SURE][0]) / 3
            assert answer.json["parameters"]["expected_accuracy"] == pytest.approx(expected)
            assert world.balance == pytest.approx(3 * (expected - TARGET))

    run(main())


def test_a_pinned_answer_is_passed_on_as_it_came(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            answer = await world.ask(UNSURE, variant="large")
            told = answer.json["parameters"]
            assert (told["variant"], told["node"]) == ("large", "cloud")
            assert "confidence" not in told
            assert "accuracy_balance" not in told  # nobody has written it anew
            assert world.balance == 0.0

    run(main())


def test_numbers_that_are_none_are_refused_at_the_entry(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve()
            await world.serve(("tiny", "cloud", "cloud"), own="large", rate=FAST)
            before = world.far.runtime.runs
            wrong = body(SURE).replace(b"2.0", b'"two"')
            answer = await (await world.entry.client()).ask(wrong)
            assert (answer.status, answer.headers["inferway-node"]) == (400, "edge")
            assert "x" in answer.error
            assert world.far.runtime.runs == before

    run(main())


def held(world: Network) -> Held:
    world.far.runtime = runtime = Held()
    return runtime


def taken_back(world: Network, answer: Answered) -> None:
    """The first answer has gone out, and all counts are as if nobody else had been asked."""
    assert answer.status == 200, answer.body
    told = answer.json["parameters"]
    assert (told["variant"], told["node"]) == ("tiny", "edge")
    assert "escalated_from" not in told
    assert told["expected_accuracy"] == EXPECTED[UNSURE][0]
    assert told["confidence"] == pytest.approx(2 * UNSURE)
    assert answer.headers["inferway-node"] == "edge"
    assert answer.headers["inferway-path"] == "edge"
    assert world.balance == pytest.approx(EXPECTED[UNSURE][0] - TARGET)
    stats = world.entry.site.stats
    assert stats.outcomes[Outcome.ANSWERED] == [1, 0, 0]
    assert sum(map(sum, stats.outcomes)) == 1
    assert world.entry.site.pool.dispatcher.site.queue.sum() == 0


def test_where_the_neighbor_dies_the_first_answer_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud", wired=True) as world:
            runtime = held(world)
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            runtime.gate.clear()
            client = await world.entry.client()
            client.send(body(UNSURE))
            await until(lambda: world.far.site.pool.in_flight == 1)
            world.entry.wires["cloud"].end()
            answer = await client.read()
            runtime.gate.set()
            await world.idle()
            taken_back(world, answer)

    run(main())


def test_where_the_neighbor_refuses_the_first_answer_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            world.far.proxy.serve(TaskSite("task"))  # It does not run there any more
            answer = await world.ask(UNSURE)
            await world.idle()
            taken_back(world, answer)

    run(main())


def test_where_the_neighbor_fails_the_first_answer_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            world.far.runtime.broken = True
            answer = await world.ask(UNSURE)
            await world.idle()
            taken_back(world, answer)

    run(main())


def test_where_the_neighbor_would_be_late_the_first_answer_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            runtime = held(world)
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            runtime.gate.clear()
            answer = await world.ask(UNSURE, more={"parameters": {"deadline_ms": 1500}})
            assert answer.json["parameters"]["latency_ms"] >= 1499
            runtime.gate.set()
            await world.idle()
            taken_back(world, answer)

    run(main())


def test_an_answer_in_hand_of_a_neighbor_keeps_its_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud") as world:
            await world.far.serve()
            await world.serve(("tiny", "cloud", "cloud"), own="large", rate=FAST)
            world.entry.runtime.broken = True
            answer = await world.ask(UNSURE)
            await world.idle()
            assert answer.status == 200, answer.body
            told = answer.json["parameters"]
            assert (told["variant"], told["node"]) == ("tiny", "cloud")
            assert answer.headers["inferway-path"] == "edge,cloud"
            assert world.balance == pytest.approx(EXPECTED[UNSURE][0] - TARGET)

    run(main())
