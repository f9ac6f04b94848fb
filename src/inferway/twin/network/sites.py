"""The sites of all nodes: one per task and node, made anew as copies and offers change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from inferway.dispatch.deployed import dispatcher_on
from inferway.dispatch.offers import Offer, Own, fleet_at, lasting_classes
from inferway.placement.contract import Allocation
from inferway.twin.network.services import ServiceTimes
from inferway.twin.network.site import Site
from inferway.twin.network.terrain import Terrain

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Sites:
    """Makes and keeps the sites.

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
    max_wait_s
        Servers that are predicted to make a request wait longer are passed over, but those of
        repositories.
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
        max_wait_s: float,
        measure: bool,
    ) -> None:
        self._deployment, self._terrain = deployment, terrain
        self._rates_per_s, self._peaks_per_s = rates_per_s, peaks_per_s
        self._offers = offers
        self._max_wait_s, self._measure = max_wait_s, measure
        self.running: list[set[int]] = [set() for _ in terrain.nodes]
        """Pairs whose copies take requests, by node."""
        self.going: list[set[int]] = [set() for _ in terrain.nodes]
        """Models that are offered no more, since all of their copies are to go, by node."""
        self.by: dict[tuple[int, int], Site] = {}
        """By node and task."""
        self.served = [0] * len(terrain.models)
        """Requests that each model has served."""
        self._seen = [0] * len(terrain.models)
        self._rate_per_s = [0.0] * len(terrain.models)
        self._model_of = {p: i for i, model in enumerate(terrain.models) for p in model.pairs}
        self._made_of: dict[tuple[int, int], object] = {}
        self._times = [
            ServiceTimes(
                terrain.kinds[model.task]
                .variants[model.variant]
                .service_on(terrain.nodes[model.node].hardware),
                seed,
                number,
            )
            for number, model in enumerate(terrain.models)
        ]

    def copies(self, node: int) -> Counter[int]:
        """How many copies of each model run at a node; several where a repository needs them."""
        terrain = self._terrain
        found: Counter[int] = Counter()
        for p in sorted(self.running[node]):
            found[self._model_of[p]] += 1
        for i in terrain.at[node]:
            if terrain.models[i].pinned:
                found[i] = max(found[i], terrain.models[i].pinned)
        return found

    def own(self, node: int) -> list[Own]:
        """What a node offers: what it runs, less what it has served of late."""
        terrain = self._terrain
        found = []
        for i, count in self.copies(node).items():
            if i in self.going[node]:
                continue
            model = terrain.models[i]
            spare = max(0.0, count / model.service_s - self._rate_per_s[i])
            name = terrain.network.tasks[model.task]
            found.append(
                Own(
                    name,
                    model.variant,
                    model.accuracy,
                    model.service_s,
                    spare,
                    terrain.nodes[node].repository,
                )
            )
        return found

    def aim(self, node: int, allocation: Allocation) -> None:
        """Offer no more what a (P,) allocation takes away from a node."""
        models = self._terrain.models
        self.going[node] = {
            i
            for i in self.copies(node)
            if not models[i].pinned and not any(allocation[p] for p in models[i].pairs)
        }

    def look(self, node: int, over_s: float) -> None:
        """Note what the node's models have served per second since it last looked."""
        for i in self._terrain.at[node]:
            self._rate_per_s[i] = (self.served[i] - self._seen[i]) / over_s
            self._seen[i] = self.served[i]

    def refresh(self, node: int, task: int) -> Site | None:
        """Make a site anew where its copies or offers have changed.

        Returns
        -------
        Site or None
            The one that was there before, if another has taken over.
        """
        terrain = self._terrain
        name = terrain.network.tasks[task]
        copies = {i: n for i, n in self.copies(node).items() if terrain.models[i].task == task}
        offers = self._offers(node).get(name, [])
        ways = sorted((one.variant, one.node, one.path) for one in offers)
        made_of = (tuple(sorted(copies.items())), tuple(ways))
        if self._made_of.get((node, task)) == made_of or not (copies or offers):
            return None
        self._made_of[node, task] = made_of
        before = self.by.get((node, task))
        site = self._made(node, task, copies, offers)
        self.by[node, task] = site
        if before is not None:
            site.inherit(before)
        return before

    def _made(self, node: int, task: int, copies: Mapping[int, int], offers: list[Offer]) -> Site:
        terrain = self._terrain
        models, ground, kind = terrain.models, terrain.nodes[node], terrain.kinds[task]
        own = [
            (models[i].variant, models[i].accuracy, 1.0 / models[i].service_s, count)
            for i, count in copies.items()
        ]
        name = terrain.network.tasks[task]
        fleet, stands_for = fleet_at(
            name,
            own,
            offers,
            ground.buffer,
            node=ground.name,
            rate_per_s=self._peaks_per_s.get((node, task), 0.0),
        )
        dispatcher = dispatcher_on(
            self._deployment,
            kind,
            fleet,
            rate_per_s=self._rates_per_s.get((node, task)) or None,
            measure=self._measure,
            narrow=ground.drops,
            max_wait_s=self._max_wait_s,
            lasting=lasting_classes(stands_for, repository=ground.repository),
            best_effort=True,
        )
        site = Site(node, task, dispatcher, stands_for, drops=ground.drops)
        for server in site.servers:
            offer = server.offer
            if offer is None:
                variant = fleet.variants[server.key]
                server.model = terrain.index[node, task, variant]
                server.times = self._times[server.model]
            else:
                place = terrain.number[offer.node]
                server.model = terrain.index[place, task, offer.variant]
        return site
