"""Everything that is to be said of a deployment before it runs: ``inferway check``, from Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inferway.deployment import Deployment
from inferway.deployment import check as check_file
from inferway.deployment.warnings import Caution, check_remotes
from inferway.experiments.text import Drawing, Frame, Shown, frame


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
        return "\n".join([*lines, *self.unserved]) or "nothing found"


def _loads(deployment: Deployment) -> dict[str, float]:
    """Return what arrives of each task over the greatest rate that keeps what it promises."""
    from inferway.dispatch.bounds import max_rate
    from inferway.site.fleet import fleet_of
    from inferway.workload.arrivals import mean_rate

    loads = {}
    for name, workload in deployment.workload.items():
        task = deployment.tasks[name]
        try:
            greatest = max_rate(
                fleet_of(deployment, name), task.accuracy_target, task.energy_budget
            )
        except ValueError:
            continue
        loads[name] = mean_rate(workload.arrivals, greatest) / greatest
    return loads


def cautions(deployment: Deployment) -> list[Caution]:
    """List the warnings for which no network has to be built."""
    found = [*check_file(deployment), *check_remotes(deployment)]
    if deployment.workload:
        from inferway.dispatch.deployed import unreachable_rates

        found += unreachable_rates(deployment)
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
    )


def _refused(deployment: Deployment) -> Iterator[Caution]:
    """Make every task's dispatcher, as a server does when it starts."""
    from inferway.dispatch.bounds import UnreachableError
    from inferway.dispatch.deployed import dispatcher_of

    for name, task in deployment.tasks.items():
        running = {key for node in deployment.nodes.values() for key in node.instances}
        own = [one for one in task.variants.values() if (name, one.name) in running]
        if len(deployment.nodes) != 1 or not own or not all(one.service for one in own):
            continue  # what is not measured yet is not known either
        try:
            dispatcher_of(deployment, name, measure=False)
        except ValueError as error:
            unreachable = isinstance(error, UnreachableError)
            kind = "target-out-of-reach" if unreachable else "policy"
            place = f"tasks.{name}.{'accuracy_target' if unreachable else 'dispatch'}"
            yield Caution(kind, place, deployment.line_of(place), str(error))
