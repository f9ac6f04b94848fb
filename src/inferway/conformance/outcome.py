"""What a check is, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.conformance.target import Target


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_OFFERED = "not offered"
    """The protocol leaves it to the server, and this one does not have it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the protocol asks of a server.

    Attributes
    ----------
    name
        Group and subject, `binary: truncated data is refused`.
    clause
        Document and place that it reads.
    run
        Returns the evidence in one sentence. Raises `ViolationError` or `NotOfferedError`.
    reading
        Which reading it takes where documents disagree or say too little, and why.
    """

    name: str
    clause: str
    run: Callable[[Target], str]
    reading: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one check, with one sentence of evidence."""

    check: Check
    outcome: Outcome
    evidence: str
