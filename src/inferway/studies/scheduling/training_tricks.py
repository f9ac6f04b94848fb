"""RL-PO with a departure from the paper's training taken back: what each brings (ours)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferway.experiments.claim import ours
from inferway.experiments.curves import Drawing
from inferway.learning.settings import TUNED
from inferway.learning.settings import Settings as Learning
from inferway.learning.training import train
from inferway.studies import Claim, Point, Results, Study, scales
from inferway.studies.scheduling.burst import PHASES, control
from inferway.studies.scheduling.look import Dots, dots, half_width, interval, welch, written

AS_TRAINED = "as trained"
PAPER = "the paper's settings"  # none of the departures
# What is changed of `inferway.learning.settings.TUNED`.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    AS_TRAINED: {},
    "no baseline": {"baseline": None},
    "no shaping": {"potential": "none"},
    "no reward scale": {"scale": False},
    "no symlog": {"symlog": None},
    "no standardizing": {"standardize": False},
    "discount 0.99, trace 0.95": {"discount": 0.99, "trace": 0.95},
    "the paper's rate": {"learning_rate": 2.5e-4, "final_rate": 1.0},
}


@dataclass(frozen=True)
class Settings:
    """Duration of each training."""

    variants: tuple[str, ...] = (*VARIANTS, PAPER)
    slots: int = 3_000_000
    trials: int = 4
    slots_per_update: int = 50_000
    evaluated: int = 600_000


def _points(settings: Settings) -> list[Point]:
    shared = {name: getattr(settings, name) for name in ("slots", "slots_per_update", "evaluated")}
    cost = 5 + settings.slots / 45_000 + settings.evaluated / 300_000
    return [
        Point(
            {"variant": variant, "trial": trial},
            trained,
            {**shared, "variant": variant, "seed": trial},
            cost,
        )
        for trial in range(settings.trials)
        for variant in settings.variants
    ]


def trained(
    variant: str, slots: int, slots_per_update: int, evaluated: int, seed: int
) -> dict[str, Any]:
    """Train RL-PO with a variant's settings and evaluate it for so many slots without noise.

    A rate that falls does so within `slots`. Gives goodput, violations and heavy share, overall and
    by state, and CPU time, s.
    """
    wanted = Learning() if variant == PAPER else replace(TUNED, **VARIANTS[variant])
    wanted = replace(wanted, slots=slots, slots_per_update=slots_per_update)
    with tempfile.TemporaryDirectory() as folder:
        found = train(
            control("rl-po"),
            wanted,
            Path(folder),
            seed=seed,
            tensorboard=False,
            evaluation_slots=evaluated,
            checkpoint_every_s=math.inf,
        )
    tally = found.whole().tally
    assert tally is not None
    figures = tally.figures()
    by_state = {
        f"{name}_{state}": figures[f"{name}_{phase}"]
        for name in ("goodput", "heavy")
        for state, phase in PHASES.items()
    }
    overall = {name: figures[name] for name in ("goodput", "violations")}
    return {**overall, **by_state, "cpu_s": found.cpu_s}


def figure(settings: Settings, results: Results) -> Drawing:
    """Goodput by variant, overall and by state; a line where it is as trained."""
    shown = [
        Dots(
            title,
            [100 * results.measure(column, variant=one).mean for one in settings.variants],
            [100 * half_width(results, column, variant=one) for one in settings.variants],
        )
        for title, column in (
            ("goodput, overall, %", "goodput"),
            ("goodput, bursty, %", "goodput_bursty"),
            ("goodput, normal, %", "goodput_normal"),
        )
    ]
    runs = f"{settings.trials} training{'s' * (settings.trials > 1)} each"
    title = f"RL-PO after {settings.slots / 1e6:g} million slots of training ({runs})"
    drawn = dots(list(settings.variants), shown, title=title)
    for axes, column in zip(drawn.axes, shown, strict=True):
        whole = column.measured[settings.variants.index(AS_TRAINED)]
        axes.axvline(whole, color="#555555", linewidth=0.9, linestyle=":", zorder=0.5)
    return drawn


def ahead(results: Results, variant: str) -> tuple[float, float]:
    """Gain in overall goodput as trained over a variant, and half its 95 % interval, Welch's."""
    first, second = (
        [float(row["goodput"]) for row in results.where(variant=one).rows]
        for one in (AS_TRAINED, variant)
    )
    return welch(first, second)


def _claims(settings: Settings, results: Results) -> list[Claim]:
    made = []
    for variant in (one for one in settings.variants if one != AS_TRAINED):
        difference, half = ahead(results, variant)
        more, least = ("At least a point", 1) if variant == PAPER else ("There is", 0)
        made.append(
            ours(
                f"{more} more goodput as trained than with {variant}.",
                "difference of the mean overall goodput",
                difference,
                f"at least {least} %",
                f"difference {100 * difference:.2f} +- {100 * half:.2f}; "
                f"{_beside(results, variant)}; as trained {_beside(results, AS_TRAINED)}",
                **interval(difference - half, difference + half, "over trainings: Welch's"),
            )
        )
    return made


def _beside(results: Results, variant: str) -> str:
    columns = ("goodput", "goodput_bursty", "goodput_normal", "heavy_normal", "violations")
    said = "{} % (bursty {}; normal {}, where {} % are heavy; violations {})"
    return said.format(*(written(results, column, variant=variant) for column in columns))


STUDY = Study(
    name="training-tricks",
    source="ours",
    shows="What each departure from the paper's training of RL-PO brings after the same number "
    "of slots.",
    scales=scales(
        Settings(),
        smoke={
            **{"variants": (AS_TRAINED, PAPER), "slots": 4_000, "slots_per_update": 2_000},
            **{"trials": 2, "evaluated": 2_000},
        },
        quick={"slots": 1_000_000, "trials": 3, "evaluated": 200_000},
    ),
    points=_points,
    figure=figure,
    claims=_claims,
    departures=(
        "The paper trains for 250 million slots; what is told apart here is how much is learned "
        "in its first hundredth. The settings' names are those of `inferway train --set`. "
        "Learning rates fall within the slots trained here, except with the paper's.",
    ),
    code=(
        *("site", "dispatch", "scheduling", "twin", "workload", "learning"),
        "studies/scheduling/burst.py",
    ),
)
