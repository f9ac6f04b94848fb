"""The rule `deadline` against what no scheduler can exceed (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.scheduling import CODE
from inferway.studies.scheduling.burst import (
    ACCURACY,
    BURSTY,
    DEADLINE_S,
    HOLDING_S,
    RATE_PER_S,
    SERVICE_S,
)
from inferway.studies.scheduling.look import half_width, written
from inferway.studies.scheduling.trial import point
from inferway.studies.scheduling.upper_bound import mean_of_states, state

_SITE: dict[str, Any] = {"counts": (2, 2), "service_s": SERVICE_S, "accuracy": ACCURACY}


@dataclass(frozen=True)
class Settings:
    """Laws of the service times, and how wrong beliefs about them are."""

    slots: int = 600_000
    trials: int = 3
    cvs: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5)
    """0 is deterministic, others lognormal."""
    factors: tuple[float, ...] = (
        0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0,
    )  # fmt: skip
    """Believed over true service times, where nothing is learned."""
    believed_cvs: tuple[float, ...] = (0.0, 0.2, 0.5)
    workload: str = "map"


def bound(deadline_s: float = DEADLINE_S) -> float:
    """Of the mean of both states."""
    return mean_of_states(RATE_PER_S, HOLDING_S, **_SITE, deadline_s=deadline_s)


def points(settings: Settings) -> list[Point]:
    """`deadline` at each spread, and set beliefs."""
    made = []
    for trial in range(settings.trials):
        cases: list[tuple[str, float, float]] = [
            *(("deadline", cv, 0.0) for cv in settings.cvs),
            *(("believed", cv, one) for cv in settings.believed_cvs for one in settings.factors),
        ]
        for policy, cv, factor in cases:
            beliefs: dict[str, Any] = {"options": {"margin": factor}} if factor else {}
            law = "lognormal" if cv else "deterministic"
            one = point(
                *(policy, settings.workload, settings.slots, trial),
                distribution=law,
                cv=cv,
                **beliefs,
            )
            made.append(replace(one, label={**one.label, "cv": cv, "factor": factor}))
    return made


def figure(settings: Settings, results: Results) -> Drawing:
    """Goodput against the spread of service times, and against what is believed of them."""
    highest = 100 * bound()

    def curve(look: Look, here: Results, across: str, x: Sequence[float]) -> Curve:
        error = [100 * half_width(here, "goodput", **{across: one}) for one in x]
        y = [100 * one for one in here.means("goodput", **{across: x})]
        return Curve(look.label, x, y, error, (), look.color)

    learned = results.where(row="deadline")
    spread = curve(Look("deadline", 0), learned, "cv", settings.cvs)
    wrong = [
        curve(
            Look(f"set belief, CV {cv:g}", 1 + k),
            results.where(row="believed", cv=cv),
            "factor",
            settings.factors,
        )
        for k, cv in enumerate(settings.believed_cvs)
    ]
    up, levels = "goodput, overall, %", [("upper bound", highest)]
    across = [
        Panel(
            "times learned",
            "coefficient of variation of service times",
            up,
            [spread],
            levels=levels,
            limits_up=(highest - 0.6, highest + 0.1),
        ),
        Panel(
            "nothing learned",
            "believed over true service time",
            up,
            wrong,
            levels=levels,
            scale_across="log",
            ticks_across=(0.8, 1.0, 1.5, 2.0, 3.0),
        ),
    ]
    return panels(across, columns=2, title="`deadline` and the upper bound, deadline 300 ms")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near it comes, and what a wrong belief costs."""
    highest = bound()
    burst: dict[str, Any] = {"deadline_s": DEADLINE_S, "lasts_s": HOLDING_S[BURSTY]}
    bursty, shares = state(RATE_PER_S[BURSTY], **_SITE, **burst)
    places = {(row["row"], row["cv"], row["factor"]) for row in results.rows}
    means = [
        results.measure("goodput", row=row, cv=cv, factor=factor).mean for row, cv, factor in places
    ]
    made = [
        claim(
            "ours",
            "No scheduler has more than 0.80895 overall.",
            "greatest mean goodput of all rows here less the upper bound",
            max(means, default=math.nan) - highest,
            "at most 0.01 %",
            f"the bound is {highest:.5f}: bursty {bursty:.5f} with {100 * shares[1]:.2f} % at the "
            f"heavy servers, normal {ACCURACY[1]:g}; a run differs from its mean by chance",
        )
    ]
    limits = {0.0: highest - 0.0001, 0.2: 0.808, 0.5: 0.808}
    for cv, low in limits.items():
        if cv not in settings.cvs:
            continue
        here = results.where(row="deadline", cv=cv)
        made.append(
            claim(
                "ours",
                f"With service times of CV {cv:g} `deadline` has at least {low:.5g} overall.",
                "goodput",
                here.measure("goodput").mean,
                f"at least {low!r}",
                f"{written(here, 'goodput')} %, violations {written(here, 'violations')} %; "
                f"bursty {written(here, 'heavy_bursty')} % heavy",
            )
        )
    certain = results.where(row="deadline", cv=0.0)
    made.append(
        claim(
            "ours",
            "With deterministic service nothing is late or rejected.",
            "violation ratio",
            certain.measure("violations").mean,
            "at most 0.001 %",
        )
    )
    here = results.where(row="believed", cv=0.0)
    by_belief = dict(
        zip(settings.factors, here.means("goodput", factor=settings.factors), strict=True)
    )
    said = ", ".join(f"{factor:g}: {100 * one:.2f} %" for factor, one in by_belief.items())
    for factor, says, limit in (
        (0.95, "Believing service 5 % too short costs 10 points.", "8 to 12 %"),
        (1.5, "Believing it 50 % too long costs nothing.", "-0.02 to 0.02 %"),
    ):
        value = by_belief.get(1.0, math.nan) - by_belief.get(factor, math.nan)
        made.append(
            claim("ours", says, "loss of goodput", value, limit, f"goodput by belief: {said}")
        )
    return made


STUDY = Study(
    name="deadline-bound",
    source="ours",
    shows="How near the rule `deadline` comes to what no scheduler can exceed, and what wrong "
    "service times cost it.",
    scales=scales(
        Settings(),
        smoke={
            **{"slots": 20_000, "trials": 1, "cvs": (0.0, 0.2)},
            **{"factors": (0.95, 1.0, 1.5), "believed_cvs": (0.0,)},
        },
        quick={"slots": 200_000},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "`deadline` learns service times and takes 1.5 times their 95th percentile; set beliefs "
        "take the mean times a factor and learn nothing.",
    ),
    code=(*CODE, "studies/scheduling/rules.py"),
)
