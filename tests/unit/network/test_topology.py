from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.network import Level, NetworkError, Topology, tree


def parents(topology: Topology) -> dict[int, int]:
    return {int(child): int(parent) for child, parent in topology.links}


def test_a_tree_spreads_its_nodes_evenly() -> None:
    topology = tree(
        [
            Level("cloud", 1, hardware="titan-rtx", repository=True),
            Level("metro", 2, 0.015, 12.0, "gtx-980"),
            Level("office", 8, 0.006, 8.0, "gtx-980"),
            Level("base", 24, 0.006, 4.0, "gtx-980"),
        ]
    )
    assert topology.nodes[:3] == ("cloud", "metro-0", "metro-1")
    assert topology.kinds == ("titan-rtx", "gtx-980")
    assert topology.hardware.tolist() == [0] + [1] * 34
    assert topology.repository.tolist() == [True] + [False] * 34
    assert topology.budget.tolist() == [np.inf] + [12.0] * 2 + [8.0] * 8 + [4.0] * 24
    above = parents(topology)
    base, office = topology.of_tier("base"), topology.of_tier("office")
    assert [above[int(v)] for v in base] == np.repeat(office, 3).tolist()
    assert [above[int(v)] for v in office] == [1] * 4 + [2] * 4
    assert topology.rtt_s.tolist() == [0.015] * 2 + [0.006] * 32


@given(st.lists(st.integers(1, 30), max_size=4))
def test_any_tree_is_one_and_no_parent_has_two_children_more_than_another(
    sizes: list[int],
) -> None:
    tiers = [Level(f"t{k}", n, 0.001) for k, n in enumerate([1, *sizes])]
    topology = tree(tiers)
    assert len(topology.links) == len(topology.nodes) - 1 == len(parents(topology))
    for k in range(1, len(tiers)):
        above, own = topology.of_tier(f"t{k - 1}"), topology.of_tier(f"t{k}")
        children = np.bincount([parents(topology)[int(v)] for v in own], minlength=above[-1] + 1)
        assert np.ptp(children[above]) <= 1


def test_shares_of_a_mixed_budget_are_drawn_by_the_seed() -> None:
    tiers = [Level("root", 1), Level("base", 60, 0.006, [(0.75, 1.0), (0.25, 4.0)])]
    one, same, other = (tree(tiers, seed=seed).budget[1:] for seed in (1, 1, 2))
    assert sorted(one.tolist()) == [1.0] * 45 + [4.0] * 15
    assert one.tolist() == same.tolist() != other.tolist()


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_shares_become_whole_numbers_of_nodes(nodes: int, parts: list[int]) -> None:
    shares = [(part / sum(parts), float(k)) for k, part in enumerate(parts)]
    budget = tree([Level("root", 1), Level("base", nodes, 0.0, shares)]).budget[1:]
    for share, size in shares:
        assert abs((budget == size).sum() - share * nodes) < 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes": ()}, "at least one node"),
        ({"nodes": ("a", "b", "b")}, "2 nodes are called b"),
        ({"links": [[0, 1], [1, 3]]}, "joins nodes [1, 3], but there are only 3"),
        ({"links": [[0, 1], [2, 2]]}, "both ends of one are c"),
        ({"rtt_s": [0.1, -0.2]}, "between b and c is -0.2 s; it must be a number of 0 or more"),
        ({"rtt_s": [0.1, np.nan]}, "between b and c is nan s"),
        ({"rtt_s": [0.1]}, "rtt_s has shape (1,), expected (2,)"),
        ({"budget": [1.0, 2.0, -3.0]}, "the budget of c is -3 bytes"),
    ],
)
def test_refused(change: dict[str, object], sentence: str) -> None:
    good: dict[str, object] = {
        "nodes": ("a", "b", "c"),
        "links": [[0, 1], [1, 2]],
        "rtt_s": [0.1, 0.2],
    }
    Topology(**good)  # type: ignore[arg-type]
    with pytest.raises(NetworkError) as error:
        Topology(**(good | change))  # type: ignore[arg-type]
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("tiers", "sentence"),
    [
        ([], "at least one tier"),
        ([Level("root", 2)], "tier root is the root and has one node"),
        ([Level("root", 1), Level("base", 0)], "tier base has 0 nodes"),
        ([Level("root", 1), Level("b", 4, 0, [(0.5, 1.0)])], "tier b add up to 0.5, not to 1"),
    ],
)
def test_refused_trees(tiers: list[Level], sentence: str) -> None:
    with pytest.raises(NetworkError) as error:
        tree(tiers)
    assert sentence in str(error.value)


def test_a_tier_by_name() -> None:
    with pytest.raises(NetworkError, match="there is no tier bass; there is root"):
        tree([Level("root", 1)]).of_tier("bass")
