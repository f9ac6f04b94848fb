"""Ranked options against a plain reading of [SiSalem23], Sec. III, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.deployment import ServiceTime, Task, Variant
from inferway.network import (
    DeliveryNetwork,
    Level,
    NetworkError,
    Paths,
    Requests,
    Service,
    Topology,
    delivery,
    delivery_network,
    given_paths,
    shortest_paths,
    tree,
)

GIB = 2**30
HARDWARE = ("fast", "slow")


def variant(name: str, accuracy: float, size: int | None, **mean_s: float) -> Variant:
    service = {h: ServiceTime("deterministic", mean) for h, mean in mean_s.items()}
    return Variant(name, accuracy=accuracy, size_bytes=size, service=service)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small network; values are few, so that ties are many."""
    tiers = [
        Level(
            f"t{k}",
            draw(st.integers(1, 3)),
            draw(st.sampled_from([0.0, 0.005, 0.01])),
            draw(st.sampled_from([None, 0.0, 2.0, 5.0])),
            draw(st.sampled_from(HARDWARE)),
        )
        for k in range(draw(st.integers(0, 3)))
    ]
    tasks = []
    for k in range(draw(st.integers(1, 2))):
        variants = {}
        for w in range(draw(st.integers(1, 3))):
            on = draw(st.sampled_from([("fast",), ("fast", "slow")] if w else [("fast", "slow")]))
            variants[f"v{w}"] = variant(
                f"v{w}",
                draw(st.sampled_from([0.5, 0.9, 0.95])),
                draw(st.integers(1, 4)),
                **{h: draw(st.sampled_from([0.005, 0.01, 0.05])) for h in on},
            )
        count, copies = draw(st.integers(1, 2)), draw(st.sampled_from([None, 1, 3]))
        tasks.append(Task(f"task{k}", variants, count=count, max_instances=copies))
    topology = tree([Level("root", 1, hardware="fast", repository=True), *tiers])
    total = sum(task.count for task in tasks)
    types = draw(
        st.lists(
            st.tuples(st.integers(0, total - 1), st.integers(0, len(topology.nodes) - 1)),
            min_size=1,
            max_size=6,
        )
    )
    return {
        "tasks": tasks,
        "topology": topology,
        "types": types,
        "alpha": draw(st.sampled_from([0.0, 1.0, 3.0])),
    }


def build(case: dict[str, Any], **options: Any) -> DeliveryNetwork:
    topology, types = case["topology"], case["types"]
    entries = np.array([entry for _, entry in types])
    paths = shortest_paths(topology, entries, np.flatnonzero(topology.repository))
    requests = Requests(
        np.array([task for task, _ in types], np.int32),
        np.arange(len(types), dtype=np.int32),
        np.ones(len(types)),
        np.full(len(types), 100.0),
    )
    options = {"alpha": case["alpha"], **options}
    return delivery_network(case["tasks"], topology, paths, requests, **options)


def expanded(case: dict[str, Any]) -> list[Task]:
    return [task for task in case["tasks"] for _ in range(task.count)]


def hosts(topology: Topology, v: int, one: Variant) -> bool:
    """Whether placement may put the variant on a node."""
    runs = one.runs_on(topology.kinds[topology.hardware[v]])
    return runs and not topology.repository[v] and (one.size_bytes or 0) <= topology.budget[v]


def naive_options(case: dict[str, Any], network: DeliveryNetwork, rho: int) -> list[Any]:
    """(cost, hop, variant, copy) of one request type, by the text of Sec. III-C to III-E."""
    topology = case["topology"]
    task = expanded(case)[case["types"][rho][0]]
    start, end = network.paths.first[rho : rho + 2]
    found: list[Any] = []
    limit = (np.inf, 0, 0, 0)
    for hop, k in enumerate(range(start, end)):
        v, rtt = int(network.paths.node[k]), network.paths.rtt_s[k]
        kind = topology.kinds[topology.hardware[v]]
        for w, one in enumerate(task.variants.values()):
            if not one.runs_on(kind):
                continue
            cost = 1000 * (rtt + one.service_on(kind).mean_s)
            cost += case["alpha"] * (100 * (1 - one.accuracy))
            if k == end - 1:
                limit = min(limit, (cost, hop, w, 0))
            elif hosts(topology, v, one):
                found += [(cost, hop, w, copy) for copy in range(task.max_instances or 1)]
    return [option for option in sorted(found) if option[0] < limit[0]] + [limit]


@given(cases())
def test_options_are_those_of_the_paper_in_its_order(case: dict[str, Any]) -> None:
    network = build(case)
    names = [name for task in case["tasks"] for name in task.variants]
    assert list(network.variants) == names
    for rho in range(len(case["types"])):
        options = slice(*network.options.first[rho : rho + 2])
        model = network.options.model[options]
        task = case["types"][rho][0]
        assert (network.models.task[model] == task).all()
        base = network.models.variant[network.models.first[task]]
        found = list(
            zip(
                network.options.cost[options].tolist(),
                network.options.hop[options].tolist(),
                (network.models.variant[model] - base).tolist(),
                network.models.copy[model].tolist(),
                strict=True,
            )
        )
        assert found == naive_options(case, network, rho)
        size = len(found)
        assert network.options.repository[options].tolist() == [False] * (size - 1) + [True]
        start = network.paths.first[rho]
        hops = network.options.hop[options]
        assert (network.paths.node[start + hops] == network.options.node[options]).all()


@given(cases())
@settings(max_examples=30)
def test_large_networks_are_ranked_a_part_at_a_time(case: dict[str, Any]) -> None:
    whole = build(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "_CHUNK", 1)
        parts = build(case)
    for one, other in ((whole.options, parts.options), (whole.pairs, parts.pairs)):
        assert all(a.tolist() == b.tolist() for a, b in zip(one, other, strict=True))


def test_many_equal_costs_keep_their_order() -> None:
    # Two costs, of variants that take turns, at two nodes that are equally far.
    turns = {
        f"v{w}": variant(f"v{w}", (0.5, 0.6, 0.5)[w % 3], 1, fast=0.01, slow=1.0) for w in range(60)
    }
    case = small(
        tasks=[Task("see", turns, max_instances=2)],
        topology=tree(
            [
                Level("root", 1, hardware="slow", repository=True),
                Level("near", 1, 0.1, 199.0, "fast"),
                Level("edge", 1, 0.0, 199.0, "fast"),
            ]
        ),
        types=[(0, 2)],
    )
    network = build(case)
    better = [m for m in range(120) if m // 2 % 3 == 1]
    worse = [m for m in range(120) if m // 2 % 3 != 1]
    # The repository serves with v1, the first of the better ones.
    assert network.options.model.tolist() == [*better * 2, *worse * 2, 2]
    assert network.options.hop.tolist() == [0] * 40 + [1] * 40 + [0] * 80 + [1] * 80 + [2]


@given(cases())
def test_pairs_are_the_options_pairs_sorted_by_node_and_model(case: dict[str, Any]) -> None:
    network = build(case)
    pairs, options = network.pairs, network.options
    seen = sorted(set(zip(options.node.tolist(), options.model.tolist(), strict=True)))
    # A variant that comes up brings all its copies; the others cost the same.
    assert list(zip(pairs.node.tolist(), pairs.model.tolist(), strict=True)) == seen
    assert (pairs.node[options.pair] == options.node).all()
    assert (pairs.model[options.pair] == options.model).all()
    assert (
        pairs.first.tolist()
        == np.searchsorted(pairs.node, np.arange(len(network.nodes) + 1)).tolist()
    )
    for k in range(len(pairs.node)):
        one = list(expanded(case)[network.models.task[pairs.model[k]]].variants.values())[
            network.models.variant[pairs.model[k]]
            - network.models.variant[network.models.first[network.models.task[pairs.model[k]]]]
        ]
        v = pairs.node[k]
        mean = one.service_on(case["topology"].kinds[network.hardware[v]]).mean_s
        assert pairs.size[k] == one.size_bytes
        assert pairs.capacity[k] == round(60 / mean)
        assert bool(pairs.pinned[k]) == bool(network.repository[v])
    travel = 1000 * network.latency_s + case["alpha"] * 100 * network.inaccuracy
    assert travel == pytest.approx(options.cost)


@given(cases())
def test_useless_pairs_are_counted_as_the_rest(case: dict[str, Any]) -> None:
    network, full = build(case), build(case, every_pair=True)
    assert full.options.cost.tolist() == network.options.cost.tolist()
    assert full.rest.tolist() == [0.0] * len(full.nodes)
    assert (full.pairs.model[full.options.pair] == full.options.model).all()
    extra = np.bincount(full.pairs.node, full.pairs.size, len(full.nodes))
    extra -= np.bincount(network.pairs.node, network.pairs.size, len(full.nodes))
    assert network.rest == pytest.approx(extra)
    for v in range(len(full.nodes)):
        everything = sum(
            (one.size_bytes or 0) * (task.max_instances or 1)
            for task in expanded(case)
            for one in task.variants.values()
            if hosts(case["topology"], v, one)
        )
        own = full.pairs.size[full.pairs.node == v].sum()
        assert own == everything or network.repository[v]


@given(cases())
def test_a_cost_function_that_says_the_same_gives_the_same(case: dict[str, Any]) -> None:
    def eq6(service: Service) -> float:
        seconds = service.rtt_s + service.delay_s
        return 1000.0 * seconds + case["alpha"] * (100.0 * (1.0 - service.accuracy))

    network, asked = build(case), build(case, cost=eq6)
    for name in ("first", "node", "model", "pair", "hop", "repository"):
        one, other = getattr(network.options, name), getattr(asked.options, name)
        assert one.tolist() == other.tolist()
    assert asked.options.cost == pytest.approx(network.options.cost)


def small(**change: Any) -> dict[str, Any]:
    variants = {
        "quick": variant("quick", 0.5, 1, fast=0.01, slow=0.02),
        "exact": variant("exact", 0.9, 3, fast=0.05, slow=0.5),
    }
    tiers = [Level("root", 1, hardware="fast", repository=True), Level("edge", 2, 0.1, 4.0, "slow")]
    return {
        "tasks": [Task("see", variants, max_instances=2)],
        "topology": tree(tiers),
        "types": [(0, 1), (0, 2)],
        "alpha": 1.0,
        **change,
    }


def test_a_repository_has_copies_enough_of_its_cheapest_variant() -> None:
    # 10 + 50 ms against 50 + 10 ms at alpha 1: the first of equals; then the accurate one.
    for alpha, name, copies in ((1.0, "quick", 1), (2.0, "exact", 1)):
        network = build(small(alpha=alpha))
        pinned = np.flatnonzero(network.pairs.pinned)
        assert network.name(network.pairs.model[pinned[0]]) == f"see/{name}#0"
        assert network.pairs.pinned[pinned].tolist() == [copies]
    case = small(alpha=2.0, types=[(0, 1)] * 25)  # 2,500 requests, 1,200 a copy
    network = build(case)
    assert network.pairs.pinned.max() == 3
    assert network.pairs.capacity[network.pairs.pinned > 0].tolist() == [1200]


@pytest.mark.parametrize(
    ("rate", "slot_s", "capacity"),
    [(14.2, 60.0, 852), (4.1, 10.0, 41), (2.9, 1.0, 2), (0.3, 2.0, 0.6)],
)
def test_capacity_is_whole_unless_a_request_takes_longer_than_a_slot(
    rate: float, slot_s: float, capacity: float
) -> None:
    one = {"a": variant("a", 0.5, 1, fast=1 / rate)}
    topology = tree([Level("root", 1, hardware="fast", repository=True)])
    network = build(
        small(tasks=[Task("see", one)], topology=topology, types=[(0, 0)]), slot_s=slot_s
    )
    assert network.pairs.capacity.tolist() == pytest.approx([capacity], abs=1e-12)


def test_any_cost_function() -> None:
    asked: set[Service] = set()

    def cost(service: Service) -> float:
        asked.add(service)
        return np.inf if service.variant == "quick" else float(len(service.nodes))

    network = build(small(), cost=cost)
    names = {network.name(m) for m in network.options.model.tolist()}
    assert names == {"see/exact#0", "see/exact#1"}
    assert network.options.cost.tolist() == [1.0, 1.0, 2.0] * 2
    one = next(s for s in asked if len(s.nodes) == 2 and s.variant == "exact")
    assert (one.nodes[1], one.task, one.accuracy, one.delay_s) == ("root", "see", 0.9, 0.05)
    assert one.rtt_s == 0.1
    with pytest.raises(NetworkError, match="the cost function lets no variant of see serve"):
        build(small(), cost=lambda service: np.inf)
    with pytest.raises(NetworkError, match="the cost function gives nan for"):
        build(small(), cost=lambda service: 1.0 if len(service.nodes) > 1 else np.nan)


def test_what_is_pinned_stays() -> None:
    pinned = {("edge-0", "see", "exact"): 1, ("root", "see", "exact"): 1}
    network = build(small(alpha=0.0), pinned=pinned)
    found = {
        (network.nodes[network.pairs.node[k]], network.name(network.pairs.model[k]))
        for k in np.flatnonzero(network.pairs.pinned)
    }
    # The repository serves with `exact` alone, although `quick` would cost less.
    assert found == {("edge-0", "see/exact#0"), ("root", "see/exact#0")}
    assert network.nodes[network.options.node[-1]] == "root"
    # What no request type can use may be pinned all the same.
    useless = build(small(alpha=0.0), pinned={("edge-1", "see", "exact"): 1})
    k = int(np.flatnonzero((useless.pairs.node == 2) & (useless.pairs.pinned > 0))[0])
    assert k not in useless.options.pair


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({}, {"pinned": {("root", "see", "exact"): 1}, "peak": 1000.0},
         "the repository root can serve 1200 requests of see in a slot, but up to 2000 may come "
         "(eq. 9)"),
        ({}, {"pinned": {("edge-0", "see", "quick"): 3}}, "at most 2 of a variant run on one node"),
        ({}, {"pinned": {("edge-0", "see", "slow"): 1}}, "see has no variant slow"),
        ({}, {"pinned": {("shop", "see", "quick"): 1}}, "there is no such node or task"),
        ({}, {"pinned": {("edge-0", "see", "exact"): 2}},
         "edge-0 has a budget of 4 B, but what is pinned there take 6 B"),
        ({"tasks": [Task("see", {"a": variant("a", 0.5, 1, slow=0.1)})]}, {},
         "task see has no repository: no variant of it runs on fast, the hardware of root"),
        ({"tasks": [Task("see", {"a": variant("a", 0.5, None, slow=0.1, fast=0.1)})]}, {},
         "variant a of task see needs `size`"),
        ({"tasks": [Task("see", {})]}, {}, "task see has no variants"),
        ({"tasks": []}, {}, "a network serves at least one task"),
        ({"types": []}, {}, "nothing is requested"),
        ({"types": [(1, 1)]}, {}, "tasks outside 0..0"),
        ({}, {"peak": -1.0}, "peak of a request type is -1"),
        ({"alpha": -1.0}, {}, "alpha is -1 ms per point"),
        ({}, {"slot_s": 0.0}, "a slot of 0 s is refused"),
    ],
)  # fmt: skip
def test_refused(change: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    case = small(**change)
    topology, types = case["topology"], case["types"]
    entries = np.array([entry for _, entry in types], np.int64)
    paths = shortest_paths(topology, entries, np.array([0]))
    peak = np.full(len(types), options.pop("peak", 100.0))
    requests = Requests(
        np.array([task for task, _ in types], np.int32),
        np.arange(len(types), dtype=np.int32),
        np.ones(len(types)),
        peak,
    )
    with pytest.raises(NetworkError) as error:
        delivery_network(
            case["tasks"], topology, paths, requests, **{"alpha": case["alpha"], **options}
        )
    assert sentence in str(error.value)


def test_a_repository_with_a_budget_too_small_for_what_it_must_serve() -> None:
    topology = Topology(("root",), np.empty((0, 2)), np.empty(0), budget=np.array([2.0]),
                        kinds=("fast",), repository=np.array([True]))  # fmt: skip
    with pytest.raises(NetworkError, match=r"a repository's copies \(eq. 9\) there take 3 B"):
        build(small(topology=topology, types=[(0, 0)], alpha=9.0))


def test_a_path_must_end_at_a_repository() -> None:
    case = small()
    paths = given_paths(case["topology"], [["edge-0", "root", "edge-1"]])
    one = np.zeros(1, np.int32)
    with pytest.raises(NetworkError, match="a path ends at edge-1, which is no repository"):
        delivery_network(
            case["tasks"], case["topology"], paths, Requests(one, one, np.ones(1), np.ones(1))
        )


def test_a_path_through_a_repository_uses_what_is_pinned_there() -> None:
    topology = Topology(
        ("shop", "near", "far"),
        np.array([[0, 1], [1, 2]]),
        np.array([0.1, 0.1]),
        kinds=("fast",),
        repository=np.array([False, True, True]),
    )
    paths = given_paths(topology, [["shop", "near", "far"], ["shop", "near"]])
    zero = np.zeros(2, np.int32)
    requests = Requests(zero, np.arange(2, dtype=np.int32), np.full(2, 0.5), np.full(2, 100.0))
    network = delivery_network(
        small()["tasks"], topology, paths, requests, pinned={("near", "see", "quick"): 1}
    )
    options = slice(*network.options.first[:2])
    assert [network.nodes[v] for v in network.options.node[options]] == ["shop"] * 4 + [
        "near",
        "far",
    ]
    assert network.options.repository[options].tolist() == [False] * 5 + [True]


def test_a_variant_larger_than_every_budget_is_a_warning() -> None:
    case = small()
    case["tasks"][0].variants["huge"] = variant("huge", 0.99, 5, fast=0.05, slow=0.5)
    network = build(case)
    assert network.warnings == (
        "variant huge of task see takes 5 B, more than every budget that may host it (at most 4 B)",
    )
    elsewhere = network.pairs.model[~network.repository[network.pairs.node]]
    assert {network.name(m) for m in elsewhere} == {"see/quick#0", "see/quick#1"}


def test_paths_may_be_empty_of_requests() -> None:
    case = small()
    paths = Paths(np.array([0, 2]), np.array([1, 0], np.int32), np.array([0.0, 0.1]))
    wrong = Requests(np.zeros(1, np.int32), np.ones(1, np.int32), np.ones(1), np.ones(1))
    with pytest.raises(NetworkError, match=r"request types name paths outside 0\.\.0"):
        delivery_network(case["tasks"], case["topology"], paths, wrong)
    uneven = wrong._replace(task=np.zeros(2, np.int32))
    with pytest.raises(NetworkError, match="differ in length"):
        delivery_network(case["tasks"], case["topology"], paths, uneven)
