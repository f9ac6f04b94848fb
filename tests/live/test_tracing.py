"""Spans of requests: their times, their names, whose children they are."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.live import Tracer

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARTS = ["receive", "dispatch", "queue", "run", "reply"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "SDK_DISABLED", "TRACES_SAMPLER"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)


@pytest.fixture
def traced(start: Any, site_of: Any) -> Any:
    """A server, and a function that stops it and gives the spans."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    running = start(site_of(), tracer=Tracer(exporter))

    def spans() -> list[Any]:
        running.wait(running.server.stop())
        return list(exporter.get_finished_spans())

    running.spans = spans
    return running


def test_an_answered_request_has_all_its_parts(traced: Any) -> None:
    answer = traced.infer(ONE, f"traceparent: 00-{TRACE}-{SPAN}-01\r\nX-Request-Id: seven\r\n")
    root, *parts = traced.spans()
    assert root.name == "infer digits"
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == SPAN
    assert f"{root.context.span_id:016x}" == answer.headers["traceparent"].split("-")[2]
    assert root.attributes["inferway.request_id"] == "seven"
    assert root.attributes["inferway.variant"] == "tiny"
    assert root.attributes["inferway.outcome"] == "answered"
    assert [part.name for part in parts] == PARTS
    assert {part.parent.span_id for part in parts} == {root.context.span_id}
    assert len({span.context.span_id for span in (root, *parts)}) == 6
    edges = [root.start_time]
    for part in parts:
        assert abs(part.start_time - edges[-1]) < 1_000  # each begins where the last ended
        edges.append(part.end_time)
    assert abs(edges[-1] - root.end_time) < 1_000


def test_a_refused_request_ends_with_its_dispatch(traced: Any) -> None:
    assert traced.infer(ONE | {"parameters": {"deadline_ms": 0.01}}).status == 429
    root, *parts = traced.spans()
    assert root.parent is None
    assert root.attributes["inferway.outcome"] == "rejected"
    assert [part.name for part in parts] == PARTS[:2]


def test_spans_have_the_clients_tracestate(traced: Any) -> None:
    client = f"traceparent: 00-{TRACE}-{SPAN}-01\r\n"
    for state in ("tracestate: b=2\r\nTraceState: a@x=1, c=3\r\n", "tracestate: b\r\n", ""):
        assert "tracestate" not in traced.infer(ONE, client + state).headers
    assert traced.infer(ONE, "tracestate: b=2\r\n").status == 200
    spans = traced.spans()
    first, *others = [spans[i : i + 6] for i in range(0, 24, 6)]
    for one in (*first, first[0].parent):
        context = getattr(one, "context", one)
        assert list(context.trace_state.items()) == [("b", "2"), ("a@x", "1"), ("c", "3")]
    assert not any(span.context.trace_state for one in others for span in one)
    assert [f"{one[0].context.trace_id:032x}" == TRACE for one in others] == [True, True, False]


def test_what_the_client_does_not_sample_makes_no_spans(traced: Any) -> None:
    traced.infer(ONE, f"traceparent: 00-{TRACE}-{SPAN}-00\r\n")
    assert traced.spans() == []
