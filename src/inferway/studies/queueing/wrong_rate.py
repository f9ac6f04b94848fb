"""How wrong the arrival rate may be that R-JIQ is told ([Anonymous], Fig. 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import FOUR_CLASSES, System, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    system = settings.system.arguments()
    found = [
        Point(
            {"kind": "tolerance", "servers": servers, "target": target, "load": load},
            tolerance,
            {"system": system, "servers": servers, "target": target, "load": load},
            0.4,
        )
        for servers in settings.sizes
        for target in settings.targets
        for load in settings.loads
    ]
    for servers, target in settings.checked:
        threshold = load_at(settings.system, servers, target, settings.error)
        for beside in settings.around:
            load = round(min(threshold + beside, 0.99), 3)
            queries = settings.queries_per_server * servers
            rate_per_s = (1 - settings.error) * _rate_per_s(settings.system, servers, target, load)
            arguments = {
                "system": system,
                "servers": servers,
                "target": target,
                "load": load,
                "policy": "r-jiq",
                "options": {"rate": rate_per_s},
                "queries": queries,
                "precision": settings.precision,
                "seed": 1,
            }
            label = {
                "kind": "simulation",
                "servers": servers,
                "target": target,
                "load": load,
                "beside": beside,
            }
            found.append(Point(label, simulated, arguments, seconds(queries)))
    return found


def tolerance(
    *, system: Mapping[str, Any], servers: int, target: float, load: float
) -> dict[str, float]:
    """Largest error of the rate, as a part of it, at which R-JIQ is well.

    ``stable``: no class gets more than it can serve. ``no_waiting``: every class stays in the
    sub-Halfin-Whitt regime, its load at most 1 - m**-0.5 for m servers. Both are searched among
    rates told too low, which alone overload a class (Sec. 3.4).
    """
    from inferway.dispatch.routing import routing

    fleet = System(**{name: tuple(value) for name, value in system.items()}).fleet(servers)
    rate_per_s = load * _greatest(fleet, target)

    def most(capacity: Any) -> float:
        def well(error: float) -> bool:
            told = (1 - error) * rate_per_s
            shares = routing(fleet, target=target, rate_per_s=told)
            return bool((rate_per_s * shares <= capacity * (1 + 1e-9)).all())

        return _last(well, 0.0, _MOST)

    return {
        "stable_error": most(fleet.capacity),
        "no_waiting_error": most(fleet.capacity * (1 - fleet.count**-0.5)),
    }


@cache
def load_at(system: System, servers: int, target: float, error: float) -> float:
    """The load above which a rate told too low by this part makes a class unstable."""
    from inferway.dispatch.routing import routing

    fleet = system.fleet(servers)

    def stable(load: float) -> bool:
        rate_per_s = load * _greatest(fleet, target)
        shares = routing(fleet, target=target, rate_per_s=(1 - error) * rate_per_s)
        return bool((rate_per_s * shares <= fleet.capacity * (1 + 1e-9)).all())

    # Small loads may be unstable again: with them beta nears 0 and gamma its greatest. From above.
    high = 0.999
    low = next((x / 100 for x in range(99, 0, -1) if stable(x / 100)), 0.01)
    return low if low > high - 0.02 else _last(stable, low, min(low + 0.01, high))


def figure(settings: Settings, results: Results) -> Figure:
    """Tolerated error against load, a panel for each target."""
    from inferway.experiments.curves import Curve, Panel, panels

    shown = []
    for target in settings.targets:
        curves = []
        for color, servers in enumerate(settings.sizes):
            here = results.where(kind="tolerance", servers=servers, target=target)
            for name, column, dash in (
                ("stable", "stable_error", "-"),
                ("no waiting", "no_waiting_error", "--"),
            ):
                error = [100 * here.measure(column, load=load).mean for load in settings.loads]
                curves.append(
                    Curve(
                        f"{name}, n = {servers}",
                        settings.loads,
                        error,
                        color=color,
                        dash=dash,
                        markers=False,
                    )
                )
        shown.append(
            Panel(
                f"target {100 * target:g} %",
                "load",
                "tolerated error of the rate, %",
                curves,
                levels=[(f"{100 * settings.error:g} %", 100 * settings.error)],
                limits_up=(0.0, 25.0),
            )
        )
    return panels(shown, columns=2, title="R-JIQ, told too low a rate ([Anonymous], Fig. 5)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 3.4 says of Fig. 5."""
    where = "Sec. 3.4, Fig. 5"
    low, high = min(settings.targets), max(settings.targets)
    small, large = min(settings.sizes), max(settings.sizes)
    return [
        Claim(
            where,
            "On a small site an error of 5 % leads out of the sub-Halfin-Whitt regime from a load "
            "of about 0.55.",
            f"that load at n = {small}, target {low:g}",
            _crossing(settings, results, "no_waiting_error", small, low),
            at_least=0.50,
            at_most=0.60,
            why=f"target {high:g}: "
            f"{_crossing(settings, results, 'no_waiting_error', small, high):.3f}",
        ),
        Claim(
            where,
            "On a large site an error of 5 % makes the system unstable from a load close to 0.88.",
            f"that load at n = {large}, target {low:g}",
            _crossing(settings, results, "stable_error", large, low),
            at_least=0.85,
            at_most=0.91,
            why=f"target {high:g}: {_crossing(settings, results, 'stable_error', large, high):.3f}",
        ),
        _falls_with_load(settings, results, where),
        _falls_with_target(settings, results, where),
        *_simulated(settings, results),
    ]


def _crossing(
    settings: Settings, results: Results, column: str, servers: int, target: float
) -> float:
    """The load at which the tolerance falls below the marked error, between computed points."""
    here = results.where(kind="tolerance", servers=servers, target=target)
    found = [(load, here.measure(column, load=load).mean) for load in settings.loads]
    for (load, error), (next_load, next_error) in pairwise(found):
        if error >= settings.error > next_error:
            part = (error - settings.error) / (error - next_error)
            return load + part * (next_load - load)
    return math.nan


def _falls_with_load(settings: Settings, results: Results, where: str) -> Claim:
    rise, at = math.nan, "no points are known"
    for servers in settings.sizes:
        for target in settings.targets:
            here = results.where(kind="tolerance", servers=servers, target=target)
            for column in ("stable_error", "no_waiting_error"):
                found = [here.measure(column, load=load).mean for load in settings.loads]
                for place, (one, other) in enumerate(pairwise(found)):
                    if other - one == other - one and not other - one <= rise:
                        rise = other - one
                        at = f"{column.removesuffix('_error')}, n = {servers}, target {target:g}, "
                        at += f"load {settings.loads[place]:g}"
    return Claim(
        where,
        "The tolerated error falls as the load rises.",
        "largest rise from one load to the next",
        rise,
        at_most=0.0005,
        unit="%",
        why=f"at {at}",
    )


def _falls_with_target(settings: Settings, results: Results, where: str) -> Claim:
    low, high, servers = min(settings.targets), max(settings.targets), max(settings.sizes)
    here = results.where(kind="tolerance", servers=servers)
    rises = [
        here.measure("stable_error", target=high, load=load).mean
        - here.measure("stable_error", target=low, load=load).mean
        for load in settings.loads
    ]
    known = [(rise, load) for rise, load in zip(rises, settings.loads, strict=True) if rise == rise]
    worst, load = max(known, default=(math.nan, math.nan))
    more = sum(rise > 0.0005 for rise, _ in known)
    return Claim(
        where,
        "The tolerated error falls as the target rises.",
        f"largest rise from target {low:g} to {high:g}, stable, n = {servers}",
        worst,
        at_most=0.0005,
        unit="%",
        why=f"at load {load:g}; it rises at {more} of {len(known)} loads: lambda-max falls with "
        "the target, so the same load is a lower rate",
    )


def _simulated(settings: Settings, results: Results) -> list[Claim]:
    rows = results.where(kind="simulation").rows
    wrong = [row for row in rows if row["stable"] != (row["beside"] < 0)]
    said = "; ".join(
        f"n = {row['servers']}, target {row['target']:g}, load {row['load']:g}: "
        f"{'stable' if row['stable'] else 'unstable'}, {row['response_s'] / row['bound_s']:.3g} "
        "times the bound"
        for row in rows
    )
    return [
        Claim(
            "ours",
            "Simulated with a rate told 5 % too low, R-JIQ is stable below the threshold and "
            "unstable above it.",
            "simulations that end otherwise",
            float(len(wrong)) if rows else math.nan,
            at_most=0,
            why=said,
        )
    ]


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


def _greatest(fleet: Any, target: float) -> float:
    from inferway.dispatch import max_rate

    return max_rate(fleet, target)


def _rate_per_s(system: System, servers: int, target: float, load: float) -> float:
    return load * _greatest(system.fleet(servers), target)


_PAPER = Settings()
_SMOKE_LOADS: Sequence[float] = (0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.96)
STUDY = Study(
    name="wrong-rate",
    source="[Anonymous], Fig. 5",
    shows="Which error of the rate R-JIQ tolerates before requests wait, and before it is "
    "unstable.",
    scales={
        "smoke": replace(
            _PAPER,
            sizes=(64, 4096),
            targets=(0.76,),
            loads=tuple(_SMOKE_LOADS),
            checked=((4096, 0.76),),
            around=(-0.1,),
            queries_per_server=20,
        ),
        "quick": replace(_PAPER, queries_per_server=5_000, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The figure's sizes and targets did not survive in the text: n = 64, 256 and 4096, targets "
        "0.76 and 0.80 are ours.",
        "A class of m servers counts as sub-Halfin-Whitt while its load is at most 1 - m^-0.5.",
    ),
)
