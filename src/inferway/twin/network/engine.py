"""The clock of the event twin: requests enter, are decided, travel, wait, are served, come back.

Every decision is the dispatcher's, compiled code that the live node calls too; the loop around it
is Python, with a heap of (time, number, function, argument).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from inferway.site.view import ALL_CLASSES, HOLD
from inferway.twin.network.ledger import Ledger
from inferway.twin.network.site import Request, Server, Site
from inferway.twin.network.sites import Sites
from inferway.twin.network.terrain import Terrain

_AGREE = 1e-6


class InvariantError(AssertionError):
    """Counts or times of a run that do not add up: the twin itself is wrong."""


class Engine:
    """Runs events in the order of their times; equal times in the order in which they were set.

    Parameters
    ----------
    terrain
        The nodes.
    ledger
        What adds the run up.
    """

    def __init__(self, terrain: Terrain, ledger: Ledger) -> None:
        network = terrain.network
        self.now_s = 0.0
        self._ledger = ledger
        self._number = count()
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        heappush(self._heap, (np.inf, next(self._number), _nothing, None))
        self._counted_s = 0.0
        self._in_system = 0
        self._terrain = terrain
        self._entry = [
            (int(network.paths.node[network.paths.first[path]]), int(task))
            for path, task in zip(network.requests.path, network.requests.task, strict=True)
        ]
        self._patience_s = [
            np.inf if kind.deadline_s is None else kind.deadline_s
            for kind in (terrain.kinds[int(task)] for task in network.requests.task)
        ]
        self._by: dict[tuple[int, int], Site] = {}
        self._served: list[int] = []

    def attach(self, sites: Sites) -> None:
        """Send requests to these sites."""
        self._by, self._served = sites.by, sites.served

    def after(self, wait_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call a function in so many seconds."""
        heappush(self._heap, (self.now_s + wait_s, next(self._number), call, argument))

    def run(self, times: Sequence[float], kinds: Sequence[int], draws: Sequence[int]) -> None:
        """Let requests enter at their times, and everything happen that happens in between."""
        heap, pop = self._heap, heappop
        by, entry, patience = self._by, self._entry, self._patience_s
        slot, decide = self._ledger.slot, self._decide
        for time_s, kind, draw in zip(times, kinds, draws, strict=True):
            while heap[0][0] <= time_s:
                self.now_s, _, call, argument = pop(heap)
                call(argument)
            self.now_s = time_s
            self._change(1)
            request = Request(kind, time_s, slot, time_s + patience[kind], draw)
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
        """Let everything happen that is still to happen."""
        end_s = self.now_s
        while len(self._heap) > 1:
            self.now_s, _, call, argument = heappop(self._heap)
            call(argument)
        self._ledger.until_s = max(end_s, self._counted_s)

    def check(self) -> None:
        """Check flow balance and Little's law at the end.

        Raises
        ------
        InvariantError
            Where they do not hold.
        """
        ledger = self._ledger
        if ledger.entered != ledger.answered + ledger.lost or self._in_system:
            raise InvariantError(
                f"{ledger.entered} requests entered, {ledger.answered} were answered and "
                f"{ledger.lost} lost, and {self._in_system} are still there"
            )
        if sum(self._served) != ledger.answered:
            raise InvariantError(
                f"{sum(self._served)} requests were served, and {ledger.answered} answered"
            )
        if abs(ledger.area - ledger.sojourn_s) > _AGREE * max(ledger.sojourn_s, 1e-3):
            raise InvariantError(
                f"the number of requests over time adds up to {ledger.area:.9g} s, their times to "
                f"{ledger.sojourn_s:.9g} s"
            )
        for site in self._by.values():
            left = int(site.dispatcher.site.queue.sum())
            if left or site.in_flight:
                raise InvariantError(
                    f"{left} requests stand at node {self._terrain.nodes[site.node].name} in the "
                    f"end, and {site.in_flight} are counted"
                )

    def _change(self, by: int) -> None:
        """So many requests more are in the network from now on."""
        self._ledger.area += self._in_system * (self.now_s - self._counted_s)
        self._counted_s = self.now_s
        self._in_system += by

    def _decide(self, request: Request, site: Site, classes: int) -> None:
        """Have the entry's dispatcher choose, and give the request to the server."""
        index = site.dispatcher.arrive(
            self.now_s, request.draw, request.deadline_s, 0.0, 0, classes, 1, True
        )
        if index < 0:
            if index == HOLD:
                raise ValueError(
                    f"policy {site.dispatcher.policy_name} holds requests in a central queue, "
                    "which nodes of a network do not have"
                )
            self._lose(request)
            return
        server = site.servers[index]
        request.server = server
        site.in_flight += 1
        if server.busy is None:
            self._begin(server, request)
        else:
            server.queue.append(request)

    def _begin(self, server: Server, request: Request) -> None:
        server.busy = request
        now_s = self.now_s
        times = server.times
        if times is None:
            server.began_s = now_s
            heappush(self._heap, (now_s + server.half_s, next(self._number), self._reach, server))
        else:
            server.service_s = service_s = times.next()
            heappush(self._heap, (now_s + service_s, next(self._number), self._finish, server))

    def _reach(self, server: Server) -> None:
        """A forwarded request comes to the node that was chosen for it."""
        request = server.busy
        assert request is not None
        offer = server.offer
        assert offer is not None
        model = self._terrain.models[server.model]
        site = self._by.get((model.node, model.task))
        mask = 0 if site is None else site.masks.get(model.variant, 0)
        if mask:
            assert site is not None
            index = site.dispatcher.arrive(
                self.now_s, ~request.draw, request.deadline_s, 0.0, 0, mask, 1, False
            )
            if index >= 0:
                there = site.servers[index]
                request.there = there
                site.in_flight += 1
                if there.busy is None:
                    self._begin(there, request)
                else:
                    there.queue.append(request)
                return
        self.after(server.half_s, self._refused, server)

    def _finish(self, server: Server) -> None:
        """An instance has served its request."""
        request = server.busy
        assert request is not None
        site = server.site
        site.dispatcher.finish(server.index, self.now_s, server.service_s)
        self._served[server.model] += 1
        if request.there is server:
            entry = request.server
            heappush(
                self._heap,
                (self.now_s + entry.half_s, next(self._number), self._answer, entry),
            )
        else:
            self._change(-1)
            self._ledger.answer(request, server.model, self.now_s)
        self._next(server)

    def _answer(self, server: Server) -> None:
        """The answer of a forwarded request is back at its entry."""
        request = server.busy
        assert request is not None
        now_s = self.now_s
        server.site.dispatcher.finish(server.index, now_s, now_s - server.began_s)
        self._change(-1)
        self._ledger.answer(request, server.model, now_s)
        self._next(server)

    def _refused(self, server: Server) -> None:
        """A forwarded request is back without an answer: another class gets it, once."""
        request = server.busy
        assert request is not None
        request.there = None
        site = server.site
        site.withdraw(server, 0, self.now_s, True)
        self._next(server)
        if request.refused or self.now_s > request.deadline_s:
            self._lose(request)
            return
        request.refused = True
        self._ledger.retried += 1
        # The site of now, where the offer may be gone; its class, if it is still there, is not.
        now = self._by[site.node, site.task]
        name = site.dispatcher.fleet.variants[server.key]
        classes = ALL_CLASSES
        if name in now.dispatcher.fleet.variants:
            classes = ~(1 << now.dispatcher.fleet.variants.index(name))
        self._decide(request, now, classes)

    def _next(self, server: Server) -> None:
        """The server's request has left; the next in its queue is begun, if it is not too late."""
        site = server.site
        site.in_flight -= 1
        server.busy = None
        queue = server.queue
        while queue:
            request = queue.popleft()
            if site.drops and request.deadline_s < self.now_s:
                forwarded = request.there is server
                site.withdraw(server, 0, self.now_s, not forwarded)
                site.in_flight -= 1
                if forwarded:
                    request.refused = True  # too late for another one
                    self.after(request.server.half_s, self._refused, request.server)
                else:
                    self._lose(request)
                continue
            self._begin(server, request)
            break
        if site.heir is not None and not site.in_flight and site.gone is not None:
            gone, site.gone = site.gone, None
            gone()

    def _lose(self, request: Request) -> None:
        self._change(-1)
        self._ledger.lose(request, self.now_s)


def _nothing(_: Any) -> None:
    return None
