"""Regret as the horizon grows, under four kinds of demand ([SiSalem23], Theorem V.1 and App. G)."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.experiments.claim import percents
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import most
from inferway.network import DeliveryNetwork, Demand
from inferway.placement import Observation, build_policy, minimal, relaxation, serve
from inferway.placement.contract import Allocation, Float
from inferway.placement.regret import PSI, regret_bound
from inferway.placement.serving import spent
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import Settings, placement_study, scenario

# Environment variable that names a folder with the Azure LLM inference traces, for `recorded`.
VARIABLE: Final = "INFERWAY_TRACES"
_TRACE: Final = "AzureLLMInferenceTrace_conv.csv"

_POLICIES: Final = {
    "infida": Look("INFIDA", 0),
    "infida-app-g": Look("INFIDA, learning rate of App. G", 4, ":"),
    "infida-coupled": Look("INFIDA, coupled (ours)", 6, "--"),
    "olag": Look("OLAG", 3, "-."),
}
_STATIC = Look("best static, LP bound")
_KINDS: Final = ("fixed", "sliding", "adversarial", "recorded")

Batch = Callable[[int, Allocation], Float]  # requests of a slot, given what runs in it


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


def trace() -> Path | None:
    """The recorded trace, where its folder is named and has it."""
    folder = os.environ.get(VARIABLE)
    file = None if folder is None else Path(folder) / _TRACE
    return file if file is not None and file.is_file() else None


def regretted(
    kind: str,
    policy: str,
    system: str,
    alpha: float,
    rate_per_s: float,
    horizons: list[int],
    seed: int,
) -> dict[str, Any]:
    """Run a policy of INFIDA or counters under one kind of demand, until the last horizon.

    ``own_ms`` and ``best_ms`` are gains per request until each horizon: the run's, as served, and
    what no static allocation can exceed with the requests of these slots. ``bound_ms`` is
    Theorem V.1's A / sqrt(T), per request.
    """
    slots = horizons[-1]
    sliding = kind != "fixed"
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed)
    network = _planned(built.network)
    batch, means = _demand(kind, network, built.demand, rate_per_s, slots)
    options: dict[str, Any] = {"rounding": "fresh"} if policy.startswith("infida") else {}
    if policy == "infida-app-g":
        options["learning_rate"] = regret_bound(network).rate(slots)
    if policy == "infida-coupled":
        options = {}
    made = build_policy(policy.split("-")[0], network, seed=seed, **options)
    least, load = minimal(network).astype(np.uint8), np.zeros(len(network.options.pair))
    gains, asked, chosen = np.zeros(slots), np.zeros(slots), []
    for slot in range(slots):
        requests = batch(slot, made.allocation)
        chosen.append(means(slot, requests))
        asked[slot] = requests.sum()
        alone = spent(network, serve(network, requests, least, out=load)).sum()
        gains[slot] = (
            alone - spent(network, serve(network, requests, made.allocation, out=load)).sum()
        )
        made.step(Observation(requests, load))
    own, best = [], []
    for horizon in horizons:
        per_request = asked[:horizon].mean()
        own.append(float(gains[:horizon].mean() / per_request))
        best.append(relaxation(network, np.array(chosen[:horizon])) / float(per_request))
    a = regret_bound(network).constant / float(asked.mean())
    return {
        "own_ms": own,
        "best_ms": best,
        "bound_ms": [a / math.sqrt(horizon) for horizon in horizons],
    }


def _planned(network: DeliveryNetwork) -> DeliveryNetwork:
    """The same with a cloud for ten times the requests: a recording has its own peaks."""
    pairs = network.pairs
    many = np.where(network.repository[pairs.node], 10.0, 1.0)
    return replace(network, pairs=pairs._replace(pinned=pairs.pinned * many))


def _demand(
    kind: str, network: DeliveryNetwork, demand: Demand, rate_per_s: float, slots: int
) -> tuple[Batch, Callable[[int, Float], Float]]:
    """Requests by slot, and the mean requests of a slot, of which there are few different ones."""
    if kind in ("fixed", "sliding"):
        expected = [demand.expected(slot) for slot in range(min(slots, 240))]
        return (
            lambda slot, _: demand.counts(slot).astype(float),
            lambda slot, _: expected[slot % len(expected)],
        )
    if kind == "recorded":
        minutes = _recorded(network, rate_per_s)
        return (
            lambda slot, _: minutes[slot % len(minutes)],
            lambda slot, requests: minutes[slot % len(minutes)],
        )
    # The adversary sees what runs and asks for the tasks that gain the least from it, of the four
    # popularities of a day.
    four = [demand.expected(60 * hour) for hour in range(4)]
    least = minimal(network).astype(np.uint8)
    alone = [spent(network, serve(network, one, least)).sum() for one in four]

    def worst(slot: int, allocation: Allocation) -> Float:
        del slot
        gains = [
            anyway - spent(network, serve(network, one, allocation)).sum()
            for one, anyway in zip(four, alone, strict=True)
        ]
        return four[int(np.argmin(gains))]

    return worst, lambda slot, requests: requests


def _recorded(network: DeliveryNetwork, rate_per_s: float) -> Float:
    """(minutes, R) requests of the trace, a task for each of 20 ranges of prompt lengths.

    The ranges are of equal width in the logarithm, the most frequent one first. The mean rate is
    brought to `rate_per_s`; what entered where is split evenly.
    """
    file = trace()
    assert file is not None  # as `found` sees
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]))
            for row in csv.DictReader(lines)
        ]
    start = rows[0][0]
    minute = np.array([int((at - start).total_seconds() // 60) for at, _ in rows])
    length = np.log(np.array([max(tokens, 1) for _, tokens in rows], float))
    edges = np.linspace(length.min(), length.max(), len(network.tasks) + 1)
    ranges = np.clip(np.searchsorted(edges, length, side="right") - 1, 0, len(network.tasks) - 1)
    rank = np.argsort(np.argsort(-np.bincount(ranges, minlength=len(network.tasks))))
    counts = np.zeros((int(minute.max()), len(network.tasks)))
    whole = minute < len(counts)  # the last minute is cut off
    np.add.at(counts, (minute[whole], rank[ranges[whole]]), 1.0)
    counts *= rate_per_s * network.slot_s / counts.sum(axis=1).mean()
    return np.rint(counts[:, network.requests.task] * network.requests.share)


def _points(settings: RegretSettings) -> list[Point]:
    given = {**settings.given("system", "alpha", "rate_per_s"), "horizons": list(settings.horizons)}
    cost = 2.0 + 0.001 * settings.horizons[-1]
    axes: dict[str, Any] = {"kind": settings.found, "policy": settings.policies}
    return grid(regretted, given, cost, **axes, trial=range(settings.trials))


def _means(results: Results, column: str, **label: Any) -> list[float]:
    rows = [row[column] for row in results.where(**label).rows]
    return np.mean(rows, axis=0).tolist() if rows else []


def _figure(settings: RegretSettings, results: Results) -> Drawing:
    shown, horizons = [], settings.horizons
    for kind in settings.found:
        best = _means(results, "best_ms", kind=kind, policy=settings.policies[0])
        drawn = [
            _STATIC.curve(horizons, best),
            Curve("1 - 1/e of it", horizons, [PSI * one for one in best], dash=":"),
        ]
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
    horizons, kinds, first = settings.horizons, settings.found, 2
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
        kind: (PSI * best - own) / bound
        for kind in kinds
        for own, best, bound in zip(
            *(
                _means(results, of, kind=kind, policy="infida-app-g")
                for of in ("own_ms", "best_ms", "bound_ms")
            ),
            strict=True,
        )
    }
    behind = {kind: end(kind, "infida-app-g") / end(kind, "infida") - 1 for kind in kinds}
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
        - largest regret over the bound: {max(below.values())} (at most 1)
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
    """)


STUDY = placement_study(
    name="regret",
    source="after [SiSalem23], Theorem V.1 and App. G",
    shows="The regret against the best static allocation as the horizon grows: fixed, sliding, "
    "adversarial and recorded demand.",
    scales=scales(
        RegretSettings(trials=5),
        smoke={
            **{"kinds": ("fixed", "sliding", "adversarial"), "horizons": (5, 10, 20)},
            **{"policies": tuple(_POLICIES), "trials": 1},
        },
        quick={"horizons": (15, 30, 60, 120, 240, 480, 960)},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The best static allocation is bounded from above by the LP relaxation over the mean "
        "requests of the slots, so that regrets are not below those shown. Gains are as served.",
        "The adversary sees what runs and chooses the popularity, of the sliding profile's four, "
        "that gains the least; capacities are those of eq. 7 and not the adversary's.",
        "Recorded demand is the Azure LLM inference trace of conversations, where INFERWAY_TRACES "
        "names its folder: 58 minutes, over and over, brought to the rate; ranges of prompt "
        "lengths are the tasks.",
    ),
)
