"""``inferway train``."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from burst import FILE

import inferway
from inferway.cli import main
from inferway.deployment.overhead import overhead_key, times_file
from inferway.dispatch.service_times import remember_overhead
from inferway.learning import deployed
from inferway.learning.deployed import differences
from inferway.learning.settings import Settings, settings_of

SMALL = ["--slots", "2e3", "--set", "slots_per_update=1000", "--set", "sites=10"]
SMALL += ["--set", "hidden=(8, 8)", "--set", "epochs=1"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WAIT_POLICY", "NUM_THREADS"):
        monkeypatch.setenv(f"OMP_{name}", "")
    for name in ("OPENBLAS", "MKL"):
        monkeypatch.setenv(f"{name}_NUM_THREADS", "")
    monkeypatch.chdir(tmp_path)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert main(["train", *arguments]) == code
    return capsys.readouterr().err


def test_trains_and_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    from inferway.scheduling.neural_policy import read

    assert main(["train", str(FILE), *SMALL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["tasks"]["recognise"]
    assert (said["slots"], said["finished"], len(said["phases"])) == (2_000, True, 2)
    about = read(Path(said["policy"])).about
    assert said["policy"] == "out/train/rl-po/policy.npz"
    assert about.command.startswith(f"inferway train {FILE} --policy rl-po --slots 2000 --seed ")
    assert about.command.endswith("--set epochs=1")
    # The same command finds nothing left to do, and says the same.
    assert main(["train", str(FILE), *SMALL]) == 0
    words = capsys.readouterr().out
    assert f"goodput {said['goodput']:.2%}" in words
    assert "slots per CPU second" not in words


def test_ctrl_c_in_the_evaluation_says_where_the_policy_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    from inferway.learning import training
    from inferway.scheduling.neural_policy import read

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training, "evaluate", interrupted)
        assert main(["train", str(FILE), *SMALL, "--json"]) == 130
    told = capsys.readouterr()
    said = json.loads(told.out)["tasks"]["recognise"]
    assert (said["finished"], said["evaluated_slots"], said["goodput"]) == (True, 0, None)
    assert said["phases"] == []
    assert told.err.splitlines()[-1] == (
        "inferway: interrupted after 2,000 slots: the policy is out/train/rl-po/policy.npz, and it "
        "was not evaluated; the same command goes on"
    )
    assert read(Path(said["policy"])).about.slots == 2_000
    assert main(["train", str(FILE), *SMALL]) == 0
    assert "goodput" in capsys.readouterr().out


def test_an_overhead_that_a_server_measured_is_said_where_cores_are_shared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "cores.yaml"
    cores = FILE.read_text().replace("buffer: 15}", "buffer: 15, devices: {cpu: {cores: 2}}}")
    file.write_text(cores)
    remember_overhead(times_file(), overhead_key(inferway.load(file).tasks), 250e-6, 250e-6)
    short = ["--slots", "100", "--set", "slots_per_update=100", *SMALL[4:]]
    for number, (written, notes) in enumerate({cores: 1, FILE.read_text(): 0}.items()):
        file.write_text(written)
        assert main(["train", str(file), *short, "--out", str(tmp_path / str(number))]) == 0
        said = capsys.readouterr().err
        assert said.count("inferway: the overhead of nodes.edge is recalled: 250 us") == notes


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("slots", "abc", "a whole number"),
        ("clip", True, "a number"),
        ("kl", False, "a number or None"),
        ("apart", 2, "True or False"),
        ("hidden", [True, 8], "two whole numbers, such as (90, 60)"),
        ("potential", "much", "'none', 'queues' or 'outcomes'"),
    ],
)
def test_a_setting_of_another_kind_is_told_which_it_takes(
    name: str, value: object, wanted: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name} is {wanted}, not {value!r}")):
        settings_of(Settings(), {name: value})


def test_what_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    wrong: dict[str, list[str]] = {
        "expected NAME=VALUE, NAME one of actor_gain": ["--set", "sgima=1"],
        "sigma is above 0": ["--set", "sigma=-1"],
        "unknown task 'recognize'": ["--task", "recognize"],
        "no variant has a `batch`": ["--policy", "rl-po-b"],
        "is not a whole number": ["--slots", "0.5"],
        "--set: sigma is a number, not 'wide'": ["--set", "sigma=wide"],
        "potential is 'none', 'queues' or 'outcomes', not 'much'": ["--set", "potential=much"],
        "scale is True or False, not 'rather'": ["--set", "scale=rather"],
        "hidden is two numbers of units": ["--set", "hidden=(8,)"],
        "hidden is two whole numbers, such as (90, 60), not 8": ["--set", "hidden=8"],
        "--outages 1h: expected EVERY/FOR": ["--outages", "1h"],
        "--outages 1h/0s: expected EVERY/FOR": ["--outages", "1h/0s"],
        "--outages =1h/60s: expected EVERY/FOR": ["--outages", "=1h/60s"],
        "--outages =file: expected EVERY/FOR": ["--outages", "=file"],
        "--outages light=2h/1s: there is another one of light": [
            *("--outages", "light=1h/1s", "--outages", "light=2h/1s")
        ],
        "--accuracy =0.5: expected VARIANT=VALUE": ["--accuracy", "=0.5"],
        "--accuracy light=0.6: there is another one of light": [
            *("--accuracy", "light=0.5", "--accuracy", "light=0.6")
        ],
        "several are one for each variant": ["--outages", "1h/1s", "--outages", "light=1h/1s"],
        "outages of hevy; the variants are ": ["--outages", "hevy=1h/60s"],
        "the node has no `failures` to train with": ["--outages", "file"],
    }
    for said, options in wrong.items():
        assert said in complaint(capsys, str(FILE), *options, code=2)


def test_without_pytorch_one_sentence_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def missing(name: str) -> Any:
        return None if name == "torch" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert complaint(capsys, str(FILE), code=1) == (
        "inferway: training needs torch, which is in the extra `learn`: "
        "pip install 'inferway[learn]' --extra-index-url "
        "https://download.pytorch.org/whl/cpu (without CUDA)\n"
    )


def test_it_warns_where_what_is_deployed_is_not_what_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    assert main(["train", str(FILE), *SMALL, "--json"]) == 0
    output = capsys.readouterr()
    (late,) = json.loads(output.out)["tasks"]["recognise"]["warnings"]
    assert "servers predicted to be late are left out before the policy's choice" in late
    assert f"inferway: warning: {late}\n" in output.err
    from inferway.scheduling.neural_policy import read

    shielded = ["--late", "drop", "--out", str(tmp_path / "shielded")]
    assert main(["train", str(FILE), *SMALL, *shielded, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["recognise"]["warnings"] == []
    assert " --late drop" in read(tmp_path / "shielded" / "policy.npz").about.command
    begun = ["--start", "out/train/rl-po/policy.npz", "--out", str(tmp_path / "other")]
    assert main(["train", str(changed(tmp_path)), *SMALL, *begun, "--json"]) == 0
    (deadline,) = json.loads(capsys.readouterr().out)["tasks"]["recognise"]["warnings"]
    assert deadline.endswith(
        "was trained for a deadline of 300 ms, and this training is for 250 ms"
    )


def test_a_policy_for_any_part_of_the_instances(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")
    from inferway.scheduling.neural_policy import read

    file = tmp_path / "failing.yaml"
    text = FILE.read_text()
    entry = "failures: {recognise/heavy: {every: 30 min, for: 5 min}}"
    assert "late: " not in text
    file.write_text(text.replace("buffer: 15", f"buffer: 15, late: serve, {entry}"))
    assert main(["train", str(file), *SMALL, "--json"]) == 0
    (left_out,) = json.loads(capsys.readouterr().out)["tasks"]["recognise"]["warnings"]
    assert "Train with `--outages file` for any part of them" in left_out
    # What is another training's is not gone on with.
    assert "is of another training: outages" in complaint(
        capsys, str(file), *SMALL, "--outages", "file", code=1
    )
    said = {}
    for name, written in {"file": "file", "all": "20min/60 s", "one": "heavy=1h/1min"}.items():
        options = ["--outages", written, "--out", str(tmp_path / name), "--json"]
        assert main(["train", str(file), *SMALL, *options]) == 0
        assert json.loads(capsys.readouterr().out)["tasks"]["recognise"]["warnings"] == []
        about = read(tmp_path / name / "policy.npz").about
        assert f" --outages '{written}'" in about.command
        said[name] = about.outages
    never = (float("inf"), float("inf"))
    assert said == {
        "file": (never, (1800.0, 300.0)),
        "all": ((1200.0, 60.0), (1200.0, 60.0)),
        "one": (never, (3600.0, 60.0)),
    }


def changed(folder: Path) -> Path:
    """The file with another deadline, where late requests are served as in training."""
    text = FILE.read_text().replace("deadline: 300 ms", "deadline: 250 ms")
    file = folder / "changed.yaml"
    file.write_text(text.replace("buffer: 15}", "buffer: 15, late: serve}"))
    return file


def test_what_differs_is_said_in_sentences(tmp_path: Path) -> None:
    from types import SimpleNamespace

    about = SimpleNamespace(deadline_s=0.3, slot_s=1.0, buffer=15, variants=("light",), counts=(4,))
    about.parts = (about,)
    start = SimpleNamespace(path="policy.npz", about=about)

    def said(file: Path, begun: Any = None, late: Literal["drop", "serve"] = "serve") -> list[str]:
        deployment = inferway.load(file)
        control = deployed.control_of(deployment, "recognise", "rl-po", late=late)
        return differences(deployment, control, "recognise", "rl-po", start=begun)

    (late,) = said(FILE)
    assert late.startswith("the node has `late: drop`: as deployed, servers predicted to be late")
    assert said(FILE, late="drop") == []
    (served,) = said(changed(tmp_path), late="drop")
    assert served.startswith("the node has `late: serve`: as deployed, all servers are there")
    assert said(changed(tmp_path)) == []
    assert said(changed(tmp_path), start) == [
        "policy.npz was trained for a deadline of 300 ms, and this training is for 250 ms",
        "policy.npz was trained for servers 4 light, and this training is for 2 light, 2 heavy",
    ]
