"""Checks and what comes of them: a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.table import Table

    from inferway.conformance.target import Target


class CheckOutcome(StrEnum):
    """End of a check."""

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
class Finding:
    """Result of one check, with one sentence of evidence."""

    check: Check
    outcome: CheckOutcome
    evidence: str


_STYLE: Final = {
    CheckOutcome.PASSED: "green",
    CheckOutcome.FAILED: "bold red",
    CheckOutcome.NOT_OFFERED: "dim",
}


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all checks.

    Attributes
    ----------
    url, task
        Which server, and which model of it.
    seed
        Of the tensors sent.
    results
        In the order of the checks.
    """

    url: str
    task: str
    seed: int
    results: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed; what a server does not offer is no failure."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """One sentence for each check that failed."""
        return [
            f"{one.check.name}: {one.evidence}"
            for one in self.results
            if one.outcome is CheckOutcome.FAILED
        ]

    @property
    def counts(self) -> dict[str, int]:
        """Number of checks by how they ended."""
        counted = Counter(one.outcome for one in self.results)
        return {str(outcome): counted[outcome] for outcome in CheckOutcome}

    @property
    def sentence(self) -> str:
        """All in one line."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return f"{self.url}, task {self.task!r}: {counts}."

    def to_json(self) -> dict[str, Any]:
        """Give the whole report as JSON has it."""
        return {
            "schema": 1,
            "url": self.url,
            "task": self.task,
            "seed": self.seed,
            "passed": self.passed,
            "counts": self.counts,
            "checks": [
                {
                    "name": one.check.name,
                    "clause": one.check.clause,
                    "reading": one.check.reading,
                    "outcome": str(one.outcome),
                    "evidence": one.evidence,
                }
                for one in self.results
            ],
        }

    def table(self) -> Table:
        """Lay out one row per check; a failure says which clause it breaks."""
        from rich.markup import escape

        from inferway.experiments.text import table

        def row(finding: Finding) -> list[str]:
            check, outcome, evidence = finding.check, finding.outcome, finding.evidence
            if outcome is CheckOutcome.FAILED:
                evidence += f" ({check.clause})"
            # A server's words may hold control characters, which a terminal would obey.
            words = "".join(one if one.isprintable() else " " for one in evidence)
            return [escape(check.name), f"[{_STYLE[outcome]}]{outcome}[/]", escape(words)]

        return table(
            "Open Inference Protocol v2",
            ["check", "outcome", "evidence"],
            [row(finding) for finding in self.results],
            caption=escape(self.sentence),
            left=(0, 1, 2),
        )
