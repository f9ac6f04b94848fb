"""``inferway profile``: what it prints, writes and refuses, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from inferway.catalog import zoo
from inferway.cli import main
from inferway.files import held


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tests = zoo.testset()
    np.savez(tmp_path / "test.npz", image=tests.images[:300], labels=tests.labels[:300])
    shutil.copy(zoo.model_path("digits", "tiny"), tmp_path / "tiny.onnx")
    path = tmp_path / "own.yaml"
    path.write_text(
        "tasks: {digits: {accuracy_target: 0.2, variants: "
        "{tiny: {model: tiny.onnx, batch: {sizes: [1]}}}}}"
    )
    return path


def arguments(file: Path, *more: str) -> list[str]:
    data = str(file.parent / "test.npz")
    return ["profile", str(file), "--data", data, "--rounds", "1", *more]


def test_it_prints_tables_and_writes_profile_and_figure(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.parent / "out"
    assert main(arguments(file, "--write", "--out", str(out))) == 0
    said = capsys.readouterr().out
    assert "Profile of own.yaml, digits" in said
    assert "By class on 150 of 300 rows, with 95 % intervals" in said
    assert f"written to {file}.profile.json" in said.replace("\n", "")
    assert (out / "profile.png").stat().st_size > 1000
    assert main(["check", str(file)]) == 0


def test_json_is_one_document_and_nothing_is_written_unasked(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(file, "--json", "--score", "top-2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["network"], found["written"]) == (1, None, None)
    task = found["tasks"]["digits"]
    assert task["data"]["score"] == "top-2"
    assert task["variants"]["tiny"]["machines"][found["machine"]]["alone"][0]["batch"] == 1
    assert not file.with_name("own.yaml.profile.json").exists()


def test_times_are_of_the_hardware_that_is_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices, copies = "{a: {cores: 1}, b: {cores: 1}}", "{digits/tiny: {a: 1, b: 1}}"
    text = f"\nnodes: {{here: {{devices: {devices}, instances: {copies}}}}}\n"
    file.write_text(file.read_text() + text)
    assert main(arguments(file, "--json", "--hardware", "b")) == 0
    found = json.loads(capsys.readouterr().out)
    tiny = found["tasks"]["digits"]["variants"]["tiny"]
    assert found["hardware"] == "b"
    assert tiny["machines"] == {}
    assert tiny["hardware"]["b"]["machine"] == found["machine"]
    assert tiny["hardware"]["b"]["alone"][0]["batch"] == 1


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (["--data", "none.npz"], 2, "none.npz: cannot read the data: No such file or directory"),
        (["--data", "own.yaml"], 2, "own.yaml: labeled data come as .npz, .csv or .parquet"),
        (["--score", "clas"], 1, "there is no score 'clas'; did you mean class?"),
        (["--hardware", "cqu"], 1, "of own.yaml has hardware cqu; did you mean cpu?"),
        (["--task", "digit"], 1, "there is no task digit; did you mean digits?"),
        (["--group", "person"], 2, "there is no array 'person', which is to group"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    file: Path, more: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(file, *more)) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("write", [True, False])
def test_ctrl_c_keeps_what_is_done_and_leaves_nothing_behind(file: Path, write: bool) -> None:
    kept = file.with_name("own.yaml.profile.json")
    words = arguments(file, "--rounds", "100000", *["--write"] * write)
    command = [sys.executable, "-m", "inferway", *words]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    if write:
        while not kept.exists() and time.monotonic() < deadline:
            assert running.poll() is None
            time.sleep(0.02)
    else:
        while not psutil.Process(running.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)  # until it measures memory
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=120)
    assert running.returncode == 130, said
    if write:
        assert "the same command goes on" in said
        known = json.loads(kept.read_text())["tasks"]["digits"]["variants"]["tiny"]
        assert known["accuracy"]["rows"] == 150
        assert not [one for one in file.parent.iterdir() if one.name.startswith(".")]
    else:
        assert "nothing was kept without --write" in said
        assert not kept.exists()


HANGING = """\
import time
import numpy as np


class Model:
    inputs = {"image": ("FP32", [-1, 1, 20, 20])}
    outputs = {"probabilities": ("FP32", [-1, 10])}
    calls = 0

    def predict(self, inputs):
        # The first calls are those by which it is seen how many rows go at once.
        self.calls += 1
        if self.calls > 7:
            open("asked", "w").close()
            time.sleep(1000)
        return {"probabilities": np.zeros((len(inputs["image"]), 10), np.float32)}
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_waits_for_no_call_of_the_users(file: Path, signals: int) -> None:
    image = zoo.testset().images.shape[1:]
    (file.parent / "mine.py").write_text(HANGING.replace("1, 20, 20", str([*image])[1:-1]))
    own = ", own: {python: {class: './mine.py:Model', timeout: 1000 s}}}}}"
    file.write_text(file.read_text().removesuffix("}}}") + own)
    kept = file.with_name("own.yaml.profile.json")
    command = [sys.executable, "-m", "inferway", *arguments(file, "--write")]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (file.parent / "asked").exists():
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.02)
    workers = psutil.Process(running.pid).children()
    for _ in range(signals):
        os.killpg(running.pid, signal.SIGINT)
    begun = time.monotonic()
    _, said = running.communicate(timeout=120)
    # A second when nothing else runs; the call would take a thousand.
    assert time.monotonic() - begun < 30
    # The second may come when all is done and the interpreter goes.
    assert running.returncode in (130, -signal.SIGINT)[:signals], said
    assert "what was measured is kept" in said
    assert "Traceback" not in said
    assert list(json.loads(kept.read_text())["tasks"]["digits"]["variants"]) == ["tiny"]
    assert workers
    assert not any(one.is_running() for one in workers)


def test_two_at_a_time_do_not_undo_each_other(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held(file):
        assert main(arguments(file, "--write")) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"{file}: another `profile --write` measures it now; wait for it to end" in said
        assert not file.with_name("own.yaml.profile.json").exists()
        # What writes nothing may go on beside.
        assert main(arguments(file)) == 0
    assert main(arguments(file, "--write")) == 0
