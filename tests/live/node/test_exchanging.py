"""Three nodes under `exchange`, each a process: copies follow requests, also past a kill."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.lab import ClusterError, LocalCluster

pytest.importorskip("zenoh", reason="nodes need the extra `network`")
pytestmark = pytest.mark.slow

# Below the repository there is room for one copy of `small`, and not for `medium`.
FILE = """
tasks:
  digits:
    count: 3
    max_instances: 1
    variants:
      small: {model: zoo://digits/small}
      medium: {model: zoo://digits/medium}
nodes:
  cloud: {repository: true}
  metro: {budget: 60 kB}
  edge: {budget: 60 kB}
network:
  links: [{between: [cloud, metro], rtt: 40 ms}, {between: [metro, edge], rtt: 20 ms}]
placement: {policy: exchange, slot: 1 s}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [metro, edge]}}
"""
IMAGE = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
BODY = json.dumps({"inputs": [IMAGE]})
LIMIT_S = 90.0
PAUSE_S = 0.05


class Asking:
    """Clients at nodes, each of one task at a time, who go on when a node is not there."""

    def __init__(self, up: LocalCluster) -> None:
        self.up = up
        self.of: dict[str, str] = {}
        self.answered = dict.fromkeys(up.nodes, 0)
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def ask(self, node: str, task: str) -> None:
        """Ask a node for a task, and no more for the one before."""
        first = node not in self.of
        self.of[node] = task
        if first:
            thread = threading.Thread(target=self._go_on, args=(node,))
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self, node: str) -> None:
        address = self.up.url(node).removeprefix("http://")
        while not self._end.wait(PAUSE_S):
            connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
            try:
                connection.request("POST", f"/v2/models/{self.of[node]}/infer", BODY)
                self.answered[node] += connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    file = tmp_path / "three.yaml"
    file.write_text(FILE, encoding="utf-8")
    with LocalCluster(inferway.load(file), run=tmp_path / "run") as up:
        clients = Asking(up)
        try:
            yield clients
        finally:
            clients.end()


def until(up: LocalCluster, node: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until a node says so of itself; meanwhile all that answer are within their budgets."""
    end_s, between = time.monotonic() + LIMIT_S, threading.Event()
    told: dict[str, Any] = {}
    while time.monotonic() < end_s:
        for name in up.nodes:
            try:
                said = up.admin(name)
            except ClusterError:
                continue
            assert said["used_bytes"] <= (said["budget_bytes"] or float("inf")), said
            told[name] = said
            if name == node and holds(said):
                return said
        between.wait(0.05)
    raise AssertionError(f"{told.get(node)}\n{up.nodes[node].log.read_text()[-2000:]}")


def runs(task: str) -> Callable[[dict[str, Any]], bool]:
    return lambda said: said["running"] == {f"{task}/small": 1}


def test_copies_follow_requests_and_go_on_past_kills(asking: Asking) -> None:
    up = asking.up
    for task in ("digits-0", "digits-1"):  # whatever ran at first, copies move
        asking.ask("edge", task)
        asking.ask("metro", "digits-2" if task == "digits-0" else "digits-0")
        until(up, "edge", runs(task))
        until(up, "metro", runs(asking.of["metro"]))
    letters = up.admin("edge")["control"]
    assert letters["received"]["above"]["letters"] > 0
    assert letters["sent"]["below"]["letters"] > 0

    # Without those who ask by way of it, the node in the middle goes on deciding.
    up.kill("edge")
    until(up, "metro", lambda said: said["alive"] == ["cloud"])
    asking.ask("metro", "digits-2")
    until(up, "metro", runs("digits-2"))
    up.start("edge")
    said = until(up, "edge", lambda said: said["ready"] and said["alive"])
    assert '"event": "goes on"' in up.nodes["edge"].log.read_text()
    assert said["slot"] > 0
    asking.ask("edge", "digits-0")
    until(up, "edge", runs("digits-0"))

    # Without the way to the repository, a node keeps what it has, and answers with that.
    up.kill("metro")
    until(up, "edge", lambda said: not said["alive"])
    slots, answered = up.admin("edge")["slots"], asking.answered["edge"]
    until(
        up,
        "edge",
        lambda said: said["slots"] >= slots + 2 and asking.answered["edge"] > answered,
    )
    assert runs("digits-0")(up.admin("edge"))
    up.start("metro")
    asking.ask("edge", "digits-1")
    until(up, "edge", runs("digits-1"))
    until(up, "metro", runs("digits-2"))
    for node in up.nodes.values():
        assert "was not ended" not in node.log.read_text(), node.name
