"""A node's process killed in its work: what it decides next is what it would have decided."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_node import Response, free, post

import inferway
from inferway.live.node.plan import plan_of
from inferway.live.node.state import NodeState, Saved, fingerprint
from inferway.placement.local import local_policy

# A copy counts as serving 5 requests a slot, so that counters last for many.
FILE = """
tasks:
  digits:
    count: 2
    accuracy_target: 0.9
    variants:
      mini: {model: zoo://digits/mini, service: {mean: 200 ms}}
      large: {model: zoo://digits/large, service: {mean: 200 ms}}
nodes:
  cloud: {repository: true, instances: {digits/large: 1}}
  edge: {budget: 80 kB}
network:
  links: [{between: [cloud, edge], rtt: 400 ms}]
placement: {policy: olag-literal, slot: 1 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""
ROWS = 90
LIMIT_S = 60.0


class World:
    """Two nodes, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "two.yaml"
        self.file.write_text(FILE)
        names = ("http", "peer", "control", "admin")
        self.at = {node: {name: free() for name in names} for node in ("cloud", "edge")}
        (folder / "at.json").write_text(json.dumps(self.at))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.plan = plan_of(inferway.load(self.file), "edge")

    def start(self, node: str) -> None:
        self.running[node] = subprocess.Popen(
            [
                *(sys.executable, "-m", "inferway", "node", str(self.file), "--name", node),
                *("--addresses", str(self.folder / "at.json"), "--log-level", "warning"),
                *("--state", str(self.folder / node)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill(self, node: str) -> None:
        process = self.running.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)

    def told(self, page: str = "v2/node") -> Any:
        url = f"http://{self.at['edge']['admin']}/{page}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())

    def until(self, holds: Callable[[Any], object]) -> None:
        """Wait for what the edge says of itself."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            try:
                if holds(self.told()):
                    return
            except OSError:  # it does not listen yet
                pass
            time.sleep(0.02)
        raise AssertionError(self.told())

    def within(self) -> set[str]:
        """Variants that the edge has for the requests of the test."""
        return set(self.told("status")["tasks"].get("digits-0", {}).get("variants", {}))

    def ask(self, rows: int) -> Response:
        image = {"name": "image", "datatype": "FP32", "shape": [rows, 1, 32, 32]}
        image["data"] = [0.0] * (rows * 1024)
        url = f"http://{self.at['edge']['http']}/v2/models/digits-0/infer"
        return post(url, {"inputs": [image]})

    def saved(self) -> Saved:
        network, number = self.plan.deployed.network, self.plan.number
        state = NodeState(self.folder / "edge" / "state.sqlite", fingerprint(network, number))
        found = state.load()
        state.close()
        assert found is not None
        return found

    def steady(self) -> Iterator[tuple[list[int], list[float]]]:
        """What a node that is never killed decides and counts, slot by slot after the requests."""
        network, number = self.plan.deployed.network, self.plan.number
        policy = local_policy("olag-literal", network, number)
        came = {self.plan.types["digits-0", "edge"]: float(ROWS)}
        while True:
            policy.close_slot({}, came, {})
            policy.step()
            assert policy.counters is not None
            yield policy.x.tolist(), policy.counters.counts.tolist()
            came = {}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    try:
        for node in world.at:
            world.start(node)
        yield world
    finally:
        for node in list(world.running):
            world.kill(node)


@pytest.mark.slow
def test_after_kill_9_a_node_decides_what_it_would_have_decided(both: World) -> None:
    both.until(lambda told: told["ready"] and told["slots"] >= 1 and "large@cloud" in both.within())
    assert both.ask(ROWS).status_code == 200
    both.until(lambda told: any(one.startswith("digits-0/") for one in told["running"]))
    chance, steady = random.Random(5), both.steady()
    expected = next(steady)
    first: Saved | None = None
    slots = 0
    for _ in range(3):
        time.sleep(chance.random())  # any moment of a slot
        both.kill("edge")
        saved = both.saved()
        assert saved.counters is not None
        if first is None:
            # The requests were one, and so came in one slot; others may have followed.
            first = saved
            while expected[1] != saved.counters.counts.tolist():
                assert any(expected[1])
                expected = next(steady)
        else:
            assert int(saved.infida.slot[0]) > slots
            for _ in range(int(saved.infida.slot[0]) - slots):
                expected = next(steady)
        slots = int(saved.infida.slot[0])
        assert (saved.infida.x.tolist(), saved.counters.counts.tolist()) == expected
        # It goes on: nothing has come since, and what was counted still decides.
        assert any(saved.counters.counts)
        assert np.any(saved.infida.x)
        assert [name.split("/")[0] for name in saved.loaded] == ["digits-0"]
        assert saved.balances == first.balances
        assert saved.balances["digits-0"].balance != 0.0
        both.start("edge")
        both.until(lambda told: told["ready"] and told["slots"] >= 1)
    both.until(lambda told: both.within())
    task = both.told("status")["tasks"]["digits-0"]
    assert first is not None
    assert task["accuracy_balance"] == first.balances["digits-0"].balance
