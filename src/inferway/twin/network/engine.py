"""The clock of the event twin: requests enter, are decided, travel, wait, are served, come back.

Every decision is the dispatcher's, compiled code that the live node calls too; the loop around it
is Python, with a heap of (time, number, function, argument).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from inferway.site.view import ACCEPT, ALL_CLASSES, HOLD
from inferway.twin.network.ledger import Ledger
from inferway.twin.network.nodes import NetworkRequest, NodePool, NodePools, NodeServer, Terrain

_AGREE = 1e-6


class InvariantError(AssertionError):
    """Counts or times of a run that do not add up: the twin itself is wrong."""


class Engine:
    """Runs events in the order of their times; equal times in the order in which they were set."""

    def __init__(self, terrain: Terrain, pools: NodePools, ledger: Ledger) -> None:
        self.now_s = 0.0
        self._terrain, self._pools, self._ledger = terrain, pools, ledger
        self._by = pools.by
        self._number = count()
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.after(np.inf, lambda _: None, None)  # so that there is always one to come
        self._counted_s = 0.0
        self._in_system = 0
        self._draining = False
        kinds = [terrain.kinds[task] for _, task in terrain.entry]
        self._patience_s = [np.inf if one.deadline_s is None else one.deadline_s for one in kinds]

    def after(self, wait_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call a function in so many seconds."""
        heappush(self._heap, (self.now_s + wait_s, next(self._number), call, argument))

    def run(self, times: Sequence[float], kinds: Sequence[int], draws: Sequence[int]) -> None:
        """Let requests enter at their times, and everything happen that happens in between."""
        heap, pop = self._heap, heappop
        by, entry, patience = self._by, self._terrain.entry, self._patience_s
        slot, decide = self._ledger.slot, self._decide
        for time_s, kind, draw in zip(times, kinds, draws, strict=True):
            while heap[0][0] <= time_s:
                self.now_s, _, call, argument = pop(heap)
                call(argument)
            self.now_s = time_s
            self._change(1)
            request = NetworkRequest(kind, time_s, slot, time_s + patience[kind], draw)
            decide(request, by[entry[kind]], ALL_CLASSES)
        self._ledger.entered += len(times)

    def until(self, end_s: float) -> None:
        """Let everything happen up to a time, which is included."""
        heap = self._heap
        while heap[0][0] <= end_s:
            self.now_s, _, call, argument = heappop(heap)
            call(argument)
        self.now_s = end_s

    def drain(self) -> None:
        """Let everything happen that is still to happen; nobody waits for a larger batch."""
        end_s = self.now_s
        self._draining = True
        for pool in self._by.values():
            self.flush(pool)
        while len(self._heap) > 1:
            self.now_s, _, call, argument = heappop(self._heap)
            call(argument)
        self._ledger.until_s = max(end_s, self._counted_s)

    def check(self) -> None:
        """Check flow balance and Little's law at the end; InvariantError where they do not hold."""
        ledger, served = self._ledger, sum(self._pools.served)
        wrong = ""
        if ledger.entered != ledger.answered + ledger.lost or self._in_system:
            wrong = (
                f"{ledger.entered} requests entered, {ledger.answered} were answered and "
                f"{ledger.lost} lost, and {self._in_system} are still there"
            )
        elif served != ledger.answered + ledger.unsent:
            wrong = (
                f"{served} requests were served, and {ledger.answered} answered; of "
                f"{ledger.unsent} a second time for nothing, or in vain the first"
            )
        elif abs(ledger.area - ledger.sojourn_s) > _AGREE * max(ledger.sojourn_s, 1e-3):
            wrong = (
                f"the number of requests over time adds up to {ledger.area:.9g} s, their times to "
                f"{ledger.sojourn_s:.9g} s"
            )
        for pool in self._by.values():
            left = int(pool.dispatcher.site.queue.sum())
            if left or pool.in_flight:
                wrong = wrong or (
                    f"{left} requests stand at node {self._terrain.network.nodes[pool.node]} in "
                    f"the end, and {pool.in_flight} are counted"
                )
        if wrong:
            raise InvariantError(wrong)

    def _change(self, by: int) -> None:
        self._ledger.area += self._in_system * (self.now_s - self._counted_s)
        self._counted_s = self.now_s
        self._in_system += by

    def _decide(
        self, request: NetworkRequest, pool: NodePool, classes: int, *, taken: bool = False
    ) -> None:
        """Have the entry's dispatcher choose, and give the request to the server.

        One that was taken before is not refused for want of time elsewhere.
        """
        arrive, now_s = pool.dispatcher.arrive, self.now_s
        index = arrive(now_s, request.draw, request.deadline_s, 0.0, 0, classes, 1, True)
        if taken and index < 0:
            index = arrive(now_s, request.draw, np.inf, 0.0, 0, classes, 1, True)
        if index < 0:
            if index == HOLD:
                raise ValueError(
                    f"policy {pool.dispatcher.policy_name} holds requests in a central queue, "
                    "which nodes of a network do not have"
                )
            self._lose(request)
            return
        server = pool.servers[index]
        request.server = server
        if pool.settles:
            request.credit, request.classes = pool.dispatcher.credit, classes
        self._put(server, request)

    def _put(self, server: NodeServer, request: NetworkRequest) -> None:
        server.pool.in_flight += 1
        request.came_s = self.now_s
        if server.busy is None and not server.pool.batches:
            self._begin(server, request)
            return
        server.queue.append(request)
        if server.pool.batches:
            self._take(server)

    def _take(self, server: NodeServer) -> None:
        """Begin what a free server takes of its queue; below the smallest batch it waits for more.

        As live: a policy with `pull` says what it drops and takes, else the file's rule.
        """
        queue, pool, now_s = server.queue, server.pool, self.now_s
        if server.busy is not None or not queue:
            return
        rule, pulls = server.rule, pool.dispatcher.pulls
        drop, take = 0, 0 if len(queue) < rule.smallest else rule.largest
        if pulls:
            drop, take = pool.dispatcher.pull(server.index, now_s, ~queue[0].draw)
        for _ in range(min(drop, len(queue))):
            self._drop(server, queue.popleft())
        while queue and pool.drops and queue[0].deadline_s < now_s:
            self._drop(server, queue.popleft())
        hurried = self._draining or pool.heir is not None
        if take <= 0 and hurried:
            take = len(queue)
        take, until_s = min(take, len(queue)), -np.inf
        fitting = rule.rounded(take)
        if fitting and not pulls:
            form, latest_s = partial(pool.dispatcher.form, server.index), np.inf
            if pool.drops:
                latest_s = queue[0].deadline_s
            batch, until_s = rule.form(form, take, now_s, queue[0].came_s, latest_s)
            fitting = batch.rows
        if until_s > now_s and not hurried:
            pool.dispatcher.begin(server.index, 0, now_s)
            self.after(until_s - now_s, self._take, server)
        elif fitting:
            server.members = [queue.popleft() for _ in range(fitting)]
            pool.dispatcher.begin(server.index, fitting, now_s)
            self._begin(server, server.members[0])
        elif queue:
            pool.dispatcher.begin(server.index, 0, now_s)
            if pool.drops and np.isfinite(queue[0].deadline_s):
                self.after(queue[0].deadline_s - now_s, self._expire, (server, queue[0]))

    def _expire(self, waiting: tuple[NodeServer, NetworkRequest]) -> None:
        server, request = waiting
        if server.busy is None and server.queue and server.queue[0] is request:
            self._drop(server, server.queue.popleft())
            self._take(server)
            self._look(server.pool)

    def flush(self, pool: NodePool) -> None:
        """Let nobody wait for requests that will not come."""
        if pool.batches:
            for server in pool.servers:
                self._take(server)

    def move_out(self, resting: Iterable[NodeServer]) -> None:
        """Decide anew on what servers have queued that get nothing more; the rest still ends."""
        for server in resting:
            queued, server.queue = list(server.queue), deque()
            for request in queued:
                position = max(1, len(server.members)) if server.busy is not None else 0
                server.pool.in_flight -= 1
                if request.hand is not None:
                    self._fall_back(server, position, request)
                    continue
                server.pool.withdraw(server, position, self.now_s, True)
                now = self._by[server.pool.node, server.pool.task]
                self._decide(request, now, ALL_CLASSES, taken=True)

    def _begin(self, server: NodeServer, request: NetworkRequest) -> None:
        server.busy = request
        if server.times is None:
            server.began_s = self.now_s
            self.after(server.half_s, self._reach, server)
        else:
            server.service_s = server.times.next(len(server.members) or 1)
            self.after(server.service_s, self._finish, server)

    def _reach(self, server: NodeServer) -> None:
        request = server.busy
        model = self._terrain.models[server.model]
        pool = self._by.get((model.node, model.task))
        if pool is not None and (mask := pool.masks.get(model.variant, 0)):
            index = pool.dispatcher.arrive(
                self.now_s, ~request.draw, request.deadline_s, 0.0, 0, mask, 1, False
            )
            if index >= 0:
                request.there = there = pool.servers[index]
                self._put(there, request)
                return
        self.after(server.half_s, self._refused, server)

    def _finish(self, server: NodeServer) -> None:
        members = server.members
        if not members:
            self._served_one(server, server.busy, 0)
        for place, request in enumerate(members):
            # The whole batch is measured once.
            self._served_one(server, request, -1 if place else len(members))
        self._next(server)

    def _served_one(self, server: NodeServer, request: NetworkRequest, measured: int) -> None:
        """The first request at a server has been served, in a run of so many."""
        self._pools.served[server.model] += 1
        took, service_s = self._pools.took[server.model], server.service_s
        took[0] += 1.0
        took[1] += service_s
        took[2] += max(self.now_s - service_s - request.came_s, 0.0)
        if measured >= 0:
            took[3] += service_s
        if request.there is server:
            server.pool.dispatcher.finish(server.index, self.now_s, server.service_s, measured)
            self.after(request.server.half_s, self._answer, request.server)
        else:
            self._pools.for_clients[server.pool.node][server.model] += 1
            self._settle(server, request, server.service_s, measured)

    def _answer(self, server: NodeServer) -> None:
        self._settle(server, server.busy, self.now_s - server.began_s, 0)
        self._next(server)

    def _settle(
        self, server: NodeServer, request: NetworkRequest, service_s: float, measured: int
    ) -> None:
        """An answer has come to the entry: it is sent, or kept while another server is asked."""
        pool, ledger, now_s = server.pool, self._ledger, self.now_s
        if request.sent:  # the first one, when the deadline passed
            pool.fall_back(server, 0, request, now_s)
            ledger.unsent += 1
            return
        to = pool.settle(server, request, now_s) if pool.settles else ACCEPT
        pool.dispatcher.finish(server.index, now_s, service_s, measured)
        if to >= 0:
            request.hand, request.worth = server, pool.dispatcher.in_hand
            request.there, request.server = None, pool.servers[to]
            self._put(request.server, request)
            if request.deadline_s < np.inf:
                due = max(now_s, request.deadline_s), next(self._number)
                heappush(self._heap, (*due, self._send_in_time, request))
            return
        if request.hand is not None:
            ledger.ask_again(request.hand.model, server.model)
            request.hand = None
        self._change(-1)
        ledger.answer(request, server.model, now_s, request.credit if pool.settles else None)

    def _send_in_time(self, request: NetworkRequest) -> None:
        """Send the answer in hand at a request's deadline, wherever the second one is."""
        server = request.server
        if request.hand is None or request.sent:
            return
        if request in server.queue:
            position = server.queue.index(request)
            if server.busy is not None:
                position += max(1, len(server.members))
            server.queue.remove(request)
            server.pool.in_flight -= 1
            self._fall_back(server, position, request)
            if server.busy is None and server.queue:
                server.pool.dispatcher.begin(server.index, 0, self.now_s)
            self._look(server.pool)
        else:  # its place is freed when what is under way has ended
            self._send_first(request)

    def _fall_back(self, server: NodeServer, position: int, request: NetworkRequest) -> None:
        """The second server has nothing for a request: the answer in hand is sent."""
        server.pool.fall_back(server, position, request, self.now_s)
        if not request.sent:
            self._send_first(request)

    def _send_first(self, request: NetworkRequest) -> None:
        assert request.hand is not None
        request.sent = True
        self._change(-1)
        self._ledger.answer(request, request.hand.model, self.now_s, request.worth)

    def _refused(self, server: NodeServer) -> None:
        """A forwarded request is back without an answer: another class gets it, once."""
        request = server.busy
        request.there = None
        pool = server.pool
        if request.hand is not None:
            self._fall_back(server, 0, request)
            self._next(server)
            return
        pool.withdraw(server, 0, self.now_s, True)
        self._next(server)
        if request.refused or self.now_s > request.deadline_s:
            self._lose(request)
            return
        request.refused = True
        self._ledger.retried += 1
        # The pool of now, where the offer may be gone; its class, if it is still there, is not.
        now = self._by[pool.node, pool.task]
        name, variants = pool.dispatcher.fleet.variants[server.key], now.dispatcher.fleet.variants
        classes = ~(1 << variants.index(name)) if name in variants else ALL_CLASSES
        self._decide(request, now, classes)

    def _next(self, server: NodeServer) -> None:
        pool = server.pool
        pool.in_flight -= len(server.members) or 1
        server.busy, server.members = None, []
        queue = server.queue
        if pool.batches:
            self._take(server)
        else:
            while queue:
                request = queue.popleft()
                if not (pool.drops and request.deadline_s < self.now_s):
                    self._begin(server, request)
                    break
                self._drop(server, request)
        self._look(pool)

    def _drop(self, server: NodeServer, request: NetworkRequest) -> None:
        forwarded = request.there is server
        server.pool.in_flight -= 1
        if request.hand is not None and not forwarded:
            self._fall_back(server, 0, request)
            return
        server.pool.withdraw(server, 0, self.now_s, not forwarded)
        if forwarded:
            request.refused = True  # too late for another one
            self.after(request.server.half_s, self._refused, request.server)
        else:
            self._lose(request)

    def _look(self, pool: NodePool) -> None:
        """Say when a pool that was replaced has answered its last request."""
        if pool.heir is not None and not pool.in_flight and pool.gone is not None:
            gone, pool.gone = pool.gone, None
            gone()

    def _lose(self, request: NetworkRequest) -> None:
        self._change(-1)
        self._ledger.lose(request, self.now_s)
