"""Graphs in GML, such as the Internet Topology Zoo's, as topologies.

Knight et al., The Internet Topology Zoo, IEEE JSAC 29(9), 2011, doi:10.1109/JSAC.2011.111002. Its
files state no latencies and, for some nodes, no coordinates; some hold several links between two
nodes, several nodes of one name, parts that nothing joins, and *hyperedges*: points that stand for
a link of more than two ends. All of this is imported, and `GmlReport` says what was done.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from inferway.deployment.units import TIME, QuantityError
from inferway.network.options import Float
from inferway.network.topology import NetworkError, Topology

if TYPE_CHECKING:
    import networkx

LARGEST_FILE: Final = 32 * 2**20  # bytes: some 200,000 nodes with their links
# Links that stand for those of more than two ends: each joins every two of them.
MOST_JOINED: Final = 2_000_000
DEFAULT_RTT_S: Final = 0.005  # about 500 km of fibre
EARTH_RADIUS_M = 6_371_008.8  # mean radius of WGS 84
FIBRE_M_PER_S = 299_792_458 / 1.468  # group index of single-mode fibre (ITU-T G.652) at 1550 nm

Link = tuple[int, int, Mapping[str, Any]]  # two ends, and what the file says of it


@dataclass(frozen=True)
class GmlReport:
    """Report of an import: what it took from the file, and what it had to make up.

    Attributes
    ----------
    path
        The file.
    nodes, links
        How many the file holds, hyperedges among the nodes.
    stated
        Links whose latency the file states.
    located
        Links whose round-trip time is that of light in fibre between two known points.
    interpolated
        Links measured to a point in the middle of its neighbors, as it has no coordinates.
    defaulted
        Links with an end that could be anywhere; they get `default_rtt_s`.
    default_rtt_s
        The median of the located links, or 5 ms where there are none.
    unlocated
        Nodes without coordinates.
    hyperedges
        How many; each became links between every two of its neighbors, over its middle.
    parallel, loops
        Links that a faster one between the same nodes, or none at all, made up for.
    directed
        Whether the file's links have directions, which are ignored.
    renamed
        (name in the file, name here) of nodes whose label is missing, taken or no plain name.
    dropped
        Names of the nodes outside the largest connected part.
    """

    path: Path
    nodes: int
    links: int
    stated: int
    located: int
    interpolated: int
    defaulted: int
    default_rtt_s: float
    unlocated: tuple[str, ...]
    hyperedges: int
    parallel: int
    loops: int
    directed: bool
    renamed: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Say what is not as the file has it."""
        renamed = [f"{old!r} is {new}" for old, new in self.renamed]
        said = {
            f"{self.located} of {self.links} links take as long as light in fibre between their "
            f"ends, {self.stated} what the file says": self.stated < self.links,
            f"{_many(self.interpolated, 'link')} at a point without coordinates, taken to lie in "
            "the middle of its neighbors": self.interpolated,
            f"{_many(self.defaulted, 'link')} at a point that could be anywhere: "
            f"{1000 * self.default_rtt_s:.3g} ms": self.defaulted,
            f"{_count(self.unlocated, 'node')} without coordinates": self.unlocated,
            f"{_many(self.hyperedges, 'hyperedge')} turned into links between every two of their "
            "neighbors": self.hyperedges,
            f"{_many(self.parallel, 'link')} left out beside a faster one between the same "
            "nodes": self.parallel,
            f"{_many(self.loops, 'link')} left out from a node to itself": self.loops,
            "links have directions in the file; here they go both ways": self.directed,
            f"{_count(renamed, 'node')} renamed": renamed,
            f"{_count(self.dropped, 'node')} outside the largest connected part "
            "dropped": self.dropped,
        }
        return [sentence for sentence, holds in said.items() if holds]


class GmlNetwork(NamedTuple):
    """An imported file."""

    topology: Topology
    report: GmlReport


def load_gml(
    path: str | os.PathLike[str],
    *,
    default_rtt_s: float | None = None,
    part: Literal["largest", "all"] = "largest",
) -> GmlNetwork:
    """Import a graph in GML.

    A link's round-trip time is what the file says (`rtt`, or `latency` or `delay` one way; with a
    unit, or in the graph's `delay_unit`, else in milliseconds), or else that of light in fibre
    along the great circle between its ends' `Latitude` and `Longitude`. Of several links between
    two nodes the fastest counts.

    Nodes have no budget, run ``cpu``, and none is a repository; see `Topology` to say otherwise.

    Parameters
    ----------
    path
        A file in UTF-8, or Latin-1 where it is not.
    default_rtt_s
        For links whose length nothing tells; the median of the others if not given.
    part
        Keep only the largest connected part (of equal ones, that of the first node), or all.

    Raises
    ------
    NetworkError
        If it cannot be read, is not a GML graph, or states a latency that is negative or no number.
    """
    import networkx

    path = Path(path)
    graph = _parse(path)
    index = {node: k for k, node in enumerate(graph.nodes)}
    data = [_lower(graph.nodes[node]) for node in index]
    links = [(index[a], index[b], _lower(values)) for a, b, values in graph.edges(data=True)]
    hyper = {k for k, values in enumerate(data) if values.get("hyperedge", 0) not in (0, "0")}
    names, renamed = _unique_names(data, [str(key) for key in index], hyper)
    points = np.array([_point(values) for values in data]).reshape(-1, 2)
    seconds, kinds, default_s = _rtts(path, names, links, points, graph.graph, default_rtt_s)
    fastest = networkx.Graph()
    fastest.add_nodes_from(range(len(data)))
    for (one, other, _), rtt_s in zip(links, seconds, strict=True):
        if one != other:
            _join(fastest, one, other, rtt_s)
    different = fastest.number_of_edges()
    loops = sum(one == other for one, other, _ in links)
    room = MOST_JOINED
    for node in sorted(hyper):
        room -= fastest.degree(node) ** 2 // 2
        if room < 0:
            raise NetworkError(
                f"{path}: its links of more than two ends stand for more than {MOST_JOINED:,} links"
            )
        around = sorted((other, values["rtt_s"]) for other, values in fastest[node].items())
        fastest.remove_node(node)
        # Links between every two of its neighbors, as long as over it.
        for (one, there_s), (other, back_s) in combinations(around, 2):
            _join(fastest, one, other, there_s + back_s)
    if not fastest:
        raise NetworkError(f"{path} holds no nodes")
    kept = set(fastest)
    if part == "largest":
        kept = max(networkx.connected_components(fastest), key=len)
    lost = np.isnan(points).any(axis=1)
    report = GmlReport(
        path=path,
        nodes=len(data),
        links=len(links),
        stated=kinds["stated"],
        located=kinds["located"],
        interpolated=kinds["interpolated"],
        defaulted=kinds["defaulted"],
        default_rtt_s=default_s,
        unlocated=tuple(name for k, name in enumerate(names) if lost[k] and k not in hyper),
        hyperedges=len(hyper),
        parallel=len(links) - loops - different,
        loops=loops,
        directed=graph.is_directed(),
        renamed=tuple(renamed),
        dropped=tuple(names[node] for node in sorted(set(fastest) - kept)),
    )
    place = {node: k for k, node in enumerate(sorted(kept))}
    edges = sorted(
        (*sorted((place[one], place[other])), rtt_s)
        for one, other, rtt_s in fastest.subgraph(kept).edges(data="rtt_s")
    )
    topology = Topology(
        tuple(names[node] for node in place),
        np.array([ends for *ends, _ in edges], np.int64).reshape(-1, 2),
        np.array([rtt_s for *_, rtt_s in edges]),
    )
    return GmlNetwork(topology, report)


def _parse(path: Path) -> networkx.MultiGraph:
    import networkx

    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise NetworkError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise NetworkError(f"{path} is larger than the limit of {LARGEST_FILE:,} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    # GML is ASCII with character references; and a graph with parallel links has to say so.
    text = "".join(c if ord(c) < 128 else f"&#{ord(c)};" for c in text)
    text = re.sub(r"(?im)^([ \t]*)multigraph[ \t]+\d+[ \t\r]*$", r"\1", text)
    text, graphs = re.subn(r"(?m)^([ \t]*)graph(\s*)\[", r"\1graph\2[ multigraph 1", text)
    if not graphs:
        raise NetworkError(f"{path} is not a GML file: it has no `graph [ ... ]`")
    try:
        try:
            graph = networkx.parse_gml(text, label="id")
        except networkx.NetworkXError as error:
            if "is duplicated" not in str(error):
                raise
            # Parallel links that carry one key: without it they are told apart by their order.
            text = re.sub(r"(\s)key\s+(\d+|\"[^\"]*\")(?=\s)", r"\1", text)
            graph = networkx.parse_gml(text, label="id")
    except Exception as error:  # its reader also raises what its own statements run into
        reason = " ".join(str(error).split())[:200]
        raise NetworkError(f"{path} is not a GML file: {reason}") from None
    if not graph.number_of_nodes():
        raise NetworkError(f"{path} holds no nodes")
    return graph


def _lower(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write keys small, and take the first of one that a file gives twice."""
    return {
        str(key).lower(): value[0] if isinstance(value, list) and value else value
        for key, value in values.items()
    }


def _point(values: Mapping[str, Any]) -> tuple[float, float]:
    try:
        lat, lon = float(values["latitude"]), float(values["longitude"])
    except (KeyError, TypeError, ValueError, OverflowError):  # the last: an int of 400 digits
        return np.nan, np.nan
    return (lat, lon) if abs(lat) <= 90 and abs(lon) <= 360 else (np.nan, np.nan)


def _rtts(
    path: Path,
    names: Sequence[str],
    links: Sequence[Link],
    points: Float,
    graph: Mapping[str, Any],
    default_s: float | None,
) -> tuple[list[float], Counter[str], float]:
    """Find each link's seconds, how many were found in which way, and the default, s."""
    ends = np.array([(one, other) for one, other, _ in links], np.int64).reshape(-1, 2)
    filled = interpolated(points, ends.tolist())
    length = great_circle_m(filled[ends[:, 0]], filled[ends[:, 1]])
    known = np.asarray(~np.isnan(points[ends]).any(axis=(1, 2)))
    # Of no length only because an end was put where the other is: that tells nothing.
    far = length >= 1.0
    measured = rtt_of(length)
    if default_s is None:
        long = measured[known & far & (ends[:, 0] != ends[:, 1])]
        default_s = median(long.tolist()) if long.size else DEFAULT_RTT_S
    seconds, kinds = [], Counter[str]()
    for k, (one, other, values) in enumerate(links):
        stated = _stated(path, f"{names[one]} and {names[other]}", values, graph)
        if stated is not None:
            kind, rtt_s = "stated", stated
        elif known[k] or far[k]:
            kind, rtt_s = "located" if known[k] else "interpolated", float(measured[k])
        else:
            kind, rtt_s = "defaulted", default_s
        kinds[kind] += 1
        seconds.append(rtt_s)
    return seconds, kinds, default_s


def _stated(
    path: Path, ends: str, values: Mapping[str, Any], graph: Mapping[str, Any]
) -> float | None:
    key = next((key for key in ("rtt", "latency", "delay") if key in values), None)
    if key is None:
        return None
    text = str(values[key]).strip()
    unit = _lower(graph).get("delay_unit", "ms")
    bare = re.fullmatch(r"[+-]?[0-9.]+(e[+-]?\d+)?", text, re.IGNORECASE) is not None
    try:
        seconds = TIME.parse(f"{text} {unit}" if bare else text)
    except QuantityError as error:
        raise NetworkError(f"{path}: `{key}` between {ends}: {error}") from None
    if seconds < 0:
        raise NetworkError(f"{path}: the {key} between {ends} is {text}; it must be 0 or more")
    return seconds if key == "rtt" else 2 * seconds


def _join(graph: networkx.Graph, one: int, other: int, rtt_s: float) -> None:
    before = graph[one][other]["rtt_s"] if graph.has_edge(one, other) else np.inf
    graph.add_edge(one, other, rtt_s=min(rtt_s, before))


def _unique_names(
    data: Sequence[Mapping[str, Any]], ids: Sequence[str], skip: set[int]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Name every node by its label, and by its id too where several share it.

    Returns the names, and label and name where they differ; nodes of `skip` need no own name.
    """
    labels = [str(values.get("label", "")).strip() for values in data]
    names = [
        f"node-{_plain(one)}" if (name := _plain(label)).lower() in {"", "none"} else name
        for label, one in zip(labels, ids, strict=True)
    ]
    times = Counter(name for k, name in enumerate(names) if k not in skip)
    taken = {name for name, count in times.items() if count == 1}
    for k, name in enumerate(names):
        if times[name] > 1 and k not in skip:
            numbers = ("", *map("-{}".format, range(2, len(names) + 3)))
            candidates = (f"{name}-{_plain(ids[k])}{number}" for number in numbers)
            names[k] = next(one for one in candidates if one not in taken)
            taken.add(names[k])
    renamed = [
        (label, name)
        for k, (label, name) in enumerate(zip(labels, names, strict=True))
        if label != name and k not in skip
    ]
    return names, renamed


def _plain(label: str) -> str:
    """Turn a label into a name: New York is New-York."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in label)
    return re.sub("-+", "-", kept).strip("-.")[:150].rstrip("-.")


def _count(names: Sequence[str], what: str) -> str:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{_many(len(names), what)} ({shown})"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


# Round-trip times from coordinates: light in fibre along great circles.


def great_circle_m(one: Float, other: Float) -> Float:
    """(n,) distance in meters between (n, 2) points, latitude and longitude in degrees."""
    (lat1, lon1), (lat2, lon2) = np.radians(one).T, np.radians(other).T
    half = (
        np.sin((lat2 - lat1) / 2) ** 2
        + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.clip(half, 0, 1))))


def rtt_of(meters: Float) -> Float:
    """Seconds there and back over that length of fibre, laid straight."""
    return np.asarray(2 * meters / FIBRE_M_PER_S)


def interpolated(points: Float, links: Iterable[Sequence[int]]) -> Float:
    """Place nodes without coordinates, (n, 2) in degrees, in the middle of their neighbors.

    Each missing point, ``nan``, becomes the mean of all its neighbors' points, which may be missing
    themselves, on the sphere. What no chain of links joins to two or more known points says nothing
    about where it is, so it stays unknown.
    """
    import networkx

    graph = networkx.Graph(link for link in links if link[0] != link[1])
    missing = set(graph) & set(np.flatnonzero(np.isnan(points).any(axis=1)).tolist())
    ends = [node for node in missing if graph.degree(node) == 1]
    while ends:  # a dead end could be anywhere, and tells nothing of the node that it hangs from
        node = ends.pop()
        if node in missing and graph.degree(node) <= 1:
            missing.discard(node)
            ends += graph[node]
            graph.remove_node(node)
    filled, (lat, lon) = points.copy(), np.radians(points).T
    vectors = np.column_stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    for joined in networkx.connected_components(graph.subgraph(missing)):
        around = sorted(networkx.node_boundary(graph, joined))
        if len(around) < 2:
            continue
        part = sorted(joined)
        joins = networkx.to_numpy_array(graph, [*part, *around])[: len(part)]
        inner, outer = np.split(joins, [len(part)], axis=1)
        x, y, z = np.linalg.solve(np.diag(joins.sum(axis=1)) - inner, outer @ vectors[around]).T
        filled[part] = np.degrees(
            np.column_stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)])
        )
    return filled
