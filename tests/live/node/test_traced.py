"""Spans of requests that go from node to node: whose children they are, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from row import row, until
from test_node import world

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferway.live import Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = f"traceparent: 00-{TRACE}-{SPAN}-01\r\nX-Request-Id: seven\r\n"
NAMES = ("edge", "metro", "cloud")
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


def test_a_request_is_one_trace_through_all_nodes(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "metro", "cloud")

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, metro, cloud):
            client = await edge.client()
            answer = await client.ask(headers=CLIENT)
            assert answer.headers["inferway-path"] == "edge,metro,cloud"
            assert metro.status()["passed"] == cloud.status()["served"] == 1

    run(main())
    entry, at_entry = told.of("edge")
    relay, at_relay = told.of("metro")
    served, at_server = told.of("cloud")
    assert [one.name for one in (entry, relay, served)] == [
        "infer task",
        "relay task",
        "infer task",
    ]
    assert {f"{one.context.trace_id:032x}" for one in (entry, relay, served)} == {TRACE}
    assert parent_of(entry) == SPAN
    assert parent_of(relay) == id_of(named(at_entry, "forward"))
    assert parent_of(served) == id_of(named(at_relay, "forward"))
    assert [one.name for one in at_entry] == AT_ENTRY
    assert [one.name for one in at_relay] == ["receive", "forward", "reply"]
    assert [one.name for one in at_server] == HERE
    assert {one.kind.name for one in (entry, relay, served)} == {"SERVER"}
    forwards = [named(at_entry, "forward"), named(at_relay, "forward")]
    assert {one.kind.name for one in forwards} == {"CLIENT"}
    assert [one.attributes["inferway.neighbor"] for one in forwards] == ["metro", "cloud"]
    for one in forwards:
        assert one.status.is_ok or one.status.is_unset
        assert one.attributes["inferway.outcome"] == "answered"
        assert one.attributes["inferway.node"] == "cloud"
    for one in (entry, relay, served):
        assert one.attributes["inferway.task"] == "task"
        assert one.attributes["inferway.request_id"] == "seven"
        assert one.attributes["inferway.outcome"] == "answered"
        assert one.attributes["inferway.node"] == "cloud"
        assert one.attributes["inferway.variant"] == "big"
        assert one.attributes["inferway.path"] == ("edge", "metro", "cloud")
    assert entry.attributes["inferway.retried"] is served.attributes["inferway.retried"] is False
    assert not any("inferway.degraded" in one.attributes for one in (entry, relay, served))
    names = [one.resource.attributes["service.instance.id"] for one in (entry, relay, served)]
    assert names == ["edge", "metro", "cloud"]
    # One process's clock: what is inside is within what is around it.
    for around, inside in ((forwards[0], relay), (forwards[1], served)):
        assert around.start_time - 10_000 <= inside.start_time
        assert inside.end_time <= around.end_time + 10_000_000


def test_a_trace_that_begins_at_the_entry_is_followed(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "cloud")

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, *_):
            assert (await (await edge.client()).ask()).status == 200

    run(main())
    entry, parts = told.of("edge")
    served, _ = told.of("cloud")
    assert entry.parent is None
    # A node without an exporter, metro, is none of the trace's.
    assert parent_of(served) == id_of(named(parts, "forward"))
    assert served.parent.trace_flags.sampled


def heads_of(asked: bytes) -> list[dict[str, str]]:
    """Read the headers of the requests that a wire has carried, in lower case."""
    heads = [one.partition(b"\r\n\r\n")[0] for one in bytes(asked).split(b"POST ")[1:]]
    lines = [head.decode().split("\r\n")[1:] for head in heads]
    return [
        {name.lower(): value for name, value in (line.split(": ", 1) for line in one)}
        for one in lines
    ]


@pytest.mark.parametrize("having", [("edge", "metro", "cloud"), ("edge", "cloud"), ("cloud",)])
@pytest.mark.parametrize(("flags", "given"), [("01", "tracestate: b=2\r\n"), ("00", "")])
def test_a_clients_tracestate_goes_through_all_nodes(
    run: Any, tmp_path: Path, having: tuple[str, ...], flags: str, given: str
) -> None:
    told = Exported(*having)
    came: list[dict[str, str]] = []

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, metro, _):
            parent = f"traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n"
            client = await edge.client()
            for state in (f"{given}tracestate: a@x=1 , c=3\r\n", "tracestate: B=2\r\n"):
                assert (await client.ask(headers=parent + state)).status == 200
            assert (await client.ask(headers="tracestate: b=2\r\n")).status == 200
            came.extend(heads_of(metro.wire.asked))

    run(main())
    whole = "b=2,a@x=1 , c=3" if given else "a@x=1 , c=3"
    assert [one.get("tracestate", "") for one in came] == [whole, "", ""]
    assert came[1]["traceparent"].split("-")[1] == TRACE
    for name, parts in (("edge", AT_ENTRY), ("metro", ["receive", "forward", "reply"])):
        if name not in having or flags == "00":
            continue
        told.tracers[name].close()
        spans = told.exporters[name].get_finished_spans()
        first, others = spans[: 1 + len(parts)], spans[1 + len(parts) :]
        mine = [("b", "2"), ("a@x", "1"), ("c", "3")]
        assert list(first[0].parent.trace_state.items()) == mine
        assert [list(one.context.trace_state.items()) for one in first] == [mine] * len(first)
        assert len(others) == 2 * len(first)
        assert not any(one.context.trace_state for one in others)


def test_an_entry_without_an_exporter_passes_the_clients_span_on(run: Any, tmp_path: Path) -> None:
    told = Exported("metro")

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, *_):
            assert (await (await edge.client()).ask(headers=CLIENT)).status == 200

    run(main())
    relay, _ = told.of("metro")
    assert parent_of(relay) == SPAN
    assert relay.attributes["inferway.request_id"] == "seven"


def test_what_the_client_does_not_sample_makes_no_spans(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "metro", "cloud")

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, *_):
            answer = await (await edge.client()).ask(
                headers=f"traceparent: 00-{TRACE}-{SPAN}-00\r\n"
            )
            assert answer.headers["inferway-path"] == "edge,metro,cloud"

    run(main())
    assert told.nothing()


def test_a_client_that_goes_ends_the_spans_of_all_nodes(run: Any, tmp_path: Path) -> None:
    told = Exported("edge", "metro", "cloud")

    async def main() -> None:
        async with row(tmp_path, *NAMES, tracers=told.tracers) as (edge, _, cloud):
            cloud.model.gate.clear()
            client = await edge.client()
            client.send(headers=CLIENT)
            await until(lambda: cloud.model.waiting == 1)
            client.writer.transport.abort()
            await edge.canceled()
            cloud.model.gate.set()
            await cloud.canceled()

    run(main())
    for name, parts in (
        ("edge", AT_ENTRY),
        ("metro", ["receive", "forward", "reply"]),
        ("cloud", HERE[:3]),  # where it may not have begun
    ):
        root, found = told.of(name)
        assert root.attributes["inferway.outcome"] == "canceled"
        assert [one.name for one in found][: len(parts)] == parts
        assert root.status.is_unset


def test_a_node_is_traced(tmp_path: Path, run: Any) -> None:
    exporters = {name: InMemorySpanExporter() for name in ("cloud", "edge")}
    tracers = {name: Tracer(one, node=name) for name, one in exporters.items()}

    async def main() -> None:
        async with world(tmp_path) as both:
            edge = await both.start("edge", tracer=tracers["edge"])
            assert (await both.ask("/versions/mini")).status_code == 200
            await both.start("cloud", tracer=tracers["cloud"])
            await both.met()
            await both.until(lambda: not edge.status()["degraded"])
            assert (await both.ask("/versions/large")).status_code == 200
            told = edge.status()
            assert (told["arrived"], told["forwarded"]) == (2, 1)

    run(main())
    spans = exporters["edge"].get_finished_spans()
    (alone, far) = [one for one in spans if one.name == "infer digits-0"]
    assert alone.attributes["inferway.degraded"] == (
        "node edge reaches no repository: cloud does not answer"
    )
    assert alone.attributes["inferway.path"] == ("edge",)
    assert "inferway.degraded" not in far.attributes
    assert far.attributes["inferway.path"] == ("edge", "cloud")
    served = exporters["cloud"].get_finished_spans()[0]
    assert parent_of(served) == id_of(named(list(spans), "forward"))
