"""The fleets of all nodes: one per task and node, made anew as copies and offers change.

A new pool takes over as live: it gets all requests from then on, and the old one answers what it
has. What was measured, the balance and what the policy has learned go along.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.dispatch.batching import Rule, least_s, most_per_s, rule_of
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.service_times import carry_over
from inferway.network.node import (
    Capability,
    ClientRates,
    FleetTerms,
    NodeFleet,
    TaskFleets,
    offered,
)
from inferway.network.offers import Offer, Own
from inferway.placement.contract import Allocation
from inferway.site.compiled import entry
from inferway.site.draw import streams
from inferway.site.view import Floats
from inferway.twin.kernel.service_times import Laws, draw, laws
from inferway.twin.network.terrain import Terrain

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, ServiceTime

_BLOCK: Final = 1024
_ALONE: Final = Rule()


class ServiceTimes:
    """An endless row of a variant's service times, drawn in blocks by the laws of the site's twin.

    Parameters
    ----------
    service
        The distribution.
    seed, number
        Which stream of random numbers.
    batch
        The times of batches, which are spread alike; None where none are formed.
    """

    def __init__(
        self, service: ServiceTime, seed: int, number: int, batch: Batch | None = None
    ) -> None:
        self._fixed = service.distribution == "deterministic"
        self._laws = laws([service], [batch])
        self._mean_s: list[float] = self._laws.batch_s[0].tolist()
        self._state = streams(seed, number, 1)
        self._block = np.empty(_BLOCK)
        self._left: list[float] = []

    def next(self, taken: int = 1) -> float:
        """Draw the next service time of so many requests in one run, s."""
        if self._fixed:
            return self._mean_s[taken]
        if not self._left:
            _fill(self._laws, self._state, self._block)
            self._left = self._block.tolist()
        alone_s = self._left.pop()
        return alone_s if taken == 1 else alone_s * self._mean_s[taken] / self._mean_s[1]


@entry
def _fill(laws: Laws, states: Any, found: Floats) -> None:
    state = states[0]
    for i in range(len(found)):
        time_s, state = draw(laws, 0, 1, state)
        found[i] = time_s
    states[0] = state


class NetworkRequest:
    """One request on its way."""

    __slots__ = ("deadline_s", "draw", "entered_s", "kind", "refused", "server", "slot", "there")

    def __init__(self, kind: int, entered_s: float, slot: int, deadline_s: float, draw: int):
        self.kind = kind
        """Its request type."""
        self.entered_s = entered_s
        self.slot = slot
        """In which it entered."""
        self.deadline_s = deadline_s
        self.draw = draw
        self.server: NodeServer
        """At its entry: an instance, or a virtual server that forwards."""
        self.there: NodeServer | None = None
        """Where it was forwarded to."""
        self.refused = False
        """Whether some node has refused it already."""


class NodeServer:
    """An instance, or a virtual server that forwards to where an offer says.

    `queue` holds those that wait behind `busy`, the first of the `members` in service together;
    `began_s` is when these were begun.
    """

    __slots__ = (
        "began_s",
        "busy",
        "half_s",
        "index",
        "key",
        "members",
        "model",
        "offer",
        "pool",
        "queue",
        "rule",
        "service_s",
        "times",
    )

    def __init__(self, pool: NodePool, index: int, key: int, offer: Offer | None) -> None:
        self.pool = pool
        self.index = index
        """Its number in the dispatcher."""
        self.key = key
        """Its class."""
        self.offer = offer
        self.half_s = 0.0 if offer is None else 0.5 * offer.rtt_s
        """The way there, s."""
        self.model = -1
        """Which of `Terrain.models` it is a copy of, or forwards to."""
        self.times: ServiceTimes | None = None
        self.rule = _ALONE
        """How it forms batches."""
        self.busy: NetworkRequest | None = None
        self.members: list[NetworkRequest] = []
        self.queue: deque[NetworkRequest] = deque()
        self.began_s = self.service_s = 0.0


class NodePool:
    """A dispatcher and its servers.

    Parameters
    ----------
    node, task
        Where it stands, as indices.
    fleet
        As `TaskFleets` made it.
    drops
        Whether requests whose deadline passes in a queue are dropped.
    """

    def __init__(self, node: int, task: int, fleet: NodeFleet, *, drops: bool) -> None:
        self.node, self.task, self.drops = node, task, drops
        self.dispatcher = dispatcher = fleet.dispatcher
        self.stands_for = fleet.stands_for
        rules = fleet.rules
        self.batches = rules is not None or dispatcher.pulls
        """Whether its servers are told what to take when they fall free."""
        self.servers: list[NodeServer] = []
        names, counts = dispatcher.fleet.variants, dispatcher.fleet.count
        for k, (count, offer) in enumerate(zip(counts, fleet.stands_for, strict=True)):
            for _ in range(int(count)):
                server = NodeServer(self, len(self.servers), k, offer)
                server.rule = rules[k] if rules is not None else _ALONE
                self.servers.append(server)
        self.masks = {
            name: 1 << k
            for k, (name, offer) in enumerate(zip(names, fleet.stands_for, strict=True))
            if offer is None
        }
        """By variant: the class of the node's own instances, as a mask."""
        self.in_flight = 0
        self._gone: frozenset[tuple[str, str]] = frozenset()
        self.heir: NodePool | None = None
        self.gone: Callable[[], None] | None = None
        """To be told when a pool that was replaced has answered its last request."""

    def inherit(self, old: NodePool, same: Iterable[str]) -> None:
        """Take over from the pool that stood here: what was measured of some classes, and more."""
        carry_over(self.dispatcher, old.dispatcher, same)
        self.dispatcher.site.balance[0] = old.dispatcher.balance
        _teach(self.dispatcher, old.dispatcher)
        old.heir = self

    def rest(self, gone: frozenset[tuple[str, str]], now_s: float) -> list[NodeServer]:
        """Send nothing to these offers, and to all others as they come; as live.

        Returns
        -------
        list of NodeServer
            Those that rest from now on; what they have queued is to be decided anew.
        """
        before, self._gone = self._gone, gone
        resting = []
        for server in self.servers:
            offer = server.offer
            key = None if offer is None else (offer.variant, offer.node)
            if (key in gone) != (key in before):
                self.dispatcher.mark(server.index, key not in gone, now_s)
                resting += [server] if key in gone else []
        return resting

    def withdraw(self, server: NodeServer, position: int, now_s: float, counted: bool) -> None:
        """Undo a dispatch; the balance of who has taken over since then too."""
        before = self.dispatcher.balance
        self.dispatcher.withdraw(server.index, position, now_s, counted)
        moved = self.dispatcher.balance - before
        heir = self.heir
        while heir is not None:
            heir.dispatcher.site.balance[0] += moved
            heir = heir.heir


def _teach(new: Dispatcher, old: Dispatcher) -> None:
    """Hand over what the policy has learned, where it is of the very same classes, as live."""
    if not hasattr(old.policy, "learn") or new.policy._fields != old.policy._fields:
        return
    if new.fleet.variants != old.fleet.variants or not (
        np.array_equal(new.fleet.rate, old.fleet.rate)
        and np.array_equal(new.fleet.accuracy, old.fleet.accuracy)
    ):
        return
    learned = [
        pair for pair in zip(new.policy, old.policy, strict=True) if isinstance(pair[0], np.ndarray)
    ]
    if all(mine.shape == theirs.shape for mine, theirs in learned):
        for mine, theirs in learned:
            mine[:] = theirs


class NodePools:
    """Makes and keeps the pools.

    Parameters
    ----------
    deployment
        Whose dispatch policies.
    terrain
        Its nodes.
    rates_per_s, peaks_per_s
        Mean arrival rate by entry node and task, and the most at any time, 1/s.
    offers
        What a node goes by, by task.
    seed
        Of the service times.
    measure
        Whether predictions follow the service times that are measured.
    """

    def __init__(
        self,
        deployment: Deployment,
        terrain: Terrain,
        rates_per_s: Mapping[tuple[int, int], float],
        peaks_per_s: Mapping[tuple[int, int], float],
        offers: Callable[[int], Mapping[str, list[Offer]]],
        *,
        seed: int,
        measure: bool,
    ) -> None:
        self._terrain, self._offers, self._measure = terrain, offers, measure
        self.running: list[set[int]] = [set() for _ in terrain.nodes]
        """Pairs whose copies take requests, by node."""
        self.going: list[set[int]] = [set() for _ in terrain.nodes]
        """Models that are offered no more, since all of their copies are to go, by node."""
        self.by: dict[tuple[int, int], NodePool] = {}
        """By node and task."""
        self.served = [0] * len(terrain.models)
        """Requests that each model has served."""
        self.for_clients: list[Counter[int]] = [Counter() for _ in terrain.nodes]
        """By node: of these, those of its own clients, by model."""
        self._rates = [ClientRates() for _ in terrain.nodes]
        self._model_of = {p: i for i, model in enumerate(terrain.models) for p in model.pairs}
        asked = set(terrain.network.requests.task.tolist())
        self._fleets = {
            (v, task): TaskFleets(
                deployment,
                kind,
                FleetTerms(
                    name,
                    ground.name,
                    ground.hardware,
                    ground.repository,
                    ground.buffer,
                    ground.drops,
                    rates_per_s.get((v, task), 0.0),
                    peaks_per_s.get((v, task), 0.0),
                    elsewhere=task in asked,
                ),
            )
            for v, ground in enumerate(terrain.nodes)
            for task, (name, kind) in enumerate(
                zip(terrain.network.tasks, terrain.kinds, strict=True)
            )
        }
        self._times = [
            ServiceTimes(
                variant.service_on(terrain.nodes[model.node].hardware), seed, number, variant.batch
            )
            for number, model in enumerate(terrain.models)
            for variant in [terrain.kinds[model.task].variants[model.variant]]
        ]

    def copies(self, node: int) -> Counter[int]:
        """Count how many copies of each model run at a node; several where a repository has to."""
        terrain = self._terrain
        counts = Counter(self._model_of[p] for p in sorted(self.running[node]))
        for i in terrain.at[node]:
            if terrain.models[i].pinned:
                counts[i] = max(counts[i], terrain.models[i].pinned)
        return counts

    def own(self, node: int) -> list[Own]:
        """List what a node offers: what it runs, less what its own clients took of late."""
        terrain = self._terrain
        models, tasks = terrain.models, terrain.network.tasks
        return [
            offered(
                tasks[models[i].task],
                models[i].variant,
                models[i].accuracy,
                count,
                self._capability(i),
                self._rates[node].per_s.get(i, 0.0),
                terrain.nodes[node].repository,
            )
            for i, count in self.copies(node).items()
            if i not in self.going[node]
        ]

    def _capability(self, i: int) -> Capability:
        model = self._terrain.models[i]
        batch = self._terrain.kinds[model.task].variants[model.variant].batch
        pool = self.by.get((model.node, model.task))
        if batch is None or pool is None or model.variant not in pool.masks:
            return Capability(model.service_s, 1.0 / model.service_s)
        view, rule = pool.dispatcher.site, rule_of(batch)
        k = pool.dispatcher.fleet.variants.index(model.variant)
        return Capability(least_s(view, k, rule), most_per_s(view, k, rule), rule.largest)

    def aim(self, node: int, allocation: Allocation) -> None:
        """Offer no more what a (P,) allocation takes away from a node."""
        models = self._terrain.models
        self.going[node] = {
            i
            for i in self.copies(node)
            if not models[i].pinned and not any(allocation[p] for p in models[i].pairs)
        }

    def look(self, node: int, now_s: float) -> None:
        """Note what a node's own clients have taken of its models since it last looked."""
        self._rates[node].look(now_s, self.for_clients[node])

    def heed(self, node: int, task: int, now_s: float) -> tuple[bool, list[NodeServer]]:
        """Follow a task's offers at once, as far as its pool has classes for them.

        Returns
        -------
        outdated
            Whether there are others, so that the pool has to be made anew.
        resting
            Servers that get nothing more; what they have queued is to be decided anew.
        """
        heeded = self._fleets[node, task].heed(self._offered(node, task))
        pool = self.by.get((node, task))
        if pool is None:
            return heeded.outdated, []
        pool.dispatcher.set_lasting(heeded.lasting)
        return heeded.outdated, pool.rest(heeded.gone, now_s)

    def refresh(self, node: int, task: int, now_s: float) -> NodePool | None:
        """Make a pool anew where its copies have changed or there are new offers.

        Returns
        -------
        NodePool or None
            The one that was there before, if another has taken over.
        """
        terrain, fleets = self._terrain, self._fleets[node, task]
        own = {
            terrain.models[i].variant: count
            for i, count in self.copies(node).items()
            if terrain.models[i].task == task
        }
        offers = self._offered(node, task)
        if own == fleets.own and not fleets.heed(offers).outdated:
            return None
        offers = fleets.remember(offers, now_s)
        if not (own or offers):
            return None
        before = self.by.get((node, task))
        fleet = fleets.make(own, offers, measure=self._measure)
        same = fleets.unchanged(fleet)
        fleets.adopt(own, offers, fleet.stands_for)
        pool = NodePool(node, task, fleet, drops=terrain.nodes[node].drops)
        for server in pool.servers:
            offer = server.offer
            if offer is None:
                variant = fleet.dispatcher.fleet.variants[server.key]
                server.model = terrain.index[node, task, variant]
                server.times = self._times[server.model]
            else:
                server.model = terrain.index[terrain.number[offer.node], task, offer.variant]
        self.by[node, task] = pool
        if before is not None:
            pool.inherit(before, same)
        self.heed(node, task, now_s)
        return before

    def _offered(self, node: int, task: int) -> list[Offer]:
        return self._offers(node).get(self._terrain.network.tasks[task], [])
