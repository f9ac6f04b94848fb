"""Nodes of one policy's network in processes of their own, and what they say slot by slot."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.request import urlopen

from inferway.lab import ClusterError, LocalCluster
from inferway.studies.live.servers import DemoError

if TYPE_CHECKING:
    from inferway.deployment import Deployment

_BEFORE: Final = 0.05
"""How long before a slot's end nodes are asked, as a share of the slot."""
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.1
_STAT: Final = Path("/proc/stat")
_WORKING: Final = (0, 1, 2, 5, 6)
"""Columns of a processor's times that are work: user, nice, system, interrupts."""


class Reading(NamedTuple):
    """All nodes' numbers at one moment."""

    time_s: float
    """Seconds since 1970."""
    cpu_s: float
    """CPU time of all nodes' processes since their start."""
    moved_bytes: float
    """Loaded by all nodes since their start."""
    machine_s: float | None
    """CPU time of everything on this machine since it was started; None where nobody says it."""


class NodesUsage(NamedTuple):
    """Numbers of all nodes over some slots."""

    lasted_s: float
    """From the reading before the first slot to that at the end of the last."""
    cpu_s: float
    """Of the nodes, in this time."""
    machine_s: float | None
    """Of the whole machine; None where nobody says it."""
    moved_bytes: tuple[float, ...]
    """By slot."""


@contextmanager
def network(deployment: Deployment, folder: Path) -> Iterator[LocalCluster]:
    """Run the nodes of a file while the block runs, from when every task is served where asked.

    Raises
    ------
    DemoError
        When the nodes do not start, with the last words of one.
    """
    try:
        up = _Cluster(deployment, run=folder)
        up.begin()
    except ClusterError as error:
        raise DemoError(f"the network does not run: {error}") from error
    try:
        _wait_until_served(up)
        yield up
    finally:
        up.stop()


class _Cluster(LocalCluster):
    """Nodes as `inferway up` runs them, which end at once when told to: no balancer looks."""

    def node_command(self, name: str) -> list[str]:
        options = ["--drain-delay", "0", "--grace", "1", "--log-level", "warning"]
        return [*super().node_command(name), *options]


def _wait_until_served(up: LocalCluster) -> None:
    """Wait until each task is served at each node where its requests enter."""
    end_s = time.monotonic() + _PATIENCE_S
    for task, entries in up.entries.items():
        for node in entries:
            while not _answers(f"{up.url(node)}/v2/models/{task}/ready"):
                if time.monotonic() > end_s:
                    raise DemoError(f"node {node} does not serve the task {task}")
                time.sleep(_LOOK_S)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=_PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class NodesWatch:
    """Asks all nodes shortly before the end of each slot, in a thread, while a block runs.

    Slots end at multiples of their length on the wall clock.
    """

    def __init__(self, up: LocalCluster, slot_s: float) -> None:
        self._up, self._slot_s = up, slot_s
        self._readings: list[Reading] = []
        self._fault: ClusterError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inferway-watch", daemon=True)

    def __enter__(self) -> NodesWatch:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def usage(self, began_s: float, slots: int) -> NodesUsage:
        """Sum up the slots after a moment, in seconds since 1970.

        Raises
        ------
        DemoError
            Where a node did not answer, or some slot had no reading.
        """
        if self._fault is not None:
            raise DemoError(str(self._fault)) from self._fault
        last_in: dict[int, Reading] = {}
        for reading in sorted(self._readings):
            slot = math.floor((reading.time_s - began_s) / self._slot_s)
            last_in[max(slot, -1)] = reading
        known = [last_in[slot] for slot in range(-1, slots) if slot in last_in]
        if len(known) < slots + 1:
            raise DemoError("the nodes took longer than a slot to say how they are")
        first, last = known[0], known[-1]
        machine = None
        if first.machine_s is not None and last.machine_s is not None:
            machine = last.machine_s - first.machine_s
        return NodesUsage(
            last.time_s - first.time_s,
            last.cpu_s - first.cpu_s,
            machine,
            tuple(b.moved_bytes - a.moved_bytes for a, b in pairwise(known)),
        )

    def _run(self) -> None:
        margin_s = _BEFORE * self._slot_s
        while True:
            wait_s = self._slot_s - (time.time() + margin_s) % self._slot_s
            if self._over.wait(wait_s):
                return
            try:
                self._read()
            except ClusterError as error:
                self._fault = error
                return

    def _read(self) -> None:
        time_s = time.time()
        told = [self._up.admin(node, _PATIENCE_S) for node in self._up.nodes]
        self._readings.append(
            Reading(
                time_s,
                sum(one["cpu_s"] for one in told),
                sum(one["moved_bytes"] for one in told),
                _machine_s(),
            )
        )


def _machine_s() -> float | None:
    try:
        columns = _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:  # not Linux
        return None
    return sum(int(columns[k]) for k in _WORKING) / os.sysconf("SC_CLK_TCK")
