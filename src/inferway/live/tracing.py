"""Spans of each request for OpenTelemetry: receive, dispatch, queue, run, reply.

They are made when the request has ended, from times taken on its way; nothing is done without an
exporter. Needs the extra ``otel``; configured by the standard `OTEL_*` environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from inferway.live.errors import ServeError
from inferway.live.http.identity import Identity
from inferway.live.http.tracestate import members_of
from inferway.live.request import Outcome, Request

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INSTANCE: Final = "service.instance.id"

RECEIVE, DISPATCH, QUEUE, RUN, REPLY = range(1, 6)
"""Places of a request's parts."""
AGAIN: Final = 8
"""From a part's place to that of the same part after the next decision on the request."""


def tracer_from_environment(node: str = "") -> Tracer | None:
    """Make a tracer if an exporter is configured.

    `OTEL_TRACES_EXPORTER` may be ``otlp`` (the default once `OTEL_EXPORTER_OTLP_ENDPOINT` is set),
    ``console`` or ``none``.

    Parameters
    ----------
    node
        As of `Tracer`.

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


class Stretch(NamedTuple):
    """What became of one decision on a request.

    Attributes
    ----------
    decided_s, dispatched_s
        When the policy was asked, and when it had answered.
    placed
        Whether a server was found.
    started_s, ended_s
        When that began to run it, 0 where it did not, and when that was over.
    name
        Of the span for that: ``run`` here, ``forward`` to another node.
    attributes, failed
        Of the same.
    """

    decided_s: float
    dispatched_s: float
    placed: bool
    started_s: float
    ended_s: float
    name: str = "run"
    attributes: Mapping[str, Any] | None = None
    failed: bool = False


class Begun:
    """A span that is exported, and that may have parts.

    Parameters
    ----------
    tracer
        Exports it.
    own, parent
        Contexts of the span, and of the one that it is a child of; None for none.
    """

    __slots__ = ("_tracer", "own", "parent", "shift_s")

    def __init__(self, tracer: Tracer, own: Any, parent: Any) -> None:
        self._tracer, self.own, self.parent = tracer, own, parent
        # Spans carry the wall clock's time.
        self.shift_s = time.time() - tracer.now()

    def number(self, place: int) -> int:
        """Id of a part: it follows from the whole's, which saves random bytes for each."""
        return (self.own.span_id + (place << 32)) & 0xFFFFFFFFFFFFFFFF or 1

    def tell(
        self,
        name: str,
        begin_s: float,
        end_s: float,
        place: int = 0,
        attributes: Mapping[str, Any] | None = None,
        *,
        failed: bool = False,
        forward: bool = False,
    ) -> None:
        """Hand a span over.

        Parameters
        ----------
        name, attributes
            Its own.
        begin_s, end_s
            On the clock of the requests.
        place
            0 for the whole; another for each of its parts.
        failed
            Whether its status is an error.
        forward
            Whether it is another node that does it.
        """
        self._tracer.export(self, name, begin_s, end_s, place, attributes, failed, forward)


class Tracer:
    """Turns requests that have ended into spans.

    Parameters
    ----------
    exporter
        Of OpenTelemetry; it is called in a thread of its own, several spans at a time.
    now
        The clock of the requests' times, seconds.
    node
        Which node of a network this is, in spans `service.instance.id`; empty for none.
    """

    def __init__(
        self, exporter: Any, now: Callable[[], float] = time.monotonic, *, node: str = ""
    ) -> None:
        self.now = now
        api, sdk = _module("trace"), _module("sdk.trace")
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "inferway")}
        if node and _INSTANCE not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            named[_INSTANCE] = node
        self._resource = _module("sdk.resources").Resource.create(named)
        self._sampler = sdk.TracerProvider(resource=self._resource).sampler
        self._processor = _module("sdk.trace.export").BatchSpanProcessor(exporter)
        self._span, self._context = sdk.ReadableSpan, api.SpanContext
        self._state = api.TraceState
        self._server, self._client = api.SpanKind.SERVER, api.SpanKind.CLIENT
        self._internal = api.SpanKind.INTERNAL
        self._failed, self._unset = api.Status(api.StatusCode.ERROR), api.Status()
        self._flags = api.TraceFlags
        self._sampled = api.TraceFlags(api.TraceFlags.SAMPLED)
        self._carry, self._parent = api.set_span_in_context, api.NonRecordingSpan

    def begin(self, name: str, identity: Identity) -> Begun | None:
        """Decide whether a request has spans: its own, or None where it is not sampled."""
        trace = int(identity.trace, 16)
        parent = None
        around = state = None
        if identity.parent:
            flags = self._flags(int(identity.flags, 16))
            if identity.state:
                state = self._state(list(members_of(identity.state).items()))
            parent = self._context(trace, int(identity.parent, 16), True, flags, state)
            around = self._carry(self._parent(parent))
        if not self._sampler.should_sample(around, trace, name).decision.is_sampled():
            return None
        own = self._context(trace, int(identity.span, 16), False, self._sampled, state)
        return Begun(self, own, parent)

    def request(self, task: str, request: Request) -> None:
        """Make and hand over the spans of a request that ended just now."""
        begun = self.begin(f"infer {task}", request.identity or Identity(None, None))
        if begun is not None:
            self.tell(begun, task, request, stretches_of(request, self.now()), {})

    def tell(
        self,
        begun: Begun,
        task: str,
        request: Request,
        stretches: Sequence[Stretch],
        more: Mapping[str, Any],
    ) -> None:
        """Hand over the spans of a request that ended just now.

        Parameters
        ----------
        begun
            Its span.
        task, request
            The request.
        stretches
            What its decisions led to, in their order.
        more
            Attributes beside those of any request.
        """
        now_s = self.now()
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
        attributes.update(more)
        received_s = request.received_s
        failed = outcome is Outcome.FAILED
        begun.tell(f"infer {task}", received_s, now_s, attributes=attributes, failed=failed)
        if not stretches:
            return
        begun.tell("receive", received_s, stretches[0].decided_s, RECEIVE)
        for i, one in enumerate(stretches):
            begun.tell("dispatch", one.decided_s, one.dispatched_s, DISPATCH + AGAIN * i)
            if not one.placed:
                continue
            begun_s = one.started_s or now_s
            begun.tell("queue", one.dispatched_s, begun_s, QUEUE + AGAIN * i)
            if one.started_s:
                begun.tell(
                    one.name,
                    begun_s,
                    one.ended_s,
                    RUN + AGAIN * i,
                    one.attributes,
                    failed=one.failed,
                    forward=one.name == "forward",
                )
        if stretches[-1].placed and stretches[-1].started_s:
            begun.tell("reply", stretches[-1].ended_s, now_s, REPLY)

    def export(
        self,
        begun: Begun,
        name: str,
        begin_s: float,
        end_s: float,
        place: int,
        attributes: Mapping[str, Any] | None,
        failed: bool,
        forward: bool,
    ) -> None:
        """As `Begun.tell`."""
        own, parent, kind = begun.own, begun.parent, self._server
        if place:
            parent, kind = own, self._client if forward else self._internal
            number = begun.number(place)
            own = self._context(own.trace_id, number, False, self._sampled, own.trace_state)
        self._processor.on_end(
            self._span(
                name=name,
                context=own,
                parent=parent,
                resource=self._resource,
                attributes=attributes,
                kind=kind,
                status=self._failed if failed else self._unset,
                start_time=int((begin_s + begun.shift_s) * 1e9),
                end_time=int((max(begin_s, end_s) + begun.shift_s) * 1e9),
            )
        )

    def close(self) -> None:
        """Export what is left; takes as long as the exporter does."""
        self._processor.shutdown()


def stretches_of(request: Request, now_s: float) -> list[Stretch]:
    """Read what the last decision on a request led to; nothing where there was none.

    Parameters
    ----------
    request
        It has ended.
    now_s
        When it has, on its clock.
    """
    if request.before is None:
        return []
    started_s = request.started_s if request.server >= 0 else 0.0
    return [
        Stretch(
            request.before.now_s,
            request.dispatched_s,
            request.server >= 0,
            started_s,
            started_s + request.service_s if started_s else now_s,
        )
    ]


def _module(name: str) -> Any:
    # By name: neither types nor imports may depend on which extras are installed.
    return import_module(f"opentelemetry.{name}")
