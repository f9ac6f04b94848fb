"""Inferway in processes of its own: servers, a network's nodes, how quick they are, simulations."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, linprog

from inferway.catalog.zoo import testset
from inferway.deployment import Deployment
from inferway.dispatch.bounds import max_rate
from inferway.lab import ClusterError, LocalCluster
from inferway.loadgen import Stream, replay
from inferway.loadgen.generator import Progress
from inferway.machine import cores
from inferway.site.fleet import Fleet

# How long a server may take until it is ready; the first start compiles the policies.
READY_S: Final = 60.0
_STOP_S: Final = 10.0
_TAIL: Final = 12
_SIMULATED_S: Final = 60.0  # that a simulation may take
_BEFORE: Final = 0.05  # how long before a slot's end nodes are asked, as a share of the slot
_PATIENCE_S: Final = 60.0
_STAT: Final = Path("/proc/stat")
# Columns of a processor's times that are work: user, nice, system, interrupts.
_WORKING: Final = (0, 1, 2, 5, 6)


class DemoError(RuntimeError):
    """A comparison cannot go on; the message says why."""


class LiveAddress(NamedTuple):
    """Where a server is reached: for requests, and its admin listener."""

    url: str
    admin: str


@dataclass(frozen=True)
class Launched:
    """A server's process, which may still be starting."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def address(self, ready_s: float = READY_S) -> LiveAddress:
        """Wait until the server is ready and return where it is; ask once.

        Raises
        ------
        DemoError
            When it ends or is not ready in time; the message has the end of its log.
        """
        assert self.process.stdout is not None
        output, deadline, said = self.process.stdout, time.monotonic() + ready_s, b""
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([output], [], [], left)
            chunk = os.read(output.fileno(), 65536) if ready else b""
            if not chunk:
                break
            said += chunk
            # A document that is not whole yet says nothing.
            with suppress(ValueError):
                found = json.loads(said)
                if found["ready"]:
                    ports = (found[one] for one in ("http_port", "admin_port"))
                    return LiveAddress(*(f"http://127.0.0.1:{port}" for port in ports))
                break
        why = f"was not ready within {ready_s:g} s"
        # Its output is closed a moment before it is gone.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
            why = "ended"
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        end = "\n".join(lines[-_TAIL:]) or "(empty)"
        raise DemoError(f"the server {why}; the end of its log:\n{end}")


@contextmanager
def launch(deployment: Path, record: Path | None = None) -> Iterator[Launched]:
    """Serve a file on free ports while the block runs; `record` is a folder for a recording.

    Yields at once, so that several can start at the same time.
    """
    command = ["serve", str(deployment), "--json", "--http-port", "0", "--admin-port", "0"]
    # No load balancer looks whether it is ready: it need not go on serving when told to end.
    command += ["--log-level", "warning", "--forget", "--drain-delay", "0"]
    command += [] if record is None else ["--record", str(record)]
    with tempfile.TemporaryFile() as log, _started(command, log) as process:
        try:
            yield Launched(process, log)
        except KeyboardInterrupt:
            # Somebody waits, and a server that still compiles ends only after that.
            process.kill()
            raise
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()


def _started(
    command: Sequence[str], errors: IO[bytes] | int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command of Inferway that a Ctrl-C in this process's terminal does not reach."""
    return subprocess.Popen(
        [sys.executable, "-m", "inferway", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )


@contextmanager
def serving(
    deployments: Mapping[str, Path],
    recordings: Mapping[str, Path] | None = None,
    ready_s: float = READY_S,
) -> Iterator[dict[str, LiveAddress]]:
    """Serve each file in a process of its own while the block runs; yield addresses by name.

    All start at once, and each waits idle for its turn.
    """
    with ExitStack() as servers:
        launched = {
            name: servers.enter_context(launch(path, (recordings or {}).get(name)))
            for name, path in deployments.items()
        }
        yield {name: one.address(ready_s) for name, one in launched.items()}


def simulate(options: Mapping[str, Sequence[str]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run `inferway simulate` with options by name, one on each core; return JSON and warnings.

    The engine runs uncompiled there: a few thousand requests are done long before the compiler
    would be. What cannot be simulated has a warning in place of a result.
    """
    found, warnings = {}, []
    names, step = list(options), cores()
    for group in (names[start : start + step] for start in range(0, len(names), step)):
        with ExitStack() as running:
            cache = running.enter_context(tempfile.TemporaryDirectory(prefix="inferway-demo-"))
            # Uncompiled code leaves nothing in the cache of the compiled one.
            environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": cache}
            started = {}
            for name in group:
                command = ["simulate", *options[name], "--json"]
                process = _started(command, subprocess.PIPE, environment)
                started[name] = running.enter_context(process)
                running.callback(process.kill)
            for name, process in started.items():
                try:
                    output, errors = process.communicate(timeout=_SIMULATED_S)
                except subprocess.TimeoutExpired:
                    warnings.append(f"the twin of {name} took more than {_SIMULATED_S:g} s")
                    continue
                if process.returncode == 0:
                    found[name] = json.loads(output)
                else:
                    said = errors.decode(errors="replace").strip().splitlines() or ["nothing"]
                    warnings.append(f"the twin of {name} could not be run: {said[-1]}")
    return found, warnings


class Calibration(NamedTuple):
    """Times from send to answer of lone requests, in seconds by variant."""

    # Median: what to plan with. Not the mean, for a shared machine has pauses that are no part of
    # the service.
    service_s: dict[str, float]
    # Tenth percentile, for a lower bound: nothing is answered much faster, even if the machine was
    # busy with other things while it was measured.
    least_s: dict[str, float]


def calibrate(
    url: str, fleet: Fleet, *, each_s: float = 1.5, progress: Progress | None = None
) -> Calibration:
    """Measure the time from send to answer of requests sent one after another.

    It holds the model, the server's work and the generator's, so it is also what a request takes
    of the cores that all of them share. The server is one of the digits zoo, its variants those of
    the fleet, fastest first. Their rates by profile tell how many requests fit in `each_s`; and
    their order stands: where the measured times contradict it, the variants differ by less than the
    noise, and get the same time.

    DemoError when a variant does not answer, KeyboardInterrupt when that stopped the requests.
    """
    images = testset("digits").images[:256]
    counts = np.clip(each_s / (1 / fleet.rate + 3e-4), 20, 300).astype(int).tolist()
    # All due at once on one connection: each is sent when the one before is answered.
    streams = [
        Stream("digits", np.zeros(count), images, variant=variant)
        for variant, count in zip(fleet.variants, counts, strict=True)
    ]
    records = replay(url, streams, connections=1, grace_s=60.0, progress=progress)
    if any(record.interrupted for record in records):
        raise KeyboardInterrupt
    quantiles = []
    for variant, record in zip(fleet.variants, records, strict=True):
        if not record.answered.all():
            raise DemoError(f"variant {variant} did not answer {(~record.answered).sum()} requests")
        # The first few meet cold caches.
        quantiles.append(np.percentile((record.done_s - record.sent_s)[5:], (50, 10)))
    # The closest times that do not fall.
    ordered = [isotonic_regression(times_s).x.tolist() for times_s in np.transpose(quantiles)]
    return Calibration(*(dict(zip(fleet.variants, times_s, strict=True)) for times_s in ordered))


def as_measured(fleet: Fleet, service_s: Mapping[str, float]) -> Fleet:
    """Return the fleet with measured service times, in seconds by variant."""
    return replace(fleet, rate=np.array([1 / service_s[name] for name in fleet.variants]))


def feasible_rate(fleet: Fleet, target: float, shared: float) -> float:
    """Greatest arrival rate that keeps the target when all instances have a few shared cores.

    Definition 1 of [Anonymous] lets every server work at its own rate at the same time. With more
    instances than cores they cannot: the requests' total work must fit into the cores. So, with
    x_k the rate that goes to class k: maximize sum(x) subject to sum((a_k - target) x_k) >= 0,
    x_k <= n_k mu_k, and sum(x_k / mu_k) <= shared.

    The fleet's service rates hold the whole work of a request. The rate is at most
    `inferway.dispatch.bounds.max_rate`.
    """
    solution = linprog(
        -np.ones(len(fleet.rate)),
        A_ub=np.array([target - fleet.accuracy, 1 / fleet.rate]),
        b_ub=[0.0, shared],
        bounds=[(0.0, float(capacity)) for capacity in fleet.capacity],
        method="highs",
    )
    if solution.x is None:
        raise DemoError(f"no rate keeps the target {target:g}: {solution.message}")
    return min(float(solution.x.sum()), max_rate(fleet, target))


class _Nodes(LocalCluster):
    """Nodes as `inferway up` runs them, which end at once when told to: no balancer looks."""

    def node_command(self, name: str) -> list[str]:
        options = ["--drain-delay", "0", "--grace", "1", "--log-level", "warning"]
        return [*super().node_command(name), *options]


@contextmanager
def network(deployment: Deployment, folder: Path) -> Iterator[LocalCluster]:
    """Run the nodes of a file while the block runs, from when every task is served where asked.

    DemoError when the nodes do not start, with the last words of one.
    """
    try:
        nodes = _Nodes(deployment, run=folder)
        nodes.begin()
    except ClusterError as error:
        raise DemoError(f"the network does not run: {error}") from error
    try:
        yield nodes
    finally:
        nodes.stop()


class Reading(NamedTuple):
    """All nodes' numbers at one moment."""

    time_s: float  # Since 1970
    cpu_s: float  # CPU time of all nodes' processes,
    moved_bytes: float  # and what they loaded, since their start
    # CPU time of everything on this machine since it was started; None where nobody says it
    machine_s: float | None


class NodesWatch:
    """Asks all nodes shortly before the end of each slot, in a thread, while a block runs.

    Slots end at multiples of their length on the wall clock.
    """

    def __init__(self, nodes: LocalCluster, slot_s: float) -> None:
        self._nodes, self._slot_s = nodes, slot_s
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

        Gives by how much all numbers grew in this time, and the bytes that nodes loaded, by slot.
        DemoError where a node did not answer, or some slot had no reading.
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
        grown: list[Any] = [
            None if before is None or after is None else after - before
            for before, after in zip(known[0], known[-1], strict=True)
        ]
        return Reading(*grown), tuple(b.moved_bytes - a.moved_bytes for a, b in pairwise(known))

    def _run(self) -> None:
        margin_s = _BEFORE * self._slot_s
        try:
            while not self._over.wait(self._slot_s - (time.time() + margin_s) % self._slot_s):
                self._read()
        except ClusterError as error:
            self._fault = error

    def _read(self) -> None:
        time_s, machine_s = time.time(), None
        told = [self._nodes.admin(node, _PATIENCE_S) for node in self._nodes.nodes]
        cpu_s, moved = (sum(one[what] for one in told) for what in ("cpu_s", "moved_bytes"))
        with suppress(OSError):  # not Linux
            columns = _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
            machine_s = sum(int(columns[k]) for k in _WORKING) / os.sysconf("SC_CLK_TCK")
        self._readings.append(Reading(time_s, cpu_s, moved, machine_s))
