"""Larger models and the test set of the shipped zoo lie in one archive, unpacked once."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferway.catalog import archive, zoo

SHIPPED = Path(zoo.__file__).parent / "digits" / "data" / zoo.ARCHIVE
PROGRAM = "from inferway.catalog import zoo; print(zoo.model_path('digits', 'huge'))"


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive.unpacked.cache_clear()
    yield tmp_path / "cache"
    archive.unpacked.cache_clear()


def test_unpacked_models_are_what_the_profiles_say(cache_home: Path) -> None:
    names = {path.name for path in archive.unpacked(SHIPPED).iterdir()}
    assert names == {"medium.onnx", "large.onnx", "huge.onnx", "ensemble.onnx", zoo.TESTSET}
    for name, profile in zoo.profiles().items():
        content = zoo.model_path("digits", name).read_bytes()
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == profile.digest


def test_they_are_unpacked_once(cache_home: Path) -> None:
    folder = archive.unpacked(SHIPPED)
    assert folder.parent == cache_home / "inferway" / "zoo"
    (folder / "huge.onnx").write_bytes(b"seen")
    archive.unpacked.cache_clear()
    assert archive.unpacked(SHIPPED) == folder
    assert (folder / "huge.onnx").read_bytes() == b"seen"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_file_that_somebody_removes_is_unpacked_again(cache_home: Path) -> None:
    folder = archive.unpacked(SHIPPED)
    for name in ("huge", "large"):
        (folder / f"{name}.onnx").unlink()
    content = zoo.model_path("digits", "huge").read_bytes()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == zoo.profiles()["huge"].digest
    left = {"medium.onnx", "huge.onnx", "ensemble.onnx", zoo.TESTSET}
    assert {path.name for path in folder.iterdir()} == left
    assert not archive.unpacked_file(SHIPPED, "none.onnx").exists()


def test_processes_that_begin_together_get_the_same(cache_home: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    told = {one.communicate(timeout=120)[0].strip() for one in started}
    assert told == {str(archive.unpacked(SHIPPED) / "huge.onnx")}
    assert len(list((cache_home / "inferway" / "zoo").iterdir())) == 1


def test_where_nothing_can_be_kept_a_process_has_its_own(cache_home: Path) -> None:
    cache_home.write_text("not a folder")
    path = Path(
        subprocess.run(
            [sys.executable, "-c", PROGRAM + "; assert zoo.model_path('digits', 'huge').is_file()"],
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout.strip()
    )  # fmt: skip
    assert path.name == "huge.onnx"
    assert not path.parent.exists()
