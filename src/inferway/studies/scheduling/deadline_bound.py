"""The rule `deadline` against what no scheduler can exceed (ours)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTS = (2, 2)


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
    return mean_of_states(
        RATE_PER_S,
        HOLDING_S,
        counts=_COUNTS,
        service_s=SERVICE_S,
        accuracy=ACCURACY,
        deadline_s=deadline_s,
    )


def points(settings: Settings) -> list[Point]:
    """`deadline` at each spread, and set beliefs."""
    found = []
    for trial in range(settings.trials):
        found += [_labeled(settings, "deadline", cv, 0.0, trial) for cv in settings.cvs]
        for cv in settings.believed_cvs:
            found += [
                _labeled(settings, "believed", cv, factor, trial) for factor in settings.factors
            ]
    return found


def _labeled(settings: Settings, policy: str, cv: float, factor: float, trial: int) -> Point:
    beliefs: dict[str, Any] = {"options": {"margin": factor}} if factor else {}
    made = point(
        policy,
        settings.workload,
        settings.slots,
        trial,
        distribution="lognormal" if cv else "deterministic",
        cv=cv,
        **beliefs,
    )
    return replace(made, label={**made.label, "cv": cv, "factor": factor})


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput against the spread of service times, and against what is believed of them."""
    from inferway.experiments.curves import Curve, Panel, panels

    highest = 100 * bound()

    def curve(
        label: str, x: Sequence[float], labels: Sequence[dict[str, float | str]], color: int
    ) -> Curve:
        y = [100 * results.measure("goodput", **one).mean for one in labels]
        error = [100 * half_width(results, "goodput", **one) for one in labels]
        return Curve(label, x, y, error, (), color)

    spread = curve(
        "deadline", settings.cvs, [{"row": "deadline", "cv": cv} for cv in settings.cvs], 0
    )
    wrong = [
        curve(
            f"set belief, CV {cv:g}",
            settings.factors,
            [{"row": "believed", "cv": cv, "factor": factor} for factor in settings.factors],
            1 + k,
        )
        for k, cv in enumerate(settings.believed_cvs)
    ]
    across = [
        Panel(
            "times learned",
            "coefficient of variation of service times",
            "goodput, overall, %",
            [spread],
            levels=[("upper bound", highest)],
            limits_up=(highest - 0.6, highest + 0.1),
        ),
        Panel(
            "nothing learned",
            "believed over true service time",
            "goodput, overall, %",
            wrong,
            levels=[("upper bound", highest)],
            scale_across="log",
            ticks_across=(0.8, 1.0, 1.5, 2.0, 3.0),
        ),
    ]
    return panels(across, columns=2, title="`deadline` and the upper bound, deadline 300 ms")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near it comes, and what a wrong belief costs."""
    highest = bound()
    bursty, shares = state(
        RATE_PER_S[BURSTY],
        counts=_COUNTS,
        service_s=SERVICE_S,
        accuracy=ACCURACY,
        deadline_s=DEADLINE_S,
        lasts_s=HOLDING_S[BURSTY],
    )
    found = [
        Claim(
            "ours",
            "No scheduler has more than 0.80895 overall.",
            "greatest mean goodput of all rows here less the upper bound",
            _greatest(results) - highest,
            at_most=0.0001,
            unit="%",
            why=f"the bound is {highest:.5f}: bursty {bursty:.5f} with {100 * shares[1]:.2f} % at "
            f"the heavy servers, normal {ACCURACY[1]:g}; a run differs from its mean by chance",
        )
    ]
    least = {0.0: highest - 0.0001, 0.2: 0.808, 0.5: 0.808}
    for cv, low in least.items():
        if cv not in settings.cvs:
            continue
        here = results.where(row="deadline", cv=cv)
        found.append(
            Claim(
                "ours",
                f"With service times of CV {cv:g} `deadline` has at least {low:.5g} overall.",
                "goodput",
                here.measure("goodput").mean,
                at_least=low,
                why=f"{written(here, 'goodput')} %, violations {written(here, 'violations')} %; "
                f"bursty {written(here, 'heavy_bursty')} % heavy",
            )
        )
    certain = results.where(row="deadline", cv=0.0)
    found.append(
        Claim(
            "ours",
            "With deterministic service nothing is late or rejected.",
            "violation ratio",
            certain.measure("violations").mean,
            at_most=0.00001,
            unit="%",
        )
    )
    exact = results.measure("goodput", row="believed", cv=0.0, factor=1.0).mean
    for factor, says, limits in (
        (0.95, "Believing service 5 % too short costs 10 points.", (0.08, 0.12)),
        (1.5, "Believing it 50 % too long costs nothing.", (-0.0002, 0.0002)),
    ):
        value = exact - results.measure("goodput", row="believed", cv=0.0, factor=factor).mean
        found.append(
            Claim(
                "ours",
                says,
                "loss of goodput",
                value,
                at_least=limits[0],
                at_most=limits[1],
                unit="%",
                why=_over_factors(settings, results),
            )
        )
    return found


def _greatest(results: Results) -> float:
    """Of the means over the trials."""
    places = {(row["row"], row["cv"], row["factor"]) for row in results.rows}
    found = [
        results.measure("goodput", row=row, cv=cv, factor=factor).mean for row, cv, factor in places
    ]
    return max(found, default=math.nan)


def _over_factors(settings: Settings, results: Results) -> str:
    here = results.where(row="believed", cv=0.0)
    return "goodput by belief: " + ", ".join(
        f"{factor:g}: {100 * here.measure('goodput', factor=factor).mean:.2f} %"
        for factor in settings.factors
    )


_PAPER = Settings()
STUDY = Study(
    name="deadline-bound",
    source="ours",
    shows="How near the rule `deadline` comes to what no scheduler can exceed, and what wrong "
    "service times cost it.",
    scales={
        "smoke": replace(
            _PAPER,
            slots=20_000,
            trials=1,
            cvs=(0.0, 0.2),
            factors=(0.95, 1.0, 1.5),
            believed_cvs=(0.0,),
        ),
        "quick": replace(_PAPER, slots=200_000),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "`deadline` learns service times and takes 1.5 times their 95th percentile; set beliefs "
        "take the mean times a factor and learn nothing.",
    ),
    code=(*CODE, "studies/scheduling/believed.py"),
)
