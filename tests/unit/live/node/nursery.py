"""Children that fetch, save or decide until they are killed, in the middle of it.

One process imports what they need and forks them, so that a round takes milliseconds. It prints a
line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import inferway
from inferway.deployment import Deployment
from inferway.live import InferRequest, Outcome
from inferway.live.node.placement import LocalDemand, NodePlacement, Slot
from inferway.live.node.plan import plan_of
from inferway.live.node.state import NodeState, Saved, fingerprint
from inferway.live.site import Balance, TaskSite, balances_of, take_up
from inferway.live.store.allowed import Allowed
from inferway.live.store.store import ModelStore
from inferway.placement.agent import Counters, LocalPolicy
from inferway.placement.infida import InfidaState
from inferway.placement.local import local_policy

PAIRS = 3000
SLOTS = 3000
FILE = """
tasks:
  seen:
    count: 5
    accuracy_target: 0.9
    variants:
      a: {accuracy: 0.7, size: 1 GiB, service: {rate: 40/s}}
      b: {accuracy: 0.8, size: 2 GiB, service: {rate: 20/s}}
      c: {accuracy: 0.9, size: 4 GiB, service: {rate: 10/s}}
nodes:
  edge: {budget: 7 GiB}
  cloud: {repository: true}
network:
  links: [{between: [edge, cloud], rtt: 400 ms}]
placement: {policy: olag, slot: 1 s}
workload:
  seen: {arrivals: {process: poisson, rate: 50/s}, entries: {nodes: [edge]}}
"""


def saved(slot: int) -> Saved:
    """A state in which every number is the slot's, so that two mixed ones are seen."""
    infida = InfidaState(
        y=np.full(PAIRS, float(slot)),
        spread=np.full(1, float(slot)),
        steep=np.full(1, float(slot)),
        x=np.full(PAIRS, slot % 256, np.uint8),
        slot=np.array([slot, slot]),
    )
    return Saved(
        infida,
        (f"digits/tiny#{slot}",),
        str(slot).encode(),
        Counters(f"of {slot}", np.full(PAIRS, float(slot))),
        {f"digits-{k}": Balance(0.9, slot + 0.1 * k) for k in range(40)},
    )


def slot_of(state: Saved) -> int:
    """The slot of a state, if all of it is of this one."""
    slot = int(state.infida.slot[0])
    for found, expected in zip(state.infida, saved(slot).infida, strict=True):
        assert np.array_equal(found, expected)
    *other, counters, balances = saved(slot)[1:]
    assert [state.loaded, state.random] == other
    assert state.balances == balances
    assert state.counters is not None
    assert counters is not None
    assert state.counters.of == counters.of
    assert np.array_equal(state.counters.counts, counters.counts)
    return slot


def mortal(limit: int) -> None:
    """Have the kernel kill this process as soon as it writes to a file beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def save(file: Path, rounds: int) -> None:
    """Kill a child that saves slot after slot; what comes back is not older than it said."""
    chance, last = random.Random(1), 0
    for _ in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            state = NodeState(file, "one")
            slot = last
            while True:
                slot += 1
                state.save(saved(slot))
                os.write(writer, slot.to_bytes(8, "big"))
        os.close(writer)
        for _ in range(chance.randrange(4)):
            last = int.from_bytes(os.read(reader, 8), "big")
        # Some more moments, of any length, so that it is hit anywhere.
        for _ in range(chance.randrange(3000)):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = checked(file, reader, last)
    print(json.dumps({"slots": last}))


def cut(file: Path) -> None:
    """Kill a child that saves at one byte after the other of what it writes."""
    last, killed = 0, 0
    for limit in range(1000, 220_000, 4999):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            mortal(limit)
            state = NodeState(file, "one")
            for slot in range(last + 1, last + 4):
                state.save(saved(slot))
                os.write(writer, slot.to_bytes(8, "big"))
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ
        last = checked(file, reader, last)
    print(json.dumps({"slots": last, "killed": killed}))


def checked(file: Path, reader: int, last: int) -> int:
    """Compare what came back with what the child said; return its slot."""
    said = last
    while word := os.read(reader, 8):
        said = int.from_bytes(word, "big")
    os.close(reader)
    state = NodeState(file, "one")
    loaded = state.load()
    state.close()
    found = last if loaded is None else slot_of(loaded)
    # It may have been killed between the commit and its word.
    assert said <= found <= said + 1, (said, found)
    return found


def asked(tasks: list[str], slot: int) -> dict[str, int]:
    """What comes in a slot: now and then more than any node could answer."""
    chance = random.Random(slot)
    return {task: chance.randrange(100) for task in tasks if chance.random() < 0.3}


def owed(slot: int) -> Balance:
    """What a slot's answers are short of the target."""
    return Balance(0.9, random.Random(-slot).uniform(-1.0, 1.0))


def decided(policy: LocalPolicy, sites: Mapping[str, TaskSite]) -> dict[str, Any]:
    """What a node has come to."""
    assert policy.counters is not None
    return {
        "x": policy.x.tolist(),
        "counts": policy.counters.counts.tolist(),
        "balances": balances_of(sites.values()),
    }


class Turning:
    """A clock whose slots end at once; tells of each what the node has come to after it."""

    def __init__(self, made: Deciding, slot: int, writer: int) -> None:
        self.made, self.slot, self.writer = made, slot, writer

    async def ended(self) -> Slot:
        made = self.made
        if self.slot:
            told = {"slot": self.slot, **decided(made.policy, made.sites)}
            os.write(self.writer, (json.dumps(told) + "\n").encode())
        self.slot += 1
        made.come(self.slot)
        return Slot(self.slot, 1.0, 0.0)

    async def letters(self) -> None:
        pass


class Deciding:
    """A node's part of OLAG, its demand and its balances."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.plan = deployment, plan_of(deployment, "edge")
        plan, network = self.plan, self.plan.deployed.network
        self.policy = local_policy("olag", network, plan.number)
        self.demand = LocalDemand(plan.node, plan.types)
        self.sites = {task: TaskSite(task, 0.9) for task in plan.tasks}
        self.tasks = list(plan.tasks)

    def come(self, slot: int) -> None:
        """Let come what comes in a slot."""
        for task, rows in asked(self.tasks, slot).items():
            request = InferRequest({}, rows, lambda request: None)
            request.outcome, request.variant, request.node = Outcome.ANSWERED, "c", "cloud"
            self.demand.ended(task, request)
        take_up(self.sites, {self.tasks[slot % len(self.tasks)]: owed(slot)})

    async def go_on(self, folder: Path, writer: int) -> None:
        """Run slots until killed."""
        plan = self.plan
        network = plan.deployed.network
        clock = Turning(self, 0, writer)
        placement = NodePlacement(
            self.deployment,
            plan,
            None,  # type: ignore[arg-type]
            self.demand,
            NodeState(folder / "state.sqlite", fingerprint(network, plan.number)),
            SimpleNamespace(sites=self.sites, running={}),  # type: ignore[arg-type]
            Silent(),
        )
        self.policy, placement.clock = placement.policy, clock  # type: ignore[assignment]
        await placement.begin()
        clock.slot = placement.slot
        async for _ in placement.slots():
            pass


class Silent:
    """A log in which only what went well may be."""

    def info(self, event: str, **more: Any) -> None:
        pass

    def error(self, event: str, **more: Any) -> None:
        print(event, more, file=sys.stderr, flush=True)
        os._exit(1)

    warning = error


def decide(folder: Path, rounds: int) -> None:
    """Kill a node that decides slot after slot; each decision is that of one never killed."""
    file = folder / "two.yaml"
    file.write_text(FILE)
    deployment = inferway.load(file)
    steady = Deciding(deployment)
    expected = [decided(steady.policy, steady.sites)]
    for slot in range(1, SLOTS + 1):
        steady.come(slot)
        arrived, reached, _ = steady.demand.cut()
        steady.policy.close_slot(arrived, reached, {}, slot=slot)
        steady.policy.step()
        expected.append(json.loads(json.dumps(decided(steady.policy, steady.sites))))
    carried = sum(any(one["counts"]) for one in expected)
    allocations = len({str(one["x"]) for one in expected})
    chance, last = random.Random(3), 0
    for _ in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            asyncio.run(Deciding(deployment).go_on(folder, writer))
        os.close(writer)
        lines = os.fdopen(reader, "rb")
        told = [lines.readline() for _ in range(chance.randrange(4, 9))]
        # Some more moments, of any length, so that it is hit anywhere.
        for _ in range(chance.randrange(100_000)):
            pass
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), status
        decisions = [json.loads(line) for line in (*told, *lines) if line.endswith(b"\n")]
        # The first it tells of is what it has taken up; the last one's word may have been lost.
        first_slot = decisions[0]["slot"]
        assert first_slot in ((last, last + 1) if last else (1, 2)), (first_slot, last)
        for one in decisions:
            slot = one.pop("slot")
            assert one == expected[slot], (slot, one, expected[slot])
        last = slot
    print(json.dumps({"slots": last, "carried": carried, "allocations": allocations}))


def fetch(folder: Path, url: str, digest: str, trusted: str, rounds: int) -> None:
    """Kill a child that fetches at one byte after the other, until the model is whole."""
    chance, size = random.Random(2), 0
    whole, part = folder / digest[7:], folder / f"{digest[7:]}.part"

    async def once() -> None:
        context = ssl.create_default_context(cafile=trusted)
        store = ModelStore(
            folder, limit_bytes=100_000_000, allowed=Allowed(loopback=True), tls=context
        )
        await store.fetch(url, digest)

    for done in range(rounds):  # noqa: B007
        limit = size + chance.randrange(400_000)
        child = os.fork()
        if not child:
            mortal(limit)
            asyncio.run(once())
            os._exit(0)
        os.waitpid(child, 0)
        if whole.exists():
            break
        size = part.stat().st_size if part.exists() else 0
    print(json.dumps({"rounds": done + 1, "whole": whole.exists()}))


if __name__ == "__main__":
    _, what, place, *rest = sys.argv
    if what == "save":
        save(Path(place), int(rest[0]))
    elif what == "cut":
        cut(Path(place))
    elif what == "decide":
        decide(Path(place), int(rest[0]))
    else:
        fetch(Path(place), rest[0], rest[1], rest[2], int(rest[3]))
