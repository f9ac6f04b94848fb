"""Python classes at a node: started when a copy comes, lent to fleets, and ended when it goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.live.errors import LoadError
from inferway.live.node.models import LoadedModels
from inferway.live.store.store import ModelStore

PAIR = ("t", "own")
CODE = """\
class Own:
    inputs = {"x": ("FP32", [-1, 4])}
    outputs = {"y": ("FP32", [-1, 4])}

    def predict(self, inputs):
        return {"y": inputs["x"]}


class Mute:
    def predict(self, inputs):
        return {"y": inputs["x"]}


class Failing(Own):
    def predict(self, inputs):
        raise ValueError("on zeros")
"""
FILE = """\
tasks:
  t:
    deadline: 300 ms
    variants:
      own: {python: "own.py:CLASS", size: 1 MB, service: {mean: 1 ms}}
      other: {python: "own.py:Own", size: 1 MB, service: {mean: 1 ms}}
"""
X = np.ones((1, 4), np.float32)


class World:
    """A node's models of one file, of which one is a class."""

    def __init__(self, folder: Path, name: str) -> None:
        (folder / "own.py").write_text(CODE)
        (folder / "d.yaml").write_text(FILE.replace("CLASS", name))
        self.store = ModelStore(folder / "store", limit_bytes=1_000_000)
        self.models = LoadedModels(inferway.load(folder / "d.yaml"), self.store)

    def run(self, work: Any) -> None:
        asyncio.run(asyncio.wait_for(work, 120))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    worlds: list[World] = []

    def maker(name: str = "Own") -> World:
        worlds.append(World(tmp_path, name))
        return worlds[-1]

    yield maker
    for world in worlds:
        world.store.close()


def test_its_processes_stay_while_fleets_change_and_end_with_the_last_loan(made: Any) -> None:
    world = made()
    models = world.models

    async def main() -> None:
        await models.prepare(*PAIR)
        assert models.is_ready(*PAIR)
        await models.load(*PAIR)
        assert str(models.signature("t")) == "(x: FP32[-1, 4]) -> (y: FP32[-1, 4])"
        one = models.acquire(*PAIR)
        await asyncio.to_thread(one.reserve, 2)
        workers = set(one.workers)
        assert len(workers) == 2
        two = models.acquire(*PAIR)
        await asyncio.to_thread(two.reserve, 2)
        assert set(two.workers) == workers
        assert two.restarts == 0
        np.testing.assert_array_equal(two.run({"x": X})["y"], X)
        one.close()
        assert not models.release(*PAIR)
        two.close()
        deadline_s = time.monotonic() + 60
        while PAIR in models or any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)

    world.run(main())


def test_one_that_says_no_signature_is_loaded_when_another_has_said_it(made: Any) -> None:
    world = made("Mute")

    async def main() -> None:
        with pytest.raises(LoadError, match=r"t/own: .* has no `inputs` and `outputs`"):
            await world.models.load(*PAIR)
        await world.models.load("t", "other")
        await world.models.load(*PAIR)
        world.models.close()

    world.run(main())


def test_one_that_fails_on_zeros_is_not_loaded(made: Any) -> None:
    world = made("Failing")

    async def main() -> None:
        with pytest.raises(LoadError, match="predict raised ValueError: on zeros"):
            await world.models.load(*PAIR)
        assert PAIR not in world.models

    world.run(main())
