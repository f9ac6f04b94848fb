"""Batches: what a server takes when it falls free, by the policy or by the file's rule."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from inferway.live.desk import Desk
from inferway.live.instance import Instance
from inferway.live.request import Batch, Request, fit

if TYPE_CHECKING:
    from inferway.dispatch.batching import Rule


class Batching:
    """Requests wait here and not at the instances, each of which has one batch at most.

    A free server is asked what it takes when a request comes to it and when it falls free. What it
    takes is rounded down to a size that its class offers, counted in rows.

    Parameters
    ----------
    instances
        One per server.
    queues
        What each server holds, those in service first.
    desk
        Asks the policy, and undoes decisions.
    rules
        By class: the sizes offered, and how batches are formed where the policy does not say; None
        where requests are run one at a time.
    class_of
        Class of each server.
    pulls
        Whether the policy says.
    mixed
        Whether requests of a task may differ in more than their first axis.
    late
        Whether a request's deadline has passed and it is not to be run.
    dropped
        Told each request that leaves so, with True, or that the policy drops, with False; it stands
        in no queue then.
    untime
        Told each request that will not wait any longer.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        queues: Sequence[deque[Request]],
        desk: Desk,
        rules: Sequence[Rule] | None,
        class_of: Sequence[int],
        *,
        pulls: bool,
        mixed: bool,
        late: Callable[[Request], bool],
        dropped: Callable[[Request, bool], None],
        untime: Callable[[Request], None],
    ) -> None:
        self._instances, self._queues, self._desk = instances, queues, desk
        self._rules = [None if rules is None else rules[k] for k in class_of]
        self._pulls, self._mixed, self._late = pulls, mixed, late
        self._dropped, self._untime = dropped, untime
        self._serving: list[Batch | None] = [None] * len(instances)
        self._flushing = False
        self._idle: asyncio.Event | None = None

    def hand(self, request: Request) -> bool:
        """As `Service.hand`."""
        self._ask(request.server)
        if request.outcome is not None or request.server < 0:
            return False
        batch = self._serving[request.server]
        return batch is None or request not in batch.members

    def recall(self, request: Request) -> bool:
        """As `Service.recall`; a batch that has not begun goes on without the request."""
        if request.outcome is not None:
            return False  # it has ended, or is about to
        server = request.server
        batch = self._serving[server]
        if batch is not None and request in batch.members:
            if not self._instances[server].cancel(batch):
                return False
            batch.members.remove(request)
            self._desk.take_back(request)
            if batch.members:
                self._desk.begin(server, len(batch.members))
                self._instances[server].put(batch)
            else:
                self._serving[server] = None
                self._ask(server)
            return True
        self._desk.take_back(request)
        if batch is None and self._queues[server]:
            self._desk.begin(server, 0)
        self._look()
        return True

    def abandon(self, request: Request) -> None:
        """As `Service.abandon`; a batch is stopped when nobody waits for any of its answers."""
        request.abandoned = True
        batch = self._serving[request.server]
        if batch is not None and all(one.abandoned for one in batch.members):
            batch.abandoned = True
            if batch.call is not None:
                batch.call.terminate = True

    def begun(self, server: int) -> int:
        """As `Service.begun`."""
        batch = self._serving[server]
        return 0 if batch is None else len(batch.members)

    def settled(self, batch: Batch) -> None:
        """Let the server of a batch whose members have left, or wait again, take the next."""
        self._serving[batch.server] = None
        self._ask(batch.server)
        self._look()

    def flush(self) -> None:
        """As `Service.flush`: from now on a server takes what there is."""
        self._flushing = True
        for server in range(len(self._instances)):
            self._ask(server)

    async def end(self, limit_s: float) -> list[Request]:
        """As `Service.end`."""
        self.flush()
        self._idle = asyncio.Event()
        self._look()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        waiting = [one for queue in self._queues for one in queue]
        return [request for request in waiting if self.recall(request)]

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
                drop, take = self._desk.pull(server)
            else:
                drop, take = 0, 1 if rule is None else rule.take(len(queue))
            for _ in range(min(drop, len(queue))):
                gone.append((queue[0], False))
                self._desk.take_back(queue[0])
            while queue and self._late(queue[0]):
                gone.append((queue[0], True))
                self._desk.take_back(queue[0])
            if self._flushing and take <= 0:
                take = len(queue)
        members = self._first(server, take)
        if members:
            for request in members:
                self._untime(request)
            self._desk.begin(server, len(members))
            self._serving[server] = batch = Batch(server, members)
            self._instances[server].put(batch)
        elif queue:
            self._desk.begin(server, 0)
        # Told last: whoever hears of it may send the next request at once.
        for request, late in gone:
            self._dropped(request, late)

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
