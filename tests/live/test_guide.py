"""The guide to serving one's own models, command by command as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page import Code, steps

from ports import free_ports

LIMIT_S = 300.0


class Reader:
    """Somebody who does what the guide says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Where the guide's ports are taken, others.
        self.ports = dict(zip(("8000", "8001", "8002"), free_ports(3), strict=True))
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
        }
        self.servers: list[subprocess.Popen[str]] = []

    def ported(self, text: str) -> str:
        for said, port in self.ports.items():
            text = re.sub(rf":{said}\b", f":{port}", text)
        return text

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(self.ported(content))

    def do(self, command: str, said: str) -> str:
        """Run a command and return what it printed; a server goes on, once it has printed that."""
        if command.startswith("mkdir"):
            return ""
        if command.startswith("inferway drive"):
            command += f" --url http://127.0.0.1:{self.ports['8000']}"
        if not command.startswith("inferway serve"):
            done = subprocess.run(
                ["bash", "-c", self.ported(command)],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout if done.stdout else done.stderr
        http, grpc, admin = self.ports.values()
        command += f" --http-port {http} --grpc-port {grpc} --admin-port {admin} --forget"
        server = subprocess.Popen(
            command.split(),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.servers.append(server)
        assert server.stdout is not None
        return "".join(server.stdout.readline() for _ in said.splitlines())

    def leave(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGINT)
            assert server.wait(LIMIT_S) == 0
            assert server.stdout is not None
            server.stdout.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.leave()


def like(text: str) -> list[str]:
    """What must be the same on every machine: words, not numbers and who is fast."""
    text = re.sub(r"-?\d[\d.,]*( [µm]?s\b|/s)?", "#", text)
    text = re.sub(r"─+|\s+\n", lambda found: "\n" if "\n" in found[0] else "─", text)
    lines = (re.sub(r"\b(small|large)$", "one", line) for line in text.strip().splitlines())
    return [re.sub(r"\s+", " ", line) for line in lines]


@pytest.mark.slow
def test_the_guide_to_serving_ones_own_models(reader: Reader, root: Path) -> None:
    written, run = [], 0
    for step in steps(root / "docs" / "guides" / "serve-your-own-model.md"):
        if isinstance(step, Code):
            assert step.file is not None
            written.append(step.file)
            reader.write(step.file, step.text)
            continue
        said = step.prints
        assert like(reader.do(step.text, said)) == like(reader.ported(said)), step.text
        run += 1
    assert written == ["export.py", "parts.yaml", "ask.py", "own.py", "own.yaml"]
    assert run == 10
