"""A virtual server: an instance that answers by forwarding to another node."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inferway.live.hops.answer import Answer, Failure
from inferway.live.hops.headers import body_lines, encoded, hop_head, predicted_line, target_of
from inferway.live.hops.hop import Hop, strange_failure
from inferway.live.hops.patience import patience_s
from inferway.live.hops.pool import Sending
from inferway.live.hops.ways import differ
from inferway.live.http.exchange import JSON
from inferway.live.instance import RETRY_S, Events, PoolTerms, RemoteTarget
from inferway.live.request import EXPIRED, Batch, Job, Outcome, Request, outcome_of
from inferway.live.threads import run_detached
from inferway.protocol.inference import AnswerError, content_lines, decode, encode
from inferway.protocol.messages import ErrorMessage
from inferway.unreadable import UNREADABLE

if TYPE_CHECKING:
    from inferway.live.hops.spans import Spans

BAD_GATEWAY: Final = 502
_KNOWN: Final = frozenset(status.value for status in HTTPStatus)
MAYBE: Final = "the request may have been run"
"""What is said where another node had a request and nobody knows what became of it."""


@dataclass(frozen=True, eq=False)
class Forwarding(RemoteTarget):
    """Where the servers of a class send what they are given; takes a runtime's place at a pool.

    Attributes
    ----------
    hop
        To the neighbor that offered it. Whoever made it closes it.
    node, variant
        Who answers.
    path
        From that neighbor to that node, both included.
    spans
        Made of what is sent; None makes none.
    rtt_s
        Round trip of the path that predicted times count on, s; None where that is not known.
    """

    hop: Hop
    node: str
    variant: str
    path: tuple[str, ...] = ()
    spans: Spans | None = None
    rtt_s: float | None = None

    def instance(self, name: str, terms: PoolTerms) -> RemoteInstance:
        """As `RemoteTarget.instance`."""
        return RemoteInstance(name, self, terms)


class RemoteInstance:
    """Has one request at a time on its way; the others wait, in their order.

    It lives on the event loop. A request that came over HTTP goes on as it came, its body
    undecoded, and so does its answer; others are written as binary tensors.

    Parameters
    ----------
    name
        For messages.
    forwarding
        Where to.
    terms
        Of the pool. Where late requests are served, what is sent does not carry what is left of
        its deadline.
    """

    cold = False

    def __init__(self, name: str, forwarding: Forwarding, terms: PoolTerms) -> None:
        self.name, self.forwarding = name, forwarding
        self._hop, self._spans, self._task = forwarding.hop, forwarding.spans, terms.task
        self._signature = terms.signature
        self._drop_late, self._now = terms.drop_late, terms.now
        self._earn = terms.budget.earn
        self._node = terms.node
        self._target = target_of(terms.task, self._hop.host, self._hop.port)
        self._to, self._variant = encoded(forwarding.node), encoded(forwarding.variant)
        self._path = encoded(terms.node)
        self._relayed = forwarding.node != self._hop.name
        self._waiting: deque[Job] = deque()
        self._job: Job | None = None
        self._sending: Sending | None = None
        self._drained: threading.Event | None = None
        self._slower: Callable[[float, float], None] | None = None
        self._finished: Callable[[Job], None]
        self.resting = False
        """Whether the hop is of no use now; kept by the pool."""
        self.complaint = ""
        self.proven = False

    @property
    def group(self) -> Hop:
        """The way to the neighbor: all servers behind it fail together."""
        return self._hop

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
        rtt_s = self._hop.round_trip_s(path)
        if rtt_s is not None and counted_s is not None and differ(rtt_s, counted_s):
            slower(rtt_s - counted_s, rtt_s)
        self._hop.follow(path, slower, me=self._node)

    def put(self, job: Job) -> None:
        """Take a request, or a batch of one."""
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

    def abort(self, job: Job) -> None:
        """Give up a request that is on its way: nobody waits for its answer."""
        job.abandoned = True
        if job is not self._job or self._sending is None or self._sending.ended:
            return
        self._sending.cancel()
        # Whoever stops it is in the middle of something; it is told afterwards.
        asyncio.get_running_loop().call_soon(
            self._ended, job, Failure("the client went during the service")
        )

    def probe(self, told: Callable[[str], None]) -> None:
        """Say how the hop is; it probes its neighbor itself."""
        told(self._hop.reason)

    async def close(self, limit_s: float) -> bool:
        """Take no more; what is on its way, and what waits, still ends."""
        if self._slower is not None:
            self._hop.unfollow(self.forwarding.path, self._slower)
            self._slower = None
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
        request = job.members[0] if isinstance(job, Batch) else job
        job.started_s = started_s
        carried, body, size = self._written(request, started_s)
        # A late request that is served all the same must not be refused further up for that.
        left_s = request.deadline_s - started_s if self._drop_late else float("inf")
        predicted_s = request.predicted_s
        if self._relayed and predicted_s > 0.0:
            carried = predicted_line(predicted_s) + carried
        head = hop_head(self._target, self._to, self._variant, self._path, left_s, carried, size)
        self._earn()
        limit_s = patience_s(predicted_s, size)
        self._sending = self._hop.send(head, body, partial(self._ended, job), predicted_s, limit_s)

    def _written(self, request: Request, started_s: float) -> tuple[bytes, Any, int]:
        """Header lines, body and its size."""
        identity = request.identity
        if self._spans is not None:
            lines = self._spans.forward(self._task, request, self.forwarding, started_s)
        else:
            lines = b"" if identity is None else identity.onward()
        exchange = request.raw
        if exchange is not None:
            body = exchange.body
            return lines + body_lines(exchange), body, len(body)
        asked = [(tensor, request.inputs[tensor.name]) for tensor in self._signature.inputs]
        parts, json_length = encode(asked, self._signature.outputs, binary=True)
        lines += content_lines(json_length)
        return lines, parts, sum(map(len, parts))

    def _ended(self, job: Job, result: Answer | Failure) -> None:
        if job is not self._job:
            return  # it has been given up
        self._sending = None
        job.service_s = self._now() - job.started_s
        request = job.members[0] if isinstance(job, Batch) else job
        if isinstance(result, Failure):
            self._fail(job, request, result)
        elif result.status == 200:
            self._take(job, request, result)
        else:
            self._refuse(job, request, result)
        self._end(job)

    def _end(self, job: Job) -> None:
        self._job = None
        if self._spans is not None:
            self._spans.forwarded(job.members[0] if isinstance(job, Batch) else job, job.outcome)
        self._finished(job)
        self._next()
        if self._drained is not None and self._job is None:
            self._drained.set()

    def _next(self) -> None:
        if self._job is None and self._waiting and not self.resting:
            self._begin(self._waiting.popleft())

    def _take(self, job: Job, request: Request, answer: Answer) -> None:
        job.outcome = Outcome.ANSWERED
        request.passed = answer
        if request.raw is not None:
            return
        try:
            length = None if answer.json_length is None else int(answer.json_length)
            job.outputs = decode(self._signature, request.rows, answer.body, length)
        except ValueError as error:
            job.outcome, request.passed, request.status = Outcome.FAILED, None, BAD_GATEWAY
            wrong = f"the remote server's answer {error}" if type(error) is AnswerError else error
            job.reason = f"the answer of node {self.forwarding.node} is wrong: {wrong}"

    def _refuse(self, job: Job, request: Request, answer: Answer) -> None:
        if strange_failure(answer):
            # Nobody knows how far the request had come when something on the way failed.
            failure = Failure(f"{complaint(answer, self._hop.name)}, and no node wrote that")
            self._fail(job, request, failure)
            return
        status = answer.status
        job.outcome = outcome_of(status)
        job.reason = worded(answer, self._hop.name)
        if status == BAD_GATEWAY:  # a node on the way has lost it
            request.lost = True
        elif request.lost:  # it may have been run before it came to whoever refuses it now
            answer.unserved = False
        job.unserved = answer.unserved
        if job.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
            after = answer.retry_after
            job.retry_after_s = float(after) if after.isdigit() else RETRY_S
        request.passed = answer

    def _fail(self, job: Job, request: Request, failure: Failure) -> None:
        job.reason, job.unserved = failure.reason, failure.unserved
        if failure.unserved:
            job.outcome, job.retry_after_s = Outcome.UNAVAILABLE, RETRY_S
        else:
            job.outcome, request.status = Outcome.FAILED, BAD_GATEWAY
            job.reason = f"{failure.reason}; {MAYBE}"
            request.lost = True


def worded(answer: Answer, neighbor: str) -> str:
    """Put a refusal into a sentence, which becomes its body where that holds none.

    Parameters
    ----------
    answer
        As it came.
    neighbor
        Who sent it.
    """
    reason = complaint(answer, neighbor)
    if not _said(answer):
        answer.body, answer.kind = msgspec.json.encode({"error": reason}), JSON
        answer.json_length = None
        answer.lines = b"Retry-After: %s\r\n" % answer.retry_after if answer.retry_after else b""
    if answer.status not in _KNOWN:
        answer.status = 400 if 400 <= answer.status < 500 else BAD_GATEWAY
    return reason


def complaint(answer: Answer, neighbor: str) -> str:
    """Say in a sentence that a neighbor refused, or failed, and what it says itself."""
    who, said = answer.node.decode("latin-1") or neighbor, _said(answer)
    return f"node {who} answered {answer.status}" + (f": {said}" if said else "")


def _said(answer: Answer) -> str:
    try:
        return msgspec.json.decode(answer.body, type=ErrorMessage).error
    except UNREADABLE:
        return ""
