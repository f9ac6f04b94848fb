"""Deadlines from 150 to 450 ms under a P98 requirement ([Tan24], Fig. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.results import largest
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import VIOLATIONS
from inferway.studies.scheduling.deadline_bound import bound
from inferway.studies.scheduling.look import LABELS, half_width, written
from inferway.studies.scheduling.shipped import at_deadline
from inferway.studies.scheduling.trial import learned_point, point

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
    made = []
    for deadline_s in settings.deadlines_s:
        for trial in range(settings.trials):
            run = ("map", settings.slots, trial)
            here = [point(row, *run, deadline_s=deadline_s) for row in _RULES]
            here += [
                learned_point(
                    row, row, *run, trained=at_deadline(row, deadline_s), deadline_s=deadline_s
                )
                for row in settings.learned
            ]
            made += [replace(one, label={**one.label, "deadline": deadline_s}) for one in here]
    return made


def figure(settings: Settings, results: Results) -> Drawing:
    """Goodput and violations against the deadline."""
    across = [1000 * deadline_s for deadline_s in settings.deadlines_s]

    def curves(column: str) -> list[Curve]:
        drawn = []
        for row in (*settings.learned, *_RULES):
            here = results.where(row=row)
            y = [100 * one for one in here.means(column, deadline=settings.deadlines_s)]
            error = [100 * half_width(here, column, deadline=one) for one in settings.deadlines_s]
            drawn.append(Curve(LABELS[row], across, y, error, (), _COLORS[row]))
        return drawn

    limit = Curve("upper bound", across, [100 * bound(one) for one in settings.deadlines_s])
    p98, late = [("P98", 100 * VIOLATIONS)], "violations, overall, %"
    shown = [
        Panel("", "deadline, ms", "goodput, overall, %", [limit, *curves("goodput")]),
        Panel("", "deadline, ms", late, curves("violations"), levels=p98),
    ]
    return panels(shown, columns=2, title="Required latencies ([Tan24], Fig. 3)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. 5.2.1 on Fig. 3."""
    where, deadlines_s = "Sec. 5.2.1, Fig. 3", settings.deadlines_s
    first, last = (f"{1000 * deadlines_s[end]:g}" for end in (0, -1))

    def of(column: str, row: str) -> list[float]:
        return results.where(row=row).means(column, deadline=deadlines_s)

    def by_deadline(row: str, column: str = "violations") -> str:
        return ", ".join(
            f"{1000 * one:g} ms: {written(results, column, row=row, deadline=one)} %"
            for one in deadlines_s
        )

    po, lw, sa, rule = (of("goodput", row) for row in ("rl-po", "lw", "sa", "deadline"))
    made = [
        claim(
            where,
            f"{LABELS[row]} always meets the P98 requirement.",
            f"greatest violation ratio from {first} to {last} ms",
            largest(of("violations", row)),
            f"at most {100 * VIOLATIONS:g} %",
            by_deadline(row),
        )
        for row in settings.learned
    ]
    if settings.learned:
        made += [
            claim(
                where,
                "RL-PO's goodput falls with the required latency.",
                "least change from a deadline to the next longer one",
                min((later - earlier for earlier, later in pairwise(po)), default=math.nan),
                "at least -0.05 %",
                ", ".join(f"{100 * one:.2f} %" for one in po),
            ),
            claim(
                where,
                f"Even at {first} ms RL-PO is above the conventional approaches.",
                "its goodput less LW's",
                po[0] - lw[0],
                "at least 0 %",
                by_deadline("rl-po", "goodput"),
            ),
        ]
    return [
        *made,
        claim(
            where,
            "SA keeps violations of about 0.5 %, below the 2 % that it aims at.",
            "greatest violation ratio",
            largest(of("violations", "sa")),
            "at most 0.7 %",
            by_deadline("sa") + "; it holds 2 % in the bursty state, which is 1 % overall",
        ),
        claim(
            where,
            "SA has a higher goodput than RL-PO.",
            "least goodput of SA less RL-PO's",
            min((a - b for a, b in zip(sa, po, strict=True)), default=math.nan),
            "at least 0 %",
        ),
        claim(
            "ours",
            "`deadline` is within 0.02 points of the upper bound at every deadline.",
            "greatest distance",
            largest([bound(one) - value for one, value in zip(deadlines_s, rule, strict=True)]),
            "at most 0.02 %",
            by_deadline("deadline", "goodput"),
        ),
    ]


STUDY = Study(
    name="deadlines",
    source="[Tan24], Fig. 3",
    shows="Goodput and violations of schedulers as the required latency grows from 150 to 450 ms.",
    scales=scales(
        Settings(),
        smoke={"deadlines_s": (0.15, 0.45), "learned": ("rl-po",), "slots": 20_000, "trials": 1},
        quick={"deadlines_s": (0.15, 0.25, 0.35, 0.45)},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The policy of another deadline than 300 ms begins with that of 300 ms, which is trained "
        "further for the new deadline.",
    ),
    code=CODE,
)
