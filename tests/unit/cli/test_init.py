"""`inferway init`, and folders of models where other commands take a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import inferway
from inferway.catalog import resolve
from inferway.cli.app import main


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tasks, of two variants and of one, in the working directory."""
    monkeypatch.chdir(tmp_path)
    places = {"digits/tiny": "tiny", "digits/small": "small", "again/tiny/1": "tiny"}
    for place, name in places.items():
        folder = tmp_path / "models" / place
        folder.mkdir(parents=True)
        shutil.copy(resolve(f"zoo://digits/{name}")[0], folder / "model.onnx")
    return Path("models")


def test_the_file_goes_to_the_screen(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "notes.txt").touch()
    assert main(["init", "models"]) == 0
    told = capsys.readouterr()
    assert "      tiny:\n        model: models/digits/tiny/model.onnx\n" in told.out
    assert (
        "# `inferway profile deployment.yaml --data TEST --write` measures accuracies" in told.out
    )
    assert told.err == (
        "inferway: left alone, as it is no MODEL/VERSION/model.onnx: models/notes.txt\n"
    )
    Path("deployment.yaml").write_text(told.out)
    assert list(inferway.load("deployment.yaml").tasks) == ["again", "digits"]


def test_the_file_is_written_and_not_written_over(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["init", "models", "--out", "sub/d.yaml"]
    assert main(command) == 0
    assert capsys.readouterr().out == (
        "sub/d.yaml: 2 tasks, 3 variants; next: inferway check sub/d.yaml\n"
    )
    text = Path("sub/d.yaml").read_text()
    assert "model: ../models/digits/tiny/model.onnx" in text
    assert "into sub/d.yaml.profile.json" in text
    assert main(command) == 2
    assert capsys.readouterr().err == (
        "inferway: --out sub/d.yaml is there already; --force writes over it\n"
    )
    Path("sub/d.yaml").write_text("mine")
    assert main([*command, "--force"]) == 0
    assert Path("sub/d.yaml").read_text() == text


def test_json_says_what_was_found(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tasks"] == {"again": ["tiny"], "digits": ["small", "tiny"]}
    assert (told["schema"], told["file"]) == (1, None)
    assert told["content"].startswith("# Written by `inferway init models`.")
    assert main(["init", "models", "--json", "--out", "d.yaml"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], "content" in told) == ("d.yaml", False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (
            ["models/digits/tiny/model.onnx"],
            "models/digits/tiny/model.onnx is a file: name the folder around "
            "MODEL/VERSION/model.onnx",
        ),
        (["models", "--out", "models"], "--out models is no file"),
        (["models", "--out", "models", "--force"], "--out models is no file"),
        (
            ["models", "--out", "models/digits/tiny/model.onnx/d.yaml"],
            "--out models/digits/tiny/model.onnx/d.yaml cannot be written: File exists",
        ),
        (
            ["models/digits"],
            "models/digits: models/digits/tiny/model.onnx has no version: put it into a folder of "
            "its own, as models/digits/tiny/1/model.onnx",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    models: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    shutil.rmtree("models/digits/small")
    assert main(["init", *arguments]) != 0
    assert capsys.readouterr().err == f"inferway: {sentence}\n"


def test_commands_take_the_folder(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "models"]) == 0
    out = capsys.readouterr().out
    assert "models: warning: tasks.again: tiny has no `accuracy`, which" in out
    assert "models: no errors, " in out
    assert main(["bound", "models", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["tasks"]) == ["again", "digits"]
    assert main(["simulate", "models"]) != 0
    assert "no `workload`" in capsys.readouterr().err
