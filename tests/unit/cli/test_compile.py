"""Compiling beforehand: what a start needs is in the cache then."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
tasks:
  digits:
    accuracy_target: 0.7
    variants:
      quick: {accuracy: 0.6, service: {mean: 10 ms}}
      good: {accuracy: 0.9, service: {mean: 50 ms}}
nodes:
  edge: {instances: {digits/quick: 2, digits/good: 3}}
workload:
  digits: {arrivals: {process: poisson, rate: 5/s}}
dispatch: {policy: ./mine.py:Mine}
"""
POLICY = """
from typing import NamedTuple

class Mine(NamedTuple):
    '''Always the first.'''
    server: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(0)

    def choose(self, site, request, draw):
        return self.server
"""


def inferway(*arguments: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "inferway", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_what_is_compiled_beforehand_is_not_compiled_again(tmp_path: Path) -> None:
    file, policy, cache = tmp_path / "fleet.yaml", tmp_path / "mine.py", tmp_path / "cache"
    file.write_text(FILE)
    policy.write_text(POLICY)
    first = json.loads(inferway("compile", str(file), "--json", cache=cache))
    functions = {one["function"].rpartition(".")[2] for one in first["compiled"]}
    assert {"arrive", "finish", "withdraw", "run"} <= functions
    assert any("mine" in module for one in first["compiled"] for module in one["modules"])
    assert first["folder"] == str(cache / "inferway" / "compiled")
    assert first["seconds"] > 0
    policy.write_text(POLICY.replace("Always the first.", "Server 0."))
    assert "Nothing to do" in inferway("compile", str(file), cache=cache)


def test_a_terminal_is_told_what_takes_so_long(tmp_path: Path) -> None:
    script = (
        "import threading\n"
        "from inferway.cli import terminal\n"
        "from inferway.site import compiled\n"
        "import numba\n"
        "with terminal.compiling(True):\n"
        "    event = numba.core.event\n"
        "    data = {'dispatcher': compiled.entry(lambda x: x), 'args': ()}\n"
        "    with event.trigger_event('numba:compile', data=data):\n"
        "        for one in threading.enumerate():\n"
        "            if isinstance(one, threading.Timer):\n"
        "                one.join()\n"
    )
    mine, its = pty.openpty()
    done = subprocess.run([sys.executable, "-c", script], stderr=its, timeout=120, check=False)
    os.close(its)
    text = os.read(mine, 4096).decode()
    os.close(mine)
    assert done.returncode == 0, text
    assert text == (
        "inferway: compiling the policies, once; `inferway compile FILE` does it beforehand\r\n"
    )
