"""``inferway certs``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway.cli import main

TREE = Path(__file__).parents[3] / "examples" / "topology-2.yaml"
NODES = ["cloud", "isp", "office", "base-0", "base-1"]


def test_a_certificate_per_node_and_what_to_do_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(TREE), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for node in NODES:
        assert f"{node}.pem" in said
        assert (tmp_path / f"{node}.pem").exists()
    assert "authority.key makes certificates: keep it off the nodes." in said
    assert "starts again" not in said
    assert main(["certs", str(TREE), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("kept") == 6
    (tmp_path / "isp.key").unlink()
    assert main(["certs", str(TREE), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "renewed: " in said
    assert (
        "A running node takes renewed files on SIGHUP; its control port, at the next start." in said
    )


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", str(TREE), "--out", str(tmp_path), "--days", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1
    assert [one["name"] for one in said["certificates"]] == ["authority", *NODES]
    assert {one["state"] for one in said["certificates"]} == {"new"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--days", "9999"], "1 to 3650 days"),
        (["--out", "{file}"], "exists"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    there = tmp_path / "there"
    there.touch()
    given = [one.format(file=there) for one in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path)]
    assert main(["certs", str(TREE), *given]) == 1
    assert sentence in capsys.readouterr().err


def test_a_file_without_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = TREE.with_name("digits.yaml")
    assert main(["certs", str(alone), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no `network`, and this needs one" in said
    assert "place" not in said
