"""Deadlines from 150 to 450 ms under a P98 requirement ([Tan24], Fig. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import VIOLATIONS
from inferway.studies.scheduling.deadline_bound import bound
from inferway.studies.scheduling.look import LABELS, half_width, written
from inferway.studies.scheduling.shipped import at_deadline
from inferway.studies.scheduling.trial import learned_point, point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Panel

_RULES = ("sa", "deadline", "hand", "lw")
_COLORS = {"rl-po": 0, "rl-fo": 1, "sa": 2, "deadline": 3, "hand": 4, "lw": 5}


@dataclass(frozen=True)
class Settings:
    """The paper's deadlines and both kinds of observation."""

    deadlines_s: tuple[float, ...] = tuple(round(0.15 + 0.025 * k, 3) for k in range(13))
    learned: tuple[str, ...] = ("rl-po", "rl-fo")
    slots: int = 600_000
    trials: int = 3


def points(settings: Settings) -> list[Point]:
    """Every deadline; each has policies of its own."""
    found = []
    for deadline_s in settings.deadlines_s:
        for trial in range(settings.trials):
            made = [
                point(row, "map", settings.slots, trial, deadline_s=deadline_s) for row in _RULES
            ]
            made += [
                learned_point(
                    row,
                    row,
                    "map",
                    settings.slots,
                    trial,
                    trained=at_deadline(row, deadline_s),
                    deadline_s=deadline_s,
                )
                for row in settings.learned
            ]
            found += [replace(one, label={**one.label, "deadline": deadline_s}) for one in made]
    return found


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput and violations against the deadline."""
    from inferway.experiments.curves import Curve, panels

    limit = [bound(deadline_s) for deadline_s in settings.deadlines_s]
    across = [1000 * deadline_s for deadline_s in settings.deadlines_s]
    theory = Curve("upper bound", across, [100 * one for one in limit])
    goodput = _panel(settings, results, "goodput", "goodput, overall, %")
    violations = replace(
        _panel(settings, results, "violations", "violations, overall, %"),
        levels=[("P98", 100 * VIOLATIONS)],
    )
    shown = [replace(goodput, curves=[theory, *goodput.curves]), violations]
    return panels(shown, columns=2, title="Required latencies ([Tan24], Fig. 3)")


def _panel(settings: Settings, results: Results, column: str, up: str) -> Panel:
    from inferway.experiments.curves import Curve, Panel

    curves = []
    for row in (*settings.learned, *_RULES):
        found = [
            results.measure(column, row=row, deadline=deadline_s).mean
            for deadline_s in settings.deadlines_s
        ]
        error = [
            100 * half_width(results, column, row=row, deadline=deadline_s)
            for deadline_s in settings.deadlines_s
        ]
        across = [1000 * deadline_s for deadline_s in settings.deadlines_s]
        curves.append(
            Curve(LABELS[row], across, [100 * one for one in found], error, (), _COLORS[row])
        )
    return Panel("", "deadline, ms", up, curves)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. 5.2.1 on Fig. 3."""
    where = "Sec. 5.2.1, Fig. 3"

    def of(column: str, row: str) -> list[float]:
        return [
            results.measure(column, row=row, deadline=deadline_s).mean
            for deadline_s in settings.deadlines_s
        ]

    found = []
    for row in settings.learned:
        values = of("violations", row)
        found.append(
            Claim(
                where,
                f"{LABELS[row]} always meets the P98 requirement.",
                f"greatest violation ratio from {1000 * settings.deadlines_s[0]:g} to "
                f"{1000 * settings.deadlines_s[-1]:g} ms",
                _worst(values),
                at_most=VIOLATIONS,
                unit="%",
                why=_by_deadline(settings, results, row),
            )
        )
    po, lw, sa = (of("goodput", row) for row in ("rl-po", "lw", "sa"))
    if settings.learned:
        falls = [later - earlier for earlier, later in pairwise(po)]
        found += [
            Claim(
                where,
                "RL-PO's goodput falls with the required latency.",
                "least change from a deadline to the next longer one",
                min(falls, default=math.nan),
                at_least=-0.0005,
                unit="%",
                why=", ".join(f"{100 * one:.2f} %" for one in po),
            ),
            Claim(
                where,
                f"Even at {1000 * settings.deadlines_s[0]:g} ms RL-PO is above the conventional "
                "approaches.",
                "its goodput less LW's",
                po[0] - lw[0],
                at_least=0.0,
                unit="%",
                why=_by_deadline(settings, results, "rl-po", "goodput"),
            ),
        ]
    found += [
        Claim(
            where,
            "SA keeps violations of about 0.5 %, below the 2 % that it aims at.",
            "greatest violation ratio",
            _worst(of("violations", "sa")),
            at_most=0.007,
            unit="%",
            why=_by_deadline(settings, results, "sa")
            + "; it holds 2 % in the bursty state, which is 1 % overall",
        ),
        Claim(
            where,
            "SA has a higher goodput than RL-PO.",
            "least goodput of SA less RL-PO's",
            min((a - b for a, b in zip(sa, po, strict=True)), default=math.nan),
            at_least=0.0,
            unit="%",
        ),
        Claim(
            "ours",
            "`deadline` is within 0.02 points of the upper bound at every deadline.",
            "greatest distance",
            _worst(
                [
                    bound(deadline_s) - value
                    for deadline_s, value in zip(
                        settings.deadlines_s, of("goodput", "deadline"), strict=True
                    )
                ]
            ),
            at_most=0.0002,
            unit="%",
            why=_by_deadline(settings, results, "deadline", "goodput"),
        ),
    ]
    return found


def _worst(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def _by_deadline(settings: Settings, results: Results, row: str, column: str = "violations") -> str:
    return ", ".join(
        f"{1000 * deadline_s:g} ms: {written(results, column, row=row, deadline=deadline_s)} %"
        for deadline_s in settings.deadlines_s
    )


_PAPER = Settings()
STUDY = Study(
    name="deadlines",
    source="[Tan24], Fig. 3",
    shows="Goodput and violations of schedulers as the required latency grows from 150 to 450 ms.",
    scales={
        "smoke": replace(
            _PAPER, deadlines_s=(0.15, 0.45), learned=("rl-po",), slots=20_000, trials=1
        ),
        "quick": replace(_PAPER, deadlines_s=(0.15, 0.25, 0.35, 0.45)),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The policy of another deadline than 300 ms begins with that of 300 ms, which is trained "
        "further for the new deadline.",
    ),
    code=CODE,
)
