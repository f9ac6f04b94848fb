"""Where a node stands: its links, its way to the nearest repository, what enters and passes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import inferway
from inferway.live.errors import ServeError
from inferway.live.node.plan import NodePlan, plan_of

FILE = """
tasks:
  digits:
    count: 2
    variants:
      mini: {model: zoo://digits/mini}
      large: {model: zoo://digits/large}
  others:
    variants:
      mini: {model: zoo://digits/mini}
nodes:
  cloud: {repository: true}
  store: {repository: true}
  metro: {budget: 300 kB}
  edge: {budget: 80 kB}
  far: {}
network:
  links:
    - {between: [cloud, metro], rtt: 30 ms}
    - {between: [metro, edge], rtt: 8 ms}
    - {between: [edge, store], rtt: 50 ms}
    - {between: [edge, far], rtt: 2 ms}
workload:
  digits: {arrivals: {process: poisson, rate: 20/s}, entries: {nodes: [edge, metro]}}
  others: {arrivals: {process: poisson, rate: 5/s}, entries: {nodes: [edge]}}
"""


@pytest.fixture
def place(tmp_path: Path) -> dict[str, NodePlan]:
    file = tmp_path / "five.yaml"
    file.write_text(FILE)
    deployment = inferway.load(file)
    return {name: plan_of(deployment, name) for name in ("cloud", "store", "metro", "edge", "far")}


def test_a_node_relies_on_the_neighbor_towards_the_nearest_repository(
    place: dict[str, NodePlan],
) -> None:
    upstream = {name: one.upstream for name, one in place.items()}
    # 38 ms to the cloud by the metro, and 50 ms to the store.
    assert upstream == {
        "cloud": None,
        "store": None,
        "metro": "cloud",
        "edge": "metro",
        "far": "edge",
    }
    assert [name for name, one in place.items() if one.repository] == ["cloud", "store"]
    assert place["edge"].links_s == pytest.approx({"metro": 0.008, "store": 0.05, "far": 0.002})
    assert place["far"].links_s == pytest.approx({"edge": 0.002})
    assert place["edge"].budget_bytes == 80_000
    assert place["far"].budget_bytes == math.inf


def test_counted_tasks_go_by_the_names_that_clients_ask_for(place: dict[str, NodePlan]) -> None:
    edge = place["edge"]
    assert sorted(edge.tasks) == ["digits-0", "digits-1", "others"]
    assert edge.tasks["digits-0"] is edge.tasks["digits-1"]
    assert set(edge.types) == {
        (task, node) for task in ("digits-0", "digits-1") for node in ("edge", "metro")
    } | {("others", "edge")}
    # Numbers are the network's: the same at all nodes.
    assert all(one.types == edge.types for one in place.values())


def test_rates_are_those_of_what_enters_here(place: dict[str, NodePlan]) -> None:
    edge, metro = place["edge"].rates_per_s, place["metro"].rates_per_s
    assert edge["others"] == pytest.approx(5.0)
    total = sum(rates[task] for rates in (edge, metro) for task in ("digits-0", "digits-1"))
    assert total == pytest.approx(20.0)
    assert set(metro) == {"digits-0", "digits-1"}
    for name in ("cloud", "store", "far"):
        assert place[name].rates_per_s == place[name].peaks_per_s == {}
    for task, rate in edge.items():
        assert place["edge"].peaks_per_s[task] >= rate * 0.99


def test_what_passes_a_node_is_in_its_data(place: dict[str, NodePlan]) -> None:
    types = place["edge"].types
    at_cloud = place["cloud"].data.crossings
    assert set(at_cloud) == set(types.values())
    assert set(place["metro"].data.crossings) == set(types.values())
    assert not place["far"].data.crossings
    assert not place["store"].data.crossings
    # From the edge to the cloud it is 38 ms; who is nowhere on the way waits for nobody.
    assert place["cloud"].reach_s == pytest.approx(0.038)
    assert place["metro"].reach_s == pytest.approx(0.008)
    assert place["far"].reach_s == 0.0


def test_a_name_that_no_node_has(tmp_path: Path) -> None:
    file = tmp_path / "five.yaml"
    file.write_text(FILE)
    with pytest.raises(ServeError, match="no node nowhere; it has"):
        plan_of(inferway.load(file), "nowhere")
