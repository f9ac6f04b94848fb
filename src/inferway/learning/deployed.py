"""The site that a scheduler is trained on: a deployment file's, or the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from inferway.deployment import Deployment, ServiceTime, load
from inferway.deployment.workloads import MapArrivals
from inferway.learning import training
from inferway.learning.control import Control
from inferway.learning.settings import TUNED, Settings, settings_of
from inferway.learning.training import Trained, TrainingProgress
from inferway.scheduling.neural_policy import About, NeuralPolicy
from inferway.site import Fleet
from inferway.twin.scenario import Failures, Scenario, scenario_of
from inferway.twin.service_walk import ServiceWalk

# Policies to train: fo sees the workload's phase, po does not; b sets batch sizes, too.
POLICIES: Final = ("rl-po", "rl-fo", "rl-po-b", "rl-fo-b")
# Partial or full observability: with fo, the workload's state is seen.
Observability = Literal["po", "fo"]
# What becomes of requests that are late, as a node's key `late`.
Late = Literal["drop", "serve"]
# Mean times until an instance goes away and until it is back, s: of all variants, or by variant; or
# the node's `failures`.
Outages = tuple[float, float] | Mapping[str, tuple[float, float]] | Literal["file"]


def task_of(deployment: Deployment, task: str | None = None) -> str:
    """The task that is meant; ValueError where that is not clear."""
    if task is None:
        if len(deployment.tasks) != 1:
            raise ValueError(f"name one of the tasks {', '.join(deployment.tasks)}")
        return next(iter(deployment.tasks))
    if task not in deployment.tasks:
        raise ValueError(f"unknown task {task!r}; the file has {', '.join(deployment.tasks)}")
    return task


def trained_for(deployment: Deployment, task: str | None = None) -> tuple[str, ...]:
    """The tasks that a policy is trained for: the one named, or all that it schedules together.

    ValueError where that is not clear.
    """
    if task is None and deployment.scheduled_together:
        return deployment.scheduled_together
    return (task_of(deployment, task),)


def policy_of(deployment: Deployment, policy: str | None = None) -> str:
    """The policy to train: the one named, the file's where that is learned, else ``rl-po``."""
    if policy is None:
        spec = deployment.scheduling
        return spec.policy if spec is not None and spec.policy in POLICIES else "rl-po"
    if policy not in POLICIES:
        raise ValueError(f"{policy!r} cannot be trained; {', '.join(POLICIES)} can")
    return policy


def control_of(
    deployment: Deployment,
    task: str | None = None,
    policy: str | None = None,
    *,
    node: str | None = None,
    slot_s: float | None = None,
    accuracies: Mapping[str, float] | None = None,
    late: Late = "serve",
    walk: ServiceWalk | None = None,
    outages: Outages | None = None,
) -> Control:
    """The fleet, workload and deadline of a file, under slotted control.

    Late requests are served and counted as late, whatever the file says: that is what [Tan24]
    trains on. With `late` drop, the site is as it is deployed with that key: servers predicted to
    be late are left out, and requests that are turned away or dropped for it cost what rejected
    ones do. With a walk, service times drift. With outages, instances go away and come back at
    random, and what is trained is for any part of them; without, all are always there. The slot is
    the file's (``scheduling.slot``) or 1 s, if not given. `accuracies` of all variants that run
    there count in the reward where these are not to be the file's: the paper trains on other data
    than it is evaluated on. ValueError where something is not clear, or such a site cannot be
    trained on.

    Where no task is named and the file has one policy for several, these are its parts.
    """
    tasks = trained_for(deployment, task)
    if len(tasks) > 1:
        if accuracies:
            raise ValueError(
                "accuracies for the reward are those of one task's variants, and one policy "
                f"schedules {' and '.join(tasks)}; write them into the file instead"
            )
        if outages:
            raise ValueError(
                "outages are for the training of one task, and one policy schedules "
                f"{' and '.join(tasks)}"
            )
        given: dict[str, Any] = {"node": node, "slot_s": slot_s, "late": late, "walk": walk}
        first, *others = (control_of(deployment, name, policy, **given) for name in tasks)
        return replace(first, others=tuple(others))
    name, spec = policy_of(deployment, policy), deployment.scheduling
    if slot_s is None:
        slot_s = 1.0 if spec is None else float(spec.options.get("slot", 1.0))
    scenario = scenario_of(deployment, tasks[0], node)
    if scenario.deadline_s is None:
        raise ValueError("what is trained keeps a deadline: give the task a `deadline`")
    variants, batches = scenario.fleet.variants, name.endswith("-b")
    if accuracies and set(accuracies) != set(variants):
        raise ValueError(
            f"accuracies for the reward of {', '.join(sorted(accuracies))}; the variants are "
            f"{', '.join(variants)}"
        )
    return Control(
        replace(
            scenario,
            late=late,
            walk=walk,
            failures=failures_of(scenario, outages),
            outages=(),
            # As deployed: a scheduler that sets no batches has requests served one by one.
            batches=scenario.batches if batches else (),
        ),
        slot_s=slot_s,
        sees_phase=name.startswith("rl-fo"),
        batches=batches,
        gains=tuple(accuracies[variant] for variant in variants) if accuracies else (),
    )


def failures_of(scenario: Scenario, outages: Outages | None) -> Mapping[str, Failures]:
    """How servers fail and return in training, by class; none without `outages`.

    ValueError where the node has no `failures`, for unknown variants, or times that are not above
    0 s.
    """
    variants = scenario.fleet.variants
    if outages is None:
        return {}
    if isinstance(outages, str):
        if outages != "file":
            raise ValueError(
                f"outages are `file`, two times or two times by variant, not {outages!r}"
            )
        if not scenario.failures:
            raise ValueError(
                "the node has no `failures` to train with: write them there, or give the times"
            )
        return scenario.failures
    by_variant = outages if isinstance(outages, Mapping) else dict.fromkeys(variants, outages)
    if unknown := ", ".join(sorted(by_variant.keys() - set(variants))):
        raise ValueError(f"outages of {unknown}; the variants are {', '.join(variants)}")
    if not all(0 < one < np.inf for times in by_variant.values() for one in times):
        raise ValueError("an outage comes after a time above 0 s and lasts for one above 0 s")
    return {variant: Failures(every_s, for_s) for variant, (every_s, for_s) in by_variant.items()}


def paper_site() -> Scenario:
    """The site of [Tan24], Sec. 5.1: two light and two heavy servers of 15 places, 300 ms.

    Arrivals are the MAP of two phases, 180/s and 10/s. The printed D0 leaves its first phase at
    0.036/s; only 0.0036/s fits the paper's figures.
    """
    service_s = (0.0107, 0.0429)
    return Scenario(
        fleet=Fleet(
            variants=("light", "heavy"),
            rate=1.0 / np.array(service_s),
            accuracy=np.array([0.7769, 0.8278]),
            count=np.array([2, 2]),
            buffer=15,
        ),
        service=tuple(ServiceTime("deterministic", mean_s) for mean_s in service_s),
        arrivals=MapArrivals(
            process="map",
            d0=((-180.0036, 0.0036), (0.0002, -10.0002)),
            d1=((180.0, 0.0), (0.0, 10.0)),
        ),
        policy="alias",
        deadline_s=0.3,
        late="serve",
    )


def setting(
    file: str | PathLike[str] | None = None,
    *,
    task: str | None = None,
    node: str | None = None,
    slot_s: float | None = None,
    observability: Observability = "po",
    batching: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
    gains: Sequence[float] | None = None,
    late: Late = "serve",
    walk: ServiceWalk | None = None,
    outages: Outages | None = None,
) -> Control:
    """A site under slotted control.

    Parameters
    ----------
    file
        Deployment file; `paper_site` without one.
    task, node
        Which of the file's, where it has several.
    slot_s
        Time between two decisions, s; the file's (``scheduling.slot``), or 1, if not given.
    observability
        ``fo`` adds the workload's phase to observations, and the time in it where it is periodic.
    batching
        Whether batch sizes are decided, too; the variants need a ``batch``.
    alpha, beta
        Cost of a rejected request, and what accuracy weighs, in the reward ([Tan24], eq. 2).
    gains
        (K,) accuracies in the reward, in the fleet's order; the fleet's own if not given.
    late
        ``drop`` for a site as it is deployed with that key, ``serve`` for what [Tan24] trains on.
    walk
        How service times drift; not at all if not given.
    outages
        How instances come and go, as `Outages`; all are always there if not given.

    Raises
    ------
    DeploymentError
        For a file that is none.
    ValueError
        For options out of range, or a site that cannot be controlled in slots.
    """
    if late not in ("drop", "serve"):
        raise ValueError(f"late is drop or serve, not {late!r}")
    if observability not in ("po", "fo"):
        raise ValueError(f"observability is po or fo, not {observability!r}")
    if file is None:
        if task is not None or node is not None:
            raise ValueError("a task or node is one of a file: give the file, too")
        if batching:
            raise ValueError(
                "the paper prints no service times of batches: give a file whose variants have "
                "a `batch`"
            )
        site = paper_site()
        control = Control(
            replace(site, late=late, walk=walk, failures=failures_of(site, outages)),
            slot_s=1.0 if slot_s is None else slot_s,
            sees_phase=observability == "fo",
        )
    else:
        policy = f"rl-{observability}{'-b' if batching else ''}"
        control = control_of(
            load(file),
            task,
            policy,
            node=node,
            slot_s=slot_s,
            late=late,
            walk=walk,
            outages=outages,
        )
        if control.others:
            raise ValueError(
                f"an environment is of one task; name one of {', '.join(control.tasks)}"
            )
    return replace(
        control,
        rejected_weight=alpha,
        accuracy_weight=beta,
        gains=() if gains is None else tuple(gains),
    )


def differences(
    deployment: Deployment,
    control: Control,
    task: str,
    policy: str,
    *,
    node: str | None = None,
    start: NeuralPolicy | None = None,
) -> list[str]:
    """Say in sentences where the site of a training is not the one that it is deployed on.

    `control` is what `control_of` made of the deployment, `start` the policy that the training
    begins with.
    """
    if control.others:
        every = [
            (name, differences(deployment, one, name, policy, node=node))
            for name, one in zip(control.tasks, control.parts, strict=True)
        ]
        found = [f"{name}: {sentence}" for name, sentences in every for sentence in sentences]
        return found + (_begun_elsewhere(start, control) if start is not None else [])
    written = scenario_of(deployment, task, node)
    asked = policy if deployment.scheduling is None else deployment.scheduling.policy
    said = {
        "the node has `late: drop`: as deployed, servers predicted to be late are left out before "
        "the policy's choice and late requests are dropped; in training all servers are there and "
        "late requests are served and counted. Train with `--late drop`, or write `late: serve` at "
        "the node to deploy what is trained": written.late == "drop"
        and control.scenario.late == "serve",
        "the node has `late: serve`: as deployed, all servers are there for the policy's choice "
        "and late requests are served; in training servers predicted to be late are left out and "
        "late requests are dropped": written.late == "serve" and control.scenario.late == "drop",
        "the node's `failures` and `outages` are left out in training: what is trained is for all "
        "instances together. Train with `--outages file` for any part of them": (
            bool(written.failures or written.outages) and not control.changing
        ),
        f"the task's `accuracy_target` of {written.target or 0:g} plays no part in training, where "
        "each answer counts its accuracy": written.target is not None,
        f"variants have a `batch`, which {policy} does not use: requests are served one by one. "
        f"{policy}-b sets batch sizes": any(written.batches) and not policy.endswith("-b"),
        f"the file's `scheduling` is {asked}, and {policy} is trained": asked != policy,
    }
    found = [sentence for sentence, holds in said.items() if holds]
    return found + (_begun_elsewhere(start, control) if start is not None else [])


def _begun_elsewhere(start: NeuralPolicy, control: Control) -> list[str]:
    """Say what a policy that a training begins with was trained for, where that was else."""
    begun, now = (
        [_purpose(part) for part in about.parts] for about in (start.about, control.about())
    )
    return [
        f"{start.path} was trained for {what} {before[what]}, and this training is for "
        f"{wanted[what]}"
        for before, wanted in zip(begun, now, strict=False)
        for what in wanted
        if before[what] != wanted[what]
    ]


def _purpose(about: About) -> dict[str, str]:
    servers = zip(about.variants, about.counts, strict=True)
    return {
        "a deadline of": f"{1e3 * about.deadline_s:g} ms",
        "slots of": f"{about.slot_s:g} s",
        "a buffer of": str(about.buffer),
        "servers": ", ".join(f"{count} {name}" for name, count in servers),
    }


def train(
    deployment: Deployment,
    *,
    task: str | None = None,
    policy: str | None = None,
    node: str | None = None,
    slots: int | None = None,
    paper: bool = False,
    seed: int | None = None,
    out: Path | str | None = None,
    accuracies: Mapping[str, float] | None = None,
    start: Path | None = None,
    late: Late = "serve",
    walk: ServiceWalk | None = None,
    outages: Outages | None = None,
    progress: Callable[[TrainingProgress], None] | None = None,
    **settings: Any,
) -> Trained:
    """Train a scheduler for a deployment's fleet, workload and deadline; needs the extra `learn`.

    Where the file has one policy for several tasks and none is named, it is trained for all.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    task, policy, node, accuracies, late, walk, outages
        As in `control_of`.
    slots
        How long; the settings' own if not given.
    paper
        Whether to take the paper's settings and nothing else.
    seed
        The file's if not given.
    out
        Folder, from which the same call goes on; ``out/train/POLICY`` if not given.
    start
        A trained policy to begin with.
    progress
        Called after each update.
    settings
        Of `inferway.learning.settings.Settings`.

    Raises
    ------
    ValueError
        Where something is not clear, or such a site cannot be trained on.
    """
    names, chosen = trained_for(deployment, task), policy_of(deployment, policy)
    changes = settings if slots is None else {"slots": slots, **settings}
    wanted = settings_of(Settings() if paper else TUNED, changes)
    return training.train(
        control_of(
            deployment,
            task,
            chosen,
            node=node,
            accuracies=accuracies,
            late=late,
            walk=walk,
            outages=outages,
        ),
        wanted,
        Path("out/train", chosen) if out is None else Path(out),
        task=names[0],
        seed=deployment.seed if seed is None else seed,
        command=f"inferway.train(..., policy={chosen!r}, slots={wanted.slots})",
        start=start,
        progress=progress,
    )
