"""The live node and the event twin are told the same, and come to the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lone_node import CLOUD, FILE, METRO, World

import inferway
from inferway.live.node.demand import spare_capacity
from inferway.network import network_of
from inferway.network.node import REMEMBERED_S, ClientRates
from inferway.network.offers import Offer
from inferway.twin.network.pools import NodePools
from inferway.twin.network.terrain import Terrain

BATCH = ", batch: {sizes: [1, 2, 4], service: [1 ms, 1.5 ms, 2 ms], min: 1, max: 4}"
FAR = msgspec.structs.replace(METRO, path=("cloud", "metro"), rtt_s=0.02)


class Both:
    """One node in both worlds; each is told what runs there and what it goes by."""

    def __init__(self, folder: Path, live: World, task: str, mini: str) -> None:
        self.live, self.now_s = live, 0.0
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
        assert mine.fleet.buffer == theirs.fleet.buffer
        assert mine.lasting == theirs.lasting
        assert np.array_equal(mine.site.healthy, theirs.site.healthy)
        assert (one.batcher is None) == (not other.batches)
        mine_of, theirs_of = (
            spare_capacity(self.live.fleets._plan, self.live.fleets, self.rates.per_s),
            self.twin.own(self.node),
        )
        for own, offered in zip(mine_of, theirs_of, strict=True):
            assert own[:2] == offered[:2]
            assert own[2:] == pytest.approx(offered[2:])
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
            await live.server.stop(1.0)
        live.upstreams["metro"].close()
        live.models.close()
        live.store.close()

    asyncio.run(main())
