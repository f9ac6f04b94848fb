"""Links between several nodes in one process, and what tests wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from inferway.live.control.peers import Peers
from inferway.live.security.tls import Credentials
from ports import free_ports

LIMIT_S = 20.0


class Heard:
    """What a node has heard, in order; tests wait for more."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.messages: list[tuple[str, str, bytes]] = []
        self.values: dict[tuple[str, str, str], bytes] = {}
        self.changes: list[tuple[str, str, str, bytes | None]] = []
        self.seen: list[tuple[str, bool]] = []
        self.rings: asyncio.Event | None = None
        self._changed = asyncio.Condition()
        peers.on_sample(self._sample)
        peers.on_neighbor(lambda *event: self._note(self.seen, event))
        self._tasks: set[asyncio.Task[None]] = set()

    def _sample(self, neighbor: str, kind: str, name: str, data: bytes | None) -> None:
        if not name:
            self._note(self.messages, (neighbor, kind, data))
            return
        self.values.pop((neighbor, kind, name), None)
        if data is not None:
            self.values[neighbor, kind, name] = data
        self._note(self.changes, (neighbor, kind, name, data))

    def _note(self, where: list[Any], what: tuple[Any, ...]) -> None:
        where.append(what)
        if self.rings is not None:
            self.rings.set()

        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.create_task(tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, true: Callable[[], bool]) -> None:
        async with self._changed, asyncio.timeout(LIMIT_S):
            await self._changed.wait_for(true)

    async def met(self, *neighbors: str) -> None:
        await self.until(lambda: self.peers.alive >= set(neighbors))

    async def message(self, count: int = 1) -> list[tuple[str, str, bytes]]:
        await self.until(lambda: len(self.messages) >= count)
        return self.messages


def addresses_of(names: tuple[str, ...]) -> dict[str, str]:
    ports = free_ports(len(names))
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}


@asynccontextmanager
async def peers(
    neighbors: Mapping[str, tuple[str, ...]],
    certs: Path | None,
    *,
    addresses: dict[str, str] | None = None,
    make: type[Peers] = Peers,
    only: tuple[str, ...] | None = None,
    before: Callable[[str, Peers], object] | None = None,
) -> AsyncIterator[dict[str, Heard]]:
    """Open the links of each node; of two neighbors, the one that is named later connects.

    Who must hear the first message registers in `before`, which is called ahead of each opening.
    """
    names = tuple(neighbors)
    addresses = addresses_of(names) if addresses is None else addresses
    opened: dict[str, Heard] = {}
    try:
        for name in names if only is None else only:
            made = make(
                name,
                network="test",
                listen=addresses[name],
                neighbors={
                    other: addresses[other] if names.index(other) < names.index(name) else None
                    for other in neighbors[name]
                },
                credentials=None if certs is None else Credentials.of(name, certs),
            )
            opened[name] = Heard(made)
            if before is not None:
                before(name, made)
            await made.open()
        yield opened
    finally:
        for heard in opened.values():
            await heard.peers.close()
