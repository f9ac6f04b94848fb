"""INFIDA by agents over the wire: what the exchange in memory does, to the last bit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from agent_exchange import Exchange
from members import FILE, parts
from peering import Heard, addresses_of, peers

import inferway
from inferway.live.control.link import PeerLink
from inferway.live.control.peers import Peers
from inferway.live.control.session import neighbors_of
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.security.authority import issue
from inferway.network import deployed, topology_of
from inferway.network.delivery import DeliveryNetwork
from inferway.placement import Observation, minimal, serve
from inferway.placement.agent import Agent
from inferway.placement.infida import Infida
from inferway.placement.layout import data_of
from inferway.placement.letters import Floor, Needed, Offers, Worst, decode, encode
from inferway.site.draw import uniform

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

SEED = 3


class World(NamedTuple):
    network: DeliveryNetwork
    batches: list[Any]
    neighbors: dict[str, tuple[str, ...]]


@pytest.fixture(scope="module")
def world() -> World:
    deployment = inferway.load(FILE)
    network, demand = deployed(deployment)
    topology = topology_of(deployment)
    everywhere = dict.fromkeys(network.nodes, "")
    neighbors = {name: tuple(neighbors_of(topology, name, everywhere)) for name in network.nodes}
    return World(network, [demand.counts(slot) for slot in range(12)], neighbors)


@pytest.fixture(scope="module")
def certs(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(world.network.nodes, folder)
    return folder


class Nodes:
    """All agents, each with links of its own."""

    def __init__(self, network: DeliveryNetwork, heard: dict[str, Heard]) -> None:
        self.network, self.heard = network, heard
        self.posts = [
            PlacementMessages(
                Agent(data, seed=SEED), heard[network.nodes[data.node]].peers, network.nodes
            )
            for data in data_of(network)
        ]
        self.sent: dict[str, tuple[int, int]] = {}
        """Of the last slot: letters and bytes by kind."""

    async def quiet(self) -> None:
        """Wait until every letter that was sent has been taken."""
        sent, received = {}, {}
        while True:
            for post in self.posts:
                traffic = post.peers.cut()
                for total, new in ((sent, traffic.sent), (received, traffic.received)):
                    for (_, kind), (letters, size) in new.items():
                        one = total.setdefault(kind, [0, 0])
                        one[0] += letters
                        one[1] += size
            if sent == received:
                self.sent = {kind: (n, size) for kind, (n, size) in sent.items()}
                return
            await self._something()

    async def _something(self) -> None:
        """Wait for a letter at any node, or a moment: it may have come just before."""
        came = asyncio.Event()
        for one in self.heard.values():
            one.rings = came
        with suppress(TimeoutError):
            await asyncio.wait_for(came.wait(), 0.02)

    async def step(self, slot: int, requests: Any, load: Any) -> dict[str, tuple[int, int]]:
        """Run a slot; returns letters and bytes by kind, without the offers that follow it."""
        for node, post in enumerate(self.posts):
            post.close_slot(slot, **parts(self.network, node, requests, load))
        await self.quiet()
        slots = self.sent
        for post in self.posts:
            post.step()
        await self.quiet()
        return slots

    @property
    def allocation(self) -> Any:
        return np.concatenate([post.agent.x for post in self.posts])

    @property
    def fractional(self) -> Any:
        return np.concatenate([post.agent.state.y for post in self.posts])


@asynccontextmanager
async def nodes(world: World, certs: Path, **options: Any) -> AsyncIterator[Nodes]:
    async with peers(world.neighbors, certs, **options) as heard:
        made = Nodes(world.network, heard)
        for name, one in heard.items():
            await one.met(*world.neighbors[name])
        for post in made.posts:
            post.open()
        await made.quiet()
        yield made


def whole(number: int) -> int:
    """Bytes of a whole number in MessagePack."""
    return 1 if number < 128 else 2 if number < 256 else 3 if number < 65536 else 5


def formula(message: Any) -> int:
    """Bytes of a message: heads of 1, numbers of 9, and 19 for each (cost, requests)."""
    about = 2 + whole(message.rho)
    match message:
        case Floor():
            return about + 9
        case Worst(slot=slot):
            return about + whole(slot) + 9
        case Needed(slot=slot, pending=pairs):
            return about + whole(slot) + 18 + (1 if len(pairs) < 16 else 3) + 19 * len(pairs)
        case Offers(offers=pairs):
            return about + (1 if len(pairs) < 16 else 3) + 19 * len(pairs)
    raise AssertionError(message)


def counting(exchange: Exchange) -> dict[str, list[int]]:
    """Count by kind what the agents of an exchange receive from now on."""
    found: dict[str, list[int]] = {}

    def counted(receive: Any) -> Any:
        def take(data: bytes) -> Any:
            message = decode(data)
            assert formula(message) == len(data)
            count = found.setdefault(type(message).__name__.lower(), [0, 0])
            count[0] += 1
            count[1] += len(data)
            return receive(data)

        return take

    for agent in exchange.agents:
        agent.receive = counted(agent.receive)  # type: ignore[method-assign]
    return found


def test_over_the_wire_as_in_memory_to_the_last_bit(world: World, certs: Path) -> None:
    async def main() -> None:
        exchange, central = Exchange(world.network, seed=SEED), Infida(world.network, seed=SEED)
        count = counting(exchange)
        async with nodes(world, certs) as made:
            # Each is under the name of its type.
            values = [key for one in made.heard.values() for key in one.values]
            named = sum(len(name) for _, kind, name in values if kind == "floor")
            assert made.sent["floor"] == (120, 120 * 12 + named)
            for slot, requests in enumerate(world.batches, 1):
                load = serve(world.network, requests, exchange.allocation)
                count.clear()
                exchange.step(Observation(requests, load))
                central.step(Observation(requests, load))
                over_the_wire = await made.step(slot, requests, load)
                assert np.array_equal(made.allocation, exchange.allocation)
                assert np.array_equal(made.allocation, central.allocation)
                assert np.array_equal(made.fractional, exchange.fractional)
                # Offers besides may pass each other, and then some are said again.
                for kind in ("needed", "worst"):
                    assert list(over_the_wire[kind]) == count[kind]
            for post, agent in zip(made.posts, exchange.agents, strict=True):
                assert _some(post.agent._offers) == _some(agent._offers)
                assert post.refused.total() == 0

    asyncio.run(main())


def _some(offers: dict[int, Any]) -> dict[int, Any]:
    """Leave out what was offered and taken back: it may never have been said elsewhere."""
    return {rho: those for rho, those in offers.items() if those}


def _informed(agent: Agent) -> bool:
    """Whether an agent knows what may come further up, and what runs there."""
    return any(agent._offers.values()) and all(np.isfinite(one) for one in agent._floor.values())


class Lossy(Peers):
    """Loses a tenth of the letters, as a link may."""

    share = 0.0
    lost = 0
    drawn = 0

    def _transmit(self, link: PeerLink, key: str, data: bytes | None) -> None:
        Lossy.drawn += 1
        if uniform(SEED, Lossy.drawn) < Lossy.share:
            Lossy.lost += 1
            self._count(self._received, link, key, data)
            self._count(self._sent, link, key, data)
        else:
            super()._transmit(link, key, data)


def test_letters_that_are_lost_cost_precision_and_nothing_else(
    world: World, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = world.network
    least = minimal(network).astype(np.uint8)

    async def gain(share: float) -> float:
        monkeypatch.setattr(Lossy, "share", 0.0)
        total = 0.0
        async with nodes(world, certs, make=Lossy) as made:
            monkeypatch.setattr(Lossy, "share", share)
            for slot, requests in enumerate(world.batches * 2, 1):
                load = serve(network, requests, made.allocation)
                total += network.options.cost @ (serve(network, requests, least) - load)
                await made.step(slot, requests, load)
                used = np.bincount(network.pairs.node, network.pairs.size * made.fractional)
                capped = ~network.repository
                assert np.all(used[capped] <= network.budget[capped] * (1 + 1e-3))
        return total

    lossless = asyncio.run(gain(0.0))
    assert Lossy.lost == 0
    lossy = asyncio.run(gain(0.1))
    assert Lossy.lost > 100
    assert lossy > 0.95 * lossless


def test_letters_that_come_late_cost_precision_and_nothing_else(world: World, certs: Path) -> None:
    network = world.network

    async def main() -> None:
        async with nodes(world, certs) as made:
            for slot, requests in enumerate(world.batches, 1):
                load = serve(network, requests, made.allocation)
                for node, post in enumerate(made.posts):
                    post.close_slot(slot, **parts(network, node, requests, load))
                    # Some are a slot behind, and nobody waits for what others say.
                    if (node + slot) % 2:
                        await asyncio.sleep(0)
                for post in made.posts:
                    post.step()
            await made.quiet()
            reasons = Counter[str]()
            for post in made.posts:
                for (_, reason), number in post.refused.items():
                    reasons[reason] += number
            assert set(reasons) <= {"late or not asked", "another slot"}
            assert reasons.total() > 50
            assert {int(post.agent.state.slot[0]) for post in made.posts} == {len(world.batches)}
            used = np.bincount(network.pairs.node, network.pairs.size * made.fractional)
            capped = ~network.repository
            assert np.all(used[capped] <= network.budget[capped] * (1 + 1e-3))
            # And when letters are in time again, all of them count.
            before = made.fractional
            refused = reasons.total()
            load = serve(network, world.batches[0], made.allocation)
            over_the_wire = await made.step(len(world.batches) + 1, world.batches[0], load)
            assert over_the_wire["worst"][0] == over_the_wire["needed"][0] > 0
            assert sum(post.refused.total() for post in made.posts) == refused
            assert not np.array_equal(made.fractional, before)

    asyncio.run(main())


def test_a_node_that_restarts_is_told_what_was_said_before(world: World, certs: Path) -> None:
    network = world.network
    data = dict(zip(network.nodes, data_of(network), strict=True))

    async def main() -> None:
        addresses = addresses_of(network.nodes)
        others = tuple(name for name in network.nodes if name != "office")
        posts: dict[str, PlacementMessages] = {}

        def join(name: str, links: Peers) -> None:
            posts[name] = PlacementMessages(Agent(data[name], seed=SEED), links, network.nodes)

        async with peers(
            world.neighbors, certs, addresses=addresses, only=others, before=join
        ) as rest:
            for post in posts.values():
                post.open()
            for _ in range(2):
                async with peers(
                    world.neighbors, certs, addresses=addresses, only=("office",), before=join
                ) as one:
                    office = posts["office"]
                    office.open()
                    # Of 40 types each: from the data center, and on to where requests enter.
                    offers = office.agent._offers
                    await one["office"].until(lambda offers=offers: len(offers) == 40)
                    for base in ("base-0", "base-1"):
                        await rest[base].until(lambda of=posts[base].agent: _informed(of))
                # What a neighbor offered that has gone is taken back.
                for base in ("base-0", "base-1"):
                    await rest[base].until(lambda base=base: not rest[base].peers.alive)
                    assert not any(posts[base].agent._offers.values())

    asyncio.run(main())


def test_letters_that_make_no_sense_are_counted_and_change_nothing(
    world: World, certs: Path
) -> None:
    network = world.network
    inf, nan = float("inf"), float("nan")
    from_above = [
        ("needed", b"", "no message"),
        ("worst", bytes(range(256)), "no message"),
        ("offers", encode(Offers(0, ((1.0, 2.0),)))[:-3], "no message"),
        ("floor", b"\x94\x00\x00\xca" + bytes(4) + b"\x91" * 10_000 + b"\x90", "no message"),
        ("worst", encode(Floor(0, 1.0)), "another kind"),
        ("floor", encode(Floor(10**6, 1.0)), "no type of this node"),
        ("floor", encode(Floor(-1, 1.0)), "no type of this node"),
        ("needed", encode(Needed(0, 1, 5.0, 0.0, ())), "not its place on the path"),
        ("floor", encode(Floor(0, nan)), "impossible numbers"),
        ("offers", encode(Offers(0, ((nan, 1.0),))), "impossible numbers"),
        ("offers", encode(Offers(0, ((1.0, -1.0),))), "impossible numbers"),
        ("offers", encode(Offers(0, ((2.0, 1.0), (1.0, 1.0)))), "impossible numbers"),
        ("worst", encode(Worst(0, 1, inf)), "impossible numbers"),
        ("worst", encode(Worst(0, 99, 1.0)), "another slot"),
        ("worst", encode(Worst(0, 1, 1.0)), "late or not asked"),
    ]
    rho = next(
        rho
        for rho, crossing in data_of(network)[network.nodes.index("office")].crossings.items()
        if network.nodes[crossing.downstream] == "base-0"
    )
    good = Needed(rho, 1, 1e9, 0.0, ())
    from_below = [
        ("worst", encode(Worst(rho, 1, 1.0)), "not its place on the path"),
        ("needed", encode(Needed(rho, 7, 5.0, 0.0, ())), "another slot"),
        ("needed", encode(Needed(rho, 10**15, 5.0, 0.0, ())), "another slot"),
        ("needed", encode(Needed(rho, 1, -5.0, 0.0, ())), "impossible numbers"),
        ("needed", encode(Needed(rho, 1, 5.0, nan, ())), "impossible numbers"),
        ("needed", encode(Needed(rho, 1, 5.0, 0.0, ((1.0, inf),))), "impossible numbers"),
        ("needed", encode(good), None),
        ("needed", encode(good), "said twice"),
    ]

    async def main() -> None:
        office = dict.fromkeys(world.neighbors["office"], ("office",))
        star = {**office, "office": world.neighbors["office"]}
        order = {name: star[name] for name in network.nodes if name in star}
        async with peers(order, certs) as of:
            await of["office"].met("isp", "base-0", "base-1")
            v = network.nodes.index("office")
            agent = Agent(data_of(network)[v], seed=SEED)
            post = PlacementMessages(agent, of["office"].peers, network.nodes)
            before = agent.state.y.copy()
            loads = {rho: np.zeros(len(one.pair)) for rho, one in agent.data.crossings.items()}
            post.close_slot(1, {}, loads)
            for sender, letters in (("isp", from_above), ("base-0", from_below)):
                wanted: Counter[tuple[str, str]] = Counter()
                already = len(of["office"].messages)
                for kind, data, reason in letters:
                    of[sender].peers.send("office", kind, data)
                    if reason is not None:
                        wanted[sender, reason] += 1
                await of["office"].message(already + len(letters))
                found = {key: n for key, n in post.refused.items() if key[0] == sender}
                assert found == dict(wanted)
            # The one that was right went on to the next node.
            ((_, kind, data),) = await of["isp"].message()
            assert (kind, decode(data).rho) == ("needed", rho)
            assert len(post._asked) == 1
            post.step()
            assert np.array_equal(agent.state.y, before)
            assert of["office"].peers.cut().refused == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    "message",
    [Floor(1, 0.5), Needed(1, 7, 3.0, 1.0, ((0.1, 1.0),)), Worst(1, 7, 0.5), Offers(1, ())],
    ids=lambda message: type(message).__name__,
)
def test_fields_of_a_later_release_are_left_aside(message: Any) -> None:
    said = [*msgspec.msgpack.decode(encode(message)), "new", {"x": 1}]
    assert decode(msgspec.msgpack.encode(said)) == message
