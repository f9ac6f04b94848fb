"""The network demo's nodes: processes of one policy's network, and what they say slot by slot."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.request import urlopen

from inferway.demo.error import DemoError
from inferway.live.up import Up, UpError

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.live.node.addresses import Addresses

__all__ = ["Course", "Reading", "Watch", "network"]

_BEFORE: Final = 0.05
"""How long before a slot's end nodes are asked, as a share of the slot."""
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.1
_STAT: Final = Path("/proc/stat")
_WORKING: Final = (0, 1, 2, 5, 6)
"""Columns of a processor's times that are work: user, nice, system, interrupts."""


@dataclass(frozen=True)
class Reading:
    """All nodes' numbers at one moment.

    Attributes
    ----------
    time_s
        Seconds since 1970.
    cpu_s
        CPU time of all nodes' processes since their start.
    moved_bytes
        What all nodes have loaded since their start.
    machine_s
        CPU time of everything on this machine since it was started; None where nobody says it.
    """

    time_s: float
    cpu_s: float
    moved_bytes: float
    machine_s: float | None


@dataclass(frozen=True)
class Course:
    """What nodes said over some slots.

    Attributes
    ----------
    lasted_s
        From the reading before the first slot to that at the end of the last.
    cpu_s
        Of the nodes, in this time.
    machine_s
        Of the whole machine; None where nobody says it.
    moved_bytes
        By slot.
    """

    lasted_s: float
    cpu_s: float
    machine_s: float | None
    moved_bytes: tuple[float, ...]


@contextmanager
def network(
    deployment: Deployment, folder: Path, ready: Callable[[list[str]], None] | None = None
) -> Iterator[Up]:
    """Run the nodes of a file while the block runs.

    Yields
    ------
    up
        Once every task is served wherever requests enter.

    Raises
    ------
    DemoError
        When the nodes do not start, with the last words of one.
    """
    try:
        up = Up(deployment, run=folder, command=_command(deployment, folder))
        up.begin(ready=ready)
    except UpError as error:
        raise DemoError(f"the network does not run: {error}") from error
    try:
        _served(up)
        yield up
    finally:
        up.stop()


def _command(deployment: Deployment, folder: Path) -> Callable[[str, Path, Addresses], list[str]]:
    """Nodes as `inferway up` runs them, which end at once when told to: no balancer looks."""

    def command(name: str, addresses: Path, own: Addresses) -> list[str]:
        del own
        found = [sys.executable, "-m", "inferway", "node", str(deployment.path.resolve())]
        found += ["--name", name, "--addresses", str(addresses)]
        found += ["--state", str(folder.resolve() / "state" / name), "--emulate-rtt"]
        return [*found, "--drain-delay", "0", "--grace", "1", "--log-level", "warning"]

    return command


def _served(up: Up) -> None:
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


class Watch:
    """Asks all nodes shortly before the end of each slot, in a thread, while a block runs.

    Parameters
    ----------
    up
        The nodes.
    slot_s
        Length of a slot, seconds; slots end at multiples of it on the wall clock.
    """

    def __init__(self, up: Up, slot_s: float) -> None:
        self._up, self._slot_s = up, slot_s
        self._readings: list[Reading] = []
        self._fault: UpError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inferway-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def course(self, began_s: float, slots: int) -> Course:
        """Sum up the slots after a moment.

        Parameters
        ----------
        began_s
            When the first began, seconds since 1970.
        slots
            How many.

        Raises
        ------
        DemoError
            Where a node did not answer, or some slot had no reading.
        """
        if self._fault is not None:
            raise DemoError(str(self._fault)) from self._fault
        found = [max((r for r in self._readings if r.time_s < began_s), key=_time, default=None)]
        for slot in range(slots):
            inside = [
                r
                for r in self._readings
                if 0.0 <= r.time_s - began_s - slot * self._slot_s < self._slot_s
            ]
            found.append(max(inside, key=_time, default=None))
        known = [one for one in found if one is not None]
        if len(known) < slots + 1:
            raise DemoError("the nodes took longer than a slot to say how they are")
        first, last = known[0], known[-1]
        machine = None
        if first.machine_s is not None and last.machine_s is not None:
            machine = last.machine_s - first.machine_s
        return Course(
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
            except UpError as error:
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


def _time(reading: Reading) -> float:
    return reading.time_s


def _machine_s() -> float | None:
    try:
        columns = _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:  # not Linux
        return None
    return sum(int(columns[k]) for k in _WORKING) / os.sysconf("SC_CLK_TCK")
