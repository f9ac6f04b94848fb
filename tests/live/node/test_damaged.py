"""`inferway node` with a state that is damaged, or that is not its own to touch."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from test_node import free

LIMIT_S = 120.0
FILE = """
tasks:
  digits:
    variants:
      mini: {model: zoo://digits/mini}
nodes:
  cloud: {repository: true, instances: {digits/mini: 1}}
  edge: {budget: 80 kB}
network:
  links: [{between: [cloud, edge], rtt: 1 ms}]
placement: {policy: repository-only, slot: 1 h}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge]}}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Give what runs the node `cloud`."""
    (tmp_path / "two.yaml").write_text(FILE)
    names = ("http", "peer", "control", "admin")
    at = {node: {name: free() for name in names} for node in ("cloud", "edge")}
    (tmp_path / "at.json").write_text(json.dumps(at))
    command = ["node", str(tmp_path / "two.yaml"), "--name", "cloud"]
    command += ["--addresses", str(tmp_path / "at.json"), "--state", str(tmp_path / "cloud")]
    return [*command, "--log-level", "warning"]


def started(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "inferway", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(words: list[str]) -> list[dict[str, str]]:
    """Run the node until it is ready, and return what it has logged."""
    process = started(words)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert line.startswith("ready cloud "), errors
    assert process.returncode == 0, errors
    return [json.loads(one) for one in errors.splitlines()]


def refused(words: list[str]) -> str:
    """Run a node that cannot begin, and return what it says."""
    process = started(words)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode, errors.count("\n")) == ("", 2, 1), errors
    return errors


def test_it_begins_anew_with_whatever_is_damaged(words: list[str], tmp_path: Path) -> None:
    state = tmp_path / "cloud" / "state.sqlite"
    run(words)
    content = state.read_bytes()
    assert len(content) > 4096
    flipped = bytearray(content)
    flipped[4096] ^= 0x90
    kept = []
    # Other damage is tried without processes, in the tests of the state.
    for number, damaged in enumerate((content[:4096], bytes(flipped)), 1):
        state.write_bytes(damaged)
        (said,) = (one for one in run(words) if one["event"] == "begins anew")
        kept.append(state.with_name(f"state.sqlite.damaged{f'.{number}' * (number > 1)}"))
        assert said["reason"].startswith(f"the node's state in {state} is damaged: ")
        assert said["reason"].endswith(f"; it is kept as {kept[-1]}")
        assert kept[-1].read_bytes() == damaged
    assert [one for one in run(words) if one["event"] == "begins anew"] == []


def test_it_leaves_alone_what_is_not_damaged(words: list[str], tmp_path: Path) -> None:
    state = tmp_path / "cloud" / "state.sqlite"
    run(words)
    with closing(sqlite3.connect(state)) as base, base:
        base.execute("PRAGMA user_version = 4")
    before = state.read_bytes()
    assert "it has version 4, and this Inferway 3" in refused(words)
    assert state.read_bytes() == before
    state.unlink()
    with closing(sqlite3.connect(state)) as base, base:
        base.execute("CREATE TABLE songs (title)")
    before = state.read_bytes()
    assert "it is another program's database" in refused(words)
    assert state.read_bytes() == before
    state.unlink()
    with closing(sqlite3.connect(state)) as base:
        base.execute("CREATE TABLE songs (title)")
        base.execute("BEGIN EXCLUSIVE")
        assert "another process has it open" in refused(words)
    assert [one.name for one in state.parent.glob("*damaged*")] == []
