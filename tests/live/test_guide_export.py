"""The guide to exporting models, command by command as it stands there."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w.]+\.(?:py|yaml))`[^`]*\Z")
LIMIT_S = 300.0


def like(text: str) -> str:
    """What is the same with other versions of the frameworks: words, not numbers and digests."""
    text = re.sub(r"sha256:\w+", "sha256:#", text)
    return re.sub(r"\d[\d.,e-]*", "#", text).strip()


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console into commands, each with what it prints."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.slow
def test_the_guide_to_exporting_models(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is in the extra `learn`, not in `test`")
    guide = (root / "docs" / "guides" / "export-a-model.md").read_text(encoding="utf-8")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONWARNINGS": "error",
    }
    written, run, port = [], 0, 0
    server: subprocess.Popen[str] | None = None
    try:
        for block in FENCE.finditer(guide):
            kind, content = block.groups()
            if kind != "console":
                name = FILE.search(guide[: block.start()])
                assert name is not None
                written.append(name[1])
                (tmp_path / name[1]).write_text(content)
                continue
            for command, said in commands(content):
                run += 1
                if command.startswith("inferway serve"):
                    port = _free_port()
                    ports = f"--http-port {port} --grpc-port 0 --admin-port 0 --forget"
                    server = subprocess.Popen(
                        f"{command} {ports}".split(),
                        cwd=tmp_path,
                        env=environment,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    assert server.stdout is not None
                    printed = "".join(server.stdout.readline() for _ in said.splitlines())
                    assert like(printed) == like(said)
                    continue
                done = subprocess.run(
                    ["bash", "-c", command.replace(":8000", f":{port}")],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                )
                assert done.returncode == 0, done.stderr
                if command.startswith("curl"):
                    answered, expected = json.loads(done.stdout), json.loads(said)
                    # The faster comes first.
                    assert sorted(answered.pop("versions")) == sorted(expected.pop("versions"))
                    assert answered == expected
                else:
                    assert like(done.stdout) == like(said), command
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=LIMIT_S)
    assert server is not None
    assert server.returncode == 0
    assert written == ["train.py", "boost.py", "net.py", "digits.yaml"]
    assert run == 7


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
