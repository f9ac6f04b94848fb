from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inferway.deployment import load
from inferway.network import entries_of, members_of, network_of, topology_of

Write = Callable[..., Path]

TASKS = (
    "tasks: {t: {count: 2, variants: {a: {accuracy: 0.8, size: 1 MB, service: {mean: 10 ms}}}}}\n"
)


def test_each_node_of_a_tree_is_as_its_tier(write: Write) -> None:
    deployment = load(
        write(
            TASKS + "nodes: {edge-1: {buffer: 3, budget: 5 MB}}\n"
            "network:\n"
            "  tree:\n"
            "    - {tier: cloud, nodes: 1, repository: true, hardware: fast, late: serve}\n"
            "    - {tier: edge, nodes: 4, rtt: 1 ms, pinned: {t-1/a: 1}, instances: {t/a: 2},\n"
            "       budget: [{share: 50 %, size: 1 MB}, {share: 50 %, size: 2 MB}]}\n"
        )
    )
    found = members_of(deployment, topology_of(deployment))
    assert list(found) == ["cloud", "edge-0", "edge-1", "edge-2", "edge-3"]
    cloud = found["cloud"]
    assert (cloud.repository, cloud.hardware, cloud.late) == (True, "fast", "serve")
    assert cloud.budget_bytes is None
    assert found["edge-1"] is deployment.nodes["edge-1"]
    budgets = [found[f"edge-{k}"].budget_bytes for k in (0, 2, 3)]
    assert sorted({b for b in budgets if b is not None}) == [10**6, 2 * 10**6]
    assert found["edge-0"].pinned == {("t-1", "a"): 1}
    assert found["edge-0"].instances == {("t", "a"): 2}


def test_tasks_enter_where_their_workload_says_or_anywhere(write: Write) -> None:
    text = (
        "tasks:\n"
        "  t: {count: 2, variants: {a: {accuracy: 0.8, size: 1 MB, service: {mean: 10 ms}}}}\n"
        "  u: {variants: {a: {accuracy: 0.8, size: 1 MB, service: {mean: 10 ms}}}}\n"
        "network: {tree: [{tier: c, nodes: 1, repository: true}, {tier: b, nodes: 3, rtt: 1 ms}]}\n"
        "workload:\n"
        "  t: {arrivals: {process: constant, rate: 1/s}, entries: {tier: b, per_task: 1}}\n"
    )
    deployment = load(write(text))
    found = entries_of(deployment, topology_of(deployment))
    assert list(found) == ["t-0", "t-1", "u"]
    assert [len(found[name]) for name in found] == [1, 1, 3]
    assert found["u"] == ("b-0", "b-1", "b-2")
    network = network_of(deployment)
    entered = {network.path(int(q))[0] for q in network.requests.path}
    assert entered == {found["t-0"][0], found["t-1"][0]}


def test_others_and_nodes_that_nothing_describes(write: Write) -> None:
    text = (
        TASKS + "nodes: {cloud: {repository: true}}\n"
        "network:\n  links: [{between: [shop, cloud], rtt: 3 ms}]\n"
    )
    deployment = load(write(text))
    assert members_of(deployment, topology_of(deployment))["shop"].budget_bytes is None
    deployment = load(write(text + "  others: {budget: 7 MB, buffer: 2}\n"))
    shop = members_of(deployment, topology_of(deployment))["shop"]
    assert (shop.name, shop.budget_bytes, shop.buffer) == ("shop", 7 * 10**6, 2)
