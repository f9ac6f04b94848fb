"""Spans of each request for OpenTelemetry: receive, dispatch, queue, run, reply.

Where a second variant is asked, the decision on the first answer is `settle`, and queue and run
follow once more. They are made when the request has ended, from times taken on its way; nothing is
done without an exporter. Needs the extra ``otel``; configured by the standard `OTEL_*` environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from inferway.live.errors import ServeError
from inferway.live.http.exchange import TraceContext, members_of
from inferway.live.request import InferRequest, Outcome

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INSTANCE: Final = "service.instance.id"


def tracer_from_environment(node: str = "") -> Tracer | None:
    """Make a tracer if an exporter is configured.

    `OTEL_TRACES_EXPORTER` may be ``otlp`` (the default once `OTEL_EXPORTER_OTLP_ENDPOINT` is set),
    ``console`` or ``none``. ServeError when the extra ``otel`` is not installed, or the exporter is
    another one.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    configured = any(os.environ.get(name) for name in _ENDPOINTS)
    kind = os.environ.get("OTEL_TRACES_EXPORTER", "otlp" if configured else "none")
    if kind == "none":
        return None
    try:
        if kind == "otlp":
            otlp = _module("exporter.otlp.proto.http.trace_exporter")
            return Tracer(otlp.OTLPSpanExporter(), node=node)
        if kind == "console":
            return Tracer(_module("sdk.trace.export").ConsoleSpanExporter(), node=node)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ServeError(
            "traces need opentelemetry-sdk and its OTLP exporter, which are not installed: "
            "pip install 'inferway[otel]', or set OTEL_TRACES_EXPORTER=none"
        ) from error
    raise ServeError(f"OTEL_TRACES_EXPORTER is {kind!r}; otlp, console and none are offered")


class Attempt(NamedTuple):
    """One decision on a request, and what became of it; times in seconds of the requests' clock."""

    decided_s: float
    dispatched_s: float
    # Whether a server was found.
    placed: bool
    # When that began to run it, 0 where it did not.
    started_s: float
    ended_s: float
    # The span that is begun where it went to another node; None where it ran here.
    forward: Any = None
    # Whether it was decided because of an answer.
    again: bool = False


class RequestSpan:
    """A sampled request: the span of OpenTelemetry of the whole, and those of its parts."""

    __slots__ = ("_around", "_shift_s", "_tracer", "whole")

    def __init__(self, tracer: Tracer, whole: Any, around: Any, shift_s: float) -> None:
        self._tracer, self.whole = tracer, whole
        self._around, self._shift_s = around, shift_s

    def _begin(self, name: str, begin_s: float, kind: Any, more: dict[str, Any] | None) -> Any:
        start_ns = int((begin_s + self._shift_s) * 1e9)
        return self._tracer.start(name, self._around, kind, more, start_time=start_ns)

    def forward(self, begin_s: float, neighbor: str, node: str, variant: str) -> Any:
        """Begin the span of a forward to another node."""
        more = {"inferway.neighbor": neighbor, "inferway.node": node, "inferway.variant": variant}
        return self._begin("forward", begin_s, self._tracer.kind.CLIENT, more)

    def part(self, name: str, begin_s: float, end_s: float) -> None:
        """Hand over a part that is done."""
        span = self._begin(name, begin_s, self._tracer.kind.INTERNAL, None)
        self.end(span, max(begin_s, end_s))

    def end(self, span: Any, end_s: float) -> None:
        """Hand over a span that has been begun."""
        span.end(int((end_s + self._shift_s) * 1e9))

    def finish(self, end_s: float, attributes: Mapping[str, Any], *, failed: bool) -> None:
        """Hand over the whole; its parts may follow."""
        self.whole.set_attributes(attributes)
        if failed:
            self.fail(self.whole)
        self.end(self.whole, end_s)

    def fail(self, span: Any) -> None:
        """Give a span the status of an error."""
        span.set_status(self._tracer.error)


class Tracer:
    """Turns requests that have ended into spans.

    Parameters
    ----------
    exporter
        Of OpenTelemetry; it is called in a thread of its own, several spans at a time.
    node
        Which node of a network this is, in spans `service.instance.id`; empty for none.
    """

    def __init__(self, exporter: Any, *, node: str = "") -> None:
        self.now = time.monotonic
        self._api, sdk = _module("trace"), _module("sdk.trace")
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "inferway")}
        if node and _INSTANCE not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            named[_INSTANCE] = node
        self._ids = _Ids()
        resource = _module("sdk.resources").Resource.create(named)
        self._provider = sdk.TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(_module("sdk.trace.export").BatchSpanProcessor(exporter))
        # Where a span without a parent begins, whatever may be current.
        self._nowhere = _module("context").Context()
        self.start = self._provider.get_tracer("inferway").start_span
        self.kind = self._api.SpanKind
        self.error = self._api.Status(self._api.StatusCode.ERROR)

    def begin(self, name: str, identity: TraceContext, begin_s: float) -> RequestSpan | None:
        """Begin the span of a request; None where it is not sampled."""
        api, trace = self._api, int(identity.trace, 16)
        around = None
        if identity.parent:
            flags = api.TraceFlags(int(identity.flags, 16))
            state = (
                api.TraceState([*members_of(identity.state).items()]) if identity.state else None
            )
            parent = api.SpanContext(trace, int(identity.parent, 16), True, flags, state)
            around = api.set_span_in_context(api.NonRecordingSpan(parent))
        sampler = self._provider.sampler
        if not sampler.should_sample(around, trace, name).decision.is_sampled():
            return None
        # Spans carry the wall clock's time.
        shift_s = time.time() - self.now()
        self._ids.trace, self._ids.span = trace, int(identity.span, 16)
        begin_ns = int((begin_s + shift_s) * 1e9)
        context = self._nowhere if around is None else around
        whole = self.start(name, context, api.SpanKind.SERVER, start_time=begin_ns)
        return RequestSpan(self, whole, api.set_span_in_context(whole, context), shift_s)

    def request(self, task: str, request: InferRequest) -> None:
        """Make and hand over the spans of a request that ended just now."""
        identity = request.identity or TraceContext(None, None)
        span = self.begin(f"infer {task}", identity, request.received_s)
        if span is not None:
            self.tell(span, task, request, attempts_of(request, self.now()), {})

    def tell(
        self,
        span: RequestSpan,
        task: str,
        request: InferRequest,
        attempts: Sequence[Attempt],
        more: Mapping[str, Any],
    ) -> None:
        """Hand over the spans of a request that ended just now, with `more` attributes."""
        now_s, outcome = self.now(), request.outcome
        assert outcome is not None
        attributes: dict[str, Any] = {
            "inferway.task": task,
            "inferway.request_id": request.id.decode("latin-1"),
            "inferway.outcome": outcome.name.lower(),
            "inferway.rows": request.rows,
        }
        if request.variant:
            attributes["inferway.variant"] = request.variant
            attributes["inferway.predicted_s"] = request.predicted_s
        if request.settled:
            attributes["inferway.expected_accuracy"] = request.credit
            if request.confidence is not None:
                attributes["inferway.confidence"] = request.confidence
            if request.escalated_from:
                attributes["inferway.escalated_from"] = request.escalated_from
        span.finish(now_s, {**attributes, **more}, failed=outcome is Outcome.FAILED)
        if attempts:
            span.part("receive", request.received_s, attempts[0].decided_s)
        for one in attempts:
            span.part("settle" if one.again else "dispatch", one.decided_s, one.dispatched_s)
            if one.placed:
                span.part("queue", one.dispatched_s, one.started_s or now_s)
            if one.forward is not None:
                span.end(one.forward, max(one.started_s, one.ended_s))
            elif one.placed and one.started_s:
                span.part("run", one.started_s, one.ended_s)
        if attempts and attempts[-1].placed and attempts[-1].started_s:
            span.part("reply", attempts[-1].ended_s, now_s)

    def close(self) -> None:
        """Export what is left; takes as long as the exporter does."""
        self._provider.shutdown()


class _Ids:
    """Gives the span of a request the ids that its answer names, and each part one of its own."""

    trace = span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        span, self.span = self.span, 0
        return span or int.from_bytes(os.urandom(8), "big") or 1

    def is_trace_id_random(self) -> bool:
        return False


def attempts_of(request: InferRequest, now_s: float) -> list[Attempt]:
    """Read what the decisions led to on a request that has ended, or is asked again.

    That is the last one, and what ran here before it; nothing without a decision.
    """
    source = request.origin or request
    if source.before is None:
        return []
    placed = source.server >= 0
    started_s = source.started_s if placed else 0.0
    ended_s = started_s + source.service_s if started_s and source.outcome is not None else now_s
    last = Attempt(
        source.decided_s or source.before.now_s,
        source.dispatched_s,
        placed,
        started_s,
        ended_s,
        again=bool(source.escalated_from),
    )
    return [*source.attempts, last]


def _module(name: str) -> Any:
    # By name: neither types nor imports may depend on which extras are installed.
    return import_module(f"opentelemetry.{name}")
