"""What a node does at the end of a slot, with a clock that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.live.node.accounts import Accounts
from inferway.live.node.position import Position, position_of
from inferway.live.node.rounds import Rounds
from inferway.live.node.slots import Slot
from inferway.live.node.state import NodeState, StateError, fingerprint
from inferway.live.request import Outcome, Request
from inferway.placement.local import local_policy

FILE = """
tasks:
  digits:
    count: 2
    variants:
      mini: {model: zoo://digits/mini}
      small: {model: zoo://digits/small}
      large: {model: zoo://digits/large}
nodes:
  cloud: {repository: true}
  edge: {budget: 80 kB, pinned: {digits/mini: 1}}
network:
  links: [{between: [cloud, edge], rtt: 20 ms}]
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
PINNED = {("digits-0", "mini"): 1, ("digits-1", "mini"): 1}


class Clock:
    """Slots end as they are given; then never again."""

    def __init__(self, *slots: Slot) -> None:
        self.slots = list(slots)
        self.idle = asyncio.Event()

    async def ended(self) -> Slot:
        if self.slots:
            return self.slots.pop(0)
        self.idle.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def letters(self) -> None:
        pass


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **more: Any) -> None:
        self.said.append(event)

    warning = error = info


class World:
    """The rounds of one node, what they say is to run, and what they log."""

    def __init__(self, folder: Path, *slots: Slot, policy: str = "olag", node: str = "edge"):
        file = folder / "two.yaml"
        file.write_text(FILE)
        deployment = inferway.load(file)
        self.position: Position = position_of(deployment, node)
        network = self.position.deployed.network
        self.policy = local_policy(policy, network, self.position.number, deployment=deployment)
        self.accounts = Accounts(node, self.position.types)
        self.clock = Clock(*slots)
        self.memory = NodeState(folder / "state.sqlite", fingerprint(network, self.position.number))
        self.wanted: list[Mapping[tuple[str, str], int]] = []
        self.log = Log()
        self.rounds = Rounds(
            self.position,
            self.policy,
            None,
            self.accounts,
            self.clock,  # type: ignore[arg-type]
            self.memory,
            running=lambda: PINNED,
            wanted=self.wanted.append,
            log=self.log,
        )

    def ask(self, task: str, count: int) -> None:
        for _ in range(count):
            request = Request({}, 1, lambda request: None)
            request.outcome, request.variant, request.node = Outcome.ANSWERED, "large", "cloud"
            self.accounts.ended(task, request)

    async def go_on(self) -> None:
        going = asyncio.create_task(self.rounds.go_on())
        idle = asyncio.create_task(self.clock.idle.wait())
        await asyncio.wait((going, idle), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert not going.done(), going.exception()
        going.cancel()


def test_what_is_asked_for_is_wanted_after_the_slot(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.rounds.begin()
        assert world.wanted == [PINNED]
        world.ask("digits-1", 50)
        await world.go_on()
        assert (world.rounds.slot, world.rounds.ended) == (70, 1)
        (_, variant), *more = world.wanted[-1].keys() - PINNED.keys()
        assert not more
        assert world.wanted[-1][("digits-1", variant)] == 1
        assert world.rounds.wanted == world.wanted[-1]
        world.memory.close()

    asyncio.run(main())


def test_a_node_that_comes_back_wants_what_it_had(tmp_path: Path) -> None:
    async def first() -> Mapping[tuple[str, str], int]:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.rounds.begin()
        world.ask("digits-1", 50)
        await world.go_on()
        world.memory.close()
        return world.wanted[-1]

    async def again(wanted: Mapping[tuple[str, str], int]) -> None:
        world = World(tmp_path)
        await world.rounds.begin()
        assert world.wanted == [wanted]
        assert (world.rounds.slot, world.rounds.ended) == (70, 0)
        assert world.log.said == ["goes on"]
        world.memory.close()

    wanted = asyncio.run(first())
    assert wanted != PINNED
    asyncio.run(again(wanted))


def test_a_state_of_other_pairs_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        await world.rounds.save()
        saved = world.memory.load()
        assert saved is not None
        world.memory.save(saved._replace(infida=saved.infida._replace(y=np.zeros(1))))
        with pytest.raises(StateError, match="cannot be taken up"):
            await world.rounds.begin()
        world.memory.close()

    asyncio.run(main())


def test_one_slot_that_fails_does_not_cost_all_that_follow(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0), Slot(71, 1.0, 0.0), Slot(75, 1.0, 4.0))
        await world.rounds.begin()
        step = world.policy.step
        steps: list[int] = []

        def failing() -> list[Any]:
            steps.append(len(steps))
            if len(steps) == 1:
                raise ZeroDivisionError
            return step()

        world.policy.step = failing  # type: ignore[method-assign]
        await world.go_on()
        assert len(steps) == 3
        assert (world.rounds.slot, world.rounds.ended) == (75, 3)
        assert world.log.said == ["a slot was not ended", "the clock was set"]
        saved = world.memory.load()
        assert saved is not None
        assert saved.random == b"75"
        world.memory.close()

    asyncio.run(main())


def test_a_disk_that_fails_costs_the_state_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0), Slot(71, 1.0, 0.0))
        await world.rounds.begin()
        world.memory.close()
        await world.go_on()
        assert world.rounds.ended == 2
        assert world.log.said == ["the state was not saved"] * 2

    asyncio.run(main())


def test_a_repository_wants_all_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, node="cloud", policy="infida")
    variants = ("mini", "small", "large")
    assert world.rounds.wanted.keys() >= {(task, "large") for task, _ in PINNED}
    assert all(variant in variants for _, variant in world.rounds.wanted)
    assert min(world.rounds.wanted.values()) >= 1
    world.memory.close()
