"""How wrong the arrival rate may be that R-JIQ is told ([Anonymous], Fig. 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from inferway.experiments.curves import Drawing, Look, Panel, panels, series
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, seconds, simulated

_MOST = 0.5
_STEPS = 24


@dataclass(frozen=True)
class Settings:
    """The system is the paper's; sizes and targets of the figure did not survive in the text."""

    system: System = FOUR_CLASSES
    sizes: tuple[int, ...] = (64, 256, 4096)
    targets: tuple[float, ...] = (0.76, 0.80)
    loads: tuple[float, ...] = tuple(round(0.3 + 0.02 * step, 2) for step in range(35))
    error: float = 0.05
    """The error whose load the figure marks."""
    checked: tuple[tuple[int, float], ...] = ((4096, 0.76), (4096, 0.80))
    """Sizes and targets at which simulation checks the threshold of stability."""
    around: tuple[float, ...] = (-0.1, 0.03)
    """Loads that simulation takes, relative to the threshold."""
    queries_per_server: int = 100_000
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """Tolerances at every load, and simulations on both sides of the threshold."""
    made = grid(
        tolerance,
        common(settings),
        0.4,
        label={"kind": "tolerance"},
        servers=settings.sizes,
        target=settings.targets,
        load=settings.loads,
    )
    for servers, target in settings.checked:
        threshold = load_at(settings.system, servers, target, settings.error)
        for beside in settings.around:
            load = round(min(threshold + beside, 0.99), 3)
            rate_per_s = load * settings.system.greatest(servers, target)
            queries = settings.queries_per_server * servers
            arguments = {
                **common(settings, "precision"),
                **{"servers": servers, "target": target, "load": load, "queries": queries},
                **{"policy": "r-jiq", "options": {"rate": (1 - settings.error) * rate_per_s}},
                "seed": 1,
            }
            label = {
                **{"kind": "simulation", "servers": servers, "target": target},
                **{"load": load, "beside": beside},
            }
            made.append(Point(label, simulated, arguments, seconds(queries)))
    return made


def tolerance(
    *, system: Mapping[str, Any], servers: int, target: float, load: float
) -> dict[str, float]:
    """Largest error of the rate, as a part of it, at which R-JIQ is well.

    ``stable``: no class gets more than it can serve. ``no_waiting``: every class stays in the
    sub-Halfin-Whitt regime, its load at most 1 - m**-0.5 for m servers. Both are searched among
    rates told too low, which alone overload a class (Sec. 3.4).
    """
    site = System.of(system)
    fleet = site.fleet(servers)
    quiet = fleet.capacity * (1 - fleet.count**-0.5)

    def tolerated(capacity: Any) -> float:
        return _last(lambda error: _well(site, servers, target, load, error, capacity), 0.0, _MOST)

    return {"stable_error": tolerated(fleet.capacity), "no_waiting_error": tolerated(quiet)}


def _well(
    system: System, servers: int, target: float, load: float, error: float, capacity: Any
) -> bool:
    """Whether no class gets more than a capacity where the rate is told too low by this part."""
    from inferway.dispatch.routing import routing

    rate_per_s = load * system.greatest(servers, target)
    told = (1 - error) * rate_per_s
    shares = routing(system.fleet(servers), target=target, rate_per_s=told)
    return bool((rate_per_s * shares <= capacity * (1 + 1e-9)).all())


@cache
def load_at(system: System, servers: int, target: float, error: float) -> float:
    """The load above which a rate told too low by this part makes a class unstable."""
    capacity = system.fleet(servers).capacity

    def stable(load: float) -> bool:
        return _well(system, servers, target, load, error, capacity)

    # Small loads may be unstable again: with them beta nears 0 and gamma its greatest. From above.
    high = 0.999
    low = next((x / 100 for x in range(99, 0, -1) if stable(x / 100)), 0.01)
    return low if low > high - 0.02 else _last(stable, low, min(low + 0.01, high))


def _last(well: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number that is well, between one that should be and one that may not."""
    if not well(low):
        return low
    if well(high):
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if well(middle) else (low, middle)
    return low


def figure(settings: Settings, results: Results) -> Drawing:
    """Tolerated error against load, a panel for each target."""
    shown, loads, mark = [], settings.loads, 100 * settings.error
    for target in settings.targets:
        curves = []
        for color, servers in enumerate(settings.sizes):
            here = results.where(kind="tolerance", servers=servers, target=target)
            for name, column, dash in (
                ("stable", "stable_error", "-"),
                ("no waiting", "no_waiting_error", "--"),
            ):
                look = Look(f"{name}, n = {servers}", color, dash)
                curves.append(series(look, loads, 100 * np.array(here.means(column, load=loads))))
        shown.append(
            Panel(
                f"target {100 * target:g} %",
                "load",
                "tolerated error of the rate, %",
                curves,
                levels=[(f"{mark:g} %", mark)],
                limits_up=(0.0, 25.0),
            )
        )
    return panels(shown, columns=2, title="R-JIQ, told too low a rate ([Anonymous], Fig. 5)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 3.4 says of Fig. 5."""
    where, loads = "Sec. 3.4, Fig. 5", settings.loads
    low, high = min(settings.targets), max(settings.targets)
    small, large = min(settings.sizes), max(settings.sizes)

    def errors(column: str, servers: int, target: float) -> list[float]:
        here = results.where(kind="tolerance", servers=servers, target=target)
        return here.means(column, load=loads)

    def crossing(column: str, servers: int, target: float) -> float:
        """The load at which the tolerance falls below the marked error, between two points."""
        known = zip(loads, errors(column, servers, target), strict=True)
        for (load, error), (next_load, next_error) in pairwise(known):
            if error >= settings.error > next_error:
                part = (error - settings.error) / (error - next_error)
                return load + part * (next_load - load)
        return math.nan

    steps: dict[str, float] = {}
    for servers in settings.sizes:
        for target in settings.targets:
            for column in ("stable_error", "no_waiting_error"):
                place = f"{column.removesuffix('_error')}, n = {servers}, target {target:g}, load"
                known = zip(loads, pairwise(errors(column, servers, target)), strict=False)
                steps |= {f"{place} {load:g}": later - one for load, (one, later) in known}
    rise, at = most(steps, "no points are known")
    here = results.where(kind="tolerance", servers=large)
    # Where several loads are alike, the highest is named.
    by_target = {
        load: here.measure("stable_error", target=high, load=load).mean
        - here.measure("stable_error", target=low, load=load).mean
        for load in reversed(loads)
    }
    worst, load = most(by_target, math.nan)
    rising = [one for one in by_target.values() if not math.isnan(one)]
    rows = results.where(kind="simulation").rows
    wrong = [row for row in rows if row["stable"] != (row["beside"] < 0)]
    said = "; ".join(
        f"n = {row['servers']}, target {row['target']:g}, load {row['load']:g}: "
        f"{'stable' if row['stable'] else 'unstable'}, {row['response_s'] / row['bound_s']:.3g} "
        "times the bound"
        for row in rows
    )
    return [
        claim(
            where,
            "On a small site an error of 5 % leads out of the sub-Halfin-Whitt regime from a load "
            "of about 0.55.",
            f"that load at n = {small}, target {low:g}",
            crossing("no_waiting_error", small, low),
            "0.50 to 0.60",
            f"target {high:g}: {crossing('no_waiting_error', small, high):.3f}",
        ),
        claim(
            where,
            "On a large site an error of 5 % makes the system unstable from a load close to 0.88.",
            f"that load at n = {large}, target {low:g}",
            crossing("stable_error", large, low),
            "0.85 to 0.91",
            f"target {high:g}: {crossing('stable_error', large, high):.3f}",
        ),
        claim(
            where,
            "The tolerated error falls as the load rises.",
            "largest rise from one load to the next",
            rise,
            "at most 0.05 %",
            f"at {at}",
        ),
        claim(
            where,
            "The tolerated error falls as the target rises.",
            f"largest rise from target {low:g} to {high:g}, stable, n = {large}",
            worst,
            "at most 0.05 %",
            f"at load {load:g}; it rises at {sum(one > 0.0005 for one in rising)} of {len(rising)} "
            "loads: lambda-max falls with the target, so the same load is a lower rate",
        ),
        claim(
            "ours",
            "Simulated with a rate told 5 % too low, R-JIQ is stable below the threshold and "
            "unstable above it.",
            "simulations that end otherwise",
            float(len(wrong)) if rows else math.nan,
            "at most 0",
            said,
        ),
    ]


STUDY = Study(
    name="wrong-rate",
    source="[Anonymous], Fig. 5",
    shows="Which error of the rate R-JIQ tolerates before requests wait, and before it is "
    "unstable.",
    scales=scales(
        Settings(),
        smoke={
            **{"sizes": (64, 4096), "targets": (0.76,)},
            "loads": (0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.96),
            **{"checked": ((4096, 0.76),), "around": (-0.1,), "queries_per_server": 20},
        },
        quick={"queries_per_server": 5_000, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The figure's sizes and targets did not survive in the text: n = 64, 256 and 4096, targets "
        "0.76 and 0.80 are ours.",
        "A class of m servers counts as sub-Halfin-Whitt while its load is at most 1 - m^-0.5.",
    ),
)
