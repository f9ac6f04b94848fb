"""The documentation's pages of studies: prose by hand, tables and counts from what is stored.

A page is a Markdown file, one for each part of the studies. What stands between ``<!-- claims: NAME
-->`` and ``<!-- end -->`` is the table of a study, between ``<!-- counts -->`` and ``<!-- end -->``
how many claims of the page reproduce, and between ``<!-- made -->`` and ``<!-- end -->`` where the
numbers are from. All else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from inferway.experiments.claim import Claim
from inferway.experiments.report import METHODS_SAID, counted, made_on
from inferway.experiments.study import OUT, Study, checked, stored
from inferway.version import __version__

TITLES = {
    "queueing": "Studies of dispatch under an accuracy target",
    "placement": "Studies of placement",
    "scheduling": "Studies of bursts and deadlines",
}
"""Of pages that are made; by part, in the order of the studies."""

_INDEX = "index"
_END = "<!-- end -->"
_BLOCK = re.compile(r"<!-- (claims: (?P<name>[\w-]+)|counts|made) -->\n.*?<!-- end -->", re.DOTALL)
_HEAD = ("where", "claim", "measured", "reproduces", "", "beside it")


@dataclass
class Page:
    """What was written to a file."""

    file: Path
    studies: list[str] = field(default_factory=list)
    """Whose tables were written anew."""
    left: list[str] = field(default_factory=list)
    """Those without a result, left as they were."""
    counts: str = ""

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
    made, tables = [], {}
    for study in studies:
        results, missing = stored(study, scale, out=out, seed=seed)
        if len(results):
            claims = checked(study, study.scales[scale], results)
            tables[study.name] = table(study, claims, missing=missing, total=len(results) + missing)
    if not tables:
        raise RuntimeError(
            f"there are no results at scale {scale} in {out}: "
            f"`inferway study run --all --scale {scale}{_seed(seed)}` makes them"
        )
    pages.mkdir(parents=True, exist_ok=True)
    for part, title in TITLES.items():
        own = [study.name for study in studies if study.part == part]
        if any(name in tables for name in own):
            made.append(_page(pages / f"{part}.md", title, own, tables, scale, seed))
    index = pages / f"{_INDEX}.md"
    if index.exists() and "<!-- counts -->" in index.read_text(encoding="utf-8"):
        texts = (pages / f"{part}.md" for part in TITLES)
        found = [one for file in texts if file.exists() for one in verdicts(file.read_text())]
        made.append(Page(index, counts=counted(found)))
        _replace(index, {"counts": made[-1].counts})
    return made


def table(study: Study[Any], claims: Sequence[Claim], *, missing: int = 0, total: int = 0) -> str:
    """A study's claims as a Markdown table, with what it did otherwise than the paper."""
    lines = [_row(_HEAD), "|" + "---|" * len(_HEAD)]
    for claim in claims:
        cells, value = claim.cells(), claim.write(claim.value)
        interval = cells.pop("value").removeprefix(value)
        cells["measured"] += f": **{value}**{interval}"
        if claim.verdict not in ("yes", "-"):
            cells["reproduced"] = f"**{claim.verdict}**"
        lines.append(_row(list(cells.values())))
    if missing:
        lines += ["", f"Not finished: {missing} of {total} points are missing."]
    if study.departures:
        lines += ["", f"Departures: {' '.join(study.departures)}"]
    return "\n".join(lines)


def verdicts(text: str) -> Iterable[tuple[str, str]]:
    """Where each claim of a page's tables stands, and its verdict."""
    for block in _BLOCK.finditer(text):
        for line in block[0].splitlines() if block["name"] else ():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == len(_HEAD) and cells[0] not in (_HEAD[0], "---"):
                yield cells[0], cells[4].strip("*")


def _page(
    file: Path, title: str, own: Sequence[str], tables: dict[str, str], scale: str, seed: int
) -> Page:
    text = file.read_text(encoding="utf-8") if file.exists() else f"# {title}\n"
    present = {block["name"] for block in _BLOCK.finditer(text)}
    for name in own:
        if name in tables and name not in present:
            text = f"{text.rstrip()}\n\n## {name}\n\n<!-- claims: {name} -->\n{_END}\n"
    if "<!-- counts -->" not in text:
        head, _, rest = text.partition("\n")
        text = f"{head}\n\n<!-- counts -->\n{_END}\n{rest}"
    if "<!-- made -->" not in text:
        text = f"{text.rstrip()}\n\n<!-- made -->\n{_END}\n"
    file.write_text(text, encoding="utf-8")
    done = [name for name in own if name in tables]
    _replace(file, {f"claims: {name}": tables[name] for name in done})
    counts = counted(verdicts(file.read_text(encoding="utf-8")))
    said = (
        f"Tables of {date.today().isoformat()}, Inferway {__version__}, scale {scale}, "
        f"seed {seed}; {made_on()}; other work beside it. {METHODS_SAID[0]}\n\n"
        f"    inferway study run --scale {scale}{_seed(seed)} {' '.join(done)}\n"
        f"    inferway study tables --scale {scale}{_seed(seed)} --out docs/studies"
    )
    older = [name for name in sorted(present - {None, *done}) if name]
    if older:
        said += f"\n\nTables left from an earlier run: {', '.join(older)}."
    _replace(file, {"counts": f"**{counts}**", "made": said})
    return Page(file, done, [name for name in own if name not in tables], counts)


def _replace(file: Path, blocks: dict[str, str]) -> None:
    """Write what stands between markers."""

    def fresh(found: re.Match[str]) -> str:
        kind = found[1]
        return f"<!-- {kind} -->\n\n{blocks[kind]}\n\n{_END}" if kind in blocks else found[0]

    change: Callable[[re.Match[str]], str] = fresh
    text = file.read_text(encoding="utf-8")
    file.write_text(_BLOCK.sub(change, text), encoding="utf-8")


def _seed(seed: int) -> str:
    return f" --seed {seed}" if seed != 1 else ""


def _row(cells: Sequence[str]) -> str:
    said = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(said)} |"
