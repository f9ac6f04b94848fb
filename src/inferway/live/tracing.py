"""Spans of each request for OpenTelemetry: receive, dispatch, queue, run, reply.

They are made when the request has ended, from times taken on its way; nothing is done without an
exporter. Needs the extra ``otel``; configured by the standard `OTEL_*` environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from inferway.live.assembly import ServeError
from inferway.live.http.identity import Identity
from inferway.live.request import Outcome, Request

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def tracer_from_environment() -> Tracer | None:
    """Make a tracer if an exporter is configured.

    `OTEL_TRACES_EXPORTER` may be ``otlp`` (the default once `OTEL_EXPORTER_OTLP_ENDPOINT` is set),
    ``console`` or ``none``.

    Raises
    ------
    ServeError
        When the extra ``otel`` is not installed, or the exporter is another one.
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
            return Tracer(otlp.OTLPSpanExporter())
        if kind == "console":
            return Tracer(_module("sdk.trace.export").ConsoleSpanExporter())
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ServeError(
            "traces need opentelemetry-sdk and its OTLP exporter, which are not installed: "
            "pip install 'inferway[otel]', or set OTEL_TRACES_EXPORTER=none"
        ) from error
    raise ServeError(f"OTEL_TRACES_EXPORTER is {kind!r}; otlp, console and none are offered")


class Tracer:
    """Turns requests that have ended into spans.

    Parameters
    ----------
    exporter
        Of OpenTelemetry; it is called in a thread of its own, several spans at a time.
    now
        The clock of the requests' times, seconds.
    """

    def __init__(self, exporter: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        api, sdk = _module("trace"), _module("sdk.trace")
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "inferway")}
        self._resource = _module("sdk.resources").Resource.create(named)
        self._sampler = sdk.TracerProvider(resource=self._resource).sampler
        self._processor = _module("sdk.trace.export").BatchSpanProcessor(exporter)
        self._span, self._context = sdk.ReadableSpan, api.SpanContext
        self._kinds = (api.SpanKind.SERVER, api.SpanKind.INTERNAL)
        self._failed, self._unset = api.Status(api.StatusCode.ERROR), api.Status()
        self._flags = api.TraceFlags
        self._sampled = api.TraceFlags(api.TraceFlags.SAMPLED)
        self._carry, self._parent = api.set_span_in_context, api.NonRecordingSpan

    def request(self, task: str, request: Request) -> None:
        """Make and hand over the spans of a request that ended just now."""
        now_s = self._now()
        # Spans carry the wall clock's time.
        shift_s = time.time() - now_s
        identity = request.identity or Identity(None, None)
        trace = int(identity.trace, 16)
        parent = None
        around = None
        if identity.parent:
            flags = self._flags(int(identity.flags, 16))
            parent = self._context(trace, int(identity.parent, 16), True, flags)
            around = self._carry(self._parent(parent))
        name = f"infer {task}"
        if not self._sampler.should_sample(around, trace, name).decision.is_sampled():
            return
        root = self._context(trace, int(identity.span, 16), False, self._sampled)
        outcome = request.outcome
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
        failed = outcome is Outcome.FAILED

        def emit(name: str, begin_s: float, end_s: float, place: int) -> None:
            own = root
            if place:
                # Ids of the parts follow from the whole's: no random bytes for each.
                number = (root.span_id + (place << 32)) & 0xFFFFFFFFFFFFFFFF
                own = self._context(trace, number or 1, False, self._sampled)
            self._processor.on_end(
                self._span(
                    name=name,
                    context=own,
                    parent=root if place else parent,
                    resource=self._resource,
                    attributes=None if place else attributes,
                    kind=self._kinds[1 if place else 0],
                    status=self._failed if failed and not place else self._unset,
                    start_time=int((begin_s + shift_s) * 1e9),
                    end_time=int((max(begin_s, end_s) + shift_s) * 1e9),
                )
            )

        emit(name, request.received_s, now_s, 0)
        if request.before is None:
            return
        decided_s = request.before.now_s
        emit("receive", request.received_s, decided_s, 1)
        emit("dispatch", decided_s, request.dispatched_s, 2)
        if request.server < 0:
            return
        begun_s = request.started_s or now_s
        emit("queue", request.dispatched_s, begun_s, 3)
        if request.started_s:
            ended_s = begun_s + request.service_s
            emit("run", begun_s, ended_s, 4)
            emit("reply", ended_s, now_s, 5)

    def close(self) -> None:
        """Export what is left; takes as long as the exporter does."""
        self._processor.shutdown()


def _module(name: str) -> Any:
    # By name: neither types nor imports may depend on which extras are installed.
    return import_module(f"opentelemetry.{name}")
