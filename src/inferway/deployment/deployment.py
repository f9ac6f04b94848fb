"""A deployment as the rest of Inferway sees it: names resolved, profiles filled in, SI units."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inferway.deployment.document import Cost
from inferway.deployment.nodes import Network, NodeLimits, Store
from inferway.deployment.policies import PolicySpec, scheduled_dispatch, spec_of
from inferway.deployment.remote import Remote
from inferway.deployment.setting import set_all, setting
from inferway.deployment.tasks import WrittenCatalog
from inferway.deployment.unserved import sentences, unserved_at_node
from inferway.deployment.workloads import Workload

if TYPE_CHECKING:
    from inferway.deployment.source import Source

ANY_HARDWARE = "*"


@dataclass(frozen=True)
class ServiceTime:
    """How long one request takes on one kind of hardware.

    Attributes
    ----------
    distribution
        ``deterministic``, ``exponential``, ``lognormal``, ``erlang``, ``hyperexponential`` or
        ``empirical``.
    mean_s
        Mean, in seconds.
    cv
        Coefficient of variation: standard deviation over mean.
    stages
        Exponential stages in a row (1 but for ``erlang``).
    samples_s
        Measured times in seconds (``empirical`` only), scaled so that their mean is `mean_s`.
    """

    distribution: str
    mean_s: float
    cv: float = 0.0
    stages: int = 1
    samples_s: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Requests per second of an instance that is never idle (the papers' mu)."""
        return 1.0 / self.mean_s


@dataclass(frozen=True)
class Model:
    """The file behind a variant: where it is, as it was named, and its digest if known.

    `path` is None for a model of another host, until a node has fetched it; such a model has a
    digest.
    """

    path: Path | None
    uri: str
    digest: str | None = None


@dataclass(frozen=True)
class Batch:
    """Batch sizes (increasing) and the seconds that a whole batch of each takes."""

    sizes: tuple[int, ...]
    service_s: tuple[float, ...]
    min: int
    max: int


@dataclass(frozen=True)
class Variant:
    """One model that can answer a task.

    Attributes
    ----------
    accuracy
        0..1.
    size_bytes
        What one instance takes of its node's budget; None if neither file nor profile says.
    service
        Service time by hardware; the key ``*`` stands for any. Empty where nothing says how long
        the variant takes: see `inferway.deployment.measure`.
    energy
        Mean energy of one request, J; None if the file does not say.
    remote
        The server that runs it, where there is no `model` here.
    """

    name: str
    accuracy: float
    size_bytes: int | None = None
    price: float | None = None
    model: Model | None = None
    service: Mapping[str, ServiceTime] = field(default_factory=dict)
    batch: Batch | None = None
    energy: float | None = None
    remote: Remote | None = None

    @property
    def runnable(self) -> bool:
        """Whether requests can be answered: by a model here, or one at another server."""
        return self.model is not None or self.remote is not None

    def service_on(self, hardware: str) -> ServiceTime:
        """Return the service time on `hardware`.

        Raises
        ------
        ValueError
            If neither the file nor a profile gives one.
        """
        found = self.service.get(hardware, self.service.get(ANY_HARDWARE))
        if found is None:
            known = ", ".join(self.service) or "none"
            raise ValueError(
                f"variant {self.name} has no service time on hardware {hardware} (known: {known})"
            )
        return found

    def runs_on(self, hardware: str) -> bool:
        """Whether a service time on `hardware` is known."""
        return hardware in self.service or ANY_HARDWARE in self.service


@dataclass(frozen=True)
class Task:
    """What a client asks for. Variants that come from a `catalog` have no models.

    `energy_budget` is the most that a request may take on average, J; every variant then has an
    `energy`. A request of an `idempotent` task may be run twice: that changes no answer.
    """

    name: str
    variants: dict[str, Variant]
    accuracy_target: float | None = None
    deadline_s: float | None = None
    count: int = 1
    max_instances: int | None = None
    dispatch: PolicySpec | None = None
    catalog: WrittenCatalog | None = None
    energy_budget: float | None = None
    idempotent: bool = True

    @property
    def names(self) -> list[str]:
        """Those that clients use: digits-0, digits-1, ... of a count."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{k}" for k in range(self.count)]


@dataclass(frozen=True)
class Failure:
    """How each instance of a variant fails: after exponential times of these means, s."""

    every_s: float
    """From its start or its return to its next failure."""
    for_s: float
    """Until it returns."""


@dataclass(frozen=True)
class Outage:
    """Some instances away at a set time: so many of each (task, variant), the first ones."""

    instances: dict[tuple[str, str], int]
    at_s: float
    """From the start of the workload."""
    for_s: float


@dataclass(frozen=True)
class Node:
    """A machine: `instances` and `pinned` count running copies by (task, variant).

    `buffer` counts the request in service; None is unbounded, as it is for `budget_bytes`.
    `failures` and `outages` say what happens to instances in the twin. `address`, `peer` and
    `control` are HOST or HOST:PORT as the file has them.
    """

    name: str
    instances: dict[tuple[str, str], int]
    pinned: dict[tuple[str, str], int] = field(default_factory=dict)
    budget_bytes: int | None = None
    hardware: str = "cpu"
    buffer: int | None = None
    queue: Literal["per-server", "central"] = "per-server"
    late: Literal["drop", "serve"] = "drop"
    repository: bool = False
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    address: str | None = None
    peer: str | None = None
    control: str | None = None
    store: Store = field(default_factory=Store)
    limits: NodeLimits = field(default_factory=NodeLimits)


@dataclass(frozen=True)
class Deployment:
    """A whole deployment file, checked; see `inferway.load`."""

    path: Path
    tasks: dict[str, Task]
    nodes: dict[str, Node]
    workload: dict[str, Workload] = field(default_factory=dict)
    network: Network | None = None
    dispatch: PolicySpec | None = None
    scheduling: PolicySpec | None = None
    placement: PolicySpec | None = None
    cost: Cost | None = None
    seed: int = 0
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    source: Source | None = field(default=None, repr=False, compare=False)
    """As it was written."""
    build: Callable[[Source], Deployment] | None = field(default=None, repr=False, compare=False)
    """What has made it of its source, and makes another of a changed one."""

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self.path.resolve().parent

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
        if self.source is None or self.build is None:
            raise ValueError("only a deployment from `inferway.load` can be changed")
        source = replace(self.source, data=copy.deepcopy(self.source.data), problems=[])
        set_all(source.data, settings, node)
        return _as_measured(self.build(source), self)

    def policy_of(self, task: Task | str) -> PolicySpec:
        """Return the dispatch policy of a task.

        The task's own, or what `scheduling` implies, or the top level's, or else `priced` where
        there is an accuracy target and `deadline` where there is none; in a network `least-cost`
        where there is neither target nor deadline.

        Parameters
        ----------
        task
            The task or its name; digits-3 is one of those that `digits` counts.
        """
        task = self._task(task)
        scheduling = self.scheduling_of(task)
        if scheduling is not None:
            return scheduled_dispatch(scheduling)
        chosen = task.dispatch or self.dispatch
        if chosen is not None:
            return chosen
        if task.accuracy_target is not None:
            return spec_of("dispatch", "priced")
        if self.network is not None and task.deadline_s is None:
            return spec_of("dispatch", "least-cost")
        return spec_of("dispatch", "deadline")

    def scheduling_of(self, task: Task | str) -> PolicySpec | None:
        """Return the scheduling policy of a task; None where it has a dispatch policy of its own.

        None too where the file has no `scheduling`.
        """
        task = self._task(task)
        return self.scheduling if task.dispatch is None else None

    def line_of(self, field: str) -> int:
        """Return the line of a field such as ``tasks.digits.deadline``, or of what is around it.

        0 where the file says nothing of the kind (the default node).
        """
        while field and field not in self.lines:
            cut = max(field.rfind("."), field.rfind("["))
            field = field[: max(cut, 0)]
        return self.lines.get(field, 0)

    def named(self) -> dict[str, Task]:
        """Return the tasks by the names that clients use: digits-0, digits-1, ... of a count."""
        return {name: task for task in self.tasks.values() for name in task.names}

    def _task(self, task: Task | str) -> Task:
        if isinstance(task, Task):
            return task
        return self.tasks[task] if task in self.tasks else self.named()[task]

    def unserved(self) -> list[str]:
        """Say, in a sentence each, what of this file `inferway serve` cannot run."""
        return sentences(self)

    def unserved_at_node(self) -> list[str]:
        """Say, in a sentence each, what of this file the nodes of a network cannot run."""
        return unserved_at_node(self)


def _as_measured(deployment: Deployment, before: Deployment) -> Deployment:
    """Give variants without service times those that were measured before."""
    tasks = {}
    for name, task in deployment.tasks.items():
        known = before.tasks[name].variants if name in before.tasks else {}
        variants = {
            key: replace(variant, service=known[key].service)
            if not variant.service and key in known
            else variant
            for key, variant in task.variants.items()
        }
        tasks[name] = replace(task, variants=variants)
    return replace(deployment, tasks=tasks)
