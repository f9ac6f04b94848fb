"""Spans of what goes from node to node: an entry's forwards, a relay's requests.

A forward is a span of kind client. The next node is told of it in `traceparent`, so that what it
does is its child: one request is one trace, through all nodes that have an exporter. A node that
has none passes on what it was told. The client's `tracestate` goes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inferway.live.http.exchange import Exchange
from inferway.live.http.identity import Identity
from inferway.live.request import Outcome, Request, outcome_of
from inferway.live.tracing import AGAIN, RECEIVE, REPLY, RUN, Begun, Stretch, Tracer, stretches_of
from inferway.live.upstream.connections import UpstreamCall
from inferway.live.upstream.headers import ConnectError, ForwardHeaders, Response, decoded

_SAMPLED: Final = b"01"
_TO: Final = ("inferway.neighbor", "inferway.node", "inferway.variant")
"""Attributes of a forward."""
_ERRORS: Final = (Outcome.FAILED, Outcome.UNAVAILABLE)
"""Of a forward: the other node, or the way to it, is at fault."""


class _Forwarded:
    """A sampled request that has been forwarded, and may be so again."""

    __slots__ = ("before", "begun", "started_s", "stretches", "to")

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.stretches: list[Stretch] = []
        self.before: Any = None
        """What the policy saw when it last decided to forward."""
        self.started_s = 0.0
        self.to: Mapping[str, Any] | None = None
        """Attributes of the forward that is on its way; None while none is."""


class Spans:
    """Makes the spans of a node; a node without an exporter has none.

    Parameters
    ----------
    tracer
        Where they go.
    node
        This node's name.

    Attributes
    ----------
    degraded
        In a sentence, why answers are not what they could be; empty while they are.
    """

    def __init__(self, tracer: Tracer, node: str) -> None:
        self._tracer, self._node = tracer, node
        self.degraded = ""
        self._forwards: dict[Request, _Forwarded] = {}

    def forward(
        self, task: str, request: Request, to: tuple[str, str, str], started_s: float
    ) -> bytes:
        """Begin a forward; header lines that say who the request is.

        Parameters
        ----------
        task, request
            What is forwarded.
        to
            The neighbor that it is sent to, and the node and the variant that shall answer.
        started_s
            When it left the queue here.
        """
        identity = request.identity or Identity(None, None)
        way = self._forwards.get(request)
        if way is None:
            begun = self._tracer.begin(f"infer {task}", identity)
            if begun is None:
                return identity.onward()
            way = self._forwards[request] = _Forwarded(begun)
        way.before, way.started_s = request.before, started_s
        way.to = dict(zip(_TO, to, strict=True))
        number = way.begun.number(RUN + AGAIN * len(way.stretches))
        return identity.onward(b"%016x" % number, _SAMPLED)

    def forwarded(self, request: Request, outcome: Outcome | None) -> None:
        """End a forward: an answer has come, or none will."""
        way = self._forwards.get(request)
        if way is None or way.to is None:
            return
        if request.abandoned:
            outcome = Outcome.CANCELED
        assert outcome is not None
        way.stretches.append(
            Stretch(
                way.before.now_s,
                request.dispatched_s,
                True,
                way.started_s,
                self._tracer.now(),
                "forward",
                {**way.to, "inferway.outcome": outcome.name.lower()},
                outcome in _ERRORS,
            )
        )
        way.to = None

    def ended(self, task: str, request: Request) -> None:
        """Make the spans of a request that a site has ended just now."""
        way = self._forwards.pop(request, None)
        if way is not None:
            begun, stretches = way.begun, way.stretches
            if request.before is not way.before:  # decided on again since
                stretches += stretches_of(request, self._tracer.now())
        else:
            found = self._tracer.begin(f"infer {task}", request.identity or Identity(None, None))
            if found is None:
                return
            begun, stretches = found, stretches_of(request, self._tracer.now())
        came = b"" if request.raw is None else request.raw.path
        more = {**self._whereabouts(request.passed, came), "inferway.retried": request.moved}
        self._tracer.tell(begun, task, request, stretches, more)

    def relay(
        self, task: str, exchange: Exchange, forward: ForwardHeaders, received_s: float
    ) -> Relayed | None:
        """Begin the spans of a request between other nodes; None where it is not sampled."""
        identity = Identity(exchange.given_id, exchange.traceparent, exchange.tracestate)
        begun = self._tracer.begin(f"relay {task}", identity)
        if begun is None:
            return None
        return Relayed(self, begun, identity, task, forward, received_s)

    def now(self) -> float:
        """Tell the time, s."""
        return self._tracer.now()

    def _whereabouts(self, answer: Response | None, came: bytes) -> dict[str, Any]:
        """Who answered and by which nodes, as the hop headers of the answer say it."""
        degraded = self.degraded
        if answer is not None and answer.path:
            node, path = decoded(answer.node), answer.path
            degraded = degraded or decoded(answer.degraded)
            names = _names(path)
        else:
            node, names = self._node, (*_names(came), self._node)
        told: dict[str, Any] = {"inferway.node": node, "inferway.path": names}
        if degraded:
            told["inferway.degraded"] = degraded
        return told


class Relayed:
    """A request between other nodes that this one passes on: receive, forward, reply.

    Parameters
    ----------
    spans
        This node's.
    begun
        The span of the whole.
    identity
        The request's names.
    task, forward
        What is asked, and of whom.
    received_s
        When it was whole, s.

    Attributes
    ----------
    lines
        Header lines for the next node.
    """

    def __init__(
        self,
        spans: Spans,
        begun: Begun,
        identity: Identity,
        task: str,
        forward: ForwardHeaders,
        received_s: float,
    ) -> None:
        self._spans, self._begun, self._id = spans, begun, identity.id
        self._task, self._forward, self._received_s = task, forward, received_s
        self._neighbor, self._sent_s = "", 0.0
        self.lines = identity.onward(b"%016x" % begun.number(RUN), _SAMPLED)

    def sent(self, neighbor: str) -> None:
        """It goes to the next node now."""
        self._neighbor, self._sent_s = neighbor, self._spans.now()

    def withdraw(self, call: UpstreamCall) -> None:
        """Whoever sent it waits no more."""
        call.cancel()
        self._tell("canceled", None, self._spans.now())

    def ended(self, status: int, result: Response | ConnectError | None, answered_s: float) -> None:
        """Its answer has been handed on.

        Parameters
        ----------
        status
            Of the answer.
        result
            What came of the forward; None where there was none.
        answered_s
            When that came, s.
        """
        outcome = outcome_of(status).name.lower()
        self._tell(outcome, result if isinstance(result, Response) else None, answered_s)

    def _tell(self, outcome: str, answer: Response | None, answered_s: float) -> None:
        begun, now_s, forward = self._begun, self._spans.now(), self._forward
        failed = outcome == "failed"
        attributes = {
            "inferway.task": self._task,
            "inferway.request_id": self._id.decode("latin-1"),
            "inferway.outcome": outcome,
            "inferway.variant": forward.variant,
            **self._spans._whereabouts(answer, forward.path),
        }
        name = f"relay {self._task}"
        begun.tell(name, self._received_s, now_s, attributes=attributes, failed=failed)
        begun.tell("receive", self._received_s, self._sent_s or now_s, RECEIVE)
        if not self._sent_s:
            return
        to = dict(zip(_TO, (self._neighbor, forward.node, forward.variant), strict=True))
        to["inferway.outcome"] = outcome
        wrong = failed or outcome == "unavailable"
        begun.tell("forward", self._sent_s, answered_s, RUN, to, failed=wrong, forward=True)
        begun.tell("reply", answered_s, now_s, REPLY)


def _names(path: bytes) -> tuple[str, ...]:
    return tuple(map(decoded, path.split(b","))) if path else ()
