"""Execution providers: those of the installed build are taken in order, others refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferway.runtime import ArtifactError, OnnxRuntime
from inferway.runtime.growth import growth_of
from inferway.runtime.providers import unavailable

PROCESSOR = ("CPUExecutionProvider", ())
AZURE = ("AzureExecutionProvider", ())
CUDA = ("CUDAExecutionProvider", ())
HERE = "AzureExecutionProvider, CPUExecutionProvider"

pytestmark = pytest.mark.skipif(
    ", ".join(onnxruntime.get_available_providers()) != HERE,
    reason="ONNX Runtime is another build than the tests' own",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_the_processor_alone_runs_what_states_nothing(path: Path) -> None:
    runtime = OnnxRuntime(path)
    assert runtime.providers == ()
    assert runtime._session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("stated", [(AZURE,), (AZURE, PROCESSOR), (PROCESSOR,)])
def test_stated_providers_answer_as_the_processor_does(path: Path, stated: Any) -> None:
    x = np.ones((4, 3), np.float32)
    runtime, plain = OnnxRuntime(path, providers=stated), OnnxRuntime(path)
    taken = [name for name, _ in stated]
    assert runtime._session.get_providers()[: len(taken)] == taken
    np.testing.assert_array_equal(runtime.run({"x": x})["y"], plain.run({"x": x})["y"])


def test_a_session_is_shared_by_those_of_the_same_providers_alone(path: Path) -> None:
    arena = ("CPUExecutionProvider", (("use_arena", "0"),))
    lists: list[Any] = [(), (AZURE,), (PROCESSOR,), (arena,), (AZURE, PROCESSOR)]
    made = [OnnxRuntime(path, providers=one) for one in lists]
    assert len({id(one._session) for one in made}) == len(lists)
    for one, providers in zip(made, lists, strict=True):
        assert OnnxRuntime(path, providers=providers)._session is one._session


def test_names_and_options_reach_the_session_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = onnxruntime.InferenceSession, []

    def session(*given: Any, **options: Any) -> Any:
        seen.append(options["providers"])
        return real(*given, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    arena = ("CPUExecutionProvider", (("use_arena", "0"), ("other", "1")))
    OnnxRuntime(path, providers=(AZURE, arena))
    assert seen == [
        [
            ("AzureExecutionProvider", {}),
            ("CPUExecutionProvider", {"use_arena": "0", "other": "1"}),
        ]
    ]


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        (CUDA, f"the installed ONNX Runtime has no CUDAExecutionProvider; it has {HERE}"),
        (
            ("XNNPACKExecutionProvider", ()),
            "ONNX Runtime knows no execution provider XNNPACKExecutionProvider; did you mean "
            "XnnpackExecutionProvider?",
        ),
        (
            ("?", ()),
            "ONNX Runtime knows no execution provider ?; there is "
            + ", ".join(onnxruntime.get_all_providers()),
        ),
    ],
)
def test_what_the_build_has_not_is_refused(path: Path, stated: Any, sentence: str) -> None:
    assert unavailable((PROCESSOR, stated)) == sentence
    with pytest.raises(ArtifactError) as caught:
        OnnxRuntime(path, providers=(stated, PROCESSOR))
    assert str(caught.value) == f"{path}: {sentence}"


# ONNX Runtime warns of what it has not, and goes on with the processor.
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_is_lost_on_the_way_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    claimed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: claimed)
    with pytest.raises(ArtifactError) as caught:
        OnnxRuntime(path, providers=(CUDA, PROCESSOR))
    assert str(caught.value) == (
        f"{path}: ONNX Runtime could not load CUDAExecutionProvider and would run the model on "
        "CPUExecutionProvider; see that its driver and libraries are there, or leave it out"
    )
    assert capfd.readouterr().out == ""


def test_memory_is_measured_on_the_same_providers(path: Path) -> None:
    assert growth_of(path, 4, 2**30, providers=(AZURE, PROCESSOR)).peaks
    with pytest.raises(ValueError, match="has no CUDAExecutionProvider"):
        growth_of(path, 4, 2**30, providers=(CUDA,))
