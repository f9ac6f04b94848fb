"""What a deployment file may say that the live world does not run, in a sentence each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.deployment.deployment import Deployment, Node, Task, Variant
    from inferway.deployment.nodes import WrittenNode

_SIGHTED = {"rl-fo", "rl-fo-b", "sa"}
# Policies that steer by the accuracy balance: without a target there is nothing to steer to.
_STEERED = {"r-jiq", "r-jsq", "r-jsq-d", "tad", "tad-op", "priced"}


def sentences(deployment: Deployment) -> list[str]:
    """List why `inferway serve` cannot run `deployment`, each reason with the field it is about."""
    found: list[str] = []
    if deployment.network is not None:
        found.append(
            "network: `serve` runs one node alone; `inferway up` runs the network, and "
            "`inferway node` one of its nodes"
        )
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
        found.append(
            f"placement: {name} moves models between the nodes of a network; for `serve`, list "
            "`instances` under the node"
        )
    for task in deployment.tasks.values():
        running = [
            variant
            for name, variant in task.variants.items()
            if any((task.name, name) in node.instances for node in deployment.nodes.values())
        ]
        found += _of_catalog(task)
        if task.count > 1:
            found.append(
                f"tasks.{task.name}.count: {task.count} identical tasks are served by the nodes "
                "of a network; `serve` takes one"
            )
        if not running and task.catalog is None and deployment.nodes:
            found.append(f"tasks.{task.name}: no node has an instance of any of its variants")
        nodes = {f"node {node.name}": node for node in deployment.nodes.values()}
        found += _of_variants(nodes, task, running)
        found += [
            f"tasks.{task.name}.variants.{variant.name}.model: {variant.model.uri} is on another "
            "host, from where the nodes of a network fetch it; `serve` takes a file that is here"
            for variant in running
            if variant.model is not None and variant.model.path is None
        ]
        found += _of_policy(deployment, task)
    return found


def unserved_at_node(deployment: Deployment) -> list[str]:
    """List why the nodes of `deployment` cannot be run, each reason with the field it is about."""
    found: list[str] = []
    if deployment.network is None:
        found.append("network: there is none, so there is one node alone; `inferway serve` runs it")
    if deployment.scheduling is not None:
        found.append(
            f"scheduling: {deployment.scheduling.policy} routes among a node's own instances, and "
            "the nodes of a network forward as well; give a `dispatch` policy instead"
        )
    network = deployment.network
    described: dict[str, Node | WrittenNode] = {
        f"nodes.{node.name}": node for node in deployment.nodes.values()
    }
    if network is not None:
        for k, tier in enumerate(network.tree or ()):
            described[f"network.tree[{k}]"] = tier
        if network.others is not None:
            described["network.others"] = network.others
    found += [
        f"{field}.queue: requests wait at the instances of a network's nodes, not in one queue; "
        "leave it out"
        for field, node in described.items()
        if node.queue == "central"
    ]
    for task in deployment.tasks.values():
        found += _of_catalog(task)
        # Placement may bring any variant to any node, and a repository holds them all.
        members = {field: node for field, node in described.items() if node.queue != "central"}
        found += _of_variants(members, task, task.variants.values())
        found += _of_policy(deployment, task)
    return found


def _of_catalog(task: Task) -> list[str]:
    if task.catalog is None:
        return []
    return [f"tasks.{task.name}.catalog: catalogs have no models to serve; list `variants`"]


def _of_variants(
    nodes: Mapping[str, Node | WrittenNode], task: Task, needed: Collection[Variant]
) -> list[str]:
    """Say which variants cannot run, or not as they are described."""
    field, found = f"tasks.{task.name}.variants", []
    bare = [variant.name for variant in needed if not variant.runnable]
    if bare and task.catalog is None:
        names = ", ".join(bare)
        has = "have" if len(bare) > 1 else "has"
        found.append(f"{field}: {names} {has} no `model`, so nothing can answer requests")
    unfilled = [
        f"{field}.{variant.name}.batch: {reason}"
        for name, node in nodes.items()
        for variant in needed
        if (reason := _unfilled(name, node, variant))
    ]
    return found + list(dict.fromkeys(unfilled))


def _of_policy(deployment: Deployment, task: Task) -> list[str]:
    policy = deployment.policy_of(task).policy
    if policy in _STEERED and task.accuracy_target is None:
        return [f"tasks.{task.name}.accuracy_target: {policy} needs one to steer to"]
    return []


def _unfilled(name: str, node: Node | WrittenNode, variant: Variant) -> str:
    """Why the batches of a variant would never come about at a node; empty where they would."""
    if variant.batch is None:
        return ""
    if node.queue == "central":
        return (
            f"{name} has a central queue, so that each instance holds one request and "
            "forms no batches; leave out the one or the other"
        )
    if node.buffer is not None and variant.batch.min > node.buffer:
        return (
            f"instances wait for {variant.batch.min} requests and have room for {node.buffer}; "
            "lower its `min` or raise the node's `buffer`"
        )
    return ""
