"""Control planes of several nodes in one process, and what tests wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from members import free_ports

from inferway.live.control.control import LETTERS, ControlPlane
from inferway.live.control.credentials import Credentials

LIMIT_S = 20.0


class Heard:
    """What a plane has heard, in order; tests wait for more."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.letters: list[tuple[str, str, bytes]] = []
        self.seen: list[tuple[str, bool]] = []
        self.rings: asyncio.Event | None = None
        self._changed = asyncio.Condition()
        plane.on_letter(lambda *letter: self._note(self.letters, letter))
        plane.on_neighbor(lambda *event: self._note(self.seen, event))
        self._tasks: set[asyncio.Task[None]] = set()

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
        await self.until(lambda: self.plane.alive >= set(neighbors))

    async def letter(self, count: int = 1) -> list[tuple[str, str, bytes]]:
        await self.until(lambda: len(self.letters) >= count)
        return self.letters


def addresses_of(names: tuple[str, ...]) -> dict[str, str]:
    ports = free_ports(len(names))
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}


@asynccontextmanager
async def planes(
    neighbors: Mapping[str, tuple[str, ...]],
    certs: Path | None,
    *,
    addresses: dict[str, str] | None = None,
    make: type[ControlPlane] = ControlPlane,
    only: tuple[str, ...] | None = None,
    before: Callable[[str, ControlPlane], object] | None = None,
    **options: Any,
) -> AsyncIterator[dict[str, Heard]]:
    """Open a plane per node; of two neighbors, the one that is named later connects.

    Who must hear the first letter registers in `before`, which is called ahead of each opening.
    """
    names = tuple(neighbors)
    addresses = addresses_of(names) if addresses is None else addresses
    opened: dict[str, Heard] = {}
    try:
        for name in names if only is None else only:
            plane = make(
                name,
                network="test",
                listen=addresses[name],
                neighbors={
                    other: addresses[other] if names.index(other) < names.index(name) else None
                    for other in neighbors[name]
                },
                credentials=None if certs is None else Credentials.of(name, certs),
                **{"kinds": (*LETTERS, "probe"), **options},
            )
            opened[name] = Heard(plane)
            if before is not None:
                before(name, plane)
            await plane.open()
        yield opened
    finally:
        for heard in opened.values():
            await heard.plane.close()
