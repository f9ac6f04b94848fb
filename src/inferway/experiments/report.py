"""All studies that have been run, on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

from inferway.experiments.claim import HEADINGS, Claim
from inferway.experiments.html import Section, Sheet, page
from inferway.experiments.intervals import METHODS
from inferway.experiments.machine import machine
from inferway.experiments.results import Results
from inferway.experiments.study import OUT, Study, checked, stored
from inferway.version import __version__


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
