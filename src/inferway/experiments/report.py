"""All studies that have been run, on one HTML page that needs nothing else: figures inside it,
tables, light or dark as the reader.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import fields
from datetime import date
from html import escape
from pathlib import Path
from typing import Any, Final

from inferway.experiments.claim import Claim, as_html, counted
from inferway.experiments.intervals import EXPLAINED
from inferway.experiments.machine import made_on
from inferway.experiments.results import Results
from inferway.experiments.study import OUT, Study, claims_of, options
from inferway.version import __version__

_DPI: Final = 110
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
        f'<li><a href="#{escape(study.name)}">{escape(_title(study))}</a></li>'
        for study, *_ in shown
    )
    paragraphs = "".join(f'<p class="quiet">{escape(one)}</p>' for one in lead)
    command = f"inferway study run --all {options(scale, seed)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Inferway: studies</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Inferway: studies</h1>\n{paragraphs}\n<pre>{escape(command)}</pre>\n"
        f"<ul>{links}</ul>\n{''.join(_section(scale, *one) for one in shown)}</body>\n</html>\n"
    )


def _title(study: Study[Any]) -> str:
    return f"{study.name}: {study.source}"


def _section(
    scale: str, study: Study[Any], results: Results, missing: int, claims: Sequence[Claim]
) -> str:
    settings = study.scales[scale]
    drawn = io.BytesIO()
    study.figure(settings, results).savefig(drawn, format="png", dpi=_DPI)
    said = [f"{one.name} = {getattr(settings, one.name)!r}" for one in fields(settings)]
    notes = [*study.departures, f"Settings: {'; '.join(said)}."]
    if missing:
        notes.insert(0, f"Not finished: {missing} of {missing + len(results)} points are missing.")
    title = escape(_title(study))
    data = base64.b64encode(drawn.getvalue()).decode()
    return (
        f'<h2 id="{escape(study.name)}">{title}</h2>\n<p>{escape(study.shows)}</p>\n'
        f'<img alt="{title}" src="data:image/png;base64,{data}">\n{as_html(claims)}'
        f'<ul class="quiet">{"".join(f"<li>{escape(one)}</li>" for one in notes)}</ul>\n'
    )
