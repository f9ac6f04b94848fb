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
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from inferway.placement.ascent import initial
from inferway.placement.contract import Allocation, Float
from inferway.placement.crossing import Crossing, NodeData
from inferway.placement.infida import (
    InfidaState,
    Refresh,
    learn_all,
    left_for,
    refresh_of,
    room_at,
    round_one,
)
from inferway.placement.messages import (
    Floor,
    Letter,
    Message,
    Needed,
    Offers,
    Worst,
    decode,
    encode,
)


class Agent:
    """One node's part of INFIDA.

    Parameters
    ----------
    data
        The node's own data.
    seed, learning_rate, refresh, rounding, residual
        As of `inferway.placement.infida.Infida`, equal at all nodes.
    """

    def __init__(
        self,
        data: NodeData,
        *,
        seed: int = 0,
        learning_rate: float | None = None,
        refresh: int | Refresh | tuple[float, float, float] = 1,
        rounding: Literal["coupled", "fresh"] = "coupled",
        residual: Literal["elastic", "strict"] = "elastic",
    ) -> None:
        self.data = data
        self._seed = seed
        self._rate = 0.0 if learning_rate is None else float(learning_rate)
        self._refresh = refresh_of(refresh)
        self._fresh, self._strict = rounding == "fresh", residual == "strict"
        pairs = len(data.layout.size)
        self.state = InfidaState(
            y=np.empty(pairs),
            spread=np.empty(1),
            steep=np.zeros(1),
            x=np.zeros(pairs, np.uint8),
            slot=np.zeros(2, np.int64),
        )
        self.gradient: Float = np.zeros(pairs)
        initial(data.layout, self.state.y, self.state.spread)
        self._round(0)
        # Least cost further up; until it is known, anything may come there.
        self._above = {
            rho: np.inf if crossing.upstream is None else -np.inf
            for rho, crossing in data.crossings.items()
        }
        self._offers: dict[int, tuple[tuple[float, float], ...]] = {}
        self._sent: dict[int, tuple[tuple[float, float], ...]] = {}
        self._closed = 0  # slots whose loads are known
        self._load: dict[int, Float] = {}
        self._taken: Float = np.zeros(pairs)
        self._requests: dict[int, float] = {}
        self._worst: dict[int, float] = {}
        self._early: list[Needed] = []

    @property
    def allocation(self) -> Allocation:
        """(p,) the node's integral allocation."""
        return self.state.x

    def restore(self, state: InfidaState, *, closed: int = 0) -> None:
        """Go on from a saved state; before `open`.

        What neighbors say once, least costs and offers, is told anew by those that see the node
        come back. What the slot in progress had brought is lost, and costs precision alone.

        Parameters
        ----------
        state
            Of an agent of the same node; it is copied.
        closed
            The last slot that has ended, so that messages about it are not taken for early ones.

        Raises
        ------
        ValueError
            Where the state is not of a node with these pairs.
        """
        resume(self.state, state)
        self._closed = closed

    def open(self) -> list[Letter]:
        """Begin: repositories tell the least cost of their options, and all what they run."""
        floors = [
            letter
            for crossing in self.data.crossings.values()
            if crossing.upstream is None
            for letter in self._send_floor(crossing, np.inf)
        ]
        return floors + self._announce()

    def close_slot(
        self, arrived: dict[int, float], load: dict[int, Float], *, slot: int | None = None
    ) -> list[Letter]:
        """Take in what the node measured in the slot that has ended.

        Parameters
        ----------
        arrived
            Requests of each type that enters here.
        load
            For each type through here, (k,) requests that its options here served.
        slot
            The slot's number, equal at all nodes; the next one if not given. Nodes that have missed
            slots say which it is.
        """
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
        early, self._early = self._early, []
        for message in early:
            letters += self.take(message)
        return letters

    def receive(self, data: bytes) -> list[Letter]:
        """Take in a neighbor's message as it came, and return what follows from it."""
        return self.take(decode(data))

    def take(self, message: Message) -> list[Letter]:
        """Take in a message that has been decoded, and return what follows from it."""
        match message:
            case Floor(rho=rho, cost=cost):
                crossing = self.data.crossings[rho]
                self._above[rho] = cost
                return self._send_floor(crossing, cost)
            case Needed() if message.slot > self._closed:
                self._early.append(message)
                return []
            case Needed():
                return self._climb(message) if message.slot == self._closed else []
            case Worst(rho=rho, slot=slot, cost=cost):
                return self._descend(rho, cost) if slot == self._closed else []
            case Offers(rho=rho, offers=offers):
                self._offers[rho] = offers
                return self._offer(self.data.crossings[rho])

    def step(self) -> list[Letter]:
        """End the slot: learn from the answers that came, round if due, and say what changed."""
        self.gradient[:] = 0.0
        for rho in sorted(self._worst):
            crossing, worst = self.data.crossings[rho], self._worst[rho]
            capacity = self._capacity(crossing)
            for k in range(len(crossing.pair)):
                if crossing.cost[k] < worst:  # h of eq. 19
                    self.gradient[crossing.pair[k]] += capacity[k] * (worst - crossing.cost[k])
        state = self.state
        learn_all(self.data.layout, self.gradient, self._rate, state.y, state.spread, state.steep)
        state.slot[0] += 1
        if self._refresh.due(int(state.slot[0]), int(state.slot[1])):
            state.slot[1] = state.slot[0]
            self._round(int(state.slot[0]))
        return self._announce()

    def route(self, rho: int) -> int | None:
        """Choose for a request: one of the node's options of its type, or None to forward it.

        Instances count as free here; a live node leaves out those that are not.
        """
        crossing = self.data.crossings[rho]
        running = [k for k in range(len(crossing.pair)) if self.state.x[crossing.pair[k]]]
        offers = self._offers.get(rho, ())
        if running and (not offers or crossing.cost[running[0]] <= offers[0][0]):
            return running[0]
        return None

    def _send_floor(self, crossing: Crossing, above: float) -> list[Letter]:
        if crossing.downstream is None:
            return []
        least = min(above, float(crossing.cost[0])) if len(crossing.cost) else above
        return [Letter(crossing.downstream, encode(Floor(crossing.type, least)))]

    def _climb(self, message: Needed) -> list[Letter]:
        """Add the node's z in the order of costs, and pass on or answer."""
        rho, wanted = message.rho, message.requests
        self._requests[rho] = wanted
        crossing = self.data.crossings[rho]
        effective = self.state.y[crossing.pair] * self._capacity(crossing)
        own = [
            (float(cost), float(z))
            for cost, z in zip(crossing.cost, effective, strict=True)
            if z > 0
        ]
        # Ties go to the node that is nearer to the entry: sorting is stable.
        pending = sorted([*message.pending, *own], key=lambda entry: entry[0])
        served, committed = message.served, 0
        for cost, z in pending:
            if cost > self._above[rho]:
                break
            served += z
            committed += 1
            if served >= wanted:
                return self._descend(rho, cost)
        if crossing.upstream is None:  # all is added up, so the repository's last resort is needed
            return self._descend(rho, float(crossing.cost[-1]))
        rest = Needed(rho, message.slot, wanted, served, tuple(pending[committed:]))
        return [Letter(crossing.upstream, encode(rest))]

    def _descend(self, rho: int, cost: float) -> list[Letter]:
        # Not known where the node has restarted since: then it learns nothing from the answer.
        if rho in self._requests:
            self._worst[rho] = cost
        below = self.data.crossings[rho].downstream
        return [] if below is None else [Letter(below, encode(Worst(rho, self._closed, cost)))]

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
        return [
            letter for crossing in self.data.crossings.values() for letter in self._offer(crossing)
        ]

    def _offer(self, crossing: Crossing) -> list[Letter]:
        """Tell the node below what runs here, and what is cheaper further up, if that changed."""
        if crossing.downstream is None:
            return []
        rho = crossing.type
        own = [
            (float(crossing.cost[k]), room_at(self.data.layout, p))
            for k, p in enumerate(crossing.pair)
            if self.state.x[p]
        ]
        cheaper = [o for o in self._offers.get(rho, ()) if not own or o[0] < own[0][0]]
        offers = tuple(sorted([*cheaper, *own]))
        if offers == self._sent.get(rho, ()):
            return []
        self._sent[rho] = offers
        return [Letter(crossing.downstream, encode(Offers(rho, offers)))]

    def _round(self, slot: int) -> None:
        state = self.state
        round_one(
            self.data.layout,
            self.data.node,
            state.y,
            self.gradient,
            self._seed,
            slot,
            self._fresh,
            self._strict,
            state.x,
        )


def resume(own: InfidaState, saved: InfidaState) -> None:
    """Copy a saved state into a node's own; ValueError where the shapes differ."""
    pairs: list[tuple[str, Any, Any]] = list(zip(own._fields, own, saved, strict=True))
    for name, mine, other in pairs:
        if mine.shape != other.shape:
            raise ValueError(
                f"the saved state has {other.shape} numbers for {name}, but this node "
                f"{mine.shape}: it is another node's, or the network has changed"
            )
    for _, mine, other in pairs:
        mine[:] = other
