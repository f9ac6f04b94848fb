"""Regret as the horizon grows, under four kinds of demand ([SiSalem23], Theorem V.1 and App. G)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from inferway.experiments.claim import percents
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import most
from inferway.placement.regret import PSI
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.regretted import regretted, trace
from inferway.studies.placement.trial import Settings, placement_study

_POLICIES: Final = {
    "infida": Look("INFIDA", 0),
    "infida-app-g": Look("INFIDA, learning rate of App. G", 2, ":"),
    "infida-coupled": Look("INFIDA, coupled (ours)", 6, "--"),
    "olag": Look("OLAG", 3, "-."),
    "infida-marginal": Look("INFIDA, real marginals (ours)", 4, ":"),
    "exchange": Look("exchange (ours)", 5),
}
_STATIC, _DYNAMIC = Look("best static, LP bound"), Look("best of each slot, LP bound", -1, "--")
_KINDS: Final = ("fixed", "sliding", "adversarial", "recorded")


@dataclass(frozen=True)
class RegretSettings(Settings):
    """Ours: the paper proves the bound and shows no regret."""

    system: str = "II"
    alpha: float = 3.0
    kinds: tuple[str, ...] = _KINDS
    policies: tuple[str, ...] = tuple(_POLICIES)
    horizons: tuple[int, ...] = (15, 30, 60, 120, 240, 480, 960, 1920)
    trials: int = 3

    @property
    def found(self) -> tuple[str, ...]:
        """The kinds of demand whose data are at hand."""
        return tuple(one for one in self.kinds if one != "recorded" or trace() is not None)


def _points(settings: RegretSettings) -> list[Point]:
    given = {**settings.given("system", "alpha", "rate_per_s"), "horizons": list(settings.horizons)}
    axes: dict[str, Any] = {"kind": settings.found, "policy": settings.policies}

    def cost(policy: str, **_: Any) -> float:
        return 5.0 + (0.02 if policy == "exchange" else 0.001) * settings.horizons[-1]

    return grid(regretted, given, cost, **axes, trial=range(settings.trials))


def _means(results: Results, column: str, **label: Any) -> list[float]:
    rows = [row[column] for row in results.where(**label).rows]
    return np.mean(rows, axis=0).tolist() if rows else []


def _figure(settings: RegretSettings, results: Results) -> Drawing:
    shown, horizons = [], settings.horizons
    for kind in settings.found:
        best = _means(results, "best_ms", kind=kind, policy=settings.policies[0])
        drawn = []
        if best:
            share = Curve("1 - 1/e of it", horizons, [PSI * one for one in best], dash=":")
            each = _means(results, "dynamic_ms", kind=kind, policy=settings.policies[0])
            drawn = [_DYNAMIC.curve(horizons, each), _STATIC.curve(horizons, best), share]
        for policy in settings.policies:
            own = _means(results, "own_ms", kind=kind, policy=policy)
            drawn += [_POLICIES[policy].curve(horizons, own)] if own else []
        shown.append(
            Panel(
                f"{kind} demand",
                "slots T",
                "mean gain of a request until T, ms",
                drawn,
                scale_across="log",
                ticks_across=horizons[::2],
            )
        )
    title = f"Regret, Topology {settings.system}, alpha {settings.alpha:g}"
    return panels(shown, columns=2, title=f"{title} (after [SiSalem23], Theorem V.1)")


def _claims(settings: RegretSettings, results: Results) -> list[Claim]:
    horizons, first = settings.horizons, 2
    kinds = [
        kind
        for kind in settings.found
        if all(len(results.where(kind=kind, policy=one)) for one in settings.policies)
    ]
    last = horizons[-1]

    def lost(kind: str, policy: str, share: float = 1.0) -> list[float]:
        """Mean regret until each horizon against a share of the best gain, in parts of it."""
        own, best = (_means(results, of, kind=kind, policy=policy) for of in ("own_ms", "best_ms"))
        return [share - mine / most_ for mine, most_ in zip(own, best, strict=True)]

    def end(kind: str, policy: str) -> float:
        return 1 - lost(kind, policy)[-1]

    worst, at = most(
        {
            f"{kind}, T = {horizon}": one
            for kind in kinds
            for horizon, one in zip(horizons, lost(kind, "infida", PSI), strict=True)
            if horizon >= horizons[min(first, len(horizons) - 1)]
        },
        "",
    )
    grown, where = most(
        {kind: lost(kind, "infida")[-1] - lost(kind, "infida")[0] for kind in kinds}, ""
    )
    below = {
        f"{kind}, T = {horizon}": (PSI * best - own) / bound
        for kind in kinds
        for horizon, own, best, bound in zip(
            horizons,
            *(
                _means(results, of, kind=kind, policy="infida-app-g")
                for of in ("own_ms", "best_ms", "bound_ms")
            ),
            strict=True,
        )
    }
    behind = {kind: end(kind, "infida-app-g") / end(kind, "infida") - 1 for kind in kinds}

    def behind_each(policy: str, kinds: list[str]) -> dict[str, list[float]]:
        """Mean regret until each horizon against the best allocation of each slot, in parts."""
        found = {}
        for kind in kinds:
            own, every = (
                _means(results, of, kind=kind, policy=policy) for of in ("own_ms", "dynamic_ms")
            )
            found[kind] = [1 - mine / top for mine, top in zip(own, every, strict=True)]
        return found

    calm = [kind for kind in kinds if kind != "adversarial"]
    shown = ("infida", "infida-marginal", "olag", "exchange")
    dynamic = {one: behind_each(one, kinds) for one in shown}
    own_dynamic = {kind: dynamic["exchange"][kind][-1] for kind in calm}
    fallen = {kind: one[-1] - one[0] for kind, one in dynamic["exchange"].items() if kind in calm}
    rivals = {
        f"{kind} against {name}": dynamic["exchange"][kind][-1] - dynamic[one][kind][-1]
        for kind in calm
        for one, name in (("infida", "INFIDA"), ("olag", "OLAG"))
    }
    against = end("adversarial", "exchange") if "adversarial" in kinds else math.nan
    ends = {kind: lost(kind, "infida")[-1] for kind in kinds}
    coupled = {kind: lost(kind, "infida-coupled")[-1] for kind in kinds}
    olag = {kind: lost(kind, "olag")[-1] for kind in kinds}
    return claims(f"""
      * [Theorem V.1] INFIDA's mean gain is at least 1 - 1/e of the best static allocation's,
        whatever the demand.
        - largest mean regret against that share from T = {horizons[min(first, len(horizons) - 1)]}
          on, in parts of the best static gain: {worst} (at most 0 %)
        - {at}
      * [App. G] With the learning rate of App. G it keeps its bound A sqrt(T).
        - largest regret over the bound: {most(below, "")[0]} (at most 1)
        - the bound is for the worst adversary
      * [ours] That rate is too small to learn anything in {last} slots.
        - largest gain over that of the rate that tunes itself, less 1: {most(behind, "")[0]}
          (at most -10 %)
        - {percents(behind, "+.1f")}
      * Without the factor 1 - 1/e, too, the mean regret falls as T grows, whatever the demand.
        - largest mean regret at T = {last} less that at T = {horizons[0]}, of the best static gain:
          {grown} (at most 0 %)
        - {where}; at T = {last}: {percents(ends, "+.1f")}; coupled
          {percents(coupled, "+.1f")}; OLAG {percents(olag, "+.1f")}
      * Where popularity slides, INFIDA gains more than the best static allocation.
        - its mean regret at T = {last}, in parts of the best static gain:
          {ends.get("sliding", math.nan)} (at most 0 %)
        -
      * [ours] Where nobody works against it, exchange comes near the best allocation of each slot.
        - largest mean regret against that at T = {last}, of its gain: {most(own_dynamic, "")[0]}
          (at most 5 %)
        - {
        "; ".join(
            f"{_POLICIES[one].label}: {percents({k: of[-1] for k, of in each.items()}, '+.1f')}"
            for one, each in dynamic.items()
        )
    }
      * There its mean regret against the best allocation of each slot falls as T grows.
        - largest at T = {last} less that at T = {horizons[0]}: {most(fallen, "")[0]} (at most 0 %)
        - {percents(fallen, "+.1f")}
      * And it is less than INFIDA's and OLAG's.
        - largest at T = {last} less theirs: {most(rivals, "")[0]} (at most 0 %)
        - {percents(rivals, "+.1f")}
      * Exchange has no bound: an adversary who sees what runs holds it below the share of the best
        static gain that INFIDA is held to.
        - its gain at T = {last}, of the best static gain: {against} (at most {100 * PSI:.1f} %)
        - INFIDA {100 * end("adversarial", "infida") if "adversarial" in kinds else math.nan:.1f} %
    """)


STUDY = placement_study(
    name="regret",
    source="after [SiSalem23], Theorem V.1 and App. G",
    shows="The regret against the best static allocation, and against the best of each slot, as "
    "the horizon grows: fixed, sliding, adversarial and recorded demand.",
    scales=scales(
        RegretSettings(trials=5),
        smoke={
            **{"kinds": ("fixed", "sliding", "adversarial"), "horizons": (5, 10, 20)},
            **{"policies": tuple(_POLICIES), "trials": 1},
        },
        quick={"horizons": (15, 30, 60, 120, 240, 480, 960), "trials": 3},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The best static allocation is bounded from above by the LP relaxation over the mean "
        "requests of the slots, so that regrets are not below those shown, and so is the best "
        "allocation of each slot, which moves models for nothing. Gains are as served.",
        "The adversary sees what runs and chooses the popularity, of the sliding profile's four, "
        "that gains the least; capacities are those of eq. 7 and not the adversary's.",
        "Recorded demand is the Azure LLM inference trace of conversations, where INFERWAY_TRACES "
        "names its folder: 58 minutes, over and over, brought to the rate; ranges of prompt "
        "lengths are the tasks.",
    ),
)
