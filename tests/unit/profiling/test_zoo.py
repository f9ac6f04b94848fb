"""Measurements on a model whose cost is known from the outside: a stack of products."""

import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.profiling.zoo import answers, measured_on, resident_bytes, service_times

SIDE = 256


def stack(path: Path, depth: int) -> Path:
    """Write `depth` products of the flat image with its own square matrix."""
    shape = numpy_helper.from_array(np.array([-1, SIDE]), "shape")
    weights = [
        numpy_helper.from_array(np.eye(SIDE, dtype=np.float32) * 0.5, f"w{i}") for i in range(depth)
    ]
    nodes = [helper.make_node("Reshape", ["image", "shape"], ["x0"])]
    nodes += [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(depth)]
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 16, 16])],
        [helper.make_tensor_value_info(f"x{depth}", TensorProto.FLOAT, ["n", SIDE])],
        [shape, *weights],
    )
    opset = helper.make_opsetid("", 17)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    )
    return path


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).random((40, 1, 16, 16), dtype=np.float32)


def test_longer_models_take_longer(tmp_path: Path, images: np.ndarray) -> None:
    short, long = stack(tmp_path / "short.onnx", 1), stack(tmp_path / "long.onnx", 40)
    told: list[float] = []
    start = time.perf_counter()
    found = service_times(
        [short, long],
        images,
        rounds=2,
        round_s=0.01,
        progress=lambda share, what: told.append(share),
    )
    took = time.perf_counter() - start
    assert [[each.batch for each in times] for times in found] == [[1, 8], [1, 8]]
    for a, b in zip(*found, strict=True):
        assert 0 < a.mean_s < b.mean_s < took
    for each in (*found[0], *found[1]):
        assert 0 < each.p50_s <= each.p99_s
        assert 0 < each.cpu_s < took
    assert len(told) == 8
    assert told == sorted(told)
    assert told[-1] == 1


def test_answers_keep_their_order(tmp_path: Path, images: np.ndarray) -> None:
    path = stack(tmp_path / "model.onnx", 3)
    counts: list[int] = []
    found = answers(path, images, workers=2, progress=counts.append)
    np.testing.assert_allclose(found, images.reshape(40, SIDE) / 8, rtol=1e-5)
    assert sum(counts) == 40


def test_memory_grows_with_the_weights(tmp_path: Path) -> None:
    # 80 products hold 80 * 256 * 256 * 4 bytes, 21 MB.
    small = resident_bytes(stack(tmp_path / "small.onnx", 1))
    large = resident_bytes(stack(tmp_path / "large.onnx", 80))
    assert large - small > 15e6


def test_machine_names_what_measurements_depend_on() -> None:
    found = measured_on()
    assert found["cores"] >= 1
    assert all(found[key] for key in ("processor", "system", "python", "onnxruntime", "numpy"))
