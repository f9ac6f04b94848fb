from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import DATA, of_zoo
from profiles import measured as measured_as

from inferway.catalog import zoo
from inferway.catalog.zoo import Profile
from inferway.deployment import DeploymentError, load, measured

Write = Callable[..., Path]
MakeModel = Callable[..., Path]


def task(**variants: str) -> str:
    lines = [f"      {name}: {body}\n" for name, body in variants.items()]
    return "tasks:\n  t:\n    variants:\n" + "".join(lines)


@pytest.mark.parametrize(
    "form", ["own.onnx", "./own.onnx", "file:own.onnx", "file://{here}/own.onnx"]
)
def test_a_model_of_the_users_own(write: Write, model: MakeModel, form: str) -> None:
    path = model("own.onnx")
    uri = form.replace("{here}", str(path.parent))
    variant = load(write(task(a=f"{{model: '{uri}', accuracy: 0.8}}"))).tasks["t"].variants["a"]
    assert variant.model is not None
    assert variant.model.path.resolve() == path.resolve()
    assert variant.model.uri == uri
    assert variant.size_bytes == path.stat().st_size
    assert variant.service == {}


def test_paths_may_hold_escaped_characters(write: Write, model: MakeModel) -> None:
    path = model("my own.onnx")
    uri = f"file://{path.parent}/my%20own.onnx"
    variant = load(write(task(a=f"{{model: '{uri}', accuracy: 0.8}}"))).tasks["t"].variants["a"]
    assert variant.model is not None
    assert variant.model.path == path


def test_a_digest_is_checked(write: Write, model: MakeModel) -> None:
    digest = "sha256:" + hashlib.sha256(model("own.onnx").read_bytes()).hexdigest()
    text = task(a=f"{{model: own.onnx, accuracy: 0.8, digest: '{digest}'}}")
    loaded = load(write(text)).tasks["t"].variants["a"].model
    assert loaded is not None
    assert loaded.digest == digest
    wrong = text.replace(digest, "sha256:" + "0" * 64)
    with pytest.raises(DeploymentError, match=r":4: tasks\.t\.variants\.a\.model: .*sha256:0000"):
        load(write(wrong))


def test_what_is_not_a_model_is_refused(write: Write) -> None:
    write("hello", "own.onnx")
    with pytest.raises(DeploymentError, match=r":4: tasks\.t\.variants\.a\.model: .*ONNX"):
        load(write(task(a="{model: own.onnx, accuracy: 0.8}")))


def test_variants_with_different_signatures_are_refused(write: Write, model: MakeModel) -> None:
    model("a.onnx")
    model("b.onnx", outputs=5)
    model("c.onnx")
    text = task(**{n: f"{{model: {n}.onnx, accuracy: 0.8}}" for n in "abc"})
    with pytest.raises(DeploymentError) as caught:
        load(write(text))
    (problem,) = caught.value.problems
    assert (problem.line, problem.field) == (5, "tasks.t.variants.b.model")
    assert problem.sentence.startswith("all variants of a task share one signature, but b is ")
    assert "[-1, 5]" in problem.sentence
    assert "[-1, 3]" in problem.sentence


@pytest.fixture
def one_zoo(model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """Put a zoo of one variant, zoo://small/tiny, in place of the shipped ones."""
    path = model("tiny.onnx")
    digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    profile = of_zoo("tiny", measured_as(digest, accuracy=0.7, mean_s=0.002, size_bytes=1234))
    known = zoo.Zoo("small", "shipped", {"tiny": profile}, DATA, folders=(path.parent,))
    monkeypatch.setattr(zoo, "load", lambda name="small": {"small": known}[name])
    return profile


def test_a_variant_of_the_zoo_takes_its_profile(write: Write, one_zoo: Profile) -> None:
    text = task(
        a="{model: zoo://small/tiny}", b="{model: zoo://small/tiny, accuracy: 0.8, size: 1 MB}"
    )
    variants = load(write(text)).tasks["t"].variants
    assert (variants["a"].accuracy, variants["a"].size_bytes) == (0.7, 1234)
    assert variants["a"].service_on("cpu").mean_s == 0.002
    assert not variants["a"].runs_on("gtx-980")
    assert variants["a"].model is not None
    assert variants["a"].model.digest == one_zoo.digest
    assert (variants["b"].accuracy, variants["b"].size_bytes) == (0.8, 10**6)


@pytest.mark.usefixtures("one_zoo")
def test_a_profiles_service_time_may_be_overridden_by_hardware(write: Write) -> None:
    text = task(
        a="{model: zoo://small/tiny, service: {gtx-980: {mean: 1 ms}}}",
        b="{model: zoo://small/tiny, service: {mean: 5 ms}}",
    )
    variants = load(write(text)).tasks["t"].variants
    assert variants["a"].service_on("cpu").mean_s == 0.002
    assert variants["a"].service_on("gtx-980").mean_s == 0.001
    assert variants["b"].service_on("cpu").mean_s == 0.005


@pytest.mark.usefixtures("one_zoo")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{model: zoo://small/tny}", "has no variant 'tny'; it has tiny"),
        ("{model: zoo://small}", "not of the form zoo://ZOO/VARIANT"),
        ("{model: zoo://small/tiny, digest: 'sha256:" + "1" * 64 + "'}", "is sha256:"),
    ],
)
def test_an_unknown_variant_of_the_zoo(write: Write, body: str, said: str) -> None:
    with pytest.raises(DeploymentError, match=r":4: tasks\.t\.variants\.a\.model: ") as caught:
        load(write(task(a=body)))
    assert said in str(caught.value)


@pytest.mark.usefixtures("one_zoo")
def test_own_models_must_look_like_the_zoos(write: Write, model: MakeModel) -> None:
    model("own.onnx", inputs=7)
    text = task(a="{model: zoo://small/tiny}", b="{model: own.onnx, accuracy: 0.8}")
    with pytest.raises(DeploymentError, match=r":5: tasks\.t\.variants\.b\.model: all variants"):
        load(write(text))


def test_missing_service_times_are_measured(write: Write, model: MakeModel) -> None:
    model("own.onnx")
    text = task(
        a="{model: own.onnx, accuracy: 0.8}",
        b="{model: own.onnx, accuracy: 0.9, service: {mean: 5 ms}}",
    )
    deployment = load(write(text))
    assert deployment.nodes["here"].instances == {("t", "a"): 1, ("t", "b"): 1}
    full = measured(deployment, seconds=0.001)
    assert 0 < full.tasks["t"].variants["a"].service_on("cpu").mean_s < 1
    assert full.tasks["t"].variants["b"] == deployment.tasks["t"].variants["b"]
    assert measured(full) is full


DIGEST = "sha256:" + "a" * 64


def test_a_model_on_another_host_is_taken_at_the_files_word(write: Write, model: MakeModel) -> None:
    model("own.onnx")
    text = task(
        a=f"{{model: 'https://models.example.org/a.onnx?v=2', digest: '{DIGEST}', accuracy: 0.8, "
        "size: 3 MB, service: {mean: 2 ms}}",
        b="{model: own.onnx, accuracy: 0.7, service: {mean: 1 ms}}",
    )
    deployment = load(write(text))
    variant = deployment.tasks["t"].variants["a"]
    assert variant.model is not None
    assert variant.model.path is None
    assert (variant.model.digest, variant.size_bytes) == (DIGEST, 3 * 10**6)
    assert variant.service_on("cpu").mean_s == 0.002
    assert measured(deployment) is deployment


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{model: 'https://h.org/a.onnx', accuracy: 1}", "needs its `digest`"),
        ("{model: 'https://h.org/', digest: D, accuracy: 1}", "names no file"),
        ("{model: 'https://u:p@h.org/a', digest: D, accuracy: 1}", "no user name or password"),
        ("{model: 'https://h.org:x/a', digest: D, accuracy: 1}", "is not a URI"),
        ("{model: 'https://h.org/v2/models/a', digest: D, accuracy: 1}", "is a `remote`"),
        ("{model: 'http://h.org/a.onnx', digest: D, accuracy: 1}", "not from http:"),
        (
            "{model: 'https://h.org/a.onnx', digest: D}",
            "needs `size` and `service`, as the model is on another host",
        ),
        (
            "{model: 'https://h.org/a.onnx', digest: D, accuracy: 1, size: 1 MB}",
            "needs `service`, as the model is on another host and nothing else says it",
        ),
    ],
)
def test_what_no_node_could_fetch_is_refused(write: Write, body: str, said: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        load(write(task(a=body.replace("digest: D", f"digest: '{DIGEST}'"))))
    assert said in str(caught.value)
