"""Where `priced` is slower than TAD-OP: near saturation (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferway.experiments.curves import Drawing, Panel, line, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    FOUR_CLASSES,
    LOOKS,
    System,
    common,
    seconds,
    simulated,
)

_LOADS = (0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.98)


@dataclass(frozen=True)
class Settings:
    """A small and a large site, each at a target at which `priced` loses."""

    system: System = FOUR_CLASSES
    sites: tuple[tuple[int, float], ...] = ((64, 0.76), (1024, 0.72))
    """Servers and target."""
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
    return [
        point
        for servers, target in settings.sites
        for point in grid(
            simulated,
            common(settings, "queries", "most", "precision"),
            seconds(settings.queries, settings.precision),
            servers=[servers],
            target=[target],
            policy=settings.policies,
            load=settings.loads,
            trial=range(settings.trials),
        )
    ]


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time against load, a panel for each site."""
    shown = []
    looks = {policy: LOOKS[policy] for policy in settings.policies}
    for servers, target in settings.sites:
        here = results.where(servers=servers, target=target)
        curves = [
            line(here, "bound_s", BOUND, load=settings.loads),
            *lines(here, "response_s", looks, load=settings.loads),
        ]
        title = f"{servers} servers, target {100 * target:g} %"
        shown.append(Panel(title, "load", "mean response time, s", curves))
    return panels(shown, columns=2, title="Where the priced idle queue loses (ours)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How much it loses, and whether it keeps the target there."""
    short = {
        f"at n = {servers}, load {load:g}": target
        - results.measure(
            "accuracy", servers=servers, target=target, policy="priced", load=load
        ).mean
        for servers, target in settings.sites
        for load in settings.loads
    }
    worst, at = most(short, "")
    return [
        *(_slower(settings, results, *site) for site in settings.marked),
        claim(
            "ours",
            "The priced idle queue keeps the target even there.",
            "largest shortfall of the mean accuracy",
            worst,
            "at most 0.02 %",
            at,
        ),
    ]


def _slower(settings: Settings, results: Results, servers: int, load: float) -> Claim:
    target = dict(settings.sites)[servers]
    here = results.where(servers=servers, target=target)
    mine, theirs = (
        here.where(policy=policy).values("response_s", load=settings.loads)
        for policy in ("priced", "tad-op")
    )
    ratios = {at: one / other for at, one, other in zip(settings.loads, mine, theirs, strict=True)}
    known = {at: one for at, one in ratios.items() if not math.isnan(one)}
    said = ", ".join(f"{at:g}: {100 * (one - 1):+.1f} %" for at, one in known.items())
    from_load = next((at for at in settings.loads if ratios[at] > 1), math.nan)
    return claim(
        "ours",
        f"The priced idle queue is as fast as TAD-OP on {servers} servers at target {target:g} "
        f"and load {load:g}.",
        "its response time over TAD-OP's, less 1",
        ratios[load] - 1,
        "at most 0.5 %",
        f"by load: {said or 'none known'}; slower from load {from_load:g} on. It queues at "
        "fast servers where TAD-OP takes whichever server is idle, the slowest ones too",
    )


STUDY = Study(
    name="priced-limits",
    source="ours, beside [Anonymous], Figs. 6 and 7",
    shows="Near saturation the priced idle queue is slower than TAD-OP: by how much, and from "
    "which load on.",
    scales=scales(
        Settings(),
        smoke={
            **{"sites": ((64, 0.76),), "marked": ((64, 0.95),), "loads": (0.8, 0.95)},
            **{"queries": 20_000, "most": 20_000, "trials": 1},
        },
        quick={"queries": 1_000_000, "most": 4_000_000, "precision": 0.003},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Runs end at 4 million queries at quick scale, where the response time is known to "
        "0.3 % or not: the intervals say how well.",
    ),
)
