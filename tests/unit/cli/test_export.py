"""The command that exports models: its YAML, its document, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import inferway
from inferway.cli import main
from inferway.runtime import inspect

TRAIN = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

print("training")
rows, kinds = load_iris(return_X_y=True)
model = LogisticRegression(max_iter=500).fit(rows, kinds)
"""
LIMIT_S = 120.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_printed_belongs_into_a_deployment_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "train.py:model", "--out", "small.onnx", "--variant", "no"]) == 0
    said = capsys.readouterr()
    assert said.err == "training\n"
    digest = YAML(typ="safe").load(said.out)["variants"]["no"]["digest"]
    lines = said.out.splitlines()
    assert lines[0].startswith("# LogisticRegression of scikit-learn, opset 21, ")
    assert lines[1].startswith("# compared on 256 rows made up, in batches of 1, 2, 253: ")
    assert lines[2:] == [
        "# input input: FP32[-1, 4]",
        "# output label: INT64[-1]",
        "# output probabilities: FP32[-1, 3]",
        "variants:",
        '  "no":',
        "    model: small.onnx",
        f"    digest: {digest}",
    ]
    task = "tasks:\n  iris:\n"
    variants = "".join(f"    {line}\n" for line in lines if not line.startswith("#"))
    (folder / "iris.yaml").write_text(f"{task}{variants}        accuracy: 0.9\n")
    variant = inferway.load("iris.yaml").tasks["iris"].variants["no"]
    assert variant.model is not None
    assert variant.model.digest == digest


def test_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "train.py:model", "--out", "small.onnx", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert inspect(Path("small.onnx"), digest=document["digest"])
    assert document["size_bytes"] == Path("small.onnx").stat().st_size
    assert document["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 4]}]
    assert [one["name"] for one in document["outputs"]] == ["label", "probabilities"]
    assert document["agreement"]["rows"] == 256
    assert document["agreement"]["batches"] == [1, 2, 253]
    assert document["agreement"]["differing"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["model.pkl", "--out", "m.onnx"], 2, "model.pkl: a pickle, which runs code of whoever"),
        (["train.py:model", "--out", "."], 2, "--out . is a folder; name the file"),
        (["train.py:model", "--out", "train.py/m.onnx"], 2, "nothing can be written to --out"),
        (
            ["train.py:model", "--out", "m.onnx", "--input", "x"],
            2,
            "'x' is not an input such as x=FP32[64]",
        ),
        (["train.py:model", "--out", "m.onnx", "--data", "t.npz"], 2, "t.npz: cannot read the"),
        (
            ["train.py:model", "--out", "m.onnx", "--tolerance", "0"],
            1,
            "the exported model does not answer as its source: ",
        ),
    ],
)
def test_failures_are_one_sentence_and_write_nothing(
    arguments: list[str],
    code: int,
    sentence: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.removeprefix("training\n").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("inferway: ")
    assert sentence in lines[0]
    assert [one.name for one in folder.iterdir() if one.is_file()] == ["train.py"]


def test_ctrl_c_leaves_nothing_behind(folder: Path) -> None:
    (folder / "long.py").write_text(
        "import threading\nprint('begun', flush=True)\nthreading.Event().wait()\n"
    )
    (folder / "scratch").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "inferway", "export", "long.py:model", "--out", "out/m.onnx"],
        env=os.environ | {"TMPDIR": str(folder / "scratch")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, "")
    assert list((folder / "out").iterdir()) == []
    assert list((folder / "scratch").iterdir()) == []
