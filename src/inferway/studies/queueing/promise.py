"""The promise: a running mean at its target from the 2,000th answer on, and after trouble again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferway.deployment.workloads import phased, poisson
from inferway.dispatch import max_rate, solve
from inferway.dispatch.promise import FEWEST, SLACK
from inferway.experiments.claim import ours
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.site import Fleet
from inferway.studies import Claim, Point, Results, Study, grid, scales
from inferway.studies.queueing.dual_ascent import NAME
from inferway.studies.queueing.system import (
    CODE,
    LOOKS,
    Settings,
    System,
    greatest,
    scenario,
    seconds,
    simulated,
)
from inferway.twin.scenario import SetOutage
from inferway.twin.simulation import run

_OWN = {"dual-ascent": NAME}
_LOOKS = {
    "priced": LOOKS["priced"],
    "dual-ascent": Look("dual ascent (ours)", 6, ":"),
    "tad-op": LOOKS["tad-op"],
    "tad": LOOKS["tad"],
}
_TROUBLES = ("burst", "outage", "target")
_BEFORE, _DURING, _AFTER = 6_000, 1_000, 12_000  # Answers, about, around a trouble
_BURST = 1.5  # Of the greatest rate
_LOWER = 0.04  # The target before it is raised
_EVERY = 10  # Answers, about, between two samples
_POINTS = 400  # Of a course that is drawn


@dataclass(frozen=True)
class PromiseSettings(Settings):
    """Ours."""

    sizes: tuple[int, ...] = (4, 16, 64, 256, 1024)
    targets: tuple[float, ...] = (0.72, 0.76, 0.80, 0.84)
    loads: tuple[float, ...] = (0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
    distributions: tuple[str, ...] = ("exponential", "deterministic")
    policies: tuple[str, ...] = ("priced", "dual-ascent", "tad-op", "tad")
    queries: int = 10_000_000
    precision: float | None = 0.0015
    most: int = 100_000_000
    answers: int = 20_000  # Of a run whose running mean is looked at
    troubled: tuple[int, ...] = (16, 64, 256)  # Servers, where there is trouble
    troubled_targets: tuple[float, ...] = (0.76, 0.80)
    troubled_loads: tuple[float, ...] = (0.6, 0.8, 0.9)
    trials: int = 3  # Of those with trouble
    drawn: tuple[int, float, float] = (16, 0.80, 0.9)  # Servers, target and load of the courses


def _points(settings: PromiseSettings) -> list[Point]:
    axes: dict[str, Any] = {
        "servers": settings.sizes,
        "target": settings.targets,
        "load": settings.loads,
        "distribution": settings.distributions,
        "policy": settings.policies,
    }
    shared, answers = settings.common(), seconds(20 * settings.answers)
    means = settings.common("queries", "precision", "most")
    cost = seconds(settings.queries, settings.precision)
    servers, target, load = settings.drawn
    troubled: dict[str, Any] = {
        "servers": settings.troubled,
        "target": settings.troubled_targets,
        "load": settings.troubled_loads,
    }
    one: dict[str, Any] = {"servers": [servers], "target": [target], "load": [load]}
    return [
        *grid(responds, {**means, "seed": 1}, cost, label={"kind": "mean"}, **axes),
        *grid(
            tracked,
            {**shared, "answers": settings.answers, "seed": 1},
            answers,
            label={"kind": "running"},
            **axes,
        ),
        *grid(
            recovered,
            shared,
            answers,
            label={"kind": "trouble"},
            **troubled,
            trouble=_TROUBLES,
            policy=settings.policies,
            trial=range(settings.trials),
        ),
        *grid(
            recovered,
            {**shared, "seed": 1, "course": True},
            answers,
            label={"kind": "course"},
            **one,
            trouble=_TROUBLES,
            policy=settings.policies,
        ),
    ]


def responds(*, policy: str, **arguments: Any) -> dict[str, Any]:
    """Simulate one system; parameters and result as of `simulated`, and the old rule by name."""
    row = simulated(policy=_OWN.get(policy, policy), **arguments)
    return {name: row[name] for name in ("response_s", "response_s_se", "accuracy", "stable")}


def tracked(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    load: float,
    distribution: str,
    policy: str,
    answers: int,
    seed: int,
) -> dict[str, Any]:
    """Follow the running mean of a run from its first answer on.

    Returns
    -------
    dict
        ``lowest``: the least running mean less the target from the 2,000th answer on; ``ends``:
        the same at the end; ``balance``.
    """
    fleet = System.of(system).fleet(servers)
    rate_per_s = load * greatest(System.of(system), servers, target)
    asked = scenario(fleet, poisson(rate_per_s), distribution, target, _OWN.get(policy, policy), {})
    result = run(
        asked, queries=answers, seed=seed, warmup=0, workers=1, sample_s=_EVERY / rate_per_s
    )
    assert result.series is not None
    over = result.series.running_accuracy[0] - target
    counted = over[result.series.dispatched[0] >= FEWEST]
    return {
        "lowest": float(counted.min()),
        "ends": float(counted[-1]),
        "balance": result.balance,
    }


def recovered(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    load: float,
    trouble: str,
    policy: str,
    seed: int,
    course: bool = False,
) -> dict[str, Any]:
    """Follow the balance through a trouble: a burst, an outage, or a target that is raised.

    Returns
    -------
    dict
        ``debt``: how far the balance fell below 0 in the trouble and in 2,000 answers behind it;
        ``answers``: those from the end of the trouble on until it was back at 0 or above after
        that, infinite where it never was; ``possible``: whether the
        greatest rate at a target that wins it back in 2,000 answers is above the load's; with
        `course` the balance over time, and when the trouble was, in answers.
    """
    fleet, site = System.of(system).fleet(servers), _OWN.get(policy, policy)
    top = greatest(System.of(system), servers, target)
    rate_per_s = load * top
    before_s, during_s, after_s = (n / rate_per_s for n in (_BEFORE, _DURING, _AFTER))
    spans = [(before_s, rate_per_s, target), (2 * after_s, rate_per_s, target)]
    targets, outages = (target, target), tuple[SetOutage, ...]()
    if trouble == "burst":
        spans[1:1] = [(_DURING / (_BURST * top), _BURST * top, target)]
    elif trouble == "target":
        spans[0], targets = (before_s, rate_per_s, target - _LOWER), (target - _LOWER, target)
    elif trouble == "outage":
        lost = _mainstay(fleet, target, rate_per_s)
        outages = (SetOutage(fleet.variants[lost], int(fleet.count[lost]), before_s, during_s),)
    asked = scenario(fleet, phased(spans), "exponential", targets[0], site, {})
    queries = _BEFORE + _AFTER + (_DURING if trouble == "burst" else 0)
    result = run(
        replace(asked, outages=outages),
        queries=queries,
        seed=seed,
        warmup=0,
        workers=1,
        sample_s=_EVERY / rate_per_s,
    )
    assert result.series is not None
    time_s, sent = result.series.time_s, result.series.dispatched[0]
    earned = result.series.running_accuracy[0] * sent
    at = int(np.searchsorted(time_s, before_s))
    balance = earned - sent * target
    balance[:at] = earned[:at] - sent[:at] * targets[0]
    balance[at:] += sent[at - 1] * (target - targets[0])
    ends_s = {"burst": before_s + _DURING / (_BURST * top), "outage": before_s + during_s}
    end = int(np.searchsorted(time_s, ends_s.get(trouble, before_s)))
    last = int(np.searchsorted(sent, sent[end] + FEWEST))
    lowest = at + int(np.argmin(balance[at:last]))
    back = np.flatnonzero(balance[lowest:] >= 0.0)
    debt = max(0.0, -float(balance[lowest]))
    took = max(0.0, float(sent[lowest + back[0]] - sent[end])) if len(back) else math.inf
    goal = target + debt / FEWEST
    row: dict[str, Any] = {
        "debt": debt,
        "answers": took if debt > 0 else 0.0,
        "possible": goal < fleet.accuracy.max() and max_rate(fleet, goal) > rate_per_s,
    }
    if course:
        step = max(1, len(sent) // _POINTS)
        row |= {"sent": sent[::step].tolist(), "course": balance[::step].tolist()}
        row |= {"from": float(sent[at]), "to": float(sent[end])}
    return row


def _mainstay(fleet: Fleet, target: float, rate_per_s: float) -> int:
    """The class at or above the target that has the largest share at the optimum."""
    shares = solve(fleet, target, rate_per_s).shares
    return int(np.argmax(np.where(fleet.accuracy >= target, shares, -1.0)))


def _figure(settings: PromiseSettings, results: Results) -> Drawing:
    servers, target, load = settings.drawn
    looks = {policy: _LOOKS[policy] for policy in settings.policies}
    courses = [
        Panel(
            name,
            "answers",
            "accuracy balance",
            [
                look.series(row["sent"], row["course"])
                for policy, look in looks.items()
                for row in results.where(kind="course", trouble=trouble, policy=policy).rows
            ],
            levels=[("target", 0.0)],
        )
        for trouble, name in (
            ("burst", f"Burst of {_DURING:,} at {_BURST:g} of the greatest rate"),
            ("outage", "The mainstay away"),
            ("target", f"Target raised by {100 * _LOWER:g} points"),
        )
    ]
    running = results.where(kind="running")
    lowest = [
        Curve(
            look.label,
            settings.loads,
            [
                100 * min((row["lowest"] for row in rows), default=math.nan)
                for load in settings.loads
                for rows in [running.where(policy=policy, load=load).rows]
            ],
            color=look.color,
            dash=look.dash,
        )
        for policy, look in looks.items()
    ]
    slower = [
        Curve(
            f"{servers} servers",
            settings.loads,
            [
                max(
                    (ratio for place, ratio in _ratios(results).items() if place[:2] == at),
                    default=math.nan,
                )
                for load in settings.loads
                for at in [(servers, load)]
            ],
            color=place,
        )
        for place, servers in enumerate(settings.sizes)
    ]
    up = "lowest running mean less target, points"
    return panels(
        [
            *courses,
            Panel(
                "All fleets, from the 2,000th answer on",
                "load",
                up,
                lowest,
                levels=[("promise", -100 * SLACK)],
                limits_up=(-2.0, 0.2),
            ),
            Panel(
                "priced, the slowest of each size",
                "load",
                "mean response time, of the better's",
                slower,
                levels=[("as fast", 1.0)],
            ),
        ],
        columns=3,
        title=f"The promise (ours); courses: {servers} servers, target {100 * target:g} %, load "
        f"{load:g}",
    )


def _ratios(results: Results) -> dict[tuple[Any, ...], float]:
    """Response time of `priced` over the better of dual ascent and TAD-OP that keeps the target.

    By servers, load, target and distribution.
    """
    by_place: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in results.where(kind="mean").rows:
        place = (row["servers"], row["load"], row["target"], row["distribution"])
        by_place.setdefault(place, {})[row["policy"]] = row
    ratios = {}
    for place, rows in by_place.items():
        kept = [
            rows[policy]["response_s"]
            for policy in ("dual-ascent", "tad-op")
            if policy in rows
            and rows[policy]["stable"]
            and rows[policy]["accuracy"] > place[2] - SLACK
        ]
        if "priced" in rows and rows["priced"]["stable"] and kept:
            ratios[place] = rows["priced"]["response_s"] / min(kept)
    return ratios


def _claims(settings: PromiseSettings, results: Results) -> list[Claim]:
    return [
        *(
            _kept(results, policy, limit)
            for policy, limit in (
                ("priced", "at most 1 %"),
                ("dual-ascent", "at least 5 %"),
                ("tad-op", "at least 5 %"),
                ("tad", "at most 1 %"),
            )
            if policy in settings.policies
        ),
        *_slower(results),
        *([_waits(results)] if "tad" in settings.policies else []),
        *(
            _recovers(results, policy, limit)
            for policy, limit in (("priced", "at least 95 %"), ("dual-ascent", "at most 80 %"))
            if policy in settings.policies
        ),
    ]


def _kept(results: Results, policy: str, limit: str) -> Claim:
    rows = results.where(kind="running", policy=policy).rows
    missed = [row for row in rows if row["lowest"] < -SLACK]
    worst, at = least({_place(row): row["lowest"] for row in rows}, "nowhere")
    verb = "keeps" if limit.startswith("at most") else "does not keep"
    return ours(
        f"{_LOOKS[policy].label} {verb} its promise: a running mean at most 0.05 points below the "
        "target from the 2,000th answer on.",
        "part of the fleets, targets and loads at which it is lower at some time",
        len(missed) / len(rows) if rows else math.nan,
        limit,
        f"{len(missed)} of {len(rows)}; at the lowest {100 * worst:+.3g} points from the target, "
        f"at {at}",
    )


def _slower(results: Results) -> list[Claim]:
    ratios = _ratios(results)
    over = sum(ratio > 1.01 for ratio in ratios.values())
    worst, at = most({_place(place): ratio - 1 for place, ratio in ratios.items()}, "nowhere")
    best = min(ratios.values(), default=math.nan)
    better = "the better of dual ascent and of TAD-OP where that keeps the target"
    return [
        ours(
            f"Keeping it costs little time: {_LOOKS['priced'].label} is seldom slower by more than "
            f"1 % than {better}.",
            "part of the fleets, targets and loads at which it is",
            over / len(ratios) if ratios else math.nan,
            "at most 10 %",
            f"{over} of {len(ratios)}; at best {100 * (best - 1):.1f} %",
        ),
        ours(
            "It is never much slower.",
            f"largest response time over that of {better}, less 1",
            worst,
            "at most 10 %",
            f"at {at}",
        ),
    ]


def _waits(results: Results) -> Claim:
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in results.where(kind="mean").rows:
        rows.setdefault(row["policy"], {})[_place(row)] = row
    own, theirs = rows.get("priced", {}), rows.get("tad", {})
    slower = {
        place: math.inf if not row["stable"] else row["response_s"] / own[place]["response_s"]
        for place, row in theirs.items()
        if own.get(place, {}).get("stable")
    }
    count, grown = len(slower), sum(map(math.isinf, slower.values()))
    return ours(
        f"{_LOOKS['tad'].label} keeps it at the price of time: it is slower than "
        f"{_LOOKS['priced'].label} by more than 10 %, or its queues grow without end.",
        "part of the fleets, targets and loads at which it is so",
        sum(ratio > 1.1 for ratio in slower.values()) / count if count else math.nan,
        "at least 10 %",
        f"its queues grow at {grown} of {count}",
    )


def _recovers(results: Results, policy: str, limit: str) -> Claim:
    rows = [row for row in results.where(kind="trouble", policy=policy).rows if row["possible"]]
    back = [row for row in rows if row["answers"] <= FEWEST]
    late = {f"{row['trouble']}, {_place(row)}": row["answers"] for row in rows}
    longest, at = most(late, "nowhere")
    took = "never" if math.isinf(longest) else f"{longest:,.0f} answers"
    each = ", ".join(
        f"{name} {sum(row['trouble'] == name for row in back)} of "
        f"{sum(row['trouble'] == name for row in rows)}"
        for name in _TROUBLES
    )
    return ours(
        f"After a burst, an outage or a raised target the balance of {_LOOKS[policy].label} is "
        f"{'' if limit.startswith('at least') else 'not always '}back within 2,000 answers.",
        "part of the runs in which it is, of those in which the bound allows it",
        len(back) / len(rows) if rows else math.nan,
        limit,
        f"{each}; at the latest {took}, at {at}",
    )


def _place(row: Mapping[str, Any] | tuple[Any, ...]) -> str:
    """Say where a row is."""
    if isinstance(row, tuple):
        servers, load, target, distribution = row
    else:
        servers, load, target = row["servers"], row["load"], row["target"]
        distribution = row.get("distribution", "exponential")
    return f"n = {servers}, target {target:g}, load {load:g}, {distribution}"


STUDY = Study(
    name="promise",
    source="ours, beside [Anonymous], Sec. 7",
    shows="A running mean that is kept at its target, and won back after trouble: who keeps it, "
    "and what it costs in time.",
    scales=scales(
        PromiseSettings(),
        smoke={
            **{"sizes": (16,), "targets": (0.80,), "loads": (0.6, 0.9)},
            **{"distributions": ("exponential",), "policies": ("priced", "dual-ascent")},
            **{"queries": 20_000, "most": 20_000, "precision": None, "answers": 4_000},
            **{"troubled": (16,), "troubled_targets": (0.80,), "troubled_loads": (0.6,)},
            **{"trials": 1, "drawn": (16, 0.80, 0.6)},
        },
        quick={"queries": 400_000, "precision": 0.003, "most": 4_000_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Runs of means end at 4 million queries at quick scale, where the response time is known "
        "to 0.3 % or not.",
    ),
    code=(*CODE, "studies/queueing/dual_ascent.py"),
)
