"""Links between offer tables that are only a list of what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from inferway.live.control.peers import MENU
from inferway.live.node.offer_table import OfferTable
from inferway.live.request import NodeCondition
from inferway.protocol import Signature


class Wires:
    """Joins offer tables; what is said waits until it is carried."""

    def __init__(self, *links: tuple[str, str]) -> None:
        self.links = links
        self.peers: dict[str, Links] = {}
        self.mail: list[tuple[str, str, str, bytes | None]] = []
        self.time_s = 100.0

    def table(
        self,
        node: str,
        upstream: str | None,
        changes: list[set[str]] | None = None,
        signature: Callable[[str], Signature | None] = lambda task: None,
    ) -> OfferTable:
        ends = [pair for pair in self.links if node in pair]
        links = {a if b == node else b: 0.01 for a, b in ends}
        self.peers[node] = Links(self, node)
        return OfferTable(
            NodeCondition(node),
            self.peers[node],  # type: ignore[arg-type]
            links_s=links,
            upstream=upstream,
            changed=(changes if changes is not None else []).append,
            signature=signature,
            now=lambda: self.time_s,
        )

    def join(self, *nodes: str) -> None:
        for one, other in self.links:
            if one in nodes and other in nodes:
                self.peers[one].sees(other, True)
                self.peers[other].sees(one, True)

    def said(self, sender: str, to: str) -> dict[str, bytes | None]:
        """What is on its way: values by name, and a message under none."""
        return {name: data for one, other, name, data in self.mail if (one, other) == (sender, to)}

    async def told(self) -> None:
        """Wait until what is to be told is on its way."""
        await asyncio.sleep(0.03)

    async def settle(self) -> None:
        """Carry what is said until nothing is any more."""
        for _ in range(50):
            await asyncio.sleep(0.03)
            mail, self.mail = self.mail, []
            for sender, to, name, data in mail:
                if to in self.peers[sender].alive:
                    self.peers[to].hears(sender, name, data)
            if not mail:
                return
        raise AssertionError("they never stop")


class Links:
    """A node's links: what was said stands, and who comes is told all of it."""

    def __init__(self, wires: Wires, node: str) -> None:
        self.wires, self.node = wires, node
        self.alive: set[str] = set()
        self.values: dict[str, dict[str, bytes]] = {}
        self.hear: Callable[[str, str, str, bytes | None], None]
        self.watch: Callable[[str, bool], None]

    def on_sample(self, callback: Any) -> None:
        self.hear = callback

    def on_neighbor(self, callback: Any) -> None:
        self.watch = callback

    def publish(self, neighbor: str, kind: str, values: Mapping[str, bytes]) -> None:
        assert kind == MENU
        before = self.values.get(neighbor, {})
        news: dict[str, bytes | None] = dict.fromkeys(before.keys() - values.keys())
        news |= {name: data for name, data in values.items() if before.get(name) != data}
        self.values[neighbor] = dict(values)
        if neighbor in self.alive:
            for name, data in (news or {"": b""}).items():
                self.wires.mail.append((self.node, neighbor, name, data))

    def hears(self, neighbor: str, name: str, data: bytes | None) -> None:
        self.hear(neighbor, MENU, name, data)

    def sees(self, neighbor: str, alive: bool) -> None:
        (self.alive.add if alive else self.alive.discard)(neighbor)
        self.watch(neighbor, alive)
        if alive:
            for name, data in self.wires.peers[neighbor].values.get(self.node, {}).items():
                self.hears(neighbor, name, data)
