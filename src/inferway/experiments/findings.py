"""Everything that is to be said of a deployment before it runs: its check, and its bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from inferway.deployment import Deployment
from inferway.deployment import check as check_file
from inferway.deployment.policies import row_of
from inferway.deployment.runtimes import lacking_providers
from inferway.deployment.warnings import Caution, check_classes, check_remotes
from inferway.deployment.workloads import PhasedArrivals
from inferway.dispatch import deployed
from inferway.dispatch.bounds import Bound, Escalation, EscalationBound, UnreachableError, solve
from inferway.dispatch.escalation_bounds import full_load, greatest_rate, solve_escalation
from inferway.dispatch.joint import JointTargetError, written
from inferway.dispatch.joint_bounds import JointBound
from inferway.experiments.curves import Axis, Curve, Drawing, Panel, panels
from inferway.experiments.text import Frame, Laid, Shown, frame, percent, seconds, table, text
from inferway.scheduling import Conditions, controller_of
from inferway.scheduling.store import policies_at
from inferway.site.fleet import Fleet, fleet_of
from inferway.workload import phases_of
from inferway.workload.arrivals import mean_rate


@dataclass(frozen=True)
class CheckResult(Shown):
    """Warnings in the order of the file; a sequence of them.

    Attributes
    ----------
    warnings
        What may not have been meant.
    refused
        What keeps a task from being served: a policy that does not compile, a target that no
        instance reaches.
    unserved
        A sentence for each thing that only the twin can run.
    unsimulated
        A sentence for each thing that the twin leaves out.
    overheads
        A sentence for each node that says no `overhead`: what stands for it, and where from.
    size
        Of a network: how many nodes, links, request types and pairs; None without one.
    notes
        On how a network was read.
    deployment
        What was looked at.
    """

    warnings: tuple[Caution, ...]
    refused: tuple[Caution, ...] = ()
    unserved: tuple[str, ...] = ()
    size: dict[str, int] | None = None
    notes: Sequence[str] = ()
    deployment: Deployment | None = field(default=None, repr=False, compare=False)
    unsimulated: tuple[str, ...] = ()
    overheads: tuple[str, ...] = ()

    @property
    def _all(self) -> tuple[Caution, ...]:
        return (*self.refused, *self.warnings)

    def __iter__(self) -> Iterator[Caution]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: int) -> Caution:
        return self._all[place]

    def to_frame(self) -> Frame:
        """One row per finding."""
        columns = ["kind", "line", "field", "message"]
        return frame(([getattr(one, column) for column in columns] for one in self), columns)

    def plot(self) -> Drawing:
        """Draw each task's load, of the greatest that keeps its promises, and count the findings.

        Tasks without a workload, or whose fleet is not known, as those of a network, have no bar.
        """
        from inferway.experiments.figure import Bars, bars

        loads = {} if self.deployment is None else _loads(self.deployment)
        counts = {kind: float(count) for kind, count in Counter(one.kind for one in self).items()}
        if self.unserved:
            counts["for the twin alone"] = len(self.unserved)
        shown = [
            Bars(title, up, list(of), {"": list(of.values())}, top=room * max(1.0, *of.values()))
            for title, up, of, room in (
                ("load", "of the greatest rate", loads, 1.05),
                ("findings", "how many", counts or {"none": 0.0}, 1.0),
            )
            if of
        ]
        return bars(shown)

    def __str__(self) -> str:
        lines = [f"line {one.line}: {one}" if one.line else str(one) for one in self]
        notes = *self.unserved, *self.unsimulated, *self.overheads
        return "\n".join([*lines, *notes]) or "nothing found"


def _loads(deployment: Deployment) -> dict[str, float]:
    """Return what arrives of each task over the greatest rate that keeps what it promises."""
    loads = {}
    for name, workload in deployment.workload.items():
        task = deployment.tasks[name]
        policy, promised = (
            deployment.policy_of(task).policy,
            (task.accuracy_target, task.energy_budget),
        )
        try:
            fleet = fleet_of(deployment, name)
            greatest, full = greatest_rate(policy, fleet, *promised), full_load(fleet, *promised)
        except ValueError:
            continue
        loads[name] = mean_rate(workload.arrivals, full) / greatest
    return loads


def cautions(deployment: Deployment) -> list[Caution]:
    """List the warnings for which no network has to be built."""
    found = [*check_file(deployment), *check_remotes(deployment), *check_classes(deployment)]
    if deployment.workload:
        found += deployed.unreachable_rates(deployment)
        found += deployed.unreachable_targets(deployment)
    return found


def check(deployment: Deployment) -> CheckResult:
    """Say what may not have been meant in a deployment, and what of it cannot be served.

    Parameters
    ----------
    deployment
        From `inferway.load`.

    Returns
    -------
    CheckResult
        The same as ``inferway check FILE`` prints. Policies are compiled on the way.

    Raises
    ------
    DeploymentError
        Where a network cannot be built.
    """
    found, built = cautions(deployment), None
    if deployment.network is None:
        refused, unserved = tuple(_refused(deployment)), deployment.unserved()
    else:
        from inferway.network.layout import findings_of

        refused, unserved = (), deployment.unserved_at_node()
        if (built := findings_of(deployment)) is not None:
            found += built.cautions
    return CheckResult(
        tuple(sorted(found, key=lambda one: one.line)),
        refused,
        tuple(unserved),
        None if built is None else built.size,
        () if built is None else tuple(built.notes),
        deployment,
        tuple(deployment.unsimulated()),
        tuple(deployment.overheads()),
    )


def _refused(deployment: Deployment) -> Iterator[Caution]:
    """Look at what models run on, and make every task's dispatcher, as a server does."""
    if deployment.network is None:
        for one in lacking_providers(deployment):
            yield Caution("no-provider", one.field, one.line, one.sentence)
    joint: set[str] = set()  # Targets that have been named: they are of several tasks
    fleets: dict[str, Fleet] = {}
    for name, task in deployment.tasks.items():
        running = {key for node in deployment.nodes.values() for key in node.instances}
        own = [one for one in task.variants.values() if (name, one.name) in running]
        if len(deployment.nodes) != 1 or not own or not all(one.service for one in own):
            continue  # what is not measured yet is not known either
        try:
            fleets[name] = deployed.dispatcher_of(deployment, name, measure=False).fleet
        except JointTargetError as error:
            place, _, sentence = str(error).partition(": ")
            if place not in joint:
                joint.add(place)
                line = deployment.line_of(place)
                yield Caution("target-out-of-reach", place, line, sentence)
        except ValueError as error:
            unreachable = isinstance(error, UnreachableError)
            kind = "target-out-of-reach" if unreachable else "policy"
            place = f"tasks.{name}.{'accuracy_target' if unreachable else 'dispatch'}"
            yield Caution(kind, place, deployment.line_of(place), str(error))
    for sentence in dict.fromkeys(_unfit_policies(deployment, fleets)):
        place = "scheduling.checkpoint"
        yield Caution("checkpoint-unfit", place, deployment.line_of(place), sentence)


def _unfit_policies(deployment: Deployment, fleets: Mapping[str, Fleet]) -> Iterator[str]:
    """Read the trained policies that a file names: whether they can be read, and are for its tasks.

    Where a task's fleet is not known yet, they are read alone. What a policy of the user's own
    means by `checkpoint` is its business.
    """
    spec = deployment.scheduling
    if spec is None or not row_of("scheduling", spec.policy).together:
        return
    checkpoint: Path | None = spec.options.get("checkpoint")
    if checkpoint is None or not checkpoint.exists():  # of which a warning tells
        return
    alone = [(name,) for name in deployment.tasks if deployment.scheduling_of(name) is not None]
    together = deployment.scheduled_together
    for names in [together] if together else alone:
        try:
            conditions = _conditions(deployment, [fleets[name] for name in names])
        except KeyError:
            conditions = None
        try:
            if conditions is None:
                policies_at(checkpoint)
            else:
                controller_of(spec, conditions, deployment.folder)
        except ValueError as error:
            yield str(error)


def _conditions(deployment: Deployment, fleets: Sequence[Fleet]) -> list[Conditions] | None:
    """Conditions that a scheduler of these fleets is made for, with the workloads' phases.

    None where it goes by the phases of a workload that the file does not have.
    """
    spec, found = deployment.scheduling, []
    for fleet in fleets:
        task, node = deployment.tasks[fleet.task], deployment.nodes[fleet.node]
        own = Conditions(
            fleet,
            task.deadline_s,
            batches=deployed.batches_of(task, node, fleet),
            changing=deployment.assigns,
        )
        if fleet.task in deployment.workload:
            arrivals = deployment.workload[fleet.task].arrivals
            # What a load of 1 means tells on the phases' rates alone.
            phases = phases_of(arrivals, float(fleet.rate @ fleet.count))
            own = replace(own, phases=phases, periodic=isinstance(arrivals, PhasedArrivals))
        elif spec is not None and row_of("scheduling", spec.policy).sighted:
            return None
        found.append(own)
    return found


class BoundResult(dict[str, Bound], Shown):
    """The bound of each task, by its name.

    `together` is the bound of tasks that targets over several, or devices, join; None without any.

    Parameters
    ----------
    deployment, node
        Whose.
    escalate
        Whether policies are bounded, too, that ask a second variant.
    """

    def __init__(
        self, deployment: Deployment, node: str | None = None, *, escalate: bool = False
    ) -> None:
        super().__init__(deployed.bound(deployment, node=node, escalate=escalate))
        self._fleets = {name: fleet_of(deployment, name, node) for name in self}
        self.together = deployed.joint_bound(deployment, node=node, escalate=escalate)

    def to_frame(self) -> Frame:
        """One row per task; a column for the share of each variant, and of each pair asked."""
        columns = ("max_rate_per_s", "rate_per_s", "least_response_time_s", "price_s")
        return frame(
            {"task": name, "accuracy_target": one.target}
            | {column: getattr(one, column) for column in columns}
            | {f"shares.{variant}": part for variant, part in (one.shares or {}).items()}
            | ({} if one.escalate is None else _columns(one.escalate))
            for name, one in self.items()
        )

    def plot(self, measured: Mapping[str, tuple[float, Mapping[str, float]]] = {}) -> Drawing:
        """Draw the least response time at every rate that keeps the target.

        Parameters
        ----------
        measured
            By task what stands beside the bound: a rate, and response times by name, s.
        """
        shown = []
        for name, one in self.items():
            blind = "no policy is quicker"
            twice = None if one.escalate is None else one.escalate.max_rate_per_s
            if twice is not None:
                blind = "no policy is quicker that asks once"
            curves = [
                self._curve(label, name, most, of, dash)
                for label, most, of, dash in (
                    (blind, one.max_rate_per_s, solve, "-"),
                    ("none that asks twice", twice, solve_escalation, "--"),
                )
                if most
            ]
            if one.rate_per_s is not None and one.least_response_time_s is not None:
                at = ([one.rate_per_s], [one.least_response_time_s])
                curves.append(Curve("the workload", *at, color=0))
            rate_per_s, beside = measured.get(name, (0.0, {}))
            curves += [
                Curve(label, [rate_per_s], [time_s], color=color)
                for color, (label, time_s) in enumerate(beside.items(), 1)
                if time_s > 0.0
            ]
            scale: Axis = "log" if beside else "linear"
            words = f"task {name}", "arrival rate, 1/s", "response time, s"
            shown.append(Panel(*words, curves, scale_up=scale))
        return panels(shown, columns=2)

    def _curve(
        self, label: str, task: str, greatest: float, of: Callable[..., Any], dash: str
    ) -> Curve:
        one = self[task]
        rates = greatest * np.linspace(1e-3, 1.0, 60)
        # The last is a rounding away from a rate that no mix carries.
        rates[-1] *= 1 - 1e-9
        times_s = [
            of(self._fleets[task], one.target, rate, one.energy_budget).response_time_s
            for rate in rates.tolist()
        ]
        return Curve(label, rates.tolist(), times_s, dash=dash)

    def _repr_html_(self) -> str:
        return str(self.to_frame().T.to_html(header=False))

    def __str__(self) -> str:
        parts = [text(*tables(name, one)) for name, one in self.items()]
        if self.together is not None:
            parts.append(text(*joint_tables(self.together)))
        return "\n\n".join(parts)


def bound(
    deployment: Deployment, *, node: str | None = None, escalate: bool = False
) -> BoundResult:
    """Bound the rate and the response time of every task of a deployment.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node whose fleet is meant; may be left out where the file has one.
    escalate
        Bound those policies, too, that ask a second variant where the first one's confidence says
        that it pays: each bound then has `escalate`.

    Returns
    -------
    BoundResult
        By the task's name. No policy that chooses before it sees an answer does better.

    Raises
    ------
    ValueError
        Where a task has no instance on the node, or its target is out of reach.
    """
    return BoundResult(deployment, node, escalate=escalate)


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
    if one.max_rate_per_s == 0.0:
        beside = "" if budget is None else f" within {budget:g} J per request"
        too_high = (
            f"No mix of the variants keeps the accuracy target {one.target or 0.0:g}{beside} "
            "without asking a second variant; `--escalate` bounds those that do."
        )
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
            caption=too_high if one.feasible is False or one.max_rate_per_s == 0.0 else None,
        ),
        table(
            *("Routing tuples", ["variants", "shares", "mean service time"], tuples),
            caption=negative if shuffles else None,
        ),
        *([] if one.escalate is None else _asking_twice(one.escalate)),
    ]


def joint_tables(one: JointBound) -> list[Laid]:
    """The numbers of several tasks together."""
    found = [one.blind, *([] if one.escalate is None else [one.escalate])]
    rows = [
        ["greatest, times all rates", *(f"{best.max_factor:.6g}" for best in found)],
        ["least response time", *(seconds(best.least_response_time_s) for best in found)],
    ]
    for name, mean in one.targets.items():
        prices = [None if best.prices is None else best.prices[name] for best in found]
        unit = "s" if mean.energy is None else "s/J"
        rows.append(
            [
                f"price of {name}, {written(mean)}",
                *("-" if price is None else f"{price:.4g} {unit}" for price in prices),
            ]
        )
    for task, rate in one.rates_per_s.items():
        rows.append([f"rate of {task}", f"{rate:.6g}/s", *[""] * (len(found) - 1)])
        for variant in (one.blind.shares or found[-1].shares or {}).get(task, {}):
            shares = [None if best.shares is None else best.shares[task][variant] for best in found]
            rows.append(
                [
                    f"share of {task}/{variant}",
                    *("-" if part is None else percent(part, 2) for part in shares),
                ]
            )
        if one.escalate is not None:
            again = None if one.escalate.again is None else one.escalate.again[task]
            asked = "-" if again is None else percent(again, 2)
            rows.append([f"{task} asked again", "", asked])
    columns = ["", "bound", *(["where a second variant may be asked"] if len(found) > 1 else [])]
    return [table("Tasks together", columns, rows, caption=_why_not(one))]


def _why_not(one: JointBound) -> str | None:
    """Say why the rates of several tasks cannot be carried; None where they can."""
    last = one.blind if one.escalate is None else one.escalate
    if one.blind.unreachable:
        names = [f"{name} ({written(one.targets[name])})" for name in one.blind.unreachable]
        kept = " and ".join(names) + (" together" if len(names) > 1 else "")
        if last.unreachable or one.escalate is None:
            return f"No mix of the variants keeps {kept}, at any multiple of these rates."
        return f"No mix of the variants keeps {kept} without asking a second variant."
    if last.least_response_time_s is None:
        return "The rates are above the greatest that keep all targets."
    return None


def _asking_twice(one: EscalationBound) -> list[Laid]:
    """The numbers of policies that may ask a second variant, and who asks whom."""
    asked = (one.first or {}).items()
    numbers = [
        ["greatest rate", f"{one.max_rate_per_s:.6g}/s"],
        ["least response time", seconds(one.least_response_time_s)],
        ["best accuracy, at low load", f"{one.best_accuracy:.6g}"],
        *([f"asked first: {of}", percent(part, 2)] for of, part in asked),
    ]
    unsure = (
        "No variant has calibrated confidence, so asking twice gains nothing; "
        "`inferway profile FILE --data TEST --write` measures it."
    )
    pairs = [
        [first, then, percent(sum(one.share for one in of), 2), _confidence(of)]
        for (first, then), of in _pairs(one).items()
    ]
    columns = ["first", "then", "of all requests", "where the first one's confidence is"]
    return [
        table(
            *("Where a second variant may be asked", ["", "bound"], numbers),
            caption=None if one.sure else unsure,
        ),
        *([table("Asked once more", columns, pairs)] if pairs else []),
    ]


def _pairs(one: EscalationBound) -> dict[tuple[str, str], list[Escalation]]:
    pairs: dict[tuple[str, str], list[Escalation]] = {}
    for each in one.then or ():
        pairs.setdefault((each.first, each.then), []).append(each)
    return pairs


def _confidence(of: list[Escalation]) -> str:
    """Say in which ranges of confidence a pair's escalations are; bins side by side are one."""
    ranges: list[list[Escalation]] = []
    for one in of:
        if ranges and ranges[-1][-1].bin == one.bin - 1:
            ranges[-1].append(one)
        else:
            ranges.append([one])
    return ", ".join(_range(one[0].above, one[-1].below) for one in ranges)


def _range(above: float, below: float) -> str:
    if math.isinf(above):
        return "any" if math.isinf(below) else f"below {below:.4g}"
    return f"{above:.4g} or more" if math.isinf(below) else f"{above:.4g} to {below:.4g}"


def _columns(one: EscalationBound) -> dict[str, Any]:
    """The columns of the bound where a second variant may be asked."""
    numbers = ("max_rate_per_s", "least_response_time_s", "price_s", "best_accuracy")
    return (
        {f"escalate.{name}": getattr(one, name) for name in numbers}
        | {f"escalate.first.{variant}": part for variant, part in (one.first or {}).items()}
        | {
            f"escalate.then.{first}.{then}": sum(each.share for each in of)
            for (first, then), of in _pairs(one).items()
        }
    )
