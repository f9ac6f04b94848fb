"""Nodes of one policy's network in processes of their own, and what they say slot by slot."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from inferway.lab import ClusterError, LocalCluster
from inferway.studies.live.servers import DemoError

if TYPE_CHECKING:
    from inferway.deployment import Deployment

_BEFORE: Final = 0.05  # how long before a slot's end nodes are asked, as a share of the slot
_PATIENCE_S: Final = 60.0
_STAT: Final = Path("/proc/stat")
# Columns of a processor's times that are work: user, nice, system, interrupts.
_WORKING: Final = (0, 1, 2, 5, 6)


class Reading(NamedTuple):
    """All nodes' numbers at one moment.

    Attributes
    ----------
    time_s
        Seconds since 1970.
    cpu_s, moved_bytes
        CPU time of all nodes' processes, and what they loaded, since their start.
    machine_s
        CPU time of everything on this machine since it was started; None where nobody says it.
    """

    time_s: float
    cpu_s: float
    moved_bytes: float
    machine_s: float | None


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
        yield up
    finally:
        up.stop()


class _Cluster(LocalCluster):
    """Nodes as `inferway up` runs them, which end at once when told to: no balancer looks."""

    def node_command(self, name: str) -> list[str]:
        options = ["--drain-delay", "0", "--grace", "1", "--log-level", "warning"]
        return [*super().node_command(name), *options]


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

    def usage(self, began_s: float, slots: int) -> tuple[Reading, tuple[float, ...]]:
        """Sum up the slots after a moment, in seconds since 1970.

        Returns
        -------
        Reading
            By how much all numbers grew in this time.
        tuple of float
            The bytes that nodes loaded, by slot.

        Raises
        ------
        DemoError
            Where a node did not answer, or some slot had no reading.
        """
        if self._fault is not None:
            raise DemoError(str(self._fault)) from self._fault
        last_in = {
            max(math.floor((one.time_s - began_s) / self._slot_s), -1): one
            for one in sorted(self._readings)
        }
        known = [last_in[slot] for slot in range(-1, slots) if slot in last_in]
        if len(known) < slots + 1:
            raise DemoError("the nodes took longer than a slot to say how they are")
        first, last = known[0], known[-1]
        ends = (first.machine_s, last.machine_s)
        return Reading(
            last.time_s - first.time_s,
            last.cpu_s - first.cpu_s,
            last.moved_bytes - first.moved_bytes,
            None if ends[0] is None or ends[1] is None else ends[1] - ends[0],
        ), tuple(b.moved_bytes - a.moved_bytes for a, b in pairwise(known))

    def _run(self) -> None:
        margin_s = _BEFORE * self._slot_s
        try:
            while not self._over.wait(self._slot_s - (time.time() + margin_s) % self._slot_s):
                self._read()
        except ClusterError as error:
            self._fault = error

    def _read(self) -> None:
        time_s, machine_s = time.time(), None
        told = [self._up.admin(node, _PATIENCE_S) for node in self._up.nodes]
        cpu_s, moved = (sum(one[what] for one in told) for what in ("cpu_s", "moved_bytes"))
        with suppress(OSError):  # not Linux
            columns = _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
            machine_s = sum(int(columns[k]) for k in _WORKING) / os.sysconf("SC_CLK_TCK")
        self._readings.append(Reading(time_s, cpu_s, moved, machine_s))
