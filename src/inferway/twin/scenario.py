"""Scenario of a simulation: one task at one node, its fleet, its requests and its policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from inferway.deployment import Batch, Drift, PolicySpec, ServiceTime
from inferway.deployment.policies import scheduled_dispatch, scheduled_together, spec_of
from inferway.deployment.workloads import Arrivals, PhasedArrivals
from inferway.dispatch.batching import foresee, row_times
from inferway.dispatch.contract import takes
from inferway.dispatch.drift_alarm import unwatched
from inferway.dispatch.escalation_bounds import full_load, greatest_rate
from inferway.dispatch.joint import told_targets
from inferway.scheduling import Conditions, Controller, controller_of
from inferway.site.fleet import Fleet, fleet_of
from inferway.site.view import Site, empty_site
from inferway.twin.kernel.escalation import AnswerSample
from inferway.twin.service_walk import ServiceWalk
from inferway.workload import mean_rate, phases_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.deployment.nodes import Node


_RATES = ("rate", "window")  # Options that say which arrival rate the policy is told


@dataclass(frozen=True)
class Failures:
    """Random failures of the servers of a class: exponential times of these means, s."""

    every_s: float
    for_s: float


@dataclass(frozen=True)
class SetOutage:
    """The first `count` servers of a class are away from `at_s` on, for `for_s` seconds."""

    variant: str
    count: int
    at_s: float
    for_s: float


@dataclass(frozen=True)
class Scenario:
    """One task at one node, as the twin runs it; `dataclasses.replace` makes another.

    Raises
    ------
    ValueError
        Where the service times do not fit the fleet, or the rate or a limit is out of range.
    """

    fleet: Fleet
    service: tuple[ServiceTime, ...]  # By class, in the fleet's order
    # Where it gives a ``load``, that is relative to `full_load` of the fleet at the target.
    arrivals: Arrivals
    policy: str = "tad-op"
    # The policy's own, and `rate` (what it is told, 1/s) or `window` (over how many seconds it
    # is estimated, again and again).
    options: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    energy_budget: float | None = None
    # Those over several tasks, of which this is one, as `inferway.dispatch.joint` has them.
    targets: tuple[Mapping[str, Any], ...] = ()
    # Other tasks whose runs may hold the devices of this one's, so that it is simulated with them.
    beside: tuple[str, ...] = ()
    deadline_s: float | None = None
    late: Literal["drop", "serve"] = "drop"
    queue: Literal["per-server", "central"] = "per-server"
    batches: tuple[Batch | None, ...] = ()  # By class; empty where no class serves batches
    failures: Mapping[str, Failures] = field(default_factory=dict)  # By variant
    outages: tuple[SetOutage, ...] = ()
    # What sets the routing of `policy`, slot by slot; see `scheduled`.
    scheduling: PolicySpec | None = None
    # The controller of all tasks that are scheduled together, where this is one of them.
    steered_by: Controller | None = None
    folder: Path | None = None  # Where relative policy files start
    # By variant and size of batch, median and 95th percentile of the service times that its live
    # servers measured; 1 is one of the sizes. The site predicts by these, as the live one does, and
    # `service` and `batches` then say for how long a server is busy, handing over included; the
    # policy is built on the fleet as it is.
    measured_s: Mapping[str, Mapping[int, tuple[float, float]]] = field(default_factory=dict)
    balance: float = 0.0  # Accuracy balance at the start
    movable: bool = False  # Whether servers are retired and enlisted while it runs
    measured: bool = False  # Whether the promise is on what labels measure
    drift: Drift | None = None  # What becomes of a variant's true accuracy, and who is told
    # How service times drift together; the site then learns them from what it measures, as live.
    walk: ServiceWalk | None = None
    # Share of the answers that are compared with the most accurate variant's, where one drifts.
    shadow: float = 0.0
    canary: str = ""  # The variant that is tried as one where this is served; empty without one
    # Requests that are drawn from where a policy may ask a second server; if not given, the
    # confidence of each class falls into its bins by their shares.
    answers: AnswerSample | None = None

    def __post_init__(self) -> None:
        names, classes = self.fleet.variants, len(self.fleet.rate)
        count = dict(zip(names, self.fleet.count.tolist(), strict=True))
        told, window_s = self.options.get("rate"), self.window_s
        failing = [("failures", name) for name in self.failures]
        drifting = None if self.drift is None else self.drift.variant
        devices = self.fleet.devices
        wide = np.zeros(0) if devices is None else devices.taken > devices.most
        faults = [
            (
                len(self.service) != classes,
                f"{len(self.service)} service times for {classes} classes",
            ),
            *(
                (
                    name not in self.measured_s and not np.isclose(mean_s * rate, 1.0, rtol=1e-9),
                    f"{name} has a mean service time of {mean_s:g} s and a rate of {rate:g}/s, "
                    "which is not one over it",
                )
                for name, time, rate in zip(names, self.service, self.fleet.rate, strict=False)
                for mean_s in [time.mean_s]
            ),
            (
                self.batches and len(self.batches) != classes,
                f"{len(self.batches)} batch rules for {classes} classes",
            ),
            *(
                (1 not in times_s, f"{name} was measured at batches alone: give size 1 as well")
                for name, times_s in self.measured_s.items()
            ),
            (
                self.movable and devices is not None and bool(devices.exclusive.any()),
                "servers do not come and go at exclusive devices",
            ),
            (
                devices is not None and bool(wide.any()),
                "a run takes more slots than its device has",
            ),
            (
                self.deadline_s is not None and not self.deadline_s > 0,
                f"a deadline is above 0 s, not {self.deadline_s or 0:g}",
            ),
            (
                window_s is not None and not window_s > 0,
                f"a window is above 0 s, not {window_s or 0:g}",
            ),
            (
                told is not None and not float(told) > 0,
                f"the rate that a policy is told is above 0/s, not {float(told or 0):g}",
            ),
            *(
                (
                    name not in names,
                    f"{kind} of {name}, which is none of the classes {', '.join(names)}",
                )
                for kind, name in failing + [("an outage", one.variant) for one in self.outages]
            ),
            (
                drifting is not None and drifting not in self.fleet.names,
                f"a drift of {drifting}, which is none of the variants here: "
                f"{', '.join(dict.fromkeys(self.fleet.names))}",
            ),
            (
                self.drift is not None and self.drift.alarm and unwatched(),
                f"{unwatched()}; or say `alarm: false`",
            ),
            *(
                (
                    not (one.every_s > 0 and one.for_s > 0),
                    f"{name} fails every {one.every_s:g} s for {one.for_s:g} s; both are above 0 s",
                )
                for name, one in self.failures.items()
            ),
            *(
                fault
                for one in self.outages
                for fault in (
                    (
                        not 0 < one.count <= count.get(one.variant, 0),
                        f"an outage of {one.count} servers of {one.variant}, which has "
                        f"{count.get(one.variant)}",
                    ),
                    (
                        not (one.at_s >= 0 and one.for_s > 0),
                        f"an outage of {one.variant} at {one.at_s:g} s for {one.for_s:g} s; it "
                        "begins at 0 s or later and lasts for more than 0 s",
                    ),
                )
            ),
        ]
        if (wrong := next((sentence for fails, sentence in faults if fails), None)) is not None:
            raise ValueError(wrong)

    @property
    def capacity_per_s(self) -> float:
        """The rate that a load of 1 means, 1/s; see `full_load`."""
        return full_load(self.fleet, self.target, self.energy_budget)

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate, 1/s."""
        return mean_rate(self.arrivals, self.capacity_per_s)

    def site(self, target: float, places: int) -> Site:
        """The empty site: it predicts by profiles and batches' times, or by what was measured."""
        site = empty_site(self.fleet, target, places)
        site.balance[0] = self.balance
        foresee(site, self.batches)
        for variant, times_s in self.measured_s.items():
            k = self.fleet.variants.index(variant)
            servers = slice(int(self.fleet.first[k]), int(self.fleet.first[k + 1]))
            for column, of_site in enumerate((site.row_s, site.slow_s)):
                run_s = {size: times_s[size][column] for size in sorted(times_s)}
                of_site[servers] = row_times(run_s)
            site.rate[k] = 1.0 / times_s[1][0]
        site.first_s[:] = site.row_s
        return site

    def scheduled(self, policy: str, **options: Any) -> Scenario:
        """Under a scheduler of `inferway.scheduling.SCHEDULERS`, and the dispatch that it implies.

        Raises
        ------
        ValueError
            For an unknown name or option.
        """
        scheduling = spec_of("scheduling", policy, **options)
        implied = scheduled_dispatch(scheduling)
        return replace(
            self, scheduling=scheduling, policy=implied.policy, options=dict(implied.options)
        )

    @property
    def together(self) -> tuple[str, ...]:
        """Tasks that one policy schedules together, of which this is one; none for a task alone."""
        return scheduled_together(self.scheduling)

    @property
    def conditions(self) -> Conditions:
        """What a scheduler is made for."""
        return Conditions(
            self.fleet,
            self.deadline_s,
            phases=phases_of(self.arrivals, self.capacity_per_s),
            periodic=isinstance(self.arrivals, PhasedArrivals),
            batches=self.batches,
            changing=self.movable,
        )

    def controller(self) -> Controller | None:
        """The scheduler's controller, at its beginning; None where there is none.

        Raises
        ------
        ValueError
            Where the scheduler lacks what it needs, and where it schedules other tasks, too, and
            their controller is not there.
        """
        if self.scheduling is None:
            return None
        if self.steered_by is None and self.together:
            raise ValueError(
                f"scheduling.tasks: one policy schedules {' and '.join(self.together)} together, "
                f"so {self.fleet.task or 'a task'} is not simulated alone"
            )
        return self.steered_by or controller_of(self.scheduling, [self.conditions], self.folder)

    def build_options(self) -> dict[str, Any]:
        """Arguments of the policy's `build` besides fleet, target and rate."""
        own = {k: v for k, v in self.options.items() if v is not None and k not in _RATES}
        promised: dict[str, Any]
        promised = {"energy_budget": self.energy_budget, "deadline_s": self.deadline_s}
        promised["targets"] = self.targets or None
        return own | {
            name: value
            for name, value in promised.items()
            if value is not None and takes(self.policy, name, self.folder)
        }

    @property
    def told_rate_per_s(self) -> float | None:
        """The arrival rate that the policy is told at the start, 1/s."""
        told = self.options.get("rate")
        if told is not None:
            return float(told)
        if self.options.get("window") is not None:
            # As live: until the first window is over, half of what is feasible.
            return 0.5 * greatest_rate(self.policy, self.fleet, self.target, self.energy_budget)
        return self.rate_per_s

    @property
    def window_s(self) -> float | None:
        """Over how long the rate is estimated for the policy; None where it is not."""
        window = self.options.get("window")
        return None if window is None else float(window)


def ordinary(canary: str) -> str:
    """Say that the twin tries no canary."""
    return f"{canary}, which is a canary where this is served, is a variant like the others here"


def scenario_of(deployment: Deployment, task: str, node: str | None = None) -> Scenario:
    """Read the scenario of a task at a node from a deployment file.

    Raises
    ------
    ValueError
        Where no instance of the task runs there, or the file has no workload for it.
    """
    fleet = fleet_of(deployment, task, node)
    place, what = deployment.nodes[fleet.node], deployment.tasks[task]
    if unknown := deployment.unknown_loads(place, task):
        raise ValueError(unknown[0])
    if task not in deployment.workload:
        raise ValueError(f"workload.{task}: there is none, so there is nothing to simulate")
    spec = deployment.policy_of(task)
    variants = [what.variants[name] for name in fleet.names]
    hardware = [place.hardware_of(device) for device in fleet.runs_on]
    # By variant, a class for each device that copies of it run on.
    classes = {
        variant: [k for k, name in enumerate(fleet.names) if name == variant]
        for variant in what.variants
    }
    return Scenario(
        fleet=fleet,
        service=tuple(
            variant.service_on(kind) for variant, kind in zip(variants, hardware, strict=True)
        ),
        arrivals=deployment.workload[task].arrivals,
        policy=spec.policy,
        options=dict(spec.options),
        target=what.accuracy_target,
        measured=what.measured,
        drift=what.drift if what.drift is not None and what.drift.falls else None,
        shadow=0.0 if what.shadow is None else what.shadow.share,
        canary="" if what.canary is None else what.canary.variant,
        energy_budget=what.energy_budget,
        targets=tuple(told_targets(deployment, fleet.node))
        if deployment.targets_over(what)
        else (),
        beside=sharers(deployment, place).get(task, ()),
        deadline_s=what.deadline_s,
        late=place.late,
        queue=place.queue,
        batches=tuple(
            variant.batch_on(kind) for variant, kind in zip(variants, hardware, strict=True)
        ),
        failures={
            fleet.variants[k]: Failures(failure.every_s, failure.for_s)
            for (of, variant), failure in place.failures.items()
            if of == task
            for k in classes[variant]
        },
        outages=tuple(
            SetOutage(fleet.variants[k], here, outage.at_s, outage.for_s)
            for outage in place.outages
            for (of, variant), count in outage.instances.items()
            if of == task
            for k, here in _first(count, classes[variant], fleet)
        ),
        scheduling=deployment.scheduling_of(task),
        folder=deployment.folder,
    )


def _first(count: int, classes: list[int], fleet: Fleet) -> Iterator[tuple[int, int]]:
    """Take so many servers of these classes, the first ones: how many of which."""
    for k in classes:
        here = min(count, int(fleet.count[k]))
        if here > 0:
            yield k, here
        count -= here


def sharers(deployment: Deployment, place: Node) -> dict[str, tuple[str, ...]]:
    """Tasks of a node whose runs may wait for those of others, and for which, in the file's order.

    Where all instances on a device can run at once, nobody waits for another task's runs, unless it
    is exclusive.
    """
    users: dict[str, set[str]] = {}
    taken: Counter[str] = Counter()
    for (of, variant), copies in place.placed.items():
        threads = deployment.tasks[of].variants[variant].threads
        for name, count in copies.items():
            users.setdefault(name, set()).add(of)
            taken[name] += count * place.devices[name].taken(threads)
    found: dict[str, set[str]] = {}
    for name, tasks in users.items():
        device = place.devices[name]
        if len(tasks) > 1 and (device.exclusive or taken[name] > device.slots):
            for task in tasks:
                found.setdefault(task, set()).update(tasks - {task})
    order = list(deployment.tasks)
    return {task: tuple(sorted(others, key=order.index)) for task, others in found.items()}
