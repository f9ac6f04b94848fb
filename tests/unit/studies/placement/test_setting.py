"""The networks of the placement studies, and their rows."""

from __future__ import annotations

from pathlib import Path

import networkx
import numpy as np
import pytest

import inferway
from inferway.network import deployed, to_graph
from inferway.studies.placement.gain import wrong_way
from inferway.studies.placement.real_topologies import (
    BUILT_IN,
    VARIABLE,
    backbone,
    equipped,
    found,
)
from inferway.studies.placement.trial import SYSTEMS, WINDOW, allocated, scenario, simulated
from inferway.twin.slots import simulate_slots

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(("system", "file"), [("I", "topology-1"), ("II", "topology-2")])
def test_a_study_s_network_is_the_example_s(system: str, file: str) -> None:
    deployment = inferway.load(ROOT / "examples" / f"{file}.yaml")
    example = deployed(deployment)
    study = scenario(system, alpha=1.0, rate_per_s=7500.0, sliding=True, seed=1)
    for one, other in ((example.network, study.network),):
        assert np.array_equal(one.options.cost, other.options.cost)
        assert np.array_equal(one.pairs.capacity, other.pairs.capacity)
        assert np.array_equal(one.budget, other.budget)
    for slot in (0, 59, 60, 200):
        assert np.array_equal(example.demand.expected(slot), study.demand.expected(slot))
    row = simulated(system, 1.0, 7500.0, True, "infida-coupled", slots=5, seed=1, series=True)
    same = simulate_slots(deployment, slots=5)
    assert row["ntag_ms"] == pytest.approx(same.ntag_ms, abs=0.2)
    assert np.mean(row["gain"]) == pytest.approx(row["ntag_ms"])


def test_the_conference_has_86_nodes_and_50_milliseconds() -> None:
    built = scenario("conference", alpha=0.5, rate_per_s=5000.0, sliding=False, seed=1, copies=5)
    assert [int((built.network.tier == k).sum()) for k in range(5)] == [1, 1, 4, 20, 60]
    ends = built.network.paths.first[1:] - 1
    assert built.network.paths.rtt_s[ends] == pytest.approx(0.05)
    base = built.network.budget[built.topology.of_tier("base")]
    assert sorted(set(base)) == [2**30, 2**32]
    assert (base == 2**30).mean() == 0.75
    assert len(built.network.models.task) == 20 * 10 * 5
    small = {tier.name: tier.budget for tier in SYSTEMS["conference, smaller"]}
    assert small["tier 1"] == pytest.approx(16 * 2**30 / 5)


def test_popularity_slides_by_requests() -> None:
    built = scenario("I", alpha=1.0, rate_per_s=10_000.0, sliding=True, seed=1)
    slots = round(WINDOW / 10_000 / 60)
    before, after = (built.demand.expected(slot) for slot in (slots - 1, slots))
    assert before.sum() == pytest.approx(after.sum())
    assert before[0] == pytest.approx(after[30])  # task 0 takes the place of task 15


def test_the_allocation_is_listed_by_accuracy() -> None:
    row = allocated("I", 3.0, 7500.0, slots=8, seed=1, copies=3)
    assert row["repository"] == "512p"
    for tier in ("tier 1", "tier 2", "tier 3", "base"):
        y = np.array(row[f"y of {tier}"])
        assert y.shape == (30,)
        assert ((y > 0) & (y <= 1)).all()


def test_steps_against_a_direction() -> None:
    assert wrong_way([1, 2, 4], rising=True) == 0
    assert wrong_way([1, 3, 2.5], rising=True) == 0.5
    assert wrong_way([3, 1, 2], rising=False) == 1
    assert np.isnan(wrong_way([1, np.nan], rising=True))


@pytest.mark.parametrize(("name", "nodes", "links"), [("Abilene", 11, 14), ("NSFNET", 14, 21)])
def test_backbones_are_in_one_piece(name: str, nodes: int, links: int) -> None:
    topology = backbone(name)
    graph = to_graph(topology)
    assert (len(graph), graph.number_of_edges()) == (nodes, links)
    assert networkx.is_biconnected(graph)
    assert 0.05e-3 < topology.rtt_s.min() < topology.rtt_s.max() < 0.04
    made = equipped(topology, 2.0**32)
    assert made.repository.sum() == 1
    assert np.isinf(made.budget[made.repository]).all()


def test_graph_files_come_from_a_folder_where_one_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert found(("Abilene", "Mine", "Else")) == ["Abilene"]
    (tmp_path / "Mine.gml").write_text(
        "graph [ node [ id 0 label A ] node [ id 1 label B ] edge [ source 0 target 1 ] ]"
    )
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert found(("Abilene", "Mine", "Else")) == ["Abilene", "Mine"]
    assert backbone("Mine").nodes == ("A", "B")
    assert set(BUILT_IN) == {"Abilene", "NSFNET"}
