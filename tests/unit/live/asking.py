"""An entry node that asks a second variant of others, each node on this loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cascade import CASCADE
from chain import Answered, Node, line, until

from inferway.site import ConfidenceTables

TARGET = 0.8
SURE, UNSURE = 0.45, 0.05  # What is sent; answers are twice as much, and so is their confidence
# Expected accuracy of the first and of others where the first is sure, and where it is not.
EXPECTED = {SURE: (0.95, 0.97), UNSURE: (0.3, 0.75)}
FAST = 1e4  # Of an offer that is asked first


def tables(first: int) -> ConfidenceTables:
    """What confidences of one of two variants say; the other has none."""
    mass, expected, edges = np.zeros((2, 2)), np.full((2, 2, 2), 0.8), np.full((2, 1), np.inf)
    mass[first], edges[first] = (0.3, 0.7), 0.5
    for b, (own, other) in enumerate((EXPECTED[UNSURE], EXPECTED[SURE])):
        expected[first, b, first], expected[first, b, 1 - first] = own, other
    return ConfidenceTables(mass, expected, edges)


def confidence(outputs: dict[str, Any]) -> Any:
    return outputs["y"][:, 0].astype(np.float64)


def body(value: float, *rows: float, **more: Any) -> bytes:
    data = [[one, 2.0] for one in (value, *rows)]
    x = {"name": "x", "datatype": "FP32", "shape": [len(data), 2], "data": data}
    return json.dumps({"inputs": [x], **more}).encode()


class Network:
    """An entry and those behind it; the entry asks a second variant where the first is unsure."""

    def __init__(self, folder: Path, nodes: list[Node]) -> None:
        self.file = folder / "cascade.py"
        self.file.write_text(CASCADE)
        self.entry, *self.others = nodes
        self.far = nodes[-1]

    async def serve(self, offer: tuple[str, str, str], **more: Any) -> None:
        await self.entry.serve(
            offer,
            tables=tables(int("rate" in more)),
            policy=f"{self.file}:Cascade",
            confidences=[confidence, None],
            **more,
        )

    async def ask(self, value: float, *rows: float, **said: Any) -> Answered:
        more = said.pop("more", {})
        return await (await self.entry.client()).ask(body(value, *rows, **more), **said)

    @property
    def balance(self) -> float:
        return float(self.entry.site.pool.balance[0])

    async def idle(self) -> None:
        await until(lambda: self.entry.site.pool.in_flight == 0)


@asynccontextmanager
async def chain(folder: Path, *names: str, **more: Any) -> AsyncIterator[Network]:
    async with line(*names, **more) as nodes:
        yield Network(folder, nodes)
