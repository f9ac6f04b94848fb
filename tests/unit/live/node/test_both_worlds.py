"""The live node and the event twin are told the same, and come to the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lone_node import CLOUD, FILE, METRO, World
from msgspec.structs import astuple
from offering import own_offer
from patient import Patient
from wires import Wires

import inferway
from inferway.live.errors import LoadError
from inferway.live.node.reconciler import Copy, Reconciler
from inferway.network import network_of
from inferway.network.node import REMEMBERED_S, ClientRates
from inferway.network.offers import REFRESH_S, Offer
from inferway.twin.network.events import Mover, OfferExchange
from inferway.twin.network.nodes import NodePools, Terrain

BATCH = ", batch: {sizes: [1, 2, 4], service: [1 ms, 1.5 ms, 2 ms], min: 1, max: 4}"
FAR = msgspec.structs.replace(METRO, path=("cloud", "metro"), rtt_s=0.02)


class Both:
    """One node in both worlds; each is told what runs there and what it goes by."""

    def __init__(self, folder: Path, live: World, task: str, mini: str) -> None:
        self.live, self.now_s, self.asked = live, 0.0, 0
        self.rates, self.taken = ClientRates(), Counter[tuple[str, str]]()
        file = folder / "twin.yaml"
        file.write_text(FILE.format(task=task, mini=mini))
        deployment = inferway.load(file)
        plan = live.fleets._plan
        terrain = Terrain(deployment, network_of(deployment))
        # Also what is no option anywhere, and so nothing that placement would plan.
        first = terrain.models[0]
        variants = deployment.tasks["digits"].variants
        places = product(range(len(terrain.nodes)), variants.values())
        terrain.models = [
            replace(
                first,
                node=node,
                variant=one.name,
                accuracy=one.accuracy,
                service_s=one.service_on("cpu").mean_s,
                pairs=(),
                pinned=0,
            )
            for node, one in places
        ]
        terrain.index = {(m.node, m.task, m.variant): i for i, m in enumerate(terrain.models)}
        terrain.at = [[] for _ in terrain.nodes]
        # As many copies as are asked for, whatever placement would plan.
        self.copies: dict[str, int] = {}
        self.node = terrain.number[plan.node]
        rates = {(self.node, 0): plan.rates_per_s.get("digits", 0.0)}
        peaks = {(self.node, 0): plan.peaks_per_s.get("digits", 0.0)}
        self.twin = Counted(self, deployment, terrain, rates, peaks)

    async def tell(self, offers: list[Offer], running: dict[str, int]) -> None:
        """Tell both, let both come to what follows, and compare that."""
        live, twin, node = self.live, self.twin, self.node
        live.offers = offers
        heeded = live.fleets.heed("digits")
        assert twin.heed(node, 0, self.now_s)[0] == heeded
        self.compare()
        self.copies = running
        await live.fleets.run({("digits", name): count for name, count in running.items()})
        await live.fleets.refresh("digits")
        twin.refresh(node, 0, self.now_s)
        self.compare()

    def take(self, variant: str, requests: int) -> None:
        """Let the node's own clients, and neighbors beside, take copies' time; both look."""
        model = self.twin._terrain.index[self.node, 0, variant]
        self.taken["digits", variant] += requests
        self.twin.for_clients[self.node][model] += requests
        self.twin.served[model] += 10 * requests
        self.rates.look(self.now_s, self.taken)
        self.twin.look(self.node, self.now_s)
        self.compare()

    def compare(self) -> None:
        one, other = self.live.site.present, self.twin.by.get((self.node, 0))
        assert (one is None) == (other is None)
        if one is None or other is None:
            return
        mine, theirs = one.dispatcher, other.dispatcher
        assert mine.fleet.variants == theirs.fleet.variants
        for name in ("rate", "accuracy", "count"):
            assert np.array_equal(getattr(mine.fleet, name), getattr(theirs.fleet, name))
        assert mine.policy_name == theirs.policy_name
        assert (mine.fleet.confidence is None) == (theirs.fleet.confidence is None)
        for table, other_table in zip(
            mine.fleet.confidence or (), theirs.fleet.confidence or (), strict=True
        ):
            assert np.array_equal(table, other_table)
        assert mine.fleet.buffer == theirs.fleet.buffer
        assert mine.lasting == theirs.lasting
        assert np.array_equal(mine.site.healthy, theirs.site.healthy)
        assert one.servers.batches == bool(other.batches)
        mine_of, theirs_of = (
            self.live.fleets.spare(self.rates.per_s),
            self.twin.own(self.node),
        )
        for own, offered in zip(mine_of, theirs_of, strict=True):
            for mine_is, theirs_is in zip(astuple(own), astuple(offered), strict=True):
                assert mine_is == (
                    pytest.approx(theirs_is) if isinstance(theirs_is, float) else theirs_is
                )
        self.decide(mine, theirs)

    def decide(self, mine: Any, theirs: Any) -> None:
        """Ask both for the same requests at the same times, and take them back."""
        rng, decided = np.random.default_rng(1), []
        for deadline_s in (np.inf, 0.5, 0.005):
            for draw in rng.integers(-(2**63), 2**63, 40, dtype=np.int64).tolist():
                asked = (self.now_s, draw, self.now_s + deadline_s)
                both = {one.arrive(*asked) for one in (mine, theirs)}
                assert len(both) == 1
                decided += both
        for server in decided:
            if server >= 0:
                for one in (mine, theirs):
                    one.withdraw(server, 0, self.now_s)
        if mine.settles:
            self.settle(mine, theirs, rng)

    def settle(self, mine: Any, theirs: Any, rng: np.random.Generator) -> None:
        """Let both decide on the same answers, and go back to the first where they ask again."""
        both, asked = (mine, theirs), 0
        for deadline_s in (np.inf, 0.5, 0.02):
            for draw in rng.integers(-(2**63), 2**63, 20, dtype=np.int64).tolist():
                at_s, sure = self.now_s + deadline_s, rng.random(1)
                server, *others = (one.arrive(self.now_s, draw, at_s) for one in both)
                assert others == [server]
                if server < 0:
                    continue
                answer = server, self.now_s, ~draw, sure, mine.credit, 1, self.now_s, at_s
                to, *others = (one.settle(*answer) for one in both)
                assert others == [to]
                for one in both:
                    in_hand, credit = one.in_hand, one.credit
                    one.finish(server, self.now_s, 0.0)
                    if to >= 0:
                        position = int(one.site.queue[to]) - 1
                        more = {"first": server, "in_hand": in_hand, "credit": credit}
                        one.fall_back(to, position, self.now_s, **more)
                assert mine.balance == pytest.approx(theirs.balance)
                asked += to >= 0
        self.asked += asked


class Counted(NodePools):
    """Pools of copies that a test says."""

    def __init__(self, both: Both, deployment: Any, terrain: Terrain, rates: Any, peaks: Any):
        self._both = both
        by_task = {}

        def offers(node: int) -> dict[str, list[Offer]]:
            by_task["digits"] = both.live.offers
            return by_task if node == both.node else {}

        super().__init__(deployment, terrain, rates, peaks, offers, seed=1, measure=True)

    def copies(self, node: int) -> Any:
        index = self._terrain.index
        return {index[node, 0, name]: count for name, count in self._both.copies.items()}


@pytest.mark.parametrize(
    ("task", "mini"),
    [
        ("deadline: 1 s", ""),
        ("accuracy_target: 0.85", ""),
        ("accuracy_target: 0.85\n    dispatch: {policy: escalate}", ""),
        ("dispatch: {policy: fastest-only}", BATCH),
    ],
)
def test_both_worlds_come_to_the_same(tmp_path: Path, task: str, mini: str) -> None:
    async def main() -> None:
        live = World(tmp_path, task=task, mini=mini)
        both = Both(tmp_path, live, task, mini)
        await live.load("mini", "small")

        async def pass_time(by_s: float) -> None:
            live.later_s += by_s
            both.now_s += by_s

        async with asyncio.timeout(60):
            await both.tell([CLOUD], {})
            await both.tell([CLOUD, METRO], {"mini": 1})
            await both.tell([CLOUD, METRO], {"mini": 2})
            await pass_time(1.0)
            both.take("mini", 30)
            await pass_time(1.0)
            both.take("mini", 0)
            # It is taken back, keeps its class while others change, and is forgotten.
            await both.tell([CLOUD], {"mini": 2})
            await pass_time(0.9 * REMEMBERED_S)
            await both.tell([CLOUD], {"mini": 2, "small": 1})
            assert "small@metro" in live.site.pool.variants
            await both.tell([METRO], {"mini": 2, "small": 1})
            await both.tell([CLOUD], {"mini": 2})
            await pass_time(2.0 * REMEMBERED_S)
            await both.tell([CLOUD], {"mini": 1})
            assert "small@metro" not in live.site.pool.variants
            # By another way, and with batches that need more servers.
            await both.tell([CLOUD, METRO], {"mini": 1})
            live.upstreams["cloud"] = live.upstreams["metro"]
            await both.tell([CLOUD, FAR], {"mini": 1})
            await both.tell([CLOUD, msgspec.structs.replace(FAR, together=6)], {"mini": 1})
            await both.tell([], {"mini": 1})
            assert (both.asked > 0) == ("escalate" in task)
            await live.server.stop(1.0)
        live.upstreams["metro"].close()
        live.models.close()
        live.store.close()

    asyncio.run(main())


MOVED = """
tasks:
  digits:
    max_instances: 3
    variants:
      a: {accuracy: 0.7, size: 25 MB, service: {mean: 1 ms}}
      b: {accuracy: 0.8, size: 50 MB, service: {mean: 2 ms}}
      c: {accuracy: 0.9, size: 75 MB, service: {mean: 4 ms}}
nodes:
  cloud: {repository: true}
  metro: {budget: 100 MB}
  edge: {budget: 100 MB PINNED}
network:
  links: [{between: [cloud, metro], rtt: 10 ms}, {between: [metro, edge], rtt: 10 ms}]
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
MOVED_BYTES = {("digits", "a"): 25e6, ("digits", "b"): 50e6, ("digits", "c"): 75e6}
STEP_S = 0.125
# Until when, what is wanted, which variants cannot be loaded. Every load that is under way when
# others are wanted is wanted still.
WISHES = [
    (2.0, {"a": 1}, ""),
    (4.0, {"b": 1}, ""),
    (8.0, {"a": 1, "c": 1}, ""),
    (11.0, {"b": 1}, "b"),
    (16.0, {"b": 1}, ""),
    (19.0, {"a": 2, "b": 1}, ""),
    (20.5, {"c": 1}, "c"),
    (20.625, {"a": 1}, "c"),
    (24.0, {"a": 1, "c": 1}, "c"),
    (32.0, {"a": 1, "c": 1}, ""),
    (34.0, {}, ""),
]
# What comes of it where copies are gone at once, without and with a pinned one: s, move, variant.
MOVES = """
0 load a, 0.25 loaded a, 2 load b, 2.5 loaded b, 2.5 unload a,
4 load a, 4.25 loaded a, 4.25 unload b, 4.25 load c, 5 loaded c,
8 unload c, 8 load b, 8.5 failed b, 9.5 load b, 10 failed b, 12 load b, 12.5 loaded b,
12.5 unload a, 16 load a, 16.25 loaded a, 16.25 load a, 16.5 loaded a,
19 unload b, 19 unload a, 19 load c, 19.75 failed c, 20.75 load c, 21.5 failed c, 23.5 load c,
24.25 loaded c, 32 unload a, 32 unload c
"""
PINNED_MOVES = """
2 load b, 2.5 loaded b, 4 unload b, 4 load c, 4.75 loaded c,
8 unload c, 8 load b, 8.5 failed b, 9.5 load b, 10 failed b, 12 load b, 12.5 loaded b,
16 load a, 16.25 loaded a,
19 unload b, 19 unload a, 19 load c, 19.75 failed c, 20.75 load c, 21.5 failed c, 23.5 load c,
24.25 loaded c, 32 unload c
"""
Log = list[str]


class FakeModels:
    """Models that take as long to load as their sizes say, and fail where a test has it."""

    broken = ""
    freed: Callable[[], None]

    async def load(self, task: str, variant: str, progress: Any) -> None:
        await asyncio.sleep(MOVED_BYTES[task, variant] / 100e6)
        if variant in self.broken:
            raise LoadError(f"{task}/{variant} is broken")

    def is_ready(self, task: str, variant: str) -> bool:
        return True

    def release(self, task: str, variant: str) -> bool:
        return True

    def forget(self, task: str, variant: str) -> None: ...


def logged(moves: Any, name: Callable[[Any], str], now: Callable[[], float]) -> Log:
    """Have all moves logged from now on: when, what, of which variant."""
    log: Log = []

    def logs(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(one: Any, *more: Any) -> Any:
            log.append(f"{now():g} {verb} {name(one)}")
            return call(one, *more)

        return told

    for verb in ("load", "loaded", "failed", "unload"):
        setattr(moves, verb, logs(verb, getattr(moves, verb)))
    return log


async def moved_live(patient: Patient, pinned: dict[str, int], drain_s: float) -> Log:
    start_s = patient.time() + 1.0
    models, before = FakeModels(), Counter[tuple[str, str]]()

    async def announce(running: Mapping[tuple[str, str], int]) -> None:
        nonlocal before
        gone, before = before - Counter(running), Counter(running)
        if gone:
            await asyncio.sleep(drain_s)

    reconciler = Reconciler(
        models,  # type: ignore[arg-type]
        announce,
        sizes=MOVED_BYTES,
        budget_bytes=100e6,
        pinned={("digits", variant): count for variant, count in pinned.items()},
        now=patient.time,
    )
    tasks = [asyncio.ensure_future(reconciler.toward({}))]

    async def until(end_s: float) -> None:
        while patient.time() - start_s < end_s:
            for _ in range(8):
                await patient.let(0.0)
            await patient.let(STEP_S)

    await until(0.0)
    log = logged(
        reconciler.moves,
        lambda one: one.pair[1] if isinstance(one, Copy) else one[1],
        lambda: patient.time() - start_s,
    )
    tasks.append(asyncio.ensure_future(reconciler.persist()))
    for end_s, wanted, models.broken in WISHES:
        asked = {("digits", variant): count for variant, count in wanted.items()}
        tasks.append(asyncio.ensure_future(reconciler.toward(asked)))
        await until(end_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return log


class Failing(Mover):
    """A mover whose loads fail where a test has it."""

    broken: set[int]

    def _loaded(self, p: int) -> None:
        if p not in self.broken:
            return super()._loaded(p)
        self._moves.loading.discard(p)
        self._moves.failed(self._moves.kind(p), "broken", self._clock.now_s)
        return self._go_on()


class Calls:
    """A clock that calls what is due, in the order of its times."""

    now_s = 0.0

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def after(self, wait_s: float, call: Callable[[Any], None], argument: Any) -> None:
        self._due.append((self.now_s + wait_s, len(self._due), call, argument))

    def until(self, end_s: float) -> None:
        while soon := [one for one in self._due if one[0] <= end_s]:
            first = min(soon, key=lambda one: one[:2])
            self._due.remove(first)
            self.now_s = first[0]
            first[2](first[3])
        self.now_s = end_s


def terrain_of(folder: Path, pinned: Mapping[str, int]) -> Terrain:
    file = folder / "moved.yaml"
    copies = ", ".join(f"digits/{variant}: {count}" for variant, count in pinned.items())
    file.write_text(MOVED.replace(" PINNED", f", pinned: {{{copies}}}" if copies else ""))
    deployment = inferway.load(file)
    return Terrain(deployment, network_of(deployment))


def moved_twin(folder: Path, pinned: dict[str, int], drain_s: float) -> Log:
    terrain, clock = terrain_of(folder, pinned), Calls()
    edge = terrain.number["edge"]
    pairs = {name: terrain.models[terrain.index[edge, 0, name]].pairs for name in "abc"}
    running: set[int] = set()

    class Pool:
        in_flight = 1
        gone: Callable[[], None]

    def refresh(task: int) -> Any:
        if not (mover._moves.leaving and drain_s):
            return None
        pool = Pool()
        clock.after(drain_s, lambda _: pool.gone(), None)
        return pool

    mover = Failing(
        terrain,
        edge,
        running,
        refresh=refresh,
        clock=clock,
        told_s=0.0,
        load_s=lambda size: size / 100e6,
        moved=lambda p: None,
    )

    def allocation(wanted: Mapping[str, int]) -> Any:
        """Choose copies that run already before others, as the live node does by counting."""
        chosen = np.zeros(len(terrain.network.pairs.node), np.uint8)
        for name, count in (Counter(wanted) | Counter(pinned)).items():
            chosen[sorted(pairs[name], key=lambda p: p not in running)[:count]] = 1
        return chosen

    mover.begin(allocation(pinned))
    variant = {p: name for name, copies in pairs.items() for p in copies}
    log = logged(
        mover._moves,
        lambda one: variant[one] if isinstance(one, int) else one[1],
        lambda: clock.now_s,
    )
    for end_s, wanted, broken in WISHES:
        mover.broken = {p for name in broken for p in pairs[name]}
        mover.toward(allocation(wanted))
        clock.until(end_s)
    return log


@pytest.mark.parametrize("drain_s", [0.0, 0.25])
@pytest.mark.parametrize(("pinned", "moves"), [({}, MOVES), ({"a": 1}, PINNED_MOVES)])
def test_both_worlds_make_the_same_moves(
    patient: Patient,
    run: Callable[[Coroutine[Any, Any, None]], None],
    tmp_path: Path,
    pinned: dict[str, int],
    moves: str,
    drain_s: float,
) -> None:
    async def main() -> None:
        live = await moved_live(patient, pinned, drain_s)
        twin = moved_twin(tmp_path, pinned, drain_s)
        expected = [move.strip() for move in moves.split(",")]
        if not drain_s:
            assert live == twin == expected
        # Live, what leaves leaves together; in the twin, one copy after another.
        for log in (live, twin):
            assert [one.split()[1:] for one in log] == [one.split()[1:] for one in expected]

    run(main())


def own_at(node: str, spare_per_s: float, *variants: str, repository: bool = False) -> list[Offer]:
    kinds = {"a": (0.7, 0.001), "b": (0.8, 0.002), "c": (0.9, 0.004)}
    return [
        own_offer(node, "digits", name, *kinds[name], spare_per_s, repository) for name in variants
    ]


def test_both_worlds_keep_the_same_books(tmp_path: Path) -> None:
    async def main() -> None:
        terrain, clock = terrain_of(tmp_path, {}), Calls()
        own: dict[str, list[Offer]] = {"edge": [], "metro": [], "cloud": []}
        heard_live: list[set[str]] = []
        heard_twin: list[set[str]] = []

        def changed(node: int, tasks: set[str]) -> None:
            if node == terrain.number["edge"]:
                heard_twin.append(tasks)

        exchange = OfferExchange(
            terrain, lambda node: own[terrain.network.nodes[node]], changed, clock.after
        )
        wires = Wires(("edge", "metro"), ("metro", "cloud"))
        tables = {
            "edge": wires.table("edge", "metro", heard_live),
            "metro": wires.table("metro", "cloud"),
            "cloud": wires.table("cloud", None),
        }
        wires.join(*tables)
        exchange.begin()
        first_s = wires.time_s
        used: list[str] = []
        for after_s, news in (
            (0.1 * REFRESH_S, {"cloud": own_at("cloud", 50.0, "c", repository=True)}),
            (0.1 * REFRESH_S, {"metro": own_at("metro", 100.0, "a")}),
            (
                0.1 * REFRESH_S,
                {"metro": own_at("metro", 95.0, "a")},
            ),  # of no worth: waits for its time
            (0.1 * REFRESH_S, {"metro": own_at("metro", 40.0, "a")}),
            (0.1 * REFRESH_S, {"metro": own_at("metro", 40.0, "a", "b")}),
            (1.1 * REFRESH_S, {"metro": own_at("metro", 36.0, "a", "b")}),
            (0.1 * REFRESH_S, {"metro": own_at("metro", 0.0, "c")}),
            (0.1 * REFRESH_S, {"metro": own_at("metro", 90.0, "c")}),
            (
                0.1 * REFRESH_S,
                {"metro": [], "cloud": own_at("cloud", 60.0, "b", "c", repository=True)},
            ),
            (1.1 * REFRESH_S, {"cloud": []}),
        ):
            wires.time_s += after_s
            clock.until(wires.time_s - first_s)
            own |= news
            for name in ("cloud", "metro"):
                tables[name].offer(own[name])
                tables[name]._tell()
                exchange.tell(terrain.number[name], clock.now_s)
            for _ in tables:
                mail, wires.mail = wires.mail, []
                for sender, to, name, data in mail:
                    wires.peers[to].hears(sender, name, data)
                await asyncio.sleep(0.0)
                for table in tables.values():
                    table._tell()
            clock.until(wires.time_s - first_s + 0.1)
            for name, table in tables.items():
                one, other = table._book, exchange._books[terrain.number[name]]
                assert (one.used, list(one.own)) == (other.used, list(other.own))
                assert (one.source or one.upstream) == (other.source or other.upstream)
                for neighbor, offers in other.heard.items():
                    assert list(one.heard.get(neighbor, ())) == offers
            said = [
                f"{one.variant}@{one.node} {one.spare_per_s:g}"
                for one in tables["edge"].offers("digits")
            ]
            used.append(", ".join(said))
        assert heard_live == heard_twin
        assert used == [
            "c@cloud 50",
            "a@metro 100, c@cloud 50",
            "a@metro 100, c@cloud 50",
            "a@metro 40, c@cloud 50",
            "a@metro 40, b@metro 40, c@cloud 50",
            "a@metro 36, b@metro 36, c@cloud 50",
            "c@cloud 50, c@metro 0",
            "c@cloud 50, c@metro 90",
            "b@cloud 60, c@cloud 60",
            "",
        ]

    asyncio.run(main())
