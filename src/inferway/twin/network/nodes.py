"""The nodes of the event twin: which variants may run where, and the fleets that they make.

A new pool takes over as live: it gets all requests from then on, and the old one answers what it
has. What was measured, the balance and what the policy has learned go along.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.dispatch.batching import Rule
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.joint import BALANCE, COUNT, TargetState, empty_shared
from inferway.dispatch.priced import HEADROOM
from inferway.dispatch.service_times import carry_over
from inferway.network.delivery import DeliveryNetwork
from inferway.network.layout import members_of, topology_of
from inferway.network.node import Capability, ClientRates, NodeFleet, TaskFleets, offered
from inferway.network.offers import Offer
from inferway.network.targets import targets_at
from inferway.placement.contract import Allocation
from inferway.placement.delays import Measured, Sojourns
from inferway.site.compiled import entry
from inferway.site.draw import mix, streams
from inferway.site.view import ALL_CLASSES, Floats
from inferway.twin.kernel.service_times import Laws, draw, laws

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, ServiceTime

_BLOCK: Final = 1024
_ALONE: Final = Rule()
_UNSURE: Final = np.zeros(0)
_WORD, _HALF, _UNIT = 2**64 - 1, 2**63, 2.0**-64


@dataclass(frozen=True)
class NodeModel:
    """A variant of a task at a node: the pairs of its copies, in their order."""

    node: int
    task: int
    variant: str
    accuracy: float
    service_s: float  # Mean, on the node's hardware
    pairs: tuple[int, ...]
    pinned: int  # Copies that always run
    energy: float | None  # Mean of a request, J


class Terrain:
    """A deployment's network as the event twin needs it.

    ValueError where a node has one central queue: requests of a network wait at instances.
    """

    def __init__(self, deployment: Deployment, network: DeliveryNetwork) -> None:
        self.network = network
        # (N,) where the file describes each task of the network.
        self.kinds = [task for task in deployment.tasks.values() for _ in range(task.count)]
        members = members_of(deployment, topology_of(deployment))
        self.nodes = [members[name] for name in network.nodes]
        for name, node in zip(network.nodes, self.nodes, strict=True):
            if node.queue == "central":
                raise ValueError(
                    f"node {name} has `queue: central`; requests of a network wait at instances, "
                    "so say `per-server`"
                )
        self.number = {name: v for v, name in enumerate(network.nodes)}
        paths, requests, models = network.paths, network.requests, network.models
        # (R,) node and task at which the requests of each type enter.
        self.entry = [
            (int(paths.node[paths.first[path]]), int(task))
            for path, task in zip(requests.path, requests.task, strict=True)
        ]
        # Of each node the neighbors that go by its offers, away from the repository, with their
        # round-trip times, s; a node goes by one neighbor's.
        self.downstream: list[dict[int, float]] = [{} for _ in network.nodes]
        upstream: dict[int, int] = {}
        for start, end in zip(paths.first[:-1], paths.first[1:], strict=True):
            for i in range(int(start), int(end) - 1):
                near, far = int(paths.node[i]), int(paths.node[i + 1])
                if upstream.setdefault(near, far) == far:
                    self.downstream[far][near] = float(paths.rtt_s[i + 1] - paths.rtt_s[i])
        pairs = network.pairs
        copies: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for p, (node_, model) in enumerate(zip(pairs.node, pairs.model, strict=True)):
            copies[int(node_), int(models.task[model]), int(models.variant[model])].append(p)
        self.models = [
            NodeModel(
                v,
                task,
                network.variants[variant],
                float(models.accuracy[pairs.model[own[0]]]),
                float(network.delay_s[variant, network.hardware[v]]),
                tuple(own),
                int(np.sum(pairs.pinned[own])),
                self.kinds[task]
                .variants[network.variants[variant]]
                .energy_on(self.nodes[v].hardware),
            )
            for (v, task, variant), own in copies.items()
        ]
        # Places in `models`: of each by node, task and variant, and of each node's.
        self.index = {(m.node, m.task, m.variant): i for i, m in enumerate(self.models)}
        self.at: list[list[int]] = [[] for _ in network.nodes]
        for i, one in enumerate(self.models):
            self.at[one.node].append(i)


class ServiceTimes:
    """An endless row of a variant's service times, drawn in blocks by the laws of the site's twin.

    `number` is that of the stream of random numbers; times of batches are spread like those of one.
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


@dataclass(slots=True, eq=False)
class NetworkRequest:
    """One request on its way."""

    kind: int  # Its request type
    entered_s: float
    slot: int  # In which it entered
    deadline_s: float
    draw: int
    came_s: float = 0.0  # To the server where it is
    server: Any = None  # At its entry: an instance, or a virtual server that forwards
    there: NodeServer | None = None  # Where it was forwarded to
    refused: bool = False  # Whether some node has refused it already
    # Where a second variant may be asked: classes that may answer, a bit mask; expected accuracy
    # that the balance counts; who has given the answer in hand, what that is expected to have, and
    # whether it has been sent while the second one is still under way.
    classes: int = ALL_CLASSES
    credit: float = 0.0
    hand: NodeServer | None = None
    worth: float = 0.0
    sent: bool = False


@dataclass(slots=True, eq=False)
class NodeServer:
    """An instance, or a virtual server that forwards to where an offer says."""

    pool: NodePool
    index: int  # Its number in the dispatcher
    key: int  # Its class
    offer: Offer | None
    rule: Rule  # How it forms batches
    half_s: float  # The way there, s
    model: int = -1  # Which of `Terrain.models` it is a copy of, or forwards to
    times: ServiceTimes | None = None
    busy: Any = None  # The first of the `members` in service together, begun at `began_s`
    members: list[NetworkRequest] = field(default_factory=list)
    queue: deque[NetworkRequest] = field(default_factory=deque)  # They wait behind it
    began_s: float = 0.0
    service_s: float = 0.0


class NodePool:
    """A dispatcher of a task at a node, and its servers.

    `drops` says whether requests whose deadline passes in a queue are dropped.
    """

    def __init__(self, node: int, task: int, fleet: NodeFleet, *, drops: bool) -> None:
        self.node, self.task, self.drops = node, task, drops
        self.dispatcher = dispatcher = fleet.dispatcher
        rules = fleet.rules
        # Whether its servers are told what to take when they fall free.
        self.batches = rules is not None or dispatcher.pulls
        self.servers: list[NodeServer] = []
        self.masks: dict[str, int] = {}  # By variant, the class of the node's own instances
        self.in_flight = 0
        self.heir: NodePool | None = None  # Who has taken over
        # Told when a pool that was replaced has answered its last request.
        self.gone: Callable[[], None] | None = None
        self.settles = dispatcher.settles
        tables = dispatcher.fleet.confidence
        # By class, ends of the bins of its confidence on the unit interval, and where each begins.
        self._bins = [
            (np.cumsum(mass).tolist()[:-1], [-np.inf, *edges])
            for mass, edges in (
                [] if tables is None else zip(tables.mass, tables.edges, strict=True)
            )
        ]
        self._sure = [] if tables is None else tables.sure.tolist()
        self._gone: frozenset[tuple[str, str]] = frozenset()  # Offers that get nothing
        for k, (name, count, offer) in enumerate(
            zip(dispatcher.fleet.variants, dispatcher.fleet.count, fleet.stands_for, strict=True)
        ):
            if offer is None:
                self.masks[name] = 1 << k
            rule = _ALONE if rules is None else rules[k]
            half_s = 0.0 if offer is None else 0.5 * offer.rtt_s
            for _ in range(int(count)):
                self.servers.append(NodeServer(self, len(self.servers), k, offer, rule, half_s))

    def inherit(self, old: NodePool, same: Iterable[str]) -> None:
        """Take over from the pool that stood here: what was measured of some classes, and more."""
        carry_over(self.dispatcher, old.dispatcher, same)
        self.dispatcher.site.balance[0] = old.dispatcher.balance
        _teach(self.dispatcher, old.dispatcher)
        old.heir = self

    def rest(self, gone: frozenset[tuple[str, str]], now_s: float) -> list[NodeServer]:
        """Send nothing to these offers, and to all others as they come; as live.

        Returns the servers that rest from now on; what they have queued is to be decided anew.
        """
        before, self._gone = self._gone, gone
        resting = []
        for server in self.servers:
            key = server.offer and (server.offer.variant, server.offer.node)
            if (key in gone) != (key in before):
                self.dispatcher.mark(server.index, key not in gone, now_s)
                resting += [server] if key in gone else []
        return resting

    def withdraw(self, server: NodeServer, position: int, now_s: float, counted: bool) -> None:
        """Undo a dispatch; the balance of who has taken over since then too."""
        with self._handing_on():
            self.dispatcher.withdraw(server.index, position, now_s, counted)

    def settle(self, server: NodeServer, request: NetworkRequest, now_s: float) -> int:
        """Decide on an answer that has come, as live: ACCEPT, or the server that is asked as well.

        The bin of a first answer's confidence is drawn by its class's masses, from the request's
        random word.
        """
        first, word = request.hand is None, mix(request.draw & _WORD)
        sure, k = _UNSURE, server.key
        if first and self._sure[k]:
            ends, lows = self._bins[k]
            sure = np.array([lows[bisect_right(ends, mix(word) * _UNIT)]])
        with self._handing_on():
            to = self.dispatcher.settle(
                server.index,
                now_s,
                word - _HALF,
                sure,
                request.credit,
                1 if first else 2,
                request.entered_s,
                request.deadline_s,
                classes=request.classes,
            )
        request.credit = self.dispatcher.credit
        return to

    def fall_back(
        self, server: NodeServer, position: int, request: NetworkRequest, now_s: float
    ) -> None:
        """A request that was asked again leaves its second server: the answer in hand counts."""
        assert request.hand is not None
        with self._handing_on():
            self.dispatcher.fall_back(
                server.index,
                position,
                now_s,
                first=request.hand.index,
                in_hand=request.worth,
                credit=request.credit,
            )

    @contextmanager
    def _handing_on(self) -> Iterator[None]:
        """Move the balance of who has taken over since as this one's is moved."""
        before = self.dispatcher.balance
        yield
        moved = self.dispatcher.balance - before
        heir = self.heir
        while heir is not None:
            heir.dispatcher.site.balance[0] += moved
            heir = heir.heir


def _teach(new: Dispatcher, old: Dispatcher) -> None:
    """Hand over what the policy has learned, where it is of the very same classes, as live."""
    if (
        not hasattr(old.policy, "learn")
        or new.policy._fields != old.policy._fields
        or new.fleet.variants != old.fleet.variants
        or not np.array_equal(new.fleet.rate, old.fleet.rate)
        or not np.array_equal(new.fleet.accuracy, old.fleet.accuracy)
    ):
        return
    learned = [
        pair for pair in zip(new.policy, old.policy, strict=True) if isinstance(pair[0], np.ndarray)
    ]
    if all(mine.shape == theirs.shape for mine, theirs in learned):
        for mine, theirs in learned:
            mine[:] = theirs


class NodePools:
    """Makes and keeps the pools of all nodes.

    `rates_per_s` and `peaks_per_s` are the mean arrival rate by entry node and task and the most at
    any time, 1/s; `offers` says what a node goes by, by task; with `measure`, predictions follow
    the service times that are measured.
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
        network = terrain.network
        self._terrain, self._offers, self._measure = terrain, offers, measure
        # By node: pairs whose copies take requests; models that are offered no more, since all of
        # their copies are to go; requests of its own clients that each model has served.
        self.running: list[set[int]] = [set() for _ in network.nodes]
        self.going: list[set[int]] = [set() for _ in network.nodes]
        self.for_clients: list[Counter[int]] = [Counter() for _ in network.nodes]
        self._rates = [ClientRates() for _ in network.nodes]
        self.served = [0] * len(terrain.models)  # Requests that each model has served
        # Of each model, what these took in the slot: their number, service times, waits, and time
        # of runs, s.
        self.took = [[0.0] * 4 for _ in terrain.models]
        self.by: dict[tuple[int, int], NodePool] = {}  # By node and task
        self._model_of = {p: i for i, model in enumerate(terrain.models) for p in model.pairs}
        asked = set(network.requests.task.tolist())
        self._told = [
            targets_at(
                deployment,
                network,
                v,
                {network.tasks[task]: rate for (at, task), rate in rates_per_s.items() if at == v},
            )
            for v in range(len(network.nodes))
        ]
        # By node, what the policies of its tasks share of targets over several.
        self._shared = [empty_shared(told, HEADROOM) for told in self._told]
        self._fleets = {
            (v, task): TaskFleets(
                deployment,
                kind,
                network.tasks[task],
                network.nodes[v],
                node.hardware,
                bool(network.repository[v]),
                node.buffer,
                node.late == "drop",
                rates_per_s.get((v, task), 0.0),
                peaks_per_s.get((v, task), 0.0),
                elsewhere=task in asked,
                targets=self._told[v],
            )
            for v, node in enumerate(terrain.nodes)
            for task, kind in enumerate(terrain.kinds)
        }
        self._times = [
            ServiceTimes(variant.service_on(hardware), seed, number, variant.batch_on(hardware))
            for number, model in enumerate(terrain.models)
            for variant in [terrain.kinds[model.task].variants[model.variant]]
            for hardware in [terrain.nodes[model.node].hardware]
        ]

    def measured(self, lasted_s: float) -> list[Measured]:
        """Return what all nodes measured since the last call, which is so many seconds ago."""
        found = []
        for own in self._terrain.at:
            sojourns = {}
            for i in own:
                model = self._terrain.models[i]
                if self.took[i][0]:
                    sojourns[model.task, model.variant] = Sojourns(*self.took[i])
                    self.took[i] = [0.0] * 4
            found.append(Measured(lasted_s, sojourns, {}))
        return found

    def targets(self) -> dict[str, dict[str, Any]] | None:
        """Tell where targets over several tasks stand, in all and by node with answers.

        None where there is none.
        """
        found = {}
        for at, told in enumerate(self._told[0]):
            rows = np.array([shared[at] for shared in self._shared])
            whole = rows[0].copy()
            whole[[BALANCE, COUNT]] = rows[:, [BALANCE, COUNT]].sum(axis=0)
            states = (TargetState(told, row) for row in rows)
            nodes = {
                name: {key: getattr(state, key) for key in ("mean", "balance", "answers", "state")}
                for name, state in zip(self._terrain.network.nodes, states, strict=True)
                if state.answers
            }
            state = TargetState(told, whole)
            found[state.name] = state.to_json() | {"nodes": nodes}
        return found or None

    def copies(self, node: int) -> Counter[int]:
        """Count how many copies of each model run at a node; several where a repository has to."""
        models = self._terrain.models
        counts = Counter(self._model_of[p] for p in sorted(self.running[node]))
        for i in self._terrain.at[node]:
            if models[i].pinned:
                counts[i] = max(counts[i], models[i].pinned)
        return counts

    def own(self, node: int) -> list[Offer]:
        """List what a node offers: what it runs, less what its own clients took of late."""
        models, network = self._terrain.models, self._terrain.network
        return [
            offered(
                network.nodes[node],
                network.tasks[models[i].task],
                models[i].variant,
                models[i].accuracy,
                count,
                self._capability(i),
                self._rates[node].per_s.get(i, 0.0),
                bool(network.repository[node]),
                models[i].energy,
            )
            for i, count in self.copies(node).items()
            if i not in self.going[node]
        ]

    def _capability(self, i: int) -> Capability:
        model = self._terrain.models[i]
        variant = self._terrain.kinds[model.task].variants[model.variant]
        batch = variant.batch_on(self._terrain.nodes[model.node].hardware)
        pool = self.by.get((model.node, model.task))
        if batch is None or pool is None or model.variant not in pool.masks:
            return Capability(model.service_s, 1.0 / model.service_s)
        return Capability.of(pool.dispatcher, model.variant, batch)

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

        Returns whether there are others, so that the pool has to be made anew, and the servers that
        get nothing more; what they have queued is to be decided anew.
        """
        gone, lasting, outdated = self._fleets[node, task].heed(self._offered(node, task))
        pool = self.by.get((node, task))
        if pool is None:
            return outdated, []
        pool.dispatcher.set_lasting(lasting)
        return outdated, pool.rest(gone, now_s)

    def refresh(self, node: int, task: int, now_s: float) -> NodePool | None:
        """Make a pool anew where its copies have changed or there are new offers.

        Returns the one that was there before, if another has taken over.
        """
        terrain, fleets = self._terrain, self._fleets[node, task]
        own = {
            terrain.models[i].variant: count
            for i, count in self.copies(node).items()
            if terrain.models[i].task == task
        }
        offers = self._offered(node, task)
        if own == fleets.own and not fleets.heed(offers)[2]:
            return None
        offers = fleets.remember(offers, now_s)
        if not (own or offers):
            return None
        fleet = fleets.make(own, offers, measure=self._measure)
        if "targets" in fleet.dispatcher.options:
            fleet.dispatcher.share_targets(self._shared[node])
        same = fleets.unchanged(fleet)
        fleets.adopt(own, offers, fleet.stands_for)
        pool = NodePool(node, task, fleet, drops=terrain.nodes[node].late == "drop")
        for server in pool.servers:
            if (offer := server.offer) is None:
                variant = fleet.dispatcher.fleet.variants[server.key]
                server.model = terrain.index[node, task, variant]
                server.times = self._times[server.model]
            else:
                server.model = terrain.index[terrain.number[offer.node], task, offer.variant]
        before = self.by.get((node, task))
        self.by[node, task] = pool
        if before is not None:
            pool.inherit(before, same)
        self.heed(node, task, now_s)
        return before

    def _offered(self, node: int, task: int) -> list[Offer]:
        return self._offers(node).get(self._terrain.network.tasks[task], [])
