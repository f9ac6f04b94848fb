from __future__ import annotations

import itertools

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.network import (
    NetworkError,
    Paths,
    Topology,
    from_graph,
    given_paths,
    shortest_paths,
    to_graph,
)


def path(paths: Paths, index: int) -> list[int]:
    start, end = paths.first[index : index + 2]
    return [int(node) for node in paths.node[start:end]]


def rtts(paths: Paths, index: int) -> list[float]:
    start, end = paths.first[index : index + 2]
    return [float(seconds) for seconds in paths.rtt_s[start:end]]


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(1, 9))
    pairs = list(itertools.combinations(range(size), 2)) or [(0, 0)]
    links = draw(st.lists(st.sampled_from(pairs), max_size=20)) if size > 1 else []
    # Also links of no length, and equal sums: ties are where routing goes wrong.
    rtt = draw(
        st.lists(
            st.sampled_from([0.0, 0.001, 0.002, 0.004]), min_size=len(links), max_size=len(links)
        )
    )
    repository = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    repository[draw(st.integers(0, size - 1))] = True
    return Topology(
        tuple(f"n{k}" for k in range(size)),
        np.array(links, np.int64).reshape(-1, 2),
        np.array(rtt),
        repository=np.array(repository),
    )


@given(graphs())
def test_paths_are_simple_connected_and_shortest(topology: Topology) -> None:
    graph = to_graph(topology)
    repositories = [f"n{v}" for v in np.flatnonzero(topology.repository)]
    best = networkx.multi_source_dijkstra_path_length(graph, repositories, weight="rtt_s")
    reached = np.array([v for v in range(len(topology.nodes)) if f"n{v}" in best])
    paths = shortest_paths(topology, reached, np.flatnonzero(topology.repository))
    for index, entry in enumerate(reached):
        hops = path(paths, index)
        assert hops[0] == entry
        assert topology.repository[hops].tolist() == [False] * (len(hops) - 1) + [True]
        assert len(set(hops)) == len(hops)
        total = 0.0
        for k, seconds in enumerate(rtts(paths, index)):
            if k:
                total += graph.edges[f"n{hops[k - 1]}", f"n{hops[k]}"]["rtt_s"]
            assert seconds == total
        assert total == pytest.approx(best[f"n{entry}"])
        names = [f"n{v}" for v in hops]
        stated = given_paths(topology, [names])
        assert (path(stated, 0), rtts(stated, 0)) == (hops, rtts(paths, index))


@pytest.mark.parametrize("first", [1, 3])
def test_of_equally_fast_ways_the_one_with_fewer_hops_is_taken(first: int) -> None:
    long, short = (1, 3) if first == 1 else (3, 1)
    links = [[0, long], [long, 2], [2, 4], [0, short], [short, 4], [long, 0]]
    rtt = np.array([0.1, 0.2, 0.3, 0.1, 0.5, 0.7])
    topology = Topology(tuple("abcde"), np.array(links), rtt)
    for order in (slice(None), slice(None, None, -1)):
        turned = Topology(tuple("abcde"), np.array(links)[order], rtt[order])
        paths = shortest_paths(turned, np.array([0]), np.array([4]))
        assert path(paths, 0) == [0, short, 4]
    assert topology.nodes[short] == ("d" if first == 1 else "b")


def test_an_entry_that_reaches_no_repository() -> None:
    topology = Topology(tuple("abc"), np.array([[0, 1]]), np.array([0.1]))
    with pytest.raises(NetworkError, match=r"no path leads from c to a repository \(a\)"):
        shortest_paths(topology, np.array([1, 2]), np.array([0]))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "a path is empty"),
        (["a", "x"], "path a - x: there is no node x"),
        (["a", "b", "a"], "path a - b - a is not simple: it passes a twice"),
        (["a", "c"], "path a - c is not connected: there is no link between a and c"),
    ],
)
def test_refused_paths(names: list[str], sentence: str) -> None:
    topology = Topology(tuple("abc"), np.array([[0, 1], [1, 2]]), np.array([0.1, 0.1]))
    with pytest.raises(NetworkError) as error:
        given_paths(topology, [names])
    assert sentence in str(error.value)


def test_any_graph_of_networkx() -> None:
    graph = networkx.DiGraph()
    graph.add_node("cloud", repository=True, hardware="titan-rtx")
    graph.add_node(7, budget=5.0, tier="edge")
    graph.add_edge(7, "cloud", rtt_s=0.25)
    graph.add_edge("cloud", 7, rtt_s=0.5)
    topology = from_graph(graph)
    assert topology.nodes == ("cloud", "7")
    assert topology.kinds == ("titan-rtx", "cpu")
    assert topology.budget.tolist() == [np.inf, 5.0]
    assert topology.of_tier("edge").tolist() == [1]
    assert rtts(shortest_paths(topology, np.array([1]), np.array([0])), 0) == [0.0, 0.25]
    again = from_graph(to_graph(topology))
    assert (again.nodes, again.kinds, again.tiers) == (
        topology.nodes,
        topology.kinds,
        topology.tiers,
    )
    assert again.rtt_s.tolist() == [0.25]
    graph.add_edge("cloud", "shop")
    with pytest.raises(NetworkError, match="edge between cloud and shop has no attribute rtt_s"):
        from_graph(graph)
