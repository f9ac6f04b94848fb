"""From the whole file as written to a deployment, with the references between its parts checked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from inferway.deployment.agreement import check_policies
from inferway.deployment.column import ColumnError, time_pieces
from inferway.deployment.complaints import nearest
from inferway.deployment.deployment import Deployment, Task
from inferway.deployment.document import Document
from inferway.deployment.error import field_name
from inferway.deployment.hosting import Tasks, default_node, node_of
from inferway.deployment.resolution import check_target, task_of
from inferway.deployment.source import Source
from inferway.deployment.workloads import PhasedArrivals, TraceArrivals, Workload


def assemble(document: Document, source: Source) -> Deployment:
    """Build a deployment; it may be used only if nothing was noted in `source`."""
    resolved = {name: task_of(name, task, source) for name, task in document.tasks.items()}
    tasks = Tasks(resolved, _variants_as_written(source.data))
    alone = document.network is None and document.placement is None
    nodes = {
        name: node_of(name, node, tasks, source, fill=alone)
        for name, node in document.nodes.items()
    }
    if alone and not source.data.get("nodes"):
        nodes = {"here": default_node(tasks, source)}
    _check_counted_names(resolved, source)
    for name, workload in document.workload.items():
        _check_workload(name, workload, tasks, document, source)
    check_policies(document, resolved, nodes, source)
    return Deployment(
        path=source.path,
        tasks=resolved,
        nodes=nodes,
        workload=document.workload,
        network=document.network,
        dispatch=document.dispatch.spec() if document.dispatch else None,
        scheduling=document.scheduling.spec() if document.scheduling else None,
        placement=document.placement.spec() if document.placement else None,
        cost=document.cost,
        seed=document.seed,
        lines={field_name(place): line for place, line in source.lines.items()},
    )


def _variants_as_written(data: dict[str, Any]) -> dict[str, set[str] | None]:
    tasks = data.get("tasks")
    found: dict[str, set[str] | None] = {}
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        variants = task.get("variants") if isinstance(task, dict) else None
        found[name] = set(variants) if isinstance(variants, dict) else None
    return found


def _check_counted_names(tasks: dict[str, Task], source: Source) -> None:
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


def _check_workload(
    name: str, workload: Workload, tasks: Tasks, document: Document, source: Source
) -> None:
    if tasks.base(name) is None:
        known = list(tasks.written)
        source.note(("workload", name), f"there is no task {name}; {nearest(name, known)}")
        return
    task = tasks.resolved.get(tasks.base(name) or "")
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
    tree = document.network.tree if document.network else None
    if workload.entries is not None and workload.entries.tier is not None and tree is not None:
        tiers = [tier.tier for tier in tree]
        if workload.entries.tier not in tiers:
            source.note(
                ("workload", name, "entries", "tier"),
                f"there is no tier {workload.entries.tier}; "
                f"{nearest(workload.entries.tier, tiers)}",
            )
