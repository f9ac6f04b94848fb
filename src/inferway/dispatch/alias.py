"""Alias: each request to a server at random, by probabilities that a scheduler sets.

[Tan24], Sec. 3.1.4, with the alias method that it names: one look-up whatever the number of
servers (`inferway.dispatch.alias`). A request drawn for a full server is lost, as in the
paper. Departures: one drawn for a server that has failed is drawn again among the others, and one
that may not use every server, since its deadline, pin or floor forbids some, is drawn among those
that it may.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from inferway.deployment.errors import refuse
from inferway.deployment.section import Name
from inferway.deployment.units import Ratio
from inferway.dispatch.deadline import Deadline
from inferway.site import REJECT, Event, Fleet, Request, Site, uniform
from inferway.site.compiled import entry, jit
from inferway.site.view import Floats, Ints

_ROUNDING = 1e-6  # How far from 1 probabilities may sum: float32 networks round so much


def _sum_to_one(given: dict[str, float]) -> dict[str, float]:
    if abs(sum(given.values()) - 1.0) > _ROUNDING:
        raise refuse(f"sum to {sum(given.values()):.6g}, not to 1")
    return given


@jit
def tabulate(probabilities: Floats, threshold: Floats, other: Ints) -> None:
    """Write the alias table of (n,) numbers at least 0, which are divided by their sum.

    An index from any discrete distribution in constant time (Kronmal and Peterson, The American
    Statistician 33(4), 1979, doi 10.1080/00031305.1979.10482697): a uniform number u in [0, n)
    stands for index i = floor(u) where u - i < threshold[i], and else for other[i].
    """
    n = probabilities.size
    total = 0.0
    for i in range(n):
        total += probabilities[i]
    for i in range(n):
        threshold[i] = probabilities[i] * n / total
        other[i] = i
    rich = _next_rich(threshold, 0)
    for first in range(n):
        if threshold[first] >= 1.0:
            continue
        poor = first
        while rich < n:
            other[poor] = rich
            threshold[rich] -= 1.0 - threshold[poor]
            if threshold[rich] >= 1.0:
                break
            # It has become poor itself: its turn comes, or has been and it is filled now.
            poor, rich = rich, _next_rich(threshold, rich + 1)
            if poor > first:
                break


@jit
def _next_rich(threshold: Floats, start: int) -> int:
    while start < threshold.size and threshold[start] <= 1.0:
        start += 1
    return start


class Alias(NamedTuple):
    """Probabilistic routing over n servers of K classes, and how each class batches."""

    threshold: Floats  # (n,) in 0..1; below it column i means server i
    other: Ints  # (n,) the server that column i means above it
    probabilities: Floats  # (n,) as they were set
    smallest: Ints  # (K,) waiting requests below which a free server waits for more
    largest: Ints  # (K,) most requests in a batch

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        probabilities: Annotated[
            Annotated[dict[Name, Ratio], Field(min_length=1), AfterValidator(_sum_to_one)] | None,
            Field(
                description="By variant, split evenly over its instances; in proportion to service "
                "rates if not given."
            ),
        ] = None,
    ) -> Alias:
        """Begin without batches.

        ValueError for a variant that the fleet has not, or what are no probabilities.
        """
        if probabilities is None:
            share = fleet.capacity / fleet.capacity.sum()
        else:
            share = np.zeros(len(fleet.variants))
            for variant, probability in probabilities.items():
                if variant not in fleet.variants:
                    raise ValueError(
                        f"probabilities of {variant}, which is none of the classes "
                        f"{', '.join(fleet.variants)}"
                    )
                share[fleet.variants.index(variant)] = probability
        servers, classes = fleet.servers, len(fleet.variants)
        made = cls(
            threshold=np.ones(servers),
            other=np.arange(servers, dtype=np.int64),
            probabilities=np.zeros(servers),
            smallest=np.ones(classes, np.int64),
            largest=np.ones(classes, np.int64),
        )
        set_routing(made, np.repeat(share / fleet.count, fleet.count))
        return made

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The server of the column drawn, or its other."""
        u = uniform(draw, 0) * self.threshold.size
        server = int(u)
        if u - server >= self.threshold[server]:
            server = self.other[server]
        if request.narrowed:
            return among(self.probabilities, request.allowed, uniform(draw, 1))
        if not site.healthy[server]:
            server = among(self.probabilities, site.healthy, uniform(draw, 1))
        return server if server >= 0 and site.open[server] else REJECT

    def pull(self, site: Site, server: int, draw: int) -> tuple[int, int]:
        """Number of those waiting at a free server that make its next batch ([Tan24], Sec. 5.2.2).

        None below the smallest batch; the world rounds down to a size that the class offers.
        """
        k = site.server_class[server]
        waiting = site.queue[server]
        return 0, 0 if waiting < self.smallest[k] else min(waiting, self.largest[k])


@jit
def among(probabilities: np.ndarray, allowed: np.ndarray, u: float) -> int:
    """A server by these probabilities among those that are allowed; -1 where none is.

    Where they have probability 0 together, all of them alike.
    """
    total, count = 0.0, 0
    for server in range(probabilities.size):
        if allowed[server]:
            total += probabilities[server]
            count += 1
    alike = total <= 0.0
    left, chosen = u * (count if alike else total), -1
    for server in range(probabilities.size):
        weight = 1.0 if alike else probabilities[server]
        if allowed[server] and weight > 0.0:
            chosen = server
            left -= weight
            if left < 0.0:
                break
    return chosen


def set_routing(
    alias: Any,
    probabilities: Floats,
    smallest: Ints | None = None,
    largest: Ints | None = None,
) -> None:
    """Write (n,) probabilities, and (K,) batch sizes by class, into an alias policy's own arrays.

    ValueError where these are no probabilities or no batch sizes; nothing is written then.
    """
    given = np.asarray(probabilities, np.float64)
    servers = len(alias.probabilities)
    if given.shape != (servers,):
        raise ValueError(f"routing has {given.size} probabilities for {servers} servers")
    total = float(given.sum())
    if not (given >= 0.0).all() or not abs(total - 1.0) <= _ROUNDING:  # nan is none either
        raise ValueError(f"routing probabilities are 0 or more and sum to 1, not {given}")
    low = alias.smallest if smallest is None else np.asarray(smallest, np.int64)
    high = alias.largest if largest is None else np.asarray(largest, np.int64)
    if low.shape != alias.smallest.shape or high.shape != alias.largest.shape:
        raise ValueError(
            f"{low.size} and {high.size} batch sizes for {alias.smallest.size} classes"
        )
    if (low < 1).any() or (high < low).any():
        raise ValueError(
            f"batches of {low} to {high}: the smallest is 1 or more, not over the largest"
        )
    np.divide(given, total, out=alias.probabilities)
    alias.smallest[:], alias.largest[:] = low, high
    _fill_table(alias.probabilities, alias.threshold, alias.other)


_fill_table: Any = entry(getattr(tabulate, "py_func", tabulate))


# Their functions find by name the fields that they know.
_by_alias: Any = jit(Alias.choose)
_batch: Any = jit(Alias.pull)
_by_deadline: Any = jit(Deadline.choose)
_learn: Any = jit(Deadline.learn)


class Steered(NamedTuple):
    """`alias` while a scheduler sets its routing, `deadline` while none can: the memories of both.

    [Tan24], Sec. 6.3, trains a policy for each set of instances that faults may leave. Where a set
    has none, each request goes to the most accurate server predicted to be in time.
    """

    threshold: Floats
    other: Ints
    probabilities: Floats
    smallest: Ints
    largest: Ints
    order: Ints
    mean: Floats
    high: Floats
    seen: Ints
    margin: float
    gap_s: Floats
    again: Ints
    chances: Ints
    steered: Ints  # (1,) 1 while a scheduler sets the routing

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Steered:
        """Begin with `deadline`."""
        alias = Alias.build(fleet, target=target, rate_per_s=rate_per_s)
        deadline = Deadline.build(fleet, target=target, rate_per_s=rate_per_s)
        return cls._make((*alias, *deadline, np.zeros(1, np.int64)))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """As the one that decides now."""
        if self.steered[0] != 0:
            return _by_alias(self, site, request, draw)
        return _by_deadline(self, site, request, draw)

    def pull(self, site: Site, server: int, draw: int) -> tuple[int, int]:
        """Batches as the scheduler says; one by one where there is none."""
        return _batch(self, site, server, draw) if self.steered[0] != 0 else (0, 1)

    def learn(self, site: Site, event: Event) -> None:
        """Service times are learned all the time, so that `deadline` is ready."""
        _learn(self, site, event)
