"""From nodes as written to nodes as used: which instances run there, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from inferway.deployment.complaints import nearest
from inferway.deployment.deployment import Failure, Node, Outage, Task, Variant
from inferway.deployment.error import Place
from inferway.deployment.nodes import WrittenNode
from inferway.deployment.quantities import SIZE
from inferway.deployment.source import Source

T = TypeVar("T")


@dataclass(frozen=True)
class Tasks:
    """The tasks that nodes may name.

    Attributes
    ----------
    resolved
        Those that are in order.
    written
        All as written, with the names of their variants (None where a catalog gives them): a
        reference to one that is wrong elsewhere is not a second mistake.
    """

    resolved: Mapping[str, Task]
    written: Mapping[str, set[str] | None]

    def find(self, key: str) -> tuple[str, str]:
        """Split ``TASK/VARIANT``.

        Raises
        ------
        ValueError
            If there is no such task or variant.
        """
        task, slash, variant = key.partition("/")
        if not slash or not task or not variant:
            raise ValueError(f"{key} is not of the form TASK/VARIANT")
        name = self.base(task)
        if name is None:
            raise ValueError(f"there is no task {task}; {nearest(task, list(self.written))}")
        variants = self.written[name]
        if variants is not None and variant not in variants:
            raise ValueError(
                f"task {task} has no variant {variant}; {nearest(variant, sorted(variants))}"
            )
        return task, variant

    def base(self, task: str) -> str | None:
        """Name the entry of the file that `task` comes from: digits for digits-3 of a count."""
        if task in self.written:
            return task
        name, _, index = task.rpartition("-")
        one = self.resolved.get(name)
        counted = one is not None and one.count > 1 and index.isdecimal() and int(index) < one.count
        return name if counted else None

    def variant(self, key: tuple[str, str]) -> Variant | None:
        """Return a variant if it is known and in order."""
        task = self.resolved.get(self.base(key[0]) or "")
        return task.variants.get(key[1]) if task else None


def default_node(tasks: Tasks, source: Source) -> Node:
    """Return the node of a file that names none: one instance of each variant, on ``cpu``."""
    node = Node("here", _one_of_each(tasks))
    # What a catalog lists runs where it was measured; that is seldom all of it, or on this node.
    for task, name in list(node.instances):
        variant = tasks.variant((task, name))
        if tasks.resolved[task].catalog is not None and not (variant and variant.runs_on("cpu")):
            del node.instances[task, name]
    for task, name in node.instances:
        variant = tasks.variant((task, name))
        if variant is not None and variant.service and not variant.runs_on(node.hardware):
            source.note(
                ("tasks", task, "variants", name, "service"),
                f"no service time for hardware {node.hardware}, which the default node has; give "
                "one or describe the node under `nodes`",
            )
    return node


def node_of(name: str, written: WrittenNode, tasks: Tasks, source: Source, *, fill: bool) -> Node:
    """Resolve a node; what is wrong is noted in `source`.

    Parameters
    ----------
    fill
        Whether a node that names no instances runs one of each variant.
    """
    place: Place = ("nodes", name)
    instances = _instances((*place, "instances"), written.instances or {}, tasks, source)
    pinned = _instances((*place, "pinned"), written.pinned, tasks, source)
    if written.instances is None and fill:
        instances = {
            key: count
            for key, count in _one_of_each(tasks).items()
            if not (variant := tasks.variant(key)) or _may_run(variant, written.hardware)
        } | pinned
    for field, copies in (("instances", instances), ("pinned", pinned)):
        for key, count in copies.items():
            _check_copies((*place, field, "/".join(key)), key, count, written, tasks, source)
    failures = {
        key: Failure(failure.every, failure.for_)
        for key, failure in _by_variant((*place, "failures"), written.failures, tasks, source)
    }
    outages = tuple(
        Outage(
            _instances((*place, "outages", index, "instances"), outage.instances, tasks, source),
            outage.at,
            outage.for_,
        )
        for index, outage in enumerate(written.outages)
    )
    if fill:  # where placement decides, what will run here is not known
        _check_failing(place, instances, failures, outages, source)
    if written.budget is not None:
        _check_budget(place, written.budget, instances, pinned, tasks, source)
    return Node(
        name=name,
        instances=instances,
        pinned=pinned,
        budget_bytes=written.budget,
        hardware=written.hardware,
        buffer=written.buffer,
        queue=written.queue,
        late=written.late,
        repository=written.repository,
        failures=failures,
        outages=outages,
        address=written.address,
        peer=written.peer,
        control=written.control,
        store=written.store,
        limits=written.limits,
    )


def _one_of_each(tasks: Tasks) -> dict[tuple[str, str], int]:
    return {
        (t.name, name): _default_copies(variant)
        for t in tasks.resolved.values()
        for name, variant in t.variants.items()
    }


def _default_copies(variant: Variant) -> int:
    """Return how many instances run where the file says none: as many as a server takes."""
    return (variant.remote.concurrency if variant.remote else None) or 1


def _may_run(variant: Variant, hardware: str) -> bool:
    """Whether the service time is known, or the model is there to be measured."""
    return not variant.service or variant.runs_on(hardware)


def _instances(
    place: Place, written: Mapping[str, int], tasks: Tasks, source: Source
) -> dict[tuple[str, str], int]:
    return dict(_by_variant(place, written, tasks, source))


def _by_variant(
    place: Place, written: Mapping[str, T], tasks: Tasks, source: Source
) -> Iterator[tuple[tuple[str, str], T]]:
    """Resolve the keys of a mapping from TASK/VARIANT; those that name nothing are noted."""
    for key, value in written.items():
        try:
            yield tasks.find(key), value
        except ValueError as error:
            source.note((*place, key), str(error))


def _check_failing(
    place: Place,
    instances: Mapping[tuple[str, str], int],
    failures: Mapping[tuple[str, str], Failure],
    outages: tuple[Outage, ...],
    source: Source,
) -> None:
    """Refuse failures of instances that do not run here."""
    for key in failures:
        if key not in instances:
            source.note((*place, "failures", "/".join(key)), "no instance of it runs here")
    for index, outage in enumerate(outages):
        for key, count in outage.instances.items():
            running = instances.get(key, 0)
            if count > running:
                source.note(
                    (*place, "outages", index, "instances", "/".join(key)),
                    f"{count} cannot fail: the node runs {running or 'none'} of it",
                )


def _check_copies(
    place: Place,
    key: tuple[str, str],
    count: int,
    written: WrittenNode,
    tasks: Tasks,
    source: Source,
) -> None:
    variant = tasks.variant(key)
    if variant is None:
        return
    task = tasks.resolved[tasks.base(key[0]) or ""]
    if task.max_instances is not None and count > task.max_instances:
        source.note(place, f"{count} instances are more than max_instances, {task.max_instances}")
    if variant.remote is not None and count > (variant.remote.concurrency or count):
        source.note(
            place,
            f"{count} instances would send so many requests at once, and `concurrency` of "
            f"{variant.name} is {variant.remote.concurrency}",
        )
    if not _may_run(variant, written.hardware):
        source.note(
            place,
            f"{variant.name} has no service time on hardware {written.hardware}; it has one on "
            f"{', '.join(variant.service)}",
        )


def _check_budget(
    place: Place,
    budget: int,
    instances: Mapping[tuple[str, str], int],
    pinned: Mapping[tuple[str, str], int],
    tasks: Tasks,
    source: Source,
) -> None:
    """Refuse a budget that cannot hold what is pinned, or what runs (pinned copies included)."""
    running = {
        key: max(instances.get(key, 0), pinned.get(key, 0)) for key in {**instances, **pinned}
    }
    for what, copies in (("is pinned", pinned), ("runs", running)):
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
        if total > budget:
            source.note(
                (*place, "budget"),
                f"{SIZE.write(budget)} cannot hold what {what} here, which takes "
                f"{SIZE.write(total)}",
            )
            return
