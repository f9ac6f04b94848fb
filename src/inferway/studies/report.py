"""All studies that have been run, on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

from inferway import __version__
from inferway.report.machine import machine
from inferway.report.page import Section, Sheet, page
from inferway.studies.results import Results
from inferway.studies.run import OUT, stored
from inferway.studies.study import Claim, Study

__all__ = ["claims_table", "report"]

_COLUMNS = ("where", "claim", "measured", "value", "reproduces", "reproduced", "beside it")


def report(studies: Sequence[Study[Any]], scale: str = "quick", *, out: Path = OUT) -> str:
    """Write one HTML page with figures, claims and settings.

    Parameters
    ----------
    studies
        Those without any result are named, and left out.
    scale
        Whose results to show.
    out
        Where they are.

    Returns
    -------
    str
        HTML that needs no other file.

    Raises
    ------
    RuntimeError
        Where no study has a result.
    """
    found = [(study, *stored(study, scale, out=out)) for study in studies]
    shown = [(study, results, missing) for study, results, missing in found if len(results)]
    if not shown:
        raise RuntimeError(
            f"there are no results at scale {scale} in {out}: "
            f"`inferway study run --all --scale {scale}` makes them"
        )
    absent = [study.name for study, results, _ in found if not len(results)]
    settled = [
        claim
        for study, results, _ in shown
        for claim in study.claims(study.scales[scale], results)
        if claim.where != "ours" and claim.reproduced is not None
    ]
    held = sum(claim.reproduced is True for claim in settled)
    facts = machine()
    lead = [
        f"{held} of {len(settled)} checked claims of the papers reproduce; the others stand in the "
        "tables with what was measured.",
        f"Inferway {__version__}, {date.today().isoformat()}, scale {scale}; "
        f"{facts['cores']} cores, {facts['processor']}, {facts['system']}, Python "
        f"{facts['python']}, NumPy {facts['numpy']}, Numba {facts['numba']}.",
        *([f"Without results: {', '.join(absent)}."] if absent else []),
    ]
    sections = [_section(study, scale, results, missing) for study, results, missing in shown]
    return page("Inferway: studies", lead, f"inferway study run --all --scale {scale}", sections)


def claims_table(claims: Sequence[Claim]) -> list[list[str]]:
    """Claims as rows of text, under the headings of the page."""
    words = {True: "yes", False: "no", None: "-"}
    return [
        [
            claim.where,
            claim.says,
            claim.measure,
            claim.measured,
            claim.tolerance,
            words[claim.reproduced],
            claim.why,
        ]
        for claim in claims
    ]


def _section(study: Study[Any], scale: str, results: Results, missing: int) -> Section:
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
        sheets=[
            Sheet(
                _COLUMNS,
                claims_table(study.claims(settings, results)),
                short=(0, 3, 4),
                marks=5,
            )
        ],
        notes=notes,
    )
