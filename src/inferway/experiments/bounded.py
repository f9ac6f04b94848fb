"""The bound in words and pictures."""

from __future__ import annotations

import numpy as np

from inferway.deployment import Deployment
from inferway.dispatch import deployed
from inferway.dispatch.bounds import Bound, solve
from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.text import Frame, Laid, Shown, frame, percent, seconds, table, text
from inferway.site.fleet import fleet_of


class BoundResult(dict[str, Bound], Shown):
    """The bound of each task, by its name.

    Parameters
    ----------
    deployment, node
        Whose.
    """

    def __init__(self, deployment: Deployment, node: str | None = None) -> None:
        super().__init__(deployed.bound(deployment, node=node))
        self._fleets = {name: fleet_of(deployment, name, node) for name in self}

    def to_frame(self) -> Frame:
        """One row per task; a column for each variant's share."""
        columns = ("max_rate_per_s", "rate_per_s", "least_response_time_s", "price_s")
        return frame(
            {"task": name, "accuracy_target": one.target}
            | {column: getattr(one, column) for column in columns}
            | {f"shares.{variant}": part for variant, part in (one.shares or {}).items()}
            for name, one in self.items()
        )

    def plot(self) -> Drawing:
        """Draw the least response time at every rate that keeps the target."""
        shown = []
        for name, one in self.items():
            rates = one.max_rate_per_s * np.linspace(1e-3, 1.0, 60)
            # The last is a rounding away from a rate that no mix carries.
            rates[-1] *= 1 - 1e-9
            times_s = [
                solve(self._fleets[name], one.target, rate, one.energy_budget).response_time_s
                for rate in rates.tolist()
            ]
            curves = [Curve("no policy is quicker", rates.tolist(), times_s)]
            if one.rate_per_s is not None and one.least_response_time_s is not None:
                at = ([one.rate_per_s], [one.least_response_time_s])
                curves.append(Curve("the workload", *at, color=0))
            shown.append(Panel(f"task {name}", "arrival rate, 1/s", "response time, s", curves))
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


def tables(name: str, one: Bound) -> list[Laid]:
    """The numbers of one task, and its routing tuples."""
    rate, budget = one.rate_per_s, one.energy_budget
    numbers = [
        ["accuracy target", "none" if one.target is None else f"{one.target:g}"],
        *([] if budget is None else [["energy budget per request", f"{budget:g} J"]]),
        ["greatest rate", f"{one.max_rate_per_s:.6g}/s"],
        ["greatest rate per instance", f"{one.max_rate_normalized:.6g}/s"],
        ["rate", "none in the file" if rate is None else f"{rate:.6g}/s"],
        ["least response time", seconds(one.least_response_time_s)],
        *([f"share of {of}", percent(part, 2)] for of, part in (one.shares or {}).items()),
    ]
    too_high = "The rate is above the greatest that keeps the target."
    tuples = [
        [
            " + ".join(row["variants"]),
            " + ".join(percent(part, 2) for part in row["routing"]),
            seconds(row["cost_s"]),
        ]
        for row in one.to_json()["tuples"]
    ]
    shuffles = any(part < 0 for row in one.tuples for part in row.routing)
    negative = "A negative share takes traffic off a variant that is busy."
    return [
        table(
            *(f"Task {name}", ["", "bound"], numbers),
            caption=too_high if one.feasible is False else None,
        ),
        table(
            *("Routing tuples", ["variants", "shares", "mean service time"], tuples),
            caption=negative if shuffles else None,
        ),
    ]
