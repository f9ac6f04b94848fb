"""`Up` over real nodes: on the loopback with certificates, and each in a network namespace."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferway.deployment import Deployment
from inferway.lab import LocalCluster, State, obstacle

pytest.importorskip("zenoh")

LIMIT_S = 60.0
ASK = """\
import json, sys, urllib.request
tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
body = json.dumps({"inputs": [tensor]}).encode()
request = urllib.request.Request(sys.argv[1] + "/v2/models/digits/infer", body)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(json.dumps([answer.headers["Inferway-Path"], json.load(answer)["outputs"][0]["data"]]))
"""


@pytest.fixture(params=["loopback", "namespaces"])
def up(
    request: pytest.FixtureRequest, deployment: Deployment, tmp_path: Path
) -> Iterator[LocalCluster]:
    certs = None
    if request.param == "namespaces":
        if (reason := obstacle()) is not None:
            pytest.skip(reason)
    else:
        pytest.importorskip("cryptography")
        from certificates import issue

        certs = tmp_path / "certs"
        issue(("cloud", "metro", "edge"), certs)
    with LocalCluster(
        deployment, run=tmp_path / "run", certs=certs, netns=request.param == "namespaces"
    ) as nodes:
        yield nodes


def asked(up: LocalCluster, node: str) -> list[Any]:
    """Send a request from where the node is reached."""
    command = up.command_at(node, sys.executable, "-c", ASK, up.url(node))
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def until(up: LocalCluster, node: str, **wanted: Any) -> None:
    """Wait until a node says so of itself."""
    end_s, between = time.monotonic() + LIMIT_S, threading.Event()
    while True:
        told = up.admin(node)
        if all(told[key] == value for key, value in wanted.items()):
            return
        assert time.monotonic() < end_s, told
        between.wait(0.05)


@pytest.mark.slow
def test_requests_take_their_way_and_a_killed_node_comes_back(up: LocalCluster) -> None:
    assert asked(up, "edge") == ["edge,metro,cloud", [10.0, 10.0, 10.0]]
    assert asked(up, "cloud") == ["cloud", [10.0, 10.0, 10.0]]
    up.kill("metro")
    until(up, "edge", alive=[])
    assert up.admin("edge")["degraded"]
    assert up.nodes["cloud"].state is State.READY
    up.start("metro")
    until(up, "edge", ready=True, degraded="", alive=["metro"])
    assert asked(up, "edge") == ["edge,metro,cloud", [10.0, 10.0, 10.0]]
    up.stop()
    assert {name: one.code for name, one in up.nodes.items()} == dict.fromkeys(up.nodes, 0)
