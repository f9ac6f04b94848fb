"""The rate that R-JIQ is told: how wrong it may be, and estimates of it ([Anonymous], Sec. 3.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np

from inferway.dispatch.routing import routing
from inferway.experiments.curves import Drawing, Look, Panel, panels, steady_values
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    Settings,
    System,
    greatest,
    phased,
    seconds,
    simulated,
)


@dataclass(frozen=True)
class WrongSettings(Settings):
    """The system is the paper's; sizes and targets of the figure did not survive in the text."""

    error: float = 0.05  # the error whose load the figure marks
    # Sizes and targets at which simulation checks the threshold of stability.
    checked: tuple[tuple[int, float], ...] = ((4096, 0.76), (4096, 0.80))
    # Loads that simulation takes, relative to the threshold.
    around: tuple[float, ...] = (-0.1, 0.03)


def _wrong_points(settings: WrongSettings) -> list[Point]:
    axes = {"servers": settings.sizes, "target": settings.targets, "load": settings.loads}
    made = grid(tolerance, settings.common(), 0.4, label={"kind": "tolerance"}, **axes)
    for servers, target in settings.checked:
        threshold = load_at(settings.system, servers, target, settings.error)
        for beside in settings.around:
            load = round(min(threshold + beside, 0.99), 3)
            rate_per_s = load * greatest(settings.system, servers, target)
            queries = settings.queries_per_server * servers
            place = {"servers": servers, "target": target, "load": load}
            arguments = {
                **settings.common("precision"),
                **place,
                **{"queries": queries, "policy": "r-jiq", "seed": 1},
                "options": {"rate": (1 - settings.error) * rate_per_s},
            }
            label = {"kind": "simulation", **place, "beside": beside}
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
        return _last(lambda error: _well(site, servers, target, load, error, capacity), 0.0, 0.5)

    return {"stable_error": tolerated(fleet.capacity), "no_waiting_error": tolerated(quiet)}


def _well(
    system: System, servers: int, target: float, load: float, error: float, capacity: Any
) -> bool:
    """Tell if no class gets more than a capacity where the rate is told too low by this part."""
    rate_per_s = load * greatest(system, servers, target)
    shares = routing(system.fleet(servers), target=target, rate_per_s=(1 - error) * rate_per_s)
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
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if well(middle) else (low, middle)
    return low


def _wrong_figure(settings: WrongSettings, results: Results) -> Drawing:
    loads, mark = settings.loads, 100 * settings.error
    kinds = (("stable", "stable_error", "-"), ("no waiting", "no_waiting_error", "--"))
    shown = []
    for target in settings.targets:
        curves = []
        for color, servers in enumerate(settings.sizes):
            here = results.where(kind="tolerance", servers=servers, target=target)
            for name, column, dash in kinds:
                look = Look(f"{name}, n = {servers}", color, dash)
                curves.append(look.series(loads, 100 * np.array(here.means(column, load=loads))))
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


def _wrong_claims(settings: WrongSettings, results: Results) -> list[Claim]:
    low, high = min(settings.targets), max(settings.targets)
    small, large = min(settings.sizes), max(settings.sizes)
    loads, columns = settings.loads, ("stable_error", "no_waiting_error")
    # Tolerated errors, load by load.
    errors = {
        place: results.where(kind="tolerance", servers=place[1], target=place[2]).means(
            place[0], load=loads
        )
        for place in product(columns, settings.sizes, settings.targets)
    }

    def crossing(column: str, servers: int, target: float) -> float:
        """The load at which the tolerance falls below the marked error, between two points."""
        known = zip(loads, errors[column, servers, target], strict=True)
        for (load, error), (next_load, next_error) in pairwise(known):
            if error >= settings.error > next_error:
                return load + ((error - settings.error) / (error - next_error)) * (next_load - load)
        return math.nan

    steps = {
        f"{column.removesuffix('_error')}, n = {n}, target {target:g}, load {load:g}": later - one
        for n, target, column in product(settings.sizes, settings.targets, columns)
        for load, (one, later) in zip(loads, pairwise(errors[column, n, target]), strict=False)
    }
    rise, at = most(steps, "no points are known")
    # Where several loads are alike, the highest is named.
    ends = (errors["stable_error", large, target] for target in (low, high))
    by_load = reversed(list(zip(loads, *ends, strict=True)))
    by_target = {load: above - below for load, below, above in by_load}
    worst, load = most(by_target, math.nan)
    rising = [one for one in by_target.values() if not math.isnan(one)]
    rows = results.where(kind="simulation").rows
    wrong = [row for row in rows if row["stable"] != (row["beside"] < 0)]
    simulations = "; ".join(
        f"n = {row['servers']}, target {row['target']:g}, load {row['load']:g}: "
        f"{'stable' if row['stable'] else 'unstable'}, "
        f"{row['response_s'] / row['bound_s']:.3g} times the bound"
        for row in rows
    )
    return claims(f"""
      * [Sec. 3.4, Fig. 5]
        On a small site an error of 5 % leads out of the sub-Halfin-Whitt regime from a load of
        about 0.55.
        - that load at n = {small}, target {low:g}:
          {crossing("no_waiting_error", small, low)} (0.50 to 0.60)
        - target {high:g}: {crossing("no_waiting_error", small, high):.3f}
      * On a large site an error of 5 % makes the system unstable from a load close to 0.88.
        - that load at n = {large}, target {low:g}:
          {crossing("stable_error", large, low)} (0.85 to 0.91)
        - target {high:g}: {crossing("stable_error", large, high):.3f}
      * The tolerated error falls as the load rises.
        - largest rise from one load to the next: {rise} (at most 0.05 %)
        - at {at}
      * The tolerated error falls as the target rises.
        - largest rise from target {low:g} to {high:g}, stable, n = {large}:
          {worst} (at most 0.05 %)
        - at load {load:g}; it rises at {sum(one > 0.0005 for one in rising)} of {len(rising)}
          loads: lambda-max falls with the target, so the same load is a lower rate
      * [ours]
        Simulated with a rate told 5 % too low, R-JIQ is stable below the threshold and unstable
        above it.
        - simulations that end otherwise: {len(wrong) if rows else math.nan} (at most 0)
        - {simulations}
    """)


@dataclass(frozen=True)
class WindowSettings(Settings):
    """Ours: the paper argues in words; `load` is that of the steady arrivals."""

    windows_s: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
    phase_s: float = 300.0  # how long each of the two `loads` lasts of the arrivals that change
    # At most so many estimates a run, each of which solves the LP; short windows, short runs.
    estimates: int = 100_000


def _window(window_s: float) -> str:
    return f"window {window_s:g}"


def _window_points(settings: WindowSettings) -> list[Point]:
    made, target = [], settings.target
    rate_per_s = settings.load * greatest(settings.system, settings.servers, target)
    cases: list[tuple[str, str, dict[str, float]]] = [
        *((_window(one), "r-jiq", {"window": one}) for one in settings.windows_s),
        ("r-jiq", "r-jiq", {}),
        ("tad-op", "tad-op", {}),
    ]
    for name, policy, options in cases:
        queries, cost, precision = settings.queries, 0.0, settings.precision
        if "window" in options:
            within = settings.estimates * options["window"] * rate_per_s
            queries, cost, precision = min(queries, round(within)), 0.005 * settings.estimates, None
        shared = {
            **settings.common("servers"),
            **{"policy": policy, "options": options, "queries": queries, "seed": 1},
        }
        steady = {"target": target, "load": settings.load, "precision": precision}
        changing = {
            "targets": [target] * 2,
            "loads": list(settings.loads),
            "phase_s": settings.phase_s,
        }
        for kind, call, more in (("steady", simulated, steady), ("changing", phased, changing)):
            label = {"kind": kind, "name": name}
            made.append(Point(label, call, {**shared, **more}, seconds(queries) + cost))
    return made


def _window_figure(settings: WindowSettings, results: Results) -> Drawing:
    shown, windows_s = [], settings.windows_s
    for kind, title in (("steady", "steady rate"), ("changing", "rate that changes")):
        here = results.where(kind=kind)
        bound_s, own_s, known_s = (
            here.measure("bound_s").mean,
            *(here.measure("response_s", name=name).mean for name in ("tad-op", "r-jiq")),
        )
        level_s = 1.0 if math.isnan(bound_s) else bound_s
        look = Look("R-JIQ, rate estimated over the window", 2, "-.")
        names = [_window(one) for one in windows_s]
        estimated = replace(look.line(here, "response_s", name=names), x=windows_s)
        shown.append(
            Panel(
                title,
                "window, s",
                "mean response time, s",
                [
                    BOUND.flat(windows_s, bound_s),
                    Look("TAD-OP", 0).flat(windows_s, own_s),
                    Look("R-JIQ, mean rate known", 2, ":").flat(windows_s, known_s),
                    estimated,
                ],
                scale_across="log",
                limits_up=(0.8 * level_s, 1.15 * max([*steady_values([estimated]), level_s])),
            )
        )
    return panels(shown, columns=2, title="R-JIQ without the rate ([Anonymous], Sec. 3.4)")


def _window_claims(settings: WindowSettings, results: Results) -> list[Claim]:
    steady, changing = results.where(kind="steady"), results.where(kind="changing")
    short, long = min(settings.windows_s), max(settings.windows_s)
    known_s = steady.value("response_s", name="r-jiq")
    oblivious_s = changing.value("response_s", name="tad-op")
    short_s, long_s = (_or_infinite(steady, _window(one)) for one in (short, long))
    moving = {_window(one): _or_infinite(changing, _window(one)) for one in settings.windows_s}
    best = min(moving, key=lambda name: moving[name], default="none")
    least_s = moving.get(best, math.nan)
    low, high = settings.loads
    return claims(f"""
      * [Sec. 3.4] A short window is noisy, and detrimental to stability and latency.
        - response time with a window of {short:g} s over that with the rate known, less 1:
          {short_s / known_s - 1} (at least 5 %)
        - {short_s:.4g} s against {known_s:.4g} s at load {settings.load:g}
      * A long window gives a good estimate of a steady rate.
        - response time with a window of {long:g} s over that with the rate known, less 1:
          {long_s / known_s - 1} (at most 2 %)
        - {long_s:.4g} s against {known_s:.4g} s
      * A long window does not follow a rate that changes.
        - response time with a window of {long:g} s over the best window's, less 1:
          {moving.get(_window(long), math.nan) / least_s - 1} (at least 10 %)
        - best {best} s: {least_s:.4g} s; loads {low:g} and {high:g}, {settings.phase_s:g} s each
      * [ours] No window makes R-JIQ as fast as TAD-OP, which needs no rate.
        - the best window's response time over TAD-OP's where the rate changes, less 1:
          {least_s / oblivious_s - 1} (at least 0 %)
        - TAD-OP {oblivious_s:.4g} s
    """)


def _or_infinite(results: Results, name: str) -> float:
    measured = results.measure("response_s", name=name)
    return measured.mean if measured.stable else math.inf


WRONG = Study(
    name="wrong-rate",
    source="[Anonymous], Fig. 5",
    shows="Which error of the rate R-JIQ tolerates before requests wait, and before it is "
    "unstable.",
    scales=scales(
        WrongSettings(
            sizes=(64, 256, 4096),
            targets=(0.76, 0.80),
            loads=tuple(round(0.3 + 0.02 * step, 2) for step in range(35)),
        ),
        smoke={
            **{"sizes": (64, 4096), "targets": (0.76,)},
            "loads": (0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 0.96),
            **{"checked": ((4096, 0.76),), "around": (-0.1,), "queries_per_server": 20},
        },
        quick={"queries_per_server": 5_000, "precision": 0.0015},
    ),
    points=_wrong_points,
    figure=_wrong_figure,
    claims=_wrong_claims,
    departures=(
        "The figure's sizes and targets did not survive in the text: n = 64, 256 and 4096, targets "
        "0.76 and 0.80 are ours.",
        "A class of m servers counts as sub-Halfin-Whitt while its load is at most 1 - m^-0.5.",
    ),
)
WINDOW = Study(
    name="rate-window",
    source="[Anonymous], Sec. 3.4",
    shows="R-JIQ that estimates the rate over a window, short and long, steady and changing.",
    scales=scales(
        WindowSettings(load=0.8, loads=(0.3, 0.9)),
        smoke={"windows_s": (3.0, 1000.0), "queries": 20_000, "estimates": 50},
        quick={"queries": 4_000_000, "estimates": 3_000, "precision": 0.0015},
    ),
    points=_window_points,
    figure=_window_figure,
    claims=_window_claims,
    departures=(
        "The paper has no figure of this: system, loads and windows are ours.",
        "Each estimate solves the LP, which bounds the runs with short windows: their means have "
        "two digits, not three.",
    ),
    code=CODE,
)
