"""Inferway in processes of its own: `serve` around a block, how quick it is, and simulations."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import isotonic_regression, linprog

from inferway.catalog.zoo import testset
from inferway.dispatch.bounds import max_rate
from inferway.loadgen import Stream, replay
from inferway.loadgen.process import Progress
from inferway.site.fleet import Fleet
from inferway.unreadable import UNREADABLE

# How long a server may take until it is ready; the first start compiles the policies.
READY_S: Final = 60.0
_STOP_S: Final = 10.0
_TAIL: Final = 12
_SIMULATED_S: Final = 60.0  # that a simulation may take


class DemoError(RuntimeError):
    """A comparison cannot go on; the message says why."""


class _Ready(msgspec.Struct):
    http_port: int
    ready: bool


@dataclass(frozen=True)
class Launched:
    """A server's process, which may still be starting."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def url(self, ready_s: float = READY_S) -> str:
        """Wait until the server is ready and return its address; ask once.

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
            with suppress(*UNREADABLE):
                found = msgspec.json.decode(said, type=_Ready)
                if found.ready:
                    return f"http://127.0.0.1:{found.http_port}"
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
    command = [sys.executable, "-m", "inferway", "serve", str(deployment), "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "warning", "--forget"]
    # No load balancer looks whether it is ready: it need not go on serving when told to end.
    command += ["--drain-delay", "0"]
    if record is not None:
        command += ["--record", str(record)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            yield Launched(process, log)
        except KeyboardInterrupt:
            # Somebody waits, and a server that still compiles ends only after that.
            process.kill()
            raise
        finally:
            _stop(process)
            process.stdout.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def simulate(
    options: Mapping[str, Sequence[str]], at_a_time: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Run `inferway simulate` with options by name, so many at a time; return JSON and warnings.

    The engine runs uncompiled there: a few thousand requests are done long before the compiler
    would be. What cannot be simulated has a warning in place of a result.
    """
    found, warnings = {}, []
    names, step = list(options), max(at_a_time, 1)
    for group in (names[start : start + step] for start in range(0, len(names), step)):
        with ExitStack() as running:
            started = {name: running.enter_context(_simulation(options[name])) for name in group}
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


@contextmanager
def _simulation(options: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a simulation; kill it at the end if it still runs."""
    command = [sys.executable, "-m", "inferway", "simulate", *options, "--json"]
    with tempfile.TemporaryDirectory(prefix="inferway-demo-") as cache:
        # Uncompiled code leaves nothing in the cache of the compiled one.
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": cache}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


_LEAST: Final = 20
_MOST: Final = 300


class Calibration(NamedTuple):
    """Times from send to answer of lone requests, in seconds by variant.

    Attributes
    ----------
    service_s
        Median: what to plan with. Not the mean, for a shared machine has pauses that are no part
        of the service.
    least_s
        Tenth percentile, for a lower bound: nothing is answered much faster, even if the machine
        was busy with other things while it was measured.
    """

    service_s: dict[str, float]
    least_s: dict[str, float]


def calibrate(
    url: str,
    expected_s: Mapping[str, float],
    *,
    each_s: float = 1.5,
    progress: Progress | None = None,
    task: str = "digits",
) -> Calibration:
    """Measure the time from send to answer of requests sent one after another.

    It holds the model, the server's work and the generator's, so it is also what a request takes
    of the cores that all of them share.

    Parameters
    ----------
    url, task
        Whom to ask: a server of the digits zoo.
    expected_s
        By variant, the service time of its profile, fastest first. It tells how many requests fit
        in `each_s`; and its order stands: where the measured times contradict it, the variants
        differ by less than the noise, and get the same time.
    each_s
        How long to measure each variant, seconds, roughly.

    Raises
    ------
    DemoError
        When a variant does not answer.
    KeyboardInterrupt
        When the requests were stopped by it.
    """
    streams, images = [], testset(task).images[:256]
    for variant, expected in expected_s.items():
        count = int(np.clip(each_s / (expected + 3e-4), _LEAST, _MOST))
        # All due at once on one connection: each is sent when the one before is answered.
        streams.append(Stream(task, np.zeros(count), images, variant=variant))
    records = replay(url, streams, connections=1, grace_s=60.0, progress=progress)
    if any(record.interrupted for record in records):
        raise KeyboardInterrupt
    least, median = [], []
    for variant, record in zip(expected_s, records, strict=True):
        if not record.answered.all():
            raise DemoError(f"variant {variant} did not answer {(~record.answered).sum()} requests")
        # The first few meet cold caches.
        low, middle = np.percentile((record.done_s - record.sent_s)[5:], (10, 50)).tolist()
        least.append(low)
        median.append(middle)
    # The closest times that do not fall.
    ordered = [isotonic_regression(times_s).x.tolist() for times_s in (median, least)]
    return Calibration(*(dict(zip(expected_s, times_s, strict=True)) for times_s in ordered))


def times_of(fleet: Fleet) -> dict[str, float]:
    """Service times of a fleet's profiles, in seconds by variant."""
    return dict(zip(fleet.variants, (1 / fleet.rate).tolist(), strict=True))


def as_measured(fleet: Fleet, service_s: Mapping[str, float]) -> Fleet:
    """Return the fleet with measured service times, in seconds by variant."""
    return replace(fleet, rate=np.array([1 / service_s[name] for name in fleet.variants]))


def feasible_rate(fleet: Fleet, target: float, cores: float) -> float:
    """Greatest arrival rate that keeps the target when all instances share a few cores.

    Definition 1 of [Anonymous] lets every server work at its own rate at the same time. With more
    instances than cores they cannot: the requests' total work must fit into the cores. So, with
    x_k the rate that goes to class k: maximize sum(x) subject to sum((a_k - target) x_k) >= 0,
    x_k <= n_k mu_k, and sum(x_k / mu_k) <= cores.

    The fleet's service rates hold the whole work of a request. The rate is at most
    `inferway.dispatch.bounds.max_rate`.
    """
    solution = linprog(
        -np.ones(len(fleet.rate)),
        A_ub=np.array([target - fleet.accuracy, 1 / fleet.rate]),
        b_ub=[0.0, cores],
        bounds=[(0.0, float(capacity)) for capacity in fleet.capacity],
        method="highs",
    )
    if solution.x is None:
        raise DemoError(f"no rate keeps the target {target:g}: {solution.message}")
    return min(float(solution.x.sum()), max_rate(fleet, target))
