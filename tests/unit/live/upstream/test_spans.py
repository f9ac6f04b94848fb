"""Spans of hops that fail, of a relay that is degraded, and of a share of the traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from asking import FAST, UNSURE, chain
from chain import Held, line

from inferway.live.http.exchange import TraceContext
from inferway.live.request import NodeCondition
from inferway.live.upstream.spans import Spans

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferway.live.tracing import Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"traceparent: 00-{TRACE}-{SPAN}-01\r\nX-Request-Id: seven\r\n"
AT_ENTRY = ["receive", "dispatch", "queue", "forward", "reply"]
HERE = ["receive", "dispatch", "queue", "run", "reply"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_TRACES_SAMPLER", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return to_its_end


class Exported:
    """Nodes with an exporter, and what these were given."""

    def __init__(self, *names: str) -> None:
        self.exporters = {name: InMemorySpanExporter() for name in names}
        self.tracers = {name: Tracer(one, node=name) for name, one in self.exporters.items()}
        self.spans = {
            name: Spans(tracer, NodeCondition(name)) for name, tracer in self.tracers.items()
        }

    def of(self, name: str) -> tuple[Any, list[Any]]:
        """The first span of a node, and the others; to be asked once, at the end."""
        self.tracers[name].close()
        root, *parts = self.exporters[name].get_finished_spans()
        for part in parts:
            assert part.parent.span_id == root.context.span_id
            assert part.context.trace_id == root.context.trace_id
            assert root.start_time <= part.start_time <= part.end_time <= root.end_time
        assert len({one.context.span_id for one in (root, *parts)}) == 1 + len(parts)
        return root, parts

    def nothing(self) -> bool:
        for tracer in self.tracers.values():
            tracer.close()
        return not any(one.get_finished_spans() for one in self.exporters.values())


def named(parts: list[Any], name: str) -> Any:
    (found,) = [one for one in parts if one.name == name]
    return found


def parent_of(span: Any) -> str:
    return f"{span.parent.span_id:016x}"


def id_of(span: Any) -> str:
    return f"{span.context.span_id:016x}"


def test_a_relay_that_is_degraded_says_so_of_what_passes(run: Any) -> None:
    told = Exported("edge", "metro", "cloud")

    async def main() -> None:
        async with line("edge", "metro", "cloud", spans=told.spans) as (edge, _, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "metro"))
            told.spans["metro"].node.degraded = "node metro reaches no repository"
            answer = await (await edge.client()).ask(headers=CLIENT)
            assert answer.headers["inferway-path"] == "edge,metro,cloud"

    run(main())
    relay, _ = told.of("metro")
    served, _ = told.of("cloud")
    assert relay.attributes["inferway.degraded"] == "node metro reaches no repository"
    assert "inferway.degraded" not in served.attributes


def test_a_request_that_is_given_to_another_class_shows_both_tries(run: Any) -> None:
    told = Exported("edge", "cloud")

    async def main() -> None:
        async with line("edge", "cloud", spans=told.spans) as (edge, cloud):
            await cloud.serve()
            await edge.serve(("big", "cloud", "cloud"))
            answer = await (await edge.client()).ask(headers=CLIENT)
            assert (answer.status, answer.headers["inferway-path"]) == (200, "edge")

    run(main())
    root, parts = told.of("edge")
    refused, at_cloud = told.of("cloud")
    tries = ["receive", "dispatch", "queue", "forward", "dispatch", "queue", "run", "reply"]
    assert [one.name for one in parts] == tries
    times = [one.start_time for one in parts]
    assert times == sorted(times)
    assert root.attributes["inferway.retried"] is True
    assert root.attributes["inferway.path"] == ("edge",)
    assert root.attributes["inferway.variant"] == "tiny"
    forward = named(parts, "forward")
    assert forward.attributes["inferway.outcome"] == "unavailable"
    assert forward.status.status_code.name == "ERROR"
    assert parent_of(refused) == id_of(forward)
    assert refused.attributes["inferway.outcome"] == "unavailable"
    assert refused.attributes["inferway.variant"] == "big"
    assert [one.name for one in at_cloud] == ["receive"]


def test_a_way_that_a_relay_does_not_have_is_told(run: Any) -> None:
    told = Exported("edge", "metro")

    async def main() -> None:
        async with line("edge", "metro", "cloud", spans=told.spans) as (edge, metro, _):
            await edge.serve(("big", "cloud", "metro"))
            metro.ways.clear()
            metro.upstreams.pop("cloud").close()
            answer = await (await edge.client()).ask(variant="big")
            assert answer.status == 503

    run(main())
    root, parts = told.of("edge")
    relay, at_relay = told.of("metro")
    assert [one.name for one in parts] == AT_ENTRY
    assert root.attributes["inferway.outcome"] == "unavailable"
    assert root.attributes["inferway.node"] == "metro"
    assert parent_of(relay) == id_of(named(parts, "forward"))
    assert [one.name for one in at_relay] == ["receive"]


def test_a_share_of_the_traces_that_begin_here_can_be_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.2")
    tracer = Tracer(InMemorySpanExporter())
    begun = [tracer.begin("infer task", TraceContext(None, None), 0.0) for _ in range(2_000)]
    tracer.close()
    assert 390 <= sum(one is not None for one in begun) <= 410
    # And all of one trace, or nothing.
    (first, *_) = [one for one in begun if one is not None]
    again = f"00-{first.whole.get_span_context().trace_id:032x}-{SPAN}-01".encode()
    assert tracer.begin("relay task", TraceContext(None, again), 0.0) is not None


def test_a_second_run_elsewhere_is_decided_in_a_part_of_its_own(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "cloud")

    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud", spans=told.spans) as world:
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            assert (await world.ask(UNSURE, headers=CLIENT)).status == 200

    run(main())
    root, parts = told.of("edge")
    names = [one.name for one in sorted(parts, key=lambda one: (one.start_time, one.end_time))]
    assert sorted(names) == sorted([*HERE, "settle", "queue", "forward"])
    ran, settled, sent = (named(parts, name) for name in ("run", "settle", "forward"))
    assert ran.end_time <= settled.start_time <= settled.end_time <= sent.start_time
    assert root.attributes["inferway.escalated_from"] == "tiny"
    assert root.attributes["inferway.confidence"] == pytest.approx(2 * UNSURE)
    assert root.attributes["inferway.expected_accuracy"] == 0.75
    assert (root.attributes["inferway.variant"], root.attributes["inferway.node"]) == (
        "large",
        "cloud",
    )
    # Who serves it is the child of the second run, and decides on nothing.
    served, its = told.of("cloud")
    assert parent_of(served) == id_of(sent)
    assert "settle" not in {one.name for one in its}


def test_a_second_run_here_follows_the_first_one_elsewhere(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "cloud")

    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud", spans=told.spans) as world:
            await world.far.serve()
            await world.serve(("tiny", "cloud", "cloud"), own="large", rate=FAST)
            assert (await world.ask(UNSURE, headers=CLIENT)).status == 200

    run(main())
    root, parts = told.of("edge")
    sent, settled, ran = (named(parts, name) for name in ("forward", "settle", "run"))
    assert sent.end_time <= settled.start_time <= settled.end_time <= ran.start_time
    assert sorted(one.name for one in parts) == sorted([*AT_ENTRY, "settle", "queue", "run"])
    assert sent.attributes["inferway.outcome"] == "answered"
    assert root.attributes["inferway.node"] == "edge"


def test_a_second_run_that_nobody_waits_for_ends_with_the_request(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "cloud")

    async def main() -> None:
        async with chain(tmp_path, "edge", "cloud", spans=told.spans) as world:
            world.far.runtime = runtime = Held()
            await world.far.serve(own="large")
            await world.serve(("large", "cloud", "cloud"))
            runtime.gate.clear()
            more = {"parameters": {"deadline_ms": 1500}}
            answer = await world.ask(UNSURE, headers=CLIENT, more=more)
            assert answer.json["parameters"]["variant"] == "tiny"
            runtime.gate.set()
            await world.idle()

    run(main())
    root, parts = told.of("edge")
    sent = named(parts, "forward")
    assert sent.attributes["inferway.outcome"] == "canceled"
    assert sent.start_time >= named(parts, "settle").end_time
    assert root.attributes["inferway.variant"] == "tiny"
    assert "inferway.escalated_from" not in root.attributes
    assert root.attributes["inferway.expected_accuracy"] == 0.3
