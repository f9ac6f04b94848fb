"""A model file that must not be loaded is refused with one clear sentence."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.protocol import Signature, Tensor
from inferway.runtime import ArtifactError, OnnxRuntime, inspect
from inferway.runtime.artifact import newest_opset


def linear(
    *,
    opset: int = 17,
    batch: str | int | None = "n",
    datatype: int = TensorProto.FLOAT,
    weights: onnx.TensorProto | None = None,
) -> onnx.ModelProto:
    """A model of one product: x[n, 3] @ w[3, 2]."""
    if weights is None:
        dtype = helper.tensor_dtype_to_np_dtype(datatype)
        weights = numpy_helper.from_array(np.ones((3, 2)).astype(dtype), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", datatype, [batch, 3])],
        [helper.make_tensor_value_info("y", datatype, [batch, 2])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def write(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "linear.onnx", linear())


def test_tells_the_signature(good: Path) -> None:
    digest = f"sha256:{hashlib.sha256(good.read_bytes()).hexdigest()}"
    expected = Signature((Tensor("x", "FP32", (-1, 3)),), (Tensor("y", "FP32", (-1, 2)),))
    assert inspect(good, digest=digest) == expected
    assert inspect(good, digest=digest.upper().replace("SHA", "sha")) == expected
    assert str(expected) == "(x: FP32[-1, 3]) -> (y: FP32[-1, 2])"


def test_weights_among_the_inputs_are_not_inputs(tmp_path: Path) -> None:
    model = linear()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 2]))
    assert [t.name for t in inspect(write(tmp_path / "old.onnx", model)).inputs] == ["x"]


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(ArtifactError) as caught:
        inspect(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    assert "cannot read the model file: No such file" in refusal(tmp_path / "none.onnx")
    assert "cannot read the model file: Is a directory" in refusal(tmp_path)


def test_refuses_another_digest(good: Path) -> None:
    actual = hashlib.sha256(good.read_bytes()).hexdigest()
    message = refusal(good, digest="sha256:" + "0" * 64)
    assert f"digest is sha256:{actual}, expected sha256:000" in message


@pytest.mark.parametrize("digest", ["md5:" + "0" * 32, "sha256:12", "0" * 64, "sha256:" + "g" * 64])
def test_refuses_a_digest_that_is_none(good: Path, digest: str) -> None:
    assert "is not 'sha256:' followed by 64 hexadecimal digits" in refusal(good, digest=digest)


def test_refuses_a_file_over_the_limit(good: Path) -> None:
    size = good.stat().st_size
    inspect(good, max_bytes=size)
    assert f"larger than the limit of {size - 1} bytes" in refusal(good, max_bytes=size - 1)


def test_refuses_a_truncated_file(good: Path) -> None:
    whole = good.read_bytes()
    for length in range(len(whole)):
        good.write_bytes(whole[:length])
        refusal(good)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04K\x01.", b"GIF89a" * 9, b"PK\x03\x04" + bytes(99)]
)
def test_refuses_what_is_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "not a whole ONNX model" in refusal(path)


@pytest.mark.parametrize("opset", [6, newest_opset() + 1])
def test_refuses_an_opset_that_does_not_run(tmp_path: Path, opset: int) -> None:
    message = refusal(write(tmp_path / "model.onnx", linear(opset=opset)))
    assert f"uses opset {opset}; the installed ONNX Runtime runs 7 to {newest_opset()}" in message


@pytest.mark.parametrize("opset", [7, newest_opset()])
def test_accepts_the_ends_of_the_opset_range(tmp_path: Path, opset: int) -> None:
    OnnxRuntime(write(tmp_path / "model.onnx", linear(opset=opset))).close()


def test_refuses_a_fixed_batch(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "model.onnx", linear(batch=1)))
    assert "input 'x' has a first axis of fixed length 1; export the model with a dyn" in message


def test_refuses_a_datatype_without_a_protocol_name(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "model.onnx", linear(datatype=TensorProto.BFLOAT16)))
    assert "input 'x' has the type BFLOAT16" in message


def test_refuses_a_scalar(tmp_path: Path) -> None:
    model = linear()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    assert "output 'y' has no axes" in refusal(write(tmp_path / "model.onnx", model))


def test_refuses_weights_in_other_files(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    outside = onnx.TensorProto()
    outside.CopyFrom(weights)
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="/etc/passwd")
    assert "keeps weights in other files" in refusal(
        write(tmp_path / "model.onnx", linear(weights=outside))
    )
    hidden = linear()
    hidden.graph.node.append(helper.make_node("Constant", [], ["unused"], value=outside))
    assert "keeps weights in other files" in refusal(write(tmp_path / "model.onnx", hidden))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["inner"], value=outside)],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3, 2])],
    )
    deep = linear()
    deep.graph.node.append(
        helper.make_node("If", ["x"], ["unused"], then_branch=branch, else_branch=branch)
    )
    assert "keeps weights in other files" in refusal(write(tmp_path / "model.onnx", deep))


def test_refuses_an_operator_that_does_not_exist(tmp_path: Path) -> None:
    model = linear()
    model.graph.node[0].op_type = "Divine"
    assert "not a whole ONNX model: No Op registered for Divine" in refusal(
        write(tmp_path / "model.onnx", model)
    )
