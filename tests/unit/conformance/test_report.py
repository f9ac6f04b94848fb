"""What people and programs read."""

from __future__ import annotations

import json

from rich.console import Console

from inferway.conformance import Check, CheckOutcome, Finding, Report


def result(outcome: CheckOutcome, evidence: str) -> Finding:
    check = Check(f"group: {outcome}", "inference_rest.md, X", lambda target: "", "a reading")
    return Finding(check, outcome, evidence)


REPORT = Report(
    "http://127.0.0.1:8000",
    "digits",
    1,
    (
        result(CheckOutcome.PASSED, "shape [1, 4]"),
        result(CheckOutcome.FAILED, "\x1b[31m answered 500 [/v2]"),
        result(CheckOutcome.NOT_OFFERED, "no [bold]versions"),
    ),
)


def test_json() -> None:
    document = json.loads(json.dumps(REPORT.to_json()))
    assert document["schema"] == 1
    assert document["passed"] is False
    assert document["counts"] == {"passed": 1, "failed": 1, "not offered": 1}
    assert document["checks"][0] == {
        "name": "group: passed",
        "clause": "inference_rest.md, X",
        "reading": "a reading",
        "outcome": "passed",
        "evidence": "shape [1, 4]",
    }


def test_the_table_shows_a_server_s_words_as_they_are_and_obeys_none() -> None:
    console = Console(width=160, record=True)
    with console.capture() as capture:
        console.print(REPORT.table())
    text = capture.get()
    for part in ("shape [1, 4]", "[/v2] (inference_rest.md, X)", "no [bold]versions"):
        assert part in text
    assert "\x1b[31m answered" not in text
    assert "task 'digits': 1 passed, 1 failed, 1 not offered." in text


def test_what_is_not_offered_is_no_failure() -> None:
    report = Report("http://h", "t", 1, (REPORT.results[0], REPORT.results[2]))
    assert report.passed
    assert report.failures == []
