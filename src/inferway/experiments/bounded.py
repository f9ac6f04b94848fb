"""The bound in words and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inferway.dispatch import deployed
from inferway.dispatch.bounds import Bound, solve
from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.text import percent, seconds, table, text
from inferway.site.fleet import fleet_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.table import Table

    from inferway.deployment import Deployment

_POINTS = 60
"""Of a curve over the rate."""


class BoundResult(dict[str, Bound]):
    """The bound of each task, by its name.

    Parameters
    ----------
    deployment, node
        Whose.
    """

    def __init__(self, deployment: Deployment, node: str | None = None) -> None:
        super().__init__(deployed.bound(deployment, node=node))
        self._fleets = {name: fleet_of(deployment, name, node) for name in self}

    def to_frame(self) -> pd.DataFrame:
        """One row per task; a column for each variant's share."""
        import pandas as pd

        rows = [
            {
                "task": name,
                "accuracy_target": one.target,
                "max_rate_per_s": one.max_rate_per_s,
                "rate_per_s": one.rate_per_s,
                "least_response_time_s": one.least_response_time_s,
                "price_s": one.price_s,
                **{f"shares.{variant}": part for variant, part in (one.shares or {}).items()},
            }
            for name, one in self.items()
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Draw the least response time at every rate that keeps the target."""
        shown = []
        for name, one in self.items():
            fleet = self._fleets[name]
            rates = one.max_rate_per_s * np.linspace(1e-3, 1.0, _POINTS)
            # The last is a rounding away from a rate that no mix carries.
            rates[-1] *= 1 - 1e-9
            found = [solve(fleet, one.target, float(rate), one.energy_budget) for rate in rates]
            curves = [
                Curve("no policy is quicker", rates.tolist(), [at.response_time_s for at in found])
            ]
            if one.rate_per_s is not None and one.least_response_time_s is not None:
                here = ([one.rate_per_s], [one.least_response_time_s])
                curves.append(Curve("the workload", *here, color=0))
            panel = Panel(f"task {name}", "arrival rate, 1/s", "response time, s", curves)
            shown.append(panel)
        return panels(shown, columns=2)

    def _repr_html_(self) -> str:
        return str(self.to_frame().T.to_html(header=False))

    def __str__(self) -> str:
        return "\n\n".join(text(*tables(name, one)) for name, one in self.items())


def bound(deployment: Deployment, *, node: str | None = None) -> BoundResult:
    """Bound the rate and the response time of every task of a deployment.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node whose fleet is meant; may be left out where the file has one.

    Returns
    -------
    BoundResult
        By the task's name. No policy that chooses before it sees an answer does better.

    Raises
    ------
    ValueError
        Where a task has no instance on the node.
    """
    return BoundResult(deployment, node)


def tables(name: str, one: Bound) -> list[Table]:
    """The numbers of one task, and its routing tuples."""
    return [_numbers(name, one), _tuples(one)]


def _numbers(name: str, one: Bound) -> Table:
    rate, too_high = one.rate_per_s, one.feasible is False
    rows = [
        ["accuracy target", "none" if one.target is None else f"{one.target:g}"],
        ["greatest rate", f"{one.max_rate_per_s:.6g}/s"],
        ["greatest rate per instance", f"{one.max_rate_normalized:.6g}/s"],
        ["rate", "none in the file" if rate is None else f"{rate:.6g}/s"],
        ["least response time", seconds(one.least_response_time_s)],
    ]
    if one.energy_budget is not None:
        rows.insert(1, ["energy budget per request", f"{one.energy_budget:g} J"])
    for variant, part in (one.shares or {}).items():
        rows.append([f"share of {variant}", percent(part, 2)])
    caption = "The rate is above the greatest that keeps the target." if too_high else None
    return table(f"Task {name}", ["", "bound"], rows, caption=caption)


def _tuples(one: Bound) -> Table:
    rows = [
        [
            " + ".join(found["variants"]),
            " + ".join(percent(part, 2) for part in found["routing"]),
            seconds(found["cost_s"]),
        ]
        for found in one.to_json()["tuples"]
    ]
    caption = "A negative share takes traffic off a variant that is busy."
    shuffles = any(part < 0 for found in one.tuples for part in found.routing)
    return table(
        "Routing tuples",
        ["variants", "shares", "mean service time"],
        rows,
        caption=caption if shuffles else None,
    )
