"""Second answers: who is asked again, which answer goes out, and what the balance counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cascade import CASCADE

from inferway.dispatch import Dispatcher
from inferway.dispatch.dispatcher import PolicyError
from inferway.dispatch.recording import FALL_BACK, SETTLE
from inferway.dispatch.replay import events, replay
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.explain import RequestLog
from inferway.live.history import History
from inferway.live.in_force import fleet_told
from inferway.live.request import InferRequest
from inferway.live.tracing import Tracer
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import ConfidenceTables, Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 1)),), (Tensor("y", "FP32", (-1, 1)),))
LIMIT_S = 20.0
TARGET = 0.8
SURE, UNSURE = 0.9, 0.1
# Expected accuracy of `quick` where it is sure and where it is not, and of `good` there.
EXPECTED = {SURE: (0.95, 0.97), UNSURE: (0.3, 0.75)}


class Echo(NullRuntime):
    """Answers with what it is given, plus a number by which it is known."""

    def __init__(self, plus: float = 0.0) -> None:
        super().__init__(SIGNATURE)
        self.plus = plus

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"] + np.float32(self.plus)}


class Broken(Echo):
    """Fails where it is given anything but zeros, with which it is warmed up."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["x"].any():
            raise ValueError("broken")
        return super().run(inputs)


class Gate(Echo):
    """Holds what is no warm-up until it is let through."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.begun, self.passes = threading.Event(), threading.Event()

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs["x"].any():
            self.begun.set()
            assert self.passes.wait(LIMIT_S)
        return super().run(inputs)


def confidence(outputs: dict[str, Any]) -> Any:
    return outputs["y"][:, 0].astype(np.float64)


class Asked:
    """A task of two variants, of which the second is asked where the first is unsure."""

    def __init__(
        self, folder: Path, second: NullRuntime, *, policy: str = "", **options: Any
    ) -> None:
        file = folder / "cascade.py"
        file.write_text(CASCADE)
        both = np.array([EXPECTED[UNSURE], EXPECTED[SURE]])
        tables = ConfidenceTables(
            np.array([[0.3, 0.7], [0.0, 0.0]]),
            np.array([both, [[0.6, 0.9], [0.6, 0.9]]]),
            np.array([[0.5], [np.inf]]),
        )
        fleet = Fleet(
            ("quick", "good"),
            np.array([1e3, 1e2]),
            np.array([0.755, 0.9]),
            np.array([1, 1]),
            buffer=4,
            confidence=tables,
        )
        options = {"target": TARGET, "confidences": [confidence, None], **options}
        dispatcher = Dispatcher(
            fleet, policy or f"{file}:Cascade", target=options["target"], rate_per_s=1.0
        )
        self.pool = Pool("task", SIGNATURE, dispatcher, [Echo(), second], PoolOptions(**options))
        self.site = TaskSite.of(self.pool)
        self.delivered: list[InferRequest] = []

    def submit(self, *rows: float, within_s: float | None = None, **said: Any) -> InferRequest:
        array = np.array(rows, np.float32)[:, None]
        now_s = self.site.now()
        request = InferRequest({"x": array}, len(rows), self.delivered.append, None, now_s, **said)
        if within_s is not None:
            request.deadline_s = now_s + within_s
        self.site.submit(request)
        return request

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.002)

    async def answer(self, *rows: float, **said: Any) -> InferRequest:
        self.submit(*rows, **said)
        before = len(self.delivered)
        await self.until(lambda: len(self.delivered) > before)
        await self.until(lambda: self.pool.in_flight == 0)
        return self.delivered[-1]

    @property
    def balance(self) -> float:
        return float(self.pool.balance[0])


def served(folder: Path, second: NullRuntime, test: Any, **options: Any) -> None:
    async def main() -> None:
        asked = Asked(folder, second, **options)
        await asked.site.start()
        try:
            await test(asked)
        finally:
            if isinstance(second, Gate):
                second.passes.set()
            await asked.site.stop(1.0)

    asyncio.run(main())


def test_a_sure_answer_is_sent_and_counts_what_it_is_expected_to_have(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        first = await asked.answer(SURE, id=b"one")
        assert (first.variant, first.escalated_from) == ("quick", "")
        assert first.confidence == pytest.approx(SURE)
        assert asked.balance == pytest.approx(EXPECTED[SURE][0] - TARGET)
        assert asked.site.stats.accuracy_mean == pytest.approx(EXPECTED[SURE][0])
        told = asked.pool.log.explain(b"one")
        assert told is not None
        assert (told["settle"]["accepted"], told["settle"]["asked"]) == (True, None)
        assert told["settle"]["gains"] == {"good": pytest.approx(0.02)}

    served(tmp_path, Echo(10.0), test)


def test_an_unsure_answer_is_kept_and_the_second_one_is_sent(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        found = await asked.answer(UNSURE, id=b"one")
        assert (found.variant, found.escalated_from) == ("good", "quick")
        assert found.outputs is not None
        assert found.outputs["y"][0, 0] == pytest.approx(10.0 + UNSURE)
        assert found.credit == EXPECTED[UNSURE][1]
        assert asked.balance == pytest.approx(EXPECTED[UNSURE][1] - TARGET)
        stats = asked.site.stats
        assert stats.escalations == {(0, 1): 1}
        history = History(lambda: [asked.site])
        await history.sample(1_000_000_020.0)
        told_since = history.page("second")["tasks"]["task"]["escalations"]
        assert told_since == {"quick": {"good": 1}}
        assert stats.outcomes[Outcome.ANSWERED] == [0, 1, 0]
        assert [len(runs) for runs in stats.runs] == [1, 1]  # both have run it
        log: RequestLog = asked.pool.log
        told = log.explain(b"one")
        assert told is not None
        assert told["escalated_from"] == "quick"
        assert told["expected_accuracy"] == EXPECTED[UNSURE][1]
        assert told["balance_after"] == pytest.approx(asked.balance)
        assert "quick was asked first" in told["reason"]
        # What the policy chose at first, and what it decided then.
        assert [one["variant"] for one in told["candidates"] if one["chosen"]] == ["quick"]
        settle = told["settle"]
        assert (settle["first"], settle["asked"], settle["sent"]) == ("quick", "good", "good")
        assert not settle["accepted"]
        assert settle["expected_accuracy"] == EXPECTED[UNSURE][0]
        assert settle["gains"] == {"good": pytest.approx(EXPECTED[UNSURE][1] - EXPECTED[UNSURE][0])}
        assert settle["predicted_ms"] > 0.0
        assert settle["price_ms"] is None  # this policy has none
        (brief,) = log.decisions(20, asked.site.now())
        assert (brief["escalated_from"], brief["variant"]) == ("quick", "good")

    served(tmp_path, Echo(10.0), test)


def test_what_confidences_say_is_told(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        told = msgspec.json.decode(msgspec.json.encode(fleet_told(asked.pool, None)))
        tables = asked.pool.dispatcher.fleet.confidence
        assert tables is not None
        assert told["confidence"] == {
            "mass": tables.mass.tolist(),
            "expected": tables.expected.tolist(),
            "edges": [[0.5], [None]],  # no confidence reaches it
        }

    served(tmp_path, Echo(10.0), test)


def test_rows_count_for_their_mean(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        found = await asked.answer(UNSURE, SURE, SURE)
        expected = (EXPECTED[UNSURE][0] + 2 * EXPECTED[SURE][0]) / 3
        assert found.variant == "quick"
        assert asked.balance == pytest.approx(3 * (expected - TARGET))

    served(tmp_path, Echo(10.0), test)


def test_a_pinned_request_is_asked_of_nobody_else(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        found = await asked.answer(UNSURE, classes=0b01, counted=False)
        assert (found.variant, found.confidence) == ("quick", None)
        assert asked.balance == 0.0

    served(tmp_path, Echo(10.0), test)


def test_what_is_sent_is_at_the_request_s_floor_by_its_bin_or_its_variant(tmp_path: Path) -> None:
    """At a target so low that accuracy alone is no reason to ask again."""

    async def test(asked: Asked) -> None:
        for sure, floor, variant, first in (
            (UNSURE, 0.0, "quick", ""),
            (UNSURE, 0.7, "good", "quick"),
            (SURE, 0.7, "quick", ""),
            (UNSURE, 0.8, "good", ""),  # the variant `quick` is below it
        ):
            found = await asked.answer(sure, floor=floor)
            assert (found.variant, found.escalated_from) == (variant, first)
            accuracy = {"quick": 0.755, "good": 0.9}[found.variant]
            assert max(found.credit, accuracy) >= floor

    served(tmp_path, Echo(10.0), test, policy="escalate", target=0.2)


def test_where_the_second_fails_the_first_goes_out(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        found = await asked.answer(UNSURE, id=b"one")
        assert (found.outcome, found.variant) == (Outcome.ANSWERED, "quick")
        assert found.escalated_from == ""
        told = asked.pool.log.explain(b"one")
        assert told is not None
        assert (told["settle"]["asked"], told["settle"]["sent"]) == ("good", "quick")
        assert found.outputs is not None
        assert found.outputs["y"][0, 0] == pytest.approx(UNSURE)
        assert asked.balance == pytest.approx(EXPECTED[UNSURE][0] - TARGET)
        assert asked.site.stats.outcomes[Outcome.ANSWERED] == [1, 0, 0]
        assert sum(map(sum, asked.site.stats.outcomes)) == 1

    served(tmp_path, Broken(10.0), test)


def test_at_the_deadline_the_first_goes_out_while_the_second_runs(tmp_path: Path) -> None:
    gate = Gate()

    async def test(asked: Asked) -> None:
        asked.submit(UNSURE, within_s=0.5)
        await asked.until(gate.begun.is_set)
        await asked.until(lambda: bool(asked.delivered))
        (found,) = asked.delivered
        assert (found.outcome, found.variant) == (Outcome.ANSWERED, "quick")
        assert asked.pool.in_flight == 1  # the run goes on
        gate.passes.set()
        await asked.until(lambda: asked.pool.in_flight == 0)
        assert len(asked.delivered) == 1
        assert asked.balance == pytest.approx(EXPECTED[UNSURE][0] - TARGET)
        assert sum(map(sum, asked.site.stats.outcomes)) == 1

    served(tmp_path, gate, test)


def test_at_the_deadline_the_first_goes_out_while_the_second_waits(tmp_path: Path) -> None:
    gate = Gate()

    async def test(asked: Asked) -> None:
        asked.submit(UNSURE)
        await asked.until(gate.begun.is_set)
        asked.submit(UNSURE, within_s=0.5)
        await asked.until(lambda: bool(asked.delivered))
        (found,) = asked.delivered
        assert (found.outcome, found.variant) == (Outcome.ANSWERED, "quick")
        gate.passes.set()
        await asked.until(lambda: len(asked.delivered) == 2)
        assert asked.delivered[-1].variant == "good"
        both = EXPECTED[UNSURE][0] + EXPECTED[UNSURE][1]
        await asked.until(lambda: asked.pool.in_flight == 0)
        assert asked.balance == pytest.approx(both - 2 * TARGET)

    served(tmp_path, gate, test)


@pytest.mark.parametrize("waits", [False, True])
def test_nothing_is_sent_to_a_client_that_has_gone(tmp_path: Path, waits: bool) -> None:
    gate = Gate()

    async def test(asked: Asked) -> None:
        gone = asked.submit(UNSURE)
        await asked.until(gate.begun.is_set)
        if waits:
            gone = asked.submit(UNSURE)
            await asked.until(lambda: gone.hand is not None)
        asked.pool.cancel(gone)
        gate.passes.set()
        await asked.until(lambda: asked.pool.in_flight == 0)
        sent = 1 if waits else 0
        assert len(asked.delivered) == sent
        assert asked.balance == pytest.approx(sent * (EXPECTED[UNSURE][1] - TARGET))
        assert asked.site.stats.outcomes[Outcome.CANCELED][1] == 1

    served(tmp_path, gate, test)


def test_a_pool_that_closes_answers_what_is_at_its_second_server(tmp_path: Path) -> None:
    gate = Gate()

    async def test(asked: Asked) -> None:
        asked.submit(UNSURE)
        await asked.until(gate.begun.is_set)
        asked.submit(UNSURE)
        await asked.until(lambda: len(asked.pool.queues[1]) == 2)
        closing = asyncio.create_task(asked.site.stop(LIMIT_S))
        gate.passes.set()
        await closing
        assert [one.outcome for one in asked.delivered] == [Outcome.ANSWERED] * 2

    served(tmp_path, gate, test)


def test_what_is_decided_on_answers_is_recorded_and_decided_the_same_again(tmp_path: Path) -> None:
    gate = Gate()

    async def test(asked: Asked) -> None:
        asked.pool.record(tmp_path / "recording")
        asked.submit(UNSURE)
        await asked.until(gate.begun.is_set)
        gone = asked.submit(UNSURE, within_s=0.3)  # The first answer goes out at the deadline
        await asked.until(lambda: bool(asked.delivered))
        gate.passes.set()
        await asked.until(lambda: asked.pool.in_flight == 0)
        assert gone.variant == "quick" or asked.delivered[0].variant == "quick"
        for rows in ((SURE,), (UNSURE, SURE, SURE), (UNSURE, UNSURE)):
            await asked.answer(*rows)
        await asked.answer(UNSURE, classes=0b01, counted=False)

    served(tmp_path, gate, test)
    found = replay(tmp_path / "recording", requests=None)
    assert (found.requests, found.differences, found.losses) == (6, (), ())
    # One of the first two had its second answer decided on, too, and one of three that of both.
    assert found.answers == 6 + 2
    ((_, rows),) = events(tmp_path / "recording")
    assert (rows["kind"] == FALL_BACK).sum() == 1
    # The balance of a replay is that of the server.
    assert rows["flag"][rows["kind"] == SETTLE].tolist().count(0) == 1


def test_a_policy_that_breaks_takes_no_answer_away(tmp_path: Path) -> None:
    async def test(asked: Asked) -> None:
        told: list[Exception] = []
        asked.pool.report = told.append  # type: ignore[method-assign]

        def settle(*_: Any, **__: Any) -> int:
            raise PolicyError("a number that is no server")

        asked.pool.dispatcher.settle = settle  # type: ignore[method-assign]
        found = await asked.answer(UNSURE)
        assert (found.outcome, found.variant) == (Outcome.ANSWERED, "quick")
        assert [str(one) for one in told] == ["a number that is no server"]
        assert asked.balance == pytest.approx(0.755 - TARGET)

    served(tmp_path, Echo(10.0), test)


@pytest.mark.parametrize("second", [Echo, Broken])
def test_spans_have_both_runs_and_the_decision_between(
    tmp_path: Path, second: Callable[[float], NullRuntime]
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)

    async def test(asked: Asked) -> None:
        asked.site.trace(tracer.request)
        await asked.answer(UNSURE)

    served(tmp_path, second(10.0), test)
    tracer.close()
    root, *parts = exporter.get_finished_spans()
    names = ["receive", "dispatch", "queue", "run", "settle", "queue", "run", "reply"]
    assert [one.name for one in parts] == names
    ends = [(one.start_time, one.end_time) for one in parts]
    assert all(begin <= end for begin, end in ends)
    assert all(one[0] <= other[0] for one, other in pairwise(ends))
    assert root.attributes is not None
    answered = "good" if second is Echo else "quick"
    assert root.attributes["inferway.variant"] == answered
    assert root.attributes.get("inferway.escalated_from") == ("quick" if second is Echo else None)
