"""INFIDA at one node: it knows its own data, and exchanges bytes with its neighbors only.

[SiSalem23], Sec. IV-B. At the end of a slot, each request type's entry sends `Needed` up the path.
Every node adds what its fractional state would serve, in the order of costs: what no option further
up can precede goes into the counter Z, the rest travels on as pending. Where Z reaches the number
of requests, that option is the worst needed one, and its cost goes back down as `Worst`. Then the
node takes its own step with the kernels of `inferway.placement.infida`. Sums run in the same order
as there, so that the outcome is the same to the last bit.

To know what can precede, each node learns once, by `Floor`, the least cost of any option further
up. To route requests (Sec. III-E), it learns by `Offers` which running instances further up are
cheaper than its own; on their way down, nodes take out what they serve cheaper themselves.

Every message is about one request type, rho. Costs are those of the type's requests, round trips
from their entry included, so they mean the same at every node of the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from inferway.placement.contract import Allocation, Float
from inferway.placement.delays import Delays, Measured, MeasuredDelays
from inferway.placement.infida import (
    InfidaState,
    Refreshing,
    first_state,
    learn_all,
    left_for,
    options_of,
    room_at,
    round_state,
)
from inferway.placement.layout import Crossing, NodeData
from inferway.placement.letters import (
    Floor,
    Letter,
    Message,
    Needed,
    Offers,
    Quiet,
    Worst,
    decode,
    encode,
)
from inferway.placement.waiting import unhurried

# How much of a slot nodes wait for letters about the last one; by then they are through.
LETTERS_SHARE: Final = 0.1
# A least cost that has changed by less, ms, is not told again.
_TOLD_MS: Final = 0.1


class Counters(NamedTuple):
    """A node's counters, and what each number is of."""

    # JSON: ``reaching`` or ``forwarded``, and for each request type its task, the nodes of its
    # path, and those of the node's pairs that are its options; ``delays`` of measured ones.
    of: str
    counts: Float  # (c,) the counters, in this order


class LocalPolicy:
    """One node's part of a placement policy: as it stands here, an allocation that never changes.

    `x`, (p,), is what is to run at the node; `state` and `counters`, None where nothing is counted,
    are to be saved, and go on changing.
    """

    counters: Counters | None = None

    def __init__(self, data: NodeData, x: Allocation) -> None:
        self.data = data
        # Policies without a fractional state have one of zeros, in the same form.
        y, slot = np.zeros(len(data.layout.size)), np.zeros(2, np.int64)
        self.state = InfidaState(y, np.zeros(1), np.zeros(1), np.array(x, np.uint8), slot)

    @property
    def x(self) -> Allocation:
        """(p,) what is to run here."""
        return self.state.x

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Go on from a saved state, which is copied.

        Parameters
        ----------
        state
            Of a policy at the same node.
        closed
            The last slot that has ended.
        counters
            As they were saved with it; None where there are none: they begin at 0.

        Raises
        ------
        ValueError
            Where the state is not of a node with these pairs, or the counters are none. Nothing has
            changed then.
        """

    def measure(self, measured: Measured) -> list[Letter]:
        """Take in how long all took in the slot that has ended, before it is closed."""
        return []

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Take in what the node measured in the slot that has ended.

        Parameters
        ----------
        arrived
            Requests of each type that enters here.
        reached
            Requests of each type that came to the node: those that entered and those that came
            by a hop to be served here or passed on.
        load
            For each type, (k,) requests that its options here served; see `loads_of`.
        slot
            The slot's number, equal at all nodes; the next one if not given.
        """
        return []

    def step(self) -> list[Letter]:
        """End the slot: from now on `x` is to run."""
        self.state.slot[:] += 1
        return []

    def warm(self) -> None:
        """Do once what is done in a slot, so that none waits for a compiler; the state changes."""
        one = dict.fromkeys(self.data.crossings, 1.0)
        self.close_slot(one, one, {}, slot=1)
        self.step()

    def resume(self, saved: InfidaState) -> None:
        """Copy a saved state into the own one; ValueError where the shapes differ."""
        pairs: list[Any] = list(zip(saved._fields, self.state, saved, strict=True))
        for name, mine, other in pairs:
            if mine.shape != other.shape:
                raise ValueError(
                    f"the saved state has {other.shape} numbers for {name}, but this node "
                    f"{mine.shape}: it is another node's, or the network has changed"
                )
        for _, mine, other in pairs:
            mine[:] = other


class Correspondent(LocalPolicy):
    """One node's part of a policy that writes to its neighbors: INFIDA or exchange.

    A message about a slot that has not ended here yet waits until it has; one about a slot before
    the last that has ended comes too late, and is dropped.

    With `delays`, costs are those that the node measures (`inferway.placement.delays`), from one
    slot's end to the next; without, the file's.

    Attributes
    ----------
    delays
        The same; None where the file's count.
    hears
        The kinds of messages that this policy's nodes write.
    stage
        Part of the time for letters after which `decide` is called, above 0 to 1.
    """

    hears: tuple[type[Message], ...] = ()
    _closed = 0  # The last slot that has ended

    def __init__(self, data: NodeData, x: Allocation, delays: MeasuredDelays | None = None) -> None:
        super().__init__(data, x)
        self._early: list[Message] = []
        self.delays, self._by_file = delays, data.crossings
        # By type, the least cost of the node's own options, the least further up as it was told,
        # and as it counts, and what was told below. Until it is known, anything may come there.
        self._own_floor = {
            rho: float(one.cost[0]) if len(one.cost) else np.inf
            for rho, one in data.crossings.items()
        }
        self._floor_heard: dict[int, float] = {}
        self._floor = {
            rho: np.inf if crossing.upstream is None else -np.inf
            for rho, crossing in data.crossings.items()
        }
        self._floor_sent: dict[int, float] = {}

    @property
    def counters(self) -> Counters | None:  # type: ignore[override]
        """Measured delays, where these count; they go on changing."""
        return None if self.delays is None else Counters(*self.delays.saved)

    def measure(self, measured: Measured) -> list[Letter]:
        """Take in how long all took; costs are as measured from now on."""
        if self.delays is None:
            return []
        self.delays.take(measured, self.x)
        self._follow()
        letters = []
        for rho, sent in tuple(self._floor_sent.items()):
            # Infinite ones stay as they are.
            if abs(min(self._floor[rho], self._own_floor[rho]) - sent) > _TOLD_MS:
                letters += self._send_floor(self.data.crossings[rho])
        return letters

    def _follow(self) -> None:
        """Take the delays of now into the costs of all options and into what was told of others."""
        assert self.delays is not None
        own, least = self.delays.own_ms(), self.delays.own_ms(waits=False)
        crossings = {}
        for rho, filed in self._by_file.items():
            crossings[rho] = filed._replace(cost=filed.cost + own[filed.pair])
            if len(filed.cost):
                self._own_floor[rho] = float(np.min(filed.cost + least[filed.pair]))
            if rho in self._floor_heard:
                self._floor[rho] = self._floor_heard[rho] + self._link_ms(filed)
        self.data = self.data._replace(crossings=crossings)

    def _take_up_delays(self, counters: Counters | None) -> None:
        """Go on from measured delays that were saved, where there are some."""
        if self.delays is not None and counters is not None:
            self.delays.restore(*counters)
            self._follow()

    def _link_ms(self, crossing: Crossing) -> float:
        """Tell how much longer the way to the next node of a path takes than by the file, ms."""
        return 0.0 if self.delays is None else self.delays.link_ms(crossing.upstream)

    def _hear_floor(self, message: Floor) -> list[Letter]:
        crossing = self.data.crossings[message.rho]
        self._floor_heard[message.rho] = message.cost
        self._floor[message.rho] = message.cost + self._link_ms(crossing)
        return self._send_floor(crossing)

    def _send_floor(self, crossing: Crossing) -> list[Letter]:
        """Tell the node below the least cost of any option here or further up, waits left out."""
        rho = crossing.type
        self._floor_sent[rho] = least = min(self._floor[rho], self._own_floor[rho])
        return _down(crossing, Floor(rho, least))

    @property
    def stage(self) -> float:
        """Part of the time for letters after which `decide` is called, above 0 to 1."""
        return 1.0

    def open(self) -> list[Letter]:
        """Begin: say what is to be said once."""
        return []

    def receive(self, data: bytes) -> list[Letter]:
        """Take in a neighbor's message as it came, and return what follows from it."""
        return self.take(decode(data))

    def take(self, message: Message) -> list[Letter]:
        """Take in a message that has been decoded, and return what follows from it."""
        slot = self._closed if isinstance(message, Floor | Offers | Quiet) else message.slot
        if slot == self._closed:
            return self._hear(message)
        if slot > self._closed:
            self._early.append(message)
        return []

    def decide(self) -> list[Letter]:
        """Decide with the letters that have come, where others wait for that."""
        return []

    def see(self, neighbor: int, alive: bool) -> list[Letter]:
        """Take in that a neighbor has come or gone; who comes says again what holds."""
        return []

    def _hear(self, message: Message) -> list[Letter]:
        """Take in a message about the slot at hand or about none."""
        return []

    def _hear_early(self) -> list[Letter]:
        """Take in what had come before the slot ended here."""
        early, self._early = self._early, []
        return [letter for message in early for letter in self.take(message)]


class Agent(Correspondent):
    """INFIDA at one node; the options are those of `Infida`, equal at all nodes."""

    hears = (Floor, Needed, Worst, Offers)

    def __init__(
        self,
        data: NodeData,
        *,
        seed: int = 0,
        learning_rate: float | None = None,
        refresh: Refreshing = 1,
        rounding: Literal["coupled", "fresh"] = "coupled",
        residual: Literal["elastic", "strict"] = "elastic",
        waiting: bool = False,
        delays: Delays = "file",
    ) -> None:
        own = None if delays == "file" else MeasuredDelays(data, waits=delays == "sojourns")
        if waiting:
            tasks = data.layout.task[data.layout.model].tolist()
            kinds = list(zip(tasks, data.variants, strict=True))
            data = data._replace(layout=unhurried(data.layout, kinds))
        state = first_state(data.layout)
        super().__init__(data, state.x, own)
        self.state = state
        self._options = options_of(seed, learning_rate, refresh, rounding, residual)
        pairs = len(data.layout.size)
        self.gradient: Float = np.zeros(pairs)
        round_state(data.layout, data.node, self._options, self.state, self.gradient, 0)
        self._offers: dict[int, tuple[tuple[float, float], ...]] = {}
        self._sent: dict[int, tuple[tuple[float, float], ...]] = {}
        self._load: Mapping[int, Float] = {}
        self._taken: Float = np.zeros(pairs)
        self._requests: dict[int, float] = {}
        self._worst: dict[int, float] = {}

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Go on from a saved state, before `open`; from the beginning where another policy's.

        What neighbors say once, least costs and offers, is told anew by those that see the node
        come back. What the slot in progress had brought is lost, and costs precision alone.
        """
        self._take_up_delays(counters)
        # Nobody else has a fractional state, and from zeros no ascent leads anywhere.
        if state.y.any() or state.spread.any():
            self.resume(state)
        self._closed = closed  # so that messages about it are not taken for early ones

    def open(self) -> list[Letter]:
        """Begin: repositories tell the least cost of their options, and all what they run."""
        floors = [
            letter
            for crossing in self.data.crossings.values()
            if crossing.upstream is None
            for letter in self._send_floor(crossing)
        ]
        return floors + self._announce()

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Begin the letters about a slot; nodes that have missed slots say which it is."""
        self._closed = self._closed + 1 if slot is None else slot
        self._load = load
        self._taken[:] = 0.0
        self._requests, self._worst = {}, {}
        for rho, crossing in self.data.crossings.items():
            if rho in load:
                np.add.at(self._taken, crossing.pair, load[rho])
        letters: list[Letter] = []
        for rho, requests in arrived.items():
            if requests > 0:
                letters += self._climb(Needed(rho, self._closed, requests, 0.0, ()))
        return letters + self._hear_early()

    def see(self, neighbor: int, alive: bool) -> list[Letter]:
        """Take back what a neighbor further up offered that has gone."""
        return [
            letter
            for rho, crossing in self.data.crossings.items()
            if crossing.upstream == neighbor and not alive
            for letter in self.take(Offers(rho, ()))
        ]

    def _hear(self, message: Message) -> list[Letter]:
        match message:
            case Floor():
                return self._hear_floor(message)
            case Offers(rho=rho, offers=offers):
                self._offers[rho] = offers
                return self._offer(self._by_file[rho])
            case Needed():
                return self._climb(message)
            case Worst(rho=rho, cost=cost):
                return self._descend(rho, cost + self._link_ms(self.data.crossings[rho]))
        return []

    def step(self) -> list[Letter]:
        """End the slot: learn from the answers that came, round if due, and say what changed."""
        self.gradient[:] = 0.0
        for rho in sorted(self._worst):
            crossing, worst = self.data.crossings[rho], self._worst[rho]
            for pair, cost, one in zip(
                crossing.pair, crossing.cost, self._capacity(crossing), strict=True
            ):
                if cost < worst:  # h of eq. 19
                    self.gradient[pair] += one * (worst - cost)
        state, own = self.state, self._options
        learn_all(self.data.layout, self.gradient, own.rate, state.y, state.spread, state.steep)
        state.slot[0] += 1
        if own.refresh.due(int(state.slot[0]), int(state.slot[1])):
            state.slot[1] = state.slot[0]
            slot, data = int(state.slot[0]), self.data
            round_state(data.layout, data.node, own, state, self.gradient, slot)
        return self._announce()

    def route(self, rho: int) -> int | None:
        """Choose for a request: one of the node's options of its type, or None to forward it.

        Instances count as free here; a live node leaves out those that are not. Costs are the
        file's, as offers say them.
        """
        crossing = self._by_file[rho]
        running = [k for k, p in enumerate(crossing.pair) if self.state.x[p]]
        offers = self._offers.get(rho, ())
        if running and (not offers or crossing.cost[running[0]] <= offers[0][0]):
            return running[0]
        return None

    def _climb(self, message: Needed) -> list[Letter]:
        """Add the node's z in the order of costs, and pass on or answer."""
        rho, wanted, served = message.rho, message.requests, message.served
        self._requests[rho] = wanted
        crossing = self.data.crossings[rho]
        effective = self.state.y[crossing.pair] * self._capacity(crossing)
        own = zip(crossing.cost.tolist(), effective.tolist(), strict=True)
        # Ties go to the node that is nearer to the entry: sorting is stable.
        pending = sorted(
            [*message.pending, *(one for one in own if one[1] > 0)], key=lambda entry: entry[0]
        )
        committed = 0
        for cost, z in pending:
            if cost > self._floor[rho]:
                break
            served += z
            committed += 1
            if served >= wanted:
                return self._descend(rho, cost)
        if crossing.upstream is None:  # all is added up, so the repository's last resort is needed
            return self._descend(rho, float(crossing.cost.max()))
        more = self._link_ms(crossing)
        left = tuple((cost - more, z) for cost, z in pending[committed:])
        rest = Needed(rho, message.slot, wanted, served, left)
        return [Letter(crossing.upstream, encode(rest))]

    def _descend(self, rho: int, cost: float) -> list[Letter]:
        # Not known where the node has restarted since: then it learns nothing from the answer.
        if rho in self._requests:
            self._worst[rho] = cost
        return _down(self.data.crossings[rho], Worst(rho, self._closed, cost))

    def _capacity(self, crossing: Crossing) -> Float:
        """(k,) potential available capacities, eq. 7."""
        layout, pair = self.data.layout, crossing.pair
        load = self._load.get(crossing.type, np.zeros(len(pair)))
        wanted = self._requests[crossing.type]
        return np.array(
            [
                left_for(room_at(layout, p), self._taken[p], own, wanted)
                for p, own in zip(pair, load, strict=True)
            ]
        )

    def _announce(self) -> list[Letter]:
        return [letter for crossing in self._by_file.values() for letter in self._offer(crossing)]

    def _offer(self, crossing: Crossing) -> list[Letter]:
        """Tell the node below what runs here, and what is cheaper further up, if that changed."""
        rho, layout = crossing.type, self.data.layout
        own = [
            (float(cost), room_at(layout, p))
            for cost, p in zip(crossing.cost, crossing.pair, strict=True)
            if self.state.x[p]
        ]
        cheaper = [o for o in self._offers.get(rho, ()) if not own or o[0] < own[0][0]]
        offers = tuple(sorted([*cheaper, *own]))
        if offers == self._sent.get(rho, ()):
            return []
        self._sent[rho] = offers
        return _down(crossing, Offers(rho, offers))


def _down(crossing: Crossing, message: Message) -> list[Letter]:
    below = crossing.downstream
    return [] if below is None else [Letter(below, encode(message))]
