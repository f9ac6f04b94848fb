"""A plan in words and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.text import percent, seconds, shown_as, table, text
from inferway.twin.plan import Plan, TaskPlan, Trial
from inferway.twin.plan import plan as computed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True)
class PlanResult(Plan):
    """A plan that can be looked at."""

    def to_frame(self) -> pd.DataFrame:
        """One row per simulation, in order; `chosen` says whose instances are the plan."""
        import pandas as pd

        trials = [tried for task in self.tasks.values() for tried in task.trials]
        variants = dict.fromkeys(variant for tried in trials for variant in tried.instances)
        rows = [
            {
                "task": name,
                **{f"instances.{variant}": tried.instances.get(variant, 0) for variant in variants},
                "response_time_s": tried.response_time_s,
                "accuracy": tried.accuracy,
                "utilization": tried.utilization,
                "lost": tried.lost,
                "holds": tried.holds,
                "chosen": tried is task.simulated,
            }
            for name, task in self.tasks.items()
            for tried in task.trials
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Draw what was simulated: how many instances, and the response time with them."""
        shown = []
        for name, task in self.tasks.items():
            chosen = task.simulated
            # A point alone is marked, and none are joined.
            curves = [
                *(_point("holds", one, 0) for one in task.trials if one.holds and one != chosen),
                *(_point("does not hold", one, 1) for one in task.trials if not one.holds),
                _point("the plan", chosen, 2),
            ]
            panel = Panel(
                f"task {name}",
                "instances",
                "response time, mean, s",
                curves,
                levels=[("asked for", task.latency_s)],
            )
            shown.append(panel)
        return panels(shown, columns=2)

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        return str(frame[frame["chosen"]].drop(columns="chosen").to_html(index=False))

    def __str__(self) -> str:
        return f"{text(*tables(self))}\n{self.yaml}".rstrip()


plan = shown_as(lambda found: PlanResult(**vars(found)))(computed)


def tables(found: Plan) -> list[Table]:
    """The instances of each task, and what the twin has of them."""
    return [_numbers(task) for task in found.tasks.values()]


def _point(label: str, tried: Trial, color: int) -> Curve:
    size = sum(tried.instances.values())
    return Curve(label, [size], [tried.response_time_s], color=color)


def _numbers(task: TaskPlan) -> Table:
    simulated = task.simulated
    rows = [[f"instances of {name}", str(count)] for name, count in task.instances.items()]
    rows += [
        ["price", f"{task.price:g}"],
        ["rate", f"{task.rate_per_s:.6g}/s"],
        ["response time, mean", f"{seconds(simulated.response_time_s)}"],
        ["asked for", seconds(task.latency_s)],
        ["accuracy", f"{simulated.accuracy:.4f}"],
    ]
    if task.accuracy_target is not None:
        rows.append(["accuracy target", f"{task.accuracy_target:g}"])
    rows.append(["utilization", percent(simulated.utilization, 1)])
    count = f"{len(task.trials)} simulation{'' if len(task.trials) == 1 else 's'}"
    caption = (
        f"Nothing cheaper holds, after {count}."
        if task.cheapest
        else f"The cheapest found in {count}; more --tries may find a cheaper one."
    )
    return table(f"Task {task.task}, planned", ["", "twin"], rows, caption=caption)
