"""Fills in what a file leaves to models, catalogs and defaults, and checks how its parts agree.

What is wrong is noted in the `Source`, so that all of it is said at once.
"""

from __future__ import annotations

import math
from collections import Counter
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
    budget = task.energy_budget
    if len(variants) == count and (
        budget is None or _check_energies(place, budget, variants.values(), source)
    ):
        check_target(
            (*place, "accuracy_target"), task.accuracy_target, variants.values(), source, budget
        )
    idempotent = task.idempotent
    if "idempotent" not in source.data["tasks"][name]:
        idempotent = all(variant.remote is None for variant in variants.values())
    return replace(task, name=name, variants=variants, idempotent=idempotent)


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
    missing = {
        "accuracy": math.isnan(accuracy),
        "size": elsewhere and size is None,
        "service": not stated.service and (elsewhere or (model is None and stated.remote is None)),
    }
    if any(missing.values()):
        source.note(place, _needs([key for key, lacks in missing.items() if lacks], elsewhere))
        return None
    return replace(
        stated, name=name, model=model, accuracy=accuracy, size_bytes=size, service=service
    )


def _needs(missing: list[str], elsewhere: bool) -> str:
    *others, last = (f"`{key}`" for key in missing)
    needs = f"{', '.join(others)} and {last}" if others else last
    them = "them" if others else "it"
    if elsewhere:
        return f"needs {needs}, as the model is on another host and nothing else says {them}"
    return f"needs {needs}, as no zoo's profile gives {them}"


def _published(place: Place, written: PublishedCatalog, source: Source) -> dict[str, Variant]:
    """Look variants up in a catalog; none where something is wrong."""
    from inferway.catalog import CatalogError
    from inferway.catalog.published import chosen, table

    try:
        if written.timm is not None:
            from inferway.catalog import timm

            entries = tuple(timm.read(written.timm, written.hardware))
        else:
            entries = table(written.name or "")
        entries = chosen(entries, written.variants)
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


def check_target(
    place: Place,
    target: float | None,
    variants: Collection[Variant],
    source: Source,
    energy_budget: float | None = None,
) -> None:
    """Refuse a target that no mix of the variants reaches, within the energy budget if any."""
    best = max(variants, key=lambda variant: variant.accuracy, default=None)
    if target is None or best is None:
        return
    if target > best.accuracy:
        source.note(
            place,
            f"{target:g} is above the best variant, {best.name}, whose accuracy is "
            f"{best.accuracy:g}",
        )
    elif energy_budget is not None:
        reached = _best_accuracy(variants, energy_budget)
        if reached is not None and target > reached * (1 + 1e-12):
            source.note(
                place,
                f"no mix of the variants reaches {target:g} within the energy budget, "
                f"{ENERGY.write(energy_budget)} per request; the best reaches {reached:.4g}",
            )


def _check_energies(
    place: Place, budget: float, variants: Collection[Variant], source: Source
) -> bool:
    """Whether every variant says its energy, and one at least fits the budget."""
    silent = [variant.name for variant in variants if variant.energy is None]
    for name in silent:
        source.note(
            (*place, "variants", name), "needs `energy`, as the task has an `energy_budget`"
        )
    least = min(variants, key=lambda variant: variant.energy or 0.0, default=None)
    if silent or least is None or least.energy is None:
        return False
    if least.energy > budget:
        source.note(
            (*place, "energy_budget"),
            f"{ENERGY.write(budget)} is less than any variant takes; the least is {least.name} "
            f"with {ENERGY.write(least.energy)}",
        )
    return least.energy <= budget


def _best_accuracy(variants: Collection[Variant], energy_budget: float) -> float | None:
    """Greatest mean accuracy within a mean energy: of one variant, or a mix of two.

    None where a variant does not say its energy, or none fits.
    """
    known = [(v.energy, v.accuracy) for v in variants if v.energy is not None]
    if len(known) < len(variants):
        return None
    mixes = (
        accuracy
        + (better - accuracy)
        * (1.0 if more <= energy_budget else (energy_budget - energy) / (more - energy))
        for energy, accuracy in known
        if energy <= energy_budget
        for more, better in known
    )
    return max(mixes, default=None)


def _check_signatures(place: Place, variants: Mapping[str, Variant], source: Source) -> None:
    """Check model files, and that all variants of a task look alike from outside.

    A zoo's models are tested where they are built, so a task of those alone opens no file here.
    """
    models = {
        name: v.model
        for name, v in variants.items()
        if v.model is not None and v.model.path is not None
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
        variants = {
            name: task.get("variants") if isinstance(task, dict) else None
            for name, task in (tasks.items() if isinstance(tasks, dict) else ())
        }
        return cls(resolved, {k: v if isinstance(v, dict) else None for k, v in variants.items()})

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
        name, _, index = task.rpartition("-")
        one = self.resolved.get(name)
        counted = one is not None and one.count > 1 and index.isdecimal() and int(index) < one.count
        return name if counted else None

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

    Parameters
    ----------
    fill
        Whether a node that names no instances runs one of each variant.
    """
    place: Place = ("nodes", name)
    instances = _named((*place, "instances"), node.instances, tasks, source)
    pinned = _named((*place, "pinned"), node.pinned, tasks, source)
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
    failures = _named((*place, "failures"), node.failures, tasks, source)
    outages = tuple(
        replace(
            outage,
            instances=_named(
                (*place, "outages", index, "instances"), outage.instances, tasks, source
            ),
        )
        for index, outage in enumerate(node.outages)
    )
    resolved = replace(
        node, name=name, instances=instances, pinned=pinned, failures=failures, outages=outages
    )
    if fill:  # where placement decides, what will run here is not known
        _check_failing(place, resolved, source)
    _check_budget(place, resolved, tasks, source)
    return resolved


def _may_run(variant: Variant, hardware: str) -> bool:
    """Whether the service time is known, or the model is there to be measured."""
    return not variant.service or variant.runs_on(hardware)


def _named(place: Place, stated: Mapping[Pair, T], tasks: Tasks, source: Source) -> dict[Pair, T]:
    """Keep what names a variant; note the rest."""
    kept = {}
    for key, value in stated.items():
        problem = tasks.problem_with(key)
        if problem is None:
            kept[key] = value
        else:
            source.note((*place, written(key)), problem)
    return kept


def _check_failing(place: Place, node: Node, source: Source) -> None:
    """Refuse failures of instances that do not run here."""
    for key in node.failures:
        if key not in node.instances:
            source.note((*place, "failures", written(key)), "no instance of it runs here")
    for index, outage in enumerate(node.outages):
        for key, count in outage.instances.items():
            running = node.instances.get(key, 0)
            if count > running:
                source.note(
                    (*place, "outages", index, "instances", written(key)),
                    f"{count} cannot fail: the node runs {running or 'none'} of it",
                )


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
                continue
            total += count * variant.size_bytes
        if total > node.budget_bytes:
            source.note(
                (*place, "budget"),
                f"{SIZE.write(node.budget_bytes)} cannot hold what {what} here, which takes "
                f"{SIZE.write(total)}",
            )
            return


def check_counted_names(tasks: Mapping[str, Task], source: Source) -> None:
    """Refuse a task called digits-1 beside a `digits` with a count above 1."""
    names = Counter(list(tasks))
    for other in tasks:
        stem, _, index = other.rpartition("-")
        task = tasks.get(stem)
        if task is not None and task.count > 1 and index.isdecimal() and int(index) < task.count:
            names[other] += 1
    for name, count in names.items():
        if count > 1:
            stem = name.rpartition("-")[0]
            source.note(("tasks", name), f"{name} is also one of the tasks that {stem} counts")


def check_workload(
    name: str, workload: Workload, tasks: Tasks, network: Network | None, source: Source
) -> None:
    """Refuse requests for no task, at no tier, and targets and traces that cannot be."""
    base = tasks.base(name)
    if base is None:
        source.note(("workload", name), f"there is no task {name}; {nearest(name, tasks.written)}")
        return
    task = tasks.resolved.get(base)
    arrivals = workload.arrivals
    if isinstance(arrivals, PhasedArrivals) and task is not None:
        for index, phase in enumerate(arrivals.phases):
            place = ("workload", name, "arrivals", "phases", index, "accuracy_target")
            check_target(
                place, phase.accuracy_target, task.variants.values(), source, task.energy_budget
            )
    if isinstance(arrivals, TraceArrivals):
        try:
            for _ in time_pieces(arrivals.file):
                pass  # read to find what is wrong, not kept: a trace may be long
        except ColumnError as error:
            source.note(("workload", name, "arrivals", "file"), str(error))
    tree = network.tree if network else None
    if workload.entries is not None and workload.entries.tier is not None and tree is not None:
        tier, tiers = workload.entries.tier, [tier.tier for tier in tree]
        if tier not in tiers:
            source.note(
                ("workload", name, "entries", "tier"),
                f"there is no tier {tier}; {nearest(tier, tiers)}",
            )


def check_probabilities(place: Place, spec: PolicySpec, task: Task, source: Source) -> None:
    """Refuse routing to variants that there are not."""
    if spec.policy == "alias":
        for name in spec.options["probabilities"] or ():
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
