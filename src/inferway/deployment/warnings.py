"""Advice on a deployment that is valid: what may not be meant, and what runs in the twin alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from inferway.deployment.deployment import Deployment
from inferway.deployment.nodes import Node
from inferway.deployment.policies import DISPATCH, ESCALATE
from inferway.deployment.profile import profile_path, read_profile
from inferway.deployment.resolution import unmeasured
from inferway.deployment.runtimes import in_turn, runtime_of, signature_said
from inferway.deployment.tasks import ANY_HARDWARE, Batch, Task, Variant
from inferway.deployment.units import TIME
from inferway.deployment.workloads import PhasedArrivals, TraceArrivals, Workload
from inferway.machine import cores
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
        ``target-at-best``, ``target-out-of-reach``, ``target-above-the-bound``,
        ``target-for-free``, ``energy-unkept``,
        ``deadline-too-short``, ``unmeasured``, ``no-accuracy``, ``left-alone``,
        ``undescribed-node``, ``no-tiers``, ``unused-dispatch``, ``no-checkpoint``,
        ``profile-stale`` or ``profile-elsewhere``. ``above-the-bound`` and
        ``target-above-the-bound`` come from `inferway.dispatch.deployed`, ``too-large`` from
        `inferway.network.layout`, ``unreachable`` and ``remote-unfit`` from asking remote servers,
        ``python-unfit`` from making classes of the user's own.
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
        return f"{self.field}: {self.message}" if self.field else self.message


def check(deployment: Deployment) -> list[Caution]:
    """Advise on a deployment, in the order of its file."""
    return _cautions(deployment, _of_file(deployment))


def check_classes(deployment: Deployment) -> list[Caution]:
    """Say which classes of the user's own cannot be used: each is made once, and run on zeros.

    Takes as long as their processes take to start.
    """
    return _cautions(deployment, map(_of_classes, deployment.tasks.values()))


def check_remotes(deployment: Deployment) -> list[Caution]:
    """Say which remote variants' servers do not answer, or have another signature.

    Asks each server once; takes a few seconds where one is silent.
    """
    return _cautions(deployment, map(_of_remotes, deployment.tasks.values()))


Found = tuple[str, str, str]  # kind, field, message
_MOST_COMPARED = 1_000


def _cautions(deployment: Deployment, found: Iterable[Iterable[Found]]) -> list[Caution]:
    cautions = [
        Caution(kind, field, deployment.line_of(field), message)
        for kind, field, message in chain.from_iterable(found)
    ]
    return sorted(cautions, key=lambda caution: caution.line)


def _of_file(deployment: Deployment) -> Iterator[Iterable[Found]]:
    yield (("left-alone", "", remark) for remark in deployment.source.remarks)
    for task in deployment.tasks.values():
        if task.catalog is None and len(task.variants) <= _MOST_COMPARED:
            yield _dominated(deployment, task)  # a catalog was asked for just these
        yield _of_task(deployment, task)
    yield _of_profile(deployment)
    yield from (_of_node(deployment, node) for node in deployment.nodes.values())
    yield from (_of_workload(deployment, *one) for one in deployment.workload.items())
    yield _of_network(deployment)


def _of_profile(deployment: Deployment) -> Iterator[Found]:
    """Say what of the file's profile is not used."""
    known = read_profile(deployment.path) if deployment.source.profiled else None
    if known is None:
        return
    for name, measured in known.tasks.items():
        task = deployment.tasks.get(name)
        for key, own in measured.variants.items():
            variant = None if task is None else task.variants.get(key)
            if variant is None:
                continue  # one that the file had before
            field, file = f"tasks.{name}.variants.{key}", profile_path(deployment.path).name
            if own.model != variant.identity:
                sentence = f"{file} was measured on another model of it, so it is not used"
                yield "profile-stale", field, f"{sentence}; measure anew with `inferway profile`"
                continue
            if own.confidence not in (None, variant.confidence_bins):
                sentence = f"its confidence is another one than {file} was measured with"
                yield "profile-stale", field, f"{sentence}; measure anew with `inferway profile`"
            said = "file" in variant.timed_by.values()
            if own.machines and not own.times_here and not said:
                machines = (known.machines.get(one, {}) for one in own.machines)
                where = ", ".join(str(one.get("processor", "another one")) for one in machines)
                sentence = f"the times in {file} are of another machine ({where}), so not used"
                yield "profile-elsewhere", field, f"{sentence}; `inferway profile` adds this one's"


def _of_task(deployment: Deployment, task: Task) -> Iterator[Found]:
    field, target = f"tasks.{task.name}", task.accuracy_target
    if blank := [variant.name for variant in task.variants.values() if not variant.graded]:
        sentence = unmeasured(blank, deployment.path)
        yield "no-accuracy", field, f"{sentence}; without, the task is served without a target"
    for variant in task.variants.values():
        if not variant.service:
            sentence = "gives no service time, so it is measured when the server starts"
            yield "unmeasured", f"{field}.variants.{variant.name}", sentence
        for hardware, batch in variant.batches.items():
            yield from _slow_sizes(f"{field}.variants.{variant.name}", variant, hardware, batch)
        yield from _unbatched(deployment, f"{field}.variants.{variant.name}", task, variant)
    running = deployment.running(task)
    if target is not None and running:
        best = max(running, key=lambda variant: variant.accuracy)
        twice = deployment.policy_of(task).policy == ESCALATE and task.sure
        # Asking twice may reach more than the best variant; the bound says how much.
        reach = math.inf if twice else best.accuracy
        least, kind = min(variant.accuracy for variant in running), ""
        if target > reach:
            kind, sentence = (
                "target-out-of-reach",
                (
                    f"{target:g} is above every variant that has an instance; the best is "
                    f"{best.name} with {best.accuracy:g}"
                ),
            )
        elif target == reach and least < target:
            kind = "target-at-best"
            sentence = f"only {best.name} reaches {target:g}, so every request must go there"
        elif target <= least and len(running) > 1:
            kind = "target-for-free"
            sentence = (
                f"every variant reaches {target:g}, so the fastest answers whenever it is idle"
            )
        if kind:
            yield kind, f"{field}.accuracy_target", sentence
    policy = deployment.policy_of(task).policy
    if task.energy_budget is not None and policy not in _WITHIN_ENERGY and ".py:" not in policy:
        sentence = f"{policy} does not look at energy; {', '.join(_WITHIN_ENERGY)} do"
        yield "energy-unkept", f"{field}.energy_budget", sentence
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


def _unbatched(deployment: Deployment, field: str, task: Task, variant: Variant) -> Iterator[Found]:
    """Name the hardware where copies of a variant with batches run, or may, and form none."""
    if not variant.batches:
        return
    for kind in deployment.hardware_for(task, variant):
        if variant.batch_on(kind) is not None:
            continue
        yield (
            "no-batches-there",
            f"{field}.batch",
            f"gives no batches on {kind}, so that copies there serve one request at a time; it has "
            f"some on {', '.join(variant.batches)}",
        )


def _slow_sizes(field: str, variant: Variant, hardware: str, batch: Batch) -> Iterator[Found]:
    """Name the sizes of batches that serve no more per second than a smaller one."""
    run_s = dict(zip(batch.sizes, batch.service_s, strict=True))
    run_s = {size: service_s for size, service_s in run_s.items() if size <= batch.max}
    if 1 not in run_s and variant.service:
        own = variant.service.get(hardware)
        run_s[1] = (
            min(service.mean_s for service in variant.service.values())
            if own is None
            else own.mean_s
        )
    best = 0
    for size in sorted(run_s):
        if best and size / run_s[size] <= best / run_s[best] * (1.0 + 1e-9):
            yield (
                "slow-batch-size",
                f"{field}.batch" + ("" if hardware == ANY_HARDWARE else f".{hardware}"),
                f"size {size} serves {size / run_s[size]:.4g}/s, no more than size {best} with "
                f"{best / run_s[best]:.4g}/s, so no batch of {size} is formed",
            )
        else:
            best = size


def _dominated(deployment: Deployment, task: Task) -> Iterator[Found]:
    variants = task.variants.values()
    hardware = {kind for node in deployment.nodes.values() for kind in node.kinds}
    hardware = hardware or {name for variant in variants for name in variant.service}
    for one in variants:
        better = {
            name: next((other for other in variants if _beats(other, one, name)), None)
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
    running = [
        (one, count)
        for (name, variant), count in node.instances.items()
        if (one := tasks[name if name in tasks else name.rpartition("-")[0]].variants[variant])
        and (one.model or one.python)
    ]
    instances, wanted = (
        sum(count for _, count in running),
        sum(count * one.threads for one, count in running),
    )
    if node.devices or wanted <= cores():
        return
    place = f"nodes.{node.name}.instances"
    if deployment.network is None:
        shared = f"{{{node.hardware}: {{cores: {cores()}}}}}"
        yield (
            "oversubscribed",
            place,
            f"{instances} instances share {cores()} cores of this machine, and `serve` lets their "
            f"runs wait for one of these; `devices: {shared}` has `simulate` do so, too",
        )
    elif node.hardware == "cpu":
        yield (
            "oversubscribed",
            place,
            f"{instances} CPU instances share {cores()} cores of this machine, so service times "
            "will be longer than their profiles when all are busy",
        )


def _of_workload(deployment: Deployment, name: str, workload: Workload) -> Iterator[Found]:
    task, arrivals = deployment.tasks.get(name), workload.arrivals
    if task is None or isinstance(arrivals, TraceArrivals):
        return
    running = [
        (variant, node, kind, count)
        for node in deployment.nodes.values()
        for owner, key in node.instances
        if owner == name and (variant := task.variants.get(key))
        for kind, count in node.copies_by_hardware(owner, key)
        if variant.runs_on(kind)
    ]
    capacity = sum(count * of.service_on(kind).rate for of, _, kind, count in running)
    most = sum(count * _rate(variant, node, kind) for variant, node, kind, count in running)
    field = f"workload.{name}.arrivals"
    parts = (
        {f"{field}.phases[{index}]": phase for index, phase in enumerate(arrivals.phases)}
        if isinstance(arrivals, PhasedArrivals)
        else {field: arrivals}
    )
    for field, part in parts.items() if capacity else ():
        rate = part.mean_rate_per_s(capacity)
        if rate >= most:
            sentence = f"{rate:.6g}/s arrive, but all instances together serve {most:.6g}/s"
            yield "overloaded", field, sentence


def _rate(variant: Variant, node: Node, hardware: str) -> float:
    """Requests per second of an instance that is never idle, in the batches that pay most."""
    alone, batch = variant.service_on(hardware).rate, variant.batch_on(hardware)
    if batch is None or node.queue == "central":
        return alone
    offered = zip(batch.sizes, batch.service_s, strict=True)
    return max(alone, *(size / time_s for size, time_s in offered if size <= batch.max))


def _of_network(deployment: Deployment) -> Iterator[Found]:
    network, scheduling = deployment.network, deployment.scheduling
    links = network.links if network is not None and network.others is None else None
    for index, link in enumerate(links or ()):
        for end in link.between:
            if end not in deployment.nodes:
                sentence = f"{end} is not described under `nodes`{_meant(end, deployment.nodes)}"
                yield "undescribed-node", f"network.links[{index}]", sentence
    for name, workload in deployment.workload.items():
        tier = workload.entries.tier if workload.entries is not None else None
        if tier is not None and (network is None or network.tree is None):
            sentence = f"there is no tier {tier}, as the network is not a tree"
            yield "no-tiers", f"workload.{name}.entries.tier", sentence
    if scheduling is None:
        return
    if deployment.dispatch is not None:
        sentence = f"is not used: scheduling {scheduling.policy} dispatches"
        yield "unused-dispatch", "dispatch", sentence
    checkpoint = scheduling.options.get("checkpoint")  # of a policy of the user's own, anything
    if isinstance(checkpoint, Path) and not checkpoint.exists():
        yield "no-checkpoint", "scheduling.checkpoint", f"no such file yet: {checkpoint}"


def _meant(name: str, known: Iterable[str]) -> str:
    """Ask whether another name was meant, where one is alike in more than its numbers."""
    letters = partial(re.sub, r"\d+", "0")
    near = closest(name, [one for one in known if letters(one) != letters(name)])
    return f"; did you mean {near}?" if near else ""


_WAIT_S = 3.0  # at most for one remote server


def _of_remotes(task: Task) -> Iterator[Found]:
    remotes = {name: v.remote for name, v in task.variants.items() if v.remote is not None}
    if not remotes:
        return
    from inferway.runtime.server import Fault, RemoteError

    signature = signature_said(task)
    for name, remote in remotes.items():
        field = f"tasks.{task.name}.variants.{name}.remote"
        try:
            with closing(remote.runtime(signature=signature, timeout_s=_WAIT_S)) as runtime:
                runtime.learn()
                signature = runtime.signature
        except (RemoteError, ValueError) as error:
            unfit = isinstance(error, RemoteError) and error.fault is Fault.UNFIT
            yield "remote-unfit" if unfit else "unreachable", field, str(error)


def _of_classes(task: Task) -> Iterator[Found]:
    own = [name for name, one in task.variants.items() if one.python is not None]
    if not own:
        return
    from inferway.runtime import RemoteError, UnsaidSignatureError

    signature = signature_said(task)
    unfit: dict[str, str] = {}

    def make(name: str) -> None:
        nonlocal signature
        try:
            signature = _tried(task.variants[name], signature)
        except UnsaidSignatureError:
            raise
        except (RemoteError, ValueError) as error:
            unfit[name] = str(error)

    try:
        in_turn(own, make)
    except UnsaidSignatureError as error:
        yield "python-unfit", f"tasks.{task.name}.variants", str(error)
    for name, reason in unfit.items():
        yield "python-unfit", f"tasks.{task.name}.variants.{name}.python", reason


def _tried(variant: Variant, signature: Signature | None) -> Signature:
    """Run a class of the user's own on zeros, where what fits is known; its signature."""
    from inferway.runtime import AwaitedRuntime, zeros

    with closing(runtime_of(variant, signature)) as runtime:
        assert not isinstance(runtime, AwaitedRuntime)
        said = runtime.signature
        if signature is not None and said != signature:
            raise ValueError(
                f"its signature {said} differs from {signature} of the task's other variants"
            )
        if all(-1 not in tensor.shape[1:] for tensor in said.inputs):
            runtime.run(zeros(said.inputs))
    return said
