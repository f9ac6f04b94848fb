"""Batches: what a server takes when it falls free, by the policy or by the file's rule."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from inferway.live.instance import Instance
from inferway.live.request import Request, RequestBatch, fit

if TYPE_CHECKING:
    from inferway.dispatch.batching import Rule


class BatcherPool(Protocol):
    """What a batcher needs of its pool."""

    instances: list[Instance]
    queues: list[deque[Request]]
    """What each server holds, those in service first."""

    def ask(self, server: int) -> tuple[int, int]:
        """Ask the policy how many requests a free server drops and takes: (drop, take)."""

    def begin(self, server: int, taken: int) -> None:
        """Say that a server serves its first requests together, or waits for more with 0."""

    def take_back(self, request: Request) -> None:
        """Undo a decision: the request stands in no queue then."""

    def late(self, request: Request) -> bool:
        """Whether a request's deadline has passed and it is not to be run."""

    def dropped(self, request: Request, late: bool) -> None:
        """Tell of a request that leaves so, or that the policy drops; it stands in no queue."""


class Batcher:
    """Requests wait here and not at the instances, each of which has one batch at most.

    A free server is asked what it takes when a request comes to it and when it falls free. What it
    takes is rounded down to a size that its class offers, counted in rows.

    Parameters
    ----------
    servers
        Where requests wait, and who runs them.
    rules
        By class: the sizes offered, and how batches are formed where the policy does not say; None
        where requests are run one at a time.
    class_of
        Class of each server.
    pulls
        Whether the policy says.
    mixed
        Whether requests of a task may differ in more than their first axis.
    """

    def __init__(
        self,
        servers: BatcherPool,
        rules: Sequence[Rule] | None,
        class_of: Sequence[int],
        *,
        pulls: bool,
        mixed: bool,
    ) -> None:
        self._servers = servers
        self._instances, self._queues = servers.instances, servers.queues
        self._rules = [None if rules is None else rules[k] for k in class_of]
        self._pulls, self._mixed = pulls, mixed
        self._serving: list[RequestBatch | None] = [None] * len(class_of)
        self._flushing = False
        self._idle: asyncio.Event | None = None

    def put(self, request: Request) -> bool:
        """Take a request that has just come to its server; whether it is left waiting there."""
        self._ask(request.server)
        if request.outcome is not None or request.server < 0:
            return False
        batch = self._serving[request.server]
        return batch is None or request not in batch.members

    def cancel(self, request: Request) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun.

        A batch that has not begun goes on without the request.
        """
        if request.outcome is not None:
            return False  # it has ended, or is about to
        server = request.server
        batch = self._serving[server]
        if batch is not None and request in batch.members:
            if not self._instances[server].cancel(batch):
                return False
            batch.members.remove(request)
            self._servers.take_back(request)
            if batch.members:
                self._servers.begin(server, len(batch.members))
                self._instances[server].put(batch)
            else:
                self._serving[server] = None
                self._ask(server)
            return True
        self._servers.take_back(request)
        if batch is None and self._queues[server]:
            self._servers.begin(server, 0)
        self._look()
        return True

    def abort(self, request: Request) -> None:
        """Nobody waits for a request; its batch is stopped when that is so of all its answers."""
        request.abandoned = True
        batch = self._serving[request.server]
        if batch is not None and all(one.abandoned for one in batch.members):
            self._instances[request.server].abort(batch)

    def begun(self, server: int) -> int:
        """How many requests of a server are in service; they stand before the others."""
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
        for server in range(len(self._instances)):
            self._ask(server)

    async def drain(self, limit_s: float) -> list[Request]:
        """Run what waits, as far as the limit allows; what was left, which stands nowhere now."""
        self.flush()
        self._idle = asyncio.Event()
        self._look()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        waiting = [one for queue in self._queues for one in queue]
        return [request for request in waiting if self.cancel(request)]

    def _look(self) -> None:
        if self._idle is not None and not any(self._serving) and not any(self._queues):
            self._idle.set()

    def _ask(self, server: int) -> None:
        queue = self._queues[server]
        if self._serving[server] is not None or not queue:
            return
        gone: list[tuple[Request, bool]] = []
        if queue[0].alone:
            take = 1
        else:
            rule = self._rules[server]
            if self._pulls:
                drop, take = self._servers.ask(server)
            else:
                drop, take = 0, 1 if rule is None else rule.take(len(queue))
            for _ in range(min(drop, len(queue))):
                gone.append((queue[0], False))
                self._servers.take_back(queue[0])
            while queue and self._servers.late(queue[0]):
                gone.append((queue[0], True))
                self._servers.take_back(queue[0])
            if self._flushing and take <= 0:
                take = len(queue)
        members = self._first(server, take)
        if members:
            for request in members:
                request.untime()
            self._servers.begin(server, len(members))
            self._serving[server] = batch = RequestBatch(server, members)
            self._instances[server].put(batch)
        elif queue:
            self._servers.begin(server, 0)
        # Told last: whoever hears of it may send the next request at once.
        for request, late in gone:
            self._servers.dropped(request, late)

    def _first(self, server: int, take: int) -> list[Request]:
        """Those at the head of the queue that make the largest batch offered."""
        queue = self._queues[server]
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
