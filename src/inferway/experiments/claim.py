"""Claims: sentences that are checked by number, and how terminals and pages write them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal

from inferway.experiments.text import Frame, frame

if TYPE_CHECKING:
    from rich.text import Text

# Of a table of claims.
HEADINGS: Final = ("where", "claim", "measured", "value", "reproduces", "reproduced", "beside it")
# The same in Markdown, where a value stands beside its measure.
MARKDOWN: Final = ("where", "claim", "measured", "reproduces", "", "beside it")
_COLORS: Final = {"yes": "green", "no": "red", "not settled": "yellow", "-": "dim"}

_ROUNDING: Final = 1e-15
"""What is less than this is what sums of rounded numbers leave of 0."""

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
        """Say if it reproduces: not settled where the interval straddles a limit."""
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
        """The verdict; None where nothing was measured, or it is not settled."""
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
        """Write a value with its unit."""
        if math.isnan(value):
            return "not measured"
        if math.isinf(value):
            return "unbounded"
        if abs(value) < _ROUNDING:
            value = 0.0
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

    def number(text: str) -> float:
        if unit == "%":
            return float(f"{float(text) * 0.01:.12g}")
        return int(text) if text.isdigit() else float(text)

    least = None if read["end"] == "at most" else number(read["low"] or read["number"])
    most = None if read["end"] == "at least" else number(read["number"])
    return Claim(where, says, measure, value, least, most, unit, why, **interval)


_PART = re.compile(r"\n\s*-(?:\s+|$)")
_SAYS = re.compile(r"(?:\[(?P<where>[^\]]+)\] )?(?P<says>.+)")
_MEASURE = re.compile(r"(?P<measure>.+): (?P<value>\S+) \((?P<limit>[^()]+)\)")


def claims(*texts: str) -> list[Claim]:
    """Read claims as they are written: a list of sentences, with what is measured, and why.

    ::

        * [Sec. 8] The gain decreases as alpha increases.
          - largest step upwards of the gain: 0.3125 (at most 0.5 ms)
          - from 12.1 to 3.4 ms

    Parameters
    ----------
    texts
        A claim each, or several: a list, or with empty lines between. One that does not say where
        it stands stands where the one before it does; values are numbers in full, limits as of
        `claim`, and why may be left out.

    Raises
    ------
    ValueError
        For a claim of another form.
    """
    made, where = [], ""
    whole = "\n* ".join(text.strip().removeprefix("* ") for text in texts)
    for written in re.split(r"\n\s*(?:\n|\* )", whole):
        parts = [*_PART.split(written.strip(), maxsplit=2), "", ""][:3]
        said, number, why = (" ".join(part.split()) for part in parts)
        sentence, measured = _SAYS.fullmatch(said), _MEASURE.fullmatch(number)
        if sentence is None or measured is None:
            raise ValueError(f"a claim is a sentence, a measure and why, not {written!r}")
        where = sentence["where"] or where
        value = float(measured["value"])
        made.append(
            claim(where, sentence["says"], measured["measure"], value, measured["limit"], why)
        )
    return made


ours = partial(claim, "ours")
"""A claim that stands in no paper."""


def percents(values: Mapping[Any, float], digits: str = ".1f", said: str = "{}: {}") -> str:
    """Ratios by name, in percent."""
    return ", ".join(said.format(name, f"{100 * one:{digits}} %") for name, one in values.items())


def as_text(claims: Iterable[Claim], *, short: bool = False) -> list[Text]:
    """Write claims for a terminal: verdict, sentence, what was measured and what it needs.

    In short a line each: what does not hold for sure has `NO`, and `why` says what was measured.
    """
    from rich.text import Text

    if short:
        return [Text(f"{'yes' if c.reproduced else 'NO '}  {c.says} ({c.why})") for c in claims]
    return [
        Text.assemble(
            *((f"{one.verdict:<3}", _COLORS[one.verdict]), f" {one.says} "),
            *((f"[{one.where}]", "dim"), f"\n    {one.measure}: ", (one.measured, "bold")),
            *(f" (reproduces {one.tolerance})", (f"\n    {one.why}" if one.why else "", "dim")),
        )
        for one in claims
    ]


def as_frame(claims: Iterable[Claim]) -> Frame:
    """Write claims for a notebook: sentence, value, tolerance and verdict."""
    shown = frame(one.cells() for one in claims)[["claim", "value", "reproduces", "reproduced"]]
    return shown.rename(columns={"value": "measured", "reproduced": ""})


def as_html(claims: Iterable[Claim]) -> str:
    """Write claims as rows of an HTML table; the class of a verdict's cell is its color."""
    rows = ""
    for one in claims:
        verdict = {"not settled": "open", "-": ""}.get(one.verdict, one.verdict)
        # Cells of the class "number" are never broken into lines.
        kinds = {**dict.fromkeys(("where", "value", "reproduces"), "number"), "reproduced": verdict}
        cells = (
            f'<td class="{kind}">{escape(cell)}</td>' if kind else f"<td>{escape(cell)}</td>"
            for kind, cell in ((kinds.get(name), cell) for name, cell in one.cells().items())
        )
        rows += f"<tr>{''.join(cells)}</tr>\n"
    return rows


def as_markdown(claims: Iterable[Claim]) -> str:
    """Write claims as a Markdown table."""
    rows: list[Iterable[str]] = [MARKDOWN]
    for one in claims:
        cells, value = one.cells(), one.write(one.value)
        interval = cells.pop("value").removeprefix(value)
        cells["measured"] += f": **{value}**{interval}"
        if one.verdict not in ("yes", "-"):
            cells["reproduced"] = f"**{one.verdict}**"
        rows.append(cells.values())
    clean = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    head, *lines = (f"| {' | '.join(row)} |" for row in clean)
    return "\n".join([head, "|" + "---|" * len(MARKDOWN), *lines])


def counted(of: Iterable[tuple[str, str]]) -> str:
    """Count the papers' claims in a sentence, from where each stands and its verdict."""
    count = Counter(verdict for where, verdict in of if not where.startswith("ours"))
    total = count["yes"] + count["no"] + count["not settled"]
    return (
        f"{count['yes']} of the papers' {total} checked claims reproduce, {count['no']} do not, "
        f"and {count['not settled']} are not settled."
    )
