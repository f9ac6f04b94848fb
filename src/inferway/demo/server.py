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
from pathlib import Path
from typing import IO, Final

import msgspec

from inferway.demo.error import DemoError

READY_S: Final = 60.0
"""How long a server may take until it is ready; the first start compiles the policies."""

_STOP_S: Final = 10.0
_TAIL: Final = 12


class _Ready(msgspec.Struct):
    http_port: int
    ready: bool


@contextmanager
def server(deployment: Path, *, ready_s: float = READY_S) -> Iterator[str]:
    """Serve a deployment file on free ports of this machine while the block runs.

    Parameters
    ----------
    deployment
        The file.
    ready_s
        How long to wait until the server is ready, seconds.

    Yields
    ------
    url
        The server's address.

    Raises
    ------
    DemoError
        When it ends or is not ready in time; the message has the end of its log.
    """
    command = [sys.executable, "-m", "inferway", "serve", str(deployment), "--json"]
    command += ["--http-port", "0", "--admin-port", "0"]
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
            port = _port(process.stdout, time.monotonic() + ready_s)
            if port is None:
                raise DemoError(
                    f"the server for {deployment} was not ready within {ready_s:g} s; "
                    f"the end of its log:\n{_end_of(log)}"
                )
            yield f"http://127.0.0.1:{port}"
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
        except msgspec.DecodeError:
            continue
        return found.http_port if found.ready else None
    return None


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
