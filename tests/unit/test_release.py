"""A release: its version is the same wherever it stands, and what is built of it is whole."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import date
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from ruamel.yaml import YAML

from inferway.version import __version__

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## \[(Unreleased|\d+\.\d+\.\d+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.M)
# By the Citation File Format 1.2.0.
REQUIRED = {"authors", "cff-version", "message", "title"}
KEYS = REQUIRED | {
    *("abstract", "date-released", "keywords", "license", "references", "repository-code"),
    *("type", "version"),
}
REFERENCE = {"authors", "title", "type"}


def test_the_changelog_has_a_section_for_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *releases = SECTION.findall(text)
    assert first == ("Unreleased", "")
    assert releases[0][0] == __version__
    versions = [Version(version) for version, _ in releases]
    assert versions == sorted(versions, reverse=True)
    dates = [date.fromisoformat(day) for _, day in releases]
    assert dates == sorted(dates, reverse=True)
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(releases) + 1


def test_the_citation_is_valid_and_of_the_version() -> None:
    said: dict[str, Any] = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert said.keys() >= REQUIRED
    assert said.keys() <= KEYS
    assert said["cff-version"] == "1.2.0"
    assert said["type"] == "software"
    assert str(said["version"]) == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}] - {said['date-released']}\n" in changelog
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert said["license"] == project["license"]
    assert said["repository-code"] == project["urls"]["Source"]
    assert [one["name"] for one in said["authors"]] == [one["name"] for one in project["authors"]]
    known = (ROOT / "docs" / "references.md").read_text()
    for one in said["references"]:
        assert one.keys() >= REFERENCE
        assert one["title"] in known
        assert one.get("doi", "") in known
        for author in one["authors"]:
            assert author.keys() == {"family-names", "given-names"}
            assert f"{author['given-names']} {author['family-names']}" in known


def built(target: str, source: Path, folder: Path) -> Path:
    """Build a distribution of a source tree with the project's own builder."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


@pytest.mark.slow
def test_the_sdist_builds_a_wheel_that_has_all_of_the_package(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert source.name == f"inferway-{__version__}"
    for name in ("tests", "docs", "examples", "deploy/helm/templates", "LICENSE", "CITATION.cff"):
        assert (source / name).exists(), name
    with zipfile.ZipFile(built("wheel", source, tmp_path / "wheel")) as wheel:
        wheel.extractall(tmp_path / "installed")
    installed = tmp_path / "installed"

    def files(folder: Path) -> set[str]:
        return {
            str(file.relative_to(folder))
            for file in (folder / "inferway").rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }

    package = files(ROOT / "src")
    assert files(installed) == package
    # Among them what is no code: models, the page, sheets of style, the protocol, policies.
    assert {Path(name).suffix for name in package} >= {
        *(".py", ".onnx", ".xz", ".html", ".js", ".css", ".svg", ".binpb", ".typed"),
        *(".yaml", ".csv"),
    }
    (about,) = installed.glob("*.dist-info")
    metadata = Parser().parsestr((about / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Version"] == __version__
    assert metadata["Name"] == "inferway"
    assert (about / "licenses" / "LICENSE").exists()
    assert "inferway = inferway.cli:main" in (about / "entry_points.txt").read_text()
    code = (
        "import inferway; from inferway.catalog import model_path\n"
        "assert inferway.__file__.startswith(__import__('sys').argv[1]), inferway.__file__\n"
        "assert model_path('digits', 'tiny').is_file()\n"
        "print(inferway.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(installed)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{__version__}\n", 0), done.stderr
