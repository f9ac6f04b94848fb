"""A virtual server: an instance that answers by forwarding to another server, or node."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferway.live.instance import RETRY_S, Events, PoolTerms
from inferway.live.request import EXPIRED, InferRequest, Job, Outcome, RequestBatch, outcome_of
from inferway.live.threads import run_detached
from inferway.live.upstream.breaker import time_limit_s
from inferway.live.upstream.connections import UpstreamCall
from inferway.live.upstream.headers import (
    BAD_GATEWAY,
    MAYBE,
    ConnectError,
    Response,
    body_lines,
    encoded,
    forward_head,
    predicted_line,
    target_of,
)
from inferway.live.upstream.rtt import differ
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream
from inferway.protocol.inference import AnswerError, content_lines, decode, encode


@dataclass(frozen=True, eq=False)
class Forwarding:
    """Forwarding by the servers of a class of what they are given; takes a runtime's place at a
    pool.

    Attributes
    ----------
    upstream
        The neighbor that offered it. Whoever made it closes it.
    node, variant
        Who answers.
    path
        From that neighbor to that node, both included.
    spans
        Made of what is sent; None makes none.
    rtt_s
        Round trip of the path that predicted times count on, s; None where that is not known.
    """

    upstream: Upstream
    node: str
    variant: str
    path: tuple[str, ...] = ()
    spans: Spans | None = None
    rtt_s: float | None = None

    def instance(self, name: str, terms: PoolTerms) -> NodeInstance:
        """Make one of these servers."""
        return NodeInstance(name, self, terms)

    def close(self) -> None:
        """Do nothing: other classes may use the way there."""


class RemoteInstance(ABC):
    """Has one request at a time on its way; the others wait, in their order.

    It lives on the event loop, and needs no thread to wait in.
    """

    cold = False
    proven = False
    resting = False
    """Whether what it sends to is of no use now."""
    complaint = ""

    def __init__(self, name: str, terms: PoolTerms) -> None:
        self.name, self._terms = name, terms
        self._drop_late, self._now = terms.drop_late, terms.now
        self._waiting: deque[Job] = deque()
        self._job: Job | None = None
        self._drained: threading.Event | None = None
        self._finished: Callable[[Job], None]

    @abstractmethod
    def _send(self, job: Job) -> None:
        """Send what has just begun; `_end` follows, not before this has returned."""

    def put(self, job: Job) -> None:
        """Take a request, or a batch."""
        if self._job is None and not self._waiting:
            self._begin(job)
        else:
            self._waiting.append(job)

    def cancel(self, job: Job) -> bool:
        """Take a request back; False when it is on its way."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    async def close(self, limit_s: float) -> bool:
        """Take no more; what is on its way, and what waits, still ends."""
        if self._job is None and not self._waiting:
            return True
        self._drained = threading.Event()
        return await run_detached(self._drained.wait, limit_s)

    def _begin(self, job: Job) -> None:
        self._job = job
        started_s = self._now()
        if self._drop_late and job.deadline_s < started_s:
            job.outcome, job.reason = Outcome.EXPIRED, EXPIRED
            asyncio.get_running_loop().call_soon(self._end, job)
            return
        job.started_s = started_s
        self._send(job)

    def _end(self, job: Job) -> None:
        self._job = None
        self._finished(job)
        if self._job is None and self._waiting and not self.resting:
            self._begin(self._waiting.popleft())
        if self._drained is not None and self._job is None:
            self._drained.set()


class NodeInstance(RemoteInstance):
    """Forwards to a variant of another node, by way of a neighbor.

    A request that came over HTTP goes on as it came, its body undecoded, and so does its answer;
    others are written as binary tensors. Where late requests are served, what is sent does not
    carry what is left of its deadline.
    """

    def __init__(self, name: str, forwarding: Forwarding, terms: PoolTerms) -> None:
        super().__init__(name, terms)
        self.forwarding = forwarding
        self._upstream, self._spans = forwarding.upstream, forwarding.spans
        self._target = target_of(terms.task, self._upstream.host, self._upstream.port)
        self._to, self._variant = encoded(forwarding.node), encoded(forwarding.variant)
        self._path = encoded(terms.node)
        self._relayed = forwarding.node != self._upstream.name
        self._call: UpstreamCall | None = None
        self._slower: Callable[[float, float], None] | None = None

    @property
    def group(self) -> Upstream:
        """The way to the neighbor: all servers behind it fail together."""
        return self._upstream

    async def start(self, events: Events) -> None:
        """Begin, and have the pool told from now on when the way takes longer than it did, or less.

        Predicted times of all servers at its end move at once then. Left to themselves, each would
        have to serve a slow request first, and none would see that it is over.
        """
        self._finished = events.done
        if not events.leads(self):
            return
        path, counted_s = self.forwarding.path, self.forwarding.rtt_s
        self._slower = slower = partial(events.slower, self)
        rtt_s = self._upstream.round_trip_s(path)
        if rtt_s is not None and counted_s is not None and differ(rtt_s, counted_s):
            slower(rtt_s - counted_s, rtt_s)
        self._upstream.follow(path, slower, me=self._terms.node)

    def abort(self, job: Job) -> None:
        """Give up a request that is on its way: nobody waits for its answer."""
        job.abandoned = True
        if job is not self._job or self._call is None or self._call.ended:
            return
        self._call.cancel()
        # Whoever stops it is in the middle of something; it is told afterwards.
        failure = ConnectError("the client went during the service")
        asyncio.get_running_loop().call_soon(self._ended, job, failure)

    def probe(self, told: Callable[[str], None]) -> None:
        """Say how the way is; it probes its neighbor itself."""
        told(self._upstream.reason)

    async def close(self, limit_s: float) -> bool:
        """Follow the way no more, and take no more."""
        if self._slower is not None:
            self._upstream.unfollow(self.forwarding.path, self._slower)
            self._slower = None
        return await super().close(limit_s)

    def _send(self, job: Job) -> None:
        request = job.members[0] if isinstance(job, RequestBatch) else job
        started_s = job.started_s
        carried, body, size = self._written(request, started_s)
        # A late request that is served all the same must not be refused further up for that.
        left_s = request.deadline_s - started_s if self._drop_late else math.inf
        predicted_s = request.predicted_s
        if self._relayed and predicted_s > 0.0:
            carried = predicted_line(predicted_s) + carried
        head = forward_head(
            self._target, self._to, self._variant, self._path, left_s, carried, size
        )
        self._terms.budget.earn()
        limit_s = time_limit_s(predicted_s, size)
        done = partial(self._ended, job)
        self._call = self._upstream.send(head, body, done, predicted_s, limit_s)

    def _written(self, request: InferRequest, started_s: float) -> tuple[bytes, Any, int]:
        """Header lines, body and its size."""
        identity = request.identity
        if self._spans is not None:
            to = (self._upstream.name, self.forwarding.node, self.forwarding.variant)
            lines = self._spans.forward(self._terms.task, request, to, started_s)
        else:
            lines = b"" if identity is None else identity.onward()
        exchange = request.raw
        if exchange is not None:
            body = exchange.body
            return lines + body_lines(exchange.headers), body, len(body)
        signature = self._terms.signature
        asked = [(tensor, request.inputs[tensor.name]) for tensor in signature.inputs]
        parts, json_length = encode(asked, signature.outputs, binary=True)
        return lines + content_lines(json_length), parts, sum(map(len, parts))

    def _ended(self, job: Job, result: Response | ConnectError) -> None:
        if job is not self._job:
            return  # it has been given up
        self._call = None
        job.service_s = self._now() - job.started_s
        request = job.members[0] if isinstance(job, RequestBatch) else job
        if isinstance(result, ConnectError):
            self._fail(job, request, result)
        elif result.status == 200:
            self._take(job, request, result)
        else:
            self._refuse(job, request, result)
        self._end(job)

    def _end(self, job: Job) -> None:
        if self._spans is not None:
            self._spans.forwarded(
                job.members[0] if isinstance(job, RequestBatch) else job, job.outcome
            )
        super()._end(job)

    def _take(self, job: Job, request: InferRequest, answer: Response) -> None:
        job.outcome = Outcome.ANSWERED
        request.passed = answer
        if request.raw is not None:
            return
        try:
            length = None if answer.json_length is None else int(answer.json_length)
            job.outputs = decode(self._terms.signature, request.rows, answer.body, length)
        except ValueError as error:
            job.outcome, request.passed, request.status = Outcome.FAILED, None, BAD_GATEWAY
            wrong = f"the remote server's answer {error}" if type(error) is AnswerError else error
            job.reason = f"the answer of node {self.forwarding.node} is wrong: {wrong}"

    def _refuse(self, job: Job, request: InferRequest, answer: Response) -> None:
        if answer.is_strange_failure:
            # Nobody knows how far the request had come when something on the way failed.
            complaint = answer.complaint(self._upstream.name)
            self._fail(job, request, ConnectError(f"{complaint}, and no node wrote that"))
            return
        status = answer.status
        job.outcome = outcome_of(status)
        job.reason = answer.word(self._upstream.name)
        if status == BAD_GATEWAY:  # a node on the way has lost it
            request.lost = True
        elif request.lost:  # it may have been run before it came to whoever refuses it now
            answer.unserved = False
        job.unserved = answer.unserved
        if job.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
            after = answer.retry_after
            job.retry_after_s = float(after) if after.isdigit() else RETRY_S
        request.passed = answer

    def _fail(self, job: Job, request: InferRequest, failure: ConnectError) -> None:
        job.reason, job.unserved = failure.reason, failure.unserved
        if failure.unserved:
            job.outcome, job.retry_after_s = Outcome.UNAVAILABLE, RETRY_S
        else:
            job.outcome, request.status = Outcome.FAILED, BAD_GATEWAY
            job.reason = f"{failure.reason}; {MAYBE}"
            request.lost = True
