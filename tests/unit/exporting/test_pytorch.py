"""Modules of PyTorch become ONNX that answers as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.exporting import DisagreementError, ExportError, export
from inferway.runtime import OnnxRuntime, inspect

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `learn`, not in `test`")
nn = torch.nn


def mlp() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, left: Any, right: Any) -> Any:
        scores = self.left(left) + self.right(right)
        return {"probabilities": scores.softmax(-1), "label": scores.argmax(-1)}


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
        )

    def forward(self, image: Any) -> Any:
        return self.layers(image)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)

    def forward(self, ids: Any) -> Any:
        return self.words(ids).mean(1)


class Masked(nn.Module):
    """Takes two inputs that may be left out, of which the second one has a name of its own."""

    def forward(self, x: Any, mask: Any = None, scale: Any = None) -> Any:
        x = x if mask is None else x * mask
        return x if scale is None else x + 100 * scale


class Mixing(nn.Module):
    def forward(self, x: Any) -> Any:
        return x - x.mean(0)


class Branching(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1


class Fixed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.view(2, -1) + 1


class Total(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sum()


@pytest.mark.slow
def test_a_network_of_layers(out: Path, shapes_of: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model = mlp().train()
    exported = export(model, out, inputs=["x=FP32[6]"])
    assert inspect(out, digest=exported.digest) == exported.signature
    assert shapes_of(exported.signature.inputs) == {"x": "FP32[-1, 6]"}
    assert shapes_of(exported.signature.outputs) == {"output": "FP32[-1, 3]"}
    rows = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    with torch.no_grad():
        own = model.eval()(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(OnnxRuntime(out).run({"x": rows})["output"], own, atol=1e-5)
    assert b"test_pytorch" not in out.read_bytes()
    assert capfd.readouterr() == ("", "")
    assert export(model, out, inputs=["x=FP32[6]"]).digest == exported.digest


@pytest.mark.slow
def test_pictures_of_a_file_with_an_example(out: Path, tmp_path: Path, shapes_of: Any) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def model():\n"
        "    torch.manual_seed(1)\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())\n"
        "def example_inputs():\n"
        "    return torch.zeros(1, 1, 8, 8)\n"
    )
    exported = export(f"{tmp_path}/net.py:model", out)
    assert shapes_of(exported.signature.inputs) == {"input": "FP32[-1, 1, 8, 8]"}
    rows = np.random.default_rng(1).normal(size=(5, 1, 8, 8))
    np.savez(tmp_path / "test.npz", image=rows, labels=np.zeros(5, int))
    exported = export(Pictures(), out, inputs=["image=FP32[1,8,8]"], data=tmp_path / "test.npz")
    assert exported.agreement.rows == 5
    assert exported.agreement.batches == (1, 2)


@pytest.mark.slow
def test_two_inputs_and_two_outputs(out: Path, shapes_of: Any) -> None:
    exported = export(Two(), out, inputs=["right=FP32[2]", "left=FP32[4]"])
    assert list(shapes_of(exported.signature.inputs)) == ["left", "right"]
    outputs = {"probabilities": "FP32[-1, 3]", "label": "INT64[-1]"}
    assert shapes_of(exported.signature.outputs) == outputs
    exported = export(Two(), out, inputs=["a=FP32[4]", "b=FP32[2]"], outputs=["p", "kind"])
    assert list(shapes_of(exported.signature.inputs)) == ["a", "b"]
    assert list(shapes_of(exported.signature.outputs)) == ["p", "kind"]


@pytest.mark.slow
@pytest.mark.parametrize("shown", [False, True])
def test_inputs_go_where_their_names_say(out: Path, shown: bool) -> None:
    model, rows = Masked(), {"x": np.full((3, 2), 2, np.float32), "scale": np.ones((3, 2), "f")}
    if shown:  # in another order than the parameters'
        model.example_inputs = {"scale": torch.ones(2, 2), "x": torch.ones(2, 2)}
        export(model, out)
    else:
        export(model, out, inputs=["x=FP32[2]", "scale=FP32[2]"])
    assert (OnnxRuntime(out).run(rows)["output"] == 102).all()


def test_names_at_other_places_than_the_parameters_are_refused(out: Path) -> None:
    with pytest.raises(ExportError, match=r"inputs a, x are neither .* x, mask, scale"):
        export(Masked(), out, inputs=["a=FP32[2]", "x=FP32[2]"])


def test_a_module_stays_in_its_mode(out: Path) -> None:
    model = mlp().train()
    with pytest.raises(ExportError, match="has 1 outputs"):
        export(model, out, inputs=["x=FP32[6]"], outputs=["a", "b"])
    assert all(one.training for one in model.modules())


@pytest.mark.slow
def test_whole_numbers_are_those_of_the_example(out: Path, shapes_of: Any) -> None:
    model = Words()
    model.example_inputs = {"ids": torch.tensor([[0, 4, 2]])}
    exported = export(model, out)
    assert shapes_of(exported.signature.inputs) == {"ids": "INT64[-1, 3]"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        (Mixing(), DisagreementError, "rows made up differ (100.00%)"),
        (Branching(), ExportError, "PyTorch cannot export Branching of PyTorch: "),
        (Fixed(), ExportError, "output 'output' has a first axis of fixed length 2"),
        (Total(), ExportError, "output 'output' has no axes; the first axis must be the batch"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_served_is_not_written(
    model: Any, kind: type[Exception], sentence: str, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(kind) as caught:
        export(model, out, inputs=["x=FP32[4]"])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        ([], {}, "does not say what it takes: name its inputs with --input input=FP32[SHAPE], or"),
        (["x=FP32[7]"], {}, "fails on rows of x: FP32[-1, 7]: RuntimeError: mat1 and mat2 shapes"),
        (["x=BYTES[6]"], {}, "input x: BYTES[-1, 6]: PyTorch has no texts"),
        (["x=FP32[6]"], {"outputs": ["a", "b"]}, "has 1 outputs, and --output names 2"),
    ],
)
def test_wrong_inputs_are_one_sentence(
    inputs: list[str], options: dict[str, Any], sentence: str, out: Path
) -> None:
    with pytest.raises(ExportError) as caught:
        export(mlp(), out, inputs=inputs, **options)
    assert sentence in str(caught.value)


def test_an_example_without_a_batch_is_refused(out: Path) -> None:
    model = Words()
    model.example_inputs = torch.tensor(3)
    with pytest.raises(ExportError, match="has no tensor with a batch as its first axis for 'ids'"):
        export(model, out)
