"""The sites of a node: one per task, made anew as its variants and its neighbors' offers change.

A site's fleet is what runs at the node and, behind these, a class of virtual servers for each offer
(`inferway.dispatch.offers`). When either changes, a new site takes over as it does when a file is
applied: ready before it gets a request, while the old one answers what it has. What was measured,
the balance and what the policy has learned go along.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from inferway.dispatch.batching import foresee, rules_of
from inferway.dispatch.deployed import dispatcher_on
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.offers import Offer, fleet_at, lasting_classes
from inferway.dispatch.service_times import carry_over
from inferway.live.assembly import demand_at
from inferway.live.errors import ServeError
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.node.models import LoadedModels
from inferway.live.node.plan import NodePlan
from inferway.live.pool import Pool, PoolOptions
from inferway.live.site import Site
from inferway.live.threads import run_detached
from inferway.live.upstream.remote import Forwarding
from inferway.live.upstream.spans import Spans
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import Signature
from inferway.runtime import Served
from inferway.site.view import WHOLE

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Node, Task
    from inferway.site import Fleet

Key = tuple[str, str]
"""Task and variant."""


REMEMBERED_S: Final = 60.0
"""How long an offer that was taken back keeps its class."""

# Where a task's clients are elsewhere, or come later.
_RARE_PER_S: Final = 1e-3

Way = tuple[str, str, tuple[str, ...]]
"""Variant, node, and the path there."""


class _MadeOf(NamedTuple):
    """What a site was made of: the node's own copies by variant, and the ways to others."""

    own: Mapping[str, int]
    ways: frozenset[Way]
    stands_for: Sequence[Offer | None] = ()
    """By class, the offer behind it; None for the node's own."""


_NOTHING: Final = _MadeOf({}, frozenset())


def _way(offer: Offer) -> Way:
    return offer.variant, offer.node, offer.path


def _ways(offers: Iterable[Offer]) -> frozenset[Way]:
    return frozenset(map(_way, offers))


class Sites:
    """Makes the sites of a node.

    Parameters
    ----------
    deployment
        The file.
    plan
        The node's.
    member
        What the file says of the node.
    sites
        By task, whose fleets these are.
    replace
        Lets a fleet, or none, answer a task; returns what ends when the fleet before has gone.
    models
        The node's loaded models.
    offers
        What the node goes by, of a task.
    signature
        What neighbors say that a task takes and gives; None where none says it.
    upstreams
        By neighbor, for those that may be forwarded to.
    spans
        Made of what is forwarded; None makes none.
    now
        The sites' clock, s.
    headroom
        Of all runs; None bounds nothing.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: NodePlan,
        member: Node,
        *,
        sites: Mapping[str, Site],
        replace: Callable[[str, Pool | None], Awaitable[asyncio.Task[None] | None]],
        models: LoadedModels,
        offers: Callable[[str], Iterable[Offer]],
        signature: Callable[[str], Signature | None],
        upstreams: Mapping[str, Upstream],
        spans: Spans | None = None,
        now: Callable[[], float] = time.monotonic,
        headroom: Headroom | None = None,
    ) -> None:
        self._headroom = headroom
        self._deployment, self._plan, self._member = deployment, plan, member
        self._replace, self._models = replace, models
        self._signature, self._spans = signature, spans
        self._offers, self._upstreams, self._now = offers, upstreams, now
        self.running: dict[Key, int] = {}
        """Copies of the node's own variants that take requests."""
        self._sites = sites
        self._made_of: dict[str, _MadeOf] = {}
        self._heard: dict[str, dict[Key, tuple[Offer, float]]] = {}
        """Offers by variant and node, and since when each holds no more; inf while it does."""
        self._locks: dict[str, asyncio.Lock] = {}

    def pool(self, task: str) -> Pool | None:
        """The fleet that answers a task now; None where none does."""
        return self._sites[task].present

    async def run(self, running: Mapping[Key, int]) -> None:
        """Have these copies take requests and no others; returns when those that left are idle."""
        self.running = {key: copies for key, copies in running.items() if copies > 0}
        # Compared with what sites are made of: what failed or was canceled before is made up for.
        tasks = {
            task
            for task in {task for task, _ in self.running} | self._made_of.keys()
            if self._own(task) != self._made_of.get(task, _NOTHING).own
        }
        leaving = []
        for task in sorted(tasks):
            before = self._made_of.get(task, _NOTHING).own
            replaced = await self.refresh(task)
            # What only came need not wait for requests that are on their way to others.
            if replaced is not None and not Counter(before) <= Counter(self._own(task)):
                leaving.append(replaced)
        if leaving:
            await asyncio.wait(leaving)

    def heed(self, task: str) -> bool:
        """Follow a task's offers at once, as far as its site has classes for them.

        Returns
        -------
        bool
            Whether there are others, or batches need more of them under way at once than the site
            has servers for, so that it has to be made anew.
        """
        if task not in self._plan.tasks:
            return False  # of another file's
        offers = tuple(self._offers(task))
        made, ways = self._made_of.get(task, _NOTHING), _ways(offers)
        pool = self.pool(task)
        if pool is not None:
            gone = made.ways - ways
            # The same may be offered by another way, which the fleet does not know.
            pool.withdraw({(variant, node) for variant, node, _ in gone})
            pool.dispatcher.set_lasting(self._lasting(made.stands_for, ways))
        room = {_way(offer): offer.together for offer in made.stands_for if offer is not None}
        grown = any(offer.together > room.get(_way(offer), math.inf) for offer in offers)
        return grown or not ways <= made.ways

    async def refresh(self, task: str) -> asyncio.Task[None] | None:
        """Make a task's site anew where its own copies have changed or there are new offers.

        Offers that were taken back keep their class for a while: most come again.

        Returns
        -------
        asyncio.Task or None
            Ends when the site that it replaces is gone; None where it stays, or there was none.
        """
        async with self._locks.setdefault(task, asyncio.Lock()):
            own = {variant: copies for (of, variant), copies in self.running.items() if of == task}
            made = self._made_of.get(task, _NOTHING)
            if not self.heed(task) and own == made.own:
                return None
            offers = self._known(task)
            # A node that has no file of the task yet forwards all the same.
            signature = await self._models.learn(task) or self._signature(task)
            pool: Pool | None = None
            stands_for: Sequence[Offer | None] = ()
            if signature is not None and (own or offers):
                # One loan for all copies: a site gives back what it has been lent when it goes.
                lent = {variant: self._models.acquire(task, variant) for variant in own}
                try:
                    pool, stands_for = await run_detached(
                        self._made, task, signature, own, offers, lent
                    )
                except BaseException:
                    for runtime in lent.values():
                        runtime.close()
                    raise
            leaving = await self._replace(task, pool)
            # Where it is not known what the task takes, the next look tries again.
            ways = _ways(offers) if signature is not None else frozenset()
            self._made_of[task] = _MadeOf(own, ways, stands_for)
            self.heed(task)
            return leaving

    def _own(self, task: str) -> dict[str, int]:
        return {variant: copies for (of, variant), copies in self.running.items() if of == task}

    def _lasting(self, stands_for: Sequence[Offer | None], ways: Collection[Way]) -> int:
        """Which classes are the last resort now: of repositories, those that can be reached."""
        within_reach = [
            offer
            if offer is None or _way(offer) in ways
            else msgspec.structs.replace(offer, repository=False)
            for offer in stands_for
        ]
        return lasting_classes(within_reach, repository=self._plan.repository)

    def _rate_per_s(self, task: str) -> float | None:
        """Expected arrival rate of a task here, for its policy; None where nothing says it."""
        rate_per_s = self._plan.rates_per_s.get(task, 0.0)
        if rate_per_s > 0.0:
            return rate_per_s
        spec = self._deployment.policy_of(self._plan.tasks[task])
        if spec.options.get("window") or all(of != task for of, _ in self._plan.types):
            return None
        # What neighbors send has been decided on: the policy here has next to nothing to do.
        return _RARE_PER_S

    def _known(self, task: str) -> list[Offer]:
        """Offers that hold, and others of the last minute to which there is no way now."""
        now_s, heard = self._now(), self._heard.get(task, {})
        offers = [one for one in self._offers(task) if one.path[0] in self._upstreams]
        held = {(one.variant, one.node): (one, math.inf) for one in offers}
        gone = {
            key: (one, min(since_s, now_s))
            for key, (one, since_s) in heard.items()
            if key not in held and now_s - since_s <= REMEMBERED_S
        }
        self._heard[task] = held | gone
        return offers + [one for one, _ in gone.values()]

    def _round_trips_s(
        self, variants: Sequence[str], stands_for: Sequence[Offer | None]
    ) -> dict[str, float | None]:
        """By class, the round trip that its servers were last told; None where not known."""
        return {
            name: self._upstreams[offer.path[0]].round_trip_s(offer.path)
            for name, offer in zip(variants, stands_for, strict=True)
            if offer is not None
        }

    def _made(
        self,
        task: str,
        signature: Signature,
        own: Mapping[str, int],
        offers: list[Offer],
        lent: Mapping[str, Served],
    ) -> tuple[Pool, Sequence[Offer | None]]:
        kind, member = self._plan.tasks[task], self._member
        network = self._deployment.network
        described = [
            (
                variant,
                kind.variants[variant].accuracy,
                kind.variants[variant].service_on(self._plan.hardware).rate,
                copies,
            )
            for variant, copies in own.items()
        ]
        fleet, stands_for = fleet_at(
            task,
            described,
            offers,
            member.buffer,
            node=self._plan.node,
            rate_per_s=self._plan.peaks_per_s.get(task, 0.0),
        )
        try:
            dispatcher = dispatcher_on(
                self._deployment,
                kind,
                fleet,
                rate_per_s=self._rate_per_s(task),
                narrow=member.late == "drop",
                max_wait_s=None if network is None else network.max_wait,
                lasting=self._lasting(stands_for, _ways(offers)),
                best_effort=True,
            )
        except ValueError as error:
            raise ServeError(f"{self._deployment.path}: tasks.{kind.name}.dispatch: {error}") from (
                error
            )
        batches = [
            kind.variants[name].batch if offer is None else None
            for name, offer in zip(fleet.variants, stands_for, strict=True)
        ]
        foresee(dispatcher.site, batches)
        dispatcher.prepare(shifts=True)
        demands = self._demands(task, kind, fleet, dispatcher, signature, stands_for)
        before = self.pool(task)
        carried: list[str] = []
        rtt_s: dict[str, float | None] = {}
        if before is not None:
            # A way that has changed is measured anew.
            same = {
                name
                for name, offer in zip(fleet.variants, stands_for, strict=True)
                if offer is None or _way(offer) in self._made_of[task].ways
            }
            # The old site's times may be shifted while they are copied, in another thread.
            while True:
                rtt_s = self._round_trips_s(fleet.variants, stands_for)
                carried = carry_over(dispatcher, before.dispatcher, same)  # type: ignore[arg-type]
                if rtt_s == self._round_trips_s(fleet.variants, stands_for):
                    break
        runtimes: list[Served | Forwarding] = []
        for name, count, offer in zip(fleet.variants, fleet.count, stands_for, strict=True):
            runtime: Served | Forwarding = (
                lent[name]
                if offer is None
                else Forwarding(
                    self._upstreams[offer.path[0]],
                    offer.node,
                    offer.variant,
                    offer.path,
                    self._spans,
                    rtt_s[name] if name in carried else offer.rtt_s,
                )
            )
            runtimes += [runtime] * int(count)
        options = self._deployment.policy_of(kind).options
        pool = Pool(
            task,
            signature,
            dispatcher,
            runtimes,
            PoolOptions(
                seed=self._deployment.seed,
                target=kind.accuracy_target,
                deadline_s=kind.deadline_s,
                drop_late=member.late == "drop",
                rules=rules_of(dispatcher.site, batches) if any(batches) else None,
                headroom=self._headroom,
                demands=demands,
                window_s=None if options.get("rate") else options.get("window"),
                node=self._plan.node,
                idempotent=kind.idempotent,
                now=self._now,
            ),
        )
        return pool, stands_for

    def _demands(
        self,
        task: str,
        kind: Task,
        fleet: Fleet,
        dispatcher: Dispatcher,
        signature: Signature,
        stands_for: Sequence[Offer | None],
    ) -> list[MemoryNeed | None]:
        """What requests take at the node's own copies; runs that are too large are divided."""
        found: list[MemoryNeed | None] = []
        for k, (name, offer) in enumerate(zip(fleet.variants, stands_for, strict=True)):
            servers = slice(int(fleet.first[k]), int(fleet.first[k + 1]))
            view = dispatcher.site
            if offer is not None:
                view.most_rows[servers] = WHOLE  # whoever runs it divides it
                found.append(None)
            elif self._headroom is None:
                found.append(None)
            else:
                growth = self._models.growth(task, name)
                variant, room = kind.variants[name], self._headroom
                found.append(demand_at(view, servers, variant, signature, room, growth))
        return found
