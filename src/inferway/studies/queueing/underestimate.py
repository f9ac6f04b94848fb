"""A rate told 1.25 % too low overloads a class ([Anonymous], Example 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import THREE_CLASSES, System, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PURE = -1e6
"""A beta at which eq. 4's weight vanishes: routing by p*(lambda) alone, as in the example."""


@dataclass(frozen=True)
class Settings:
    """The example's; it names no size."""

    system: System = THREE_CLASSES
    servers: int = 300
    target: float = 0.52
    load: float = 0.80
    told: tuple[float, ...] = (0.77, 0.78, 0.785, 0.79, 0.795, 0.80, 0.805, 0.81, 0.82, 0.84)
    """Loads that the policy believes."""
    queries: int = 30_000_000
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """Every belief, with the routing of the LP alone and with that of eq. 4."""
    from inferway.dispatch import max_rate

    greatest = max_rate(settings.system.fleet(settings.servers), settings.target)
    found = []
    for routing in ("lp", "eq. 4"):
        for told in settings.told:
            options = {"rate": told * greatest}
            if routing == "lp":
                options["beta"] = _PURE
            arguments = {
                "system": settings.system.arguments(),
                "servers": settings.servers,
                "target": settings.target,
                "load": settings.load,
                "policy": "r-jiq",
                "options": options,
                "queries": settings.queries,
                # At the edge of stability no run is long enough for three digits.
                "precision": settings.precision if routing == "eq. 4" else None,
                "seed": 1,
            }
            label = {"routing": routing, "told": told}
            found.append(
                Point(label, simulated, arguments, seconds(settings.queries, settings.precision))
            )
    return found


def figure(settings: Settings, results: Results) -> Figure:
    """Load of the slowest class, and response time, against the load that is believed."""
    from inferway.experiments.curves import Curve, Panel, panels

    errors = [100 * (told / settings.load - 1) for told in settings.told]
    carried = [_loads(settings, told)[-1] for told in settings.told]
    curves, top = [], 1.0
    for color, routing, label in (
        (1, "lp", "routing by the LP"),
        (2, "eq. 4", "R-JIQ (eq. 4)"),
    ):
        measures = [
            results.measure("response_s", routing=routing, told=told) for told in settings.told
        ]
        stable = [one.mean for one in measures if one.stable and one.trials]
        top = max([top, *stable])
        curves.append(
            Curve(
                label,
                errors,
                [one.mean for one in measures],
                [2 * one.stderr for one in measures],
                [not one.stable for one in measures],
                color,
                "-.",
            )
        )
    bound = results.measure("bound_s").mean
    curves.insert(0, Curve("bound (LP)", errors, [bound] * len(errors)))
    return panels(
        [
            Panel(
                "slowest class",
                "error of the rate, %",
                "its load under the LP's routing",
                [Curve("routing by the LP", errors, carried, color=1, dash="-.")],
                levels=[("full", 1.0)],
            ),
            Panel(
                "all classes",
                "error of the rate, %",
                "mean response time, s",
                curves,
                limits_up=(0.0, 1.2 * top),
            ),
        ],
        columns=2,
        title="A rate told too low ([Anonymous], Example 1)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The example's numbers and conclusion."""
    where = "Sec. 3.4, Example 1"
    told = 0.79
    share = settings.system.share[-1] * settings.system.rate[-1]
    found = results.measure("response_s", routing="lp", told=told)
    mixed = results.measure("response_s", routing="eq. 4", told=told)
    bound_s = results.measure("bound_s").mean
    return [
        Claim(
            where,
            "Told 0.79 of lambda-max at 0.8, class 3 gets 0.0843 per server and second.",
            "lambda p3*(0.79 lambda-max)",
            _loads(settings, told)[-1] * share,
            at_least=0.0842,
            at_most=0.0844,
            why=f"its capacity is {share:.4f}",
        ),
        Claim(
            where,
            "That makes the system unstable.",
            "1 if unstable in simulation, 0 if stable",
            float(not found.stable) if found.trials else math.nan,
            at_least=1,
            why=f"mean response time so far {found.mean:.3g} s, bound {bound_s:.3g} s",
        ),
        Claim(
            "ours",
            "R-JIQ itself is stable there: the mixture of eq. 4 leaves room for the error.",
            "1 if unstable in simulation, 0 if stable",
            float(not mixed.stable) if mixed.trials else math.nan,
            at_most=0,
            why=f"eq. 4 moves part of the traffic to the routing of lambda-max; mean response "
            f"time {mixed.mean:.4g} s",
        ),
    ]


def _loads(settings: Settings, told: float) -> list[float]:
    """Load of each class when the LP is solved for another rate than the true one."""
    from inferway.dispatch import max_rate, solve

    fleet = settings.system.fleet(settings.servers)
    greatest = max_rate(fleet, settings.target)
    shares = solve(fleet, settings.target, told * greatest).shares
    found: list[float] = (settings.load * greatest * shares / fleet.capacity).tolist()
    return found


_PAPER = Settings()
STUDY = Study(
    name="underestimate",
    source="[Anonymous], Example 1",
    shows="A rate told 1.25 % too low makes a class unstable.",
    scales={
        "smoke": replace(_PAPER, told=(0.79, 0.82), queries=60_000),
        "quick": replace(_PAPER, queries=20_000_000, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The example names no size: 300 servers are ours.",
        "Routing by the LP alone runs at the edge of stability: its means have the errors drawn, "
        "not three digits.",
    ),
)
