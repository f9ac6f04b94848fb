"""Inferway in processes of its own: `serve` around a block, and simulations, uncompiled."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec

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
