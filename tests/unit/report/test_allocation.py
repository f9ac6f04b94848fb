"""Heat maps, maps and curves of a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.experiments.figure import save
from inferway.experiments.networks import (
    MOST_NODES,
    by_tier,
    figures,
    heat_maps,
    latencies,
    network_map,
    over_time,
    served_at,
)
from inferway.network import Level, Topology, network_of, topology_of, tree

LINKS = """
tasks: {t: {variants: {a: {accuracy: 0.8, size: 1 GiB, service: {mean: 9 ms}}}}}
nodes: {cloud: {repository: true}, near: {budget: 4 GiB}, far: {budget: 4 GiB}}
network: {links: [{between: [near, cloud], rtt: 9 ms}, {between: [far, cloud], rtt: 9 ms}]}
workload: {t: {arrivals: {process: poisson, rate: 3/s}}}
"""
TREE = Path(__file__).parents[3] / "examples" / "topology-1.yaml"


@pytest.fixture(scope="module")
def deployment():
    return inferway.load(TREE)


@pytest.fixture(scope="module")
def result(deployment):
    return inferway.simulate(deployment, slots=3).network


def texts(figure) -> list[str]:
    return [one.get_text() for axes in figure.axes for one in axes.texts]


def test_copies_are_counted_per_tier_and_node(deployment) -> None:
    network = network_of(deployment)
    pairs, models = network.pairs, network.models
    presence = np.zeros(len(pairs.node))
    office = np.flatnonzero(network.tier == network.tiers.index("office"))
    variant = network.variants.index("14.02pruned")
    chosen = [
        np.flatnonzero((pairs.node == node) & (models.variant[pairs.model] == variant))[0]
        for node in office[:2]
    ]
    presence[chosen] = 1.0
    grid = by_tier(network, presence)
    assert list(grid.rows) == ["isp", "metro", "office", "base"]
    assert list(grid.columns[:3]) == ["tiny-288p", "tiny-416p", "14.02pruned"]
    assert grid.values.sum() == pytest.approx(2 / len(office))
    assert grid.values[2, 2] == pytest.approx(2 / len(office))
    assert "0.25" in texts(heat_maps([grid], label="copies"))


def test_shares_of_nodes_add_up_to_those_of_tiers(result) -> None:
    share = served_at(result.network, result.served)
    assert share.sum() == pytest.approx(1)
    for k, (_, part) in enumerate(result.tiers.items()):
        assert share[result.network.tier == k].sum() == pytest.approx(part.share)


def test_a_map_names_nodes_and_marks_repositories(deployment, result) -> None:
    topology = topology_of(deployment)
    figure = network_map(topology, served_at(result.network, result.served))
    assert set(texts(figure)) == set(topology.nodes)
    at = {one.get_text(): one.xy for one in figure.axes[0].texts}
    assert at["cloud"][1] > at["isp"][1] > at["metro-0"][1] > at["base-0"][1]
    assert at["office-0"][0] == pytest.approx(np.mean([at[f"base-{k}"][0] for k in range(3)]))


def test_a_graph_is_drawn_as_its_round_trip_times_are(tmp_path: Path) -> None:
    ring = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])
    topology = Topology(("a", "b", "c", "d"), ring, np.array([1e-3, 9e-3, 1e-3, 9e-3]))
    figure = network_map(topology, np.array([1.0, 0, 0, 0]))
    at = {one.get_text(): np.array(one.xy) for one in figure.axes[0].texts}
    near, far = np.linalg.norm(at["a"] - at["b"]), np.linalg.norm(at["b"] - at["c"])
    assert near < far
    assert save(figure, tmp_path / "ring")[0].stat().st_size > 5_000


def test_a_map_of_too_many_nodes_is_refused() -> None:
    topology = tree([Level("root", 1), Level("leaf", MOST_NODES)])
    with pytest.raises(ValueError, match="up to 2000 nodes, not 2001"):
        network_map(topology, np.zeros(MOST_NODES + 1))


def test_gain_over_time_is_the_frame_s(result) -> None:
    figure = over_time(result)
    gain, moved = (axes.lines[0].get_ydata() for axes in figure.axes)
    frame = result.to_frame()
    assert gain == pytest.approx(frame.gain_ms.to_numpy())
    assert moved == pytest.approx(frame.moved_bytes.to_numpy() / 2**30)


def test_one_slot_is_a_point_between_its_begin_and_end(deployment) -> None:
    alone = inferway.simulate(deployment, slots=1, policy="static-greedy").network
    assert alone is not None
    assert alone.moved.sum() == 0
    hour = alone.slot_s / 3600
    for axes in over_time(alone).axes:
        (line,) = axes.lines
        assert line.get_marker() == "o"
        assert line.get_xdata() == pytest.approx([hour / 2])
        assert axes.get_xlim() == pytest.approx((0.0, hour))
    assert axes.get_ylim() == (0.0, 1.0)  # of what was fetched, which was nothing


def test_latency_of_one_slot_is_a_point(tmp_path: Path) -> None:
    file = tmp_path / "links.yaml"
    file.write_text(LINKS)
    found = inferway.simulate(inferway.load(file), slots=1, events=True).network
    (axes,) = latencies(found).axes
    (line,) = axes.lines
    assert line.get_marker() == "o"
    assert axes.get_xlim() == pytest.approx((0.0, found.slot_s / 3600))


def test_all_figures_are_written(deployment, result, tmp_path: Path) -> None:
    found = figures(result, topology_of(deployment), tmp_path)
    assert [one.name for one in found] == ["gain.png", "allocation.png", "map.png"]


def test_without_tiers_only_nodes_that_hold_something_are_rows(tmp_path: Path) -> None:
    file = tmp_path / "links.yaml"
    file.write_text(LINKS)
    network = network_of(inferway.load(file))
    presence = np.where(network.repository[network.pairs.node], 1.0, 0.0)
    presence[network.pairs.node == network.nodes.index("near")] = 0.5
    grid = by_tier(network, presence)
    assert list(grid.rows) == ["near"]
    assert grid.values.tolist() == [[0.5]]
