"""ONNX Runtime answers, one batch at a time or several threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.runtime import ArtifactError, OnnxRuntime

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor_value_info("best", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2]),
        ],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("rows", [1, 8])
def test_answers(path: Path, rows: int) -> None:
    runtime = OnnxRuntime(path)
    x = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)
    answer = runtime.run({"x": x})
    assert list(answer) == [tensor.name for tensor in runtime.signature.outputs] == ["best", "y"]
    np.testing.assert_allclose(answer["y"], x @ WEIGHTS, rtol=1e-5)
    np.testing.assert_array_equal(answer["best"], (x @ WEIGHTS).argmax(axis=1))


def test_bytes_reach_a_model_as_its_texts(tmp_path: Path) -> None:
    text, same = (
        helper.make_tensor_value_info(name, TensorProto.STRING, ["n", 1])
        for name in ("text", "same")
    )
    graph = helper.make_graph(
        [helper.make_node("Identity", ["text"], ["same"])], "same", [text], [same]
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    (tmp_path / "same.onnx").write_bytes(model.SerializeToString())
    given = np.array([[b"a, b"], ["\u00e9".encode()], ["c"], [b"\xff"]], np.object_)
    answer = OnnxRuntime(tmp_path / "same.onnx").run({"text": given})
    assert answer["same"].tolist() == [["a, b"], ["\u00e9"], ["c"], ["\ufffd"]]
    assert given[0, 0] == b"a, b"


def test_two_threads_run_at_once(path: Path) -> None:
    runtime = OnnxRuntime(path)
    start = threading.Barrier(2, timeout=10)

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        start.wait()
        for _ in range(200):
            x = generator.normal(size=(4, 3)).astype(np.float32)
            np.testing.assert_allclose(runtime.run({"x": x})["y"], x @ WEIGHTS, rtol=1e-4)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, seed) for seed in (1, 2)]:
            done.result(timeout=30)


def test_closed_is_closed(path: Path) -> None:
    runtime = OnnxRuntime(path)
    runtime.close()
    runtime.close()
    with pytest.raises(RuntimeError, match="the runtime is closed"):
        runtime.run({"x": np.zeros((1, 3), np.float32)})


def test_refuses_another_digest_and_no_threads(path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected sha256:0"):
        OnnxRuntime(path, digest="sha256:" + "0" * 64)
    with pytest.raises(ValueError, match="threads is 0; it must be 1 or more"):
        OnnxRuntime(path, threads=0)


def test_says_when_onnx_runtime_cannot_load(tmp_path: Path) -> None:
    # A valid model whose operator ONNX Runtime does not have for this type.
    graph = helper.make_graph(
        [helper.make_node("Custom", ["x"], ["y"], domain="nobody.knows")],
        "custom",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("nobody.knows", 1)]
    path = tmp_path / "custom.onnx"
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"custom\.onnx: ONNX Runtime cannot load the model: "):
        OnnxRuntime(path)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_spin(path: Path, threads: int) -> None:
    # No public way to see it but the session's own options.
    options = OnnxRuntime(path, threads=threads)._session.get_session_options()
    assert options.intra_op_num_threads == threads
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_of_one_file_the_weights_are_there_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"x": np.ones((2, 3), np.float32)}
    first = OnnxRuntime(path)
    before = first.run(inputs)

    def read(*_: object, **__: object) -> None:
        pytest.fail("the file was read again")

    with monkeypatch.context() as patch:
        patch.setattr("inferway.runtime.runtime.read", read)
        second = OnnxRuntime(path)
    first.close()
    for name, array in second.run(inputs).items():
        assert np.array_equal(array, before[name])
    second.close()
    path.write_bytes(b"no model")
    with pytest.raises(ArtifactError):
        OnnxRuntime(path)
