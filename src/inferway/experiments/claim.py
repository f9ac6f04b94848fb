"""Claims: sentences that are checked by number, and how they are written in every table."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

HEADINGS = ("where", "claim", "measured", "value", "reproduces", "reproduced", "beside it")
"""Of a table of claims."""

Verdict = Literal["yes", "no", "not settled", "-"]


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

    def cells(self) -> dict[str, str]:
        """Return what tables say of it, by `HEADINGS`."""
        said = (self.where, self.says, self.measure, self.measured, self.tolerance)
        return dict(zip(HEADINGS, (*said, self.verdict, self.why), strict=True))

    def to_json(self) -> dict[str, Any]:
        """As `inferway study run --json` prints it."""
        order = (
            *("where", "says", "measure", "value", "at_least", "at_most", "unit", "reproduced"),
            *("why", "low", "high", "method", "verdict"),
        )
        return {name: getattr(self, name) for name in order}


_LIMIT = re.compile(
    r"(?:(?P<end>at least|at most) |(?P<low>\S+) to )(?P<number>\S+)(?: (?P<unit>.+))?"
)


def claim(
    where: str, says: str, measure: str, value: float, limit: str, why: str = "", **interval: Any
) -> Claim:
    """Make a claim whose limit is written as tables show it.

    Parameters
    ----------
    where, says, measure, value, why
        As of `Claim`.
    limit
        ``at most 0.2 %``, ``at least 1.5``, ``0.5 to 0.6 s``: a number, or two, and the unit.
    interval
        ``low``, ``high`` and ``method`` of `Claim`, where it brings its own.

    Raises
    ------
    ValueError
        For a limit of another form.
    """
    read = _LIMIT.fullmatch(limit)
    if read is None:
        raise ValueError(f"a limit is such as 'at most 0.2 %' or '1 to 2 s', not {limit!r}")
    unit = read["unit"] or ""
    size = 0.01 if unit == "%" else 1.0
    low, high = read["low"], read["number"]
    if read["end"] is not None:
        low, high = (high, None) if read["end"] == "at least" else (None, high)
    least, most = (None if end is None else _scaled(end, size) for end in (low, high))
    return Claim(where, says, measure, value, least, most, unit, why, **interval)


def _scaled(number: str, size: float) -> float:
    if size != 1.0:
        return float(f"{float(number) * size:.12g}")
    return int(number) if number.isdigit() else float(number)
