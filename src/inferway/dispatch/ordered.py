"""Policies that know an order of the classes and nothing else: the fastest first, or the best.

`fastest-only` and `most-accurate-only` send every request to one class. Join the idle queue
([Anonymous], Fig. 1) takes higher accuracies first, or faster servers. [Tan24], Sec. 5.1.7, has one
queue for all servers, first come, first served (SQ), and early drop (HW-E).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from inferway.site import (
    HOLD,
    REJECT,
    Fleet,
    Request,
    Site,
    any_between,
    any_in,
    has_class,
    idle_in,
    predicted_service,
    shortest_in,
    uniform,
)
from inferway.site.view import Ints


def by_accuracy(fleet: Fleet) -> Ints:
    """(K,) classes, the most accurate first; equal accuracies by speed."""
    return np.argsort(-fleet.accuracy, kind="stable").astype(np.int64)


class MostAccurateOnly(NamedTuple):
    """To the shortest queue of the most accurate class that the request may use."""

    order: Ints  # (K,) classes, as they are preferred

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's accuracies."""
        return cls(by_accuracy(fleet))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class; REJECT where none of it takes the request."""
        for k in self.order:
            if has_class(request.classes, k):
                return shortest_in(site, request, k, uniform(draw, 0))
        return REJECT


class JiqAccurate(NamedTuple):
    """To an idle server of the most accurate class that has one, else to any server."""

    order: Ints  # (K,) classes, as they are preferred

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's accuracies."""
        return cls(by_accuracy(fleet))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server of the first class; where none is idle, one uniformly at random."""
        for k in self.order:
            server = idle_in(site, request, k)
            if server >= 0:
                return server
        return any_between(site, request, 0, site.queue.size, uniform(draw, 0))


class _Fastest:
    """The same with another order: least latency, whatever the accuracy."""

    __slots__ = ()

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's rates, in whose order it is."""
        return cls(np.arange(len(fleet.rate)))  # type: ignore[call-arg]


class FastestOnly(_Fastest, MostAccurateOnly):
    """To the shortest queue of the fastest class: the least latency, whatever the accuracy."""

    __slots__ = ()


class JiqFast(_Fastest, JiqAccurate):
    """To an idle server of the fastest class that has one, else to any server."""

    __slots__ = ()


class SingleQueue(NamedTuple):
    """To an idle server, else to the queue of all.

    A request that finds idle servers goes to one of the most accurate class among them: "if there
    are two idle model instances, ... the upcoming arrival will be served by the model instance of
    PNASNet". That is `ties: heavy`. The share of heavy services that the paper's Table 2 prints for
    the normal state, 52.65 %, does not follow from it; `ties: uniform` draws among all idle servers
    instead. Where a device is shared, and none is idle though no server has a request, it waits at
    a server, in the device's line.
    """

    order: Ints  # (K,) classes, most accurate first
    even: bool  # Whether all idle servers are alike

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        ties: Annotated[
            Literal["heavy", "uniform"],
            Field(
                description="Which of several idle instances: one of the most accurate variant, "
                "or any."
            ),
        ] = "heavy",
    ) -> SingleQueue:
        """By the fleet's accuracies.

        ValueError for another word than these.
        """
        if ties not in ("heavy", "uniform"):
            raise ValueError(f"ties are broken as heavy or uniform, not as {ties}")
        return cls(by_accuracy(fleet), ties == "uniform")

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server that may take the request; HOLD where others may once they are idle."""
        if self.even:
            idle = 0
            for server in range(site.queue.size):
                idle += site.queue[server] == 0 and request.allowed[server]
            wanted = int(uniform(draw, 0) * idle)
            for server in range(site.queue.size):
                if site.queue[server] == 0 and request.allowed[server]:
                    if wanted == 0:
                        return server
                    wanted -= 1
        else:
            for k in self.order:
                server = idle_in(site, request, k)
                if server >= 0:
                    return server
        if any_between(site, request, 0, site.queue.size, 0.0) < 0:
            return REJECT
        if site.queue.sum() > 0:
            return HOLD
        # Nobody will fall idle here: the device has to change, or others wait for it as well.
        for k in self.order:
            server = shortest_in(site, request, k, 0.0) if has_class(request.classes, k) else -1
            if server >= 0:
                return server
        return HOLD


class EarlyDrop(NamedTuple):
    """The most accurate class, and no service for nothing.

    Requests are routed evenly and at random, as by `hw`; a server that falls free drops from the
    head of its queue what cannot be answered in time, as Clockwork does, and so serves only what
    can.
    """

    order: Ints  # (K,) classes, most accurate first
    deadline_s: float  # From arrival; inf where there is none

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        deadline_s: float | None = None,
    ) -> EarlyDrop:
        """By the fleet's accuracies."""
        return cls(by_accuracy(fleet), np.inf if deadline_s is None else float(deadline_s))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Any server of the class; REJECT where the one drawn is full."""
        for k in self.order:
            if not has_class(request.classes, k):
                continue
            first, u = site.first[k], uniform(draw, 0)
            server = first + int(u * (site.first[k + 1] - first))
            if not request.narrowed and site.healthy[server] and not site.open[server]:
                return REJECT
            return any_in(site, request, k, u)
        return REJECT

    def pull(self, site: Site, server: int, draw: int) -> tuple[int, int]:
        """Drop those at the head that would be late if they were served now; then take one."""
        now_s, places = site.clock_s[0], site.arrived_s.shape[1]
        latest_s = self.deadline_s - predicted_service(site, server, 1)
        dropped = 0
        while dropped < site.queue[server]:
            place = (site.head[server] + dropped) % places
            if now_s - site.arrived_s[server, place] <= latest_s:
                break
            dropped += 1
        return dropped, 1
