"""Pairs for R-JIQ: routing vectors drawn from directly ([Anonymous], Sec. 8.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from inferway.experiments.curves import Drawing, Look, Panel, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.queueing.rerouted import rerouted
from inferway.studies.queueing.system import (
    CODE,
    LOOKS,
    Settings,
    keeps_target,
    response_panel,
    simulated,
)

_PAIRS, _PROPER = "pairs", "proper pairs"
_LOOKS = {
    "r-jiq": LOOKS["r-jiq"],
    "tad-op": LOOKS["tad-op"],
    _PAIRS: Look("R-JIQ with pairs, rerouting", 3, "-"),
    _PROPER: Look("R-JIQ with proper pairs, no rerouting", 4, ":"),
}


@dataclass(frozen=True)
class PairsSettings(Settings):
    """Ours: the paper says of its experiments only that they have shown potential."""

    sizes: tuple[int, ...] = (64, 1024)
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    targets: tuple[float, ...] = (0.72, 0.76)
    policies: tuple[str, ...] = tuple(_LOOKS)


def compared(*, policy: str, queries: int, seed: int, **arguments: Any) -> Mapping[str, Any]:
    """Simulate a policy of the twin, or one that reroutes; arguments as of `simulated`."""
    if policy in (_PAIRS, _PROPER):
        return rerouted(queries=queries, seed=seed, shuffles=policy == _PAIRS, **arguments)
    return simulated(policy=policy, queries=queries, seed=seed, **arguments)


def _points(settings: PairsSettings) -> list[Point]:
    return [
        Point(
            {"policy": policy, "servers": servers, "target": target, "load": load, "trial": trial},
            compared,
            {
                **{"system": settings.system.arguments(), "policy": policy, "servers": servers},
                **{"target": target, "load": load, "queries": settings.queries},
                "seed": trial + 1,
            },
            0.3 + settings.queries / 4e6,
        )
        for servers, target, load, policy in product(
            settings.sizes, settings.targets, settings.loads, settings.policies
        )
        for trial in range(settings.trials)
    ]


def _figure(settings: PairsSettings, results: Results) -> Drawing:
    shown = []
    for servers, target in product(settings.sizes, settings.targets):
        here = results.where(servers=servers, target=target)
        title = f"{servers} servers, target {100 * target:g} %"
        shown.append(response_panel(title, here, _LOOKS, settings.loads, 2.0))
    for target in settings.targets:
        here = results.where(target=target, policy=_PAIRS)
        sizes = {n: Look(f"{n} servers", 5 + color) for color, n in enumerate(settings.sizes)}
        shown.append(
            Panel(
                f"queries moved, target {100 * target:g} %",
                "load",
                "cancelled per query",
                lines(here, "moved", sizes, by="servers", load=settings.loads),
            )
        )
    return panels(shown, columns=2, title="Routing by tuples ([Anonymous], Sec. 8.1)")


def _claims(settings: PairsSettings, results: Results) -> list[Claim]:
    large = max(settings.sizes)
    cases = list(product(settings.sizes, settings.targets, settings.loads))

    def value(column: str, policy: str, case: tuple[int, float, float]) -> float:
        servers, target, load = case
        at = {"servers": servers, "target": target, "load": load}
        return results.value(column, policy=policy, **at)

    def placed(case: tuple[int, float, float]) -> str:
        return f"n = {case[0]}, target {case[1]:g}, load {case[2]:g}"

    def over(one: str, other: str, servers: int) -> dict[str, float]:
        return {
            placed(case): value("response_s", one, case) / value("response_s", other, case) - 1
            for case in cases
            if case[0] == servers
        }

    short = {placed(case): case[1] - value("accuracy", _PAIRS, case) for case in cases}
    slower, at_slower = most(over(_PAIRS, "r-jiq", large), "")
    above, at_above = most(over(_PAIRS, "tad-op", large), "")
    gain, at_gain = most(over(_PROPER, _PAIRS, large), "")
    lost, at_lost = most(
        {placed(case): case[1] - value("accuracy", _PROPER, case) for case in cases}, ""
    )
    moved, at_moved = most({placed(case): value("moved", _PAIRS, case) for case in cases}, "")
    says = "R-JIQ with pairs and rerouting keeps the target, without knowing the rate."
    return claims(f"""
      * [Sec. 8.1] Cancelling and rerouting shows potential: on a large site it is faster than R-JIQ
        at every load.
        - largest response time over R-JIQ's, less 1, n = {large}: {slower} (at most 0 %)
        - at {at_slower}
      * [ours] {keeps_target(says, short, "nearest to falling short: {}")}
      * [ours] On a large site it is as fast as TAD-OP.
        - largest response time over TAD-OP's, less 1, n = {large}: {above} (at most 1 %)
        - at {at_above}
      * [ours] Without rerouting, with proper pairs only, it is slower somewhere.
        - largest response time over that with it, less 1, n = {large}: {gain} (at least 5 %)
        - at {at_gain}; there is a shortfall of accuracy of {100 * lost:.3f} points at {at_lost}
      * [ours] Few queries are moved.
        - most that are cancelled per query: {moved} (at most 30 %)
        - at {at_moved}
    """)


STUDY = Study(
    name="rerouting",
    source="after [Anonymous], Sec. 8.1",
    shows="R-JIQ that draws from routing tuples: negative entries cancel and reroute queries.",
    scales=scales(
        PairsSettings(queries=20_000_000, trials=3),
        smoke={
            **{"sizes": (64,), "targets": (0.72,), "loads": (0.5, 0.9)},
            **{"queries": 100_000, "trials": 1},
        },
        quick={"queries": 1_000_000, "loads": (0.3, 0.7, 0.9, 0.95), "trials": 1},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The paper describes its preliminary experiments in one sentence: how tuples are drawn and "
        "which queries are cancelled are ours, as are targets and loads.",
    ),
    code=CODE,
)
