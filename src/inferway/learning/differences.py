"""Where the site of a training is not the one that its policy is deployed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferway.learning.site import Control
from inferway.twin.scenario import scenario_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.scheduling.network import Network
    from inferway.site import Fleet

__all__ = ["differences"]


def differences(
    deployment: Deployment,
    control: Control,
    task: str,
    policy: str,
    *,
    node: str | None = None,
    start: Network | None = None,
) -> list[str]:
    """Say in sentences where the site of a training is not the one that it is deployed on.

    Parameters
    ----------
    deployment, task, policy, node
        As of `inferway.learning.deployed.control_of`.
    control
        What it returned.
    start
        The policy that the training begins with.
    """
    written, fleet = scenario_of(deployment, task, node), control.scenario.fleet
    said = []
    if written.late == "drop":
        said.append(
            "the node has `late: drop`: as deployed, servers predicted to be late are left out "
            "before the policy's choice and late requests are dropped; in training all servers "
            "are there and late requests are served and counted. Write `late: serve` at the node "
            "to deploy what is trained"
        )
    if written.failures or written.outages:
        said.append("the node's `failures` and `outages` are left out in training")
    if written.target is not None:
        said.append(
            f"the task's `accuracy_target` of {written.target:g} plays no part in training, where "
            "each answer counts its accuracy"
        )
    batched = [one for one in written.batches if one is not None]
    if batched and not policy.endswith("-b"):
        said.append(
            f"variants have a `batch`, which {policy} does not use: requests are served one by "
            f"one. {policy}-b sets batch sizes"
        )
    if deployment.scheduling is not None and deployment.scheduling.policy != policy:
        said.append(
            f"the file's `scheduling` is {deployment.scheduling.policy}, and {policy} is trained"
        )
    if start is not None:
        said += _begun_elsewhere(start, control, fleet)
    return said


def _begun_elsewhere(start: Network, control: Control, fleet: Fleet) -> list[str]:
    """What the policy that training begins with was trained for, where this is something else."""
    about, deadline_s = start.about, control.scenario.deadline_s
    pairs = (
        ("a deadline of", f"{1e3 * about.deadline_s:g} ms", f"{1e3 * (deadline_s or 0):g} ms"),
        ("slots of", f"{about.slot_s:g} s", f"{control.slot_s:g} s"),
        ("a buffer of", str(about.buffer), str(fleet.buffer)),
        (
            "servers",
            _servers(about.variants, about.counts),
            _servers(fleet.variants, fleet.count.tolist()),
        ),
    )
    return [
        f"{start.path} was trained for {what} {before}, and this training is for {now}"
        for what, before, now in pairs
        if before != now
    ]


def _servers(variants: Sequence[str], counts: Sequence[int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in zip(variants, counts, strict=True))
