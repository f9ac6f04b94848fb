"""The peer port: requests from neighbors are served here, or passed on as they came."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import lru_cache, partial
from typing import Final
from urllib.parse import unquote_to_bytes

from inferway.deployment.nodes import MAX_HOPS
from inferway.live.http.exchange import (
    JSON,
    NAMES,
    NODE,
    PATH,
    Exchange,
    Handler,
    Limits,
)
from inferway.live.http.inference import Infer
from inferway.live.http.routes import Routes
from inferway.live.intake import Intake
from inferway.live.request import BAD_GATEWAY, NodeCondition
from inferway.live.security.keys import ANYBODY
from inferway.live.site import TaskSite
from inferway.live.upstream.breaker import time_limit_s
from inferway.live.upstream.headers import (
    ConnectError,
    Response,
    ResponseHeaders,
    body_lines,
    encoded,
    failure_of,
    forward_head,
    forward_headers_of,
    live_head,
    target_of,
)
from inferway.live.upstream.spans import Relayed, Spans
from inferway.live.upstream.upstream import Upstream, UpstreamCall
from inferway.protocol import RefusalError

_BEFORE: Final = b"/v2/models/"
_AFTER: Final = b"/infer"
_LONGEST_MEMORY: Final = 4096
_RETRY: Final = b"Retry-After: 1\r\n"
_target_of = lru_cache(_LONGEST_MEMORY)(target_of)

# Told of a neighbor's request that goes on from here: task and entry node.
Passed = Callable[[str, str], None]


class Proxy:
    """Answers what neighbors send; its `find` is a listener's.

    What was decided at the entry is not decided again: a request goes to the node that it names,
    or is answered by the variant that it names.

    `next_hop` finds the way towards a node, given the nodes, as headers have them, that a request
    has come through; None where there is none now. `passed` is told of each request that is
    passed on. The clock is the sites'. Without `spans`, none are made of what is passed on.
    """

    def __init__(
        self,
        node: NodeCondition,
        next_hop: Callable[[str, Set[bytes]], Upstream | None],
        *,
        limits: Limits | None = None,
        passed: Passed | None = None,
        spans: Spans | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node = node
        self._own = encoded(node.name)
        self._next_hop, self._passed, self._now = next_hop, passed, now
        self._limits = limits or Limits()
        self.headers = ResponseHeaders(node)
        self._spans = spans
        self._infers: dict[str, dict[str, Infer]] = {}
        self._handlers: dict[bytes, Handler] = {}
        self._routes = Routes(lambda path: f"there is nothing at {path} for neighbors")
        self._routes.read("/v2/health/live", self._live, ANYBODY)

    def serve(self, site: TaskSite) -> None:
        """Serve a task's own variants from now on; called again whenever its fleet changes."""
        before, pool = self._infers.pop(site.task, {}), site.present
        known = {variant: infer for variant, infer in before.items() if infer.site is site}
        if pool is not None:
            self._infers[site.task] = {
                variant: known.get(variant) or Infer(Intake(site, variant, self._limits, own=True))
                for variant in pool.versions
                if pool.own_mask(variant)
            }

    def find(self, method: bytes, target: bytes) -> Handler:
        """Find who answers a request."""
        handler = self._handlers.get(target) if method == b"POST" else None
        if handler is not None:
            return handler
        task = target[len(_BEFORE) : -len(_AFTER)]
        fits = target.startswith(_BEFORE) and target.endswith(_AFTER) and b"/" not in task
        if method != b"POST" or not fits:
            return self._routes.find(method, target)
        name = unquote_to_bytes(task).decode("utf-8", "replace")
        handler = partial(self._take, name)
        if len(self._handlers) < _LONGEST_MEMORY:
            self._handlers[target] = handler
        return handler

    def _take(self, task: str, exchange: Exchange) -> None:
        received_s = self._now()
        try:
            forward, left_s, predicted_s = forward_headers_of(exchange.hops(), self._own)
        except RefusalError as refusal:
            self._refuse(exchange, refusal.status, refusal.reason, received_s, unserved=True)
            return
        exchange.path = forward.path
        own = forward.node == self.node.name
        if own or self._spans is not None:
            exchange.unfold()
        infer = self._infers.get(task, {}).get(forward.variant) if own else None
        if infer is not None:
            request = infer.take(exchange, received_s)
            if request is None:
                return
            # The entry has seen to all that the client asked for, but for the time that is left.
            request.deadline_s = request.received_s + left_s
            request.floor = 0.0
            infer.site.submit(request)
            return
        relayed = None
        if self._spans is not None:
            relayed = self._spans.relay(task, exchange, forward, received_s)
        upstream = None if own else self._next_hop(forward.node, forward.nodes)
        # Back to where it has been it would only be refused as a loop.
        if upstream is None or encoded(upstream.name) in forward.nodes:
            reason = f"node {self.node.name} has no way to node {forward.node} now"
            if own:
                variant = f"variant {forward.variant!r} of task {task!r}"
                reason = f"{variant} does not run on {self.node.name} now"
            self._refuse(exchange, 503, reason, received_s, unserved=True, relayed=relayed)
            return
        target = _target_of(task, upstream.host, upstream.port)
        carried = exchange.carried
        if relayed is not None:
            carried = relayed.sent(upstream.name) + body_lines(exchange.headers)
        elif carried is None:
            carried = body_lines(exchange.headers)
            given, parent, state = map(exchange.headers.get, NAMES)
            if parent is not None:
                if state is not None:
                    carried = b"tracestate: %s\r\n%s" % (state, carried)
                carried = b"traceparent: %s\r\n%s" % (parent, carried)
            if given is not None:
                carried = b"X-Request-Id: %s\r\n%s" % (given, carried)
        body = exchange.body
        assert isinstance(body, bytes)
        left_s -= self._now() - received_s
        limit_s = time_limit_s(predicted_s, len(body), len(forward.nodes))
        head = forward_head(
            target, forward.address, forward.onward, left_s, predicted_s, carried, len(body)
        )
        if self._passed is not None:
            self._passed(task, forward.entry)
        exchange.withdraw = UpstreamCall.cancel
        if relayed is not None:
            exchange.withdraw = relayed.withdraw
        done = partial(self._answered, exchange, upstream.name, received_s, relayed)
        exchange.request = upstream.send(head, body, done, 0.0, limit_s)

    def _answered(
        self,
        exchange: Exchange,
        neighbor: str,
        received_s: float,
        relayed: Relayed | None,
        result: Response | ConnectError,
    ) -> None:
        answered_s = self._now()
        good = isinstance(result, Response) and result.status == 200
        failure = None if good else failure_of(result, neighbor)
        if failure is not None:
            status, reason = 503 if failure.unserved else BAD_GATEWAY, failure.sentence
            self._refuse(exchange, status, reason, received_s, unserved=failure.unserved)
        elif isinstance(result, Response):
            if result.status != 200:
                result.word(neighbor)
            status = result.status
            lines = self.headers.passed(result, exchange.path, answered_s - received_s)
            exchange.respond(status, result.body, result.kind or JSON, lines)
        if relayed is not None:
            relayed.ended(status, failure or result, answered_s)

    def _live(self, exchange: Exchange) -> None:
        """Answer that this node lives, or ask the node that is named; nothing is done for it."""
        received_s = self._now()
        fields = exchange.headers
        to, exchange.path = fields.get(NODE, b""), fields.get(PATH, b"")
        if to in (b"", self._own):
            exchange.respond(200, extra=self.headers.own(exchange.path, 0.0, "", False))
            return
        nodes = exchange.path.split(b",") if exchange.path else []
        name = unquote_to_bytes(to).decode("utf-8", "replace")
        upstream = self._next_hop(name, set(nodes)) if len(nodes) < MAX_HOPS else None
        if upstream is None or self._own in nodes or encoded(upstream.name) in nodes:
            reason = f"node {self.node.name} has no way to node {name} now"
            self._refuse(exchange, 503, reason, received_s, unserved=True)
            return
        head = live_head(upstream.at, name, b",".join([*nodes, self._own]))
        exchange.withdraw = UpstreamCall.cancel
        done = partial(self._answered, exchange, upstream.name, received_s, None)
        exchange.request = upstream.send(head, b"", done, asks=True)

    def _refuse(
        self,
        exchange: Exchange,
        status: int,
        reason: str,
        received_s: float,
        *,
        unserved: bool,
        relayed: Relayed | None = None,
    ) -> None:
        lines = self.headers.own(exchange.path, self._now() - received_s, "", unserved)
        exchange.refuse(status, reason, lines + _RETRY * (status == 503))
        if relayed is not None:
            relayed.ended(status, None, self._now())
