"""INFIDA's allocation per tier for several alphas ([SiSalem23], Fig. 5; [SiSalem21], Fig. 2)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from inferway.catalog.published import Entry
from inferway.experiments.curves import Drawing
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import (
    MODELS,
    POLICIES,
    SYSTEMS,
    TUNED,
    Settings,
    allocated,
    placement_study,
)

_POLICIES = ("infida", "exchange")
_LOWER = ("tier 1", "tier 2", "tier 3")
_EDGE = ("tier 2", "tier 3", "base")


def _points(settings: Settings) -> list[Point]:
    return grid(
        allocated,
        settings.given("system", "rate_per_s", "slots", "copies"),
        lambda policy, **_: POLICIES[policy].cost(settings.slots),
        policy=settings.policies,
        alpha=settings.alphas,
        trial=range(settings.trials),
    )


def _figure(settings: Settings, results: Results) -> Drawing:
    from inferway.experiments.networks import Grid, heat_maps

    rows, grids = _tiers(results), []
    for policy, alpha in product(settings.policies, settings.alphas):
        here = results.where(policy=policy)
        values = np.array([_mean(here, alpha, tier) for tier in rows] or np.zeros((1, 1)))
        names = [str(k) for k in range(values.shape[1])]
        title = f"{POLICIES[policy].label}, alpha = {alpha:g}"
        grids.append(Grid(title, rows or ["-"], names, values))
    return heat_maps(
        grids,
        label="allocation",
        title="The most popular task's models, least accurate first",
        across=f"model ({settings.copies} replicas of each variant)",
    )


def _tiers(results: Results) -> list[str]:
    first = results.rows[0] if results.rows else {}
    return [key.removeprefix("y of ") for key in first if key.startswith("y of ")]


def _mean(results: Results, alpha: float, tier: str) -> NDArray[np.float64]:
    """(models,) copies on an average node of a tier."""
    rows = [row[f"y of {tier}"] for row in results.where(alpha=alpha).rows]
    return np.asarray(np.mean(rows, axis=0)) if rows else np.full(len(MODELS), math.nan)


class _Held:
    """Bytes of the task's models that a node of each of some tiers holds, added up, at an alpha."""

    def __init__(self, results: Results, alpha: float, tiers: tuple[str, ...]) -> None:
        known = [_mean(results, alpha, tier) for tier in _tiers(results) if tier in tiers]
        self.y = np.sum(known, axis=0) if known else np.full(len(MODELS), math.nan)
        self.copies = float(self.y.sum())
        accuracy = np.repeat([100 * one.accuracy for one in MODELS], len(self.y) // len(MODELS))
        self.accuracy = float(self.y @ accuracy) / self.copies  # the mean, in points

    def small(self, below: int) -> float:
        return float(self.y[:below].sum()) / self.copies


def _by_alpha(settings: Settings, results: Results, tiers: tuple[str, ...]) -> list[_Held]:
    """Models that tiers hold at the first and the last two alphas."""
    alphas = (settings.alphas[0], *settings.alphas[-2:])
    return [_Held(results, alpha, tiers) for alpha in alphas]


def _claims(settings: Settings, results: Results) -> list[Claim]:
    every, results = results, results.where(policy="infida")
    alphas, copies = settings.alphas, settings.copies
    # Ids 0-18: below the least of 320p's replicas but one.
    first, second, third = held = _by_alpha(settings, results, _LOWER)
    shares = [one.small(6 * copies + 1) for one in held]
    variants = {alpha: results.one("repository", alpha=alpha) for alpha in alphas}
    second_best = list(variants.values()).count(MODELS[-2].name) if len(results) else math.nan
    cloud = results.values("served by cloud", alpha=(alphas[0], *alphas[-2:]))
    by_tier = ", ".join(
        f"{100 * results.value(f'served by {tier}', alpha=alphas[-1]):.0f} % by {tier}"
        for tier in _tiers(results)
    )
    return claims(f"""
      * [Sec. VI-A, Fig. 5]
        The repository runs the second most accurate model, as it costs least there.
        - alphas at which it does: {second_best} (at least {len(alphas)})
        - {", ".join(f"alpha {alpha:g}: {variant}" for alpha, variant in variants.items())}
      * At alpha = 3 INFIDA allocates a considerable amount of small models near the edge.
        - share of models 0-18 among the copies on tiers 1-3: {shares[0]} (at least 50 %)
      * At alpha = 4 it rarely allocates small models.
        - share of models 0-18 among the copies on tiers 1-3, over that at alpha = 3:
          {shares[1] / shares[0]} (at most 0.5)
        - {100 * shares[0]:.0f} % at alpha 3, {100 * shares[1]:.0f} % at 4
      * At alpha = 4 more accurate models are deployed.
        - mean accuracy of the copies on tiers 1-3, less that at alpha = 3:
          {second.accuracy - first.accuracy} (at least 1.0 points)
      * At alpha = 5 fewer models are deployed on lower tiers.
        - copies on a node of each of tiers 1-3, over those at alpha = 4:
          {third.copies / second.copies} (at most 0.95)
        - {second.copies:.1f} at alpha 4, {third.copies:.1f} at 5
      * At alpha = 5 no small models are allocated in practice.
        - share of models 0-20 among the copies on tiers 1-3:
          {third.small(7 * copies)} (at most 5 %)
        - {_cheaper_than_cloud(settings.system, alphas[-1], "3.99pruned")}
      * At alpha = 5 a significant number of requests is served in the cloud.
        - share of the requests: {cloud[2]} (at least 10 %)
        - {100 * cloud[0]:.1f} % at alpha 3, {100 * cloud[1]:.1f} % at 4; at 5 {by_tier}
      * {_fewer_in_the_cloud(settings, every)}
    """)


def _fewer_in_the_cloud(settings: Settings, results: Results) -> str:
    alphas = settings.alphas
    own, infida = (
        results.where(policy=policy).values("served by cloud", alpha=alphas)
        for policy in ("exchange", "infida")
    )
    more = dict(zip(alphas, (a - b for a, b in zip(own, infida, strict=True)), strict=True))
    shares = ", ".join(
        f"alpha {alpha:g}: {100 * a:.1f} and {100 * b:.1f} %"
        for alpha, a, b in zip(alphas, own, infida, strict=True)
    )
    return f"""[ours] Under exchange no more requests go to the cloud than under INFIDA.
        - largest share of exchange's less INFIDA's: {most(more, math.nan)[0]} (at most 0 %)
        - {shares}"""


def _edge_claims(settings: Settings, results: Results) -> list[Claim]:
    every, results = results, results.where(policy="infida")
    alphas = settings.alphas
    held = _by_alpha(settings, results, _EDGE)
    kept = [one.copies for one in _by_alpha(settings, results, _LOWER)]
    cloud, base = (results.values(f"served by {one}", alpha=alphas) for one in ("cloud", "base"))
    served = zip(alphas, base, strict=True)
    return claims(f"""
      * [Sec. VI-A, Fig. 2]
        At alpha = 1 INFIDA allocates a considerable amount of small models near the edge.
        - share of small models among the copies on tiers 2-4:
          {held[0].small(6 * settings.copies)} (at least 50 %)
      * At alpha = 3 it tends to avoid serving requests at the very edge.
        - requests served at base stations, over those at alpha = 1:
          {base[1] / base[0]} (at most 0.8)
        - {", ".join(f"alpha {alpha:g}: {100 * share:.1f} %" for alpha, share in served)}
      * At alpha = 3 more accurate models are deployed.
        - mean accuracy of the copies on tiers 2-4, less that at alpha = 1:
          {held[1].accuracy - held[0].accuracy} (at least 1.0 points)
      * At alpha = 4 far fewer models are deployed on tiers 1-3.
        - copies on a node of each of them, over those at alpha = 3:
          {kept[2] / kept[1]} (at most 0.7)
        - {kept[0]:.1f} at alpha 1, {kept[1]:.1f} at 3, {kept[2]:.1f} at 4
      * At alpha = 4 a significant amount of requests is served in the cloud.
        - share of the requests: {cloud[2]} (at least 10 %)
        - {100 * cloud[0]:.1f} % at alpha 1, {100 * cloud[1]:.1f} % at 3;
          {_cheaper_than_cloud(settings.system, alphas[-1], "3.99pruned")}
      * {_fewer_in_the_cloud(settings, every)}
    """)


def _cheaper_than_cloud(system: str, alpha: float, variant: str) -> str:
    """Cost of a variant at a base station, beside the cloud: why it is worth its memory."""
    tiers = SYSTEMS[system]

    def cost(entry: Entry, hardware: str) -> float:
        return 1000 * entry.mean_s[hardware] + alpha * 100 * (1 - entry.accuracy)

    here = next(cost(entry, tiers[-1].hardware) for entry in MODELS if entry.name == variant)
    cloud = min(cost(entry, tiers[0].hardware) for entry in MODELS)
    cloud += 1000 * sum(tier.rtt_s for tier in tiers)
    return (
        f"at alpha {alpha:g} a request costs {here:.0f} ms with {variant} at its base station and "
        f"{cloud:.0f} ms in the cloud, so the small model is worth its memory"
    )


STUDY = placement_study(
    name="placement-tiers",
    source="[SiSalem23], Fig. 5",
    shows="Where INFIDA puts which models, as accuracy becomes more important.",
    scales=scales(
        Settings(alphas=(3.0, 4.0, 5.0), policies=_POLICIES),
        smoke={"slots": 20, "trials": 1},
        quick={"slots": 240, "trials": 3},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Values are means over the nodes that requests for the most popular task pass; models that "
        "no request type would rather use than the cloud's have their node's common share.",
        TUNED,
    ),
)
EDGE = placement_study(
    name="edge-tiers",
    source="[SiSalem21], Fig. 2",
    shows="Where INFIDA puts which models in a network of 86 nodes.",
    scales=scales(
        Settings(
            system="conference",
            alphas=(1.0, 3.0, 4.0),
            policies=_POLICIES,
            rate_per_s=5000.0,
            copies=5,
        ),
        smoke={"slots": 12, "trials": 1},
        quick={"slots": 120, "trials": 3},
    ),
    points=_points,
    figure=_figure,
    claims=_edge_claims,
    departures=(
        "The paper gives neither the budgets, but for 75 % of the base stations, nor the single "
        "round-trip times: budgets are those of [SiSalem23]; 25, 15, 5 and 5 ms add up to the "
        "50 ms that it states.",
        "Values are means over the nodes that requests for the most popular task pass.",
    ),
)
