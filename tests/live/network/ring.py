"""A ring of four nodes, each a process in a network namespace of its own.

Requests enter at `edge`. The way to the repository, `cloud`, leads by `left`; the one by `right` is
10 ms longer. Budgets are in bytes of model files: a node holds the best variant of one of the four
tasks, so that at least half of the requests go to another node. The edge always has a small variant
of each, for when nothing else can be reached.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import inferway
from inferway.lab import ClusterError, Emulation, LocalCluster
from inferway.live.node.plan import plan_of
from inferway.live.node.state import NodeState, Saved, fingerprint

NODES: Final = ("cloud", "left", "right", "edge")
TASKS: Final = tuple(f"digits-{k}" for k in range(4))
BUDGET_BYTES: Final = 1_200_000
SLOT_S: Final = 2.0
LOOK_S: Final = 0.2
PATIENCE_S: Final = 60.0

FILE: Final = """\
tasks:
  digits:
    count: 4
    max_instances: 1
    variants:
      small: {model: zoo://digits/small}
      medium: {model: zoo://digits/medium}
      huge: {model: zoo://digits/huge}
nodes:
  cloud: {repository: true}
  left:  {budget: 1.2 MB}
  right: {budget: 1.2 MB}
  edge:  {budget: 1.2 MB, pinned: {digits/small: 1}}
network:
  links:
    - {between: [cloud, left], rtt: 20 ms}
    - {between: [cloud, right], rtt: 30 ms}
    - {between: [left, edge], rtt: 6 ms}
    - {between: [right, edge], rtt: 6 ms}
cost: {alpha: 20}
placement: {policy: infida, slot: 2 s}
seed: 1
workload:
  digits:
    arrivals: {process: poisson, rate: 60/s}
    popularity: {zipf: 1.2}
    entries: {nodes: [edge]}
"""


class Look(NamedTuple):
    """What a node said of itself.

    Attributes
    ----------
    at_s
        When, on the monotonic clock.
    node
        Its name.
    said
        Its page.
    """

    at_s: float
    node: str
    said: dict[str, Any]


class Ring:
    """The nodes' processes, and a look at each of them five times a second.

    Parameters
    ----------
    folder
        For the file, the nodes' folders and their logs.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ring.yaml"
        self.file.write_text(FILE, encoding="utf-8")
        self.deployment = inferway.load(self.file)
        self.up = LocalCluster(self.deployment, netns=True, run=folder / "run")
        self.looks: list[Look] = []
        self._usual: dict[str, tuple[str, ...]] = {}
        self._end = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.up.begin()
        self._looking.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._looking.join(PATIENCE_S)
        self.up.stop()

    @property
    def network(self) -> Emulation:
        """The links."""
        assert self.up.emulation is not None
        return self.up.emulation

    def log(self, node: str) -> str:
        """All that a node has said, over all its starts."""
        return (self.up.run / f"{node}.log").read_text(encoding="utf-8", errors="replace")

    def folder(self, node: str) -> Path:
        """Where a node keeps its models and its state."""
        return self.up.state / node

    def ask(self, node: str) -> dict[str, Any]:
        """Ask a node how it is."""
        return self.up.admin(node, timeout_s=5.0)

    def until(
        self, node: str, holds: Callable[[dict[str, Any]], bool], limit_s: float = PATIENCE_S
    ) -> float:
        """Wait until a node says something of itself; returns when, on the monotonic clock."""
        deadline_s = time.monotonic() + limit_s
        said: dict[str, Any] = {}
        while time.monotonic() < deadline_s:
            try:
                said = self.ask(node)
            except ClusterError:
                continue
            if holds(said):
                return time.monotonic()
            self._end.wait(0.02)
        raise AssertionError(f"node {node} did not come to that: {said}\n{self.log(node)[-2000:]}")

    def whole(self) -> None:
        """Heal what was cut, start what was ended, and wait until every node sees its neighbors.

        Then the edge goes by the offers of the nearer way, and reaches the repository.
        """
        self.network.heal()
        for node in self._usual:
            self.up.terminate(node)
            self.up.nodes[node].command = self._usual[node]
        self._usual.clear()
        for node in NODES:
            if self.up.nodes[node].over:
                self.up.start(node)
        for node in NODES:
            self.until(node, lambda said: set(said["alive"]) == set(said["neighbors"]))
        self.until("edge", lambda said: _goes_by(said) == {"left"} and _has_all(said))

    def otherwise(
        self,
        node: str,
        *,
        before: tuple[str, ...] = (),
        file: Path | None = None,
        addresses: Path | None = None,
    ) -> None:
        """Have a node start in another way until the ring is whole again.

        Parameters
        ----------
        node
            Which; it does not run now.
        before
            A command that runs the node's.
        file
            A deployment file of its own.
        addresses
            A file of addresses of its own.
        """
        words = [*before, sys.executable, "-m", "inferway", "node", str(file or self.file)]
        words += ["--name", node, "--addresses", str(addresses or self.up.addresses_file)]
        words += ["--state", str(self.folder(node))]
        process = self.up.nodes[node]
        self._usual.setdefault(node, process.command)
        process.command = tuple(self.network.command(node, words))

    def saved(self, node: str) -> Saved | None:
        """Read what a node that does not run has kept, from a copy of it."""
        kept = self.up.run / f"{node}-kept"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for one in self.folder(node).glob("state.sqlite*"):
            shutil.copy(one, kept)
        plan = plan_of(self.deployment, node)
        state = NodeState(kept / "state.sqlite", fingerprint(plan.deployed.network, plan.number))
        try:
            return state.load()
        finally:
            state.close()

    def used_most(self, since_s: float) -> dict[str, float]:
        """Tell the most that each node with a budget has used since then, of its budget."""
        found: dict[str, float] = {}
        for _, node, said in [one for one in self.looks if one.at_s >= since_s]:
            if said["budget_bytes"] is not None:
                share = said["used_bytes"] / said["budget_bytes"]
                found[node] = max(found.get(node, 0.0), share)
        return found

    def _look(self) -> None:
        while not self._end.wait(LOOK_S):
            for node in NODES:
                # One that does not run, or is about to end, says nothing.
                try:
                    self.looks.append(Look(time.monotonic(), node, self.up.admin(node, 1.0)))
                except ClusterError:
                    continue


def _goes_by(said: dict[str, Any]) -> set[str]:
    """By which neighbors a node's offers come."""
    return {one["path"][0] for one in said["offers"]}


def _has_all(said: dict[str, Any]) -> bool:
    """Whether a node hears of every task's best variant at the repository."""
    return {one["task"] for one in said["offers"] if one["node"] == "cloud"} >= set(TASKS)
