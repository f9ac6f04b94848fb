"""R-JIQ with the rate estimated over a window ([Anonymous], Sec. 3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferway.experiments.curves import (
    Curve,
    Drawing,
    Look,
    Panel,
    flat,
    line,
    panels,
)
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    FOUR_CLASSES,
    System,
    common,
    phased,
    seconds,
    simulated,
)


@dataclass(frozen=True)
class Settings:
    """Ours: the paper argues in words."""

    system: System = FOUR_CLASSES
    servers: int = 64
    target: float = 0.76
    load: float = 0.8
    """Of the steady arrivals."""
    windows_s: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
    loads: tuple[float, float] = (0.3, 0.9)
    """Of the arrivals that change."""
    phase_s: float = 300.0
    queries: int = 100_000_000
    estimates: int = 100_000
    """At most so many estimates a run, each of which solves the LP; short windows, short runs."""
    precision: float | None = None


def _window(window_s: float) -> str:
    return f"window {window_s:g}"


def points(settings: Settings) -> list[Point]:
    """Steady and changing arrivals: every window, the rate as known, and TAD-OP."""
    made = []
    target, greatest = settings.target, settings.system.greatest(settings.servers, settings.target)
    cases: list[tuple[str, str, dict[str, float]]] = [
        *((_window(one), "r-jiq", {"window": one}) for one in settings.windows_s),
        ("r-jiq", "r-jiq", {}),
        ("tad-op", "tad-op", {}),
    ]
    for name, policy, options in cases:
        queries, cost, precision = settings.queries, 0.0, settings.precision
        if "window" in options:
            within = settings.estimates * options["window"] * (settings.load * greatest)
            queries, cost, precision = min(queries, round(within)), 0.005 * settings.estimates, None
        shared = {
            **common(settings, "servers"),
            **{"policy": policy, "options": options, "queries": queries, "seed": 1},
        }
        steady = {"target": target, "load": settings.load, "precision": precision}
        changing: dict[str, Any] = {"targets": [target] * 2, "loads": list(settings.loads)}
        changing["phase_s"] = settings.phase_s
        for kind, call, more in (("steady", simulated, steady), ("changing", phased, changing)):
            label = {"kind": kind, "name": name}
            made.append(Point(label, call, {**shared, **more}, seconds(queries) + cost))
    return made


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time against the window, steady and changing."""
    shown, windows_s = [], settings.windows_s
    for kind, title in (("steady", "steady rate"), ("changing", "rate that changes")):
        here = results.where(kind=kind)
        bound_s = here.measure("bound_s").mean
        level_s = bound_s if bound_s == bound_s else 1.0
        curves = [
            flat(BOUND, windows_s, bound_s),
            flat(Look("TAD-OP", 0), windows_s, here.measure("response_s", name="tad-op").mean),
            flat(
                Look("R-JIQ, mean rate known", 2, ":"),
                windows_s,
                here.measure("response_s", name="r-jiq").mean,
            ),
            _estimated(here, windows_s),
        ]
        finite = [
            y for y, hollow in zip(curves[-1].y, curves[-1].hollow, strict=True) if not hollow
        ]
        finite = [y for y in finite if not math.isnan(y)]
        shown.append(
            Panel(
                title,
                "window, s",
                "mean response time, s",
                curves,
                scale_across="log",
                limits_up=(0.8 * level_s, 1.15 * max([*finite, level_s])),
            )
        )
    return panels(shown, columns=2, title="R-JIQ without the rate ([Anonymous], Sec. 3.4)")


def _estimated(results: Results, windows_s: Sequence[float]) -> Curve:
    named = [{**row, "window": row["name"].removeprefix("window ")} for row in results.rows]
    windows = [f"{one:g}" for one in windows_s]
    look = Look("R-JIQ, rate estimated over the window", 2, "-.")
    return replace(line(Results(named), "response_s", look, window=windows), x=windows_s)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 3.4 says of short and of long windows."""
    steady, changing = results.where(kind="steady"), results.where(kind="changing")
    short, long = min(settings.windows_s), max(settings.windows_s)
    known_s = steady.value("response_s", name="r-jiq")
    oblivious_s = changing.value("response_s", name="tad-op")
    short_s, long_s = (_or_infinite(steady, _window(one)) for one in (short, long))
    moving = {_window(one): _or_infinite(changing, _window(one)) for one in settings.windows_s}
    best = min(moving, key=lambda name: moving[name], default="none")
    least_s = moving.get(best, math.nan)
    where = "Sec. 3.4"
    return [
        claim(
            where,
            "A short window is noisy, and detrimental to stability and latency.",
            f"response time with a window of {short:g} s over that with the rate known, less 1",
            short_s / known_s - 1,
            "at least 5 %",
            f"{short_s:.4g} s against {known_s:.4g} s at load {settings.load:g}",
        ),
        claim(
            where,
            "A long window gives a good estimate of a steady rate.",
            f"response time with a window of {long:g} s over that with the rate known, less 1",
            long_s / known_s - 1,
            "at most 2 %",
            f"{long_s:.4g} s against {known_s:.4g} s",
        ),
        claim(
            where,
            "A long window does not follow a rate that changes.",
            f"response time with a window of {long:g} s over the best window's, less 1",
            moving.get(_window(long), math.nan) / least_s - 1,
            "at least 10 %",
            f"best {best} s: {least_s:.4g} s; loads {settings.loads[0]:g} and "
            f"{settings.loads[1]:g}, {settings.phase_s:g} s each",
        ),
        claim(
            "ours",
            "No window makes R-JIQ as fast as TAD-OP, which needs no rate.",
            "the best window's response time over TAD-OP's where the rate changes, less 1",
            least_s / oblivious_s - 1,
            "at least 0 %",
            f"TAD-OP {oblivious_s:.4g} s",
        ),
    ]


def _or_infinite(results: Results, name: str) -> float:
    measured: Any = results.measure("response_s", name=name)
    return float(measured.mean if measured.stable else math.inf)


STUDY = Study(
    name="rate-window",
    source="[Anonymous], Sec. 3.4",
    shows="R-JIQ that estimates the rate over a window, short and long, steady and changing.",
    scales=scales(
        Settings(),
        smoke={"windows_s": (3.0, 1000.0), "queries": 20_000, "estimates": 50},
        quick={"queries": 4_000_000, "estimates": 3_000, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper has no figure of this: system, loads and windows are ours.",
        "Each estimate solves the LP, which bounds the runs with short windows: their means have "
        "two digits, not three.",
    ),
    code=CODE,
)
