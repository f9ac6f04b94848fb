"""The fleets of a node: one per task, made anew as its variants and its neighbors' offers change.

What a fleet is made of, and when, is decided in `inferway.network.node`, as for the event twin.
Here it is made: a new pool takes over as it does when a file is applied, ready before it gets a
request, while the old one answers what it has. What was measured goes along.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from inferway.dispatch.service_times import carry_over
from inferway.live.build import pool_of
from inferway.live.errors import ServeError
from inferway.live.node.models import LoadedModels, Pair
from inferway.live.node.offer_table import OfferTable
from inferway.live.node.plan import NodePlan
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.site import TaskSite
from inferway.live.targets import SharedTargets
from inferway.live.threads import run_detached
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream
from inferway.network.node import Capability, TaskFleets, offered
from inferway.network.offers import Offer
from inferway.network.targets import targets_at
from inferway.protocol import Signature
from inferway.runtime import Served

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Fleets:
    """Makes the fleets of a node.

    `sites` are by task those whose fleets these are, and `replace` lets a fleet, or none, answer a
    task; it returns what ends when the fleet before has gone. `offers` are what the node goes by,
    `upstreams` by neighbor those that may be forwarded to, and `spans` are made of what is.
    `running` are the copies of the node's own variants that take requests.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: NodePlan,
        sites: Mapping[str, TaskSite],
        replace: Callable[[str, Pool | None], Awaitable[asyncio.Task[None] | None]],
        models: LoadedModels,
        offers: OfferTable,
        upstreams: Mapping[str, Upstream],
        spans: Spans | None = None,
    ) -> None:
        self._deployment, self._plan, self.sites = deployment, plan, sites
        self._replace, self._models, self._offers = replace, models, offers
        self._upstreams, self._spans = upstreams, spans
        self.running: dict[Pair, int] = {}
        asked = {task for task, _ in plan.types}
        told = targets_at(deployment, plan.deployed.network, plan.number, plan.rates_per_s)
        self._targets = SharedTargets(told) if told else None
        self._tasks = {
            task: TaskFleets(
                deployment,
                kind,
                task,
                plan.node,
                plan.member.hardware,
                plan.repository,
                plan.member.buffer,
                plan.member.late == "drop",
                plan.rates_per_s.get(task, 0.0),
                plan.peaks_per_s.get(task, 0.0),
                elsewhere=task in asked,
                targets=told,
            )
            for task, kind in plan.tasks.items()
        }
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def pool(self, task: str) -> Pool | None:
        """Return the fleet that answers a task now; None where none does."""
        return self.sites[task].present

    async def run(self, running: Mapping[Pair, int]) -> None:
        """Have these copies take requests and no others; returns when those that left are idle."""
        self.running = {key: copies for key, copies in running.items() if copies > 0}
        leaving = []
        # Compared with what fleets are made of: what failed or was canceled before is made up for.
        for task, fleets in sorted(self._tasks.items()):
            before, own = Counter(fleets.own), self._own(task)
            if before == own:
                continue
            replaced = await self.refresh(task)
            # What only came need not wait for requests that are on their way to others.
            if replaced is not None and not before <= Counter(own):
                leaving.append(replaced)
        if leaving:
            await asyncio.wait(leaving)

    def spare(self, taken_per_s: Mapping[Pair, float], but: Container[Pair] = ()) -> list[Offer]:
        """List what runs here, as it is offered to the neighbors, without those of `but`.

        A request's service time is that of the smallest run, alone where the file's `batch` does
        not say more; what can be spared is counted in the batches that pay most, less what the
        node's own clients take, 1/s by task and variant.
        """
        plan, offers = self._plan, []
        for (task, variant), copies in self.running.items():
            pool = self.pool(task)
            if (task, variant) in but or pool is None or variant not in pool.variants:
                continue
            k = pool.variants.index(variant)
            healthy = min(copies, sum(pool.health.healthy[pool.first[k] : pool.first[k + 1]]))
            described = plan.tasks[task].variants[variant]
            hardware = plan.member.hardware
            batch = described.batch_on(hardware)
            one = Capability.of(pool.dispatcher, variant, batch)
            # By profile: what a node's own labels say counts for its own clients.
            taken, accuracy = taken_per_s.get((task, variant), 0.0), pool.grades[k] or 0.0
            what = plan.node, task, variant, accuracy, healthy, one, taken
            offers.append(offered(*what, plan.repository, described.energy_on(hardware)))
        return offers

    def heed(self, task: str) -> bool:
        """Follow a task's offers at once, as far as its fleet has classes for them.

        Tell whether there are others, or batches need more of them under way at once than the fleet
        has servers for, so that it has to be made anew.
        """
        if task not in self._tasks:
            return False  # of another file's
        gone, lasting, outdated = self._tasks[task].heed(self._offers.offers(task))
        pool = self.pool(task)
        if pool is not None:
            pool.withdraw(gone)
            pool.dispatcher.set_lasting(lasting)
        return outdated

    async def refresh(self, task: str) -> asyncio.Task[None] | None:
        """Make a task's fleet anew where its own copies have changed or there are new offers.

        Return what ends when the fleet that it replaces is gone; None where it stays, or there was
        none.
        """
        if task not in self._tasks:
            return None
        async with self._locks[task]:
            fleets, own = self._tasks[task], self._own(task)
            if not self.heed(task) and own == fleets.own:
                return None
            offers = fleets.remember(self._offers.offers(task), self.sites[task].now())
            # A node that has no file of the task yet forwards all the same.
            signature = await self._models.learn(task) or self._offers.signature(task)
            pool, stands_for = None, None
            if signature is not None and (own or offers):
                # One loan for all copies: a pool gives back what it has been lent when it goes.
                lent = {variant: self._models.acquire(task, variant) for variant in own}
                try:
                    pool, stands_for = await run_detached(
                        self._made, task, signature, own, offers, lent
                    )
                except BaseException:
                    for runtime in lent.values():
                        runtime.close()
                    raise
                if self._targets is not None:
                    self._targets.join([pool])
            leaving = await self._replace(task, pool)
            # Where it is not known what the task takes, the next look tries again.
            fleets.adopt(own, () if signature is None else offers, stands_for or ())
            self.heed(task)
            return leaving

    def _own(self, task: str) -> dict[str, int]:
        return {variant: copies for (of, variant), copies in self.running.items() if of == task}

    def _made(
        self,
        task: str,
        signature: Signature,
        own: Mapping[str, int],
        offers: list[Offer],
        lent: Mapping[str, Served],
    ) -> tuple[Pool, Sequence[Offer | None]]:
        """Make a pool of copies and offers, as `TaskFleets` says; in a thread."""
        kind, plan = self._plan.tasks[task], self._plan
        try:
            made = self._tasks[task].make(own, offers)
        except ValueError as error:
            raise ServeError(f"{self._deployment.path}: tasks.{kind.name}.dispatch: {error}") from (
                error
            )
        dispatcher, stands_for = made.dispatcher, made.stands_for
        variants = dispatcher.fleet.variants
        forwarded = {
            name: offer
            for name, offer in zip(variants, stands_for, strict=True)
            if offer is not None
        }

        def round_trips_s() -> dict[str, float | None]:
            """Those that servers were last told, by class; None if not known."""
            return {
                name: self._upstreams[offer.path[0]].trips.round_trip_s(offer.path)
                for name, offer in forwarded.items()
            }

        dispatcher.prepare(shifts=True)
        before, carried = self.pool(task), list[str]()
        rtt_s: dict[str, float | None] = {}
        # The old fleet's times may be shifted while they are copied, in another thread.
        while before is not None:
            rtt_s = round_trips_s()
            # A way that has changed is measured anew.
            same = self._tasks[task].unchanged(made)
            carried = carry_over(dispatcher, before.dispatcher, same)  # type: ignore[arg-type]
            if rtt_s == round_trips_s():
                break
        runtimes = [
            lent[name]
            if (offer := forwarded.get(name)) is None
            else Forwarding(
                self._upstreams[offer.path[0]],
                offer.node,
                offer.variant,
                offer.path,
                self._spans,
                rtt_s[name] if name in carried else offer.rtt_s,
            )
            for name in variants
        ]
        pool = pool_of(
            self._deployment,
            kind,
            dispatcher,
            signature,
            runtimes,
            made.batches,
            lambda variant, _: self._models.growth(task, variant),
            PoolOptions(
                drop_late=plan.member.late == "drop",
                headroom=self._models.headroom,
                node=plan.node,
                now=self.sites[task].now,
            ),
        )
        return pool, stands_for
