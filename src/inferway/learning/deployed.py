"""The sites that a deployment file's scheduler is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inferway.learning.site import Control
from inferway.twin.scenario import scenario_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.learning.training import Progress, Trained

__all__ = ["POLICIES", "control_of", "policy_of", "task_of", "train"]

POLICIES: Final = ("rl-po", "rl-fo", "rl-po-b", "rl-fo-b")
"""What can be trained: fo sees the workload's phase, po does not; b sets batch sizes, too."""


def task_of(deployment: Deployment, task: str | None = None) -> str:
    """The task that is meant; ValueError where that is not clear."""
    if task is None:
        if len(deployment.tasks) != 1:
            raise ValueError(f"name one of the tasks {', '.join(deployment.tasks)}")
        return next(iter(deployment.tasks))
    if task not in deployment.tasks:
        raise ValueError(f"unknown task {task!r}; the file has {', '.join(deployment.tasks)}")
    return task


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
) -> Control:
    """The fleet, workload and deadline of a file, under slotted control.

    Late requests are served and counted as late, whatever the file says: that is what [Tan24]
    trains on.

    Parameters
    ----------
    deployment
        With a workload for the task, and a buffer at its node.
    task, node
        Needed where there are several.
    policy
        One of `POLICIES`; see `policy_of`.
    slot_s
        The file's (``scheduling.slot``), or 1, if not given.
    accuracies
        Of all variants that run there, for the reward, where these are not to be the file's: the
        paper trains on other data than it is evaluated on.

    Raises
    ------
    ValueError
        Where something is not clear, or such a site cannot be trained on.
    """
    name = policy_of(deployment, policy)
    if slot_s is None:
        spec = deployment.scheduling
        slot_s = 1.0 if spec is None else float(spec.options.get("slot", 1.0))
    scenario = scenario_of(deployment, task_of(deployment, task), node)
    if scenario.deadline_s is None:
        raise ValueError("what is trained keeps a deadline: give the task a `deadline`")
    gains: tuple[float, ...] = ()
    if accuracies:
        if set(accuracies) != set(scenario.fleet.variants):
            raise ValueError(
                f"accuracies for the reward of {', '.join(sorted(accuracies))}; the variants are "
                f"{', '.join(scenario.fleet.variants)}"
            )
        gains = tuple(accuracies[variant] for variant in scenario.fleet.variants)
    batches = name.endswith("-b")
    return Control(
        replace(
            scenario,
            late="serve",
            failures={},
            outages=(),
            # As deployed: a scheduler that sets no batches has requests served one by one.
            batches=scenario.batches if batches else (),
        ),
        slot_s=slot_s,
        sees_phase=name.startswith("rl-fo"),
        batches=batches,
        gains=gains,
    )


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
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Trained:
    """Train a scheduler for a deployment's fleet, workload and deadline; needs the extra `learn`.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    task, policy, node, accuracies
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
    from inferway.learning import training
    from inferway.learning.settings import TUNED, Settings

    name, chosen = task_of(deployment, task), policy_of(deployment, policy)
    changes = settings if slots is None else {"slots": slots, **settings}
    try:
        wanted = replace(Settings() if paper else TUNED, **changes)
    except TypeError as error:
        raise ValueError(str(error)) from None
    return training.train(
        control_of(deployment, name, chosen, node=node, accuracies=accuracies),
        wanted,
        Path("out/train", chosen) if out is None else Path(out),
        task=name,
        seed=deployment.seed if seed is None else seed,
        command=f"inferway.train(..., policy={chosen!r}, slots={wanted.slots})",
        start=start,
        progress=progress,
    )
