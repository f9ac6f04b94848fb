"""What placement goes by, drawn: the catalog, the popularity, and what is cheaper upstream.

[SiSalem23], Figs. 2, 3 and 4 and footnote 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from inferway.catalog.published import table
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.network import DeliveryNetwork
from inferway.placement.contract import Allocation
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import (
    POLICIES,
    Settings,
    placement_study,
    run,
    scenario,
)
from inferway.workload.popularity import zipf

_TASKS = 20


_PAPER = "paper/yolov4"


@dataclass(frozen=True)
class CatalogSettings:
    """The papers' catalog, and one of image classifiers, as in the figure."""

    catalogs: tuple[str, ...] = (_PAPER, "timm/pareto")


def listed(*, catalog: str, seed: int) -> dict[str, Any]:
    """Read a catalog, most accurate first: accuracy in percent, MiB, and seconds by hardware.

    ``hardware`` names the columns of seconds, from ``0 s`` on.
    """
    del seed
    entries = sorted(table(catalog), key=lambda one: -one.accuracy)
    hardware = list(entries[0].mean_s)
    return {
        "names": [one.name for one in entries],
        "accuracy": [100 * one.accuracy for one in entries],
        "mib": [one.size_bytes / 2**20 for one in entries],
        "hardware": hardware,
        **{f"{k} s": [one.mean_s[name] for one in entries] for k, name in enumerate(hardware)},
    }


def _catalog_points(settings: CatalogSettings) -> list[Point]:
    return grid(listed, {"seed": 1}, 0.1, catalog=settings.catalogs)


def _catalog_figure(settings: CatalogSettings, results: Results) -> Drawing:
    del settings
    shown = []
    for row in results.rows:
        accuracy = row["accuracy"]
        sizes = [Look("models", 0, "").curve(row["mib"], accuracy)]
        speeds = [
            Look(name, 1 + color, "").curve([1 / one for one in row[f"{color} s"]], accuracy)
            for color, name in enumerate(row["hardware"])
        ]
        up = "accuracy, %"
        shown += [
            Panel(row["catalog"], "size, MiB", up, sizes, scale_across="log"),
            Panel(row["catalog"], "answers per second", up, speeds, scale_across="log"),
        ]
    title = "Catalogs of pre-trained models ([SiSalem23], Fig. 2 and Table II)"
    return panels(shown or [Panel("", "", "", [])], columns=2, title=title)


def _catalog_claims(settings: CatalogSettings, results: Results) -> list[Claim]:
    del settings
    slower, speedups, smaller = {}, {}, {}
    for row in results.rows:
        smaller[row["catalog"]] = float(np.mean([b < a for a, b in pairwise(row["mib"])]))
        if row["catalog"] != _PAPER:
            continue
        for k, hardware in enumerate(row["hardware"]):
            for (a, earlier), (b, later) in pairwise(zip(row["names"], row[f"{k} s"], strict=True)):
                slower[f"{b} and {a}, {hardware}"] = later / earlier
        for name, *both in zip(row["names"], row["0 s"], row["1 s"], strict=True):
            speedups[name] = max(both) / min(both)
    worst, at_worst = most(slower, "")
    speedup, at_speedup = least(speedups, "")
    return claims(f"""
      * [Sec. VI, Table II] As complexity decreases, a GPU processes more frames per second.
        - largest time of a model over that of the next more accurate one: {worst} (at most 1)
        - {at_worst}
      * [Fig. 2] Accuracy is paid for with size: there is a trade-off among pre-trained models.
        - least share of the steps to a less accurate model that are to a smaller one, of the
          catalogs: {least(smaller, "")[0]} (at least 0.75)
        - {", ".join(f"{name} {100 * one:.0f} %" for name, one in smaller.items())}
      * [Sec. III-C] The same model has other delays on other hardware.
        - least speed of the faster GPU over the slower one's, by model: {speedup} (at least 2)
        - {at_speedup}
    """)


@dataclass(frozen=True)
class PopularitySettings(Settings):
    """The paper's two profiles (Sec. VI)."""

    slots: int = 240
    shown: int = 5000  # requests that are drawn, as in the figure
    trials: int = 1


def sampled(
    *, sliding: bool, rate_per_s: float, slots: int, shown: int, seed: int
) -> dict[str, Any]:
    """Count requests by task and hour, and draw some of them: slot and task of each."""
    demand = scenario("II", alpha=1.0, rate_per_s=rate_per_s, sliding=sliding, seed=seed).demand
    (stream,) = demand.streams
    types = np.repeat(np.arange(_TASKS), stream.type_of.shape[1])
    counts = np.zeros((slots, _TASKS))
    for slot in range(slots):
        by_type = demand.counts(slot)[stream.type_of.ravel()]
        counts[slot] = np.bincount(types, by_type, _TASKS)
    drawn = np.random.default_rng(seed).multinomial(shown, (counts / counts.sum()).ravel())
    place = np.repeat(np.arange(counts.size), drawn)
    hours = counts.reshape(-1, min(60, slots), _TASKS).sum(axis=1)
    return {
        "slot": (place // _TASKS).tolist(),
        "task": (place % _TASKS).tolist(),
        "hours": (hours / hours.sum(axis=1, keepdims=True)).ravel().tolist(),
    }


def _popularity_points(settings: PopularitySettings) -> list[Point]:
    given = settings.given("rate_per_s", "slots", "shown")
    return grid(
        sampled, given, 0.002 * settings.slots, sliding=(False, True), trial=range(settings.trials)
    )


def _popularity_figure(settings: PopularitySettings, results: Results) -> Drawing:
    shown = []
    for sliding, name in ((False, "fixed"), (True, "sliding")):
        dots = [
            Curve("a request", row["slot"], row["task"], color=0, dash="")
            for row in results.where(sliding=sliding).rows[:1]
        ]
        shown.append(Panel(f"{name} popularity profile", "slot, minutes", "task", dots))
    title = f"Requests for each task, {settings.shown:,} of them ([SiSalem23], Fig. 4)"
    return panels(shown, columns=2, title=title)


def _popularity_claims(settings: PopularitySettings, results: Results) -> list[Claim]:
    del settings
    expected = zipf(_TASKS, 1.2)
    off, moved = {}, {}
    for row in results.rows:
        hours = np.reshape(row["hours"], (-1, _TASKS))
        for hour, shares in enumerate(hours):
            steps = 5 * hour if row["sliding"] else 0
            law = expected[(np.arange(_TASKS) + steps) % _TASKS]
            name = "sliding" if row["sliding"] else "fixed"
            off[f"{name}, hour {hour}"] = float(np.abs(shares - law).max())
            if row["sliding"]:
                moved[hour] = float((law * (np.argmax(shares) == np.argmax(law))).max())
    worst, at = most(off, "")
    follows = sum(one > 0 for one in moved.values()) / len(moved) if moved else math.nan
    return claims(f"""
      * [Fig. 4] At any moment requests are drawn from a Zipf distribution with exponent 1.2.
        - largest distance of a task's share in an hour from it: {worst} (at most 0.1 %)
        - {at}
      * [Fig. 4b] Popularity changes by a cyclic shift of five tasks every hour.
        - share of the hours whose most popular task is the shift's: {follows} (at least 1)
        -
    """)


@dataclass(frozen=True)
class UpstreamSettings(Settings):
    """The paper's Topology I under fixed popularity."""

    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    slots: int = 240


def alternatives(
    *, system: str, alpha: float, rate_per_s: float, slots: int, seed: int
) -> dict[str, Any]:
    """Count the running options that are cheaper further up, of each that INFIDA deployed.

    Of every type and every deployed model on its path but the repository's: ``most`` and ``mean``
    count copies of a model as models, as the paper does, ``most_kinds`` counts them as one. Of the
    most popular task's first type beside it, by place on the path: ``network_ms``, the round trip;
    ``service_ms``, the least delay and inaccuracy of any model there.
    """
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed)
    policy = POLICIES["infida"].build(built, slots, seed)
    run(built, policy, "infida", slots)
    copies, kinds = _counted(built.network, policy.allocation)
    network, options = built.network, built.network.options
    start, end = options.first[0], options.first[1]
    route = slice(*network.paths.first[network.requests.path[0] : network.requests.path[0] + 2])
    rtt_ms = 1000 * network.paths.rtt_s[route]
    service = options.cost[start:end] - rtt_ms[options.hop[start:end]]
    by_hop = [service[options.hop[start:end] == hop] for hop in range(len(rtt_ms))]
    return {
        "most": max(copies, default=0),
        "mean": float(np.mean(copies)) if copies else 0.0,
        "most_kinds": max(kinds, default=0),
        "network_ms": rtt_ms.tolist(),
        "service_ms": [float(one.min()) if one.size else math.nan for one in by_hop],
    }


def _counted(network: DeliveryNetwork, allocation: Allocation) -> tuple[list[int], list[int]]:
    """Of each deployed option its cheaper running ones further up: copies, and kinds."""
    options, copies, kinds = network.options, [], []
    runs = (allocation[options.pair] > 0) | (network.pairs.pinned[options.pair] > 0)
    for start, end in pairwise(options.first):
        there = np.flatnonzero(runs[start:end]) + start
        for o in there[~options.repository[there]]:
            better = there[
                (options.hop[there] > options.hop[o]) & (options.cost[there] < options.cost[o])
            ]
            copies.append(len(better))
            variants = network.models.variant[options.model[better]]
            kinds.append(
                len(set(zip(options.node[better].tolist(), variants.tolist(), strict=True)))
            )
    return copies, kinds


def _upstream_points(settings: UpstreamSettings) -> list[Point]:
    given = settings.given("system", "rate_per_s", "slots")
    cost = POLICIES["infida"].cost(settings.slots)
    return grid(alternatives, given, cost, alpha=settings.alphas, trial=range(settings.trials))


def _upstream_figure(settings: UpstreamSettings, results: Results) -> Drawing:
    alphas = settings.alphas
    shown = [
        Look("most, copies count", 0).line(results, "most", alpha=alphas),
        Look("most, copies as one", 1, "--").line(results, "most_kinds", alpha=alphas),
        Look("mean, copies count", 2, ":").line(results, "mean", alpha=alphas),
    ]
    along = []
    for color, alpha in enumerate(alphas[:: max(1, len(alphas) // 3)]):
        look = Look(f"best service, alpha {alpha:g}", color)
        along += _along(look, results.where(alpha=alpha), "service_ms")
    along += _along(Look("network", -1, "--"), results, "network_ms")
    return panels(
        [
            Panel("cost along a path", "hop", "cost, ms", along),
            Panel("better models upstream", "alpha", "of a deployed model", shown),
        ],
        columns=2,
        title="Why nodes must tell each other ([SiSalem23], Fig. 3 and footnote 6)",
    )


def _along(look: Look, results: Results, column: str) -> list[Curve]:
    """A curve of the first row's column, by place on the path; none without rows."""
    return [look.curve(range(len(row[column])), row[column]) for row in results.rows[:1]]


def _upstream_claims(settings: UpstreamSettings, results: Results) -> list[Claim]:
    worst, at = most({a: results.measure("most", alpha=a).mean for a in settings.alphas}, math.nan)
    by_alpha = ", ".join(
        f"{a:g}: {results.measure('most', alpha=a).mean:.1f} "
        f"({results.measure('most_kinds', alpha=a).mean:.1f})"
        for a in settings.alphas
    )
    falls, rises = [], []
    for row in results.rows:
        falls.append(row["service_ms"][-1] - row["service_ms"][0])
        rises += [b - a for a, b in pairwise(row["network_ms"])]
    return claims(f"""
      * [Footnote 6] Each deployed model has at most six better alternatives on upstream nodes.
        - most of any, mean over the trials: {worst} (at most 6)
        - at alpha {at:g}; by alpha, in brackets where copies of a model count as one: {by_alpha}
      * [Footnote 6] The worst case is at alpha = 1.
        - most at alpha {settings.alphas[0]:g} less the most of all:
          {results.measure("most", alpha=settings.alphas[0]).mean - worst} (at least 0)
        -
      * [Sec. III-C, Fig. 3] The network cost always increases along a path.
        - least step: {min(rises, default=math.nan)} (at least 0 ms)
        -
      * The service cost tends to decrease, as farther nodes are better equipped.
        - largest cost of the best model in the cloud less that at the base station, of all alphas:
          {max(falls, default=math.nan)} (at most 0 ms)
        -
    """)


CATALOG = placement_study(
    name="catalog",
    source="[SiSalem23], Fig. 2 and Table II",
    shows="The catalog of pre-trained models: accuracy against size and speed.",
    scales=scales(CatalogSettings(), smoke={"catalogs": (_PAPER,)}),
    points=_catalog_points,
    figure=_catalog_figure,
    claims=_catalog_claims,
    departures=(
        "Fig. 2 shows image classifiers whose numbers are in another work and not in the text: the "
        "models drawn are those of Table II, and image classifiers of timm's results.",
    ),
)
POPULARITY = placement_study(
    name="popularity",
    source="[SiSalem23], Fig. 4, and [SiSalem21], Fig. 1",
    shows="Which tasks are asked for in the course of time, fixed and sliding.",
    scales=scales(PopularitySettings(), smoke={"slots": 120, "shown": 500}),
    points=_popularity_points,
    figure=_popularity_figure,
    claims=_popularity_claims,
)
UPSTREAM = placement_study(
    name="upstream",
    source="[SiSalem23], Fig. 3 and footnote 6",
    shows="How many cheaper models there are upstream of a deployed one.",
    scales=scales(
        UpstreamSettings(),
        smoke={"alphas": (1.0, 4.0), "slots": 20, "trials": 1},
        quick={"trials": 3},
    ),
    points=_upstream_points,
    figure=_upstream_figure,
    claims=_upstream_claims,
    departures=(
        "Models are those that run after 240 slots of INFIDA; where a better one upstream has room "
        "is not asked. Options that no request would rather use than the cloud's are left out, as "
        "they are everywhere.",
    ),
)
