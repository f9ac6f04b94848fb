"""How each policy is drawn, the same in all figures.

As in [Anonymous], Sec. 7: solid lines are bounds, dash-dot lines are policies that are told the
arrival rate, dashed lines are those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferway.experiments.curves import Curve
from inferway.experiments.results import Measure


class Look(NamedTuple):
    """Legend, color and line of a policy."""

    label: str
    color: int
    dash: str


LOOKS = {
    "tad-op": Look("TAD-OP", 0, "--"),
    "tad": Look("TAD", 1, "--"),
    "r-jiq": Look("R-JIQ", 2, "-."),
    "priced": Look("priced (ours)", 3, "--"),
    "jiq-fast": Look("JIQ, fastest first", 4, "--"),
    "jiq-accurate": Look("JIQ, most accurate first", 5, "--"),
}


def policy_curve(
    policy: str, x: Sequence[float], measures: Sequence[Measure], scale: float = 1.0
) -> Curve:
    """A policy's measured points; unstable ones hollow, values and errors times a factor."""
    look = LOOKS[policy]
    return Curve(
        look.label,
        x,
        [one.mean * scale for one in measures],
        [2 * one.stderr * scale for one in measures],
        [not one.stable for one in measures],
        look.color,
        look.dash,
    )


def bound_curve(x: Sequence[float], y: Sequence[float], label: str = "bound (LP)") -> Curve:
    """What no policy can get below."""
    return Curve(label, x, y)
