"""A virtual server: answers as an instance does, by forwarding to another node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inferway.live.faults import RETRY_S
from inferway.live.hops.breaker import RetryBudget
from inferway.live.hops.headers import body_lines, encoded, hop_head, predicted_line, target_of
from inferway.live.hops.hop import Hop, strange_failure
from inferway.live.hops.patience import patience_s
from inferway.live.hops.pool import Sending
from inferway.live.hops.wire import Answer, Failure
from inferway.live.http.exchange import JSON
from inferway.live.instance import EXPIRED
from inferway.live.request import Batch, Outcome, Request, outcome_of
from inferway.protocol import Signature
from inferway.protocol.inference import AnswerError, content_lines, decode, encode
from inferway.protocol.messages import ErrorMessage
from inferway.unreadable import UNREADABLE

if TYPE_CHECKING:
    from inferway.live.hops.spans import Spans

BAD_GATEWAY: Final = 502
_KNOWN: Final = frozenset(status.value for status in HTTPStatus)
MAYBE: Final = "the request may have been run"
"""What is said where another node had a request and nobody knows what became of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Forwarding:
    """Where the servers of a class send what they are given; takes a runtime's place at a site.

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

    def close(self) -> None:
        """Do nothing: other classes may use the hop."""


class _Stop:
    """Stops a request that is on its way, as `inferway.runtime.Call` does with a run."""

    __slots__ = ("_forwarder", "_job")

    def __init__(self, forwarder: Forwarder, job: Any) -> None:
        self._forwarder, self._job = forwarder, job

    @property
    def terminate(self) -> bool:
        return bool(self._job.abandoned)

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self._forwarder.stop_sending(self._job)


class Forwarder:
    """Has one request at a time on its way; the others wait, in their order.

    It has the face of `inferway.live.instance.Instance`, and lives on the event loop. A request
    that came over HTTP goes on as it came, its body undecoded, and so does its answer; others are
    written as binary tensors.

    Parameters
    ----------
    name
        For messages.
    forwarding
        Where to.
    task
        That the requests ask for.
    signature
        Of the task.
    node
        This node's name.
    finished
        Called with each request that has ended, outcome filled in.
    drop_late
        Whether a request whose deadline has passed is dropped instead of sent, and others carry
        what is left of theirs.
    now
        The clock of deadlines and service times, seconds.
    budget
        Earns retries with each request sent.
    """

    def __init__(
        self,
        name: str,
        forwarding: Forwarding,
        task: str,
        signature: Signature,
        node: str,
        finished: Callable[[Any], None],
        drop_late: bool = True,
        now: Callable[[], float] = time.monotonic,
        budget: RetryBudget | None = None,
    ) -> None:
        self.name, self.node = name, node
        self.runtime = self.forwarding = forwarding
        self._hop, self._spans, self._task = forwarding.hop, forwarding.spans, task
        self._signature = signature
        self._finished, self._drop_late, self._now = finished, drop_late, now
        self._earn = (budget or RetryBudget()).earn
        self._target = target_of(task, self._hop.host, self._hop.port)
        self._to, self._variant = encoded(forwarding.node), encoded(forwarding.variant)
        self._path = encoded(node)
        self._relayed = forwarding.node != self._hop.name
        self._waiting: deque[Any] = deque()
        self._job: Any = None
        self._sending: Sending | None = None
        self._drained: threading.Event | None = None
        self.resting = False
        """Whether the hop is of no use now; kept by whoever watches it."""
        self.complaint = ""
        """Why it rests from the start."""
        self.proven = False
        """As an instance's; nobody asks where nothing is probed."""

    def start(self, turn: Any = None) -> None:
        """Begin; there is nothing to start."""

    def warm_up(self) -> bool:
        """Do nothing: the node that has the model has warmed it up."""
        return True

    def put(self, job: Any) -> None:
        """Take a request, or a batch of one."""
        if self._job is None and not self._waiting:
            self._begin(job)
        else:
            self._waiting.append(job)

    def run_next(self) -> None:
        """Have nothing for the loop's turn."""

    def cancel(self, job: Any) -> bool:
        """Take a request back; False when it is on its way."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    def probe(self, told: Callable[[str], None]) -> None:
        """Say how the hop is; it probes its neighbor itself."""
        told(self._hop.reason)

    def resume(self) -> None:
        """Go on after a rest."""
        self.resting = False
        self._next()

    def stop(self) -> None:
        """Take no more; what is on its way, and what waits, still ends."""
        self._drained = threading.Event()
        if self._job is None and not self._waiting:
            self._drained.set()

    def join(self, limit_s: float) -> bool:
        """Wait until everything has ended, in another thread than the loop's; False if not in time.

        To be called after `stop`.
        """
        assert self._drained is not None
        return self._drained.wait(limit_s)

    def give_up(self) -> None:
        """Have nothing to give up: whoever divides a request is elsewhere."""

    def stop_sending(self, job: Any) -> None:
        """Give up a request that is on its way: nobody waits for its answer."""
        if job is not self._job or self._sending is None or self._sending.ended:
            return
        self._sending.cancel()
        # Whoever stops it is in the middle of something; it is told afterwards.
        asyncio.get_running_loop().call_soon(
            self._ended, job, Failure("the client went during the service")
        )

    def _begin(self, job: Any) -> None:
        self._job = job
        started_s = self._now()
        if self._drop_late and job.deadline_s < started_s:
            job.outcome, job.reason = Outcome.EXPIRED, EXPIRED
            asyncio.get_running_loop().call_soon(self._end, job)
            return
        request: Request = job.members[0] if isinstance(job, Batch) else job
        job.started_s = started_s
        job.call = _Stop(self, job)
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

    def _ended(self, job: Any, result: Answer | Failure) -> None:
        if job is not self._job:
            return  # it has been given up
        self._sending = None
        job.service_s = self._now() - job.started_s
        request: Request = job.members[0] if isinstance(job, Batch) else job
        if isinstance(result, Failure):
            self._fail(job, request, result)
        elif result.status == 200:
            self._take(job, request, result)
        else:
            self._refuse(job, request, result)
        self._end(job)

    def _end(self, job: Any) -> None:
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

    def _take(self, job: Any, request: Request, answer: Answer) -> None:
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

    def _refuse(self, job: Any, request: Request, answer: Answer) -> None:
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

    def _fail(self, job: Any, request: Request, failure: Failure) -> None:
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
