"""R-JIQ's variants by queue length, R-JSQ and R-JSQ-d ([Anonymous], Sec. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from inferway.dispatch.routing import routing
from inferway.experiments.curves import Curve, Drawing, Look, Panel, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    Settings,
    greatest,
    keeps_target,
    lp_optimum,
    seconds,
    simulated,
)

_TWO, _ROOT = "r-jsq-2", "r-jsq-root"  # of two servers, of as many as the root of the site's
_LOOKS = {
    "r-jiq": Look("R-JIQ", 2, "-."),
    "r-jsq": Look("R-JSQ", 0, "--"),
    _ROOT: Look("R-JSQ-d, d = root n", 3, ":"),
    _TWO: Look("R-JSQ-d, d = 2", 1, "-."),
}


@dataclass(frozen=True)
class ShortestSettings(Settings):
    """Ours: the paper names both variants and shows neither."""

    kinds: tuple[str, ...] = tuple(_LOOKS)

    def free_s(self, servers: int, load: float) -> float:
        """Mean service time under the routing of eq. 4, s: what is left without any waiting."""
        fleet = self.system.fleet(servers)
        rate_per_s = load * greatest(self.system, servers, self.target)
        return float(routing(fleet, target=self.target, rate_per_s=rate_per_s) @ (1 / fleet.rate))


def policy_of(kind: str, servers: int) -> tuple[str, dict[str, Any]]:
    """Name and options of a kind's policy at a size."""
    if kind not in (_TWO, _ROOT):
        return kind, {}
    return "r-jsq-d", {"d": 2 if kind == _TWO else max(2, math.isqrt(servers))}


def _points(settings: ShortestSettings) -> list[Point]:

    def arguments(kind: str, servers: int, load: float) -> dict[str, Any]:
        policy, options = policy_of(kind, servers)
        return {
            **settings.common("target", "queries", "precision", "warmup"),
            **{"policy": policy, "options": options, "servers": servers, "load": load},
        }

    cost = seconds(settings.queries, settings.precision)
    axes: dict[str, Any] = {
        "kind": settings.kinds,
        "servers": settings.sizes,
        "load": settings.loads,
    }
    return grid(simulated, arguments, cost, **axes, trial=range(settings.trials))


def _figure(settings: ShortestSettings, results: Results) -> Drawing:
    sizes, shown = settings.sizes, []
    for load in settings.loads:
        bound_s = lp_optimum(settings.system, sizes[-1], settings.target, load).response_time_s
        free = [settings.free_s(servers, load) for servers in sizes]
        curves = lines(results.where(load=load), "response_s", _LOOKS, by="kind", servers=sizes)
        without = Curve("without waiting (eq. 4)", sizes, free, dash=":")
        shown.append(
            Panel(
                f"load {load:g}",
                "servers",
                "mean response time, s",
                [BOUND.flat(sizes, bound_s), without, *curves],
                scale_across="log",
                ticks_across=sizes,
            )
        )
    title = f"R-JIQ and its variants by queue length, target {100 * settings.target:g} %"
    return panels(shown, columns=2, title=f"{title} ([Anonymous], Sec. 3.2)")


def _claims(settings: ShortestSettings, results: Results) -> list[Claim]:
    sizes, last = settings.sizes, max(settings.sizes)

    def response(kind: str, servers: int, load: float) -> float:
        return results.value("response_s", kind=kind, servers=servers, load=load)

    def waits(kind: str) -> dict[str, float]:
        return {
            f"load {load:g}": response(kind, last, load) / settings.free_s(last, load) - 1
            for load in settings.loads
        }

    def all_of(values: Mapping[str, float]) -> str:
        return ", ".join(f"{place}: {100 * one:.2f} %" for place, one in values.items())

    texts = []
    for kind, where in (("r-jsq", "[Sec. 3.2] "), (_TWO, ""), (_ROOT, "[ours] ")):
        label, here = _LOOKS[kind].label, waits(kind)
        texts.append(f"""{where}{label} comes to the routing's own response time as the site grows.
            - largest response time over that without waiting at n = {last}, less 1:
              {most(here, "")[0]} (at most 1 %)
            - {all_of(here)}; R-JIQ {all_of(waits("r-jiq"))}""")
        short = {
            f"n = {row['servers']}, load {row['load']:g}": settings.target - row["accuracy"]
            for row in results.where(kind=kind).rows
        }
        says = f"[Sec. 3.2] {label} keeps the target."
        texts.append(keeps_target(says, short, "nearest to falling short: {}"))
    slower = {
        f"n = {n}, load {load:g}": response("r-jsq", n, load) / response("r-jiq", n, load) - 1
        for n in sizes
        for load in settings.loads
    }
    worst, place = most(slower, "no points are known")
    rises = [
        response("r-jsq", n, load) / settings.free_s(n, load)
        - response("r-jsq", larger, load) / settings.free_s(larger, load)
        for n, larger in pairwise(sizes)
        for load in settings.loads
    ]
    texts.append(f"""[ours] R-JSQ is no slower than R-JIQ, which need not know queue lengths.
        - largest response time over R-JIQ's, less 1: {worst} (at most 0.5 %)
        - at {place}; at best {100 * min(slower.values()):.1f} %

        What it waits shrinks with every size.
        - least fall of its waiting from one size to the next, in parts of the response time without
          it: {min(rises)} (at least -0.2 %)
        -""")
    return claims(*texts)


STUDY = Study(
    name="r-jsq",
    source="[Anonymous], Sec. 3.2",
    shows="R-JIQ's variants that look at queue lengths, of all servers of a class or of a few.",
    scales=scales(
        ShortestSettings(sizes=(16, 64, 256, 1024, 4096), loads=(0.5, 0.9), trials=3),
        smoke={"sizes": (16, 256), "queries": 60_000, "trials": 1, "warmup": None},
        quick={"queries": 4_000_000, "trials": 1, "warmup": None},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The paper names the variants, with a sentence, and shows neither: target 0.76, loads 0.5 "
        "and 0.9, and d are ours. d servers are drawn with replacement.",
    ),
    code=CODE,
)
