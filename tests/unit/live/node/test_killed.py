"""Nodes killed in the middle of a fetch, of saving their state, or of deciding by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, content_of, digest_of, make_certificate, whole

# Real clocks and sockets: on shared machines, processes stand still.
pytestmark = pytest.mark.flaky(reruns=1)

NURSERY = Path(__file__).with_name("nursery.py")
MODEL = content_of(4_000_000)


def nursed(*arguments: Any) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, NURSERY, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_state_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    found = nursed("save", tmp_path / "state.db", 20)
    assert found["slots"] > 5


def test_a_state_survives_a_kill_at_any_byte_of_a_write(tmp_path: Path) -> None:
    found = nursed("cut", tmp_path / "state.db")
    assert found["killed"] > 15
    assert found["slots"] > 5


def test_after_a_kill_at_any_moment_a_node_decides_as_one_never_killed(tmp_path: Path) -> None:
    found = nursed("decide", tmp_path, 15)
    assert found["slots"] > 50
    assert found["carried"] > 50
    assert found["allocations"] > 10


def test_a_fetch_goes_on_after_each_kill(tmp_path: Path) -> None:
    server = ModelServer(make_certificate(tmp_path / "server.pem", "127.0.0.1"))
    server.replies["/model"] = whole(MODEL)
    folder, digest = tmp_path / "models", digest_of(MODEL)
    try:
        found = nursed("fetch", folder, server.url(), digest, tmp_path / "server.pem", 200)
    finally:
        server.close()
    assert found["whole"]
    assert found["rounds"] > 10
    assert (folder / digest[7:]).read_bytes() == MODEL
    assert {path.name for path in folder.iterdir()} == {"lock", digest[7:]}
    # Each one asked for what the one before had not got.
    starts = [asked.start for asked in server.asked]
    assert starts == sorted(starts)
    assert len(set(starts)) > 10
