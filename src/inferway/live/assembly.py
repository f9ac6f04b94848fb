"""From a deployment to the sites that serve it: models loaded, dispatchers compiled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inferway.live.central import HELD_LIMIT
from inferway.live.models import LoadError, models_of
from inferway.live.site import Site

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, Task
    from inferway.scheduling import Controller
    from inferway.site import Fleet


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


def times_file() -> Path:
    """Where measured service times are kept from one run to the next."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "inferway" / "service-times.json"


def sites_of(
    deployment: Deployment,
    times: Path | None = None,
    now: Callable[[], float] = time.monotonic,
) -> list[Site]:
    """Load every task of a deployment; takes seconds.

    Parameters
    ----------
    deployment
        Checked by `check_served`.
    times
        Where service times measured in earlier runs are found, and kept for later ones; None
        starts from the profiles and keeps nothing.
    now
        The sites' clock, seconds.

    Raises
    ------
    ServeError
        When a model or a policy cannot be loaded.
    """
    return [_site(deployment, task, times, now) for task in deployment.tasks.values()]


def _site(deployment: Deployment, task: Task, times: Path | None, now: Callable[[], float]) -> Site:
    # Compiles, which takes time that `import inferway.live` must not.
    from inferway.dispatch.batching import foresee, rule_of
    from inferway.dispatch.deployed import dispatcher_of
    from inferway.dispatch.service_times import recall, remember

    (node,) = deployment.nodes.values()
    try:
        dispatcher = dispatcher_of(deployment, task.name, node.name)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: tasks.{task.name}.dispatch: {error}") from error
    fleet = dispatcher.fleet
    batches = [task.variants[name].batch for name in fleet.variants]
    foresee(dispatcher.site, batches)
    controller = _controller(deployment, task, fleet, batches)
    try:
        signature, models = models_of(task, fleet.variants)
    except LoadError as error:
        raise ServeError(f"{deployment.path}: tasks.{task.name}.variants.{error}") from error
    # Instances of a variant share the weights; each calls from a thread of its own.
    runtimes = [
        models[name]
        for name, count in zip(fleet.variants, fleet.count, strict=True)
        for _ in range(int(count))
    ]
    keep = None
    if times is not None:
        keys = {name: _identity(task, name, node.hardware) for name in fleet.variants}
        recall(dispatcher, keys, times)
        keep = partial(remember, dispatcher, keys, times)
    options = deployment.policy_of(task).options
    central, room = node.queue == "central", HELD_LIMIT
    if central and node.buffer is not None:
        room = (node.buffer - 1) * fleet.servers
    return Site(
        task.name,
        signature,
        dispatcher,
        runtimes,
        seed=deployment.seed,
        target=task.accuracy_target,
        deadline_s=task.deadline_s,
        drop_late=node.late == "drop",
        in_order=central,
        room=room,
        controller=controller,
        rules=[rule_of(batch) for batch in batches] if any(batches) else None,
        window_s=None if options.get("rate") else options.get("window"),
        remember=keep,
        now=now,
    )


def _controller(
    deployment: Deployment, task: Task, fleet: Fleet, batches: list[Batch | None]
) -> Controller | None:
    spec = deployment.scheduling_of(task)
    if spec is None:
        return None
    from inferway.scheduling import Conditions, controller_of

    told = Conditions(fleet, task.deadline_s, batches=batches)
    try:
        return controller_of(spec, told)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: scheduling: {error}") from error


def _identity(task: Task, name: str, hardware: str) -> str:
    """What a measured service time is true of: this model on this hardware."""
    model, remote = task.variants[name].model, task.variants[name].remote
    if remote is not None:
        return remote.url
    assert model is not None  # `check_served` has refused it
    if model.digest is not None:
        return f"{model.digest} on {hardware}"
    assert model.path is not None  # what has to be fetched has a digest
    found = model.path.stat()
    return f"{model.path} {found.st_size} {found.st_mtime_ns} on {hardware}"
