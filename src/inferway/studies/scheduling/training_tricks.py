"""What each departure from the paper's training brings (ours)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.studies.results import Results
from inferway.studies.scheduling import CODE
from inferway.studies.study import Claim, Point, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["VARIANTS", "Settings", "claims", "figure", "points", "trained"]

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as trained": {},
    "no baseline": {"baseline": None},
    "no shaping": {"potential": "none"},
    "no reward scale": {"scale": False},
    "no symlog": {"symlog": None},
    "not standardized": {"standardize": False},
    "discount .99, trace .95": {"discount": 0.99, "trace": 0.95},
    "rate of the paper": {"learning_rate": 2.5e-4, "final_rate": 1.0},
}
"""What is changed of `inferway.learning.settings.TUNED`."""
PAPER = "the paper's"
"""None of these."""


@dataclass(frozen=True)
class Settings:
    """How long each is trained."""

    variants: tuple[str, ...] = (*VARIANTS, PAPER)
    slots: int = 3_000_000
    trials: int = 3
    slots_per_update: int = 50_000
    evaluated: int = 600_000


def points(settings: Settings) -> list[Point]:
    """Every variant."""
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
        for variant in settings.variants
        for trial in range(settings.trials)
    ]


def trained(
    variant: str, slots: int, slots_per_update: int, evaluated: int, seed: int
) -> dict[str, Any]:
    """Train RL-PO with a variant's settings and evaluate it without noise.

    Returns
    -------
    dict
        Goodput, violations and heavy share, overall and by state.
    """
    from inferway.learning.settings import TUNED
    from inferway.learning.settings import Settings as Learning
    from inferway.learning.training import train
    from inferway.studies.scheduling.burst import BURSTY, NORMAL, control

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
    tally = found.tally
    return {
        "goodput": tally.overall_goodput,
        "violations": tally.overall_violations,
        "goodput_bursty": float(tally.goodput[BURSTY]),
        "goodput_normal": float(tally.goodput[NORMAL]),
        "heavy_normal": float(tally.heavy[NORMAL]),
        "cpu_s": found.cpu_s,
    }


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput and violations by variant."""
    from inferway.studies.scheduling.look import Dots, dots, half_width

    shown = [
        Dots(
            title,
            [100 * results.measure(column, variant=one).mean for one in settings.variants],
            [100 * half_width(results, column, variant=one) for one in settings.variants],
            [math.nan] * len(settings.variants),
        )
        for title, column in (
            ("goodput, overall, %", "goodput"),
            ("goodput, bursty, %", "goodput_bursty"),
            ("goodput, normal, %", "goodput_normal"),
        )
    ]
    title = f"RL-PO after {settings.slots / 1e6:g} million slots"
    return dots(list(settings.variants), shown, title=title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What each is worth."""

    def of(variant: str) -> float:
        return results.measure("goodput", variant=variant).mean

    whole = of("as trained")
    found = [
        Claim(
            "ours",
            "The paper's settings alone learn less in this time.",
            "goodput as trained less that with the paper's settings",
            whole - of(PAPER),
            at_least=0.01,
            unit="%",
            why=f"{100 * whole:.2f} % against {100 * of(PAPER):.2f} %",
        )
    ]
    for variant in settings.variants:
        if variant in ("as trained", PAPER):
            continue
        here = results.where(variant=variant)
        found.append(
            Claim(
                "ours",
                f"{variant[0].upper()}{variant[1:]}: worse.",
                "goodput as trained less that without it",
                whole - of(variant),
                at_least=0.0,
                unit="%",
                why=f"{100 * of(variant):.2f} %; normal state "
                f"{100 * here.measure('goodput_normal').mean:.2f} %, bursty "
                f"{100 * here.measure('goodput_bursty').mean:.2f} %",
            )
        )
    return found


_PAPER = Settings()
STUDY = Study(
    name="training-tricks",
    source="ours",
    shows="What each departure from the paper's training of RL-PO brings after the same number "
    "of slots.",
    scales={
        "smoke": replace(
            _PAPER,
            variants=("as trained", PAPER),
            slots=4_000,
            slots_per_update=2_000,
            trials=1,
            evaluated=2_000,
        ),
        "quick": replace(_PAPER, slots=1_000_000, trials=1, evaluated=200_000),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper trains for 250 million slots; what is told apart here is how much is learned "
        "in its first hundredth. The settings' names are those of `inferway train --set`.",
    ),
    code=(*CODE, "learning"),
)
