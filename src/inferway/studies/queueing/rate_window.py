"""R-JIQ with the rate estimated over a window ([Anonymous], Sec. 3.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing import CODE
from inferway.studies.queueing.phases import phased
from inferway.studies.queueing.system import FOUR_CLASSES, System, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def points(settings: Settings) -> list[Point]:
    """Steady and changing arrivals: every window, the rate as known, and TAD-OP."""
    found = []
    for policy, options in _candidates(settings):
        queries = _queries(settings, options.get("window"))
        common = {
            "system": settings.system.arguments(),
            "servers": settings.servers,
            "policy": policy,
            "options": options,
            "queries": queries,
            "seed": 1,
        }
        window_s = options.get("window", {"r-jiq": math.inf}.get(policy, math.nan))
        name = policy if window_s == math.inf or window_s != window_s else f"window {window_s:g}"
        steady = {
            **common,
            "target": settings.target,
            "load": settings.load,
            "precision": None if "window" in options else settings.precision,
        }
        cost = seconds(queries) + 0.005 * (settings.estimates if "window" in options else 0)
        found.append(Point({"kind": "steady", "name": name}, simulated, steady, cost))
        changing = {
            **common,
            "targets": [settings.target] * 2,
            "loads": list(settings.loads),
            "phase_s": settings.phase_s,
        }
        found.append(Point({"kind": "changing", "name": name}, phased, changing, cost))
    return found


def _queries(settings: Settings, window_s: float | None) -> int:
    """How many requests a run with this window has."""
    from inferway.dispatch import max_rate

    if window_s is None:
        return settings.queries
    fleet = settings.system.fleet(settings.servers)
    rate_per_s = settings.load * max_rate(fleet, settings.target)
    return min(settings.queries, round(settings.estimates * window_s * rate_per_s))


def _candidates(settings: Settings) -> list[tuple[str, Mapping[str, float]]]:
    windows = [("r-jiq", {"window": window_s}) for window_s in settings.windows_s]
    return [*windows, ("r-jiq", {}), ("tad-op", {})]


def figure(settings: Settings, results: Results) -> Figure:
    """Response time against the window, steady and changing."""
    from inferway.experiments.curves import Curve, Panel, panels

    shown = []
    for kind, title in (("steady", "steady rate"), ("changing", "rate that changes")):
        here = results.where(kind=kind)
        found = [here.measure("response_s", name=f"window {w:g}") for w in settings.windows_s]
        known_s = here.measure("response_s", name="r-jiq").mean
        oblivious_s = here.measure("response_s", name="tad-op").mean
        bound_s = here.measure("bound_s").mean
        flat = len(settings.windows_s)
        curves = [
            Curve("bound (LP)", settings.windows_s, [bound_s] * flat),
            Curve("TAD-OP", settings.windows_s, [oblivious_s] * flat, color=0, markers=False),
            Curve(
                "R-JIQ, mean rate known",
                settings.windows_s,
                [known_s] * flat,
                color=2,
                dash=":",
                markers=False,
            ),
            Curve(
                "R-JIQ, rate estimated over the window",
                settings.windows_s,
                [one.mean for one in found],
                [2 * one.stderr for one in found],
                [not one.stable for one in found],
                color=2,
                dash="-.",
            ),
        ]
        finite = [one.mean for one in found if one.stable and one.trials]
        top = 1.15 * max([*finite, bound_s if bound_s == bound_s else 1.0])
        shown.append(
            Panel(
                title,
                "window, s",
                "mean response time, s",
                curves,
                scale_across="log",
                limits_up=(0.8 * (bound_s if bound_s == bound_s else 1.0), top),
            )
        )
    return panels(shown, columns=2, title="R-JIQ without the rate ([Anonymous], Sec. 3.4)")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 3.4 says of short and of long windows."""
    steady, changing = results.where(kind="steady"), results.where(kind="changing")
    short, long = min(settings.windows_s), max(settings.windows_s)
    known_s = steady.value("response_s", name="r-jiq")
    names = [f"window {window_s:g}" for window_s in settings.windows_s]
    moving = {name: _or_infinite(changing, name) for name in names}
    best = min(moving, key=lambda name: moving[name], default="none")
    least_s = moving.get(best, math.nan)
    where = "Sec. 3.4"
    return [
        Claim(
            where,
            "A short window is noisy, and detrimental to stability and latency.",
            f"response time with a window of {short:g} s over that with the rate known, less 1",
            _or_infinite(steady, f"window {short:g}") / known_s - 1,
            at_least=0.05,
            unit="%",
            why=f"{_or_infinite(steady, f'window {short:g}'):.4g} s against {known_s:.4g} s at "
            f"load {settings.load:g}",
        ),
        Claim(
            where,
            "A long window gives a good estimate of a steady rate.",
            f"response time with a window of {long:g} s over that with the rate known, less 1",
            _or_infinite(steady, f"window {long:g}") / known_s - 1,
            at_most=0.02,
            unit="%",
            why=f"{_or_infinite(steady, f'window {long:g}'):.4g} s against {known_s:.4g} s",
        ),
        Claim(
            where,
            "A long window does not follow a rate that changes.",
            f"response time with a window of {long:g} s over the best window's, less 1",
            moving.get(f"window {long:g}", math.nan) / least_s - 1,
            at_least=0.10,
            unit="%",
            why=f"best {best} s: {least_s:.4g} s; loads {settings.loads[0]:g} and "
            f"{settings.loads[1]:g}, {settings.phase_s:g} s each",
        ),
        Claim(
            "ours",
            "No window makes R-JIQ as fast as TAD-OP, which needs no rate.",
            "the best window's response time over TAD-OP's where the rate changes, less 1",
            least_s / changing.value("response_s", name="tad-op") - 1,
            at_least=0.0,
            unit="%",
            why=f"TAD-OP {changing.value('response_s', name='tad-op'):.4g} s",
        ),
    ]


def _or_infinite(results: Results, name: str) -> float:
    found: Any = results.measure("response_s", name=name)
    return float(found.mean if found.stable else math.inf)


_PAPER = Settings()
STUDY = Study(
    name="rate-window",
    source="[Anonymous], Sec. 3.4",
    shows="R-JIQ that estimates the rate over a window, short and long, steady and changing.",
    scales={
        "smoke": replace(_PAPER, windows_s=(3.0, 1000.0), queries=20_000, estimates=50),
        "quick": replace(_PAPER, queries=4_000_000, estimates=3_000, precision=0.0015),
        "paper": _PAPER,
    },
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
