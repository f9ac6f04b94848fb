"""Answers of servers, read by what asks them: only what is documented comes of whatever comes."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzzed import MIXED, as_binary, as_json
from fuzzing import Course, few_or_many
from inferway.loadgen.message import decode as read_answer
from inferway.protocol import Signature
from inferway.protocol.inference import AnswerError
from inferway.protocol.inference import decode as read_remote

ANSWERS = Signature(MIXED.outputs, MIXED.inputs)


def read(given: tuple[bytes, str, str]) -> None:
    """Read a request's bytes as an answer."""
    body = given[0].replace(b'"inputs"', b'"outputs"')
    length = re.search(r"Content-Length: ([0-9]{1,9})\r", given[1])
    json_length = min(int(length[1]) + 1, len(body)) if length else None
    with suppress(AnswerError):
        read_remote(ANSWERS, 1, body, json_length)
    read_answer(body, -1 if json_length is None else json_length)


@pytest.mark.parametrize(("name", "make"), [("json", as_json), ("binary", as_binary)])
@few_or_many
def test_answers(name: str, make: Callable[[random.Random], Any], count: int) -> None:
    Course(name, make, count).run(read)
