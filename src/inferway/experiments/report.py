"""All studies that have been run, on one HTML page that needs nothing else: figures inside it,
tables, light or dark as the reader.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import HEADINGS, Claim
from inferway.experiments.intervals import METHODS
from inferway.experiments.machine import machine
from inferway.experiments.results import Results
from inferway.experiments.study import OUT, Study, checked, stored
from inferway.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_DPI = 110
_MARKS = {"yes": "yes", "no": "no", "not settled": "open"}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --quiet: #5b6167; --line: #d8dce0;
  --paper: #ffffff; --card: #f6f7f9; --good: #0a7a55; --bad: #b3400a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --quiet: #9aa2aa; --line: #3a4047;
  --paper: #15181c; --card: #1e2227; --good: #4cc79a; --bad: #f0975a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .2rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
p { margin: .3rem 0; } .quiet { color: var(--quiet); font-size: .92rem; }
a { color: inherit; } code { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: var(--card); padding: .7rem .9rem; overflow-x: auto; border-radius: 6px; }
img { display: block; max-width: 100%; margin: 1rem 0; background: #ffffff; padding: .6rem;
  border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .88rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; } td.number { white-space: nowrap; }
.yes { color: var(--good); font-weight: 600; } .no { color: var(--bad); font-weight: 600; }
.open { color: var(--quiet); font-weight: 600; }
ul { margin: .3rem 0; padding-left: 1.2rem; }
"""


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes
    ----------
    columns, rows
        Headings and cells.
    short
        Numbers of the columns that are never broken.
    marks
        Number of the column that says ``yes``, ``no`` or ``not settled``, set in color; None for
        none.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    short: Sequence[int] = ()
    marks: int | None = None


@dataclass(frozen=True)
class Section:
    """One heading and what stands below it.

    Attributes
    ----------
    name, title, text
        Its anchor, its heading, and a paragraph.
    figure
        Drawn as a PNG inside the page; None for none.
    sheets
        Tables, in order.
    notes
        A list below them.
    """

    name: str
    title: str
    text: str = ""
    figure: Figure | None = None
    sheets: Sequence[Sheet] = field(default=())
    notes: Sequence[str] = field(default=())


def report(
    studies: Sequence[Study[Any]], scale: str = "quick", *, out: Path = OUT, seed: int = 1
) -> str:
    """Write one HTML page with figures, claims and settings.

    Parameters
    ----------
    studies
        Those without any result are named, and left out.
    scale
        Whose results to show.
    out
        Where they are.
    seed
        The first of their seeds.

    Returns
    -------
    str
        HTML that needs no other file.

    Raises
    ------
    RuntimeError
        Where no study has a result.
    """
    found = [(study, *stored(study, scale, out=out, seed=seed)) for study in studies]
    shown = [(study, results, missing) for study, results, missing in found if len(results)]
    again = f"inferway study run --all --scale {scale}" + f" --seed {seed}" * (seed != 1)
    if not shown:
        raise RuntimeError(f"there are no results at scale {scale} in {out}: `{again}` makes them")
    absent = [study.name for study, results, _ in found if not len(results)]
    claims = {
        study.name: checked(study, study.scales[scale], results) for study, results, _ in shown
    }
    verdicts = [(one.where, one.verdict) for of in claims.values() for one in of]
    lead = [
        f"{counted(verdicts)} The others stand in the tables with what was measured.",
        *METHODS_SAID,
        f"Inferway {__version__}, {date.today().isoformat()}, scale {scale}, seed {seed}; "
        f"{made_on()}.",
        *([f"Without results: {', '.join(absent)}."] if absent else []),
    ]
    sections = [
        _section(study, scale, results, missing, claims[study.name])
        for study, results, missing in shown
    ]
    return page("Inferway: studies", lead, again, sections)


METHODS_SAID = (
    "In brackets: 95 % intervals, "
    + "; or ".join(METHODS.values())
    + ". A claim whose interval straddles its limit is not settled.",
)
"""What the tables' brackets are."""


def counted(verdicts: Iterable[tuple[str, str]]) -> str:
    """Count the claims of the papers, from where each stands and its verdict, in a sentence."""
    of = Counter(verdict for where, verdict in verdicts if not where.startswith("ours"))
    total = of["yes"] + of["no"] + of["not settled"]
    return (
        f"{of['yes']} of the papers' {total} checked claims reproduce, {of['no']} do not, and "
        f"{of['not settled']} are not settled."
    )


def made_on() -> str:
    """The machine and its versions in words."""
    facts = machine()
    return (
        f"{facts['cores']} cores, {facts['processor']}, {facts['system']}, Python "
        f"{facts['python']}, NumPy {facts['numpy']}, Numba {facts['numba']}"
    )


def _section(
    study: Study[Any], scale: str, results: Results, missing: int, claims: Sequence[Claim]
) -> Section:
    settings = study.scales[scale]
    said = [f"{one.name} = {getattr(settings, one.name)!r}" for one in fields(settings)]
    notes = [*study.departures, f"Settings: {'; '.join(said)}."]
    if missing:
        notes.insert(0, f"Not finished: {missing} of {missing + len(results)} points are missing.")
    return Section(
        name=study.name,
        title=f"{study.name}: {study.source}",
        text=study.shows,
        figure=study.figure(settings, results),
        sheets=[Sheet(HEADINGS, [list(one.cells().values()) for one in claims], (0, 3, 4), 5)],
        notes=notes,
    )


def page(title: str, lead: Sequence[str], command: str, sections: Sequence[Section]) -> str:
    """Write a page.

    Parameters
    ----------
    title, lead
        Heading and the paragraphs below it.
    command
        What prints the numbers; shown as it is.
    sections
        The rest, each also in the list at the top.

    Returns
    -------
    str
        HTML, with nothing to load.
    """
    links = "".join(
        f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a></li>' for one in sections
    )
    paragraphs = "".join(f'<p class="quiet">{escape(one)}</p>' for one in lead)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{paragraphs}\n<pre>{escape(command)}</pre>\n"
        f"<ul>{links}</ul>\n{''.join(map(_written, sections))}</body>\n</html>\n"
    )


def _written(section: Section) -> str:
    parts = [f'<h2 id="{escape(section.name)}">{escape(section.title)}</h2>\n']
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>\n")
    if section.figure is not None:
        data = base64.b64encode(_png(section.figure)).decode()
        parts.append(f'<img alt="{escape(section.title)}" src="data:image/png;base64,{data}">\n')
    parts += map(_sheet, section.sheets)
    if section.notes:
        notes = "".join(f"<li>{escape(one)}</li>" for one in section.notes)
        parts.append(f'<ul class="quiet">{notes}</ul>\n')
    return "".join(parts)


def _sheet(sheet: Sheet) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in sheet.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(sheet, place, text) for place, text in enumerate(row))}</tr>\n"
        for row in sheet.rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _cell(sheet: Sheet, place: int, text: str) -> str:
    kinds = ["number"] * (place in sheet.short)
    if place == sheet.marks and text in _MARKS:
        kinds.append(_MARKS[text])
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<td{kind}>{escape(text)}</td>"


def _png(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=_DPI)
    return held.getvalue()
