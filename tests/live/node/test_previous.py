"""A node of the previous release beside nodes of this one."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from packaging.version import InvalidVersion, Version

from inferway import __version__
from inferway.deployment import load
from inferway.lab import LocalCluster

pytest.importorskip("zenoh")

LIMIT_S = 60.0
FILE = """\
tasks: {digits: {variants: {tiny: {model: tiny.onnx, accuracy: 0.8, service: {mean: 1 ms}}}}}
nodes:
  edge: {budget: 1 B}
  middle: {budget: 1 B}
  cloud: {repository: true}
network:
  links: [{between: [cloud, middle], rtt: 2 ms}, {between: [middle, edge], rtt: 1 ms}]
placement: {policy: infida, slot: 1 s}
workload:
  digits: {arrivals: {process: poisson, rate: 10/s}, entries: {nodes: [edge]}}
"""


def previous(root: Path) -> str:
    """The tag of the latest release before these sources, or what INFERWAY_PREVIOUS names.

    That is the release of their own version where they have gone on since. Skip where there is no
    such tag.
    """
    if named := os.environ.get("INFERWAY_PREVIOUS"):
        return named
    if shutil.which("git") is None:
        pytest.skip("there is no git here, which has the previous release")
    here = _git(root, "rev-parse", "HEAD")
    # The last is the commit of a tag that has a message of its own.
    tags = _git(root, "tag", "--format=%(refname:short) %(objectname) %(*objectname)")
    found = []
    for line in tags.splitlines():
        tag, *objects = line.split()
        try:
            version = Version(tag.removeprefix("v"))
        except InvalidVersion:
            continue
        if version <= Version(__version__) and objects[-1] != here:
            found.append((version, tag))
    if not found:
        pytest.skip(f"no release before these sources of {__version__} has a tag")
    return max(found)[1]


def _git(root: Path, *arguments: str) -> str:
    """Ask git; nothing outside of a repository."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip()


def source_of(root: Path, tag: str, folder: Path) -> Path:
    """Unpack the package as it was at a tag."""
    done = subprocess.run(
        ["git", "archive", tag, "src"], cwd=root, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def asked(url: str) -> tuple[str, Any]:
    """Ask for a digit: by which nodes the answer came, and the answer."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(f"{url}/v2/models/digits/infer", body)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return answer.headers["Inferway-Path"], json.load(answer)["outputs"][0]["data"]


@pytest.mark.slow
@pytest.mark.parametrize("old", [("middle",), ("cloud", "edge")], ids="-".join)
def test_a_node_of_the_previous_release_serves_beside_this_one(
    root: Path, tmp_path: Path, old: tuple[str, ...]
) -> None:
    source = source_of(root, previous(root), tmp_path / "previous")
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "tiny.onnx"))
    (tmp_path / "net.yaml").write_text(FILE)

    class Mixed(LocalCluster):
        def node_command(self, name: str) -> list[str]:
            command = super().node_command(name)
            path = source if name in old else root / "src"
            return ["/usr/bin/env", f"PYTHONPATH={path}", *command]

    with Mixed(load(tmp_path / "net.yaml"), run=tmp_path / "run") as up:
        told = {name: json.loads(_get(f"{up.url(name)}/v2"))["version"] for name in up.nodes}
        assert {told[name] for name in up.nodes if name not in old} == {__version__}
        assert asked(up.url("edge")) == ("edge,middle,cloud", [10.0, 10.0, 10.0])
        for name in up.nodes:
            said = up.admin(name)
            assert said["degraded"] == ""
            assert len(said["alive"]) == len(said["neighbors"])


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return bytes(answer.read())


def test_the_previous_release_is_the_latest_before_these_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("INFERWAY_PREVIOUS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no release before"):
        previous(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    commit = [*git, "commit", "-q", "--allow-empty", "-m", "a"]
    subprocess.run([*git, "init", "-q", str(tmp_path)], check=True)
    subprocess.run(commit, cwd=tmp_path, check=True)
    with pytest.raises(pytest.skip.Exception, match=f"before these sources of {__version__}"):
        previous(tmp_path)
    for tag in ("v0.0.2", "v0.0.10", "nightly", "v99.0.0"):
        subprocess.run([*git, "tag", tag], cwd=tmp_path, check=True)
    subprocess.run(commit, cwd=tmp_path, check=True)
    subprocess.run([*git, "tag", "-a", "-m", "a", f"v{__version__}"], cwd=tmp_path, check=True)
    assert previous(tmp_path) == "v0.0.10"  # these are the sources of the release
    subprocess.run(commit, cwd=tmp_path, check=True)
    assert previous(tmp_path) == f"v{__version__}"
