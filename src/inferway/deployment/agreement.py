"""Whether what policies are told agrees with the tasks that they serve."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.deployment.complaints import nearest
from inferway.deployment.deployment import Node, Task
from inferway.deployment.document import Document
from inferway.deployment.error import Place
from inferway.deployment.policies import PolicySpec
from inferway.deployment.quantities import TIME
from inferway.deployment.source import Source


def check_policies(
    document: Document, tasks: Mapping[str, Task], nodes: Mapping[str, Node], source: Source
) -> None:
    """Note in `source` routing to variants that there are not, and deadlines that nobody meets."""
    common = document.dispatch.spec() if document.dispatch else None
    for task in tasks.values():
        if task.dispatch is not None:
            _check_probabilities(("tasks", task.name, "dispatch"), task.dispatch, task, source)
        elif common is not None and document.scheduling is None:
            _check_probabilities(("dispatch",), common, task, source)
        _check_deadline(task, nodes, document.scheduling is not None, source)


def _check_probabilities(place: Place, spec: PolicySpec, task: Task, source: Source) -> None:
    if spec.policy != "alias":
        return
    for name in spec.options["probabilities"] or ():
        if name not in task.variants:
            source.note(
                (*place, "probabilities"),
                f"task {task.name} has no variant {name}; {nearest(name, list(task.variants))}",
            )


def _check_deadline(task: Task, nodes: Mapping[str, Node], scheduled: bool, source: Source) -> None:
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
