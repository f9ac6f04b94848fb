"""A model file that would read other files of the machine is refused before anything runs it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

import inferway
from inferway.cli import main

SECRET = b"a secret of 24 bytes ..."
COLUMNS = len(SECRET) // 4
NAME = "secret.txt"


def outside(name: str = "w", file: str = NAME) -> TensorProto:
    """A tensor that is another file's bytes."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[COLUMNS])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", "0"), ("length", str(len(SECRET)))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def inside(name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.zeros(COLUMNS, np.float32), name)


def sparse(values: TensorProto) -> SparseTensorProto:
    numbers = numpy_helper.from_array(np.arange(COLUMNS), f"{values.name}-at")
    return SparseTensorProto(values=values, indices=numbers, dims=[COLUMNS])


def added(*before: onnx.NodeProto, weights: list[TensorProto] | None = None) -> onnx.ModelProto:
    """x + w."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", COLUMNS]) for name in "xy")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([*before, node], "added", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def constant(**value: Any) -> onnx.NodeProto:
    """A node that gives w."""
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.append(onnx.AttributeProto(**value))
    return node


def hidden(kind: str) -> onnx.AttributeProto:
    """An attribute of a node that holds tensors of a kind, by the schema's field."""
    attribute = onnx.AttributeProto(name="own", type=onnx.AttributeProto.FLOAT, f=1.0)
    match kind:
        case "t":
            attribute.t.CopyFrom(outside())
        case "tensors":
            attribute.tensors.extend([inside(), outside()])
        case "sparse_tensor":
            attribute.sparse_tensor.CopyFrom(sparse(outside()))
        case "sparse_tensors":
            attribute.sparse_tensors.extend([sparse(inside()), sparse(outside())])
    return attribute


def branch(node: onnx.NodeProto) -> onnx.ModelProto:
    """A model with a node in a branch of a branch."""
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [COLUMNS])
    inner = helper.make_graph([node], "inner", [], [w])
    choice = helper.make_node("If", ["b"], ["w"], then_branch=inner, else_branch=inner)
    outer = helper.make_graph([choice], "outer", [], [w])
    condition = numpy_helper.from_array(np.array(True), "b")
    again = helper.make_node("If", ["b"], ["w"], then_branch=outer, else_branch=outer)
    return added(again, weights=[condition])


def in_function(node: onnx.NodeProto) -> onnx.ModelProto:
    model = added(helper.make_node("Own", [], ["w"], domain="own"))
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Own", [], ["w"], [node], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def by_sparse_initializer() -> onnx.ModelProto:
    model = added()
    model.graph.sparse_initializer.append(sparse(outside()))
    return model


def by_indices() -> onnx.ModelProto:
    model = added()
    weights = sparse(inside())
    weights.indices.CopyFrom(outside("w-at"))
    model.graph.sparse_initializer.append(weights)
    return model


def by_function_default() -> onnx.ModelProto:
    model = in_function(constant(name="value", type=onnx.AttributeProto.TENSOR, t=inside()))
    model.functions[0].attribute_proto.append(hidden("t"))
    return model


def by_training(part: str) -> onnx.ModelProto:
    model = added(weights=[inside()])
    info = model.training_info.add()
    getattr(info, part).initializer.append(outside("g"))
    return model


def by_address() -> onnx.ModelProto:
    """A place in the process's own memory, as ONNX Runtime writes it."""
    return added(weights=[outside(file="*/_ORT_MEM_ADDR_/*")])


def by_entry_alone() -> onnx.ModelProto:
    """A file that is named, though the tensor says that its data is inside."""
    weights = inside()
    weights.external_data.add(key="location", value=NAME)
    return added(weights=[weights])


def in_another_attribute(kind: str) -> onnx.ModelProto:
    model = added(weights=[inside()])
    model.graph.node[0].attribute.append(hidden(kind))
    return model


SPARSE: dict[str, Any] = {"name": "sparse_value", "type": onnx.AttributeProto.SPARSE_TENSOR}
DENSE: dict[str, Any] = {"name": "value", "type": onnx.AttributeProto.TENSOR}
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "initializer": (lambda: added(weights=[outside()]), "'w' at graph.initializer[0]"),
    "sparse initializer": (
        by_sparse_initializer,
        "'w' at graph.sparse_initializer[0].values",
    ),
    "indices": (by_indices, "'w-at' at graph.sparse_initializer[0].indices"),
    "attribute": (
        lambda: added(constant(**DENSE, t=outside())),
        "'w' at graph.node[0].attribute[0].t",
    ),
    "sparse attribute": (
        lambda: added(constant(**SPARSE, sparse_tensor=sparse(outside()))),
        "'w' at graph.node[0].attribute[0].sparse_tensor.values",
    ),
    "tensors": (lambda: in_another_attribute("tensors"), "attribute[0].tensors[1]"),
    "sparse tensors": (
        lambda: in_another_attribute("sparse_tensors"),
        "'w' at graph.node[0].attribute[0].sparse_tensors[1].values",
    ),
    "branch": (
        lambda: branch(constant(**SPARSE, sparse_tensor=sparse(outside()))),
        "attribute[0].g.node[0].attribute[0].g.node[0].attribute[0].sparse_tensor.values",
    ),
    "function": (
        lambda: in_function(constant(**SPARSE, sparse_tensor=sparse(outside()))),
        "'w' at functions[0].node[0].attribute[0].sparse_tensor.values",
    ),
    "function's default": (by_function_default, "'w' at functions[0].attribute_proto[0].t"),
    "training": (
        lambda: by_training("algorithm"),
        "'g' at training_info[0].algorithm.initializer[0]",
    ),
    "training's begin": (
        lambda: by_training("initialization"),
        "'g' at training_info[0].initialization.initializer[0]",
    ),
    "address": (by_address, "'w' at graph.initializer[0]"),
    "entry alone": (by_entry_alone, "'w' at graph.initializer[0]"),
    "up and down": (
        lambda: added(
            constant(**SPARSE, sparse_tensor=sparse(outside(file="../nearby/secret.txt")))
        ),
        "'w' at graph.node[0].attribute[0].sparse_tensor.values lies in '../nearby/secret.txt'",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a secret, and a file beside it that serves whatever model."""
    here = tmp_path / "nearby"
    here.mkdir()
    (here / NAME).write_bytes(SECRET)
    monkeypatch.chdir(here)
    file = here / "served.yaml"
    file.write_text("tasks: {t: {variants: {v: {model: v.onnx, accuracy: 0.9, size: 1 MB}}}}\n")
    return here


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) in (1, 2)
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.parametrize("name", MODELS)
def test_check_refuses_it(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    make, place = MODELS[name]
    (folder / "v.onnx").write_bytes(make().SerializeToString())
    text = said(capsys, "check", "served.yaml")
    (line,) = [one for one in text.splitlines() if "v.onnx" in one]
    assert "the model keeps weights in other files: tensor " in line
    assert place in line
    assert line.endswith("; export it with its weights inside")


@pytest.mark.parametrize("name", ["sparse initializer", "sparse attribute", "branch", "function"])
def test_serve_ends_with_the_sentence(folder: Path, name: str) -> None:
    (folder / "v.onnx").write_bytes(MODELS[name][0]().SerializeToString())
    command = [sys.executable, "-m", "inferway", "serve", "served.yaml"]
    command += ["--http-port", "0", "--admin-port", "0"]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "keeps weights in other files: tensor 'w'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_apply_refuses_it(start: Any, site_of: Any, folder: Path) -> None:
    running = start(site_of(), allow_apply=True, apply_from=[folder])
    model = folder / "v.onnx"
    model.write_bytes(by_sparse_initializer().SerializeToString())
    content = f"tasks: {{t: {{variants: {{v: {{model: 'file://{model}', accuracy: 0.9}}}}}}}}"
    body = running.post({"content": content}, "Content-Type: application/json\r\n", "/apply")
    answer = running.ask(body.replace(b"Host: test", b"Host: localhost"), admin=True)
    assert answer.status == 400
    # Who applies is told which variant; what its file holds is for the server's own log.
    assert "variants.v.model: v.onnx is not what belongs here" in answer.json["error"]


def test_the_same_with_its_weights_inside_is_served(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = branch(constant(**SPARSE, sparse_tensor=sparse(inside())))
    model.graph.sparse_initializer.append(sparse(inside("more")))
    (folder / "v.onnx").write_bytes(model.SerializeToString())
    assert main(["check", "served.yaml"]) == 0
    runtime = inferway.runtime.OnnxRuntime(folder / "v.onnx")
    (y,) = runtime.run({"x": np.ones((1, COLUMNS), np.float32)}).values()
    assert y.tolist() == [[1.0] * COLUMNS]
    runtime.close()


def test_a_model_is_no_file_of_the_runtimes_own_format_at_once(folder: Path) -> None:
    model = added(weights=[inside()])
    model.producer_name = "ORTM and so on"
    content = model.SerializeToString()
    assert content[4:8] == b"ORTM"
    (folder / "v.onnx").write_bytes(content)
    runtime = inferway.runtime.OnnxRuntime(folder / "v.onnx")
    assert runtime.run({"x": np.ones((1, COLUMNS), np.float32)})["y"].sum() == COLUMNS
    runtime.close()


def test_a_model_sets_no_options_and_names_no_compiled_parts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = added(weights=[inside()])
    options = '{"session_options": {"enable_profiling": 1}}'
    setting.metadata_props.add(key="ort_config", value=options)
    compiled = added(
        helper.make_node(
            "EPContext", ["x"], ["z"], domain="com.microsoft", embed_mode=0, ep_cache_context=NAME
        ),
        weights=[inside()],
    )
    compiled.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for model, part in ((setting, "sets options of ONNX Runtime"), (compiled, "(EPContext)")):
        (folder / "v.onnx").write_bytes(model.SerializeToString())
        assert part in said(capsys, "check", "served.yaml")


def test_fields_that_the_schema_does_not_know_are_not_handed_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = added(weights=[inside()]).SerializeToString()
    unknown = bytes([0xFA, 0x7F, 3]) + b"abc"  # field 2047, three bytes
    (folder / "v.onnx").write_bytes(content + unknown)
    assert "has fields that the installed onnx" in said(capsys, "check", "served.yaml")
    # The same numbers, written one by one and not packed, are the same model.
    name = b"\x0a\x01q"  # producer_name comes twice: the last one counts
    (folder / "v.onnx").write_bytes(b"\x12\x01p" + content + b"\x12" + name[1:])
    assert main(["check", "served.yaml"]) == 0


def test_nothing_else_loads_models() -> None:
    package = Path(inferway.__file__).parent
    loading = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "InferenceSession"
    }
    assert loading == {"runtime/artifact.py", "runtime/providers.py"}
