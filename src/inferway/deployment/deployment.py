"""A whole deployment: read from its file, checked, and changed by `Deployment.with_`."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, Strict, TypeAdapter, ValidationError, field_validator

from inferway.deployment.devices import Device
from inferway.deployment.errors import (
    DeploymentError,
    Place,
    complaints_of,
    refuse_where,
    sentence_of,
)
from inferway.deployment.model_folder import source_of
from inferway.deployment.nodes import Network, Node
from inferway.deployment.overhead import MeasuredOverhead
from inferway.deployment.policies import (
    PLACEMENT,
    WAITS_TWICE,
    DispatchPolicy,
    Kind,
    PlacementPolicy,
    PolicySpec,
    SchedulingPolicy,
    row_of,
    scheduled_dispatch,
    scheduled_together,
    spec_of,
)
from inferway.deployment.resolution import Resolution
from inferway.deployment.section import UNWRITTEN, Name, Section, says, tidy
from inferway.deployment.setting import set_all, setting
from inferway.deployment.source import Source, given
from inferway.deployment.targets import JointTarget
from inferway.deployment.tasks import Task, Variant
from inferway.deployment.units import Number
from inferway.deployment.workloads import Workload

MOST_TASKS: Final = 100_000  # of all kinds together: each has a name, and entries of its own


@dataclass(frozen=True)
class Cost(Section):
    """What placement minimizes: latency plus alpha times inaccuracy (eq. 6 of [SiSalem23])."""

    alpha: Annotated[Number, says("Milliseconds that one point of inaccuracy (0..100) is worth.")]


@dataclass(frozen=True)
class Deployment(Section):
    """An Inferway deployment: what is served, where, and by which policies."""

    tasks: Annotated[dict[Name, Task], Field(min_length=1), says("What clients ask for, by name.")]
    targets: Annotated[
        dict[Name, JointTarget],
        says("Means over several tasks together, by name; all hold, and the tasks' own too."),
    ] = field(default_factory=dict)
    nodes: Annotated[
        dict[Name, Node],
        says(
            "The machines, by name; one node `here` with one instance of each variant if not given."
        ),
    ] = field(default_factory=dict)
    network: Annotated[Network | None, says("How the nodes are joined.")] = None
    dispatch: Annotated[DispatchPolicy | None, says("Which server answers a request.")] = None
    scheduling: Annotated[SchedulingPolicy | None, says("How routing changes per second.")] = None
    placement: Annotated[PlacementPolicy | None, says("Which variants live on which node.")] = None
    cost: Annotated[Cost | None, says("What placement minimizes.")] = None
    seed: Annotated[int, Strict(), Field(ge=0, lt=2**63), says("Start of all random numbers.")] = 0
    workload: Annotated[dict[Name, Workload], says("How requests arrive, by task.")] = field(
        default_factory=dict
    )
    source: Annotated[Source, *UNWRITTEN] = field(
        default_factory=lambda: Source(Path("deployment")), repr=False, compare=False
    )

    @field_validator("tasks")
    @classmethod
    def _are_not_too_many(cls, tasks: dict[str, Task]) -> dict[str, Task]:
        total = sum(task.count for task in tasks.values())
        sentence = f"there are {total:,} tasks by `count`, and {MOST_TASKS:,} are the most"
        refuse_where((total > MOST_TASKS, sentence))
        return tasks

    @property
    def path(self) -> Path:
        """The file, as it was named by the caller."""
        return self.source.path

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.source.folder

    def with_(
        self,
        *,
        policy: str | type | None = None,
        scheduling: str | Mapping[str, Any] | None = None,
        placement: str | Mapping[str, Any] | None = None,
        rate: float | str | None = None,
        load: float | None = None,
        target: float | None = None,
        deadline: float | str | None = None,
        instances: Mapping[str, int] | None = None,
        seed: int | None = None,
        node: str | None = None,
        **paths: Any,
    ) -> Deployment:
        """Return this deployment with other values, checked as a file is.

        Parameters
        ----------
        policy
            Dispatches every task: a name, ``FILE.py:CLASS`` from the current folder, or a class.
        scheduling, placement
            Policies by name, which keep the slot of the file's, or whole sections.
        rate
            Requests per second of every task; of phases their mean. A text has its unit.
        load
            The same as a share of the greatest rate.
        target
            Accuracy target of every task.
        deadline
            Of every task, in seconds; a text has its unit.
        instances
            Running copies by ``TASK/VARIANT``.
        seed
            Of the random numbers.
        node
            Whose instances are meant, where there are several nodes.
        paths
            Any path into the file: ``with_(**{"nodes.here.buffer": 4})``.

        Raises
        ------
        ValueError
            Where a value makes no sense or the file has nothing that it could change; a
            `DeploymentError` where the result is no deployment.
        """
        words = {
            "policy": policy,
            "scheduling": scheduling,
            "placement": placement,
            "rate": rate,
            "load": load,
            "target": target,
            "deadline": deadline,
            "seed": seed,
            **{f"instances.{name}": count for name, count in (instances or {}).items()},
            **paths,
        }
        settings = {key: setting(value) for key, value in words.items() if value is not None}
        if not settings:
            return self
        source = replace(self.source, data=copy.deepcopy(self.source.data), problems=[])
        set_all(source.data, settings, node, KEYS)
        changed = build(source)
        tasks = {}
        for name, task in changed.tasks.items():  # what was measured before holds
            before = self.tasks[name].variants if name in self.tasks else {}
            times = {key: variant.service for key, variant in before.items()}
            variants = {
                key: one if one.service else replace(one, service=times.get(key, {}))
                for key, one in task.variants.items()
            }
            tasks[name] = replace(task, variants=variants)
        nodes = {
            name: replace(node, measured_overhead=self.nodes[name].measured_overhead)
            if name in self.nodes
            else node
            for name, node in changed.nodes.items()
        }
        return replace(changed, tasks=tasks, nodes=nodes)

    def with_overhead(self, measured: MeasuredOverhead | None) -> Deployment:
        """Return this deployment with what a server measured last that a request takes.

        Where a node says its `overhead`, that stays. None stands for nothing measured.
        """
        nodes = {
            name: replace(node, measured_overhead=measured if _leads(node) else None)
            for name, node in self.nodes.items()
        }
        return replace(self, nodes=nodes)

    def on_cores(self, cores: int) -> Deployment:
        """Return this deployment as a server runs it on a machine with so many cores.

        Where a node lists no `devices` and its copies may want more cores than there are, they
        share these: one device, by the name of the node's hardware. What another server runs takes
        none of it.
        """
        nodes = {name: self._sharing(node, cores) for name, node in self.nodes.items()}
        return replace(self, nodes=nodes)

    def _sharing(self, node: Node, cores: int) -> Node:
        running = {
            (task, name): (count, variant.threads)
            for (task, name), count in node.instances.items()
            if task in self.tasks
            and (variant := self.tasks[task].variants.get(name)) is not None
            and variant.remote is None
        }
        if node.devices or sum(count * threads for count, threads in running.values()) <= cores:
            return node
        name, widest = node.hardware, max(threads for _, threads in running.values())
        placed = {key: {name: count} for key, (count, _) in running.items()}
        device = Device(hardware=name, cores=max(cores, widest))
        return replace(node, devices={name: device}, placed=placed)

    def policy_of(self, task: Task | str) -> PolicySpec:
        """Return the dispatch policy of a task.

        The task's own, or what `scheduling` implies, or the top level's, or else `priced` where
        there is an accuracy target, or one over several tasks, and `deadline` where there is none;
        `least-cost` where no variant's accuracy is known, so that latency alone counts, and in a
        network where there is neither target nor deadline.

        Parameters
        ----------
        task
            The task or its name; digits-3 is one of those that `digits` counts.
        """
        task = self._task(task)
        scheduling = self.scheduling_of(task)
        if scheduling is not None:
            return scheduled_dispatch(scheduling)
        aimless = self.network is not None and task.deadline_s is None
        blind = not any(variant.graded for variant in task.variants.values())
        default = "least-cost" if aimless or blind else "deadline"
        promised = task.accuracy_target is not None or bool(self.targets_over(task))
        default = "priced" if promised else default
        return task.dispatch or self.dispatch or spec_of("dispatch", default)

    def targets_over(self, task: Task | str) -> list[JointTarget]:
        """Return the targets over several tasks that a task is one of."""
        name = self._task(task).name
        return [one for one in self.targets.values() if name in one.tasks]

    def scheduling_of(self, task: Task | str) -> PolicySpec | None:
        """Return the scheduling policy of a task; None where it has a dispatch policy of its own.

        None too where the file has no `scheduling`.
        """
        task = self._task(task)
        return self.scheduling if task.dispatch is None else None

    @property
    def scheduled_together(self) -> tuple[str, ...]:
        """Tasks that one policy schedules together, in its order; none where each is by itself."""
        return scheduled_together(self.scheduling)

    def line_of(self, field: str) -> int:
        """Return the line of a field such as ``tasks.digits.deadline``, or of what is around it.

        0 where the file says nothing of the kind (the default node).
        """
        lines = self.source.field_lines
        while field and field not in lines:
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        return lines.get(field, 0)

    @property
    def assigns(self) -> bool:
        """True where a placement policy gives out the devices of a node, without a network."""
        return _within(self.placement)

    def named(self) -> dict[str, Task]:
        """Return the tasks by the names that clients use: digits-0, digits-1, ... of a count."""
        return {name: task for task in self.tasks.values() for name in task.names}

    def running(self, task: Task) -> list[Variant]:
        """Return the variants of a task that have an instance at some node."""
        instances = {key for node in self.nodes.values() for key in node.instances}
        return [
            variant for name, variant in task.variants.items() if (task.name, name) in instances
        ]

    def hardware_for(self, task: Task, variant: Variant) -> list[str]:
        """List the hardware where copies of a variant run, or may, and whose time is known."""
        network = self.network
        kinds = [] if network is None else network.kinds(self.nodes)
        for node in self.nodes.values():
            # Copies may come on any of its hardware, or those that the file says.
            free = self.assigns or network is not None or not node.instances
            kinds += node.kinds if free else []
            kinds += [
                kind
                for name in task.names
                for kind, count in node.copies_by_hardware(name, variant.name)
                if count
            ]
        return [kind for kind in dict.fromkeys(kinds) if variant.runs_on(kind)]

    def _task(self, task: Task | str) -> Task:
        if isinstance(task, Task):
            return task
        return self.tasks[task] if task in self.tasks else self.named()[task]

    def unserved(self) -> list[str]:
        """Say, in a sentence each, what of this file `inferway serve` cannot run."""
        members = {f"node {node.name}": node for node in self.nodes.values()}
        found = list(_unserved_alone(self))
        for name, node in self.nodes.items():
            found += _unserved_devices(self, f"nodes.{name}", node)
        found += _unserved_assigned(self) if self.assigns else []
        for task in self.tasks.values():
            found += _unserved_task(self, task, members, alone=True)
        return found

    def unsimulated(self) -> list[str]:
        """Say, in a sentence each, what of a site's machine `inferway simulate` leaves out."""
        if self.network is not None or not self.workload:
            return []
        said = [
            f"nodes.{node.name}.devices: there are none, so in the twin its instances never wait "
            "for a core or an accelerator that they share"
            for node in self.nodes.values()
            if not node.devices and sum(node.instances.values()) > 1
        ]
        return said + [
            told
            for node in self.nodes.values()
            for task in self.tasks
            for told in self.unknown_loads(node, task)
        ]

    def unknown_loads(self, node: Node, task: str) -> list[str]:
        """Say which variants of a task do not say how long an exclusive device takes to load them.

        Where it holds more than one, of whichever task; a sentence each.
        """
        found = []
        for name, device in node.devices.items():
            here = [pair for pair, copies in node.placed.items() if name in copies]
            for of, variant in here if device.exclusive and len(here) > 1 else ():
                loaded = self.tasks[task].variants.get(variant) if of == task else None
                if loaded is not None and loaded.load_on(device.hardware) == 0.0:
                    found.append(
                        f"tasks.{task}.variants.{variant}.load_time: nodes.{node.name}.devices."
                        f"{name} is `exclusive`, and the twin has to know how long it takes to "
                        f"change to {variant}; say it (live it is measured)"
                    )
        return found

    def overheads(self) -> list[str]:
        """Say, in a sentence for each node, what its requests take of the cores besides models."""
        if self.network is not None:
            return []
        said = []
        for node in self.nodes.values():
            if not _leads(node):
                continue
            measured = node.measured_overhead
            known = (
                "0, as no server of these models has measured it on this machine yet"
                if measured is None
                else measured.said
            )
            said.append(f"nodes.{node.name}.overhead: it is not given, and so {known}")
        return said

    def unserved_at_node(self) -> list[str]:
        """Say, in a sentence each, what of this file the nodes of a network cannot run."""
        members: dict[str, Node] = {f"nodes.{name}": node for name, node in self.nodes.items()}
        found = []
        if self.network is None:
            found.append(
                "network: there is none, so there is one node alone; `inferway serve` runs it"
            )
        else:
            tiers = enumerate(self.network.tree or ())
            members |= {f"network.tree[{k}]": tier for k, tier in tiers}
            others = self.network.others
            members |= {} if others is None else {"network.others": others}
        if self.scheduling is not None:
            found.append(
                f"scheduling: {self.scheduling.policy} routes among a node's own instances, and "
                "the nodes of a network forward as well; give a `dispatch` policy instead"
            )
        found += [
            f"{where}.queue: requests wait at the instances of a network's nodes, not in one "
            "queue; leave it out"
            for where, node in members.items()
            if node.queue == "central"
        ]
        found += [
            f"tasks.{task.name}.shadow: nodes of a network compare no answers, as their most "
            "accurate variant may be far away; leave it out"
            for task in self.tasks.values()
            if task.shadow is not None
        ]
        found += [
            f"tasks.{task.name}.canary: nodes of a network try no canary, as each of them would "
            "decide by its own labels alone; leave it out"
            for task in self.tasks.values()
            if task.canary is not None
        ]
        found += _device_refusals(members)
        members = {where: node for where, node in members.items() if node.queue != "central"}
        for task in self.tasks.values():
            found += _unserved_task(self, task, members, alone=False)
        return found


KEYS: Final = tuple(one.name for one in fields(Deployment) if one.name != "source")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that ``docs/deployment.schema.json`` publishes."""
    plain = tidy(TypeAdapter(Deployment).json_schema())
    start = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**start, "title": "Inferway deployment", **plain}


def load(path: str | os.PathLike[str] | Mapping[str, Any]) -> Deployment:
    """Read and check a deployment file.

    Parameters
    ----------
    path
        A YAML file, as ``docs/reference/deployment-file.md`` describes it; a folder of models,
        ``MODEL/VERSION/model.onnx``, which is read as the file that ``inferway init`` writes; or
        the content of a file as a mapping, whose relative file names start from the current folder.

    Raises
    ------
    DeploymentError
        If anything is wrong with it. All problems are said at once, a line each, as
        ``FILE:LINE: field: sentence``.
    """
    return build(given(path) if isinstance(path, Mapping) else source_of(Path(path)))


def load_unprofiled(path: Path) -> Deployment:
    """Read a file whose accuracies and times are yet to be measured.

    Accuracies and times of batches that it leaves out have values that mean nothing, and its
    profile, if there is one, is not looked at.

    Raises
    ------
    DeploymentError
        As `load`.
    """
    source = replace(source_of(path), profiled=False)
    for task in _mappings(source.data.get("tasks")):
        for variant in _mappings(task.get("variants")):
            variant.setdefault("accuracy", 1.0)
            batch = variant.get("batch")
            # One for any hardware, or one for each.
            for one in (batch, *(batch.values() if isinstance(batch, dict) else ())):
                if isinstance(one, dict) and isinstance(one.get("sizes"), list):
                    one.setdefault("service", ["1 s"] * len(one["sizes"]))
    return build(source)


def _mappings(value: Any) -> list[dict[str, Any]]:
    entries = value.values() if isinstance(value, dict) else ()
    return [one for one in entries if isinstance(one, dict)]


def build(source: Source) -> Deployment:
    """Check a file's data, as it was read or changed since.

    Raises
    ------
    DeploymentError
        As `load`.
    """
    stated = _stated(source)
    if stated is not None:
        deployment = _resolved(stated, source)
        if not source.problems:
            return deployment
    raise DeploymentError(source.path, source.problems, source.more)


@functools.cache
def _adapter() -> TypeAdapter[Deployment]:
    return TypeAdapter(Deployment)


def _stated(source: Source) -> Deployment | None:
    """Validate the data, without the entries that are wrong, so that the others are checked too."""
    context = {"folder": source.folder}
    try:
        return _adapter().validate_python(source.data, context=context)
    except ValidationError as error:
        complaints = list(complaints_of(error, source.data))
    kept: dict[Any, Any]
    kept = {key: dict(one) if isinstance(one, dict) else one for key, one in source.data.items()}
    for place, detail in complaints:
        source.note(place, partial(sentence_of, detail))
        # The entry that the place lies in: a task, a node, a section.
        if not place:
            continue
        by_name = len(place) > 1 and place[0] in {"tasks", "targets", "nodes", "workload"}
        entry, key = (kept.get(place[0]), place[1]) if by_name else (kept, place[0])
        if isinstance(entry, dict):
            entry.pop(key, None)
        elif by_name:
            kept.pop(place[0], None)
    try:
        return None if source.full else _adapter().validate_python(kept, context=context)
    except ValidationError:
        return None


def _resolved(stated: Deployment, source: Source) -> Deployment:
    """Fill in what the file leaves out; it may be used only if nothing is noted in `source`."""
    resolution = Resolution(stated.tasks, source)
    within = _within(stated.placement)
    alone = stated.network is None and (stated.placement is None or within)
    nodes = {name: resolution.node(name, node, fill=alone) for name, node in stated.nodes.items()}
    if alone and not source.data.get("nodes"):
        nodes = {"here": resolution.default_node()}
    if within:
        _check_within(stated, source)
    placed = stated.placement
    chosen = {} if placed is None or placed.policy not in PLACEMENT else placed.options
    if chosen.get("delays") == "sojourns" and chosen.get("waiting"):
        source.note(("placement", "delays"), WAITS_TWICE)
    for name, workload in stated.workload.items():
        resolution.check_workload(name, workload, stated.network)
    for task in resolution.tasks.values():
        if task.dispatch is not None:
            resolution.check_probabilities(("tasks", task.name, "dispatch"), task.dispatch, task)
        elif stated.dispatch is not None and stated.scheduling is None:
            resolution.check_probabilities(("dispatch",), stated.dispatch, task)
        resolution.check_deadline(task, nodes, stated.scheduling is not None)
        own = task.dispatch or (None if stated.scheduling else stated.dispatch)
        resolution.check_following(task, own, stated.scheduling is not None)
        if task.accuracy_target is None and (weighs := _weighs(stated, task)):
            resolution.lacks_accuracies(*weighs, task)
    targets = {name: replace(one, name=name) for name, one in stated.targets.items()}
    resolved = replace(stated, tasks=resolution.tasks, targets=targets, nodes=nodes, source=source)
    if stated.scheduling is not None and row_of("scheduling", stated.scheduling.policy).together:
        resolution.check_scheduled(stated.scheduling.options.get("tasks") or ())
        if _within(stated.placement) and scheduled_together(stated.scheduling):
            source.note(
                ("scheduling", "tasks"),
                "a policy is trained for the fleets of its tasks, and `placement` gives the node's "
                "devices out anew; give a `dispatch` policy instead",
            )
    for target in targets.values():
        resolution.check_joint_target(target)
        for name in target.tasks:
            if name in resolution.tasks:
                task = resolution.tasks[name]
                scheduling = resolved.scheduling_of(task)
                policy = resolved.policy_of(task) if scheduling is None else scheduling
                resolution.check_keeps(target, name, policy.policy)
    for place, sentence in _without_energy(resolved):
        source.note(place, sentence)
    return resolved


def _without_energy(deployment: Deployment) -> Iterator[tuple[Place, str]]:
    """Name the hardware whose energy a variant leaves out where something promised goes by it."""
    limited = {name for one in deployment.targets.values() if one.energy for name in one.tasks}
    for task in deployment.tasks.values():
        if task.energy_budget is None and task.name not in limited:
            continue
        for variant in task.variants.values():
            if variant.energies:  # else it lacks them all, which has been said
                blank = [
                    kind
                    for kind in deployment.hardware_for(task, variant)
                    if variant.energy_on(kind) is None
                ]
                for kind in blank:
                    place = ("tasks", task.name, "variants", variant.name, "energy")
                    yield place, f"says nothing of {kind}, where it may run"


def _leads(node: Node) -> bool:
    """Tell whether what a request takes besides its model is of a node's cores, and measured."""
    return bool(node.leading) and node.overhead_s is None


def _within(placement: PolicySpec | None) -> bool:
    return placement is not None and row_of("placement", placement.policy).within


def _check_within(stated: Deployment, source: Source) -> None:
    """Refuse what gives out devices where there are none, or where it does not apply."""
    assert stated.placement is not None
    name = stated.placement.policy
    if stated.network is not None:
        sentence = (
            f"{name} gives out the devices of one node; between the nodes of a network, exchange "
            "or infida moves copies"
        )
        source.note(("placement",), sentence)
    elif not any(node.devices for node in stated.nodes.values()):
        source.note(("placement",), f"{name} gives out the `devices` of a node, and none has any")
    for task, what in stated.tasks.items():
        if what.count > 1:
            source.note(
                ("tasks", task, "count"),
                f"{name} gives out devices to tasks by name; list identical ones by themselves",
            )
    for node in stated.nodes.values():
        if node.outages:
            source.note(
                ("nodes", node.name, "outages"),
                f"{name} gives out copies anew, so none can be named that goes away at a set time; "
                "`failures` come at random",
            )


def _weighs(stated: Deployment, task: Task) -> tuple[Place, str] | None:
    """Name what goes by the accuracies of a task's variants though it has no target."""
    place: Place = ("dispatch",) if task.dispatch is None else ("tasks", task.name, "dispatch")
    kind: Kind = "dispatch"
    policy = task.dispatch or stated.dispatch
    if task.dispatch is None and stated.scheduling is not None:
        kind, place, policy = "scheduling", ("scheduling",), stated.scheduling
    if policy is not None and row_of(kind, policy.policy).weighing:
        return place, policy.policy
    if stated.placement is not None and _within(stated.placement):
        return ("placement",), stated.placement.policy
    if stated.network is not None or stated.placement is not None:
        return ("tasks", task.name), "a network, which weighs accuracy against latency,"
    return None


def _unserved_alone(deployment: Deployment) -> Iterator[str]:
    if deployment.network is not None:
        yield (
            "network: `serve` runs one node alone; `inferway up` runs the network, and "
            "`inferway node` one of its nodes"
        )
    elif len(deployment.nodes) > 1:
        names = ", ".join(deployment.nodes)
        yield f"nodes: {names} are several nodes; one node is served, without a network"
    scheduling = deployment.scheduling
    if scheduling is not None and row_of("scheduling", scheduling.policy).sighted:
        yield (
            f"scheduling: {scheduling.policy} goes by the workload's state, which a "
            "live server cannot see"
        )
    if deployment.placement is not None and not deployment.assigns:
        yield (
            f"placement: {deployment.placement.policy} moves models between the nodes of a "
            "network; for `serve`, list `instances` under the node"
        )


def _device_refusals(members: Mapping[str, Node]) -> list[str]:
    return [
        told for where, node in members.items() if (told := node.device_refusal(where)) is not None
    ]


def _unserved_devices(deployment: Deployment, where: str, node: Node) -> Iterator[str]:
    """Say what of a node's devices `serve` does not know yet."""
    for name, device in node.devices.items():
        if device.exclusive:
            yield from _unserved_exclusive(deployment, where, node, name)


def _unserved_exclusive(deployment: Deployment, where: str, node: Node, name: str) -> Iterator[str]:
    """Say what of a device that holds one variant at a time `serve` does not know."""
    place = f"{where}.devices.{name}.exclusive"
    if deployment.assigns:
        yield (
            f"{place}: `assign` gives out copies that can all run at once, and it holds one "
            "variant at a time; leave it out"
        )
    for (task, variant), copies in node.placed.items():
        if name in copies and len(copies) > 1:
            others = ", ".join(one for one in copies if one != name)
            yield (
                f"{place}: {task}/{variant} has instances on {others} as well, where it stays "
                "loaded; have it on one of both"
            )


def _unserved_assigned(deployment: Deployment) -> Iterator[str]:
    """Say what `serve` does not know where devices are given out anew."""
    for task in deployment.tasks.values():
        field = f"tasks.{task.name}"
        if task.canary is not None:
            yield (
                f"{field}.canary: a variant may be left without a copy where devices are given out "
                "anew; leave out the one or the other"
            )
        for variant in task.variants.values():
            if variant.remote is not None:
                where = f"{field}.variants.{variant.name}.remote"
                yield f"{where}: what another server runs takes no device; leave it out"


def _unserved_task(
    deployment: Deployment, task: Task, members: Mapping[str, Node], *, alone: bool
) -> Iterator[str]:
    """Say what of a task one node alone, or the nodes of a network, cannot run."""
    field = f"tasks.{task.name}"
    # Placement may bring any variant to any node, and a repository holds them all.
    every = not alone or deployment.assigns
    needed = list(task.variants.values()) if every else deployment.running(task)
    if task.catalog is not None:
        yield f"{field}.catalog: catalogs have no models to serve; list `variants`"
    if alone and task.count > 1:
        yield (
            f"{field}.count: {task.count} identical tasks are served by the nodes "
            "of a network; `serve` takes one"
        )
    if alone and not needed and task.catalog is None and members:
        yield f"{field}: no node has an instance of any of its variants"
    bare = [variant.name for variant in needed if not variant.runnable]
    if bare and task.catalog is None:
        has = f"{', '.join(bare)} {'have' if len(bare) > 1 else 'has'}"
        yield f"{field}.variants: {has} no `model`, so nothing can answer requests"
    yield from dict.fromkeys(
        f"{field}.variants.{variant.name}.batch: {reason}"
        for name, node in members.items()
        for variant in needed
        if (reason := _unfilled(name, node, variant))
    )
    for variant in needed if alone else ():
        if variant.model is not None and variant.model.path is None:
            yield (
                f"{field}.variants.{variant.name}.model: {variant.model.uri} is on another "
                "host, from where the nodes of a network fetch it; `serve` takes a file that "
                "is here"
            )
    policy = deployment.policy_of(task).policy
    aimless = task.accuracy_target is None and not deployment.targets_over(task)
    if row_of("dispatch", policy).steered and aimless:
        yield f"{field}.accuracy_target: {policy} needs one to steer to"


def _unfilled(name: str, node: Node, variant: Variant) -> str:
    """Say why a variant's batches would never come about at a node; empty where they would."""
    batches = [batch for kind in node.kinds if (batch := variant.batch_on(kind)) is not None]
    if batches and node.queue == "central":
        return (
            f"{name} has a central queue, so that each instance holds one request and "
            "forms no batches; leave out the one or the other"
        )
    most = max((batch.min for batch in batches), default=0)
    if node.buffer is not None and most > node.buffer:
        return (
            f"instances wait for {most} requests and have room for {node.buffer}; "
            "lower its `min` or raise the node's `buffer`"
        )
    return ""
