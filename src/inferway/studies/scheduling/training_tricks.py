"""What each departure from the paper's training brings (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.scheduling.trained import AS_TRAINED, CODE, PAPER, VARIANTS, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """How long each is trained."""

    variants: tuple[str, ...] = (*VARIANTS, PAPER)
    slots: int = 3_000_000
    trials: int = 4
    slots_per_update: int = 50_000
    evaluated: int = 600_000


def points(settings: Settings) -> list[Point]:
    """Every variant from a seed, then from the next: a run that stops early compares all."""
    return [
        Point(
            {"variant": variant, "trial": trial},
            trained,
            {
                "variant": variant,
                "slots": settings.slots,
                "slots_per_update": settings.slots_per_update,
                "evaluated": settings.evaluated,
                "seed": trial,
            },
            5 + settings.slots / 45_000 + settings.evaluated / 300_000,
        )
        for trial in range(settings.trials)
        for variant in settings.variants
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput by variant, overall and by state; a line where it is as trained."""
    from inferway.studies.scheduling.look import Dots, dots, half_width

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
    """How much more overall goodput there is as trained than with a variant.

    Returns
    -------
    tuple
        The difference of the means, and half its 95 % interval (B. L. Welch, Biometrika 34, 1947,
        doi 10.1093/biomet/34.1-2.28: the variants' variances differ); NaN for fewer than two
        trainings of either.
    """
    from scipy.special import stdtrit

    means, errors, freedoms = [], [], []
    for one in (AS_TRAINED, variant):
        values = [float(row["goodput"]) for row in results.where(variant=one).rows]
        if len(values) < 2:
            return math.nan, math.nan
        mean = sum(values) / len(values)
        means.append(mean)
        freedoms.append(len(values) - 1)
        errors.append(sum((value - mean) ** 2 for value in values) / freedoms[-1] / len(values))
    difference, error = means[0] - means[1], sum(errors)
    if not error:
        return difference, 0.0
    freedom = error**2 / sum(e**2 / f for e, f in zip(errors, freedoms, strict=True))
    return difference, float(stdtrit(freedom, 0.975)) * math.sqrt(error)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What each is worth, with an interval, so that noise decides for none."""
    found = []
    for variant in settings.variants:
        if variant == AS_TRAINED:
            continue
        difference, half = ahead(results, variant)
        least = 0.01 if variant == PAPER else 0.0
        found.append(
            Claim(
                "ours",
                f"{'At least a point' if least else 'There is'} more goodput as trained than with "
                f"{variant}.",
                "difference of the mean overall goodput",
                difference,
                at_least=least,
                unit="%",
                low=None if math.isnan(half) else difference - half,
                high=None if math.isnan(half) else difference + half,
                method="" if math.isnan(half) else "over trainings: Welch's",
                why=f"difference {100 * difference:.2f} +- {100 * half:.2f}; "
                f"{_beside(results, variant)}; as trained {_beside(results, AS_TRAINED)}",
            )
        )
    return found


def _beside(results: Results, variant: str) -> str:
    from inferway.studies.scheduling.look import written

    def of(column: str) -> str:
        return written(results, column, variant=variant)

    return (
        f"{of('goodput')} % (bursty {of('goodput_bursty')}; normal {of('goodput_normal')}, where "
        f"{of('heavy_normal')} % are heavy; violations {of('violations')})"
    )


_PAPER = Settings()
STUDY = Study(
    name="training-tricks",
    source="ours",
    shows="What each departure from the paper's training of RL-PO brings after the same number "
    "of slots.",
    scales={
        "smoke": replace(
            _PAPER,
            variants=(AS_TRAINED, PAPER),
            slots=4_000,
            slots_per_update=2_000,
            trials=2,
            evaluated=2_000,
        ),
        "quick": replace(_PAPER, slots=1_000_000, trials=3, evaluated=200_000),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper trains for 250 million slots; what is told apart here is how much is learned "
        "in its first hundredth. The settings' names are those of `inferway train --set`. "
        "Learning rates fall within the slots trained here, except with the paper's.",
    ),
    code=CODE,
)
