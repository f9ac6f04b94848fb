"""What a study is: settings, points, a figure, claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.results import Results
    from inferway.experiments.run import Progress
    from inferway.experiments.study_result import StudyResult

__all__ = ["SCALES", "Claim", "Point", "Study", "Verdict"]

SCALES = ("smoke", "quick", "paper")
"""From seconds, through the third digit, to the paper's own run lengths."""

Settings = TypeVar("Settings")
Verdict = Literal["yes", "no", "not settled", "-"]


@dataclass(frozen=True)
class Point:
    """One call that gives one row of results: a scenario and a seed, as a rule.

    Attributes
    ----------
    label
        What tells its row from the others: the row's first columns.
    call
        A function at the top of a module; it returns a flat mapping of numbers, strings, booleans
        or lists of numbers.
    arguments
        Its keyword arguments, in values that JSON has: they are what a stored row is known by.
    seconds
        About how long it takes on one core; only the time left depends on it.
    """

    label: Mapping[str, Any]
    call: Callable[..., Mapping[str, Any]]
    arguments: Mapping[str, Any]
    seconds: float = 1.0


@dataclass(frozen=True)
class Claim:
    """A sentence that can be checked by number; its tolerance stands in code before any run.

    Attributes
    ----------
    where
        Section, figure or lemma of the paper; ``ours`` where the paper has no such sentence.
    says
        The sentence, in our words.
    measure
        What is measured, as a noun.
    value
        The measured value; NaN where the results do not tell.
    at_least, at_most
        Between which values it reproduces; None for no limit.
    unit
        ``%`` for ratios (0.01 is written 1 %), anything else is written after the number.
    why
        What was measured beside it: where the worst is, and the reason where it fails.
    low, high
        95 % interval of the value over trials or seeds; None where no seed changes it.
    method
        How the interval was found.
    """

    where: str
    says: str
    measure: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    why: str = ""
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether it reproduces: not settled where the interval straddles a limit."""
        if math.isnan(self.value):
            return "-"
        least = -math.inf if self.at_least is None else self.at_least
        most = math.inf if self.at_most is None else self.at_most
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if least <= low and high <= most:
            return "yes"
        return "no" if high < least or low > most else "not settled"

    @property
    def reproduced(self) -> bool | None:
        """Whether it reproduces; None where nothing was measured, or it is not settled."""
        return {"yes": True, "no": False}.get(self.verdict)

    @property
    def tolerance(self) -> str:
        """The limits in words."""
        if self.at_least is not None and self.at_most is not None:
            return f"{self.write(self.at_least)} to {self.write(self.at_most)}"
        if self.at_most is not None:
            return f"at most {self.write(self.at_most)}"
        return "any" if self.at_least is None else f"at least {self.write(self.at_least)}"

    @property
    def measured(self) -> str:
        """The value in words, with its interval."""
        if self.low is None or self.high is None:
            return self.write(self.value)
        return f"{self.write(self.value)} ({self.write(self.low)} to {self.write(self.high)})"

    def write(self, value: float) -> str:
        """A value with its unit."""
        if math.isnan(value):
            return "not measured"
        if math.isinf(value):
            return "unbounded"
        if self.unit == "%":
            return f"{100 * value:.3g} %"
        return f"{value:.4g} {self.unit}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """As `inferway study run --json` prints it."""
        return {
            "where": self.where,
            "says": self.says,
            "measure": self.measure,
            "value": self.value,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "unit": self.unit,
            "reproduced": self.reproduced,
            "why": self.why,
            "low": self.low,
            "high": self.high,
            "method": self.method,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Study(Generic[Settings]):
    """One published figure, table or example.

    Attributes
    ----------
    name
        On the command line, and of its folder of results.
    source
        Paper and figure; ``ours`` where there is none.
    shows
        One sentence.
    scales
        Settings by scale; the last, ``paper``, has the paper's own.
    points
        What to run, for settings.
    figure, claims
        What the results say; both take whatever rows there are.
    departures
        Where the paper does not say what it did, or we did otherwise, and what was done.
    code
        Files and folders of the package that the results depend on: a change there makes stored
        rows stale. The file of the points' call is always among them.
    """

    name: str
    source: str
    shows: str
    scales: Mapping[str, Settings]
    points: Callable[[Settings], Sequence[Point]]
    figure: Callable[[Settings, Results], Figure]
    claims: Callable[[Settings, Results], Sequence[Claim]]
    departures: Sequence[str] = field(default=())
    code: Sequence[str] = ("site", "dispatch", "twin", "workload")

    def run(
        self,
        scale: str = "quick",
        *,
        out: Path | str | None = None,
        seed: int = 1,
        workers: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> StudyResult:
        """Compute what is not stored yet; parameters and errors as `inferway.experiments.run`.

        Returns
        -------
        StudyResult
            With `figure`, `claims`, `to_frame()`.
        """
        from inferway.experiments.run import OUT, run
        from inferway.experiments.study_result import StudyResult

        folder = OUT if out is None else Path(out)
        results = run(self, scale, out=folder, seed=seed, workers=workers, progress=progress)
        return StudyResult(self, scale, results)

    @property
    def part(self) -> str:
        """Folder of the studies in which it is defined, and page on which its table stands."""
        return self.points.__module__.split(".")[-2]

    def seconds(self, scale: str) -> float:
        """About how long all its points take on one core."""
        return sum(point.seconds for point in self.points(self.scales[scale]))
