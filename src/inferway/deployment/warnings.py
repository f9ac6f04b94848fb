"""Advice on a deployment that is valid: what may not be meant, and what runs in the twin alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferway.deployment.deployment import Deployment
from inferway.deployment.models import ModelError, signature_of
from inferway.deployment.nodes import Node
from inferway.deployment.policies import DISPATCH
from inferway.deployment.tasks import Task, Variant
from inferway.deployment.units import TIME
from inferway.deployment.workloads import PhasedArrivals, TraceArrivals
from inferway.spelling import closest

if TYPE_CHECKING:
    from inferway.protocol import Signature

_WITHIN_ENERGY = sorted(name for name, row in DISPATCH.items() if row.thrifty)


@dataclass(frozen=True, slots=True)
class Caution:
    """One piece of advice.

    Attributes
    ----------
    kind
        ``dominated``, ``oversubscribed``, ``overloaded``, ``above-the-bound``,
        ``target-at-best``, ``target-out-of-reach``, ``target-for-free``, ``energy-unkept``,
        ``deadline-too-short``, ``unmeasured``, ``undescribed-node``, ``no-tiers``,
        ``unused-dispatch`` or ``no-checkpoint``. ``above-the-bound`` comes from
        `inferway.dispatch.deployed`, ``too-large`` from `inferway.network.layout`,
        ``unreachable`` and ``remote-unfit`` from asking remote servers.
    field, line
        Where in the file; line 0 where no line can be named.
    message
        A sentence.
    """

    kind: str
    field: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def cores() -> int:
    """Count the processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check(deployment: Deployment) -> list[Caution]:
    """Advise on a deployment, in the order of its file."""
    return _cautions(
        deployment,
        [
            *(one for task in deployment.tasks.values() for one in _of_task(deployment, task)),
            *(one for node in deployment.nodes.values() for one in _of_node(deployment, node)),
            *(one for name in deployment.workload for one in _of_workload(deployment, name)),
            *_of_network(deployment),
        ],
    )


def check_remotes(deployment: Deployment) -> list[Caution]:
    """Say which remote variants' servers do not answer, or have another signature.

    Asks each server once; takes a few seconds where one is silent.
    """
    found = [one for task in deployment.tasks.values() for one in _of_remotes(task)]
    return _cautions(deployment, found)


Found = tuple[str, str, str]  # kind, field, message
_MOST_COMPARED = 1_000


def _cautions(deployment: Deployment, found: Iterable[Found]) -> list[Caution]:
    cautions = [
        Caution(kind, field, deployment.line_of(field), message) for kind, field, message in found
    ]
    return sorted(cautions, key=lambda caution: caution.line)


def _of_task(deployment: Deployment, task: Task) -> Iterator[Found]:
    field = f"tasks.{task.name}"
    if task.catalog is None:  # a catalog was asked for just these
        yield from _dominated(deployment, task)
    for variant in task.variants.values():
        if not variant.service:
            yield (
                "unmeasured",
                f"{field}.variants.{variant.name}",
                "gives no service time, so it is measured when the server starts",
            )
    running = deployment.running(task)
    target = task.accuracy_target
    if target is not None and running:
        best = max(running, key=lambda variant: variant.accuracy)
        worst = min(running, key=lambda variant: variant.accuracy)
        if target > best.accuracy:
            yield (
                "target-out-of-reach",
                f"{field}.accuracy_target",
                f"{target:g} is above every variant that has an instance; the best is "
                f"{best.name} with {best.accuracy:g}",
            )
        elif target == best.accuracy and worst.accuracy < target:
            yield (
                "target-at-best",
                f"{field}.accuracy_target",
                f"only {best.name} reaches {target:g}, so every request must go there",
            )
        elif target <= worst.accuracy and len(running) > 1:
            yield (
                "target-for-free",
                f"{field}.accuracy_target",
                f"every variant reaches {target:g}, so the fastest answers whenever it is idle",
            )
    policy = deployment.policy_of(task).policy
    if task.energy_budget is not None and policy not in _WITHIN_ENERGY and ".py:" not in policy:
        yield (
            "energy-unkept",
            f"{field}.energy_budget",
            f"{policy} does not look at energy; {', '.join(_WITHIN_ENERGY)} do",
        )
    times = [
        s.mean_s for variant in running or task.variants.values() for s in variant.service.values()
    ]
    if task.deadline_s is not None and times and task.deadline_s < min(times):
        yield (
            "deadline-too-short",
            f"{field}.deadline",
            f"{TIME.write(task.deadline_s)} is shorter than every service time; the shortest mean "
            f"is {TIME.write(min(times))}",
        )


def _dominated(deployment: Deployment, task: Task) -> Iterator[Found]:
    """Name each variant that another beats, on every hardware where it could run.

    Each is compared with each, so that nothing is said of very many.
    """
    if len(task.variants) > _MOST_COMPARED:
        return
    hardware = {node.hardware for node in deployment.nodes.values()}
    if not hardware:
        hardware = {name for variant in task.variants.values() for name in variant.service}
    for one in task.variants.values():
        better = {
            name: next(
                (other for other in task.variants.values() if _beats(other, one, name)), None
            )
            for name in sorted(hardware)
            if one.runs_on(name)
        }
        name, other = next(iter(better.items()), ("", None))
        if other is not None and all(better.values()):
            yield (
                "dominated",
                f"tasks.{task.name}.variants.{one.name}",
                f"dominated by {other.name}, which is no less accurate ({other.accuracy:g} against "
                f"{one.accuracy:g}) and no slower ({TIME.write(other.service_on(name).mean_s)} "
                f"against {TIME.write(one.service_on(name).mean_s)} on {name})",
            )


def _beats(other: Variant, one: Variant, hardware: str) -> bool:
    if other is one or not other.runs_on(hardware):
        return False
    gain = one.service_on(hardware).mean_s - other.service_on(hardware).mean_s
    equal = (gain, other.accuracy) == (0, one.accuracy)
    return gain >= 0 and other.accuracy >= one.accuracy and not equal


def _of_node(deployment: Deployment, node: Node) -> Iterator[Found]:
    # A variant without a model runs in the twin alone, which has as many cores as it is told.
    # detection-3 is one of the tasks that `detection` counts.
    tasks = deployment.tasks
    instances = sum(
        count
        for (name, variant), count in node.instances.items()
        if tasks[name if name in tasks else name.rpartition("-")[0]].variants[variant].model
    )
    if node.hardware == "cpu" and instances > cores():
        yield (
            "oversubscribed",
            f"nodes.{node.name}.instances",
            f"{instances} CPU instances share {cores()} cores of this machine, so service times "
            "will be longer than their profiles when all are busy",
        )


def _of_workload(deployment: Deployment, name: str) -> Iterator[Found]:
    arrivals = deployment.workload[name].arrivals
    task = deployment.tasks.get(name)
    if task is None or isinstance(arrivals, TraceArrivals):
        return
    capacity, most = 0.0, 0.0
    for node in deployment.nodes.values():
        for (owner, key), count in node.instances.items():
            variant = task.variants.get(key) if owner == name else None
            if variant is not None and variant.runs_on(node.hardware):
                capacity += count * variant.service_on(node.hardware).rate
                most += count * _rate(variant, node)
    if not capacity:
        return
    field = f"workload.{name}.arrivals"
    parts = (
        {f"{field}.phases[{index}]": phase for index, phase in enumerate(arrivals.phases)}
        if isinstance(arrivals, PhasedArrivals)
        else {field: arrivals}
    )
    for field, part in parts.items():
        rate = part.mean_rate_per_s(capacity)
        if rate >= most:
            yield (
                "overloaded",
                field,
                f"{rate:.6g}/s arrive, but all instances together serve {most:.6g}/s",
            )


def _rate(variant: Variant, node: Node) -> float:
    """Requests per second of an instance that is never idle, in the batches that pay most."""
    alone, batch = variant.service_on(node.hardware).rate, variant.batch
    if batch is None or node.queue == "central":
        return alone
    offered = zip(batch.sizes, batch.service_s, strict=True)
    return max(alone, *(size / time_s for size, time_s in offered if size <= batch.max))


def _of_network(deployment: Deployment) -> Iterator[Found]:
    network = deployment.network
    if network is not None and network.links is not None and network.others is None:
        for index, link in enumerate(network.links):
            for end in link.between:
                if end not in deployment.nodes:
                    yield (
                        "undescribed-node",
                        f"network.links[{index}]",
                        f"{end} is not described under `nodes`{_meant(end, deployment.nodes)}",
                    )
    for name, workload in deployment.workload.items():
        tier = workload.entries.tier if workload.entries is not None else None
        if tier is not None and (network is None or network.tree is None):
            yield (
                "no-tiers",
                f"workload.{name}.entries.tier",
                f"there is no tier {tier}, as the network is not a tree",
            )
    if deployment.scheduling is not None:
        if deployment.dispatch is not None:
            name = deployment.scheduling.policy
            yield ("unused-dispatch", "dispatch", f"is not used: scheduling {name} dispatches")
        checkpoint = deployment.scheduling.options.get("checkpoint")
        if checkpoint is not None and not checkpoint.exists():
            yield ("no-checkpoint", "scheduling.checkpoint", f"no such file yet: {checkpoint}")


def _meant(name: str, known: Iterable[str]) -> str:
    """Ask whether another name was meant, where one is alike in more than its numbers."""

    def letters(one: str) -> str:
        return re.sub(r"\d+", "0", one)

    others = [one for one in known if letters(one) != letters(name)]
    near = closest(name, others)
    return f"; did you mean {near}?" if near else ""


_WAIT_S = 3.0
"""Longest wait for one remote server."""


def _of_remotes(task: Task) -> Iterator[Found]:
    from inferway.runtime.server import Fault, RemoteError

    remotes = {name: v.remote for name, v in task.variants.items() if v.remote is not None}
    signature = _local_signature(task) if remotes else None
    for name, remote in remotes.items():
        field = f"tasks.{task.name}.variants.{name}.remote"
        try:
            with closing(remote.runtime(signature=signature, timeout_s=_WAIT_S)) as runtime:
                runtime.learn()
                signature = runtime.signature
        except RemoteError as error:
            kind = "remote-unfit" if error.fault is Fault.UNFIT else "unreachable"
            yield kind, field, str(error)
        except ValueError as error:
            yield "unreachable", field, str(error)


def _local_signature(task: Task) -> Signature | None:
    for variant in task.variants.values():
        if variant.model is not None:
            try:
                return signature_of(variant.model)
            except ModelError:  # of a zoo, whose models are not looked at when a file is read
                continue
    return None
