from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.network import NetworkError, Topology, load_gml, to_graph
from inferway.network.gml import FIBRE_M_PER_S, great_circle_m, interpolated

Write = Callable[..., Path]

# A degree along the equator; half a great circle over 180.
DEGREE_S = 2 * np.pi * 6_371_008.8 / 360 * 2 / FIBRE_M_PER_S


def node(key: int, label: str, at: tuple[float, float] | None = None, extra: str = "") -> str:
    where = f"Latitude {at[0]} Longitude {at[1]}" if at is not None else ""
    return f'  node [ id {key} label "{label}" {where} {extra} ]\n'


def edge(one: int, other: int, extra: str = "") -> str:
    return f"  edge [ source {one} target {other} {extra} ]\n"


def graph(*parts: str) -> str:
    return "graph [\n" + "".join(parts) + "]\n"


def links(topology: Topology) -> dict[tuple[str, str], float]:
    return {
        (topology.nodes[one], topology.nodes[other]): float(seconds)
        for (one, other), seconds in zip(topology.links, topology.rtt_s, strict=True)
    }


@pytest.fixture
def zoo(root: Path) -> Path:
    folder = root.parent / "shared" / "data" / "topologies"
    if not folder.is_dir():
        pytest.skip(f"files of the Internet Topology Zoo are not in {folder}")
    return folder


def test_light_in_fibre(write: Write) -> None:
    text = graph(node(0, "a", (0, 0)), node(1, "b", (0, 1)), edge(0, 1))
    topology, report = load_gml(write(text, "g.gml"))
    assert links(topology) == {("a", "b"): pytest.approx(DEGREE_S)}
    assert pytest.approx(0.00109, rel=0.01) == DEGREE_S
    assert (report.located, report.stated, report.defaulted) == (1, 0, 0)
    # New York to London, 5,570 km.
    ends = np.array([[40.7128, -74.006]]), np.array([[51.5074, -0.1278]])
    assert great_circle_m(*ends)[0] == pytest.approx(5.57e6, rel=1e-3)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("rtt 7", 0.007),
        ('rtt "7 ms"', 0.007),
        ('latency "2.5 ms"', 0.005),
        ("delay 3", 0.006),
        ("Delay 0.0", 0.0),
    ],
)
def test_a_stated_latency_counts(write: Write, said: str, seconds: float) -> None:
    text = graph(node(0, "a", (0, 0)), node(1, "b", (0, 1)), edge(0, 1, said))
    topology, report = load_gml(write(text))
    assert links(topology) == {("a", "b"): pytest.approx(seconds)}
    assert (report.stated, report.located) == (1, 0)


def test_a_graph_s_own_unit_of_delay(write: Write) -> None:
    text = graph('  delay_unit "us"\n', node(0, "a"), node(1, "b"), edge(0, 1, "delay 500"))
    assert links(load_gml(write(text)).topology) == {("a", "b"): pytest.approx(0.001)}


def test_nodes_without_coordinates(write: Write) -> None:
    text = graph(
        node(0, "a", (0, 0)),
        node(1, "b", (0, 4)),
        node(2, "middle"),
        node(3, "stub"),
        edge(0, 2),
        edge(2, 1),
        edge(2, 3),
        edge(0, 1),
    )
    topology, report = load_gml(write(text))
    found = links(topology)
    assert found["a", "middle"] == pytest.approx(2 * DEGREE_S)
    assert found["b", "middle"] == pytest.approx(2 * DEGREE_S)
    # Nothing tells how far the stub is: as far as links are here.
    assert found["middle", "stub"] == found["a", "b"] == pytest.approx(4 * DEGREE_S)
    assert report.unlocated == ("middle", "stub")
    assert (report.located, report.interpolated, report.defaulted) == (1, 2, 1)
    said = " ".join(report.sentences())
    assert "2 links at a point without coordinates" in said
    assert "1 link at a point that could be anywhere: 4.36 ms" in said


def test_a_file_without_any_coordinates(write: Write) -> None:
    text = graph(node(0, "a"), node(1, "b"), edge(0, 1))
    topology, report = load_gml(write(text))
    assert links(topology) == {("a", "b"): 0.005}
    assert report.default_rtt_s == 0.005
    assert load_gml(write(text), default_rtt_s=0.02).topology.rtt_s.tolist() == [0.02]


def test_hyperedges_join_their_neighbors(write: Write) -> None:
    text = graph(
        node(0, "a", (0, 0)),
        node(1, "b", (0, 4)),
        node(2, "c", (0, 4)),
        node(3, "None", None, "hyperedge 1"),
        node(4, "", None, "hyperedge 1"),
        edge(0, 3),
        edge(3, 4),
        edge(4, 1),
        edge(4, 2),
    )
    topology, report = load_gml(write(text))
    assert topology.nodes == ("a", "b", "c")
    # The points lie on the way from a to b and c, at 4 * 2 / 5 and 4 * 4 / 5 degrees.
    assert links(topology) == {
        ("a", "b"): pytest.approx(4 * DEGREE_S, rel=1e-3),
        ("a", "c"): pytest.approx(4 * DEGREE_S, rel=1e-3),
        ("b", "c"): pytest.approx(1.6 * DEGREE_S, rel=1e-3),
    }
    assert report.hyperedges == 2
    assert report.unlocated == ()


def test_parallel_links_and_loops(write: Write) -> None:
    text = graph(
        node(0, "a"), node(1, "b"),
        edge(0, 1, "rtt 9"), edge(1, 0, "rtt 4"), edge(0, 1, "rtt 6"), edge(1, 1),
    )  # fmt: skip
    topology, report = load_gml(write(text))
    assert links(topology) == {("a", "b"): pytest.approx(0.004)}
    assert (report.links, report.parallel, report.loops) == (4, 2, 1)


def test_parallel_links_of_one_key(write: Write) -> None:
    text = graph(node(0, "a"), node(1, "b"), edge(0, 1, "key 0"), edge(0, 1, "key 0"))
    assert load_gml(write(text)).report.parallel == 1


@pytest.mark.parametrize("head", ["directed 1\n", "multigraph 1\n", "directed 1\n  multigraph 0\n"])
def test_graphs_that_say_what_they_are(write: Write, head: str) -> None:
    text = graph("  " + head, node(0, "a"), node(1, "b"), edge(0, 1), edge(1, 0))
    topology, report = load_gml(write(text))
    assert len(topology.links) == 1
    assert report.directed == ("directed" in head)


def test_disconnected_parts(write: Write) -> None:
    text = graph(*(node(k, f"n{k}") for k in range(6)), edge(0, 1), edge(2, 3), edge(3, 4))
    topology, report = load_gml(write(text))
    assert topology.nodes == ("n2", "n3", "n4")
    assert report.dropped == ("n0", "n1", "n5")
    assert "3 nodes (n0, n1, n5) outside the largest connected part dropped" in report.sentences()
    assert len(load_gml(write(text), part="all").topology.nodes) == 6


def test_names_that_a_deployment_file_can_use(write: Write) -> None:
    labels = ["Paris", "New York", "Paris", "", "None", "Gary?", "Gary", "Paris-2", "A, B"]
    text = graph(
        *(node(k, label) for k, label in enumerate(labels)), *(edge(0, k) for k in range(1, 9))
    )
    topology, report = load_gml(write(text))
    assert topology.nodes == (
        "Paris-0",
        "New-York",
        "Paris-2-2",
        "node-3",
        "node-4",
        "Gary-5",
        "Gary-6",
        "Paris-2",
        "A-B",
    )
    assert ("New York", "New-York") in report.renamed
    assert ("Paris-2", "Paris-2") not in report.renamed


def test_odd_encodings(write: Write) -> None:
    text = graph(node(0, "Malmö"), node(1, "K&#248;benhavn"), edge(0, 1))
    for raw in (text.encode(), b"\xef\xbb\xbf" + text.encode(), text.encode("latin-1")):
        assert load_gml(write(raw)).topology.nodes == ("Malmö", "København")


def test_coordinates_out_of_range_are_none(write: Write) -> None:
    text = graph(
        node(0, "a", (0, 0)),
        node(1, "b", (95, 1)),
        node(2, "c", None, 'Latitude "north" Longitude 3'),
        node(3, "d", None, f"Latitude 3 Longitude {'9' * 400}"),
        edge(0, 1),
        edge(1, 2),
        edge(2, 3),
    )
    assert load_gml(write(text)).report.unlocated == ("b", "c", "d")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a GML file: it has no `graph [ ... ]`"),
        ("tasks: {}\n", "is not a GML file: it has no"),
        ("graph [ node [ id 0 ", "is not a GML file: "),
        ("graph [ node [ label 0 ] ]", "is not a GML file: "),
        ("graph [ node [ id 0 ] node [ id 0 ] ]", "is not a GML file: "),
        ("graph [ node [ id 0 ] edge [ source 0 target 1 ] ]", "is not a GML file: "),
        ("graph [ ]", "holds no nodes"),
        ("graph [ node [ id 0 hyperedge 1 ] ]", "holds no nodes"),
        (
            graph(node(0, "a"), node(1, "b"), edge(0, 1, "rtt -3")),
            "the rtt between a and b is -3; it must be 0 or more",
        ),
        (
            graph(node(0, "a"), node(1, "b"), edge(0, 1, 'delay "soon"')),
            '`delay` between a and b: "soon" is not a time',
        ),
    ],
)
def test_refused(write: Write, text: str, sentence: str) -> None:
    path = write(text, "x.gml")
    with pytest.raises(NetworkError) as error:
        load_gml(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"nowhere\.gml cannot be read: No such file"):
        load_gml(tmp_path / "nowhere.gml")


WORDS = ["graph [", "node [", "edge [", "]", "id", "source", "target", "label", "0", "1", '"x"']
WORDS += ["Latitude", "1e400", "rtt", "multigraph", "directed", "[", '"', "&#9999999;", "hyperedge"]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=60))
def test_anything_is_a_topology_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("gml") / "x.gml"
    path.write_text("graph [ " + text + " ]", encoding="utf-8", errors="replace")
    with contextlib.suppress(NetworkError):
        assert load_gml(path).topology.nodes


@given(st.data())
def test_interpolation_is_the_mean_of_the_neighbors(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9))
    ends = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    joined = data.draw(st.lists(ends, max_size=20))
    known = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    at = st.tuples(st.floats(-80, 80), st.floats(-170, 170))
    points = np.array([data.draw(at) if yes else (np.nan, np.nan) for yes in known])
    filled = interpolated(points, joined)
    np.testing.assert_array_equal(filled[known], points[known])
    # What was filled in lies in a part that touches at least two known points.
    plain = networkx.Graph()
    plain.add_nodes_from(range(size))
    plain.add_edges_from((a, b) for a, b in joined if not (known[a] and known[b]))
    for v in range(size):
        if not known[v] and not np.isnan(filled[v]).any():
            part = networkx.node_connected_component(plain, v)
            assert sum(known[u] for u in part) >= 2


def test_a_ring_that_hangs_on_one_point_could_be_anywhere() -> None:
    points = np.array([[0.0, 0.0], [np.nan, np.nan], [np.nan, np.nan], [np.nan, np.nan]])
    ring = [(0, 1), (1, 2), (2, 3), (3, 1)]
    assert np.isnan(interpolated(points, ring)[1:]).all()
    two = np.vstack([points, [[0.0, 4.0]]])
    filled = interpolated(two, [*ring, (2, 4)])
    assert filled[:, 0] == pytest.approx(np.zeros(5))
    # Each the mean of its neighbors, nearly so on an arc this short.
    one, other, third = filled[1:4, 1]
    assert (3 * one, 3 * other, 2 * third) == pytest.approx(
        (other + third, one + third + 4, one + other), abs=1e-2
    )


# nodes and links after import, and what was made up
ZOO = {
    "Abilene": (11, 14, 0, 0, 0),
    "Bellcanada": (48, 64, 0, 0, 0),
    "Cogentco": (186, 243, 11, 0, 0),
    "Colt": (149, 179, 4, 0, 0),
    "DeutscheTelekom": (30, 55, 0, 0, 9),
    "Garr201201": (61, 75, 0, 13, 0),
    "Geant2012": (40, 61, 0, 3, 0),
    "GtsCe": (145, 193, 4, 3, 0),
    "Interoute": (104, 148, 6, 6, 0),
    "Kdl": (726, 890, 28, 0, 0),
    "TataNld": (143, 184, 2, 0, 0),
    "Uninett2011": (69, 96, 0, 3, 0),
    "UsCarrier": (152, 188, 6, 0, 0),
}


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_s_networks(zoo: Path, name: str) -> None:
    topology, report = load_gml(zoo / f"{name}.gml")
    made_up = (report.hyperedges, report.defaulted, len(report.dropped))
    assert (len(topology.nodes), len(topology.links), *made_up) == ZOO[name]
    assert networkx.is_connected(to_graph(topology))
    assert 0 < topology.rtt_s.max() < 0.2
    assert report.stated == 0
    assert report.links == report.located + report.interpolated + report.defaulted


def test_abilene_takes_as_long_as_the_map_says(zoo: Path) -> None:
    found = links(load_gml(zoo / "Abilene.gml").topology)
    # New York to Chicago, 1,146 km: 11.2 ms there and back in fibre.
    assert found["New-York", "Chicago"] == pytest.approx(0.0112, rel=0.02)
