"""Variants that are classes of the user's own, as files say them, and as they are measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.deployment import DeploymentError, OwnClass, Python, check, load, measured, runtime_of
from inferway.deployment.warnings import check_classes
from inferway.runtime import ArtifactError, PythonRuntime

Write = Callable[..., Path]
CODE = """\
import numpy as np
from math import *


class Model:
    inputs = {"x": ("FP32", [-1, 4])}
    outputs = {"y": ("FP32", [-1, 3])}

    def predict(self, inputs):
        return {"y": inputs["x"][:, :3]}


class Mute:
    def predict(self, inputs):
        return {"y": inputs["x"][:, :3]}


class Wrong(Model):
    outputs = {"y": ("FP32", [-1, 5])}


class Broken(Model):
    def predict(self, inputs):
        raise ValueError("on zeros")
"""


@pytest.fixture(autouse=True)
def mine(write: Write) -> Path:
    return write(CODE.replace("from math import *\n", ""), "mine.py")


def task(python: str, more: str = "service: {mean: 9 ms}") -> str:
    """A task of one Python variant."""
    return f"tasks: {{t: {{variants: {{own: {{accuracy: 0.9, python: {python}, {more}}}}}}}}}\n"


def test_a_class_is_enough_and_more_can_be_said(write: Write, mine: Path) -> None:
    deployment = load(write(task('"./mine.py:Model"')))
    own = deployment.tasks["t"].variants["own"]
    target = OwnClass(mine, "Model", mine.parent)
    assert own.python == Python(target)
    assert own.runnable
    assert deployment.unserved() == []
    assert [one.kind for one in check(deployment)] == []
    write("weights", "w.npz")
    more = (
        "{class: mine.py:Mute, timeout: 10 s, environment: {OMP_NUM_THREADS: 1, A: b}, "
        "memory: 2 GiB, files: [w.npz]}"
    )
    python = load(write(task(more))).tasks["t"].variants["own"].python
    assert python == Python(
        OwnClass(mine, "Mute", mine.parent),
        10.0,
        {"OMP_NUM_THREADS": "1", "A": "b"},
        2 * 2**30,
        (mine.parent / "w.npz",),
    )


def test_its_digest_covers_its_files(write: Write, mine: Path) -> None:
    weights = write("1", "w.npz")
    section = "{class: mine.py:Model, files: [w.npz]}"

    def digest() -> str:
        python = load(write(task(section))).tasks["t"].variants["own"].python
        assert python is not None
        return python.digest

    first = digest()
    assert first.startswith("sha256:")
    assert digest() == first
    weights.write_text("2")
    second = digest()
    mine.write_text(CODE + "\n")
    assert len({first, second, digest()}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (task("7"), "python: expected keys such as class, timeout, environment, got 7"),
        (task("mine.py"), "python: expected FILE.py:CLASS, such as ./mine.py:Model, got 'mine.py'"),
        (task('"mine.py:a b"'), "python: expected FILE.py:CLASS"),
        (task('"no.py:Model"'), "python: no such file: "),
        (
            task('"mine.py:Modle"'),
            "python: mine.py has no Modle; it has Model, Mute, Wrong, Broken",
        ),
        (task("{}"), "python.class: is needed and not given"),
        (
            task("{class: 3}"),
            "python.class: expected FILE.py:CLASS, such as ./mine.py:Model, got 3",
        ),
        (task("{class: mine.py:Model, timout: 3 s}"), "unknown key; did you mean timeout?"),
        (task("{class: mine.py:Model, timeout: 0 s}"), "a time must be above 0"),
        (task("{class: mine.py:Model, memory: 3}"), "3 has no unit; write a size such as"),
        (task("{class: mine.py:Model, files: [no.npz]}"), "python.files[0]: no such file:"),
        (
            task("{class: mine.py:Model, files: w.npz}"),
            "python.files: expected a list, got 'w.npz'",
        ),
        (task("{class: mine.py:Model, signature: 3}"), "signature: unknown key"),
        (
            task("{class: mine.py:Model, environment: {A=B: c}}"),
            "expected the name of an environment variable, such as OMP_NUM_THREADS, got 'A=B'",
        ),
        (task("{class: mine.py:Model, environment: {A: [c]}}"), "A: expected a word, got a list"),
        (task("{class: mine.py:Model, environment: {A: true}}"), "A: expected a word, got true"),
        (
            task('"mine.py:Model"', "model: a.onnx"),
            "python: a variant has one of `model`, `remote` and `python`",
        ),
        (
            task('"mine.py:Model"', 'remote: "http://a/v2/models/m"'),
            "python: a variant has one of `model`, `remote` and `python`",
        ),
        (
            task('"mine.py:Model"') + "nodes: {here: {budget: 1 GiB, instances: {t/own: 1}}}\n",
            "tasks.t.variants.own: needs `size`, as node here has a budget and runs it",
        ),
    ],
)
def test_what_is_wrong_is_said(write: Write, text: str, said: str) -> None:
    with pytest.raises(DeploymentError) as error:
        load(write(text))
    (line,) = str(error.value).splitlines()
    assert said in line


def test_a_file_that_is_not_python_is_said_and_not_run(write: Write, mine: Path) -> None:
    mine.write_text("x = 3\ndef f(:\n")
    with pytest.raises(DeploymentError, match=r"mine\.py is not Python in line 2"):
        load(write(task('"mine.py:Model"')))
    mine.write_text("raise SystemExit\nfrom somewhere import Model\n")
    load(write(task('"mine.py:Model"')))


def test_a_runtime_is_made_of_it(write: Write) -> None:
    runtime = runtime_of(load(write(task('"mine.py:Model"'))).tasks["t"].variants["own"])
    assert isinstance(runtime, PythonRuntime)
    assert str(runtime.signature) == "(x: FP32[-1, 4]) -> (y: FP32[-1, 3])"
    runtime.close()
    runtime.wait()
    mute = load(write(task('"mine.py:Mute"'))).tasks["t"].variants["own"]
    with pytest.raises(ArtifactError, match="nothing else says what the task takes"):
        runtime_of(mute)


def test_its_service_time_is_measured(write: Write) -> None:
    deployment = load(write(task('"mine.py:Model"', "price: 1")))
    assert [one.kind for one in check(deployment)] == ["unmeasured"]
    own = measured(deployment, seconds=0.001).tasks["t"].variants["own"]
    assert 1e-6 < own.service_on("any").mean_s < 1.0
    broken = load(write(task('"mine.py:Broken"', "price: 1")))
    with pytest.raises(ValueError, match=r"own has no `service`, and its class cannot be .*zeros"):
        measured(broken, seconds=0.001)


def test_one_that_says_no_signature_has_that_of_the_others(
    write: Write, model: Callable[..., Path]
) -> None:
    model("near.onnx")
    of_file = {
        "own": {"python": "mine.py:Mute", "accuracy": 0.8},
        "near": {"model": "near.onnx", "accuracy": 0.9},
    }
    of_class = {
        "own": {"python": "mine.py:Mute", "accuracy": 0.8},
        "other": {"python": "mine.py:Model", "accuracy": 0.9},
    }
    for variants in (of_file, of_class):
        text = f"tasks: {{t: {{variants: {variants}}}}}\n".replace("'", "")
        deployment = load(write(text))
        assert check_classes(deployment) == []
        times = measured(deployment, seconds=0.001).tasks["t"].variants
        assert all(one.service for one in times.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Wrong", "differs from (x: FP32[-1, 4]) -> (y: FP32[-1, 3]) of the task's other variants"),
        ("Broken", "predict raised ValueError: on zeros"),
    ],
)
def test_check_makes_each_class(
    write: Write, model: Callable[..., Path], name: str, said: str
) -> None:
    model("near.onnx")
    near = "near: {model: near.onnx, accuracy: 0.8, service: {mean: 1 ms}}"
    text = task(f'"mine.py:{name}"').replace("{own:", f"{{{near}, own:")
    (found,) = check_classes(load(write(text)))
    assert (found.kind, found.field) == ("python-unfit", "tasks.t.variants.own.python")
    assert said in found.message


def test_check_says_that_nothing_says_the_signature(write: Write) -> None:
    (found,) = check_classes(load(write(task('"mine.py:Mute"'))))
    assert (found.kind, found.field) == ("python-unfit", "tasks.t.variants")
    assert "has no `inputs` and `outputs`" in found.message


def test_its_processes_share_the_cores(write: Write) -> None:
    text = task('"mine.py:Model"') + "nodes: {here: {instances: {t/own: 4096}}}\n"
    assert [one.kind for one in check(load(write(text)))] == ["oversubscribed"]


@pytest.mark.parametrize(
    "content",
    [
        "if True:\n    class Model: ...\n",
        "try:\n    import torch\nexcept ImportError:\n    class Model: ...\n",
        "class Own: ...\nModel: type = Own\n",
    ],
)
def test_a_class_may_be_bound_in_many_ways(write: Write, mine: Path, content: str) -> None:
    mine.write_text(content)
    load(write(task('"mine.py:Model"')))


def test_a_null_byte_has_no_line(write: Write, mine: Path) -> None:
    mine.write_bytes(b"class Model:\n    \0\n")
    with pytest.raises(DeploymentError, match=r"mine\.py is not Python$"):
        load(write(task('"mine.py:Model"')))
