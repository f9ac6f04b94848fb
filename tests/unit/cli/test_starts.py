"""How commands start: with what they need, and with each file once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferway.catalog import zoo

NEEDLESS = (
    "pandas", "matplotlib", "grpc", "onnxruntime", "onnx", "pyarrow", "rich", "networkx",
    "asyncio", "inferway.runtime", "inferway.network", "inferway.live",
)  # fmt: skip
WATCHED = """
import collections, json, sys
opened = collections.Counter()

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened[arguments[0].rpartition("/")[2]] += 1

sys.addaudithook(watch)
from inferway.cli import main

code = main(sys.argv[1:])
print(json.dumps({"code": code, "opened": opened, "modules": [*sys.modules]}), file=sys.stderr)
"""
OWN = """
tasks:
  one:
    accuracy_target: 0.4
    variants: {own: {model: own.onnx, accuracy: 0.4}}
  other:
    accuracy_target: 0.4
    variants: {own: {model: own.onnx, accuracy: 0.4}}
nodes: {here: {instances: {one/own: 1, other/own: 1}}}
dispatch: {policy: tad}
workload:
  one: {arrivals: {process: poisson, rate: 5/s}}
  other: {arrivals: {process: poisson, rate: 5/s}}
"""


def watched(*arguments: str | Path) -> dict[str, Any]:
    """Run a command in a process of its own; its code, the files it opened and what it imported."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return found


@pytest.mark.parametrize("words", ["check {}", "bound {} --json", "simulate {} --json --queries 9"])
def test_a_command_imports_only_what_it_needs(words: str) -> None:
    file = Path(__file__).parents[3] / "examples" / "digits.yaml"
    found = watched(*words.format(file).split())
    assert not set(NEEDLESS) & set(found["modules"])
    assert found["opened"]["digits.yaml"] == 1
    assert found["opened"]["profiles.json.xz"] == 1


def test_a_server_starts_without_the_solver_that_few_of_them_need() -> None:
    code = "import sys, inferway.live.server; print('scipy.optimize' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_model_of_several_tasks_is_read_and_measured_once(tmp_path: Path) -> None:
    shutil.copy(zoo.model_path("digits", "tiny"), tmp_path / "own.onnx")
    (tmp_path / "own.yaml").write_text(OWN)
    found = watched("bound", tmp_path / "own.yaml", "--json")
    assert found["opened"]["own.yaml"] == 1
    assert found["opened"]["own.onnx"] == 2  # to be checked, and to be measured
