"""`inferway serve` in a process of its own, started and stopped around a block."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from inferway.demo.error import DemoError
from inferway.unreadable import UNREADABLE

READY_S: Final = 60.0
"""How long a server may take until it is ready; the first start compiles the policies."""

_STOP_S: Final = 10.0
_TAIL: Final = 12


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

        Parameters
        ----------
        ready_s
            How long to wait, seconds.

        Raises
        ------
        DemoError
            When it ends or is not ready in time; the message has the end of its log.
        """
        assert self.process.stdout is not None
        port = _port(self.process.stdout, time.monotonic() + ready_s)
        if port is None:
            why = "ended" if _ended(self.process) else f"was not ready within {ready_s:g} s"
            raise DemoError(f"the server {why}; the end of its log:\n{_end_of(self.log)}")
        return f"http://127.0.0.1:{port}"


@contextmanager
def launch(deployment: Path, record: Path | None = None) -> Iterator[Launched]:
    """Serve a deployment file on free ports of this machine while the block runs.

    Parameters
    ----------
    deployment
        The file.
    record
        A folder for a recording of what it decides; none is made without.

    Yields
    ------
    launched
        At once; several can start at the same time.
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


def _port(output: IO[bytes], deadline: float) -> int | None:
    """Read until there is a document that says that the server is ready; None without one."""
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([output], [], [], left)[0]:
            return None
        chunk = os.read(output.fileno(), 65536)
        if not chunk:
            return None
        said += chunk
        try:
            found = msgspec.json.decode(said, type=_Ready)
        except UNREADABLE:
            continue
        return found.http_port if found.ready else None
    return None


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends now: its output is closed a moment before it is gone."""
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL:]) or "(empty)"
