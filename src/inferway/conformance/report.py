"""The results of a suite: a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inferway.conformance.outcome import Outcome, Result

if TYPE_CHECKING:
    from rich.table import Table

_STYLE: Final = {Outcome.PASSED: "green", Outcome.FAILED: "bold red", Outcome.NOT_OFFERED: "dim"}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all checks.

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
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; what a server does not offer is no failure."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """One sentence for each check that failed."""
        return [
            f"{one.check.name}: {one.evidence}"
            for one in self.results
            if one.outcome is Outcome.FAILED
        ]

    @property
    def counts(self) -> dict[str, int]:
        """How many checks ended how."""
        found = Counter(one.outcome for one in self.results)
        return {str(one): found[one] for one in Outcome}

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

        rows = []
        for one in self.results:
            style, said = _STYLE[one.outcome], one.evidence
            if one.outcome is Outcome.FAILED:
                said += f" ({one.check.clause})"
            rows.append(
                [escape(one.check.name), f"[{style}]{one.outcome}[/]", escape(_printable(said))]
            )
        return table(
            "Open Inference Protocol v2",
            ["check", "outcome", "evidence"],
            rows,
            caption=escape(self.sentence),
            left=(0, 1, 2),
        )


def _printable(text: str) -> str:
    # A server's words may hold control characters, which a terminal would obey.
    return "".join(one if one.isprintable() else " " for one in text)
