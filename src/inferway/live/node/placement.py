"""A node's work at the end of each slot: measure, exchange letters, decide, save, move."""

from __future__ import annotations

import asyncio
import copy
import os
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.live.control.peers import Peers
from inferway.live.node.demand import LocalDemand
from inferway.live.node.fleets import Fleets
from inferway.live.node.models import Pair
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.node.plan import NodePlan
from inferway.live.node.slots import SlotClock
from inferway.live.node.state import DamagedStateError, NodeState, Saved, StateError
from inferway.live.site import balances_of, take_up
from inferway.live.threads import run_detached
from inferway.placement.local import LocalPolicy, loads_of, local_policy, variants_of
from inferway.placement.table import expected_batches, policy_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Slots that a policy in hindsight is told of.
_FORESEEN: Final = 100


class NodePlacement:
    """A node's part of placement, slot by slot.

    Parameters
    ----------
    plan
        The node's.
    policy
        Its part of the placement policy.
    post
        Carries the policy's messages; None where it has none.
    demand
        What was measured.
    clock
        When slots end.
    memory
        Where the state is kept.
    fleets
        Says which copies run, and has the sites whose balances are saved, as of a slot's end.
    log
        Where events go.
    """

    def __init__(
        self,
        plan: NodePlan,
        policy: LocalPolicy,
        post: PlacementMessages | None,
        demand: LocalDemand,
        clock: SlotClock,
        memory: NodeState,
        fleets: Fleets,
        log: Any,
    ) -> None:
        network = plan.deployed.network
        self._plan, self.policy, self._post = plan, policy, post
        self._demand, self._clock, self._memory = demand, clock, memory
        self._fleets, self._log = fleets, log
        self._kept: Saved | None = None
        """As of the last slot's end, but for what is loaded."""
        self._saving: asyncio.Future[None] | None = None
        self._resumed = False
        """Whether what was loaded runs at first, and not what is wanted."""
        self.slot = 0
        """Number of the last slot that has ended; 0 before the first."""
        self.ended = 0
        """Slots that have ended since the start."""
        self._names = variants_of(network, plan.number)
        first, last = network.pairs.first[plan.number : plan.number + 2]
        models = network.models
        self._tasks = [
            network.tasks[models.task[model]] for model in network.pairs.model[first:last]
        ]
        # A repository's copies are planned for the greatest demand there may be (eq. 9); more of
        # them than processors serve nobody sooner.
        most = os.cpu_count() or 1
        self._copies = [min(max(1, int(count)), most) for count in network.pairs.pinned[first:last]]

    async def begin(self) -> dict[Pair, int]:
        """Take up what was saved, and say what is to run, what is to be loaded first in front.

        A state that is damaged is told in the log, and the node begins anew. Nothing is loaded in a
        new process: what is said first is what was loaded, and what is wanted beside. Where the
        node was killed before a copy had made room for another, or could, the former runs until the
        latter does.

        Raises
        ------
        StateError
            Where what was saved is another network's, or cannot be read.
        """
        if self._memory.damage:
            self._log.error("begins anew", reason=self._memory.damage)
        saved = None
        try:
            saved = await run_detached(self._memory.load)
            if saved is not None:
                self._take_up(saved)
        except DamagedStateError as error:
            saved = None
            kept = await run_detached(self._memory.begin_anew)
            self._log.error("begins anew", reason=f"{error}; it is kept as {kept}")
        if self._post is not None:
            self._post.open()
        self._kept = self._now()
        wanted = self.wanted
        if saved is not None:
            self._kept = self._kept._replace(loaded=saved.loaded)
            loaded = self._known(saved.loaded)
            # What was loaded is sure to load again.
            wanted = dict(sorted(wanted.items(), key=lambda one: one[0] not in loaded))
            as_before = np.array_equal(self.policy.x, saved.infida.x)
            if as_before and not Counter(loaded) <= Counter(wanted):
                wanted, self._resumed = loaded, True
        return wanted

    def _take_up(self, saved: Saved) -> None:
        try:
            slot = int(saved.random or b"0")
            self.policy.restore(saved.infida, closed=slot, counters=saved.counters)
        except (TypeError, ValueError) as error:
            raise DamagedStateError(f"the node's state cannot be taken up: {error}") from error
        self.slot = slot
        take_up(self._fleets.sites, saved.balances)
        self._log.info("goes on", slot=slot, loaded=list(saved.loaded))

    async def slots(self) -> AsyncIterator[dict[Pair, int]]:
        """End one slot after another; after each, say what is to run, as `begin` does."""
        if self._resumed:
            self._resumed = False
            yield self.wanted
        while True:
            slot = await self._clock.ended()
            if abs(slot.jumped_s) > 1.0:
                self._log.warning("the clock was set", by_s=round(slot.jumped_s, 3))
            try:
                await self._end(slot.number)
            except Exception as error:  # one slot must not cost all that follow
                self._log.error("a slot was not ended", slot=slot.number, exc_info=error)
            else:
                yield self.wanted
            self.slot, self.ended = slot.number, self.ended + 1
            await self.save()

    async def _end(self, number: int) -> None:
        measured = self._demand.cut()
        load = loads_of(self._plan.data, self._names, measured.served, self.policy.x)
        if self._post is not None:
            self._post.close_slot(number, measured.arrived, load)
            await self._clock.letters()
            self._post.step()
        else:
            self.policy.close_slot(measured.arrived, measured.reached, load, slot=number)
            self.policy.step()

    async def save(self) -> None:
        """Keep the state of this moment; a disk that fails is reported, and the node goes on."""
        self._kept = self._now()
        await self._keep()

    async def moved(self) -> None:
        """Keep what is loaded now, and all else as of the last slot's end."""
        if self._kept is not None:
            self._kept = self._kept._replace(loaded=self._loaded())
            await self._keep()

    def _now(self) -> Saved:
        # All draws follow from the seed and the slot's number, which is their whole state.
        now = Saved(
            self.policy.state,
            self._loaded(),
            str(self.slot).encode(),
            self.policy.counters,
            balances_of(self._fleets.sites.values()),
        )
        return copy.deepcopy(now)  # the policy's arrays go on changing

    async def _keep(self) -> None:
        # One after the other, also where whoever waits for one is canceled: the last is to stay.
        self._saving = asyncio.ensure_future(self._written(self._saving))
        await asyncio.shield(self._saving)

    async def _written(self, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        assert self._kept is not None
        try:
            await run_detached(self._memory.save, self._kept)
        except StateError as error:
            self._log.error("the state was not saved", reason=str(error))

    def _loaded(self) -> tuple[str, ...]:
        return tuple(
            f"{task}/{variant}#{copy}"
            for (task, variant), copies in self._fleets.running.items()
            for copy in range(copies)
        )

    def _known(self, loaded: tuple[str, ...]) -> dict[Pair, int]:
        """Copies by (task, variant) of what was loaded, as far as the node may run them."""
        copies = Counter(name.rpartition("#")[0] for name in loaded)
        pairs = dict.fromkeys(zip(self._tasks, self._names, strict=True))
        named = {pair: copies["/".join(pair)] for pair in pairs}
        return {pair: count for pair, count in named.items() if count}

    @property
    def wanted(self) -> dict[Pair, int]:
        """Copies that are to run, by (task, variant)."""
        found: dict[Pair, int] = {}
        for task, variant, on, copies in zip(
            self._tasks, self._names, self.policy.x.tolist(), self._copies, strict=True
        ):
            if on:
                found[task, variant] = found.get((task, variant), 0) + copies
        return found


def node_placement(
    deployment: Deployment,
    plan: NodePlan,
    peers: Peers,
    demand: LocalDemand,
    memory: NodeState,
    fleets: Fleets,
    log: Any,
) -> NodePlacement:
    """Join the placement policy to what carries its messages and measures for it.

    Parameters
    ----------
    deployment
        Names the policy, and how long slots are.
    peers
        Carries messages, where the policy has some; not open yet.
    plan, demand, memory, fleets, log
        As of `NodePlacement`.
    """
    network, expected = plan.deployed
    spec, name = deployment.placement, policy_of(deployment)
    options = {} if spec is None else {k: v for k, v in spec.options.items() if v is not None}
    slot_s = float(options.pop("slot", network.slot_s))
    make = partial(
        local_policy,
        name,
        network,
        plan.number,
        seed=deployment.seed,
        batches=expected_batches(expected, _FORESEEN) if name in HINDSIGHT else None,
        deployment=deployment,
        data=plan.data,
        **options,
    )
    policy = make()
    _rehearse(make(), plan)
    clock, post = SlotClock(slot_s), None
    if policy.agent is not None:
        post = PlacementMessages(policy.agent, peers, network.nodes, slot=clock.last)
    return NodePlacement(plan, policy, post, demand, clock, memory, fleets, log)


def _rehearse(spare: LocalPolicy, plan: NodePlan) -> None:
    """Have a policy do once what it does in a slot: a first slot must not wait for its compiler."""
    # Also where nothing enters: letters about what passes must not wait for it either.
    one = dict.fromkeys(plan.data.crossings, 1.0)
    spare.close_slot(one, one, {}, slot=1)
    spare.step()
