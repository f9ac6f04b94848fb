"""Targets over several tasks, as policies are told of them, and the memory that these share.

A policy that keeps such targets takes `targets` in its `build`, a mapping for each target of the
deployment, and has a field `shared`, a row for each, which the policies of all tasks write to:

- `name`, `tasks`, and `accuracy` (0..1) or `energy` (J): what is promised, of whose answers;
- `start`: the price to begin with, s per unit of accuracy or s per J; `scale`: its natural size;
- `span`: the range of accuracies, or of energies, J, that answers of these tasks have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.units import ENERGY
from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.escalation_bounds import full_load
from inferway.dispatch.joint_bounds import JointMean, JointOptimum, TaskDemand, solve_jointly
from inferway.dispatch.promise import FEWEST, SLACK, State
from inferway.site.fleet import Fleet, fleet_of
from inferway.site.view import Floats
from inferway.workload.arrivals import mean_rate

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Places in a target's row of what policies share: the base of its price, its bank in spans, answers
# since it has its goal, and that; its price; what its answers are ahead of it in sum, and how many.
BASE, BANK, ANSWERS, GOAL, PRICE, BALANCE, COUNT = range(7)
PLACES: Final = 7
_NONE: Final = 1e-9  # Shares below are rounding


class JointTargetError(UnreachableError):
    """A target over several tasks that no instance of theirs reaches; it names it first."""


def means_of(deployment: Deployment) -> dict[str, JointMean]:
    """Targets of a deployment over several tasks, by name."""
    return {
        name: JointMean(one.tasks, one.accuracy, one.energy)
        for name, one in deployment.targets.items()
    }


def without_others(deployment: Deployment, names: Collection[str]) -> Deployment:
    """A deployment whose targets over several tasks are over these alone.

    A mean over answers asks nothing of tasks that have none, so that those without an instance are
    left out of it.
    """
    targets = {}
    for name, one in deployment.targets.items():
        if inside := tuple(task for task in one.tasks if task in names):
            targets[name] = replace(one, tasks=inside)
    return replace(deployment, targets=targets)


def with_what_devices_hold(deployment: Deployment, node: str | None = None) -> Deployment:
    """A deployment with every copy that its devices could hold, where these are given out anew.

    Devices are rows of the bound, so that all copies together get no more than there is. Any other
    deployment is returned as it is.
    """
    if not deployment.assigns:
        return deployment
    place = deployment.nodes[node] if node is not None else next(iter(deployment.nodes.values()))
    placed: dict[tuple[str, str], dict[str, int]] = {}
    for task in deployment.tasks.values():
        for variant in task.variants.values():
            counts = {
                name: device.slots // device.taken(variant.threads)
                for name, device in place.devices.items()
                if variant.remote is None and variant.runs_on(device.hardware)
            }
            if held := {name: count for name, count in counts.items() if count > 0}:
                placed[task.name, variant.name] = held
    instances = {key: sum(on.values()) for key, on in placed.items()}
    whole = replace(place, placed=placed, instances=instances)
    return replace(deployment, nodes=deployment.nodes | {place.name: whole})


def demands_of(deployment: Deployment, node: str | None = None) -> dict[str, TaskDemand]:
    """Demand of each task that some target is over; a rate is NaN where the file has none.

    ValueError where one of them has no instance on the node.
    """
    demands = {}
    for name in dict.fromkeys(task for one in deployment.targets.values() for task in one.tasks):
        task, fleet = deployment.tasks[name], fleet_of(deployment, name, node)
        promised = task.accuracy_target, task.energy_budget
        workload, rate = deployment.workload.get(name), math.nan
        if workload is not None:
            rate = mean_rate(workload.arrivals, full_load(fleet, *promised))
        demands[name] = TaskDemand(fleet, rate, *promised)
    return demands


def told_targets(deployment: Deployment, node: str | None = None) -> list[dict[str, Any]]:
    """Tell policies of the targets over several tasks; empty where there is none.

    Their prices start from the bound of these tasks together, at the workload's rates where all are
    known and within reach, else as if nobody waited. Where devices are given out anew, it is the
    bound of all copies that they could hold, so that all policies are told the same whatever copies
    there are at the moment.

    Raises
    ------
    UnreachableError
        Where no instance reaches one of them, whatever the rates.
    """
    if not deployment.targets:
        return []
    deployment = with_what_devices_hold(deployment, node)
    demands, means = demands_of(deployment, node), means_of(deployment)
    known = all(math.isfinite(one.rate_per_s) for one in demands.values())
    if not known:
        demands = {
            name: one._replace(rate_per_s=float(one.fleet.capacity.sum()))
            for name, one in demands.items()
        }
    _check_reach(demands, means)
    return told_of(demands, means, limited=known)


def told_of(
    demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean], *, limited: bool
) -> list[dict[str, Any]]:
    """Tell of these targets, with prices from the bound of these demands.

    With `limited` at their very rates; else as if nobody waited, where a rate only says how much
    its task weighs.
    """
    optimum = _optimum(demands, means) if limited else None
    free = _optimum(demands, means, limited=False)
    none = dict.fromkeys(means, 0.0)
    prices, low = (
        none if one is None else dict(zip(means, one.prices, strict=True))
        for one in (optimum, free)
    )
    mixed = next((one.shares for one in (optimum, free) if one is not None), None)
    told = []
    for name, mean in means.items():
        fleets = {one: demands[one].fleet for one in mean.tasks}
        kind = "accuracy" if mean.energy is None else "energy"
        every = np.concatenate([getattr(one, kind) for one in fleets.values()])
        used = every
        if mixed is not None:
            used = every[np.concatenate([mixed[one] for one in fleets]) > _NONE]
        scale = low[name] or _scale_s([*fleets.values()], kind)
        told.append(
            {
                "name": name,
                "tasks": list(mean.tasks),
                kind: mean.accuracy if mean.energy is None else mean.energy,
                # Out of reach at these rates, it begins where it hurts.
                "start": scale if mixed is None else max(prices[name], low[name]),
                "scale": scale,
                "span": float(np.ptp(used)) or float(np.ptp(every)) or 1.0,
            }
        )
    return told


def _optimum(
    demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean], *, limited: bool = True
) -> JointOptimum | None:
    with suppress(UnreachableError):
        return solve_jointly(demands, [*means.values()], limited=limited)
    return None


def _check_reach(demands: Mapping[str, TaskDemand], means: Mapping[str, JointMean]) -> None:
    """Refuse what no instance of the tasks reaches, whatever their rates."""
    for name, mean in means.items():
        fleets = [demands[one].fleet for one in mean.tasks]
        if mean.accuracy is not None:
            best = max(float(one.accuracy.max()) for one in fleets)
            reached = mean.accuracy <= best
        else:
            best = min(float(one.energy.min()) for one in fleets)
            reached = mean.energy is not None and mean.energy >= best
        if not reached:
            raise JointTargetError(
                f"targets.{name}: no instance of {', '.join(mean.tasks)} reaches {written(mean)}; "
                f"the best has {written(replace_goal(mean, best))}"
            )


def replace_goal(mean: JointMean, goal: float | None) -> JointMean:
    """Make the mean with another goal of its kind, to four digits."""
    rounded = None if goal is None else float(f"{goal:.4g}")
    if mean.energy is None:
        return mean._replace(accuracy=rounded)
    return mean._replace(energy=rounded)


def written(mean: JointMean) -> str:
    """Write what is promised: `a mean accuracy of 0.9`, or `a mean of 3 J per request`."""
    if mean.energy is not None:
        return f"a mean of {ENERGY.write(mean.energy)} per request"
    return f"a mean accuracy of {mean.accuracy:g}"


def _scale_s(fleets: Sequence[Fleet], kind: str) -> float:
    """Natural size of a price where the bound gives none, s per unit: that of the fleets."""
    times_s = np.concatenate([1.0 / one.rate for one in fleets])
    values = np.concatenate([getattr(one, kind) for one in fleets])
    return (float(np.ptp(times_s)) or float(times_s.min())) / (float(np.ptp(values)) or 1.0)


def empty_shared(told: Sequence[Mapping[str, Any]], headroom: float = 1.0) -> Floats:
    """(T, PLACES) what policies share of these targets at the beginning.

    Prices start `headroom` times above what is told.
    """
    shared = np.zeros((len(told), PLACES))
    for row, one in zip(shared, told, strict=True):
        row[GOAL] = one.get("accuracy", one.get("energy"))
        row[BASE] = row[PRICE] = headroom * one["start"]
    return shared


class TargetState:
    """Where a target over several tasks stands: its goal, and the mean of what was dispatched."""

    def __init__(self, told: Mapping[str, Any], row: Floats) -> None:
        self.name, self.tasks = str(told["name"]), tuple(told["tasks"])
        self.kind = "accuracy" if "accuracy" in told else "energy"
        self.goal = float(told[self.kind])
        self.row = row

    @property
    def answers(self) -> int:
        """Answers that count."""
        return int(self.row[COUNT])

    @property
    def balance(self) -> float:
        """Running sum of what answers are ahead of the goal: below 0, they are behind."""
        return float(self.row[BALANCE])

    @property
    def price(self) -> float:
        """Present price, s per unit of accuracy, or s per J."""
        return float(self.row[PRICE])

    @property
    def state(self) -> State:
        """The verdict on it, by the rule for a task's own promise."""
        mean, apart = self.mean, SLACK * (1.0 if self.kind == "accuracy" else self.goal)
        if mean is None or self.answers < FEWEST:
            return "unknown"
        behind = self.goal - mean if self.kind == "accuracy" else mean - self.goal
        if behind > apart:
            return "missed"
        return "at-risk" if self.balance < 0.0 else "kept"

    @property
    def mean(self) -> float | None:
        """Mean accuracy, or energy in J, of the answers; None without any."""
        if not self.answers:
            return None
        lead = self.balance / self.answers
        return self.goal + (lead if self.kind == "accuracy" else -lead)

    def to_json(self) -> dict[str, Any]:
        """By name, as it is told under ``targets``."""
        return {
            "tasks": list(self.tasks),
            self.kind: self.goal,
            "mean": self.mean,
            "balance": self.balance,
            "answers": self.answers,
            "state": self.state,
        }
