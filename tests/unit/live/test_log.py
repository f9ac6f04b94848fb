from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from typing import TextIO

import pytest

from inferway.live.log import logger


def test_lines_of_json_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logger("critical").error("silent")
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
    assert re.fullmatch(r"\d{4}(-\d\d){2}T(\d\d:){2}\d\d\.\d{6}Z", lines[0]["timestamp"])
    assert "ValueError: why" in lines[1]["exception"]


def test_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    log = logger().bind(task="words")
    log.debug("quiet")
    log.warning("loud", port=1)
    log.error("broken", exc_info=ValueError("why"))
    loud, broken, why = terminal.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning loud task='words' port=1", loud)
    assert broken.endswith("error   broken task='words'")
    assert why == "ValueError: why"


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Make a pipe: its end to read from, and the other."""
    reading, writing = os.pipe()
    stream = open(writing, "w")  # noqa: PTH123, SIM115
    yield reading, stream
    stream.close()
    os.close(reading)


def read(file: int) -> str:
    """Read all that is in a pipe."""
    os.set_blocking(file, False)
    parts = []
    try:
        while part := os.read(file, 1 << 20):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode()


def test_a_pipe_that_nobody_empties_costs_lines_and_no_time(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", pipe[1])
    log = logger()
    for number in range(3_000):
        log.info("line", number=number, more="x" * (number % 300))
    log.info("long", more="x" * 100_000)
    said = read(pipe[0])
    assert len(said) > 50_000
    log.info("again")
    lines = [json.loads(line) for line in (said + read(pipe[0])).splitlines()]
    numbers = [line["number"] for line in lines if line["event"] == "line"]
    assert numbers == [*range(len(numbers))]
    notice, last = lines[-2:]
    assert notice["event"] == "lines of the log were lost"
    assert notice["lines"] == 3_001 - len(numbers)
    assert last["event"] == "again"


def test_a_line_longer_than_a_pipe_is_finished_later(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", pipe[1])
    log = logger()
    log.info("long", more="x" * 200_000)
    said = read(pipe[0])
    for number in range(6):
        log.info("line", number=number)
        said += read(pipe[0])
    lines = [json.loads(line) for line in said.splitlines()]
    long, notice, *others = lines
    assert (long["event"], len(long["more"])) == ("long", 200_000)
    assert notice["event"] == "lines of the log were lost"
    # Those while it was on its way.
    assert [line["number"] for line in others] == [*range(notice["lines"], 6)] != []


@pytest.mark.parametrize("what", ["/dev/full", "nobody", "closed"])
def test_where_nothing_can_be_written_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "closed":
        monkeypatch.setattr("sys.stderr", None)
        logger().error("unheard")
        return
    if what == "nobody":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(what, os.O_WRONLY)
    with open(writing, "w") as stream:  # noqa: PTH123
        monkeypatch.setattr("sys.stderr", stream)
        log = logger()
        for _ in range(3):
            log.error("unheard")
