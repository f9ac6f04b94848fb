"""The servers of a fleet: what waits at each of them, and what it takes at once."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from inferway.live.headroom import is_closed
from inferway.live.instance import Instance
from inferway.live.options import PoolOptions
from inferway.live.request import DROPPED, EXPIRED, InferRequest, RequestBatch, fit
from inferway.protocol import Signature

if TYPE_CHECKING:
    from inferway.dispatch.dispatcher import Dispatcher
    from inferway.dispatch.recording import Recording

_HALF_WORD: Final = 2**63


class ServerQueues:
    """Holds the requests at servers, each in a queue of its own, and has instances run them.

    An instance without batches has all of its server's requests, and takes one after the other.
    With batches they wait here, and it has one batch at most: a free server is asked what it takes
    when a request comes to it and when it falls free, which is rounded down to a size that its
    class offers, counted in rows.

    `expired` ends requests that a server drops, with the reason.
    """

    def __init__(
        self,
        dispatcher: Dispatcher | Recording,
        instances: Sequence[Instance],
        class_of: Sequence[int],
        signature: Signature,
        options: PoolOptions,
        expired: Callable[[InferRequest, str], None],
    ) -> None:
        self.dispatcher, self.instances, self._expired = dispatcher, instances, expired
        self.queues: list[deque[InferRequest]] = [deque() for _ in instances]
        self._now, self._drop_late = options.now, options.drop_late
        rules = options.rules
        self._rules = [None if rules is None else rules[k] for k in class_of]
        self._pulls = hasattr(dispatcher.policy, "pull")
        self.batches = self._pulls or rules is not None
        # Whether requests of the task may differ in more than their first axis.
        self._mixed = not is_closed(signature)
        self._serving: list[RequestBatch | None] = [None] * len(instances)
        self._word = random.Random(options.seed).getrandbits
        self._flushing = False
        self._idle: asyncio.Event | None = None

    def draw(self) -> int:
        """Draw the next random word of 64 bits."""
        return self._word(64) - _HALF_WORD

    def left_s(self, request: InferRequest) -> float:
        """Time until a request's deadline."""
        # Where late requests are served, nothing is refused for being late.
        return request.deadline_s - self._now() if self._drop_late else math.inf

    def put(self, request: InferRequest) -> bool:
        """Take a request that has been given its server; whether it is left waiting there."""
        server = request.server
        queue = self.queues[server]
        queue.append(request)
        if not self.batches:
            self.instances[server].put(request)
            return len(queue) > 1
        self._ask(server)
        if request.outcome is not None or request.server < 0:
            return False
        batch = self._serving[server]
        return batch is None or request not in batch.members

    def take_back(self, request: InferRequest) -> None:
        """Undo a decision where no answer is sent: the place is freed and the balance moved back.

        The request keeps its server's number, for those who count.
        """
        server = request.server
        queue = self.queues[server]
        position = queue.index(request)
        del queue[position]
        request.untime()
        self.dispatcher.withdraw(server, position, self._now(), request.counted)

    def recall(self, request: InferRequest) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun.

        A batch that has not begun goes on without the request.
        """
        server = request.server
        if not self.batches:
            if not self.instances[server].cancel(request):
                return False
            self.take_back(request)
            return True
        if request.outcome is not None:
            return False  # it has ended, or is about to
        batch = self._serving[server]
        if batch is None or request not in batch.members:
            self.take_back(request)
            if batch is None and self.queues[server]:
                self._begin(server, 0)
            self._look()
            return True
        if not self.instances[server].cancel(batch):
            return False
        batch.members.remove(request)
        self.take_back(request)
        if batch.members:
            self._begin(server, len(batch.members))
            self.instances[server].put(batch)
        else:
            self._serving[server] = None
            self._ask(server)
        return True

    def abort(self, request: InferRequest) -> None:
        """Nobody waits for a request whose run has begun: it is stopped where it can be.

        A batch is, when nobody waits for any of its answers.
        """
        server = request.server
        if not self.batches:
            self.instances[server].abort(request)
            return
        request.abandoned = True
        batch = self._serving[server]
        if batch is not None and all(one.abandoned for one in batch.members):
            self.instances[server].abort(batch)

    def begun(self, server: int) -> int:
        """Number of a server's requests in service; they stand before the others."""
        if not self.batches:
            return min(1, len(self.queues[server]))
        batch = self._serving[server]
        return 0 if batch is None else len(batch.members)

    def settled(self, batch: RequestBatch) -> None:
        """Let the server of a batch whose members have left, or wait again, take the next."""
        self._serving[batch.server] = None
        self._ask(batch.server)
        self._look()

    def flush(self) -> None:
        """Let nobody wait for requests that will not come: a server takes what there is."""
        self._flushing = True
        for server in range(len(self.instances)) if self.batches else ():
            self._ask(server)

    async def drain(self, limit_s: float) -> list[InferRequest]:
        """Run what waits here, as far as the limit allows; what was left is in no queue now.

        What instances have, they end themselves.
        """
        if not self.batches:
            return []
        self.flush()
        self._idle = asyncio.Event()
        self._look()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        waiting = [one for queue in self.queues for one in queue]
        return [request for request in waiting if self.recall(request)]

    def _look(self) -> None:
        if self._idle is not None and not any(self._serving) and not any(self.queues):
            self._idle.set()

    def _begin(self, server: int, taken: int) -> None:
        """Say that a server serves its first requests together, or waits for more with 0."""
        self.dispatcher.begin(server, taken, self._now())

    def _ask(self, server: int) -> None:
        queue = self.queues[server]
        if self._serving[server] is not None or not queue:
            return
        gone: list[tuple[InferRequest, str]] = []
        if queue[0].alone:
            take = 1
        else:
            rule = self._rules[server]
            if self._pulls:
                drop, take = self.dispatcher.pull(server, self._now(), self.draw())
            else:
                drop, take = 0, 1 if rule is None else rule.take(len(queue))
            for _ in range(min(drop, len(queue))):
                gone.append((queue[0], DROPPED))
                self.take_back(queue[0])
            while queue and self.left_s(queue[0]) < 0.0:
                gone.append((queue[0], EXPIRED))
                self.take_back(queue[0])
            if self._flushing and take <= 0:
                take = len(queue)
        members = self._first(server, take)
        if members:
            for request in members:
                request.untime()
            self._begin(server, len(members))
            self._serving[server] = batch = RequestBatch(server, members)
            self.instances[server].put(batch)
        elif queue:
            self._begin(server, 0)
        # Told last: whoever hears of it may send the next request at once.
        for request, reason in gone:
            self._expired(request, reason)

    def _first(self, server: int, take: int) -> list[InferRequest]:
        """Those at the head of the queue that make the largest batch offered."""
        queue = self.queues[server]
        if not queue or take <= 0:
            return []
        first, rule = queue[0], self._rules[server]
        members = [first]
        if rule is not None and not first.alone:
            for request in islice(queue, 1, take):
                if request.alone or (self._mixed and not fit(first, request)):
                    break
                members.append(request)
            rows = sum(request.rows for request in members)
            room = rule.rounded(rows)
            while len(members) > 1 and rows > room:
                rows -= members.pop().rows
        return members
