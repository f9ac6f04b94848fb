"""Fills in what a file leaves to models, catalogs and defaults, and checks how its parts agree.

What is wrong is noted in the `Source`, so that all of it is said at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from inferway.deployment.column import ColumnError, time_pieces
from inferway.deployment.errors import Place, nearest
from inferway.deployment.models import ModelError, located, signature_of
from inferway.deployment.nodes import Network, Node, written
from inferway.deployment.policies import PolicySpec
from inferway.deployment.source import Source
from inferway.deployment.tasks import (
    ANY_HARDWARE,
    PublishedCatalog,
    ServiceTime,
    Task,
    Variant,
)
from inferway.deployment.units import ENERGY, SIZE, TIME
from inferway.deployment.workloads import PhasedArrivals, TraceArrivals, Workload

if TYPE_CHECKING:
    from inferway.protocol import Signature

PROFILE_HARDWARE = "cpu"  # what the zoo's profiles are measured on

T = TypeVar("T")
Pair = tuple[str, str]


def resolve_task(name: str, task: Task, source: Source) -> Task:
    """Fill in a task; variants that are wrong are left out."""
    place: Place = ("tasks", name)
    count = len(task.variants)
    variants = {
        key: variant
        for key, stated in task.variants.items()
        if (variant := _variant((*place, "variants", key), key, stated, source)) is not None
    }
    _check_signatures(place, variants, source)
    if task.catalog is not None:
        variants = _published((*place, "catalog"), task.catalog, source)
        count = len(variants)
    resolved = replace(task, name=name, variants=variants)
    if len(variants) == count and _energies_fit(place, resolved, source):
        check_target((*place, "accuracy_target"), task.accuracy_target, resolved, source)
    if "idempotent" in source.data["tasks"][name]:
        return resolved
    return replace(resolved, idempotent=all(one.remote is None for one in variants.values()))


def _variant(place: Place, name: str, stated: Variant, source: Source) -> Variant | None:
    model, profile = stated.model, None
    if model is not None and stated.remote is not None:
        source.note((*place, "remote"), "a variant has a `model` here or one at a server, not both")
        return None
    if model is not None:
        try:
            model, profile = located(model, source.folder, stated.digest)
        except ModelError as error:
            source.note((*place, "model"), str(error))
            return None
    elif stated.digest is not None:
        source.note((*place, "digest"), "a digest belongs to a `model`, and none is given")
    accuracy, size, service = stated.accuracy, stated.size_bytes, stated.service
    if profile is not None:
        accuracy = profile.accuracy if math.isnan(accuracy) else accuracy
        size = profile.size_bytes if size is None else size
        if ANY_HARDWARE not in service:
            measured = ServiceTime("deterministic", profile.mean_s)
            service = {PROFILE_HARDWARE: measured, **service}
    elif model is not None and model.path is not None and size is None:
        size = model.path.stat().st_size
    elsewhere = model is not None and model.path is None
    missing = [
        ("accuracy", math.isnan(accuracy)),
        ("size", elsewhere and size is None),
        ("service", not stated.service and (elsewhere or not stated.runnable)),
    ]
    needed = [f"`{key}`" for key, lacks in missing if lacks]
    if needed:
        needs = " and ".join(filter(None, (", ".join(needed[:-1]), needed[-1])))
        them = "them" if len(needed) > 1 else "it"
        source.note(
            place,
            f"needs {needs}, as the model is on another host and nothing else says {them}"
            if elsewhere
            else f"needs {needs}, as no zoo's profile gives {them}",
        )
        return None
    return replace(
        stated, name=name, model=model, accuracy=accuracy, size_bytes=size, service=service
    )


def _published(place: Place, catalog: PublishedCatalog, source: Source) -> dict[str, Variant]:
    """Look variants up in a catalog; none where something is wrong."""
    from inferway.catalog import CatalogError, timm
    from inferway.catalog.published import chosen, table

    try:
        entries = (
            table(catalog.name or "")
            if catalog.timm is None
            else tuple(timm.read(catalog.timm, catalog.hardware))
        )
        entries = chosen(entries, catalog.variants)
    except CatalogError as error:
        source.note(place, str(error))
        return {}
    return {
        entry.name: Variant(
            entry.name,
            accuracy=entry.accuracy,
            size_bytes=entry.size_bytes,
            service={k: ServiceTime("deterministic", mean) for k, mean in entry.mean_s.items()},
        )
        for entry in entries
    }


def check_target(place: Place, target: float | None, task: Task, source: Source) -> None:
    """Refuse a target that no mix of the variants reaches, within the energy budget if any."""
    best = max(task.variants.values(), key=lambda variant: variant.accuracy, default=None)
    if target is None or best is None:
        return
    if target > best.accuracy:
        source.note(
            place,
            f"{target:g} is above the best variant, {best.name}, whose accuracy is "
            f"{best.accuracy:g}",
        )
        return
    # Of one variant, or of a mix of two; None where one does not say its energy, or none fits.
    budget = task.energy_budget
    known = [(v.energy, v.accuracy) for v in task.variants.values() if v.energy is not None]
    if budget is None or len(known) < len(task.variants):
        return
    mixes = (
        accuracy
        + (better - accuracy) * (1.0 if more <= budget else (budget - energy) / (more - energy))
        for energy, accuracy in known
        if energy <= budget
        for more, better in known
    )
    reached = max(mixes, default=None)
    if reached is not None and target > reached * (1 + 1e-12):
        source.note(
            place,
            f"no mix of the variants reaches {target:g} within the energy budget, "
            f"{ENERGY.write(budget)} per request; the best reaches {reached:.4g}",
        )


def _energies_fit(place: Place, task: Task, source: Source) -> bool:
    """Tell whether there is no energy budget, or each variant says its energy, and one fits."""
    budget = task.energy_budget
    if budget is None:
        return True
    energies = {name: variant.energy for name, variant in task.variants.items()}
    for name in (name for name, energy in energies.items() if energy is None):
        source.note(
            (*place, "variants", name), "needs `energy`, as the task has an `energy_budget`"
        )
    known = {name: energy for name, energy in energies.items() if energy is not None}
    if not known or len(known) < len(energies):
        return False
    least = min(known, key=known.__getitem__)
    if known[least] > budget:
        source.note(
            (*place, "energy_budget"),
            f"{ENERGY.write(budget)} is less than any variant takes; the least is {least} "
            f"with {ENERGY.write(known[least])}",
        )
    return known[least] <= budget


def _check_signatures(place: Place, variants: Mapping[str, Variant], source: Source) -> None:
    """Check model files, and that all variants of a task look alike from outside.

    A zoo's models are tested where they are built, so a task of those alone opens no file here.
    """
    models = {
        name: one.model
        for name, one in variants.items()
        if one.model is not None and one.model.path is not None
    }
    if all(model.uri.startswith("zoo://") for model in models.values()):
        return
    signatures: dict[str, Signature] = {}
    for name, model in models.items():
        try:
            signatures[name] = signature_of(model)
        except ModelError as error:
            source.note((*place, "variants", name, "model"), str(error))
    first = next(iter(signatures), "")
    for name, signature in signatures.items():
        if signature != signatures[first]:
            source.note(
                (*place, "variants", name, "model"),
                f"all variants of a task share one signature, but {name} is {signature} "
                f"and {first} is {signatures[first]}",
            )


@dataclass(frozen=True)
class Tasks:
    """The tasks that nodes and workloads may name.

    Attributes
    ----------
    resolved
        Those that are in order.
    written
        All as written, with the names of their variants (None where a catalog gives them): a
        reference to one that is wrong elsewhere is not a second mistake.
    """

    resolved: Mapping[str, Task]
    written: Mapping[str, Collection[str] | None]

    @classmethod
    def of(cls, resolved: Mapping[str, Task], source: Source) -> Tasks:
        """Take what the file has under `tasks` beside what came of it."""
        tasks = source.data.get("tasks")
        stated = tasks if isinstance(tasks, dict) else {}
        variants = {k: v.get("variants") for k, v in stated.items() if isinstance(v, dict)}
        names = {k: v if isinstance(v := variants.get(k), dict) else None for k in stated}
        return cls(resolved, names)

    def problem_with(self, key: Pair) -> str | None:
        """Say why `key` names no variant; None where it names one."""
        task, variant = key
        if not variant:
            return f"{task} is not of the form TASK/VARIANT"
        name = self.base(task)
        if name is None:
            return f"there is no task {task}; {nearest(task, self.written)}"
        variants = self.written[name]
        if variants is not None and variant not in variants:
            return f"task {task} has no variant {variant}; {nearest(variant, sorted(variants))}"
        return None

    def base(self, task: str) -> str | None:
        """Name the entry of the file that `task` comes from: digits for digits-3 of a count."""
        if task in self.written:
            return task
        name = task.rpartition("-")[0]
        return name if _counts(self.resolved, task) else None

    def variant(self, key: Pair) -> Variant | None:
        """Return a variant if it is known and in order."""
        task = self.resolved.get(self.base(key[0]) or "")
        return task.variants.get(key[1]) if task else None

    def one_of_each(self) -> dict[Pair, int]:
        """Count one instance of each variant, or as many as a remote one's server takes."""
        return {
            (task.name, name): (variant.remote.concurrency if variant.remote else None) or 1
            for task in self.resolved.values()
            for name, variant in task.variants.items()
        }


def _counts(tasks: Mapping[str, Task], name: str) -> bool:
    """Tell whether a name is one of those that a task counts, as digits counts digits-1."""
    stem, _, index = name.rpartition("-")
    task = tasks.get(stem)
    return task is not None and task.count > 1 and index.isdecimal() and int(index) < task.count


def default_node(tasks: Tasks, source: Source) -> Node:
    """Return the node of a file that names none: one instance of each variant, on ``cpu``."""
    instances = tasks.one_of_each()
    for (task, name), variant in [(key, tasks.variant(key)) for key in instances]:
        if variant is not None and variant.runs_on("cpu"):
            continue
        # What a catalog lists runs where it was measured; that is seldom all of it, or on this
        # node.
        if tasks.resolved[task].catalog is not None:
            del instances[task, name]
        elif variant is not None and variant.service:
            source.note(
                ("tasks", task, "variants", name, "service"),
                "no service time for hardware cpu, which the default node has; give one or "
                "describe the node under `nodes`",
            )
    return Node("here", instances=instances)


def resolve_node(name: str, node: Node, tasks: Tasks, source: Source, *, fill: bool) -> Node:
    """Check what a node says of variants, and whether its instances fit.

    With `fill` a node that names no instances runs one of each variant; where placement decides
    instead, what will run here is not known.
    """
    place: Place = ("nodes", name)

    def named(stated: Mapping[Pair, T], *steps: str | int) -> dict[Pair, T]:
        """Keep what names a variant; note the rest."""
        problems = {key: tasks.problem_with(key) for key in stated}
        for key in stated:
            if (problem := problems[key]) is not None:
                source.note((*place, *steps, written(key)), problem)
        return {key: value for key, value in stated.items() if problems[key] is None}

    instances = named(node.instances, "instances")
    pinned = named(node.pinned, "pinned")
    if fill and "instances" not in source.data["nodes"][name]:
        instances = {
            key: count
            for key, count in tasks.one_of_each().items()
            if not (variant := tasks.variant(key)) or _may_run(variant, node.hardware)
        } | pinned
    for field, copies in (("instances", instances), ("pinned", pinned)):
        for key, count in copies.items():
            for sentence in _wrong_copies(key, count, node.hardware, tasks):
                source.note((*place, field, written(key)), sentence)
    failures = named(node.failures, "failures")
    outages = tuple(
        replace(outage, instances=named(outage.instances, "outages", index, "instances"))
        for index, outage in enumerate(node.outages)
    )
    if fill:
        for key in failures:
            if key not in instances:
                source.note((*place, "failures", written(key)), "no instance of it runs here")
        for index, outage in enumerate(outages):
            for key, count in outage.instances.items():
                running = instances.get(key, 0)
                if count > running:
                    source.note(
                        (*place, "outages", index, "instances", written(key)),
                        f"{count} cannot fail: the node runs {running or 'none'} of it",
                    )
    resolved = replace(
        node, name=name, instances=instances, pinned=pinned, failures=failures, outages=outages
    )
    _check_budget(place, resolved, tasks, source)
    return resolved


def _may_run(variant: Variant, hardware: str) -> bool:
    """Tell whether the service time is known, or the model is there to be measured."""
    return not variant.service or variant.runs_on(hardware)


def _wrong_copies(key: Pair, count: int, hardware: str, tasks: Tasks) -> Iterator[str]:
    """Say why a node cannot run so many copies of a variant."""
    variant = tasks.variant(key)
    if variant is None:
        return
    most = tasks.resolved[tasks.base(key[0]) or ""].max_instances
    if most is not None and count > most:
        yield f"{count} instances are more than max_instances, {most}"
    if variant.remote is not None and count > (variant.remote.concurrency or count):
        yield (
            f"{count} instances would send so many requests at once, and `concurrency` of "
            f"{variant.name} is {variant.remote.concurrency}"
        )
    if not _may_run(variant, hardware):
        yield (
            f"{variant.name} has no service time on hardware {hardware}; it has one on "
            f"{', '.join(variant.service)}"
        )


def _check_budget(place: Place, node: Node, tasks: Tasks, source: Source) -> None:
    """Refuse a budget that cannot hold what is pinned, or what runs (pinned copies included)."""
    if node.budget_bytes is None:
        return
    running = {
        key: max(node.instances.get(key, 0), node.pinned.get(key, 0))
        for key in {**node.instances, **node.pinned}
    }
    for what, copies in (("is pinned", node.pinned), ("runs", running)):
        total = 0
        for key, count in copies.items():
            variant = tasks.variant(key)
            if variant is None or (variant.remote is not None and variant.size_bytes is None):
                continue  # what a server holds elsewhere takes nothing here
            if variant.size_bytes is None:
                source.note(
                    ("tasks", tasks.base(key[0]) or "", "variants", key[1]),
                    f"needs `size`, as node {place[1]} has a budget and runs it",
                )
            total += count * (variant.size_bytes or 0)
        if total > node.budget_bytes:
            source.note(
                (*place, "budget"),
                f"{SIZE.write(node.budget_bytes)} cannot hold what {what} here, which takes "
                f"{SIZE.write(total)}",
            )
            return


def check_counted_names(tasks: Mapping[str, Task], source: Source) -> None:
    """Refuse a task called digits-1 beside a `digits` with a count above 1."""
    for name in tasks:
        if _counts(tasks, name):
            stem = name.rpartition("-")[0]
            source.note(("tasks", name), f"{name} is also one of the tasks that {stem} counts")


def check_workload(
    name: str, workload: Workload, tasks: Tasks, network: Network | None, source: Source
) -> None:
    """Refuse requests for no task, at no tier, and targets and traces that cannot be."""
    base, place = tasks.base(name), ("workload", name)
    if base is None:
        source.note(place, f"there is no task {name}; {nearest(name, tasks.written)}")
        return
    task, arrivals = tasks.resolved.get(base), workload.arrivals
    if isinstance(arrivals, PhasedArrivals) and task is not None:
        for index, phase in enumerate(arrivals.phases):
            field = (*place, "arrivals", "phases", index, "accuracy_target")
            check_target(field, phase.accuracy_target, task, source)
    if isinstance(arrivals, TraceArrivals):
        try:
            for _ in time_pieces(arrivals.file):
                pass  # read to find what is wrong, not kept: a trace may be long
        except ColumnError as error:
            source.note((*place, "arrivals", "file"), str(error))
    tier = None if workload.entries is None else workload.entries.tier
    if tier is not None and network is not None and network.tree is not None:
        tiers = [one.tier for one in network.tree]
        if tier not in tiers:
            sentence = f"there is no tier {tier}; {nearest(tier, tiers)}"
            source.note((*place, "entries", "tier"), sentence)


def check_probabilities(place: Place, spec: PolicySpec, task: Task, source: Source) -> None:
    """Refuse routing to variants that there are not."""
    routed = spec.options["probabilities"] or () if spec.policy == "alias" else ()
    for name in routed:
        if name not in task.variants:
            source.note(
                (*place, "probabilities"),
                f"task {task.name} has no variant {name}; {nearest(name, task.variants)}",
            )


def check_deadline(task: Task, nodes: Mapping[str, Node], scheduled: bool, source: Source) -> None:
    """Refuse a deadline that no service time meets, unless a server may measure better ones."""
    running = [
        variant
        for name, variant in task.variants.items()
        if any((task.name, name) in node.instances for node in nodes.values())
    ]
    times = [time.mean_s for variant in running for time in variant.service.values()]
    if task.deadline_s is None or not times or task.deadline_s >= min(times):
        return
    if scheduled or not any(variant.runnable for variant in running):
        source.note(
            ("tasks", task.name, "deadline"),
            f"{TIME.write(task.deadline_s)} is shorter than every service time, so no request "
            f"could be answered in time; the shortest mean is {TIME.write(min(times))}",
        )
