"""Zoos are found by URI; what was measured or built here goes before what ships."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from inferway.catalog import CatalogError, zoo

SHIPPED = Path(zoo.__file__).parent / "digits" / "data"


def changed(profile: zoo.Profile, **fields: object) -> zoo.Profile:
    measured = msgspec.structs.replace(profile.measured, **fields)
    return msgspec.structs.replace(profile, measured=measured)


def test_names_and_order() -> None:
    assert zoo.names() == ("digits",)
    times = [profile.mean_s for profile in zoo.profiles().values()]
    assert times == sorted(times)
    assert next(iter(zoo.profiles())) == "tiny"
    assert zoo.load().origin == "shipped"


def test_resolves_a_uri() -> None:
    path, profile = zoo.resolve("zoo://digits/tiny")
    assert path == SHIPPED / "tiny.onnx" == zoo.model_path("digits", "tiny")
    assert path == zoo.model_path("zoo://digits/tiny")
    assert profile == zoo.profiles()["tiny"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("zoo://digits", "is not of the form zoo://ZOO/VARIANT"),
        ("zoo://digits/", "is not of the form zoo://ZOO/VARIANT"),
        ("zoo:///tiny", "is not of the form zoo://ZOO/VARIANT"),
        ("digits/tiny", "is not of the form zoo://ZOO/VARIANT"),
        ("zoo://letters/tiny", "there is no zoo 'letters'; there is digits"),
        ("zoo://digits/colossal", "the zoo 'digits' has no variant 'colossal'; it has tiny, mini"),
        ("zoo://digits/../tiny", "the zoo 'digits' has no variant '../tiny'"),
    ],
)
def test_refuses_a_wrong_uri(uri: str, reason: str) -> None:
    with pytest.raises(CatalogError, match=reason):
        zoo.resolve(uri)


def test_test_set() -> None:
    found = zoo.testset()
    assert found.images.shape == (len(found), 1, 32, 32)
    assert found.images.dtype == np.float32
    assert found.images.min() == 0
    assert found.images.max() == 1
    assert found.labels.shape == found.source.shape == (len(found),)
    assert set(found.labels) == set(range(10))


def test_measured_here_goes_first(data_home: Path) -> None:
    known = zoo.load()
    slow = changed(known.profiles["tiny"], size_bytes=123)
    folder = zoo.user_folder()
    assert folder == data_home / "inferway" / "zoo" / "digits"
    zoo.save(replace(known, profiles={**known.profiles, "tiny": slow}), folder)
    found = zoo.load()
    assert found.origin == "measured"
    assert found.profiles["tiny"].size_bytes == 123
    assert zoo.model_path("digits", "tiny") == SHIPPED / "tiny.onnx"
    assert not list(folder.glob("*.part"))


def test_stale_measurements_are_ignored(data_home: Path) -> None:
    known = zoo.load()
    other = changed(known.profiles["tiny"], model="sha256:" + "0" * 64)
    images = msgspec.structs.replace(known.data, digest="sha256:" + "0" * 64)
    for stale in (
        replace(known, profiles={**known.profiles, "tiny": other}),
        replace(known, data=images),
    ):
        zoo.save(stale, zoo.user_folder())
        assert zoo.load() == known


def test_built_here_goes_first(data_home: Path) -> None:
    models = [zoo.model_path("digits", variant) for variant in zoo.profiles()]
    shutil.copytree(SHIPPED, zoo.user_folder())
    for path in models:
        shutil.copy(path, zoo.user_folder())
    assert zoo.load().origin == "built"
    assert zoo.model_path("digits", "tiny") == zoo.user_folder() / "tiny.onnx"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "the profiles are malformed"),
        ("[]", "the profiles are malformed"),
        (json.dumps({"schema": 1}), "schema 1 is not 2; remove the file, and"),
        (json.dumps({"schema": 2, "profiles": [{}]}), "the profiles are malformed"),
    ],
)
def test_refuses_malformed_profiles(data_home: Path, content: str, reason: str) -> None:
    folder = zoo.user_folder()
    folder.mkdir(parents=True)
    (folder / "profiles.json").write_text(content)
    with pytest.raises(CatalogError, match=reason):
        zoo.load()


def test_a_lost_file_is_named() -> None:
    with pytest.raises(CatalogError, match=r"has lost its file none\.onnx"):
        zoo.load().file("none.onnx")


def test_import_is_light() -> None:
    program = (
        "import sys, inferway.catalog.zoo as z; z.resolve('zoo://digits/tiny');"
        "heavy = {'onnx', 'onnxruntime', 'scipy', 'sklearn', 'torch', 'psutil'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
