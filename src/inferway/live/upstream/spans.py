"""Spans of what goes from node to node: an entry's forwards, a relay's requests.

A forward is a span of kind client. The next node is told of it in `traceparent`, so that what it
does is its child: one request is one trace, through all nodes that have an exporter. A node that
has none passes on what it was told. The client's `tracestate` goes along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from inferway.live.http.exchange import NAMES, Exchange, TraceContext
from inferway.live.request import InferRequest, NodeCondition, Outcome, outcome_of
from inferway.live.tracing import Attempt, RequestSpan, Tracer, attempts_of
from inferway.live.upstream.headers import ConnectError, ForwardHeaders, Response, decoded
from inferway.live.upstream.upstream import UpstreamCall

_OUTCOME: Final = "inferway.outcome"
# Of a forward: the other node, or the way to it, is at fault.
_ERRORS: Final = (Outcome.FAILED, Outcome.UNAVAILABLE)


@dataclass(slots=True, eq=False)
class _Forwarded:
    """A sampled request that has been forwarded, and may be so again."""

    identity: TraceContext
    span: RequestSpan
    attempts: list[Attempt] = field(default_factory=list)
    decided_s: float = 0.0  # When it was last decided to forward
    decisions: int = 0  # Which decision that was
    started_s: float = 0.0
    forward: Any = None  # The span of the forward that is on its way; None while none is


class Spans:
    """Makes the spans of a node; a node without an exporter has none."""

    def __init__(self, tracer: Tracer, node: NodeCondition) -> None:
        self.tracer, self.node = tracer, node
        self._forwards: dict[InferRequest, _Forwarded] = {}

    def forward(
        self, task: str, request: InferRequest, to: tuple[str, str, str], started_s: float
    ) -> bytes:
        """Begin a forward of a request that left the queue here at a time.

        `to` names the neighbor that it is sent to, and the node and the variant that shall answer.
        Returns header lines that say who the request is.
        """
        way = self._forwards.get(request) or self._begin(task, request)
        if way is None:
            return (request.identity or TraceContext(None, None)).onward()
        self._forwards[request] = way
        way.decided_s, way.decisions, way.started_s = (
            request.decided_s,
            request.decisions,
            started_s,
        )
        way.forward = way.span.forward(started_s, *to)
        return _onward(way.identity, way.forward)

    def forwarded(self, request: InferRequest, outcome: Outcome | None) -> None:
        """End a forward: an answer has come, or none will."""
        way = self._forwards.get(request)
        if way is None or way.forward is None:
            return
        if request.abandoned:
            outcome = Outcome.CANCELED
        assert outcome is not None
        self._end(way, request, outcome)

    def _end(self, way: _Forwarded, request: InferRequest, outcome: Outcome) -> None:
        _say(way.span, way.forward, outcome)
        way.attempts.append(
            Attempt(
                way.decided_s,
                request.dispatched_s,
                True,
                way.started_s,
                self.tracer.now(),
                way.forward,
                again=bool(request.escalated_from),
            )
        )
        way.forward = None

    def ended(self, task: str, request: InferRequest) -> None:
        """Make the spans of a request that a site has ended just now."""
        source: InferRequest = request.origin or request
        way = self._forwards.pop(source, None) or self._begin(task, request)
        if way is None:
            return
        if way.forward is not None:  # nobody waits for it any more: the first answer is sent
            self._end(way, source, Outcome.CANCELED)
        here = list(source.attempts)
        if source.decisions != way.decisions:  # decided on again since
            here = attempts_of(request, self.tracer.now())
        attempts = sorted([*here, *way.attempts], key=lambda one: one.decided_s)
        came = b"" if request.raw is None else request.raw.path
        more = {**self.whereabouts(request.passed, came), "inferway.retried": request.moved}
        self.tracer.tell(way.span, task, request, attempts, more)

    def relay(
        self, task: str, exchange: Exchange, forward: ForwardHeaders, received_s: float
    ) -> Relayed | None:
        """Begin the spans of a request between other nodes; None where it is not sampled."""
        identity = TraceContext(*map(exchange.headers.get, NAMES))
        span = self.tracer.begin(f"relay {task}", identity, received_s)
        return None if span is None else Relayed(self, span, identity, task, forward, received_s)

    def whereabouts(self, answer: Response | None, came: bytes) -> dict[str, Any]:
        """Tell who answered and by which nodes, as the headers of the answer say it."""
        degraded = self.node.degraded
        if answer is not None and answer.path:
            node, names = decoded(answer.node), _names(answer.path)
            degraded = degraded or decoded(answer.degraded)
        else:
            node, names = self.node.name, (*_names(came), self.node.name)
        told: dict[str, Any] = {"inferway.node": node, "inferway.path": names}
        return told | ({"inferway.degraded": degraded} if degraded else {})

    def _begin(self, task: str, request: InferRequest) -> _Forwarded | None:
        identity = request.identity or TraceContext(None, None)
        span = self.tracer.begin(f"infer {task}", identity, request.received_s)
        return None if span is None else _Forwarded(identity, span)


@dataclass(slots=True, eq=False)
class Relayed:
    """A request between other nodes that this one passes on: receive, forward, reply.

    It was whole at `received_s`; `sent` begins the forward, `attempt`.
    """

    spans: Spans
    span: RequestSpan
    identity: TraceContext
    task: str
    forward: ForwardHeaders
    received_s: float
    sent_s: float = 0.0
    attempt: Any = None

    def sent(self, neighbor: str) -> bytes:
        """It goes to the next node now; returns header lines that say who it is."""
        self.sent_s = self.spans.tracer.now()
        to = (neighbor, self.forward.node, self.forward.variant)
        self.attempt = self.span.forward(self.sent_s, *to)
        return _onward(self.identity, self.attempt)

    def withdraw(self, call: UpstreamCall) -> None:
        """Whoever sent it waits no more."""
        call.cancel()
        self._tell(Outcome.CANCELED, None, self.spans.tracer.now())

    def ended(self, status: int, result: Response | ConnectError | None, answered_s: float) -> None:
        """Its answer, with this status, has been handed on.

        `result` is what came of the forward, and when; None where there was none.
        """
        answer = result if isinstance(result, Response) else None
        self._tell(outcome_of(status), answer, answered_s)

    def _tell(self, outcome: Outcome, answer: Response | None, answered_s: float) -> None:
        span, now_s = self.span, self.spans.tracer.now()
        attributes = {
            "inferway.task": self.task,
            "inferway.request_id": self.identity.id.decode("latin-1"),
            _OUTCOME: outcome.name.lower(),
            "inferway.variant": self.forward.variant,
            **self.spans.whereabouts(answer, self.forward.path),
        }
        span.finish(now_s, attributes, failed=outcome is Outcome.FAILED)
        span.part("receive", self.received_s, self.sent_s or now_s)
        if self.attempt is not None:
            _say(span, self.attempt, outcome)
            span.end(self.attempt, answered_s)
            span.part("reply", answered_s, now_s)


def _say(span: RequestSpan, forward: Any, outcome: Outcome) -> None:
    forward.set_attribute(_OUTCOME, outcome.name.lower())
    if outcome in _ERRORS:
        span.fail(forward)


def _onward(identity: TraceContext, forward: Any) -> bytes:
    return identity.onward(b"%016x" % forward.get_span_context().span_id, b"01")


def _names(path: bytes) -> tuple[str, ...]:
    return tuple(map(decoded, path.split(b","))) if path else ()
