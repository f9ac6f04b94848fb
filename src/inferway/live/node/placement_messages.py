"""Carries an agent's messages between it and its neighbors, and opens none that makes no sense.

A `inferway.placement.agent.Correspondent` takes its neighbors at their word. Neighbors are other
machines, perhaps with other versions, just started or broken, so what comes is held against what
may come: a message that decodes, of a kind that the node's policy writes, about a type whose path
has the sender as its next or last node, of the slot at hand, with numbers that are numbers, and
answers only to what was asked. The rest is counted.

Least costs, offers and what is quiet stand until they change, so they are values, one for each
type, which neighbors that come later or again are told, too; the agent hears who comes and goes.
What is said about a slot are messages, with the slot's number: INFIDA's questions and answers, and
what exchange writes down and up the paths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from inferway.live.control.peers import PLACEMENT, Peers
from inferway.placement.agent import Correspondent
from inferway.placement.contract import Float
from inferway.placement.delays import Measured
from inferway.placement.layout import Crossing
from inferway.placement.letters import (
    Above,
    Below,
    Floor,
    Letter,
    Message,
    Needed,
    Offers,
    Quiet,
    Worst,
    decode,
)
from inferway.unreadable import UNREADABLE


class PlacementMessages:
    """Joins an agent to its neighbors, not yet connected.

    Messages number the network's `nodes` in its order, and `slot` is the last that has ended.
    Messages that were not handed to the agent are counted in `refused`, by (neighbor, reason).
    """

    def __init__(
        self, agent: Correspondent, peers: Peers, nodes: Sequence[str], *, slot: int = 0
    ) -> None:
        self.agent, self.peers, self._slot, self._names = agent, peers, slot, tuple(nodes)
        self._number = {name: node for node, name in enumerate(nodes)}
        self.refused: Counter[tuple[str, str]] = Counter()
        self._asked: set[int] = set()  # types whose worst needed option a neighbor is to tell
        # (slot, kind, type) that a neighbor has asked or said.
        self._heard: set[tuple[int, str, int]] = set()
        self._listens = False  # from the end of a slot until it has been decided about
        peers.on_sample(self._sample)
        peers.on_neighbor(self._neighbor)

    def open(self) -> None:
        """Say what is to be said once; neighbors that are not there yet hear it when they come."""
        self._send(self.agent.open())

    def close_slot(
        self,
        slot: int,
        arrived: dict[int, float],
        load: dict[int, Float],
        measured: Measured | None = None,
    ) -> None:
        """End a slot, of a number equal at all nodes, and begin the letters about it.

        `arrived`, `load` and `measured` are as of `inferway.placement.agent.LocalPolicy`.
        """
        # After a clock was set back, numbers come again.
        early = {one for one in self._heard if one[0] == slot} if slot > self._slot else ()
        self._slot, self._heard, self._listens = slot, set(early), True
        self._asked.clear()
        if measured is not None:
            self._send(self.agent.measure(measured))
        self._send(self.agent.close_slot(arrived, {}, load, slot=slot))

    def decide(self) -> None:
        """Decide with what has come, where neighbors wait for that; what is missing abstains."""
        self._send(self.agent.decide())

    def step(self) -> None:
        """Learn from what has come, and say what changed; later letters of this slot are late."""
        self._asked.clear()
        self._listens = False
        self._send(self.agent.step())

    def _send(self, letters: list[Letter]) -> None:
        for letter in letters:
            message = decode(letter.data)
            kind, to = type(message).__name__.lower(), self._names[letter.to]
            if isinstance(message, Floor | Offers | Quiet):
                self.peers.put(to, kind, str(message.rho), letter.data)
            else:
                self.peers.send(to, kind, letter.data)
            if isinstance(message, Needed):
                self._asked.add(message.rho)

    def _sample(self, neighbor: str, kind: str, _name: str, data: bytes | None) -> None:
        if kind not in PLACEMENT or data is None:
            return  # somebody else's
        try:
            message = decode(data)
        except UNREADABLE:
            reason: str | None = "no message"
        else:
            if type(message).__name__.lower() != kind:
                reason = "another kind"
            elif not isinstance(message, self.agent.hears):
                reason = "another policy's"
            else:
                crossing = self.agent.data.crossings.get(message.rho)
                sender = self._number[neighbor]
                reason = self._fault(message, crossing, sender) or self._untimely(message)
        if reason is not None:
            self.refused[neighbor, reason] += 1
        else:
            self._send(self.agent.take(message))

    def _untimely(self, message: Message) -> str | None:
        """Say why a message does not fit what was said before, and note it if it does."""
        match message:
            case Needed(rho=rho, slot=slot) | Above(rho=rho, slot=slot) | Below(rho=rho, slot=slot):
                # Clocks differ: a neighbor may be a slot ahead, and its letter waits at the agent.
                if slot not in (self._slot, self._slot + 1):
                    return "another slot"
                if slot == self._slot and not (self._listens or isinstance(message, Needed)):
                    return "late or not asked"
                one = slot, type(message).__name__, rho
                if one in self._heard:
                    return "said twice"
                self._heard.add(one)
            case Worst(rho=rho, slot=slot):
                if slot != self._slot:
                    return "another slot"
                if rho not in self._asked:
                    return "late or not asked"
                self._asked.discard(rho)
        return None

    def _neighbor(self, neighbor: str, alive: bool) -> None:
        self._send(self.agent.see(self._number[neighbor], alive))

    def _fault(self, message: Message, crossing: Crossing | None, sender: int) -> str | None:
        """Say why no neighbor in its senses would send this, if so."""
        if crossing is None:
            return "no type of this node"
        up = isinstance(message, Needed | Below | Quiet)
        if sender != (crossing.downstream if up else crossing.upstream):
            return "not its place on the path"
        match message:
            case Floor(cost=cost):
                sound = not math.isnan(cost)
            case Worst(cost=cost):
                sound = math.isfinite(cost)
            case Needed(requests=requests, served=served, pending=pending):
                sound = (
                    0 < requests < math.inf
                    and 0 <= served < math.inf
                    and all(math.isfinite(cost) and 0 <= z < math.inf for cost, z in pending)
                    and _ascending(pending)
                )
            case Offers(offers=offers):
                fit = all(math.isfinite(cost) and room >= 0 for cost, room in offers)
                sound = fit and _ascending(offers)
            case Above(running=running):
                sound = self._elsewhere(running) and all(
                    0 <= load < math.inf and idle >= 0 for *_, load, idle in running
                )
            case Below(requests=requests, running=running):
                sound = (
                    0 <= requests < math.inf
                    and self._elsewhere(running)
                    and all(room >= 0 and 0 <= worth < math.inf for *_, room, worth in running)
                )
            case Quiet():
                sound = True
        return None if sound else "impossible numbers"

    def _elsewhere(self, running: Sequence[tuple[int, int, float, float, float]]) -> bool:
        """Tell whether these are copies at other nodes of the network, with costs.

        Each is there once, or once for each level of its room, at rising costs.
        """
        own, nodes = self.agent.data.node, len(self._names)
        return len({(node, pair, cost) for node, pair, cost, *_ in running}) == len(
            running
        ) and all(
            0 <= node < nodes and node != own and pair >= 0 and math.isfinite(cost)
            for node, pair, cost, *_ in running
        )


def _ascending(entries: tuple[tuple[float, float], ...]) -> bool:
    return all(one[0] <= other[0] for one, other in pairwise(entries))
