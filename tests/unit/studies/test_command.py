from __future__ import annotations

import json

import pytest

from inferway.cli import main
from inferway.cli.study import _minutes
from inferway.studies import STUDIES, Study


def document(capsys, *arguments):
    assert main(["study", *map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def test_list_has_every_study_with_its_points_and_times(capsys):
    found = document(capsys, "list")["studies"]
    assert list(found) == list(STUDIES)
    for one in found.values():
        assert set(one["scales"]) == {"smoke", "quick", "paper"}
        assert one["scales"]["smoke"]["points"] > 0
        assert one["shows"].endswith(".")
    assert main(["study", "list"]) == 0
    assert "[Anonymous], Fig. 7" in capsys.readouterr().out


def test_run_stores_draws_and_says(tmp_path, capsys):
    arguments = ["run", "shuffle-pair", "--scale", "smoke", "--out", tmp_path, "--workers", 1]
    found = document(capsys, *arguments)["studies"]["shuffle-pair"]
    assert found["points"] == 2
    folder = tmp_path / "shuffle-pair" / "smoke"
    assert (folder / "shuffle-pair.png").read_bytes().startswith(b"\x89PNG")
    by_words = {claim["says"]: claim for claim in found["claims"]}
    wrong = by_words["The pair {2, 3} allows 0.25."]
    assert wrong["reproduced"] is False
    assert wrong["value"] == pytest.approx(0.15625)
    assert main(["study", *map(str, arguments)]) == 0
    words = capsys.readouterr().out
    assert "no  The pair {2, 3} allows 0.25." in words

    page = document(capsys, "report", "shuffle-pair", "--scale", "smoke", "--out", tmp_path)
    text = (tmp_path / "report-smoke.html").read_text()
    assert page["page"] == str(tmp_path / "report-smoke.html")
    assert page["bytes"] == len(text.encode())
    assert "Example 3" in text


def test_a_study_that_fails_keeps_no_other_from_its_run(tmp_path, capsys, monkeypatch):
    run = Study.run

    def run_or_fail(study, *arguments, **options):
        if study.name == "blocking":
            raise RuntimeError("1 of 2 points of blocking failed")
        return run(study, *arguments, **options)

    monkeypatch.setattr(Study, "run", run_or_fail)
    asked = ["study", "run", "blocking", "shuffle-pair", "--scale", "smoke"]
    asked += ["--out", str(tmp_path), "--workers", "1"]
    assert main(asked) == 1
    output = capsys.readouterr()
    assert "The pair {2, 3} allows 0.25." in output.out
    assert output.err.strip() == "inferway: 1 of 2 points of blocking failed"
    assert main([*asked, "--json"]) == 1
    output = capsys.readouterr()
    assert list(json.loads(output.out)["studies"]) == ["shuffle-pair"]
    assert main(["study", "run", "blocking", "--out", str(tmp_path), "--json"]) == 1
    output = capsys.readouterr()
    assert (output.out, "blocking failed" in output.err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, "name studies, or say --all"),
        (["run", "--all", "blocking"], 2, "name studies, or say --all"),
        (["run", "fig-9"], 2, "unknown study 'fig-9': expected one of trade-off"),
        (["report", "tradeoff"], 2, "unknown study 'tradeoff': did you mean trade-off?"),
        (["run", "blocking", "--scale", "tiny"], 2, "tiny"),
        (["report"], 1, "there are no results"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, capsys, arguments, code, words):
    out = [] if arguments[0] == "list" else ["--out", str(tmp_path)]
    assert main(["study", *arguments, *out]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (98, "98 s"), (100, "1:40 min"), (7200, "2.0 h"), (400_000, "5 d")],
)
def test_durations_in_words(seconds, words):
    assert _minutes(seconds) == words
