"""Round-trip times from coordinates: light in fibre along great circles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx

Float = NDArray[np.float64]

EARTH_RADIUS_M = 6_371_008.8  # mean radius of WGS 84
FIBRE_M_PER_S = 299_792_458 / 1.468  # group index of single-mode fibre (ITU-T G.652) at 1550 nm


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
    """Place nodes without coordinates in the middle of their neighbors.

    Each missing point becomes the mean of all its neighbors' points, which may be missing
    themselves, on the sphere. What no chain of links joins to two or more known points says nothing
    about where it is, so it stays unknown.

    Parameters
    ----------
    points
        (n, 2) latitude and longitude in degrees; ``nan`` where unknown.
    links
        Pairs of nodes.

    Returns
    -------
    (n, 2) the points, with those filled in that can be.
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
    filled = points.copy()
    for part in networkx.connected_components(graph.subgraph(missing)):
        if len(networkx.node_boundary(graph, part)) >= 2:
            _place(filled, sorted(part), graph)
    return filled


def _place(points: Float, part: list[int], graph: networkx.Graph) -> None:
    """Put joined nodes where each is the mean of its neighbors."""
    index = {node: k for k, node in enumerate(part)}
    matrix = np.zeros((len(part), len(part)))
    right = np.zeros((len(part), 3))
    for node, k in index.items():
        matrix[k, k] = graph.degree(node)
        for other in graph[node]:
            if other in index:
                matrix[k, index[other]] -= 1
            else:
                right[k] += _vector(points[other])
    for node, (x, y, z) in zip(part, np.linalg.solve(matrix, right), strict=True):
        points[node] = np.degrees([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)])


def _vector(point: Float) -> Float:
    lat, lon = np.radians(point)
    return np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
