"""Virtual servers: instances that answer by asking another node, or a remote server of any make."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.instance import RETRY_S, Events, PoolTerms
from inferway.live.local import CutShortError, ModelInstance
from inferway.live.request import (
    BAD_GATEWAY,
    EXPIRED,
    InferRequest,
    Job,
    Outcome,
    RequestBatch,
    outcome_of,
)
from inferway.live.threads import run_detached
from inferway.live.upstream.breaker import time_limit_s
from inferway.live.upstream.headers import (
    ConnectError,
    Response,
    body_lines,
    encoded,
    failure_of,
    forward_head,
    target_of,
)
from inferway.live.upstream.rtt import differ
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream, UpstreamCall
from inferway.protocol import RefusalError
from inferway.protocol.inference import AnswerError, content_lines, decode, encode
from inferway.runtime import Arrays, AwaitedRuntime, RemoteError


class RemoteInstance(ABC):
    """Has one request at a time on its way; the others wait, in their order.

    It lives on the event loop, and needs no thread to wait in. Where it is `resting`, what it sends
    to is of no use now.
    """

    cold = proven = resting = apart = False
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


@dataclass(frozen=True, eq=False)
class Forwarding:
    """Forwarding by the servers of a class of what they are given; it is a runtime to a pool."""

    upstream: Upstream  # The neighbor that offered it; whoever made it closes it
    node: str  # Who answers, and by which variant
    variant: str
    path: tuple[str, ...] = ()  # From that neighbor to that node, both included
    spans: Spans | None = None  # Made of what is sent; None makes none
    rtt_s: float | None = None  # Round trip that predicted times count on, s; None where not known

    def close(self) -> None:
        """Do nothing: other classes may use the way there."""


class NodeInstance(RemoteInstance):
    """Forwards to a variant of another node, by way of a neighbor.

    A request that came over HTTP goes on as it came, its body undecoded, and so does its answer.
    Others are written as binary tensors, and so are those on whose answers it is decided here: by
    all outputs, whatever the client wants of them. Where late requests are served, what is sent
    does not carry what is left of its deadline.
    """

    def __init__(self, name: str, forwarding: Forwarding, terms: PoolTerms) -> None:
        super().__init__(name, terms)
        self.forwarding, self._spans = forwarding, forwarding.spans
        # The way to the neighbor: all servers behind it fail together.
        self.group = upstream = forwarding.upstream
        self._target = target_of(terms.task, upstream.host, upstream.port)
        self._to = encoded(forwarding.node), encoded(forwarding.variant)
        self._path = encoded(terms.node)
        self._relayed = forwarding.node != upstream.name
        self._call: UpstreamCall | None = None
        self._slower: Callable[[float, float], None] | None = None

    async def start(self, events: Events) -> None:
        """Begin, and have the pool told from now on when the way takes longer than it did, or less.

        Predicted times of all servers at its end move at once then. Left to themselves, each would
        have to serve a slow request first, and none would see that it is over.
        """
        self._finished = events.done
        self._slower = slower = events.slower
        if slower is None:
            return
        path, counted_s = self.forwarding.path, self.forwarding.rtt_s
        rtt_s = self.group.trips.round_trip_s(path)
        if rtt_s is not None and counted_s is not None and differ(rtt_s, counted_s):
            slower(rtt_s - counted_s, rtt_s)
        self.group.follow(path, slower, me=self._terms.node)

    def abort(self, job: Job) -> None:
        """Give up a request that is on its way: nobody waits for its answer."""
        job.abandoned = True
        if job is not self._job or self._call is None or self._call.ended:
            return
        self._call.cancel()
        # Whoever stops it is in the middle of something; it is told afterwards.
        failure = ConnectError("the client went during the service")
        asyncio.get_running_loop().call_soon(self._call.done, failure)

    def probe(self, told: Callable[[str], None]) -> None:
        """Say how the way is; it probes its neighbor itself."""
        told(self.group.reason)

    async def close(self, limit_s: float) -> bool:
        """Follow the way no more, and take no more."""
        if self._slower is not None:
            self.group.trips.unfollow(self.forwarding.path, self._slower)
            self._slower = None
        return await super().close(limit_s)

    def _send(self, job: Job) -> None:
        request = job.members[0] if isinstance(job, RequestBatch) else job
        started_s, identity, given = job.started_s, request.identity, Arrays()
        exchange = None if self._reads(request) else request.raw
        if exchange is None:
            try:
                given = request.inputs
            except RefusalError as refusal:
                job.outcome, job.reason = Outcome.INVALID, refusal.reason
                asyncio.get_running_loop().call_soon(self._end, job)
                return
        if self._spans is not None:
            to = (self.group.name, self.forwarding.node, self.forwarding.variant)
            lines = self._spans.forward(self._terms.task, request, to, started_s)
        else:
            lines = b"" if identity is None else identity.onward()
        if exchange is not None:
            body, size = exchange.body, len(exchange.body)
            lines += body_lines(exchange.headers)
        else:
            signature = self._terms.signature
            asked = [(tensor, given[tensor.name]) for tensor in signature.inputs]
            body, json_length = encode(asked, signature.outputs, binary=True)
            size = sum(map(len, body))
            lines += content_lines(json_length)
        # A late request that is served all the same must not be refused further up for that.
        left_s = request.deadline_s - started_s if self._drop_late else math.inf
        predicted_s = request.predicted_s
        told_s = predicted_s if self._relayed else 0.0
        head = forward_head(self._target, self._to, self._path, left_s, told_s, lines, size)
        self._terms.budget.earn()
        limit_s = time_limit_s(predicted_s, size)
        done = partial(self._ended, job, request)
        self._call = self.group.send(head, body, done, predicted_s, limit_s)

    def _ended(self, job: Job, request: InferRequest, result: Response | ConnectError) -> None:
        if job is not self._job:
            return  # it has been given up
        self._call = None
        job.service_s = self._now() - job.started_s
        if isinstance(result, Response) and result.status == 200:
            self._take(job, request, result)
        else:
            self._refuse(job, request, result)
        if self._spans is not None:
            self._spans.forwarded(request, job.outcome)
        self._end(job)

    def _take(self, job: Job, request: InferRequest, answer: Response) -> None:
        job.outcome = Outcome.ANSWERED
        request.passed = answer
        if not self._reads(request):
            return
        answer.lines = b""  # of a body that goes no further
        try:
            length = None if answer.json_length is None else int(answer.json_length)
            job.outputs = decode(self._terms.signature, request.rows, answer.body, length)
        except ValueError as error:
            job.outcome, request.passed, request.status = Outcome.FAILED, None, BAD_GATEWAY
            wrong = f"the remote server's answer {error}" if type(error) is AnswerError else error
            job.reason = f"the answer of node {self.forwarding.node} is wrong: {wrong}"

    def _reads(self, request: InferRequest) -> bool:
        """Tell whether the answer is read here, and so not passed on as it comes."""
        return request.raw is None or (self._terms.settles and request.counted)

    def _refuse(self, job: Job, request: InferRequest, answer: Response | ConnectError) -> None:
        failure = failure_of(answer, self.group.name)
        if failure is not None:
            job.reason, job.unserved = failure.sentence, failure.unserved
            if failure.unserved:
                job.outcome, job.retry_after_s = Outcome.UNAVAILABLE, RETRY_S
            else:
                job.outcome, request.status, request.lost = Outcome.FAILED, BAD_GATEWAY, True
            return
        assert isinstance(answer, Response)
        status = answer.status
        job.outcome, job.reason = outcome_of(status), answer.word(self.group.name)
        if status == BAD_GATEWAY:  # a node on the way has lost it
            request.lost = True
        elif request.lost:  # it may have been run before it came to whoever refuses it now
            answer.unserved = False
        job.unserved, request.passed = answer.unserved, answer
        if job.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE):
            after = answer.retry_after
            job.retry_after_s = float(after) if after.isdigit() else RETRY_S


class ServerInstance(ModelInstance, RemoteInstance):
    """Asks a remote server, as a copy that runs here is asked.

    One whose server is down rests from the start: it is probed like any other.
    """

    def __init__(
        self,
        name: str,
        remote: AwaitedRuntime,
        terms: PoolTerms,
        *,
        sizes: Sequence[int],
        most_rows: int,
        headroom: Headroom | None = None,
        demand: MemoryNeed | None = None,
    ) -> None:
        ModelInstance.__init__(self, remote, sizes, most_rows, headroom, demand)
        RemoteInstance.__init__(self, name, terms)
        self.apart = remote.apart
        self._task: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._asking = False

    async def start(self, events: Events) -> None:
        """Run the model on zeros, and begin.

        Raises
        ------
        WarmUpError
            As `LocalInstance.warm_up`.
        """
        self._finished = events.done
        if not self.runtime.down and self.runtime.known_signature is None:
            with suppress(RemoteError):  # it is down then
                await self.runtime.describe()
        if not self._is_down():
            await self._warm_up()

    def _is_down(self) -> bool:
        self.complaint = self.runtime.down
        self.resting = self.complaint != ""
        return self.resting

    def put(self, job: Job) -> None:
        """Take a request, or a batch; one that rests keeps it until it is given to another."""
        if self.resting:
            self._waiting.append(job)
        else:
            super().put(job)

    def abort(self, job: Job) -> None:
        """Give up a request that is on its way: its connection ends."""
        job.abandoned = True
        if job is self._job and self._task is not None and self._asking:
            self._task.cancel()

    def probe(self, told: Callable[[str], None]) -> None:
        """Run the model on zeros; one that leaves open what would fit goes on unprobed."""
        self._probing = asyncio.get_running_loop().create_task(self._try(told))

    async def close(self, limit_s: float) -> bool:
        """Take no more; where the limit passes first, no further run begins."""
        if self._probing is not None:
            self._probing.cancel()
        ended = await super().close(limit_s)
        self._over = not ended
        return ended

    def _send(self, job: Job) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go(job))

    async def _go(self, job: Job) -> None:
        if self._headroom is None or self._demand is None:
            await self._answer(job)
        else:
            await self._serve(job, self._headroom, self._demand)
        self._task = None
        self._end(job)

    async def _run(self, job: Job | None, inputs: Arrays) -> Arrays:
        gone = CutShortError(Outcome.FAILED, "the client went during the service")
        if job is not None and job.abandoned:
            raise gone
        self._asking = job is not None
        try:
            outputs: Arrays = await self.runtime.infer(inputs)
        except asyncio.CancelledError:
            if job is None or not job.abandoned:  # the loop ends
                raise
            raise gone from None
        finally:
            self._asking = False
        return outputs

    async def _wait(self, wait: Callable[..., None], *sizes: int) -> None:
        await run_detached(wait, *sizes)
