"""From a deployment to the fleets that serve it: models loaded, dispatchers compiled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.live.errors import ServeError
from inferway.live.growths import Growths, identity
from inferway.live.headroom import Headroom, MemoryNeed, is_closed, memory_need_of, tensors_of
from inferway.live.models import LoadError, models_of
from inferway.live.pool import HELD_LIMIT, Pool, PoolOptions

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, Task, Variant
    from inferway.protocol import Signature
    from inferway.runtime.growth import Growth
    from inferway.scheduling import Controller
    from inferway.site import Fleet
    from inferway.site.view import Site as View


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


def pools_of(
    deployment: Deployment,
    times: Path | None = None,
    now: Callable[[], float] = time.monotonic,
    headroom: Headroom | None = None,
    growths: Growths | None = None,
    log: Any = None,
) -> list[Pool]:
    """Load every task of a deployment; takes seconds.

    Parameters
    ----------
    deployment
        Checked by `check_served`.
    times
        Where service times measured in earlier runs are found, and kept for later ones; None
        starts from the profiles and keeps nothing.
    now
        The pools' clock, seconds.
    headroom
        Of all their runs; None bounds nothing.
    growths
        Says what runs take; None where nobody says it.
    log
        Where it is said which service times are recalled, from where and of when; None says it
        nowhere.

    Raises
    ------
    ServeError
        When a model or a policy cannot be loaded.
    """
    return [
        _pool(deployment, task, times, now, headroom, growths, log)
        for task in deployment.tasks.values()
    ]


def demand_at(
    view: View,
    servers: slice,
    variant: Variant,
    signature: Signature,
    headroom: Headroom,
    found: tuple[Growth, str] | None,
) -> MemoryNeed | None:
    """Divide the requests of some servers so that they fit into the memory that there is.

    Parameters
    ----------
    view, servers
        What their policy sees, and which they are.
    variant, signature
        What they run.
    headroom
        Of all runs.
    found
        Peaks of a run and where they come from; None where they are not known.

    Returns
    -------
    MemoryNeed or None
        What requests take there, where that is known.
    """
    if variant.remote is not None:
        found = tensors_of(signature), "estimated"
    if found is None:
        return None
    demand = memory_need_of(
        *found, signature, int(view.most_rows[servers.start]), headroom.limit_bytes
    )
    view.most_rows[servers] = demand.most_rows
    return demand


def _pool(
    deployment: Deployment,
    task: Task,
    times: Path | None,
    now: Callable[[], float],
    headroom: Headroom | None,
    growths: Growths | None,
    log: Any,
) -> Pool:
    # Compiles, which takes time that `import inferway.live` must not.
    from inferway.dispatch.batching import foresee, rules_of
    from inferway.dispatch.deployed import dispatcher_of
    from inferway.dispatch.service_times import measured_at, recall, remember

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
    demands: list[MemoryNeed | None] = [None] * len(fleet.variants)
    if headroom is not None and growths is not None:
        for k, name in enumerate(fleet.variants):
            variant = task.variants[name]
            servers = slice(int(fleet.first[k]), int(fleet.first[k + 1]))
            found = None
            if variant.model is not None and is_closed(signature):
                assert variant.model.path is not None  # `check_served` has refused others
                largest = int(dispatcher.site.most_rows[servers.start])
                found = growths.of(variant.model, variant.model.path, largest)
            demands[k] = demand_at(dispatcher.site, servers, variant, signature, headroom, found)
    keep = None
    if times is not None:
        keys = {name: _identity(task, name, node.hardware) for name in fleet.variants}
        recalled = recall(dispatcher, keys, times)
        if recalled and log is not None:
            log.info(
                "service times recalled",
                task=task.name,
                variants=recalled,
                file=str(times),
                measured=_day(measured_at([keys[name] for name in recalled], times)),
            )
        keep = _keeping(partial(remember, dispatcher, keys, times), task.name, times, log)
    options = deployment.policy_of(task).options
    central, room = node.queue == "central", HELD_LIMIT
    if central and node.buffer is not None:
        room = (node.buffer - 1) * fleet.servers
    return Pool(
        task.name,
        signature,
        dispatcher,
        runtimes,
        PoolOptions(
            seed=deployment.seed,
            target=task.accuracy_target,
            deadline_s=task.deadline_s,
            drop_late=node.late == "drop",
            in_order=central,
            room=room,
            controller=controller,
            rules=rules_of(dispatcher.site, batches) if any(batches) else None,
            headroom=headroom,
            demands=demands,
            window_s=None if options.get("rate") else options.get("window"),
            remember=keep,
            now=now,
        ),
    )


def _keeping(write: Callable[[], None], task: str, file: Path, log: Any) -> Callable[[], None]:
    """Write what was measured, again and again; say when that fails and when it works again."""
    fails = False

    def keep() -> None:
        nonlocal fails
        failed, fails = fails, False
        try:
            write()
        except OSError as error:  # it is measured again by whoever starts next
            fails = True
            if not failed and log is not None:
                reason = error.strerror or str(error)
                log.warning("service times not kept", task=task, file=str(file), reason=reason)
            return
        if failed and log is not None:
            log.info("service times kept again", task=task, file=str(file))

    return keep


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")


def _controller(
    deployment: Deployment, task: Task, fleet: Fleet, batches: list[Batch | None]
) -> Controller | None:
    spec = deployment.scheduling_of(task)
    if spec is None:
        return None
    from inferway.scheduling import Conditions, controller_of

    told = Conditions(fleet, task.deadline_s, batches=batches)
    try:
        return controller_of(spec, told, deployment.folder)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: scheduling: {error}") from error


def _identity(task: Task, name: str, hardware: str) -> str:
    """What a measured service time is true of: this model on this hardware."""
    model, remote = task.variants[name].model, task.variants[name].remote
    if remote is not None:
        return remote.url
    assert model is not None  # `check_served` has refused it
    assert model.path is not None  # what has to be fetched has a digest
    return f"{identity(model, model.path)} on {hardware}"
