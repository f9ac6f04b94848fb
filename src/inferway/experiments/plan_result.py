"""Plans: the instances that tasks need, and what the twin has of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from inferway.deployment.units import ENERGY
from inferway.dispatch.totals import TaskCounts, Totals, totals_of
from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.text import (
    Frame,
    Laid,
    Shown,
    frame,
    number,
    percent,
    seconds,
    table,
    totals,
)
from inferway.twin.result import as_json

# How far below its target a run's mean accuracy may end: what a policy's balance swings by.
SLACK: Final = 1e-3


@dataclass(frozen=True)
class Trial:
    """Instances of one task, by variant, that were simulated; `utilization` is their mean.

    `lost` is the part of the requests that found no room or, on devices, were not in time, and
    `goodput` the accuracy of the others, summed, over all.
    """

    instances: dict[str, int]
    response_time_s: float
    accuracy: float
    utilization: float
    lost: float
    goodput: float
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {name: as_json(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class TaskPlan:
    """The instances that one task needs.

    Attributes
    ----------
    instances
        By variant; those with none left out.
    simulated
        Of `instances`.
    trials
        All that were simulated, in order.
    cheapest
        Whether nothing cheaper is left to be tried.
    bound
        By which instances were proposed: ``"blind"``, of policies that choose before they see an
        answer, or ``"escalation"``; or ``"devices"``, the most accurate that a node's devices hold.
    placed
        Of `instances`, how many run on which device; empty where the node lists no devices.
    """

    task: str
    rate_per_s: float
    latency_s: float
    accuracy_target: float | None
    energy_budget: float | None
    instances: dict[str, int]
    price: float
    simulated: Trial
    trials: tuple[Trial, ...]
    cheapest: bool
    bound: Literal["blind", "escalation", "devices"] = "blind"
    placed: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True where the twin keeps what is promised with these instances."""
        return self.simulated.holds

    def to_json(self) -> dict[str, Any]:
        """As `inferway plan FILE --json` prints it under ``tasks.NAME``."""
        order = (
            *("rate_per_s", "latency_s", "accuracy_target", "energy_budget", "instances"),
            *("price", "holds", "cheapest", "bound"),
        )
        return {
            **{name: getattr(self, name) for name in order},
            **({"devices": self.placed} if self.placed else {}),
            "simulated": self.simulated.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


@dataclass(frozen=True)
class TargetPlan:
    """A target over several tasks, and what the twin has of it.

    Attributes
    ----------
    tasks
        Those of its tasks that are planned.
    accuracy, energy
        What is promised: one of them, 0..1 or J.
    mean
        Of all their answers, simulated.
    holds
        Whether it is kept.
    """

    tasks: tuple[str, ...]
    accuracy: float | None
    energy: float | None
    mean: float
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """By name, as it stands under ``targets``."""
        kind = "accuracy" if self.energy is None else "energy"
        return {
            "tasks": list(self.tasks),
            kind: getattr(self, kind),
            "mean": as_json(self.mean),
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Plan(Shown):
    """The instances that a node needs for all its tasks; `infeasible` says why some have none.

    `targets` are those over several of the tasks.
    """

    node: str
    tasks: dict[str, TaskPlan]
    infeasible: dict[str, str] = field(default_factory=dict)
    targets: dict[str, TargetPlan] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True where the twin keeps what all tasks promise."""
        return not self.infeasible and all(task.holds for task in self.tasks.values())

    @property
    def totals(self) -> Totals | None:
        """All tasks together, by their rates; None of a single one, or where one has no plan."""
        if self.infeasible:
            return None
        counts = {}
        for name, task in self.tasks.items():
            answers = task.rate_per_s * (1.0 - task.simulated.lost)
            counts[name] = TaskCounts(
                requests=task.rate_per_s,
                answers=answers,
                accuracy_sum=answers * task.simulated.accuracy if answers > 0 else 0.0,
                in_time=answers,
                in_time_sum=task.rate_per_s * task.simulated.goodput,
            )
        return totals_of(counts, span_s=1.0)

    @property
    def yaml(self) -> str:
        """The instances as a deployment file says them."""
        entries = ", ".join(
            f"{name}/{variant}: {_written(task.placed.get(variant), count)}"
            for name, task in self.tasks.items()
            for variant, count in task.instances.items()
        )
        return f"nodes:\n  {self.node}:\n    instances: {{{entries}}}\n"

    def to_json(self) -> dict[str, Any]:
        """As `inferway plan FILE --json` prints it."""
        whole = self.totals
        return {
            "schema": 1,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "network": None,
            "node": self.node,
            "holds": self.holds,
            "price": sum(task.price for task in self.tasks.values()),
            **({} if whole is None else {"totals": whole.to_json()}),
            **(
                {"targets": {name: one.to_json() for name, one in self.targets.items()}}
                if self.targets
                else {}
            ),
            **({"infeasible": self.infeasible} if self.infeasible else {}),
        }

    def to_frame(self) -> Frame:
        """One row per simulation, in order; `chosen` says whose instances are the plan."""
        every = [(task, tried) for task in self.tasks.values() for tried in task.trials]
        variants = dict.fromkeys(variant for _, tried in every for variant in tried.instances)
        return frame(
            {
                "task": task.task,
                **{f"instances.{variant}": tried.instances.get(variant, 0) for variant in variants},
                **{what: value for what, value in vars(tried).items() if what != "instances"},
                "chosen": tried is task.simulated,
            }
            for task, tried in every
        )

    def plot(self) -> Drawing:
        """Draw what was simulated: how many instances, and the response time with them."""
        shown = []
        for name, task in self.tasks.items():
            others = sorted((one for one in task.trials if one != task.simulated), key=_fails)
            drawn = [(("holds", "does not hold")[_fails(one)], _fails(one), one) for one in others]
            # A point alone is marked, and none are joined.
            curves = [
                Curve(label, [sum(one.instances.values())], [one.response_time_s], color=color)
                for label, color, one in [*drawn, ("the plan", 2, task.simulated)]
            ]
            axes = (f"task {name}", "instances", "response time, mean, s")
            shown.append(Panel(*axes, curves, levels=[("asked for", task.latency_s)]))
        return panels(shown, columns=2)

    def tables(self) -> list[Laid]:
        """The instances of each task, and what the twin has of them."""
        from rich.text import Text

        shown: list[Laid] = []
        for task in self.tasks.values():
            target, simulated, tried = task.accuracy_target, task.simulated, len(task.trials)
            rows = [
                *(
                    [f"instances of {name}", _shown(task.placed.get(name), count)]
                    for name, count in task.instances.items()
                ),
                ["price", f"{task.price:g}"],
                ["rate", f"{task.rate_per_s:.6g}/s"],
                ["response time, mean", seconds(simulated.response_time_s)],
                ["asked for", seconds(task.latency_s)],
                ["accuracy", number(simulated.accuracy, "{:.4f}")],
                *([] if target is None else [["accuracy target", f"{target:g}"]]),
                *([["not in time", percent(simulated.lost, 2)]] if task.placed else []),
                ["utilization", percent(simulated.utilization, 1)],
            ]
            count = f"{tried} simulation{'' if tried == 1 else 's'}"
            caption = (
                f"The most accurate answers that the devices have room for, after {count}."
                if task.placed
                else f"Nothing cheaper holds, after {count}."
                if task.cheapest
                else f"The cheapest found in {count}; more --tries may find a cheaper one."
            ) + (" Sized by the bound with escalation." if task.bound == "escalation" else "")
            shown.append(table(f"Task {task.task}, planned", ["", "twin"], rows, caption=caption))
        if self.targets:
            rows = [
                [name, ", ".join(one.tasks), *_means(one), "kept" if one.holds else "missed"]
                for name, one in self.targets.items()
            ]
            columns = ["target", "tasks", "asked for", "twin", ""]
            shown.append(table("Targets over several tasks", columns, rows))
        shown += totals(self.totals)
        if self.infeasible:
            shown += [Text("Not planned", style="bold"), *map(Text, self.infeasible.values())]
        return shown

    def _repr_html_(self) -> str:
        rows = self.to_frame()
        return str(rows[rows["chosen"]].drop(columns="chosen").to_html(index=False))

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.yaml}".rstrip()


def _fails(trial: Trial) -> int:
    return int(not trial.holds)


def _means(one: TargetPlan) -> tuple[str, str]:
    """What a target promises, and what came of it."""
    if one.energy is None:
        return f"{one.accuracy:g}", number(one.mean, "{:.4f}")
    return ENERGY.write(one.energy), number(one.mean, "{:.4g} J")


def _written(placed: dict[str, int] | None, count: int) -> str:
    """Copies of a variant as a deployment file says them."""
    if not placed:
        return str(count)
    return "{" + ", ".join(f"{device}: {here}" for device, here in placed.items()) + "}"


def _shown(placed: dict[str, int] | None, count: int) -> str:
    if not placed:
        return str(count)
    return ", ".join(f"{here} on {device}" for device, here in placed.items())
