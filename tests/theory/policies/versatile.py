"""A policy that uses all that a policy may: times, memory, holding back, batches, drops."""

from typing import NamedTuple

import numpy as np

from inferway.site import ACCEPT, HOLD, REJECT, predicted_service, predicted_wait, uniform

# Times are sums in another order here and there; what is equal in theory must stay so.
_SLACK = 1e-7


class Versatile(NamedTuple):
    """Every option is another habit; together they reach all that an engine does."""

    seen: np.ndarray
    """(4,) events by kind, and those with a wait."""
    told: np.ndarray
    """(1,) the arrival rate, 1/s."""
    mode: int
    """What is least: 0 the queue, 1 the predicted time of the answer, 2 a random number, 3 a
    number that depends on memory, 4 the age of the first request, 5 the server's number, or the
    greatest from 3 requests a second on."""
    hold: int
    """Hold a request back where every queue is as long as this; 0 never."""
    least: int
    """Wait for so many before a batch starts."""
    most: int
    """Of a batch."""
    stale_s: float
    """Drop the first ones that came longer ago; 0 never."""
    alone: float
    """How often a server takes a single request all the same."""

    @classmethod
    def build(
        cls,
        fleet,
        *,
        target,
        rate_per_s,
        mode=0,
        hold=0,
        least=1,
        most=1,
        stale_s=0.0,
        alone=0.2,
    ):
        told = np.array([rate_per_s or 0.0])
        return cls(np.zeros(4), told, mode, hold, least, most, stale_s, alone)

    def retune(self, fleet, *, target, rate_per_s):
        self.told[0] = rate_per_s

    def choose(self, site, request, draw):
        best, lowest, shortest = REJECT, np.inf, np.inf
        for server in range(site.queue.size):
            if not request.allowed[server]:
                continue
            shortest = min(shortest, site.queue[server])
            cost = float(site.queue[server])
            if self.mode == 1:
                cost = predicted_wait(site, server) + predicted_service(site, server, 1)
            elif self.mode == 2:
                cost = uniform(draw, server)
            elif self.mode == 3:
                cost = (self.seen.sum() + server) % site.queue.size
            elif self.mode == 4 and site.queue[server] > 0:
                cost = site.arrived_s[server, site.head[server]]
            elif self.mode == 5:
                cost = -1.0 * server if self.told[0] >= 3 else 1.0 * server
            if cost < lowest - _SLACK:
                best, lowest = server, cost
        return HOLD if 0 < self.hold <= shortest else best

    def learn(self, site, event):
        self.seen[event.kind] += 1
        if event.wait_s > _SLACK:
            self.seen[3] += 1

    def pull(self, site, server, draw):
        dropped = 0
        places = site.arrived_s.shape[1]
        if self.stale_s > 0:
            while dropped < site.queue[server]:
                place = (site.head[server] + dropped) % places
                if site.clock_s[0] - site.arrived_s[server, place] < self.stale_s - _SLACK:
                    break
                dropped += 1
        if site.queue[server] - dropped < self.least:
            return dropped, 0
        return dropped, 1 if uniform(draw, 7) < self.alone else self.most


class Patient(NamedTuple):
    """Holds back where all queues are long, and takes servers in turn by its memory; no `pull`."""

    seen: np.ndarray
    hold: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, hold=2):
        return cls(np.zeros(1), hold)

    def choose(self, site, request, draw):
        for step in range(site.queue.size):
            server = int(self.seen[0] + step) % site.queue.size
            if request.allowed[server] and site.queue[server] < self.hold:
                return server
        return HOLD

    def learn(self, site, event):
        self.seen[0] += 1


class Unsure(NamedTuple):
    """As `Versatile`, but answers are asked for again, for good reasons and for none."""

    seen: np.ndarray
    """(5,) events by kind, and those with a wait or an expected accuracy."""
    told: np.ndarray
    mode: int
    hold: int
    least: int
    most: int
    stale_s: float
    alone: float
    again: int
    """Of whom: 0 a server by lot, which may be of the class that has answered, 1 the one that gains
    most, 2 one that depends on memory."""

    @classmethod
    def build(
        cls,
        fleet,
        *,
        target,
        rate_per_s,
        mode=0,
        hold=0,
        least=1,
        most=1,
        stale_s=0.0,
        alone=0.2,
        again=0,
    ):
        told = np.array([rate_per_s or 0.0])
        return cls(np.zeros(5), told, mode, hold, least, most, stale_s, alone, again)

    choose, pull = Versatile.choose, Versatile.pull

    def learn(self, site, event):
        self.seen[event.kind] += 1 if event.counted else 2
        if event.wait_s > _SLACK or event.expected > 0.7:
            self.seen[4] += 1

    def settle(self, site, request, answer, draw):
        servers = site.queue.size
        if self.again == 0:
            return int(uniform(draw, 1) * servers) if uniform(draw, 0) < 0.7 else ACCEPT
        best, most = ACCEPT, answer.expected[site.server_class[answer.server]] + _SLACK
        for server in range(servers):
            worth = answer.expected[site.server_class[server]] - 0.01 * site.queue[server]
            if self.again == 2:
                worth = (self.seen.sum() + server) % (servers + 1)
            if request.allowed[server] and worth > most:
                best, most = server, worth + _SLACK
        return best
