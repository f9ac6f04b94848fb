"""Live nodes and the event twin are told the same, and lose the same letters: they decide alike."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from members import FILE, parts

import inferway
from inferway.live.node.placement_messages import PlacementMessages
from inferway.network import deployed
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.placement import Observation, build_policy, serve
from inferway.placement.agent import LETTERS_SHARE
from inferway.placement.letters import Letter, decode
from inferway.placement.local import local_policy
from inferway.twin.network.letters import Mail, PlacementByLetters

SEED = 3
SLOTS = 8
Wait = Callable[[float, Callable[[Any], None], Any], None]


class Clock:
    """Calls what is due in the order of its times."""

    now_s = 0.0

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._calls = 0

    def after(self, wait_s: float, call: Callable[[Any], None], argument: Any) -> None:
        self._calls += 1
        heapq.heappush(self._due, (self.now_s + wait_s, self._calls, call, argument))

    def until(self, end_s: float) -> None:
        while self._due and self._due[0][0] <= end_s:
            self.now_s, _, call, argument = heapq.heappop(self._due)
            call(argument)
        self.now_s = end_s


class Links:
    """One live node's links, on which letters take as long as the event twin says, or are lost."""

    def __init__(self, nodes: LiveNodes, name: str) -> None:
        self._nodes, self._name = nodes, name

    def on_sample(self, callback: Any) -> None:
        self.sample = callback

    def on_neighbor(self, callback: Any) -> None: ...

    def put(self, to: str, kind: str, name: str, data: bytes) -> None:
        self._nodes.send(self._name, to, kind, name, data)

    def send(self, to: str, kind: str, data: bytes) -> None:
        self._nodes.send(self._name, to, kind, "", data)


class LiveNodes:
    """What carries and decides at live nodes, by the times at which they do."""

    def __init__(self, network: DeliveryNetwork, policy: str, way_s: Any, after: Wait) -> None:
        self.network, self._way_s, self._after = network, way_s, after
        self._begun = False
        self.links = {name: Links(self, name) for name in network.nodes}
        self.posts: dict[str, PlacementMessages] = {}
        for node, name in enumerate(network.nodes):
            agent: Any = local_policy(policy, network, node, seed=SEED)
            links: Any = self.links[name]
            self.posts[name] = PlacementMessages(agent, links, network.nodes)
        for post in self.posts.values():
            post.open()
        self._begun = True

    def send(self, sender: str, to: str, kind: str, name: str, data: bytes) -> None:
        if not self._begun:  # what is said at first is there at once
            self.links[to].sample(sender, kind, name, data)
            return
        nodes = self.network.nodes
        letter = Letter(nodes.index(to), data)
        way_s = self._way_s(nodes.index(sender), letter, decode(data))
        if way_s is not None:
            self._after(
                way_s, lambda said: self.links[to].sample(*said), (sender, kind, name, data)
            )

    def close_slot(self, number: int, requests: Any, load: Any) -> None:
        """End a slot as `NodePlacement` does, by the clock."""
        wait_s = LETTERS_SHARE * self.network.slot_s
        for node, (_, post) in enumerate(self.posts.items()):
            own = parts(self.network, node, requests, load)
            loads = {rho: np.array(one) for rho, one in own["load"].items()}
            post.close_slot(number, own["arrived"], loads)
        for post in self.posts.values():
            self._after(post.agent.stage * wait_s, lambda one: one.decide(), post)
        for post in self.posts.values():
            self._after(wait_s, lambda one: one.step(), post)

    @property
    def allocation(self) -> Any:
        return np.concatenate([post.agent.x for post in self.posts.values()])

    @property
    def fractional(self) -> Any:
        return np.concatenate([post.agent.state.y for post in self.posts.values()])

    @property
    def refused(self) -> Counter[str]:
        reasons = Counter[str]()
        for post in self.posts.values():
            for (_, reason), number in post.refused.items():
                reasons[reason] += number
        return reasons


@pytest.fixture(scope="module")
def world() -> tuple[DeliveryNetwork, Demand]:
    return deployed(inferway.load(FILE))


def lettered(network: DeliveryNetwork, policy: str, mail: Mail, clock: Clock) -> PlacementByLetters:
    made = PlacementByLetters(
        network, policy, seed=SEED, mail=mail, after=clock.after, decided=lambda x: None
    )
    made.begin()
    return made


@pytest.mark.parametrize("policy", ["infida", "exchange"])
def test_nodes_and_event_twin_lose_the_same_and_decide_alike(world: Any, policy: str) -> None:
    network, demand = world
    clock, mail = Clock(), Mail(lost=0.05, extra_s=2.0)
    twin = lettered(network, policy, mail, clock)
    nodes = LiveNodes(network, policy, twin.way_s, clock.after)
    assert np.array_equal(nodes.allocation, twin.allocation)
    changes = 0
    for slot in range(1, SLOTS + 1):
        requests, before = demand.counts(slot), twin.allocation
        load = serve(network, requests, before)
        twin.close_slot(slot, Observation(requests, load))
        nodes.close_slot(slot, requests, load)
        clock.until(slot * network.slot_s)
        assert np.array_equal(nodes.allocation, twin.allocation)
        if twin.fractional is not None:
            assert np.array_equal(nodes.fractional, twin.fractional)
        changes += int(np.sum(before != twin.allocation))
    assert changes > 10
    assert min(twin.lost, twin.late) > 20
    # Nobody says anything but what is late.
    assert set(nodes.refused) == {"late or not asked"}


def test_letters_that_take_longer_than_a_slot_are_late_too(world: Any) -> None:
    network, demand = world
    clock, mail = Clock(), Mail(extra_s=network.slot_s / 3)
    twin = lettered(network, "exchange", mail, clock)
    nodes = LiveNodes(network, "exchange", twin.way_s, clock.after)
    for slot in range(1, SLOTS + 1):
        requests = demand.counts(slot)
        load = serve(network, requests, twin.allocation)
        twin.close_slot(slot, Observation(requests, load))
        nodes.close_slot(slot, requests, load)
        clock.until(slot * network.slot_s)
        assert np.array_equal(nodes.allocation, twin.allocation)
    # Some come while letters about the next slot are listened to.
    assert set(nodes.refused) == {"late or not asked", "another slot"}
    assert twin.late == nodes.refused.total()


@pytest.mark.parametrize("policy", ["infida", "exchange"])
def test_letters_that_come_in_time_change_nothing(world: Any, policy: str) -> None:
    network, demand = world
    clock = Clock()
    twin, whole = lettered(network, policy, Mail(), clock), build_policy(policy, network, seed=SEED)
    for slot in range(1, SLOTS + 1):
        requests = demand.counts(slot)
        load = serve(network, requests, whole.allocation)
        whole.step(Observation(requests, load))
        twin.close_slot(slot, Observation(requests, load))
        clock.until(slot * network.slot_s)
        assert np.array_equal(twin.allocation, whole.allocation)
        assert (twin.fractional is None) == (whole.fractional is None)
        if twin.fractional is not None:
            assert twin.fractional == pytest.approx(whole.fractional, abs=1e-12)
    assert twin.lost == twin.late == 0
    assert twin.written > 100


@pytest.mark.parametrize("policy", ["olag", "static-greedy", "repository-only"])
def test_who_writes_no_letters_loses_none(world: Any, policy: str) -> None:
    with pytest.raises(ValueError, match="writes no letters that could be lost or late"):
        lettered(world[0], policy, Mail(), Clock())


def test_numbers_out_of_their_range_are_refused(world: Any) -> None:
    with pytest.raises(ValueError, match="lost is 0 to 1, not 2"):
        lettered(world[0], "infida", Mail(lost=2.0), Clock())
    with pytest.raises(ValueError, match="beside its way, not -1"):
        lettered(world[0], "infida", Mail(extra_s=-1.0), Clock())
