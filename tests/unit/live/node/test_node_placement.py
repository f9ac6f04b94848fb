"""What a node does at the end of a slot, with a clock that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.live.control.peers import Peers
from inferway.live.node.placement import LocalDemand, NodePlacement, Slot
from inferway.live.node.plan import NodePlan, plan_of
from inferway.live.node.state import NodeState, StateError, fingerprint
from inferway.live.request import InferRequest, Outcome
from inferway.live.site import Balance, TaskSite, balances_of, take_up

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

    async def letters(self, stage: float = 1.0) -> None:
        pass


class Log:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.reasons: list[str] = []

    def info(self, event: str, *, reason: str = "", **more: Any) -> None:
        self.said.append(event)
        self.reasons.append(reason)

    warning = error = info


class World:
    """The placement of one node, what they say is to run, and what they log."""

    def __init__(self, folder: Path, *slots: Slot, policy: str = "olag", node: str = "edge"):
        file = folder / "two.yaml"
        file.write_text(f"{FILE}placement: {{policy: {policy}}}\n")
        deployment = inferway.load(file)
        self.plan: NodePlan = plan_of(deployment, node)
        network = self.plan.deployed.network
        self.demand = LocalDemand(node, self.plan.types)
        self.memory = NodeState(folder / "state.sqlite", fingerprint(network, self.plan.number))
        self.sites = {task: TaskSite(task, 0.9) for task in ("digits-0", "digits-1")}
        self.running: Mapping[tuple[str, str], int] = PINNED
        self.wanted: list[Mapping[tuple[str, str], int]] = []
        self.log = Log()
        self.rtt_s: float | None = None
        self.placement = NodePlacement(
            deployment,
            self.plan,
            Peers(node, network="", listen="", neighbors={}, credentials=None),
            self.demand,
            self.memory,
            self,  # type: ignore[arg-type]
            self.log,
            lambda: {"cloud": self.rtt_s},
        )
        self.policy: Any = self.placement.policy
        self.clock: Any = Clock(*slots)
        self.placement.clock = self.clock

    async def begin(self) -> None:
        self.wanted.append(await self.placement.begin())

    async def _slots(self) -> None:
        async for wanted in self.placement.slots():
            self.wanted.append(wanted)

    def ask(self, task: str, count: int, rows: int = 1) -> None:
        for _ in range(count):
            request = InferRequest({}, rows, lambda request: None)
            request.outcome, request.variant, request.node = Outcome.ANSWERED, "large", "cloud"
            self.demand.ended(task, request)

    async def go_on(self) -> None:
        going = asyncio.create_task(self._slots())
        idle = asyncio.create_task(self.clock.idle.wait())
        await asyncio.wait((going, idle), return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert not going.done(), going.exception()
        going.cancel()


def test_what_is_asked_for_is_wanted_after_the_slot(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.begin()
        assert world.wanted == [PINNED]
        world.ask("digits-1", 50)
        await world.go_on()
        assert (world.placement.slot, world.placement.ended) == (70, 1)
        (_, variant), *more = world.wanted[-1].keys() - PINNED.keys()
        assert not more
        assert world.wanted[-1][("digits-1", variant)] == 1
        assert world.placement.wanted == world.wanted[-1]
        world.memory.close()

    asyncio.run(main())


def test_a_node_that_comes_back_wants_what_it_had(tmp_path: Path) -> None:
    async def first() -> Mapping[tuple[str, str], int]:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.begin()
        world.ask("digits-1", 50)
        await world.go_on()
        world.memory.close()
        return world.wanted[-1]

    async def again(wanted: Mapping[tuple[str, str], int]) -> None:
        world = World(tmp_path)
        await world.begin()
        assert world.wanted == [wanted]
        assert (world.placement.slot, world.placement.ended) == (70, 0)
        assert world.log.said == ["goes on"]
        world.memory.close()

    wanted = asyncio.run(first())
    assert wanted != PINNED
    asyncio.run(again(wanted))


def test_a_state_that_makes_no_sense_is_told_and_the_node_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        take_up(world.sites, {"digits-0": Balance(0.9, -3.0)})
        world.ask("digits-1", 50)
        await world.go_on()
        saved = world.memory.load()
        assert saved is not None
        assert saved.counters is not None
        senseless = (
            saved._replace(infida=saved.infida._replace(y=np.zeros(1))),
            saved._replace(random=b"slot"),
            saved._replace(counters=saved.counters._replace(of="[]")),
            saved._replace(counters=saved.counters._replace(counts=np.zeros(1))),
        )
        for one in senseless:
            world.memory.save(one)
            world.memory.close()
            world = World(tmp_path)
            await world.begin()
            assert world.log.said == ["begins anew"]
            assert "cannot be taken up: " in world.log.reasons[0]
            assert "\n" not in world.log.reasons[0]
            assert world.wanted == [PINNED]
            assert world.placement.slot == 0
            assert not world.policy.counters.counts.any()
            assert balances_of(world.sites.values()) == {}
        world.memory.close()

    asyncio.run(main())


def test_a_damaged_file_is_told_and_the_node_begins_anew(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        world.ask("digits-1", 50)
        await world.go_on()
        world.memory.close()
        file = tmp_path / "state.sqlite"
        content = file.read_bytes()
        x = world.policy.x.tobytes()
        for damaged, reason in (
            (content.replace(x, bytes(len(x))), "is damaged: its content is not what was written"),
            (content[:4096], "it is kept as"),
        ):
            assert damaged != content
            file.write_bytes(damaged)
            world = World(tmp_path, Slot(71, 1.0, 0.0))
            await world.begin()
            assert world.log.said == ["begins anew"]
            assert reason in world.log.reasons[0]
            assert world.wanted == [PINNED]
            await world.go_on()
            assert world.memory.load() is not None
            world.memory.close()

    asyncio.run(main())


def test_another_networks_state_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.go_on()
        world.memory.close()
        world = World(tmp_path)
        world.memory._fingerprint = "another"
        with pytest.raises(StateError, match="remembers another network"):
            await world.begin()
        world.memory.close()

    asyncio.run(main())


def test_what_is_counted_and_the_balances_come_back(tmp_path: Path) -> None:
    """Decisions of a node that restarts after each slot are those of one that never does."""

    async def decided(folder: Path, *, restarts: bool) -> list[Any]:
        folder.mkdir()
        world = World(folder, policy="olag-literal")
        found: list[Any] = []
        for number in range(70, 80):
            if restarts and number > 70:
                world.memory.close()
                world = World(folder, policy="olag-literal")
                await world.begin()
                assert world.placement.slot == number - 1
            if number < 74:
                # More than a copy answers in a slot.
                world.ask("digits-1", 1, 5_000_000)
                world.ask("digits-0", 1, 3_000_000 * (number - 70))
            take_up(world.sites, {"digits-0": Balance(0.9, -0.7 * number)})
            world.clock.slots, world.clock.idle = [Slot(number, 1.0, 0.0)], asyncio.Event()
            await world.go_on()
            counters = world.policy.counters
            found.append(
                (
                    world.placement.wanted,
                    counters.counts.tolist(),
                    balances_of(world.sites.values()),
                )
            )
        world.memory.close()
        return found

    steady = asyncio.run(decided(tmp_path / "steady", restarts=False))
    broken = asyncio.run(decided(tmp_path / "broken", restarts=True))
    assert broken == steady
    assert len({str(wanted) for wanted, *_ in steady}) > 1
    # What was counted decides in slots in which nothing comes.
    assert steady[4][0] != PINNED
    assert any(steady[4][1])
    assert steady[-1][2]["digits-0"].balance == pytest.approx(-0.7 * sum(range(70, 80)))


def test_a_balance_of_another_target_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        take_up(world.sites, {"digits-0": Balance(0.9, 2.0), "digits-1": Balance(0.9, -2.0)})
        await world.go_on()
        world.memory.close()
        world = World(tmp_path)
        world.sites["digits-0"].target = 0.8
        await world.begin()
        assert balances_of(world.sites.values()) == {"digits-1": Balance(0.9, -2.0)}
        world.memory.close()

    asyncio.run(main())


def test_what_has_moved_is_saved_and_all_else_is_as_of_the_slots_end(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.begin()
        world.ask("digits-1", 50)
        await world.go_on()
        before = world.memory.load()
        assert before is not None
        assert before.loaded == ("digits-0/mini#0", "digits-1/mini#0")
        world.running = {("digits-0", "mini"): 1, ("digits-1", "small"): 2}
        world.policy.count += 1.0
        world.policy.state.x[:] = 1
        take_up(world.sites, {"digits-0": Balance(0.9, 2.0)})
        await world.placement.moved()
        after = world.memory.load()
        assert after is not None
        assert after.loaded == ("digits-0/mini#0", "digits-1/small#0", "digits-1/small#1")
        assert after.balances == before.balances == {}
        assert after.counters is not None
        assert before.counters is not None
        assert after.counters.counts.tolist() == before.counters.counts.tolist()
        assert after.infida.x.tolist() == before.infida.x.tolist()
        world.memory.close()

    asyncio.run(main())


def test_what_was_loaded_runs_until_what_is_wanted_does(tmp_path: Path) -> None:
    """As after a kill before a copy that is wanted could be loaded."""

    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0))
        await world.begin()
        world.ask("digits-1", 50)
        await world.go_on()
        wanted = world.wanted[-1]
        assert wanted != PINNED
        world.running = {**PINNED, ("digits-0", "small"): 1, ("others", "x"): 1}
        await world.placement.moved()
        world.memory.close()
        world = World(tmp_path)
        await world.begin()
        assert world.wanted == [{**PINNED, ("digits-0", "small"): 1}]
        await world.go_on()
        assert world.wanted[1:] == [wanted]
        # Some of it was: that comes first.
        first = next(iter(wanted.keys() - PINNED.keys()))
        world.running = {first: 1}
        await world.placement.moved()
        world.memory.close()
        world = World(tmp_path)
        await world.begin()
        assert world.wanted == [wanted]
        assert next(iter(world.wanted[0])) == first
        world.memory.close()
        # Of another policy's wishes nothing is left to wait for.
        world = World(tmp_path, policy="repository-only")
        await world.begin()
        assert world.wanted == [PINNED]
        world.memory.close()

    asyncio.run(main())


def test_one_slot_that_fails_does_not_cost_all_that_follow(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0), Slot(71, 1.0, 0.0), Slot(75, 1.0, 4.0))
        await world.begin()
        step = world.policy.step
        steps: list[int] = []

        def failing() -> Any:
            steps.append(len(steps))
            if len(steps) == 1:
                raise ZeroDivisionError
            return step()

        world.policy.step = failing
        await world.go_on()
        assert len(steps) == 3
        assert (world.placement.slot, world.placement.ended) == (75, 3)
        assert world.log.said == ["a slot was not ended", "the clock was set"]
        saved = world.memory.load()
        assert saved is not None
        assert saved.random == b"75"
        world.memory.close()

    asyncio.run(main())


def test_a_disk_that_fails_costs_the_state_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, Slot(70, 1.0, 0.0), Slot(71, 1.0, 0.0))
        await world.begin()
        world.memory.close()
        await world.go_on()
        assert world.placement.ended == 2
        assert world.log.said == ["the state was not saved"] * 2

    asyncio.run(main())


def test_a_repository_wants_all_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, node="cloud", policy="infida")
    variants = ("mini", "small", "large")
    assert world.placement.wanted.keys() >= {(task, "large") for task, _ in PINNED}
    assert all(variant in variants for _, variant in world.placement.wanted)
    assert min(world.placement.wanted.values()) >= 1
    world.memory.close()


@pytest.mark.parametrize("policy", ["exchange", "infida"])
def test_a_node_measures_and_goes_on_with_what_it_had_measured(tmp_path: Path, policy: str) -> None:
    async def first() -> Any:
        world = World(
            tmp_path, Slot(70, 1.0, 0.0), Slot(71, 1.0, 0.0), policy=f"{policy}, delays: measured"
        )
        await world.begin()
        link = world.placement.delays["links"]["cloud"]  # type: ignore[index]
        assert link == {"file_rtt_s": pytest.approx(0.02), "rtt_s": None}
        world.rtt_s = 0.5
        request = InferRequest({}, 1, lambda request: None)
        request.outcome, request.variant, request.node = Outcome.ANSWERED, "mini", "edge"
        request.received_s, request.started_s, request.service_s = 1.0, 1.25, 0.125
        world.demand.ended("digits-1", request)
        await world.go_on()
        delays: Any = world.placement.delays
        assert delays["links"]["cloud"]["rtt_s"] == 0.5
        of = {(one["task"], one["variant"]): one for one in delays["variants"]}
        assert of["digits-1", "mini"]["service_s"] == 0.125
        assert 0.0 < of["digits-1", "mini"]["wait_s"] < 0.25
        assert of["digits-0", "mini"]["service_s"] is None
        assert of["digits-0", "mini"]["file_service_s"] < 0.01
        assert delays["wait_scale"] > 1.0
        world.memory.close()
        return delays

    async def again(before: Any) -> None:
        world = World(tmp_path, policy=f"{policy}, delays: measured")
        await world.begin()
        assert world.placement.delays == before
        world.memory.close()
        # Another policy takes up the rest, and nobody needs what was measured.
        world = World(tmp_path, policy="olag")
        await world.begin()
        assert world.log.said == ["goes on"]
        assert world.placement.delays is None
        world.memory.close()

    asyncio.run(again(asyncio.run(first())))
