"""A rate told 1.25 % too low overloads a class ([Anonymous], Example 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from inferway.experiments.curves import (
    Curve,
    Drawing,
    Look,
    Panel,
    flat,
    lines,
    panels,
    steady_values,
)
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    THREE_CLASSES,
    System,
    common,
    seconds,
    simulated,
)

_PURE = -1e6
"""A beta at which eq. 4's weight vanishes: routing by p*(lambda) alone, as in the example."""
_LOOKS = {"lp": Look("routing by the LP", 1, "-."), "eq. 4": Look("R-JIQ (eq. 4)", 2, "-.")}


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

    def loads(self, told: float) -> list[float]:
        """Load of each class when the LP is solved for another rate than the true one."""
        shares = self.system.bound(self.servers, self.target, told).shares
        rate_per_s = self.load * self.system.greatest(self.servers, self.target)
        by_class: list[float] = (
            rate_per_s * shares / self.system.fleet(self.servers).capacity
        ).tolist()
        return by_class


def points(settings: Settings) -> list[Point]:
    """Every belief, with the routing of the LP alone and with that of eq. 4."""
    greatest = settings.system.greatest(settings.servers, settings.target)

    def arguments(routing: str, told: float) -> dict[str, Any]:
        options = {"rate": told * greatest} | ({"beta": _PURE} if routing == "lp" else {})
        return {
            **common(settings, "servers", "target", "load", "queries"),
            **{"policy": "r-jiq", "options": options, "seed": 1},
            # At the edge of stability no run is long enough for three digits.
            "precision": settings.precision if routing == "eq. 4" else None,
        }

    cost = seconds(settings.queries, settings.precision)
    return grid(simulated, arguments, cost, routing=tuple(_LOOKS), told=settings.told)


def figure(settings: Settings, results: Results) -> Drawing:
    """Load of the slowest class, and response time, against the load that is believed."""
    errors = [100 * (told / settings.load - 1) for told in settings.told]
    carried = [settings.loads(told)[-1] for told in settings.told]
    curves = lines(results, "response_s", _LOOKS, by="routing", told=settings.told)
    bound = flat(BOUND, errors, results.measure("bound_s").mean)
    across = "error of the rate, %"
    return panels(
        [
            Panel(
                "slowest class",
                across,
                "its load under the LP's routing",
                [Curve("routing by the LP", errors, carried, color=1, dash="-.")],
                levels=[("full", 1.0)],
            ),
            Panel(
                "all classes",
                across,
                "mean response time, s",
                [bound, *(replace(curve, x=errors) for curve in curves)],
                limits_up=(0.0, 1.2 * max([1.0, *steady_values(curves)])),
            ),
        ],
        columns=2,
        title="A rate told too low ([Anonymous], Example 1)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The example's numbers and conclusion."""
    where, told = "Sec. 3.4, Example 1", 0.79
    capacity = settings.system.share[-1] * settings.system.rate[-1]
    pure, mixed = (results.measure("response_s", routing=routing, told=told) for routing in _LOOKS)
    ends = "1 if unstable in simulation, 0 if stable"
    return [
        claim(
            where,
            "Told 0.79 of lambda-max at 0.8, class 3 gets 0.0843 per server and second.",
            "lambda p3*(0.79 lambda-max)",
            settings.loads(told)[-1] * capacity,
            "0.0842 to 0.0844",
            f"its capacity is {capacity:.4f}",
        ),
        claim(
            where,
            "That makes the system unstable.",
            ends,
            float(not pure.stable) if pure.trials else math.nan,
            "at least 1",
            f"mean response time so far {pure.mean:.3g} s, bound "
            f"{results.measure('bound_s').mean:.3g} s",
        ),
        claim(
            "ours",
            "R-JIQ itself is stable there: the mixture of eq. 4 leaves room for the error.",
            ends,
            float(not mixed.stable) if mixed.trials else math.nan,
            "at most 0",
            "eq. 4 moves part of the traffic to the routing of lambda-max; mean response time "
            f"{mixed.mean:.4g} s",
        ),
    ]


STUDY = Study(
    name="underestimate",
    source="[Anonymous], Example 1",
    shows="A rate told 1.25 % too low makes a class unstable.",
    scales=scales(
        Settings(),
        smoke={"told": (0.79, 0.82), "queries": 60_000},
        quick={"queries": 20_000_000, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The example names no size: 300 servers are ours.",
        "Routing by the LP alone runs at the edge of stability: its means have the errors drawn, "
        "not three digits.",
    ),
)
