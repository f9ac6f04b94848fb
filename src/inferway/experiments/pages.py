"""The documentation's pages of studies: prose by hand, tables and counts from what is stored.

A page is a Markdown file, one for each part of the studies. What stands between ``<!-- claims: NAME
-->`` and ``<!-- end -->`` is the table of a study, between ``<!-- counts -->`` and ``<!-- end -->``
how many claims of the page reproduce, and between ``<!-- made -->`` and ``<!-- end -->`` where the
numbers are from. All else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from inferway.experiments.claim import MARKDOWN, Claim, as_markdown, counted
from inferway.experiments.intervals import EXPLAINED
from inferway.experiments.machine import made_on
from inferway.experiments.study import OUT, Study, claims_of, options
from inferway.version import __version__

TITLES: Final = {
    "queueing": "Studies of dispatch under an accuracy target",
    "placement": "Studies of placement",
    "scheduling": "Studies of bursts and deadlines",
}
"""Of pages that are made; by part, in the order of the studies."""

_END: Final = "<!-- end -->"
_COUNTS: Final = "<!-- counts -->"
_BLOCK = re.compile(r"<!-- (claims: (?P<name>[\w-]+)|counts|made) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass
class Page:
    """What was written to a file."""

    file: Path
    counts: str
    studies: list[str] = field(default_factory=list)
    """Whose tables were written anew."""
    left: list[str] = field(default_factory=list)
    """Those without a result, left as they were."""

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
    """Write the tables of studies into their pages.

    Parameters
    ----------
    studies
        Those without a result are left as they are.
    scale, out, seed
        Whose results, where they are, and the first of their seeds.
    pages
        Folder of the Markdown files; a missing file is made, a study without markers is appended.

    Returns
    -------
    list of Page
        One for each part, and last the index where it has markers.

    Raises
    ------
    RuntimeError
        Where no study has a result.
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
    lines = [as_markdown(claims)]
    if missing:
        lines += ["", f"Not finished: {missing} of {total} points are missing."]
    if study.departures:
        lines += ["", f"Departures: {' '.join(study.departures)}"]
    return "\n".join(lines)


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
    """Replace what stands between markers."""
    return _BLOCK.sub(
        lambda found: (
            f"<!-- {found[1]} -->\n\n{blocks[found[1]]}\n\n{_END}"
            if found[1] in blocks
            else found[0]
        ),
        text,
    )
