"""The policies of the placement studies, each reading of the papers by itself, and how it is drawn.

The papers do not give INFIDA's learning rate: it tunes itself here, in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferway.experiments.curves import Curve
    from inferway.experiments.results import Results


@dataclass(frozen=True)
class Look:
    """A policy in a study.

    Attributes
    ----------
    label, color, dash
        Legend, color and line.
    policy, options
        Its name in `inferway.placement.POLICIES`, and what differs from its defaults.
    seconds
        About how long it takes to decide in hindsight.
    """

    label: str
    color: int
    dash: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.2


POLICIES: Mapping[str, Look] = {
    "infida": Look("INFIDA", 0, "-", "infida", {"rounding": "fresh"}),
    "infida-coupled": Look("INFIDA, coupled (ours)", 6, "--", "infida"),
    "infida-offline": Look("INFIDA-offline", 2, "-.", "infida-offline", seconds=2.0),
    "static-greedy": Look("static greedy", 1, "-.", "static-greedy", seconds=3.0),
    "static-greedy-served": Look(
        "static greedy, until served",
        4,
        "-.",
        "static-greedy",
        {"stop": "all-served"},
        seconds=2.0,
    ),
    "olag": Look("OLAG", 3, "--", "olag"),
    "olag-literal": Look("OLAG (literal)", 3, ":", "olag-literal"),
    "greedy": Look("greedy (forwarded)", 5, ":", "greedy"),
    "exact": Look("MILP", -1, "-", "exact", {"time_limit_s": 60.0}, seconds=10.0),
}
"""By name. ``static-greedy`` ends where nothing gains, ``static-greedy-served`` once no request
reaches the cloud. ``olag`` is the strong reading; in ``olag-literal`` replicas of the chosen model
keep their counters, as the text's letter says, and ``greedy`` counts what a node forwards."""


def curves(
    results: Results,
    policies: Sequence[str],
    across: str,
    x: Sequence[float],
    column: str,
    **label: Any,
) -> list[Curve]:
    """One curve per policy: the means of a column over trials, and twice their errors."""
    from inferway.experiments.curves import Curve

    found = []
    for policy in policies:
        look = POLICIES[policy]
        points = [results.measure(column, policy=policy, **{across: value}, **label) for value in x]
        errors = [2 * one.stderr for one in points] if any(p.trials > 1 for p in points) else []
        found.append(
            Curve(look.label, x, [p.mean for p in points], errors, (), look.color, look.dash)
        )
    return found
