"""From a deployment to the sites that serve it: models loaded, dispatchers compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferway.live.site import Site
from inferway.runtime import ArtifactError, OnnxRuntime

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Task


class ServeError(ValueError):
    """A deployment that cannot be served, with a sentence for each reason."""


def check_served(deployment: Deployment) -> None:
    """Refuse what the live server does not run.

    Raises
    ------
    ServeError
        With all the reasons, one per line.
    """
    reasons = deployment.unserved()
    if reasons:
        raise ServeError("\n".join(f"{deployment.path}: {reason}" for reason in reasons))


def sites_of(deployment: Deployment) -> list[Site]:
    """Load every task of a deployment; takes seconds.

    Raises
    ------
    ServeError
        When a model or a policy cannot be loaded.
    """
    return [_site(deployment, task) for task in deployment.tasks.values()]


def _site(deployment: Deployment, task: Task) -> Site:
    # Compiles, which takes time that `import inferway.live` must not.
    from inferway.dispatch.deployed import dispatcher_of

    (node,) = deployment.nodes.values()
    try:
        dispatcher = dispatcher_of(deployment, task.name, node.name)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: tasks.{task.name}.dispatch: {error}") from error
    fleet = dispatcher.fleet
    runtimes: list[OnnxRuntime] = []
    for name, count in zip(fleet.variants, fleet.count, strict=True):
        runtime = _runtime(deployment, task, name)
        other = runtimes[0].signature if runtimes else runtime.signature
        if runtime.signature != other:
            raise ServeError(
                f"{deployment.path}: tasks.{task.name}.variants.{name}: its signature "
                f"{runtime.signature} differs from {other} of {fleet.variants[0]}"
            )
        # Instances of a variant share the weights; each calls from a thread of its own.
        runtimes += [runtime] * int(count)
    options = deployment.policy_of(task).options
    return Site(
        task.name,
        runtimes[0].signature,
        dispatcher,
        runtimes,
        seed=deployment.seed,
        target=task.accuracy_target,
        deadline_s=task.deadline_s,
        drop_late=node.late == "drop",
        window_s=None if options.get("rate") else options.get("window"),
    )


def _runtime(deployment: Deployment, task: Task, name: str) -> OnnxRuntime:
    model = task.variants[name].model
    assert model is not None  # `check_served` has refused it
    try:
        return OnnxRuntime(model.path, digest=model.digest)
    except ArtifactError as error:
        raise ServeError(
            f"{deployment.path}: tasks.{task.name}.variants.{name}: {error}"
        ) from error
