"""All studies that have been run: on one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from html import escape
from pathlib import Path
from typing import Any, Final

from inferway.experiments.claim import HEADINGS, MARKDOWN, Claim, as_html, as_markdown, counted
from inferway.experiments.document import document, drawn, section, table_of
from inferway.experiments.results import EXPLAINED, Results
from inferway.experiments.study import OUT, Study, claims_of, options
from inferway.machine import made_on
from inferway.version import __version__


def report(
    studies: Sequence[Study[Any]], scale: str = "quick", *, out: Path = OUT, seed: int = 1
) -> str:
    """Write one HTML page, which needs no other file, with figures, claims and settings.

    Studies without any result are named, and left out; RuntimeError where none has one.
    """
    shown = list(claims_of(studies, scale, out=out, seed=seed))
    verdicts = [(one.where, one.verdict) for *_, claims in shown for one in claims]
    present = {study.name for study, *_ in shown}
    absent = [study.name for study in studies if study.name not in present]
    lead = [
        f"{counted(verdicts)} The others stand in the tables with what was measured.",
        EXPLAINED,
        f"Inferway {__version__}, {date.today().isoformat()}, scale {scale}, seed {seed}; "
        f"{made_on()}.",
        *([f"Without results: {', '.join(absent)}."] if absent else []),
    ]
    links = "".join(
        f'<li><a href="#{escape(study.name)}">{escape(f"{study.name}: {study.source}")}</a></li>'
        for study, *_ in shown
    )
    command = f"inferway study run --all {options(scale, seed)}"
    head = f"<pre>{escape(command)}</pre>\n<ul>{links}</ul>"
    nav = f'<nav class="panel" aria-label="Studies">{head}</nav>\n'
    return document("Studies", lead, [nav, *(_section(scale, *one) for one in shown)])


def _section(
    scale: str, study: Study[Any], results: Results, missing: int, claims: Sequence[Claim]
) -> str:
    settings, read = _watched(study.scales[scale])
    study.points(settings)
    figure = study.figure(settings, results)
    said = [f"{name} = {value!r}" for name, value in vars(settings).items() if name in read]
    notes = [*study.departures, f"Settings: {'; '.join(said)}."]
    if missing:
        notes.insert(0, f"Not finished: {missing} of {missing + len(results)} points are missing.")
    title = f"{study.name}: {study.source}"
    return section(
        title,
        f"<p>{escape(study.shows)}</p>\n",
        drawn(figure, title, study.name),
        table_of(HEADINGS, as_html(claims), f"Claims of {study.name}", "claims"),
        f'<ul class="note">{"".join(f"<li>{escape(one)}</li>" for one in notes)}</ul>\n',
        anchor=study.name,
    )


def _watched(settings: Any) -> tuple[Any, set[str]]:
    """Copy settings so that the names of those that are read are noted.

    Studies of one form share a class of settings, of which each reads its own.
    """
    read: set[str] = set()

    def noted(self: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    kind, values = type(settings), dict(vars(settings))
    copy = type(kind.__name__, (kind,), {"__getattribute__": noted})(**values)
    read.clear()
    return copy, read


# Of pages that are made; by part, in the order of the studies.
TITLES: Final = {
    "queueing": "Studies of dispatch under an accuracy target",
    "placement": "Studies of placement",
    "scheduling": "Studies of bursts and deadlines",
}

_END: Final = "<!-- end -->"
_COUNTS: Final = "<!-- counts -->"
_BLOCK = re.compile(r"<!-- (claims: (?P<name>[\w-]+)|counts|made) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass
class Page:
    """A file that was written: the studies whose tables are new, and those without a result."""

    file: Path
    counts: str
    studies: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As `inferway study tables --json` prints it."""
        return {"studies": self.studies, "without_results": self.left, "counts": self.counts}


def write(
    studies: Sequence[Study[Any]],
    scale: str = "quick",
    *,
    pages: Path,
    out: Path = OUT,
    seed: int = 1,
) -> list[Page]:
    """Write the tables of studies, whose results are in `out`, into Markdown files in `pages`.

    A missing file is made, a study without markers is appended, and one without a result is left
    as it is. Returns a page for each part, and last the index where it has markers. RuntimeError
    where no study has a result.
    """
    tables = {
        study.name: table(study, claims, missing=missing, total=len(results) + missing)
        for study, results, missing, claims in claims_of(studies, scale, out=out, seed=seed)
    }
    pages.mkdir(parents=True, exist_ok=True)
    made = []
    for part, title in TITLES.items():
        own = [study.name for study in studies if study.part == part]
        if done := {name: tables[name] for name in own if name in tables}:
            file = pages / f"{part}.md"
            text = file.read_text(encoding="utf-8") if file.exists() else f"# {title}\n"
            text, counts = _page(text, done, scale, seed)
            file.write_text(text, encoding="utf-8")
            made.append(Page(file, counts, list(done), [one for one in own if one not in done]))
    index = pages / "index.md"
    text = index.read_text(encoding="utf-8") if index.exists() else ""
    if _COUNTS in text:
        files = (file for part in TITLES if (file := pages / f"{part}.md").exists())
        counts = counted(one for file in files for one in verdicts(file.read_text("utf-8")))
        index.write_text(_replaced(text, {"counts": counts}), encoding="utf-8")
        made.append(Page(index, counts))
    return made


def table(study: Study[Any], claims: Sequence[Claim], *, missing: int = 0, total: int = 0) -> str:
    """A study's claims as a Markdown table, with what it did otherwise than the paper."""
    unfinished = f"Not finished: {missing} of {total} points are missing." if missing else ""
    departures = f"Departures: {' '.join(study.departures)}" if study.departures else ""
    return "\n\n".join(filter(None, (as_markdown(claims), unfinished, departures)))


def verdicts(text: str) -> Iterator[tuple[str, str]]:
    """Yield where each claim of a page's tables stands, and its verdict."""
    for block in _BLOCK.finditer(text):
        for line in block[0].splitlines() if block["name"] else ():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == len(MARKDOWN) and cells[0] not in (MARKDOWN[0], "---"):
                yield cells[0], cells[4].strip("*")


def _page(text: str, tables: Mapping[str, str], scale: str, seed: int) -> tuple[str, str]:
    """Put tables into a page's text; return it, and how many of its claims reproduce."""
    present = {block["name"] for block in _BLOCK.finditer(text) if block["name"]}
    for name in tables:
        if name not in present:
            text = f"{text.rstrip()}\n\n## {name}\n\n<!-- claims: {name} -->\n{_END}\n"
    if _COUNTS not in text:
        head, _, rest = text.partition("\n")
        text = f"{head}\n\n{_COUNTS}\n{_END}\n{rest}"
    if "<!-- made -->" not in text:
        text = f"{text.rstrip()}\n\n<!-- made -->\n{_END}\n"
    text = _replaced(text, {f"claims: {name}": written for name, written in tables.items()})
    counts, asked = counted(verdicts(text)), options(scale, seed)
    said = (
        f"Tables of {date.today().isoformat()}, Inferway {__version__}, scale {scale}, "
        f"seed {seed}; {made_on()}; other work beside it. {EXPLAINED}\n\n"
        f"    inferway study run {asked} {' '.join(tables)}\n"
        f"    inferway study tables {asked} --out docs/studies"
    )
    if older := sorted(present - tables.keys()):
        said += f"\n\nTables left from an earlier run: {', '.join(older)}."
    return _replaced(text, {"counts": f"**{counts}**", "made": said}), counts


def _replaced(text: str, blocks: Mapping[str, str]) -> str:
    return _BLOCK.sub(
        lambda found: (
            f"<!-- {found[1]} -->\n\n{blocks[found[1]]}\n\n{_END}"
            if found[1] in blocks
            else found[0]
        ),
        text,
    )
