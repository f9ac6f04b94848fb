"""Folders of models, read as the deployment files that are written of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.catalog.profile import (
    ProfiledAccuracy,
    ProfiledData,
    ProfiledSignature,
    TaskProfile,
    VariantProfile,
)
from inferway.deployment import Deployment, DeploymentError, check, load
from inferway.deployment.model_folder import written
from inferway.deployment.models import signature_of
from inferway.deployment.profile import DeploymentProfile, write_profile

Put = Callable[..., Path]


@pytest.fixture
def put(model: Callable[..., Path], tmp_path: Path) -> Put:
    """Put a model at a path below `models`, and give that folder."""

    def place(*paths: str, outputs: int = 3) -> Path:
        for number, path in enumerate(paths):
            file = tmp_path / "models" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            model(f"{number}-{outputs}.onnx", outputs=outputs).rename(file)
        return tmp_path / "models"

    return place


def files_of(deployment: Deployment) -> dict[str, str]:
    """Give the files of the variants, as they lie below the folder."""
    models = {
        f"{task.name}/{name}": variant.model
        for task in deployment.tasks.values()
        for name, variant in task.variants.items()
    }
    assert all(model is not None and model.path is not None for model in models.values())
    root = deployment.path.resolve()
    return {
        name: str(model.path.relative_to(root))
        for name, model in models.items()
        if model is not None and model.path is not None
    }


def refusal(folder: Path) -> str:
    """Give the one sentence that is said of a folder."""
    with pytest.raises(DeploymentError) as caught:
        load(folder)
    (line,) = str(caught.value).splitlines()
    return line


def test_a_model_is_a_task_and_a_version_a_variant(put: Put) -> None:
    deployment = load(put("digits/1/model.onnx", "digits/big/model.onnx", "parts/a/model.onnx"))
    assert files_of(deployment) == {
        "digits/1": "digits/1/model.onnx",
        "digits/big": "digits/big/model.onnx",
        "parts/a": "parts/a/model.onnx",
    }
    assert deployment.nodes["here"].instances == dict.fromkeys(
        (("digits", "1"), ("digits", "big"), ("parts", "a")), 1
    )
    assert deployment.policy_of("digits").policy == "least-cost"


def test_the_highest_version_of_a_variant_counts(put: Put) -> None:
    versions = ("digits/a/2/model.onnx", "digits/a/10/model.onnx", "digits/a/9/model.onnx")
    others = ("digits/a/011/model.onnx", "digits/a/99/notes/model.onnx", "digits/b/model.onnx")
    deployment = load(put(*versions, *others))
    assert files_of(deployment) == {
        "digits/a": "digits/a/10/model.onnx",
        "digits/b": "digits/b/model.onnx",
    }


def test_what_is_no_model_is_named_once(put: Put) -> None:
    folder = put("digits/a/model.onnx", "digits/b/1/model.onnx")
    for known in ("digits/config.pbtxt", "digits/a/labels.txt", ".git", "digits/.old"):
        (folder / known).touch()
    for other in ("README.md", "digits/a/model.onnx.data", "digits/b/1/notes", "digits/train.py"):
        (folder / other).touch()
    (folder / "digits" / "empty").mkdir()
    (one,) = (one for one in check(load(folder)) if one.kind == "left-alone")
    names = ", ".join(
        f"{folder}/{name}"
        for name in (
            *("README.md", "digits/a/model.onnx.data", "digits/b/1/notes"),
            *("digits/empty", "digits/train.py"),
        )
    )
    assert str(one) == f"left alone, as they are no MODEL/VERSION/model.onnx: {names}"
    for number in range(10):
        (folder / f"{number}.txt").touch()
    (one,) = (one for one in check(load(folder)) if one.kind == "left-alone")
    assert one.message.endswith(" and 5 more")


def test_what_is_written_reads_as_the_folder(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put("digits/1/model.onnx", "digits/big/3/model.onnx", "parts/ö.b/model.onnx")
    (folder / "README").touch()
    monkeypatch.chdir(folder.parent)
    for named in (Path("models"), folder):
        for file in (Path("d.yaml"), Path("sub/d.yaml"), folder / "d.yaml"):
            deployment = load(named)
            text = written(deployment.tasks, deployment.source.remarks, named, file)
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
            read = load(file)
            assert files_like(read) == files_like(deployment)
            assert read.nodes == deployment.nodes
            file.unlink()
    assert "# Left alone, as it is no MODEL/VERSION/model.onnx: " in text
    assert "# (x: FP32[-1, 4]) -> (y: FP32[-1, 3])" in text


def files_like(deployment: Deployment) -> list[tuple[str, str, Path, str | None]]:
    return [
        (task.name, name, variant.model.path.resolve(), variant.model.digest)
        for task in deployment.tasks.values()
        for name, variant in task.variants.items()
        if variant.model is not None and variant.model.path is not None
    ]


def test_what_is_left_to_fill_in_is_valid_once_it_is(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put("digits/a/model.onnx", "digits/b/model.onnx")
    monkeypatch.chdir(folder.parent)
    deployment = load("models")
    text = written(deployment.tasks, (), Path("models"), Path("d.yaml"))
    filled = []
    for line in text.splitlines():
        bare = line.lstrip().removeprefix("# ")
        is_yaml = bare.startswith(("accuracy", "deadline:", "nodes:", "workload:", "  "))
        filled.append(line.replace("# ", "", 1) if is_yaml else line)
    Path("d.yaml").write_text("\n".join(filled).replace("_target: 0.95", "_target: 0.85"))
    read = load("d.yaml")
    assert (read.tasks["digits"].accuracy_target, read.tasks["digits"].deadline_s) == (0.85, 0.3)
    assert [one.accuracy for one in read.tasks["digits"].variants.values()] == [0.9, 0.9]
    assert (list(read.workload), read.nodes["here"].instances["digits", "a"]) == (["digits"], 1)


def test_a_class_of_one_s_own_is_a_model_too(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put("digits/a/model.onnx", "digits/b/1/model.onnx")
    (folder / "digits" / "b" / "2").mkdir()
    code = folder / "digits" / "b" / "2" / "model.py"
    code.write_text("class Model:\n    def predict(self, inputs):\n        return inputs\n")
    (code.parent / "__pycache__").mkdir()
    monkeypatch.chdir(folder.parent)
    deployment = load("models")
    assert deployment.source.remarks == []
    python = deployment.tasks["digits"].variants["b"].python
    assert python is not None
    assert (python.target.path, python.target.name) == (code, "Model")
    text = written(deployment.tasks, (), Path("models"), Path("d.yaml"))
    assert '        python: "models/digits/b/2/model.py:Model"\n' in text
    assert "# (x: FP32[-1, 4]) -> (y: FP32[-1, 3])" in text
    Path("d.yaml").write_text(text)
    assert load("d.yaml").tasks["digits"].variants["b"].python == python
    (code.parent / "model.onnx").touch()
    assert refusal(folder) == (
        f"{folder}: {code.parent} holds model.onnx and model.py: keep the one or the other"
    )
    (code.parent / "model.onnx").unlink()
    code.write_text("class Other:\n    pass\n")
    assert refusal(folder).endswith("models/digits/b/2/model.py has no Model; it has Other")


def test_what_lies_beside_a_class_is_part_of_the_model(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put("digits/a/model.onnx")
    code = folder / "digits" / "b" / "2" / "model.py"
    (code.parent / "parts").mkdir(parents=True)
    (code.parent / "__pycache__").mkdir()
    (code.parent / "__pycache__" / "model.pyc").touch()
    code.write_text("class Model:\n    def predict(self, inputs):\n        return inputs\n")
    weights = [code.parent / "parts" / "ä b.npz", code.parent / "weights.npz"]
    for file in weights:
        file.write_bytes(b"old")
    monkeypatch.chdir(tmp_path)
    deployment = load("models")
    assert deployment.source.remarks == []
    text = written(deployment.tasks, (), Path("models"), Path("d.yaml"))
    Path("d.yaml").write_text(text, encoding="utf-8")
    for named in (Path("models"), folder, Path("d.yaml")):
        variant = load(named).tasks["digits"].variants["b"]
        assert variant.python is not None
        assert [one.resolve() for one in variant.python.files] == weights
        before = variant.identity
        weights[0].write_bytes(f"trained for {named}".encode())
        assert load(named).tasks["digits"].variants["b"].identity != before
    (code.parent / "elsewhere.npz").symlink_to(__file__)
    assert "elsewhere.npz is a link to " in refusal(folder)


@pytest.mark.parametrize("name", ["s3:models v1", "two\nlines", 'quoted "é"'])
def test_models_are_named_by_any_folder(put: Put, tmp_path: Path, name: str) -> None:
    folder = put("digits/a/model.onnx").rename(tmp_path / name)
    deployment = load(folder)
    assert files_of(deployment) == {"digits/a": "digits/a/model.onnx"}
    file = tmp_path / "d.yaml"
    file.write_text(written(deployment.tasks, (), folder, file))
    assert files_like(load(file)) == files_like(deployment)


def test_a_profile_beside_the_folder_says_what_it_leaves_out(put: Put) -> None:
    folder = put("digits/a/model.onnx", "digits/b/model.onnx")
    variants = load(folder).tasks["digits"].variants
    data = ProfiledData("sha256:0", 2, None, 1, 1, 1, "class")
    measured = {
        name: VariantProfile(
            one.identity,
            one.size_bytes,
            ProfiledSignature.of(signature_of(one.model)),
            ProfiledAccuracy(accuracy, (0.0, 1.0), 1, "class"),
        )
        for (name, one), accuracy in zip(variants.items(), (0.75, 0.5), strict=True)
        if one.model is not None
    }
    profile = DeploymentProfile(tasks={"digits": TaskProfile(data, measured)})
    assert write_profile(folder, profile) == folder.with_name("models.profile.json")
    deployment = load(folder)
    assert [one.accuracy for one in deployment.tasks["digits"].variants.values()] == [0.75, 0.5]
    assert "no-accuracy" not in {one.kind for one in check(deployment)}
    put("digits/b/model.onnx", outputs=3)
    (folder / "digits" / "c").mkdir()
    (folder / "digits" / "a" / "model.onnx").rename(folder / "digits" / "c" / "model.onnx")
    (folder / "digits" / "a").rmdir()
    found = load(folder).tasks["digits"].variants
    assert {name: one.graded for name, one in found.items()} == {"b": True, "c": False}


def test_links_within_the_folder_are_followed(put: Put) -> None:
    folder = put("digits/a/1/model.onnx")
    (folder / "digits" / "latest").symlink_to("a")
    assert files_of(load(folder))["digits/latest"] == "digits/latest/1/model.onnx"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path}: {tmp_path} holds no model: each stands at MODEL/VERSION/model.onnx"
    )


def test_a_model_without_a_version_is_refused(put: Put) -> None:
    folder = put("digits/model.onnx")
    assert refusal(folder) == (
        f"{folder}: {folder}/digits/model.onnx has no version: put it into a folder of its own, as "
        f"{folder}/digits/1/model.onnx"
    )


def test_a_task_without_a_model_is_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx", "parts/a/1/model.pt")
    assert refusal(folder) == (
        f"{folder}: {folder}/parts holds no model: put one at {folder}/parts/VERSION/model.onnx"
    )


def test_a_file_in_place_of_a_folder_is_left_alone(put: Put) -> None:
    folder = put("digits/a/model.onnx", "parts")
    (remark,) = load(folder).source.remarks
    assert remark.endswith(f"it is no MODEL/VERSION/model.onnx: {folder}/parts")


def test_a_folder_in_place_of_a_file_is_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx/model.onnx")
    assert refusal(folder) == (
        f"{folder}: {folder}/digits/a/model.onnx is no file: a model is one file, with its weights "
        "inside"
    )


def test_a_model_and_versions_of_it_are_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx", "digits/a/1/model.onnx")
    assert refusal(folder) == (
        f"{folder}: {folder}/digits/a holds model.onnx and versions of it: keep the one or the "
        "others"
    )


@pytest.mark.parametrize("link", ["parts", "digits/b", "digits/b/1", "digits/b/model.onnx"])
def test_a_link_out_of_the_folder_is_refused(put: Put, tmp_path: Path, link: str) -> None:
    folder = put("digits/a/model.onnx")
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "model.onnx" if link.endswith(".onnx") else outside
    (outside / "model.onnx").touch()
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(target)
    assert refusal(folder) == (
        f"{folder}: {folder}/{link} is a link to {target}, outside of the folder: copy it in"
    )


def test_a_link_that_leads_nowhere_is_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx")
    (folder / "digits" / "b").mkdir()
    (folder / "digits" / "b" / "model.onnx").symlink_to("model.onnx")
    assert "digits/b/model.onnx" in refusal(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx", "digits/b/model.onnx")
    (folder / "digits" / "b").chmod(0)
    try:
        assert refusal(folder) == f"{folder}: {folder}/digits/b cannot be read: Permission denied"
    finally:
        (folder / "digits" / "b").chmod(0o755)


@pytest.mark.parametrize(
    ("path", "field"), [("my model/a", "tasks.my model"), ("digits/-a", "tasks.digits.variants.-a")]
)
def test_a_folder_whose_name_is_none_is_refused(put: Put, path: str, field: str) -> None:
    folder = put(f"{path}/model.onnx")
    name = field.rpartition(".")[2]
    assert refusal(folder) == (
        f'{folder}: {field}: "{name}" cannot be a name; use letters, digits, dots, dashes and '
        "underscores"
    )


@pytest.mark.parametrize(("name", "shown"), [(b"\xff", r"\udcff"), (b"a\x1b[2J", r"a\x1b[2J")])
def test_a_name_that_cannot_be_written_is_refused(put: Put, name: bytes, shown: str) -> None:
    folder = put("digits/a/model.onnx")
    (folder / "digits").rename(folder / os.fsdecode(name))
    assert refusal(folder) == (
        f"{folder}: {folder}/{shown} has a name that cannot be written: rename it"
    )


def test_variants_of_different_signatures_are_refused(put: Put) -> None:
    put("digits/a/model.onnx")
    folder = put("digits/b/model.onnx", outputs=2)
    said = refusal(folder)
    assert said.startswith(f"{folder}: tasks.digits.variants.b.model: all variants of a task share")


def test_what_is_no_onnx_is_refused(put: Put) -> None:
    folder = put("digits/a/model.onnx")
    (folder / "digits" / "a" / "model.onnx").write_bytes(b"no model")
    assert refusal(folder).startswith(f"{folder}: tasks.digits.variants.a.model: {folder}/digits/a")
