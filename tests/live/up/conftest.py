"""Networks of stand-ins, so that only who starts and stops them is tested."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.deployment import Deployment, load
from inferway.lab import LocalCluster

STAND_IN = Path(__file__).parent / "stand_in.py"
Raise = Callable[..., LocalCluster]

FILE = """\
tasks: {digits: {variants: {tiny: {model: tiny.onnx, accuracy: 0.8, service: {mean: 1 ms}}}}}
nodes:
  edge: {}
  metro: {}
  cloud: {repository: true}
network:
  links: [{between: [cloud, metro], rtt: 20 ms}, {between: [metro, edge], rtt: 4 ms}]
placement: {policy: repository-only}
workload:
  digits: {arrivals: {process: poisson, rate: 10/s}, entries: {nodes: [edge]}}
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [weights],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(tmp_path / "tiny.onnx"),
    )
    path = tmp_path / "net.yaml"
    path.write_text(FILE, encoding="utf-8")
    return load(path)


@pytest.fixture
def raised(deployment: Deployment, tmp_path: Path) -> Iterator[Raise]:
    """Give a function that readies nodes, of which some have whims; they end with the test."""
    made: list[LocalCluster] = []

    def ready(whims: dict[str, str] | None = None, **options: Any) -> LocalCluster:
        class StandIns(LocalCluster):
            def node_command(self, name: str) -> list[str]:
                whim = (whims or {}).get(name, "")
                file = str(self.addresses_file)
                return [sys.executable, "-S", "-u", str(STAND_IN), name, file, whim]

        options.setdefault("run", tmp_path / "run")
        made.append(StandIns(deployment, **options))
        return made[-1]

    yield ready
    for one in made:
        one.stop(0.0)
