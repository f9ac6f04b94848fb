"""Networks of deployment files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.deployment import DeploymentError, load
from inferway.network import Service, demand_of, deployed, network_of, topology_of

Write = Callable[..., Path]

TASKS = """\
tasks:
  see:
    max_instances: 2
    variants:
      quick: {accuracy: 0.5, size: 1 GiB, service: {mean: 10 ms}}
      exact: {accuracy: 0.9, size: 3 GiB, service: {mean: 50 ms}}
"""
LINKS = """\
nodes:
  cloud: {repository: true}
  shop: {budget: 4 GiB}
network:
  links: [{between: [shop, hub], rtt: 4 ms}, {between: [hub, cloud], rtt: 30 ms}]
  others: {budget: 2 GiB}
"""
WORKLOAD = "workload: {see: {arrivals: {process: constant, rate: 10/s}}}\n"


def test_the_papers_first_topology(examples: Path) -> None:
    """Sec. VI of [SiSalem23], and what follows from its numbers."""
    network = network_of(load(examples / "topology-1.yaml"))
    assert len(network.nodes) == 36
    assert len(network.models.task) == 600
    assert len(network.requests.task) == 40
    assert np.diff(network.paths.first).tolist() == [5] * (len(network.paths.first) - 1)
    assert network.paths.rtt_s[:5].tolist() == pytest.approx([0, 0.006, 0.012, 0.027, 0.067])
    assert network.tiers == ("cloud", "isp", "metro", "office", "base")
    assert (network.budget[network.tier == 4] == 4 * 2**30).all()
    assert network.warnings == ()
    # Every task enters at two base stations, half of its requests at each.
    for task in range(20):
        own = np.flatnonzero(network.requests.task == task)
        assert network.requests.share[own].tolist() == [0.5, 0.5]
        entries = {network.path(int(q))[0] for q in network.requests.path[own]}
        assert len(entries) == 2
        assert all(name.startswith("base-") for name in entries)
    # The cloud serves with the variant of least combined cost: 1000 / 209 + 44.9 ms at alpha 1.
    last = network.options.first[1:] - 1
    assert {network.name(int(m)).split("/")[1] for m in network.options.model[last]} == {
        "3.99pruned#0"
    }
    assert network.options.cost[last].tolist() == pytest.approx([67 + 1000 / 209 + 44.9] * 40)
    # No more than three dozen models beat it: 13 of 600 per node and task, in three copies each.
    assert np.diff(network.options.first).tolist() == [118] * 40
    capacity = network.pairs.pinned * network.pairs.capacity
    served = capacity[network.options.pair[last]].reshape(20, 2)[:, 0]
    assert (served >= network.requests.peak.reshape(20, 2).sum(axis=1)).all()


def test_capacity_is_frames_per_second_times_the_slot(examples: Path) -> None:
    network = network_of(load(examples / "topology-1.yaml"))
    found = {
        (network.variants[network.models.variant[m]], network.hardware[v]): capacity
        for v, m, capacity in zip(
            network.pairs.node, network.pairs.model, network.pairs.capacity, strict=True
        )
    }
    assert found["608p", 1] == 14.2 * 60 == 852
    assert found["tiny-288p", 0] == 1272 * 60


def test_the_papers_second_topology(examples: Path) -> None:
    network = network_of(load(examples / "topology-2.yaml"))
    assert network.nodes == ("cloud", "isp", "office", "base-0", "base-1")
    assert network.path(0) == ("base-0", "office", "isp", "cloud")
    assert network.paths.rtt_s[:4].tolist() == pytest.approx([0, 0.006, 0.027, 0.067])


def test_alpha_moves_the_repository_s_variant(examples: Path, write: Write) -> None:
    """[SiSalem23], Sec. VI-A: at alpha 3 to 5 the second most accurate has the least cost."""
    text = (examples / "topology-1.yaml").read_text()
    for alpha, name in ((1, "3.99pruned"), (3, "512p"), (4, "512p"), (5, "512p")):
        network = network_of(load(write(text.replace("alpha: 1", f"alpha: {alpha}"))))
        models = network.pairs.model[network.pairs.pinned > 0]
        assert {network.variants[v] for v in network.models.variant[models]} == {name}


def test_links_and_others(write: Write) -> None:
    deployment = load(write(TASKS + LINKS + WORKLOAD))
    network = network_of(deployment)
    assert network.nodes == ("cloud", "shop", "hub")
    assert network.budget.tolist() == [np.inf, 4 * 2**30, 2 * 2**30]
    # Without `entries`, requests enter at every node that is no repository.
    assert [network.path(q) for q in range(2)] == [("shop", "hub", "cloud"), ("hub", "cloud")]
    assert demand_of(deployment).counts(0).sum() == 600
    # `exact` is larger than the hub's budget.
    hub = network.pairs.model[network.pairs.node == 2]
    assert {network.variants[v] for v in network.models.variant[hub]} == {"quick"}


def test_a_graph_file(write: Write) -> None:
    nodes = "".join(
        f'node [ id {k} label "{name}" Latitude {k} Longitude 0 ]\n'
        for k, name in enumerate(["New York", "Chicago", "Denver"])
    )
    edges = "edge [ source 0 target 1 ] edge [ source 1 target 2 ]"
    write(f"graph [ {nodes} {edges} ]", "three.gml")
    text = "nodes: {Denver: {repository: true}}\nnetwork: {gml: three.gml, others: {budget: 4 GiB}}"
    network = network_of(load(write(f"{TASKS}{text}\n{WORKLOAD}")))
    assert network.path(0) == ("New-York", "Chicago", "Denver")
    assert network.budget.tolist() == [4 * 2**30, 4 * 2**30, np.inf]


def test_tasks_of_several_kinds(write: Write) -> None:
    text = TASKS + "  hear:\n    count: 3\n    variants: {only: {accuracy: 1, size: 1 GiB, "
    text += "service: {mean: 5 ms}}}\n" + LINKS
    text += """\
workload:
  hear-2: {arrivals: {process: constant, rate: 5/s}, entries: {nodes: [hub]}}
  see: {arrivals: {process: poisson, rate: 5/s}, entries: {nodes: [shop, hub], per_task: 1}}
"""
    network, demand = deployed(load(write(text)))
    assert network.tasks == ("see", "hear-0", "hear-1", "hear-2")
    assert network.variants == ("quick", "exact", "only")
    assert np.diff(network.models.first).tolist() == [4, 1, 1, 1]
    assert network.requests.task.tolist() == [3, 0]
    assert demand.counts(0)[0] == 300
    assert demand.expected(0).tolist() == [300.0, 300.0]


def test_pins_of_nodes_tiers_and_counted_tasks(write: Write) -> None:
    text = TASKS.replace("max_instances", "count: 2\n    max_instances")
    text += """\
network:
  tree:
    - {tier: root, nodes: 1, repository: true, pinned: {see/exact: 9}}
    - {tier: edge, nodes: 2, rtt: 1 ms, budget: 8 GiB, pinned: {see-1/quick: 2}}
"""
    network = network_of(load(write(text + WORKLOAD)))
    pinned = np.flatnonzero(network.pairs.pinned)
    assert [
        (network.nodes[network.pairs.node[p]], network.name(int(network.pairs.model[p])))
        for p in pinned
    ] == [
        ("root", "see-0/exact#0"),
        ("root", "see-1/exact#0"),
        *[(f"edge-{k}", f"see-1/quick#{copy}") for k in range(2) for copy in range(2)],
    ]
    assert network.pairs.pinned[pinned].tolist() == [9, 9, 1, 1, 1, 1]


def test_another_cost(write: Write) -> None:
    def hops(service: Service) -> float:
        return len(service.nodes) + 0.1 * (service.variant == "exact")

    network = network_of(load(write(TASKS + LINKS + WORKLOAD)), cost=hops)
    options = slice(*network.options.first[:2])
    assert network.options.cost[options].tolist() == pytest.approx([1, 1, 1.1, 1.1, 2, 2, 3])


def test_a_slot_of_the_placement_s(write: Write) -> None:
    text = TASKS + LINKS + WORKLOAD + "placement: {policy: olag, slot: 30 s}\n"
    network = network_of(load(write(text)))
    assert network.slot_s == 30
    assert network.pairs.capacity.max() == 3000


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (TASKS + WORKLOAD, 0, "the file has no `network`, and this needs one: a `tree`, `links`"),
        (TASKS + LINKS, 0, "workload: nothing is requested; give each task a `workload`"),
        (
            TASKS + LINKS.replace("repository: true", "") + WORKLOAD,
            10,
            "network: task see has no repository: say `repository: true` for some node",
        ),
        (
            TASKS + LINKS + "  \n" + WORKLOAD.replace("rate: 10/s", "load: 0.5"),
            14,
            "workload.see: the arrivals are given as a load",
        ),
        (
            TASKS + LINKS + WORKLOAD.replace("}}}", "}, entries: {nodes: [moon]}}}"),
            13,
            "workload.see: requests are to enter at moon, but there is no such node",
        ),
        (
            TASKS + LINKS + WORKLOAD.replace("}}}", "}, entries: {tier: moon}}}"),
            13,
            "workload.see: there is no tier moon",
        ),
        (
            TASKS + LINKS + WORKLOAD.replace("}}}", "}, entries: {nodes: [hub], per_task: 2}}}"),
            13,
            "workload.see: each task is to enter at 2 nodes, but there are 1 to draw from",
        ),
        (
            TASKS + LINKS.replace("[hub, cloud]", "[bub, cloud]") + WORKLOAD,
            10,
            "network: no path leads from shop to a repository (cloud)",
        ),
        (
            TASKS
            + LINKS.replace("repository: true", "repository: true, pinned: {see/exact: 1}")
            + WORKLOAD.replace("10/s", "30/s"),
            10,
            "network: the repository cloud can serve 1200 requests of see in a slot, but up to",
        ),
        (
            TASKS + LINKS.replace("repository: true", "repository: true, budget: 1 GiB") + WORKLOAD
            + "cost: {alpha: 9}\n",
            10,
            "network: cloud has a budget of 1 GiB, but a repository's copies (eq. 9) there take",
        ),
        (
            TASKS.replace("size: 3 GiB, ", "") + LINKS.replace("budget: 4 GiB", "hardware: cpu")
            + WORKLOAD,
            10,
            "network: variant exact of task see needs `size`",
        ),
    ],
)  # fmt: skip
def test_refused(write: Write, text: str, line: int, sentence: str) -> None:
    deployment = load(write(text))
    with pytest.raises(DeploymentError) as error:
        network_of(deployment)
    (problem,) = error.value.problems
    assert sentence in str(problem)
    assert problem.line == line


def test_a_node_that_is_not_in_the_graph(write: Write) -> None:
    write("graph [ node [ id 0 label a ] node [ id 1 label b ] edge [ source 0 target 1 ] ]", "g")
    text = "nodes: {a: {repository: true}, c: {}}\nnetwork: {gml: g}\n"
    with pytest.raises(DeploymentError, match="node c is described under `nodes`, but the network"):
        topology_of(load(write(TASKS + text)))
    write("nodes", "g")
    with pytest.raises(DeploymentError, match=r"network: .*g is not a GML file"):
        topology_of(load(write(TASKS + text)))


HURRIED = """\
tasks:
  t:
    deadline: 40 ms
    variants:
      quick: {accuracy: 0.7, size: 1 GiB, service: {cpu: {mean: 10 ms}}, BATCH}
      exact: {accuracy: 0.9, size: 1 GiB, service: {cpu: {mean: 30 ms}}}
network: {links: [{between: [near, cloud], rtt: 20 ms}]}
nodes:
  near: {budget: 4 GiB}
  cloud: {repository: true}
cost: {alpha: 1}
placement: {policy: static-greedy, slot: 1 s}
workload: {t: {arrivals: {process: poisson, rate: 200/s}, entries: {nodes: [near]}}}
"""


def test_a_copy_has_the_room_of_batches_that_are_in_time(write: Write) -> None:
    capacities = {}
    for name, batch, deadline in (
        ("none", "price: 1", "40 ms"),
        ("short", "batch: {sizes: [1, 4, 16], service: [10 ms, 20 ms, 60 ms]}", "40 ms"),
        ("capped", "batch: {sizes: [1, 4, 16], service: [10 ms, 20 ms, 60 ms], max: 1}", "40 ms"),
        ("long", "batch: {sizes: [1, 4, 16], service: [10 ms, 20 ms, 60 ms]}", "200 ms"),
    ):
        text = HURRIED.replace("BATCH", batch).replace("deadline: 40 ms", f"deadline: {deadline}")
        network = network_of(load(write(text)))
        quick = network.variants.index("quick")
        own = network.models.variant[network.pairs.model] == quick
        capacities[name] = set(network.pairs.capacity[own].tolist())
    assert capacities == {"none": {100.0}, "short": {200.0}, "capped": {100.0}, "long": {266.0}}


def test_what_is_late_on_its_way_is_no_option_but_at_a_repository(write: Write) -> None:
    text = HURRIED.replace("BATCH", "price: 1")
    reached = {}
    for deadline in ("60 ms", "40 ms", "25 ms", "5 ms"):
        network = network_of(load(write(text.replace("40 ms", deadline))))
        variant = network.models.variant[network.options.model]
        reached[deadline] = {
            (network.nodes[node], network.variants[k])
            for node, k in zip(network.options.node, variant, strict=True)
        }
        assert network.options.repository[-1]
    assert {one for one in reached["60 ms"] if one[0] == "near"} == {
        ("near", "quick"),
        ("near", "exact"),
    }
    assert ("near", "exact") in reached["40 ms"]
    assert {one for one in reached["25 ms"] if one[0] == "near"} == {("near", "quick")}
    assert {node for node, _ in reached["5 ms"]} == {"cloud"}
    placed = inferway.place(load(write(text.replace("40 ms", "25 ms"))))
    # All that have room near are in time, who is sent on is not.
    near = placed.network.nodes.index("near")
    served = placed.served[placed.network.options.node == near].sum()
    assert placed.in_time == pytest.approx(float(served / placed.served.sum()))
    assert placed.in_time == placed.to_json()["in_time"] > 0.4
    assert "in time, if nobody waits" in str(placed)
    endless = inferway.place(load(write(text.replace("    deadline: 40 ms\n", ""))))
    assert endless.in_time is None
    assert "in_time" not in endless.to_json()
