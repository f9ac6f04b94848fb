"""Guides followed as they stand: their files are written, and their commands run in their order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from page import Code, steps

from ports import free_ports

LIMIT_S = 600.0


def alike(text: str) -> str:
    """What is the same on every machine: words, not numbers, digests and widths of tables."""
    text = re.sub(r"sha256:\w+", "sha256:#", text)
    text = re.sub(r"-?\d[\d.,e-]*( (?:[µmn]?s|[kM]?B)\b)?", "#", text)
    return re.sub(r"[\s─]+", " ", text).strip()


def follow(guide: Path, folder: Path, told: Callable[[str, str, str], None]) -> list[str]:
    """Do what a guide says; the names of its files, in order.

    A block of code is a file, by the name that stands last before it. `told` gets each command,
    what it printed, and what the guide says that it prints. A server goes on until another is
    started in its place, or the end.
    """
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONWARNINGS": "error",
    }
    written, servers, port, admin = [], list[subprocess.Popen[str]](), 0, 0
    try:
        for step in steps(guide):
            if isinstance(step, Code):
                assert step.file is not None
                written.append(step.file)
                file = folder / step.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(step.text)
                continue
            command = step.text
            if command.startswith("inferway serve"):
                if servers:
                    _stop(servers[-1])
                port, admin = free_ports(2)
                ports = f"--http-port {port} --grpc-port 0 --admin-port {admin} --forget"
                server = subprocess.Popen(
                    f"{command} {ports}".split(),
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                servers.append(server)
                assert server.stdout is not None
                lines = (server.stdout.readline() for _ in step.prints.splitlines())
                told(command, "".join(lines), step.prints)
                continue
            whole = command.replace(":8000", f":{port}")
            if command.startswith("inferway drive"):
                whole += f" --url http://127.0.0.1:{port}"
            if command.startswith("inferway apply"):
                whole += f" --admin-url http://127.0.0.1:{admin}"
            done = subprocess.run(
                ["bash", "-c", whole],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            told(command, done.stdout, step.prints)
    finally:
        for server in servers:
            _stop(server)
    assert all(server.returncode == 0 for server in servers)
    return written


def _stop(server: subprocess.Popen[str]) -> None:
    """Stop a server as Ctrl-C does, and wait until it has ended; one that has, is left alone."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=LIMIT_S)
