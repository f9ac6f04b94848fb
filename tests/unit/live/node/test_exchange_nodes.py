"""Exchange at nodes joined by links that lose, hold back, double and damage what is said."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from members import FILE, parts

import inferway
from inferway.live.node.placement_messages import PlacementMessages
from inferway.network import deployed
from inferway.network.delivery import DeliveryNetwork
from inferway.placement import Observation, minimal, serve
from inferway.placement.exchange import ExchangePolicy
from inferway.placement.letters import Above, Below, Floor, Needed, Quiet, decode, encode
from inferway.placement.local import local_policy
from inferway.site.draw import uniform
from mutation import damaged

SEED = 3
Said = tuple[str, str, str, str, bytes]  # from, to, kind, name, data
Fate = Callable[[bytes], list[bytes | None]]  # what comes of a letter: None comes a slot late


def _comes(data: bytes) -> list[bytes | None]:
    return [data]


class Links:
    """One node's links: what is said lies in the network's mail until it is delivered."""

    def __init__(self, node: str, mail: deque[Said]) -> None:
        self.node, self.mail = node, mail
        self.sample: Any = None
        self.neighbor: Any = None

    def on_sample(self, callback: Any) -> None:
        self.sample = callback

    def on_neighbor(self, callback: Any) -> None:
        self.neighbor = callback

    def put(self, to: str, kind: str, name: str, data: bytes) -> None:
        self.mail.append((self.node, to, kind, name, data))

    def send(self, to: str, kind: str, data: bytes) -> None:
        self.mail.append((self.node, to, kind, "", data))


class Nodes:
    """A network's live parts; values always come, and letters about a slot meet their fate."""

    def __init__(self, network: DeliveryNetwork, fate: Fate = _comes, **options: Any) -> None:
        self.network, self.fate, self.mail = network, fate, deque[Said]()
        self.late: list[Said] = []
        self.links = {name: Links(name, self.mail) for name in network.nodes}
        self.dead: set[str] = set()
        self.posts: dict[str, PlacementMessages] = {}
        for node, name in enumerate(network.nodes):
            agent: Any = local_policy("exchange", network, node, seed=SEED, **options)
            links: Any = self.links[name]
            self.posts[name] = PlacementMessages(agent, links, network.nodes)
        for post in self.posts.values():
            post.open()
        self.deliver()

    def deliver(self) -> None:
        while self.mail:
            sender, to, kind, name, data = self.mail.popleft()
            if to in self.dead or sender in self.dead:
                continue
            for outcome in [data] if name else self.fate(data):
                if outcome is None:
                    self.late.append((sender, to, kind, name, data))
                else:
                    self.links[to].sample(sender, kind, name, outcome)

    def slot(self, number: int, requests: Any, load: Any) -> Any:
        alive = [name for name in self.network.nodes if name not in self.dead]
        for name in alive:
            node = self.network.nodes.index(name)
            own = parts(self.network, node, requests, load)
            loads = {rho: np.array(one) for rho, one in own["load"].items()}
            self.posts[name].close_slot(number, own["arrived"], loads)
        self.deliver()
        for name in sorted(alive, key=lambda one: self.posts[one].agent.stage):
            self.posts[name].decide()
            self.deliver()
        for name in alive:
            self.posts[name].step()
        late, self.late = self.late, []
        for sender, to, kind, name, data in late:
            if to not in self.dead:
                self.links[to].sample(sender, kind, name, data)
        return self.allocation

    @property
    def allocation(self) -> Any:
        return np.concatenate([self.posts[name].agent.x for name in self.network.nodes])

    @property
    def refused(self) -> Counter[str]:
        reasons = Counter[str]()
        for post in self.posts.values():
            for (_, reason), number in post.refused.items():
                reasons[reason] += number
        return reasons

    def within_budgets(self) -> bool:
        network = self.network
        used = np.bincount(network.pairs.node, network.pairs.size * self.allocation)
        capped = ~network.repository
        return bool(np.all(used[capped] <= network.budget[capped] * (1 + 1e-9)))


@pytest.fixture(scope="module")
def world() -> tuple[DeliveryNetwork, list[Any]]:
    network, demand = deployed(inferway.load(FILE))
    return network, [demand.counts(slot) for slot in range(8)]


def _gain(world: tuple[DeliveryNetwork, list[Any]], nodes: Nodes) -> float:
    network, batches = world
    least, total = minimal(network).astype(np.uint8), 0.0
    for slot, requests in enumerate(batches * 2, 1):
        load = serve(network, requests, nodes.allocation)
        total += float(network.options.cost @ (serve(network, requests, least) - load))
        nodes.slot(slot, requests, load)
        assert nodes.within_budgets()
    return total


@pytest.mark.parametrize("waiting", [False, True])
def test_nodes_and_twin_decide_alike(
    world: tuple[DeliveryNetwork, list[Any]], waiting: bool
) -> None:
    network, batches = world
    nodes = Nodes(network, waiting=waiting)
    twin = ExchangePolicy(network, seed=SEED, waiting=waiting)
    assert np.array_equal(nodes.allocation, twin.allocation)
    changes = 0
    for slot, requests in enumerate(batches, 1):
        before = twin.allocation
        load = serve(network, requests, before)
        twin.step(Observation(requests, load))
        assert np.array_equal(nodes.slot(slot, requests, load), twin.allocation)
        changes += int(np.sum(before != twin.allocation))
    assert changes > 10
    assert nodes.refused == {}


def test_letters_lost_and_late_cost_at_most_two_percent(
    world: tuple[DeliveryNetwork, list[Any]],
) -> None:
    drawn = Counter[str]()

    def fate(data: bytes) -> list[bytes | None]:
        drawn["all"] += 1
        at = uniform(SEED, drawn["all"])
        kind = "lost" if at < 0.05 else "late" if at < 0.1 else "comes"
        drawn[kind] += 1
        return {"lost": [], "late": [None], "comes": [data]}[kind]

    whole, part = _gain(world, Nodes(world[0])), Nodes(world[0], fate)
    share = _gain(world, part) / whole
    print(f"of the gain {share:.4f}, of {drawn['all']} {drawn['lost']} lost, {drawn['late']} late")
    assert share >= 0.98
    assert min(drawn["lost"], drawn["late"]) > 50
    assert part.refused["late or not asked"] == drawn["late"]


def test_letters_doubled_and_damaged_are_counted(
    world: tuple[DeliveryNetwork, list[Any]],
) -> None:
    network, batches = world
    choose = random.Random(SEED)

    def fate(data: bytes) -> list[bytes | None]:
        return [damaged(data, choose)] if choose.random() < 0.1 else [data, data]

    nodes = Nodes(network, fate)
    for slot, requests in enumerate(batches[:4], 1):
        nodes.slot(slot, requests, serve(network, requests, nodes.allocation))
        assert nodes.within_budgets()
    assert nodes.refused["said twice"] > 50
    assert nodes.refused["no message"] > 0


def test_doubled_letters_change_nothing(world: tuple[DeliveryNetwork, list[Any]]) -> None:
    network, batches = world
    once, twice = Nodes(network), Nodes(network, lambda data: [data, data])
    for slot, requests in enumerate(batches[:4], 1):
        load = serve(network, requests, once.allocation)
        assert np.array_equal(once.slot(slot, requests, load), twice.slot(slot, requests, load))


def test_who_has_gone_is_quiet_and_who_returns_is_waited_for(
    world: tuple[DeliveryNetwork, list[Any]],
) -> None:
    network, batches = world
    nodes = Nodes(network)
    entry = next(
        name
        for name, post in nodes.posts.items()
        if all(one.downstream is None for one in post.agent.data.crossings.values())
        and post.agent.data.crossings
    )
    agent: Any = nodes.posts[entry].agent
    above = network.nodes[next(iter(agent.data.crossings.values())).upstream]
    types = set(agent.data.crossings)
    upstream: Any = nodes.posts[above].agent
    nodes.dead.add(entry)
    nodes.links[above].neighbor(entry, False)
    nodes.deliver()
    assert types <= upstream._quiet
    requests = batches[0].copy()
    requests[list(types)] = 0.0
    nodes.slot(1, requests, serve(network, requests, nodes.allocation))
    assert upstream._used.max() == 1  # it has decided about the others
    nodes.dead.clear()
    nodes.links[above].neighbor(entry, True)
    nodes.deliver()
    assert not types & upstream._quiet


def test_what_makes_no_sense_is_refused(world: tuple[DeliveryNetwork, list[Any]]) -> None:
    network, _ = world
    nodes = Nodes(network)
    name, post, rho, crossing = next(
        (name, post, rho, crossing)
        for name, post in nodes.posts.items()
        for rho, crossing in post.agent.data.crossings.items()
        if crossing.upstream is not None and crossing.downstream is not None
    )
    above, below = network.nodes[crossing.upstream], network.nodes[crossing.downstream]
    own, far = post.agent.data.node, crossing.upstream
    inf, nan = float("inf"), float("nan")
    post.close_slot(1, {}, {})
    fit = ((far, 0, 1.0, 2.0, 3.0),)
    wrong: list[tuple[str, Any, str]] = [
        (below, Above(rho, 1, fit), "not its place on the path"),
        (above, Below(rho, 1, 1.0, fit), "not its place on the path"),
        (above, Quiet(rho, True), "not its place on the path"),
        (above, Above(10**6, 1, fit), "no type of this node"),
        (above, Above(rho, 3, fit), "another slot"),
        (below, Needed(rho, 1, 1.0, 0.0, ()), "another policy's"),
        (below, Below(rho, 1, -1.0, fit), "impossible numbers"),
        (below, Below(rho, 1, nan, fit), "impossible numbers"),
        *(
            (above, Above(rho, 1, running), "impossible numbers")
            for running in (
                fit * 2,
                ((own, 0, 1.0, 2.0, 3.0),),
                ((len(network.nodes), 0, 1.0, 2.0, 3.0),),
                ((-1, 0, 1.0, 2.0, 3.0),),
                ((far, -1, 1.0, 2.0, 3.0),),
                ((far, 0, nan, 2.0, 3.0),),
                ((far, 0, 1.0, inf, 3.0),),
                ((far, 0, 1.0, 2.0, -3.0),),
            )
        ),
        *(
            (below, Below(rho, 1, 5.0, ((far, 0, 1.0, room, worth),)), "impossible numbers")
            for room, worth in ((-1.0, 0.0), (nan, 0.0), (1.0, -1.0), (1.0, inf))
        ),
    ]
    before = post.agent.x.copy()
    for sender, message, reason in wrong:
        post.refused.clear()
        nodes.links[name].sample(sender, type(message).__name__.lower(), "", encode(message))
        assert post.refused == {(sender, reason): 1}, message
    post.refused.clear()
    nodes.links[name].sample(above, "above", "", encode(Above(rho, 1, fit)))
    assert post.refused == {}
    post.step()
    assert np.array_equal(post.agent.x, before)


@pytest.mark.parametrize(
    "message",
    [
        Floor(1, 0.5),
        Above(1, 7, ((0, 1, 2.0, 3.0, 4.0),)),
        Below(1, 7, 5.0, ((0, 1, 2.0, 3.0, 4.0),)),
        Quiet(1, False),
    ],
    ids=lambda message: type(message).__name__,
)
def test_fields_of_a_later_release_are_left_aside(message: Any) -> None:
    said = [*msgspec.msgpack.decode(encode(message)), "new", {"x": 1}]
    assert decode(msgspec.msgpack.encode(said)) == message
