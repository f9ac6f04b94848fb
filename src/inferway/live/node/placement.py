"""A node's work at the end of each slot: measure, exchange letters, decide, save, move.

Slots end at multiples of their length on the wall clock, so that nodes agree.
"""

from __future__ import annotations

import asyncio
import copy
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.live.control.peers import Peers
from inferway.live.node.fleets import Fleets
from inferway.live.node.models import Pair
from inferway.live.node.placement_messages import PlacementMessages
from inferway.live.node.plan import NodePlan
from inferway.live.node.state import DamagedStateError, NodeState, Saved, StateError
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import balances_of, take_up
from inferway.live.threads import run_detached
from inferway.placement.agent import LETTERS_SHARE, Correspondent
from inferway.placement.contract import expected_batches, policy_of
from inferway.placement.delays import Measured, MeasuredDelays, Sojourns
from inferway.placement.local import loads_of, local_policy

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# A clock that was set is noticed after so long.
_LOOK_S: Final = 1.0
# Slots that a policy in hindsight is told of.
_FORESEEN: Final = 100

# Rows since the start: asked by clients, of these sent on, served here for anybody, sent on for
# others, and asked by clients but not answered.
COUNTED: Final = ("arrived", "forwarded", "served", "passed", "failed")


class Slot(NamedTuple):
    """A slot that has ended.

    `number` is its end on the wall clock, in slots since 1970; nodes whose clocks agree to within
    the wait for letters agree on it. It lasted so long by a clock that nobody sets, and the wall
    clock was set so far meanwhile, forward above 0.
    """

    number: int
    lasted_s: float
    jumped_s: float


class SlotClock:
    """The slots of one node, of a length in seconds.

    A slot ends when the wall clock reaches a multiple of its length. When the clock is set, the
    node follows it, for it is what nodes agree by: set forward over the ends of several slots,
    these end together, as the last of them; set back, the slot lasts until the clock comes to a
    multiple again, and a number may come again. An end at which the slot has lasted less than half
    its length is let pass. So, however the clock is set once, a slot lasts between a half and two
    lengths by a clock that nobody sets.

    `wall` tells seconds since 1970, `steady` those of a clock that nobody sets, and `sleep` waits
    so many of the latter.
    """

    def __init__(
        self,
        slot_s: float,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.slot_s, self._wall, self._steady, self._sleep = slot_s, wall, steady, sleep
        self._began_s, self._offset_s = steady(), wall() - steady()
        self._next = math.floor(wall() / slot_s) + 1

    @property
    def last(self) -> int:
        """Number of the last slot that has ended, by the wall clock."""
        return self._next - 1

    @property
    def due_s(self) -> float:
        """Seconds until the slot ends, if nobody sets the clock; 0 where it is over."""
        wall = self._wall()
        following = math.floor(wall / self.slot_s) + 1
        # Set back, the clock comes to an earlier multiple first.
        self._next = min(self._next, following)
        if wall >= self._next * self.slot_s and self._steady() - self._began_s < self.slot_s / 2:
            self._next = following
        return max(self._next * self.slot_s - wall, 0.0)

    async def ended(self) -> Slot:
        """Wait for the end of the slot, and begin the next."""
        while (due_s := self.due_s) > 0:
            await self._sleep(min(due_s, _LOOK_S))
        wall, steady = self._wall(), self._steady()
        # A product and a quotient may be rounded to different sides of a multiple.
        number = max(math.floor(wall / self.slot_s), self._next)
        offset = wall - steady
        ended = Slot(number, steady - self._began_s, offset - self._offset_s)
        self._began_s, self._offset_s, self._next = steady, offset, number + 1
        return ended

    async def letters(self, stage: float = 1.0) -> None:
        """Wait, from the end of a slot, until letters about it are late, or for a part of that."""
        late_s = self._began_s + stage * LETTERS_SHARE * self.slot_s
        while (left := late_s - self._steady()) > 0:
            await self._sleep(left)


class LocalDemand:
    """Counts requests by their type: the task, and the node where they entered.

    `types` has the request type by (task, entry node); what is of none is served and not counted by
    type. The attributes of `COUNTED` are rows since the start, and `for_clients` those by task and
    variant that were run here for clients of this node, a first answer included that was not sent.
    """

    def __init__(self, node: str, types: Mapping[tuple[str, str], int]) -> None:
        self.node, self._types = node, types
        self.arrived = self.forwarded = self.served = self.passed = self.failed = 0
        self.for_clients: Counter[tuple[str, str]] = Counter()
        self._arrived: dict[int, float] = defaultdict(float)
        self._reached: dict[int, float] = defaultdict(float)
        self._served: dict[tuple[int, str], float] = defaultdict(float)
        self._sojourns: dict[tuple[str, str], Sojourns] = {}

    def ended(self, task: str, request: InferRequest) -> None:
        """Count a request that a site has ended."""
        exchange, rows = request.raw, request.rows
        path: bytes = b"" if exchange is None else exchange.path
        entry = unquote(path.partition(b",")[0].decode("latin-1")) if path else self.node
        kind = self._types.get((task, entry))
        own = request.outcome is Outcome.ANSWERED and request.node in ("", self.node)
        if own:
            self._time(task, request)
            self.served += rows
            if not path:
                self.for_clients[task, request.variant] += rows
        if request.escalated_from and not path and request.first_node in ("", self.node):
            self.for_clients[task, request.escalated_from] += rows
        if not path:
            self.arrived += rows
            if request.outcome is not Outcome.ANSWERED:
                self.failed += rows
            elif not own:
                self.forwarded += rows
        if kind is None:
            return
        self._reached[kind] += rows
        if not path:
            self._arrived[kind] += rows
        if own:
            self._served[kind, request.variant] += rows

    def _time(self, task: str, request: InferRequest) -> None:
        """Add up what a request took at the node's own copy that answered it."""
        # What was asked elsewhere before has waited for that, too.
        if request.escalated_from or request.moved or not request.started_s:
            return
        before = self._sojourns.get((task, request.variant), Sojourns())
        service_s, members = request.service_s, max(request.together[0], 1)
        self._sojourns[task, request.variant] = Sojourns(
            before.requests + 1.0,
            before.service_s + service_s,
            before.wait_s + max(request.started_s - request.received_s, 0.0),
            before.busy_s + service_s / members,
        )

    def came(self, task: str, entry: str) -> None:
        """Count a neighbor's request that was passed on, as one row: nobody reads how many.

        One that is served here is counted when it has `ended`.
        """
        self.passed += 1
        kind = self._types.get((task, entry))
        if kind is not None:
            self._reached[kind] += 1

    def cut(self) -> tuple[dict[int, float], dict[int, float], dict[tuple[int, str], float]]:
        """Return what has come since the last cut, in rows, and begin anew.

        Returns
        -------
        arrived
            By request type: what clients asked of this node, answered or not.
        reached
            By request type: that, and what neighbors sent here or through here.
        served
            By (request type, variant): what the node's own copies answered.
        """
        counted = dict(self._arrived), dict(self._reached), dict(self._served)
        for one in (self._arrived, self._reached, self._served):
            one.clear()
        return counted

    def sojourns(self) -> dict[tuple[str, str], Sojourns]:
        """Return what requests took at own copies since the last call, by task and variant."""
        found, self._sojourns = self._sojourns, {}
        return found


class NodePlacement:
    """A node's part of placement, slot by slot.

    `peers`, not yet open, carry the policy's messages where it has some; `demand` is what was
    measured, and `memory` keeps the state. `fleets` say which copies run, and have the sites whose
    balances are saved, as of a slot's end. `round_trips_s` says those to the neighbors, None where
    not known.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: NodePlan,
        peers: Peers,
        demand: LocalDemand,
        memory: NodeState,
        fleets: Fleets,
        log: Any,
        round_trips_s: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        self._round_trips_s = round_trips_s
        self._task_number = {name: i for i, name in enumerate(plan.deployed.network.tasks)}
        self._plan, self._demand, self._memory = plan, demand, memory
        self._fleets, self._log = fleets, log
        network, expected = plan.deployed
        spec, name = deployment.placement, policy_of(deployment)
        options = {} if spec is None else {k: v for k, v in spec.options.items() if v is not None}
        self.clock = SlotClock(float(options.pop("slot", network.slot_s)))
        spare, self.policy = (
            local_policy(
                name,
                network,
                plan.number,
                seed=deployment.seed,
                batches=expected_batches(expected, _FORESEEN) if name in HINDSIGHT else None,
                deployment=deployment,
                data=plan.data,
                **options,
            )
            for _ in range(2)
        )
        # One does once what it does in a slot, also where nothing enters: neither a first slot nor
        # letters about what passes must wait for its compiler.
        spare.warm()
        self._post: PlacementMessages | None = None
        if isinstance(self.policy, Correspondent):
            self._post = PlacementMessages(self.policy, peers, network.nodes, slot=self.clock.last)
        # As of the last slot's end, but for what is loaded.
        self._kept: Saved | None = None
        self._saving: asyncio.Future[None] | None = None
        # Whether what was loaded runs at first, and not what is wanted.
        self._resumed = False
        # Number of the last slot that has ended, 0 before the first; and ended since the start.
        self.slot = self.ended = 0
        self._names = plan.data.variants
        own, models = slice(*network.pairs.first[plan.number : plan.number + 2]), network.models
        self._pairs: list[Pair] = [
            (network.tasks[models.task[model]], variant)
            for model, variant in zip(network.pairs.model[own], self._names, strict=True)
        ]
        # A repository's copies are planned for the greatest demand there may be (eq. 9); more of
        # them than processors serve nobody sooner.
        most = os.cpu_count() or 1
        self._copies = [min(max(1, int(count)), most) for count in network.pairs.pinned[own]]

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
        self._kept, wanted = self._now(), self.wanted
        if saved is None:
            return wanted
        self._kept = self._kept._replace(loaded=saved.loaded)
        # As far as the node may run what was loaded.
        copies = Counter(name.rpartition("#")[0] for name in saved.loaded)
        named = {pair: copies["/".join(pair)] for pair in self._pairs}
        loaded = {pair: count for pair, count in named.items() if count}
        if np.array_equal(self.policy.x, saved.infida.x) and not Counter(loaded) <= Counter(wanted):
            self._resumed = True
            return loaded
        # What was loaded is sure to load again.
        return dict(sorted(wanted.items(), key=lambda one: one[0] not in loaded))

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
            slot = await self.clock.ended()
            if abs(slot.jumped_s) > 1.0:
                self._log.warning("the clock was set", by_s=round(slot.jumped_s, 3))
            try:
                await self._end(slot)
            except Exception as error:  # one slot must not cost all that follow
                self._log.error("a slot was not ended", slot=slot.number, exc_info=error)
            else:
                yield self.wanted
            self.slot, self.ended = slot.number, self.ended + 1
            await self.save()

    async def _end(self, slot: Slot) -> None:
        number = slot.number
        arrived, reached, served = self._demand.cut()
        measured = self._measured(slot.lasted_s)
        load = loads_of(self._plan.data, served, self.policy.x)
        if self._post is not None:
            self._post.close_slot(number, arrived, load, measured)
            await self.clock.letters(self._post.agent.stage)
            self._post.decide()
            await self.clock.letters()
            self._post.step()
        else:
            self.policy.close_slot(arrived, reached, load, slot=number)
            self.policy.step()

    def _measured(self, lasted_s: float) -> Measured:
        nodes = self._plan.topology.nodes
        return Measured(
            lasted_s,
            {
                (self._task_number[task], variant): one
                for (task, variant), one in self._demand.sojourns().items()
            },
            {
                nodes.index(neighbor): rtt_s
                for neighbor, rtt_s in self._round_trips_s().items()
                if rtt_s is not None
            },
        )

    @property
    def delays(self) -> dict[str, Any] | None:
        """Delays that placement measures, for people and scripts; None where the file's count."""
        own: MeasuredDelays | None = getattr(self.policy, "delays", None)
        if own is None:
            return None
        network = self._plan.deployed.network
        return {
            "wait_scale": own.scale,
            "variants": [
                {
                    "task": network.tasks[task],
                    "variant": variant,
                    "file_service_s": file_s,
                    "service_s": service_s or None,
                    "wait_s": wait_s,
                }
                for (task, variant), file_s, service_s, wait_s in zip(
                    own.names,
                    own.file_s.tolist(),
                    own.service_s.tolist(),
                    own.wait_s.tolist(),
                    strict=True,
                )
            ],
            "links": {
                network.nodes[neighbor]: {"file_rtt_s": file_s, "rtt_s": rtt_s}
                for neighbor, file_s, rtt_s in own.links
            },
        }

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

    @property
    def wanted(self) -> dict[Pair, int]:
        """Copies that are to run, by (task, variant)."""
        wanted: Counter[Pair] = Counter()
        for pair, on, copies in zip(self._pairs, self.policy.x.tolist(), self._copies, strict=True):
            if on:
                wanted[pair] += copies
        return dict(wanted)
