"""What a deployment file may say that the live server does not run yet, in a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.deployment.deployment import Deployment, Node, Task, Variant

__all__ = ["sentences"]

_SIGHTED = {"rl-fo", "rl-fo-b", "sa"}
# Policies that steer by the accuracy balance: without a target there is nothing to steer to.
_STEERED = {"r-jiq", "r-jsq", "r-jsq-d", "tad", "tad-op", "priced"}


def sentences(deployment: Deployment) -> list[str]:
    """List the reasons why `deployment` cannot be served, each with the field that it concerns."""
    found: list[str] = []
    if deployment.network is not None:
        found.append("network: a network of nodes is not served yet; one node is")
    elif len(deployment.nodes) > 1:
        names = ", ".join(deployment.nodes)
        found.append(f"nodes: {names} are several nodes; one node is served, without a network")
    if deployment.scheduling is not None:
        name = deployment.scheduling.policy
        if name in _SIGHTED:
            found.append(
                f"scheduling: {name} goes by the workload's state, which a live server cannot see"
            )
    if deployment.placement is not None:
        name = deployment.placement.policy
        found.append(f"placement: {name} is not run live yet; list `instances` under the node")
    for task in deployment.tasks.values():
        found += _of_task(deployment, task)
    return found


def _of_task(deployment: Deployment, task: Task) -> list[str]:
    field = f"tasks.{task.name}"
    found: list[str] = []
    if task.catalog is not None:
        found.append(f"{field}.catalog: catalogs have no models to serve; list `variants`")
    if task.count > 1:
        found.append(f"{field}.count: {task.count} identical tasks are not served yet; one is")
    running = [
        variant
        for name, variant in task.variants.items()
        if any((task.name, name) in node.instances for node in deployment.nodes.values())
    ]
    if not running and task.catalog is None and deployment.nodes:
        found.append(f"{field}: no node has an instance of any of its variants")
    bare = [variant.name for variant in running if not variant.runnable]
    if bare:
        names = ", ".join(bare)
        has = "have" if len(bare) > 1 else "has"
        found.append(f"{field}.variants: {names} {has} no `model`, so nothing can answer requests")
    found += [
        f"{field}.variants.{variant.name}.batch: {reason}"
        for node in deployment.nodes.values()
        for variant in running
        if (reason := _unfilled(node, variant))
    ]
    policy = deployment.policy_of(task).policy
    if policy in _STEERED and task.accuracy_target is None:
        found.append(f"{field}.accuracy_target: {policy} needs one to steer to")
    return found


def _unfilled(node: Node, variant: Variant) -> str:
    """Why the batches of a variant would never come about at a node; empty where they would."""
    if variant.batch is None:
        return ""
    if node.queue == "central":
        return (
            f"node {node.name} has a central queue, so that each instance holds one request and "
            "forms no batches; leave out the one or the other"
        )
    if node.buffer is not None and variant.batch.min > node.buffer:
        return (
            f"instances wait for {variant.batch.min} requests and have room for {node.buffer}; "
            "lower its `min` or raise the node's `buffer`"
        )
    return ""
