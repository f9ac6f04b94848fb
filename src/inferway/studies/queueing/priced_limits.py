"""Where `priced` is slower than TAD-OP: near saturation (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Site = tuple[int, float]
"""Servers and target."""

_LOADS = (0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.98)


@dataclass(frozen=True)
class Settings:
    """A small and a large site, each at a target at which `priced` loses."""

    system: System = FOUR_CLASSES
    sites: tuple[Site, ...] = ((64, 0.76), (1024, 0.72))
    loads: tuple[float, ...] = _LOADS
    marked: tuple[tuple[int, float], ...] = ((64, 0.95), (1024, 0.98))
    """Servers and load of the claims."""
    policies: tuple[str, ...] = ("tad-op", "priced")
    queries: int = 20_000_000
    most: int = 200_000_000
    precision: float = 0.0015
    trials: int = 3


def points(settings: Settings) -> list[Point]:
    """Both policies at every load of both sites."""
    every = []
    for servers, target in settings.sites:
        every += grid(
            simulated,
            common(settings, "queries", "most", "precision"),
            seconds(settings.queries, settings.precision),
            servers=[servers],
            target=[target],
            policy=settings.policies,
            load=settings.loads,
            trial=range(settings.trials),
        )
    return every


def figure(settings: Settings, results: Results) -> Figure:
    """Response time against load, a panel for each site."""
    from inferway.experiments.curves import Panel, panels
    from inferway.studies.queueing.look import bound_curve, policy_curve

    shown = []
    for servers, target in settings.sites:
        here = results.where(servers=servers, target=target)
        bound = [here.measure("bound_s", load=load).mean for load in settings.loads]
        curves = [bound_curve(settings.loads, bound)]
        for policy in settings.policies:
            found = [
                here.measure("response_s", policy=policy, load=load) for load in settings.loads
            ]
            curves.append(policy_curve(policy, settings.loads, found))
        title = f"{servers} servers, target {100 * target:g} %"
        shown.append(Panel(title, "load", "mean response time, s", curves))
    return panels(shown, columns=2, title="Where the priced idle queue loses (ours)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How much it loses, and whether it keeps the target there."""
    return [_slower(settings, results, *site) for site in settings.marked] + [
        _keeps(settings, results)
    ]


def _slower(settings: Settings, results: Results, servers: int, load: float) -> Claim:
    target = next(target for count, target in settings.sites if count == servers)
    here = results.where(servers=servers, target=target)
    ratios = {at: _ratio(here, at) for at in settings.loads}
    known = {at: one for at, one in ratios.items() if not math.isnan(one)}
    said = ", ".join(f"{at:g}: {100 * (one - 1):+.1f} %" for at, one in known.items())
    from_load = next((at for at in settings.loads if ratios[at] > 1), math.nan)
    return Claim(
        "ours",
        f"The priced idle queue is as fast as TAD-OP on {servers} servers at target {target:g} "
        f"and load {load:g}.",
        "its response time over TAD-OP's, less 1",
        ratios[load] - 1,
        at_most=0.005,
        unit="%",
        why=f"by load: {said or 'none known'}; slower from load {from_load:g} on. It queues at "
        "fast servers where TAD-OP takes whichever server is idle, the slowest ones too",
    )


def _ratio(results: Results, load: float) -> float:
    mine, theirs = (
        results.value("response_s", policy=policy, load=load) for policy in ("priced", "tad-op")
    )
    return mine / theirs


def _keeps(settings: Settings, results: Results) -> Claim:
    short = {
        (servers, load): target
        - results.where(servers=servers, target=target)
        .measure("accuracy", policy="priced", load=load)
        .mean
        for servers, target in settings.sites
        for load in settings.loads
    }
    known = {place: one for place, one in short.items() if not math.isnan(one)}
    worst = max(known, key=lambda place: known[place], default=None)
    return Claim(
        "ours",
        "The priced idle queue keeps the target even there.",
        "largest shortfall of the mean accuracy",
        math.nan if worst is None else known[worst],
        at_most=0.0002,
        unit="%",
        why="" if worst is None else f"at n = {worst[0]}, load {worst[1]:g}",
    )


_PAPER = Settings()
STUDY = Study(
    name="priced-limits",
    source="ours, beside [Anonymous], Figs. 6 and 7",
    shows="Near saturation the priced idle queue is slower than TAD-OP: by how much, and from "
    "which load on.",
    scales={
        "smoke": replace(
            _PAPER,
            sites=((64, 0.76),),
            marked=((64, 0.95),),
            loads=(0.8, 0.95),
            queries=20_000,
            most=20_000,
            trials=1,
        ),
        "quick": replace(_PAPER, queries=1_000_000, most=4_000_000, precision=0.003),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Runs end at 4 million queries at quick scale, where the response time is known to "
        "0.3 % or not: the intervals say how well.",
    ),
)
