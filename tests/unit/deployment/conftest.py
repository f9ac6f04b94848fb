from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

TASKS = """\
tasks:
  digits:
    variants:
      fast: {accuracy: 0.8, size: 1 GiB, service: {mean: 10 ms}}
      slow: {accuracy: 0.9, size: 2 GiB, service: {mean: 40 ms}}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a deployment file and return its path."""

    def writer(text: str, name: str = "d.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return writer


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Write a small linear ONNX model and return its path."""

    def writer(name: str, inputs: int = 4, outputs: int = 3) -> Path:
        weights = numpy_helper.from_array(np.ones((inputs, outputs), np.float32), "w")
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "linear",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", inputs])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", outputs])],
            [weights],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = tmp_path / name
        onnx.save(made, str(path))
        return path

    return writer
