"""``inferway simulate --open``: where the report is, and who shows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from inferway.cli import main

SITE = """\
tasks: {t: {variants: {a: {accuracy: 0.8, service: {rate: 100/s}}}}}
nodes: {here: {instances: {t/a: 1}}}
workload: {t: {arrivals: {process: poisson, rate: 50/s}}}
"""
SIMULATE = ["--queries", "1e3", "--seed", "1"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go where there is a deployment and no display."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "site.yaml"
    found.write_text(SITE)
    return found


def test_without_a_display_it_says_where_the_report_is(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "site.yaml", *SIMULATE, "--open"]) == 0
    report = Path("out/simulate-site/report.html")
    assert capsys.readouterr().out.endswith(f"Report: {report}\n")
    assert "<h1>site.yaml, simulated</h1>" in report.read_text(encoding="utf-8")


def test_a_browser_gets_the_report(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = file.parent / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {file.parent}/asked\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    # `webbrowser` reads the environment once.
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)
    assert main(["simulate", "site.yaml", *SIMULATE, "--open", "--out", "here"]) == 0
    assert capsys.readouterr().out.endswith("Report: here/report.html, open in the browser\n")
    asked = (file.parent / "asked").read_text().strip()
    assert asked == (file.parent / "here" / "report.html").as_uri()


def test_json_stays_as_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for options in ([], ["--open"]):
        assert main(["simulate", "site.yaml", *SIMULATE, "--json", *options]) == 0
        out, errors = capsys.readouterr()
        document = json.loads(out)
        document["tasks"]["t"].pop("queries_per_cpu_s")
        found.append(document)
    assert found[0] == found[1]
    assert errors == "inferway: Report: out/simulate-site/report.html\n"


def test_a_sweep_has_its_report_beside_its_numbers(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["--sweep", "load=0.3,0.5", "--queries", "1e3"]
    assert main(["simulate", "site.yaml", *sweep, "--open"]) == 0
    folder = Path("out/sweep-site")
    assert capsys.readouterr().out.endswith(f"Report: {folder / 'report.html'}\n")
    assert (folder / "sweep.parquet").is_file()


def test_a_folder_for_nothing_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "site.yaml", *SIMULATE, "--out", "here"]) == 2
    assert "give --sweep or --open" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_the_work(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "site.yaml", *SIMULATE, "--open", "--out", "site.yaml"]) == 2
    assert capsys.readouterr().err.startswith("inferway: nothing can be written to --out")
