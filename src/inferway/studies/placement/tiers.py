"""INFIDA's allocation per tier for several alphas ([SiSalem23], Fig. 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from inferway.catalog.published import Entry
from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.setting import MODELS, SYSTEMS
from inferway.studies.placement.trial import CODE, allocated, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """The paper's; it does not say how many slots."""

    system: str = "I"
    alphas: tuple[float, ...] = (3.0, 4.0, 5.0)
    rate_per_s: float = 7500.0
    copies: int = 3
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every alpha."""
    arguments = {
        "system": settings.system,
        "rate_per_s": settings.rate_per_s,
        "slots": settings.slots,
        "copies": settings.copies,
    }
    cost, trials = seconds("infida", settings.slots), range(settings.trials)
    return grid(allocated, arguments, cost, alpha=settings.alphas, trial=trials)


def figure(settings: Settings, results: Results) -> Figure:
    """A heat map for each alpha."""
    from inferway.experiments.allocation import Grid, heat_maps

    grids = []
    for alpha in settings.alphas:
        rows = _tiers(results)
        shown = [_mean(results, alpha, tier) for tier in rows]
        values = np.array(shown) if shown else np.zeros((1, 1))
        names = [str(k) for k in range(values.shape[1])]
        grids.append(Grid(f"alpha = {alpha:g}", rows or ["-"], names, values))
    return heat_maps(
        grids,
        label="fractional allocation",
        title="The most popular task's models, least accurate first",
        across=f"model ({settings.copies} replicas of each variant)",
    )


def _tiers(results: Results) -> list[str]:
    first = results.rows[0] if results.rows else {}
    return [key.removeprefix("y of ") for key in first if key.startswith("y of ")]


def _mean(
    results: Results, alpha: float, tier: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = [row[f"y of {tier}"] for row in results.where(alpha=alpha).rows]
    if not rows:
        return np.full(len(MODELS), math.nan)
    return np.asarray(np.mean(rows, axis=0))


def _below(
    results: Results, alpha: float, tiers: tuple[str, ...]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(models,) copies on an average node of each of the tiers, added up."""
    known = [tier for tier in _tiers(results) if tier in tiers]
    if not known or not results.where(alpha=alpha).rows:
        return np.full(len(MODELS), math.nan)
    return np.asarray(np.sum([_mean(results, alpha, tier) for tier in known], axis=0))


def small(results: Results, alpha: float, below: int, tiers: tuple[str, ...]) -> float:
    """Share of the allocated copies whose model id is below a number."""
    y = _below(results, alpha, tiers)
    return float(y[:below].sum() / y.sum())


def copies_below(results: Results, alpha: float, tiers: tuple[str, ...]) -> float:
    """Copies of the task's models on one node of each tier."""
    return float(_below(results, alpha, tiers).sum())


def accurate(results: Results, alpha: float, tiers: tuple[str, ...]) -> float:
    """Mean accuracy of the allocated copies, in points."""
    y = _below(results, alpha, tiers)
    per = max(1, len(y) // len(MODELS))
    accuracy = np.repeat([100 * entry.accuracy for entry in MODELS], per)[: len(y)]
    return float(y @ accuracy / y.sum())


LOWER = ("tier 1", "tier 2", "tier 3")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    where = "Sec. VI-A, Fig. 5"
    limit = 6 * settings.copies + 1  # ids 0-18: below the least of 320p's replicas but one
    low, middle, high = settings.alphas[0], settings.alphas[-2], settings.alphas[-1]
    shares = [small(results, alpha, limit, LOWER) for alpha in (low, middle, high)]
    copies = [copies_below(results, alpha, LOWER) for alpha in (low, middle, high)]
    cloud = [results.value("served by cloud", alpha=alpha) for alpha in (low, middle, high)]
    variants = [results.one("repository", alpha=alpha) for alpha in settings.alphas]
    second = MODELS[-2].name
    known = len(results) > 0
    return [
        Claim(
            where,
            "The repository runs the second most accurate model, as it costs least there.",
            "alphas at which it does",
            float(sum(one == second for one in variants)) if known else math.nan,
            at_least=len(settings.alphas),
            why=", ".join(
                f"alpha {a:g}: {v}" for a, v in zip(settings.alphas, variants, strict=True)
            ),
        ),
        Claim(
            where,
            "At alpha = 3 INFIDA allocates a considerable amount of small models near the edge.",
            "share of models 0-18 among the copies on tiers 1-3",
            shares[0],
            at_least=0.5,
            unit="%",
        ),
        Claim(
            where,
            "At alpha = 4 it rarely allocates small models.",
            "share of models 0-18 among the copies on tiers 1-3, over that at alpha = 3",
            shares[1] / shares[0],
            at_most=0.5,
            why=f"{100 * shares[0]:.0f} % at alpha 3, {100 * shares[1]:.0f} % at 4",
        ),
        Claim(
            where,
            "At alpha = 4 more accurate models are deployed.",
            "mean accuracy of the copies on tiers 1-3, less that at alpha = 3",
            accurate(results, middle, LOWER) - accurate(results, low, LOWER),
            at_least=1.0,
            unit="points",
        ),
        Claim(
            where,
            "At alpha = 5 fewer models are deployed on lower tiers.",
            "copies on a node of each of tiers 1-3, over those at alpha = 4",
            copies[2] / copies[1],
            at_most=0.95,
            why=f"{copies[1]:.1f} at alpha 4, {copies[2]:.1f} at 5",
        ),
        Claim(
            where,
            "At alpha = 5 no small models are allocated in practice.",
            "share of models 0-20 among the copies on tiers 1-3",
            small(results, high, 7 * settings.copies, LOWER),
            at_most=0.05,
            unit="%",
            why=cheaper_than_cloud(settings.system, high, "3.99pruned"),
        ),
        Claim(
            where,
            "At alpha = 5 a significant number of requests is served in the cloud.",
            "share of the requests",
            cloud[2],
            at_least=0.1,
            unit="%",
            why=f"{100 * cloud[0]:.1f} % at alpha 3, {100 * cloud[1]:.1f} % at 4; at 5 "
            + ", ".join(
                f"{100 * results.value(f'served by {tier}', alpha=high):.0f} % by {tier}"
                for tier in _tiers(results)
            ),
        ),
    ]


def cheaper_than_cloud(system: str, alpha: float, variant: str) -> str:
    """What a variant costs at a base station, beside the cloud: why it is worth its memory."""
    tiers = SYSTEMS[system]
    trip_ms = 1000 * sum(tier.rtt_s for tier in tiers)

    def cost(entry: Entry, hardware: str) -> float:
        return 1000 * entry.mean_s[hardware] + alpha * 100 * (1 - entry.accuracy)

    here = next(cost(entry, tiers[-1].hardware) for entry in MODELS if entry.name == variant)
    cloud = trip_ms + min(cost(entry, tiers[0].hardware) for entry in MODELS)
    return (
        f"at alpha {alpha:g} a request costs {here:.0f} ms with {variant} at its base station and "
        f"{cloud:.0f} ms in the cloud, so the small model is worth its memory"
    )


_PAPER = Settings()
STUDY = Study(
    name="placement-tiers",
    source="[SiSalem23], Fig. 5",
    shows="Where INFIDA puts which models, as accuracy becomes more important.",
    scales={
        "smoke": replace(_PAPER, slots=20, trials=1),
        "quick": replace(_PAPER, slots=240, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Values are means over the nodes that requests for the most popular task pass; models that "
        "no request type would rather use than the cloud's have their node's common share.",
        "The learning rate, which the paper does not give, tunes itself.",
    ),
    code=CODE,
)
