"""Planning on devices: the most accurate instances of all tasks together, each tried in the twin.

`inferway.placement.assignment` proposes what takes which device. The twin runs each task under the
policy that the file names. One that does not keep what it promises is sized for more than its rate,
and all are proposed anew, until all hold or there is no room left: then that task is named, and the
others are planned without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from inferway.deployment import Deployment, Node, Task
from inferway.deployment.units import TIME
from inferway.dispatch.joint import means_of, without_others
from inferway.experiments.plan_result import Plan, TargetPlan, TaskPlan, Trial
from inferway.experiments.planned_trial import tried
from inferway.experiments.runner import Point
from inferway.experiments.workers import in_threads
from inferway.placement.assignment import Asked, Assignment, Option, assign, options_of, slots_of
from inferway.twin.simulation import groups_of

MISSED: Final = 0.01  # Part of the requests that may be late, dropped or rejected
_MORE: Final = 1.08  # What a task is sized for beyond its rate after each trial that fails


def with_instances(
    place: Node,
    instances: Mapping[tuple[str, str], int],
    placed: Mapping[tuple[str, str], dict[str, int]] | None = None,
) -> Node:
    """A node with other copies, and with the failures of those that it has."""
    outages = (
        replace(
            one, instances={key: min(n, instances.get(key, 0)) for key, n in one.instances.items()}
        )
        for one in place.outages
    )
    return replace(
        place,
        instances=dict(instances),
        placed=dict(placed or {}),
        failures={key: one for key, one in place.failures.items() if key in instances},
        outages=tuple(one for one in outages if any(one.instances.values())),
    )


def assigned(place: Node, assignment: Assignment) -> Node:
    """A node with the copies of an assignment."""
    placed: dict[tuple[str, str], dict[str, int]] = {}
    for (task, variant, device), count in assignment.copies.items():
        placed.setdefault((task, variant), {})[device] = count
    return with_instances(place, {key: sum(one.values()) for key, one in placed.items()}, placed)


class _Pool:
    """One planning: what is asked of each task, and what has been tried."""

    def __init__(
        self,
        deployment: Deployment,
        place: Node,
        rates_per_s: Mapping[str, float],
        latency_s: float | None,
        best_effort: bool,
    ) -> None:
        self._deployment, self._place = deployment, place
        self._latency_s, self.best_effort = latency_s, best_effort
        self.rates_per_s = dict(rates_per_s)
        self.tasks = {name: deployment.tasks[name] for name in rates_per_s}
        self.options = options_of(
            place,
            list(self.tasks.values()),
            {name: self._deadline_s(task) for name, task in self.tasks.items()},
        )
        self.factor = dict.fromkeys(rates_per_s, 1.0)
        self.trials: dict[str, list[Trial]] = {name: [] for name in rates_per_s}
        self.results: dict[Any, Any] = {}  # By tasks and their copies, as `tried` returns them
        self.infeasible: dict[str, str] = {}

    def _deadline_s(self, task: Task) -> float | None:
        return None if self._latency_s is not None else task.deadline_s

    @property
    def left(self) -> list[str]:
        """Tasks that are still planned."""
        return [name for name in self.tasks if name not in self.infeasible]

    def latency_of(self, name: str) -> float:
        """What is asked for, s: the mean response time, or the deadline."""
        latency_s = self._latency_s or self.tasks[name].deadline_s
        assert latency_s is not None
        return latency_s

    def price_of(self, option: Option) -> float:
        """What a copy costs; 1 where no variant of its task has a price."""
        priced = any(one.price for one in self.options if one.task == option.task)
        return option.price if priced else 1.0

    def proposed(self) -> Assignment | None:
        """Solve for the tasks that are left; None where there are none, or no room for any."""
        while names := self.left:
            pinned = self._place.pinned
            asked = {
                name: Asked(
                    rate_per_s=self.rates_per_s[name] * self.factor[name],
                    target=self.tasks[name].accuracy_target,
                    energy_budget=self.tasks[name].energy_budget,
                    latency_s=self._latency_s,
                    most=self.tasks[name].max_instances,
                    least={v: n for (task, v), n in pinned.items() if task == name},
                    weight=1.0 / self.factor[name],
                )
                for name in names
            }
            slots = slots_of(self._place)
            means = means_of(without_others(self._deployment, names))
            settled = partial(assign, slots, self.options, asked)
            found = settled(means=[*means.values()], every=not self.best_effort)
            if found is None and not self.best_effort:
                found = settled(means=[*means.values()], every=False)
            if found is None:
                raise ValueError(
                    f"nodes.{self._place.name}: its devices cannot hold the copies that are pinned"
                )
            if self.best_effort:
                return found
            short = {
                name: found.unserved_per_s[name] / asked[name].rate_per_s
                for name in names
                if found.unserved_per_s[name] > 0 or not found.of(name)
            }
            if not short:
                return found
            # Who has failed with less goes first: it asks for more than its rate.
            worst = max(short, key=lambda name: (len(self.trials[name]), short[name]))
            joined = [name for name, mean in means.items() if worst in mean.tasks]
            free = settled() if joined else None
            if free is None or any(free.unserved_per_s[name] > 0 for name in names):
                joined = []
            self._give_up(worst, found, joined)
        return None

    def _give_up(self, name: str, found: Assignment, joined: Sequence[str]) -> None:
        """Leave a task out, and say why; `joined` are targets without which it had room."""
        tried, rate = len(self.trials[name]), self.rates_per_s[name]
        beside = " beside those of the other tasks" if len(self.left) > 1 else ""
        if tried:
            count = f"{tried} simulation{'' if tried == 1 else 's'}"
            why = f"no instances{beside} were found that keep what it promises, after {count}"
        elif not any(one.task == name for one in self.options):
            why = (
                "no variant has a service time on one of the devices that is within "
                f"{TIME.write(self.latency_of(name))}"
            )
        else:
            part = 1 - found.unserved_per_s[name] / rate
            kept = "" if not joined else " with " + ", ".join(f"targets.{one}" for one in joined)
            kept = f"{kept} kept" if joined else ""
            why = (
                f"the devices have no room{beside} for {rate:.6g}/s{kept}; "
                f"{max(0.0, part):.0%} of them would be served"
            )
        self.infeasible[name] = f"tasks.{name}: {why}"

    def groups(self) -> list[tuple[str, ...]]:
        """Group the tasks that are left as targets over several join them."""
        left = self.left
        return groups_of(without_others(self._deployment, left), left)

    def tried(
        self, names: Sequence[str], node: Node, **settings: Any
    ) -> tuple[dict[str, Trial], dict[str, TargetPlan]]:
        """Simulate tasks together on a node; those without a copy there serve nothing."""
        there = {task for (task, _), count in node.instances.items() if count > 0}
        some = [name for name in names if name in there]
        trials = {name: Trial({}, np.inf, np.nan, 0.0, 1.0, 0.0, False) for name in names}
        if not some:
            return trials, {}
        found, targets = tried(
            without_others(self._deployment, some),
            node,
            {name: self.latency_of(name) for name in some},
            in_time=self._latency_s is None,
            lost=MISSED,
            **settings,
        )
        return trials | found, targets


def plan_pool(
    deployment: Deployment,
    place: Node,
    rates_per_s: Mapping[str, float],
    *,
    latency_s: float | None,
    best_effort: bool,
    tries: int,
    settings: Mapping[str, Any],
    progress: Callable[[str, float], None] | None,
) -> Plan:
    """Plan all tasks of a node with devices; see `inferway.experiments.planned.plan`."""
    _check_stated(deployment, place, rates_per_s, latency_s)
    pool = _Pool(deployment, place, rates_per_s, latency_s, best_effort)
    node, found = place, None
    chosen: dict[str, Trial] = {}
    kept: dict[str, TargetPlan] = {}
    for attempt in range(tries):
        found = pool.proposed()
        if found is None:
            break
        node = assigned(place, found)
        chosen, kept = {}, {}
        for names in pool.groups():
            key = tuple(sorted((*of, n) for of, n in found.copies.items() if of[0] in names))
            if (names, key) not in pool.results:
                if progress is not None:
                    progress(_listed(names, key), attempt / tries)
                about = {"names": names, "node": node}
                point = Point({"tasks": names}, pool.tried, {**about, **settings})
                (computed,) = in_threads([point], 1, settings["stop"])
                pool.results[names, key] = computed.result
                for name, trial in computed.result[0].items():
                    pool.trials[name].append(trial)
            trials, targets = pool.results[names, key]
            chosen |= trials
            kept |= targets
        failed = [
            name
            for name, trial in chosen.items()
            if not trial.holds and not (best_effort and found.unserved_per_s[name] > 0)
        ]
        if not failed:
            break
        for name in failed:
            pool.factor[name] *= _MORE
    if found is None:
        raise ValueError(next(iter(pool.infeasible.values())))
    prices = {one.key: pool.price_of(one) for one in pool.options}
    tasks = {}
    for name in pool.left:
        if not chosen[name].holds and not best_effort:
            count = len(pool.trials[name])
            pool.infeasible[name] = (
                f"tasks.{name}: no instances were found that keep what it promises, after {count} "
                f"simulation{'' if count == 1 else 's'}; more --tries may find some"
            )
            continue
        placed = found.of(name)
        tasks[name] = TaskPlan(
            task=name,
            rate_per_s=rates_per_s[name],
            latency_s=pool.latency_of(name),
            accuracy_target=deployment.tasks[name].accuracy_target,
            energy_budget=deployment.tasks[name].energy_budget,
            instances={variant: sum(on.values()) for variant, on in placed.items()},
            price=sum(prices[key] * count for key, count in found.copies.items() if key[0] == name),
            simulated=chosen[name],
            trials=tuple(pool.trials[name]),
            cheapest=False,
            bound="devices",
            placed=placed,
        )
    if not tasks:
        raise ValueError(next(iter(pool.infeasible.values())))
    return Plan(place.name, tasks, pool.infeasible, kept)


def _listed(names: Sequence[str], key: tuple[Any, ...]) -> str:
    """Say in words which copies are tried."""
    parts = []
    for name in names:
        counts: dict[str, int] = {}
        for task, variant, _, count in key:
            if task == name:
                counts[variant] = counts.get(variant, 0) + count
        listed = ", ".join(f"{count} {variant}" for variant, count in counts.items())
        parts.append(f"{name}: {listed}")
    return "; ".join(parts)


def _check_stated(
    deployment: Deployment,
    place: Node,
    names: Mapping[str, float],
    latency_s: float | None,
) -> None:
    """Refuse a file that lacks what a plan on devices needs."""
    limited = place.budget_bytes is not None or any(
        device.memory_bytes is not None for device in place.devices.values()
    )
    for name in names:
        task = deployment.tasks[name]
        if latency_s is None and task.deadline_s is None:
            raise ValueError(
                f"tasks.{name}: has no deadline to plan for; "
                "give the greatest mean response time with --latency, such as --latency 300ms"
            )
        kinds = {device.hardware for device in place.devices.values()}
        if not any(one.runs_on(kind) for one in task.variants.values() for kind in kinds):
            raise ValueError(
                f"tasks.{name}: no variant has a service time on hardware "
                f"{', '.join(sorted(kinds))}"
            )
        for one in task.variants.values():
            if limited and one.size_bytes is None:
                raise ValueError(
                    f"tasks.{name}.variants.{one.name}: needs `size`, as node {place.name} has a "
                    "budget, or devices with a memory"
                )
            if np.isnan(one.accuracy):
                raise ValueError(
                    f"tasks.{name}.variants.{one.name}: needs `accuracy`, as what answers most "
                    "accurately gets the devices"
                )
