"""Folders for results: refused before the work, and no reason to lose what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferway.cli import main

SITE = """\
tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 100/s}}}}}
nodes: {here: {instances: {t/a: 1}}}
workload: {t: {arrivals: {process: poisson, rate: 50/s}}}
"""
NETWORK = """\
tasks: {t: {variants: {a: {accuracy: 0.8, size: 1 MB, service: {mean: 10 ms}}}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - {tier: edge, nodes: 2, rtt: 30 ms, budget: 2 MB}
placement: {policy: static-greedy}
workload: {t: {arrivals: {process: poisson, rate: 9/s}}}
"""
SWEEP = ["--sweep", "load=0.3,0.5", "--queries", "1e3"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Write deployment files and what stands in the way of a folder."""
    found = {name: tmp_path / f"{name}.yaml" for name in ("site", "network")}
    found["site"].write_text(SITE)
    found["network"].write_text(NETWORK)
    found |= {"file": tmp_path / "file", "below": tmp_path / "file" / "out"}
    found["file"].write_text("")
    return found


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("file", "it is no folder"),
        ("below", "Not a directory"),
        pytest.param(
            "/proc",
            "No such file or directory",
            marks=pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc"),
        ),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        # Nothing listens there: were the work begun, it would fail with 1.
        ["drive", "site", "--url", "http://127.0.0.1:9", "--out"],
        ["drive", "network", "--url", "http://127.0.0.1:9", "--out"],
        ["simulate", "site", "--queries", "1e3", "--records"],
        ["simulate", "site", *SWEEP, "--out"],
        ["simulate", "network", "--slots", "2", "--out"],
        ["place", "network", "--slots", "2", "--out"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_to_is_refused_first(
    capsys: pytest.CaptureFixture[str],
    files: dict[str, Path],
    words: list[str],
    where: str,
    why: str,
) -> None:
    command, name, *options = words
    folder = files.get(where, where)
    assert main([command, str(files[name]), *options, str(folder)]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors == f"inferway: nothing can be written to {options[-1]} {folder}: {why}\n"


@pytest.mark.parametrize(
    "words",
    [["demo"], ["study", "run", "trade-off"], ["study", "report", "trade-off"]],
    ids=" ".join,
)
def test_hours_of_work_are_not_begun_for_nothing(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], words: list[str]
) -> None:
    assert main([*words, "--out", str(files["below"])]) == 2
    said = f"inferway: nothing can be written to --out {files['below']}: Not a directory\n"
    assert capsys.readouterr() == ("", said)


def test_a_folder_is_tried_without_a_trace(files: dict[str, Path], tmp_path: Path) -> None:
    from inferway.cli.options import writable

    writable(tmp_path / "deep" / "out")
    assert list((tmp_path / "deep" / "out").iterdir()) == []


def test_a_sweeps_numbers_are_shown_where_they_cannot_be_kept(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], tmp_path: Path
) -> None:
    blocked = tmp_path / "out" / "sweep.parquet"
    blocked.mkdir(parents=True)
    arguments = ["simulate", str(files["site"]), *SWEEP, "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 1
    out, errors = capsys.readouterr()
    found = json.loads(out)
    assert len(found["tasks"]["t"]["points"]) == 2
    assert found["sweep"]["parquet"] is None
    assert errors == f"inferway: {blocked} could not be written: Is a directory\n"


@pytest.mark.parametrize(
    ("words", "blocked", "shown"),
    [
        (["simulate", "site", *SWEEP], "sweep.png", "sweep.parquet"),
        (["simulate", "network", "--slots", "2"], "allocation.png", "static-greedy"),
        (["place", "network", "--slots", "2"], "nodes.yaml", "static-greedy"),
    ],
)
@pytest.mark.parametrize("json_", [False, True])
def test_what_was_found_is_shown_before_what_could_not_be_written(
    capsys: pytest.CaptureFixture[str],
    files: dict[str, Path],
    tmp_path: Path,
    words: list[str],
    blocked: str,
    shown: str,
    json_: bool,
) -> None:
    command, name, *options = words
    (tmp_path / "out" / blocked).mkdir(parents=True)
    arguments = [command, str(files[name]), *options, "--out", str(tmp_path / "out")]
    assert main([*arguments, *["--json"] * json_]) == 1
    out, errors = capsys.readouterr()
    assert shown in out
    if json_:
        assert json.loads(out)["schema"] == 1
    assert errors == f"inferway: not all could be written to {tmp_path / 'out'}: Is a directory\n"
