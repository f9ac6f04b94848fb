"""Deadlines from 150 to 450 ms ([Tan24], Fig. 3), and `deadline` against the upper bound (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import largest
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.look import LABELS, half_width, written
from inferway.studies.scheduling.train import at_deadline
from inferway.studies.scheduling.trial import point

_RULES = ("sa", "deadline", "hand", "lw")
_COLORS = {"rl-po": 0, "rl-fo": 1, "sa": 2, "deadline": 3, "hand": 4, "lw": 5}
_SITE: dict[str, Any] = {"counts": (2, 2), "service_s": burst.SERVICE_S, "accuracy": burst.ACCURACY}
_GOODPUT = "goodput, overall, %"


def bound(deadline_s: float = burst.DEADLINE_S) -> float:
    """The greatest goodput ratio, the mean of both states: [Tan24]'s overall."""
    both = [
        burst.upper_bound(rate, **_SITE, deadline_s=deadline_s, lasts_s=lasts_s)[0]
        for rate, lasts_s in zip(burst.RATE_PER_S, burst.HOLDING_S, strict=True)
    ]
    return sum(both) / len(both)


def _curve(look: Look, results: Results, column: str, scale: float, **axis: Any) -> Curve:
    """Means in percent with their intervals against a label, which is drawn times a scale."""
    ((across, values),) = axis.items()
    y = [100 * one for one in results.means(column, **axis)]
    error = [100 * half_width(results, column, **{across: one}) for one in values]
    return Curve(look.label, [scale * one for one in values], y, error, (), look.color)


@dataclass(frozen=True)
class Settings:
    """The paper's deadlines and both kinds of observation."""

    deadlines_s: tuple[float, ...] = tuple(round(0.15 + 0.025 * k, 3) for k in range(13))
    learned: tuple[str, ...] = ("rl-po", "rl-fo")
    slots: int = 600_000
    trials: int = 3


def _points(settings: Settings) -> list[Point]:
    return [
        replace(made, label={**made.label, "deadline": deadline_s})
        for deadline_s in settings.deadlines_s
        for trial in range(settings.trials)
        for row in (*_RULES, *settings.learned)
        for trained in [at_deadline(row, deadline_s) if row in settings.learned else ""]
        for made in [
            point(row, "map", settings.slots, trial, trained=trained, deadline_s=deadline_s)
        ]
    ]


def _figure(settings: Settings, results: Results) -> Drawing:
    deadlines_s, across = settings.deadlines_s, "deadline, ms"
    highest = [100 * bound(one) for one in deadlines_s]
    goodput, late = (
        [
            _curve(
                Look(LABELS[row], _COLORS[row]),
                results.where(row=row),
                column,
                1000,
                deadline=deadlines_s,
            )
            for row in (*settings.learned, *_RULES)
        ]
        for column in ("goodput", "violations")
    )
    limit = Curve("upper bound", [1000 * one for one in deadlines_s], highest)
    p98, up = [("P98", 100 * burst.VIOLATIONS)], "violations, overall, %"
    shown = [
        Panel("", across, _GOODPUT, [limit, *goodput]),
        Panel("", across, up, late, levels=p98),
    ]
    return panels(shown, columns=2, title="Required latencies ([Tan24], Fig. 3)")


def _claims(settings: Settings, results: Results) -> list[Claim]:
    deadlines_s = settings.deadlines_s
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
        f"""
        [Sec. 5.2.1, Fig. 3] {LABELS[row]} always meets the P98 requirement.
        - greatest violation ratio from {first} to {last} ms: {largest(of("violations", row))!r}
          (at most {100 * burst.VIOLATIONS:g} %)
        - {by_deadline(row)}
        """
        for row in settings.learned
    ]
    if settings.learned:
        step = min((later - earlier for earlier, later in pairwise(po)), default=math.nan)
        made.append(f"""
            [Sec. 5.2.1, Fig. 3] RL-PO's goodput falls with the required latency.
            - least change from a deadline to the next longer one: {step!r} (at least -0.05 %)
            - {", ".join(f"{100 * one:.2f} %" for one in po)}

            Even at {first} ms RL-PO is above the conventional approaches.
            - its goodput less LW's: {po[0] - lw[0]!r} (at least 0 %)
            - {by_deadline("rl-po", "goodput")}
            """)
    above = min((a - b for a, b in zip(sa, po, strict=True)), default=math.nan)
    below = [bound(one) - value for one, value in zip(deadlines_s, rule, strict=True)]
    return claims(
        *made,
        f"""
        [Sec. 5.2.1, Fig. 3] SA keeps violations of about 0.5 %, below the 2 % that it aims at.
        - greatest violation ratio: {largest(of("violations", "sa"))!r} (at most 0.7 %)
        - {by_deadline("sa")}; it holds 2 % in the bursty state, which is 1 % overall

        SA has a higher goodput than RL-PO.
        - least goodput of SA less RL-PO's: {above!r} (at least 0 %)

        [ours] `deadline` is within 0.02 points of the upper bound at every deadline.
        - greatest distance: {largest(below)!r} (at most 0.02 %)
        - {by_deadline("deadline", "goodput")}
        """,
    )


@dataclass(frozen=True)
class BeliefSettings:
    """Laws of the service times, and how wrong beliefs about them are."""

    slots: int = 600_000
    trials: int = 3
    cvs: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5)  # 0 is deterministic, others lognormal
    # Believed over true service times, where nothing is learned.
    factors: tuple[float, ...] = (
        0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0,
    )  # fmt: skip
    believed_cvs: tuple[float, ...] = (0.0, 0.2, 0.5)


def _belief_points(settings: BeliefSettings) -> list[Point]:
    cases: list[tuple[str, float, float]] = [
        *(("deadline", cv, 0.0) for cv in settings.cvs),
        *(("believed", cv, one) for cv in settings.believed_cvs for one in settings.factors),
    ]
    made = []
    for trial in range(settings.trials):
        for policy, cv, factor in cases:
            law: dict[str, Any] = {"distribution": "lognormal" if cv else "deterministic", "cv": cv}
            law |= {"options": {"margin": factor}} if factor else {}
            one = point(policy, "map", settings.slots, trial, **law)
            made.append(replace(one, label={**one.label, "cv": cv, "factor": factor}))
    return made


def _belief_figure(settings: BeliefSettings, results: Results) -> Drawing:
    highest, learned = 100 * bound(), results.where(row="deadline")
    levels = [("upper bound", highest)]
    wrong = [
        _curve(
            Look(f"set belief, CV {cv:g}", 1 + k),
            results.where(row="believed", cv=cv),
            "goodput",
            1,
            factor=settings.factors,
        )
        for k, cv in enumerate(settings.believed_cvs)
    ]
    across = [
        Panel(
            "times learned",
            "coefficient of variation of service times",
            _GOODPUT,
            [_curve(Look("deadline", 0), learned, "goodput", 1, cv=settings.cvs)],
            levels=levels,
            limits_up=(highest - 0.6, highest + 0.1),
        ),
        Panel(
            "nothing learned",
            "believed over true service time",
            _GOODPUT,
            wrong,
            levels=levels,
            scale_across="log",
            ticks_across=(0.8, 1.0, 1.5, 2.0, 3.0),
        ),
    ]
    return panels(across, columns=2, title="`deadline` and the upper bound, deadline 300 ms")


def _belief_claims(settings: BeliefSettings, results: Results) -> list[Claim]:
    highest = bound()
    bursty, shares = burst.upper_bound(
        burst.RATE_PER_S[burst.BURSTY],
        **_SITE,
        deadline_s=burst.DEADLINE_S,
        lasts_s=burst.HOLDING_S[burst.BURSTY],
    )
    places = {(row["row"], row["cv"], row["factor"]) for row in results.rows}
    means = [
        results.measure("goodput", row=row, cv=cv, factor=factor).mean for row, cv, factor in places
    ]
    made = [
        f"""
        [ours] No scheduler has more than 0.80895 overall.
        - greatest mean goodput of all rows here less the upper bound:
          {max(means, default=math.nan) - highest!r} (at most 0.01 %)
        - the bound is {highest:.5f}: bursty {bursty:.5f} with {100 * shares[1]:.2f} % at the heavy
          servers, normal {burst.ACCURACY[1]:g}; a run differs from its mean by chance
        """
    ]
    limits = {0.0: highest - 0.0001, 0.2: 0.808, 0.5: 0.808}
    for cv, low in ((cv, low) for cv, low in limits.items() if cv in settings.cvs):
        here = results.where(row="deadline", cv=cv)
        made.append(f"""
            With service times of CV {cv:g} `deadline` has at least {low:.5g} overall.
            - goodput: {here.measure("goodput").mean!r} (at least {low!r})
            - {written(here, "goodput")} %, violations {written(here, "violations")} %; bursty
              {written(here, "heavy_bursty")} % heavy
            """)
    late = results.measure("violations", row="deadline", cv=0.0).mean
    made.append(f"""
        With deterministic service nothing is late or rejected.
        - violation ratio: {late!r} (at most 0.001 %)
        """)
    factors, here = settings.factors, results.where(row="believed", cv=0.0)
    by_belief = dict(zip(factors, here.means("goodput", factor=factors), strict=True))
    said = ", ".join(f"{factor:g}: {100 * one:.2f} %" for factor, one in by_belief.items())
    for factor, says, limit in (
        (0.95, "Believing service 5 % too short costs 10 points.", "8 to 12 %"),
        (1.5, "Believing it 50 % too long costs nothing.", "-0.02 to 0.02 %"),
    ):
        value = by_belief.get(1.0, math.nan) - by_belief.get(factor, math.nan)
        made.append(f"""
            {says}
            - loss of goodput: {value!r} ({limit})
            - goodput by belief: {said}
            """)
    return claims(*made)


STUDY = Study(
    name="deadlines",
    source="[Tan24], Fig. 3",
    shows="Goodput and violations of schedulers as the required latency grows from 150 to 450 ms.",
    scales=scales(
        Settings(),
        smoke={"deadlines_s": (0.15, 0.45), "learned": ("rl-po",), "slots": 20_000, "trials": 1},
        quick={"slots": 200_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The policy of another deadline than 300 ms begins with that of 300 ms, which is trained "
        "further for the new deadline.",
    ),
    code=CODE,
)
BOUND = Study(
    name="deadline-bound",
    source="ours",
    shows="How near the rule `deadline` comes to what no scheduler can exceed, and what wrong "
    "service times cost it.",
    scales=scales(
        BeliefSettings(),
        smoke={
            **{"slots": 20_000, "trials": 1, "cvs": (0.0, 0.2)},
            **{"factors": (0.95, 1.0, 1.5), "believed_cvs": (0.0,)},
        },
        quick={"slots": 200_000},
    ),
    points=_belief_points,
    figure=_belief_figure,
    claims=_belief_claims,
    departures=(
        "`deadline` learns service times and adds twice their spread, 95th percentile less mean; "
        "beliefs take the mean times a factor and learn nothing.",
    ),
    code=(*CODE, "studies/scheduling/rules.py"),
)
