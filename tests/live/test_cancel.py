"""A client that goes while its request is in service: what can be stopped is stopped."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.live import Outcome
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime, OnnxRuntime

WIDTH, LAYERS, ROWS = 256, 800, 1024
SIGNATURE = Signature((Tensor("x", "FP32", (-1, WIDTH)),), (Tensor("y", "FP32", (-1, WIDTH)),))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of many layers: one row takes milliseconds, many rows take seconds."""
    names = ["x", *(f"z{i}" for i in range(LAYERS - 1)), "y"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [before, "w"], [after]) for before, after in pairwise(names)],
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, WIDTH])],
        [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("model") / "deep.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def ask(post: Any, rows: int, **parameters: Any) -> bytes:
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [rows, WIDTH],
        "parameters": {"binary_data_size": rows * WIDTH * 4},
    }
    text = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    head = f"Inference-Header-Content-Length: {len(text)}\r\nX-Request-Id: r{rows}\r\n"
    raw: bytes = post(text + bytes(rows * WIDTH * 4), head)
    return raw


def test_a_run_that_nobody_waits_for_is_stopped(
    start: Any, site_of: Any, deep: Path, until: Any
) -> None:
    runtime = OnnxRuntime(deep)
    running = start(site_of([runtime, NullRuntime(SIGNATURE)], signature=SIGNATURE))
    site = running.site
    wire = running.wire()
    wire.send(ask(running.post, ROWS))
    until(lambda: bool(site.pool.queues[0]) and site.pool.queues[0][0].call is not None)
    wire.close()
    until(lambda: site.in_flight == 0)
    assert site.stats.total(Outcome.CANCELED) == 1
    assert site.stats.total(Outcome.ANSWERED) == 0
    assert running.call(lambda: site.pool.dispatcher.balance) == pytest.approx(0.0)
    told = running.get(f"/v2/models/digits/explain/r{ROWS}").json
    assert told["outcome"] == "canceled"
    # The instance goes on.
    after = running.wire()
    after.send(ask(running.post, 1))
    assert after.read().status == 200


def test_stopping_a_run_that_has_ended_does_nothing(deep: Path) -> None:
    runtime = OnnxRuntime(deep)
    inputs = {"x": np.ones((1, WIDTH), np.float32)}
    ended, stopped = runtime.call(), runtime.call()
    np.testing.assert_array_equal(runtime.run(inputs, ended)["y"], inputs["x"])
    ended.terminate = True
    assert runtime.run(inputs)["y"].shape == (1, WIDTH)
    stopped.terminate = True
    with pytest.raises(Exception, match="terminate"):
        runtime.run(inputs, stopped)
