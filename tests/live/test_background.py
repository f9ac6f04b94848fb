"""Commands that run unattended: in a shell's background, or where nobody takes what they say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
Start = Callable[..., subprocess.Popen[str]]

if not Path("/proc/self/status").exists():
    pytest.skip("needs /proc to see which signals are handled", allow_module_level=True)


@pytest.fixture
def start() -> Iterator[Start]:
    """Give a function that runs a command as `sh` does what ends with `&`: deaf to SIGINT."""
    made: list[subprocess.Popen[str]] = []

    def begin(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "inferway", *map(str, arguments)]
        process = subprocess.Popen(
            ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        return process

    yield begin
    for process in made:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT once the command handles signals; its exit code, and what it complained of."""
    deadline_s = time.monotonic() + LIMIT_S
    while not handles(process, signal.SIGINT):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s, "SIGINT stays ignored"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, errors


def handles(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    about = Path(f"/proc/{process.pid}")
    # Before that it is the shell, or what becomes one.
    if not (about / "cmdline").read_text().startswith(f"{sys.executable}\0-m\0inferway\0"):
        return False
    lines = (about / "status").read_text().splitlines()
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def test_simulate(start: Start) -> None:
    file = ROOT / "examples" / "paper-fleet.yaml"
    process = start("simulate", file, "--queries", "1e9", "--json")
    code, errors = interrupt(process)
    assert (code, "Traceback" in errors) == (130, False), errors


def test_serve_and_drive(start: Start) -> None:
    file = ROOT / "examples" / "digits.yaml"
    options = ("--http-port", "0", "--admin-port", "0", "--no-grpc", "--log-level", "error")
    server = start("serve", file, *options, "--json")
    assert server.stdout is not None
    port = json.loads(server.stdout.readline())["http_port"]
    url = f"http://127.0.0.1:{port}"
    driving = start("drive", file, "--url", url, "--duration", "3600")
    code, errors = interrupt(driving)
    assert (code, "Traceback" in errors) == (130, False), errors
    assert interrupt(server) == (0, "")


@pytest.mark.parametrize("out", [">/dev/full", ">&-", ">&3"])
def test_a_server_serves_on_where_nobody_takes_what_it_says(out: str) -> None:
    """Its log goes to a pipe that is full; standard output is full, closed, or has no reader."""
    file = ROOT / "examples" / "digits.yaml"
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "inferway", "serve", str(file), "--http-port", str(port)]
    command += ["--admin-port", "0", "--no-grpc", "--drain-delay", "0"]
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with suppress(BlockingIOError):
        while True:
            os.write(full, bytes(4096))
    os.set_blocking(full, True)
    broken, unheard = os.pipe()
    os.close(broken)
    process = subprocess.Popen(
        ["sh", "-c", f'exec 3>&0; exec "$@" {out} </dev/null 3>&-', "sh", *command],
        stdin=unheard,
        stderr=full,
    )
    try:
        deadline_s = time.monotonic() + LIMIT_S
        while not ready(port):
            assert process.poll() is None
            assert time.monotonic() < deadline_s, "it waits for somebody to read its log"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait(LIMIT_S)
        for one in (unread, full, unheard):
            os.close(one)


def ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=LIMIT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
