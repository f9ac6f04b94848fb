"""A network of processes: the outcome, and what becomes of it when they die, hang and return."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_exchange import Exchange
from members import FILE, Members, parts

import inferway
from inferway.live.control.session import neighbors_of
from inferway.live.security.authority import issue
from inferway.network import deployed, topology_of
from inferway.placement import Observation, serve

pytestmark = pytest.mark.slow

SEED = 3
LEASE_S = 1.0
# What a machine that does other things adds.
SLACK_S = 1.0


@pytest.fixture
def network() -> Any:
    return deployed(inferway.load(FILE))


@pytest.fixture
def neighbors() -> dict[str, set[str]]:
    topology = topology_of(inferway.load(FILE))
    everywhere = dict.fromkeys(topology.nodes, "")
    return {name: set(neighbors_of(topology, name, everywhere)) for name in topology.nodes}


@pytest.fixture
def members(network: Any, neighbors: dict[str, set[str]], tmp_path: Path) -> Iterator[Members]:
    issue(network.network.nodes, tmp_path / "certs")
    made = Members(network.network, tmp_path, certs=tmp_path / "certs", seed=SEED, slot_s=2.0)
    try:
        made.joined(neighbors)
        yield made
    finally:
        made.end()


def test_processes_come_to_the_same_allocations(network: Any, members: Members) -> None:
    exchange = Exchange(network.network, seed=SEED)
    members.settle()
    for slot in range(1, 7):
        requests = network.demand.counts(slot)
        load = serve(network.network, requests, exchange.allocation)
        exchange.step(Observation(requests, load))
        members.step(slot, requests, load)
        allocation, fractional = members.state()
        assert np.array_equal(allocation, exchange.allocation)
        assert np.array_equal(fractional, exchange.fractional)
    assert all(one["refused"] == {} for one in members.settle().values())


def test_who_dies_or_hangs_is_noticed_and_comes_back(
    members: Members, neighbors: dict[str, set[str]]
) -> None:
    others = {name: members.of[name] for name in neighbors["office"]}
    took: dict[str, list[float]] = {}

    def measure(what: str, alive: bool, since: float) -> None:
        took[what] = [one.saw("office", alive, since) for one in others.values()]

    office = members.of["office"]
    for hang in ("short", "long"):
        measure(f"{hang} hang noticed", False, office.signal(signal.SIGSTOP))
        if hang == "long":  # for longer than a connection is tried
            others["isp"].ask("run", count=3, arrived={}, load={})
        continued = office.signal(signal.SIGCONT)
        measure(f"{hang} hang over", True, continued)
        for name in others:
            office.saw(name, True, continued)
    measure("death noticed", False, office.signal(signal.SIGKILL))
    office.end()
    office = members.start("office")
    office.ready()
    measure("restart", True, office.opening)
    for name in others:
        office.saw(name, True, 0.0)
    print({what: [round(one, 3) for one in times] for what, times in took.items()})
    assert max(took["short hang noticed"] + took["long hang noticed"]) < LEASE_S + SLACK_S
    assert max(took["death noticed"]) < LEASE_S
    assert max(took["short hang over"] + took["long hang over"]) < 2 * LEASE_S + SLACK_S
    assert max(took["restart"]) < 2 * LEASE_S + SLACK_S


def test_slots_go_on_by_the_clock_while_a_node_hangs(network: Any, members: Members) -> None:
    requests = network.demand.counts(0)
    exchange = Exchange(network.network, seed=SEED)
    load = serve(network.network, requests, exchange.allocation)
    slots = 5
    for node, name in enumerate(network.network.nodes):
        members.of[name].tell("run", count=slots, **parts(network.network, node, requests, load))
    hung = members.of["isp"]
    stopped = hung.signal(signal.SIGSTOP)
    seen = [members.of[name].saw("isp", False, stopped) for name in ("cloud", "office")]
    ended = {name: one.answer() for name, one in members.of.items() if one is not hung}
    hung.signal(signal.SIGCONT)
    # It missed slots in the meantime, which end together; then it agrees with the others again.
    ended["isp"] = hung.answer()
    last = {name: one["slots"][-1] for name, one in ended.items()}
    print({name: one["slots"] for name, one in ended.items()}, seen)
    # Told one after another, some may begin a slot after the others.
    assert len({last[name] for name in last if name != "isp"}) <= 2
    for name, one in ended.items():
        if name != "isp":
            assert one["slots"] == list(range(last[name] - slots + 1, last[name] + 1))
    assert ended["isp"]["slots"] == sorted(set(ended["isp"]["slots"]))
    states = {name: one.ask("state") for name, one in members.of.items()}
    assert {one["steps"] for one in states.values()} == {slots}
    whole = network.network
    _, fractional = members.state()
    used = np.bincount(whole.pairs.node, whole.pairs.size * fractional)
    capped = ~whole.repository
    assert np.all(used[capped] <= whole.budget[capped] * (1 + 1e-3))
    assert np.all((fractional >= 0) & (fractional <= 1))
