from __future__ import annotations

import json

import pytest

from inferway.live.log import logger


def test_lines_of_json_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log = logger("warning")
    log.info("quiet")
    log.warning("loud", port=1)
    try:
        raise ValueError("why")
    except ValueError as error:
        log.error("broken", exc_info=error)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [(line["event"], line["level"]) for line in lines] == [
        ("loud", "warning"),
        ("broken", "error"),
    ]
    assert lines[0]["port"] == 1
    assert "ValueError: why" in lines[1]["exception"]
