"""Round-trip times from coordinates: light in fibre along great circles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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


def interpolated(points: Float, links: Sequence[tuple[int, int]]) -> Float:
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
    neighbors: list[set[int]] = [set() for _ in points]
    for one, other in links:
        if one != other:
            neighbors[one].add(other)
            neighbors[other].add(one)
    missing = {int(node) for node in np.flatnonzero(np.isnan(points).any(axis=1))}
    _peel(missing, neighbors)
    filled = points.copy()
    while missing:
        part, rim = _part(min(missing), missing, neighbors)
        missing -= part
        if len(rim) >= 2:
            _place(filled, sorted(part), neighbors, rim)
    return filled


def _peel(missing: set[int], neighbors: list[set[int]]) -> None:
    """Take dead ends without coordinates out of `missing` and of the neighbors of others."""
    ends = [node for node in missing if len(neighbors[node]) <= 1]
    while ends:
        node = ends.pop()
        if node in missing and len(neighbors[node]) <= 1:
            missing.discard(node)
            for other in neighbors[node]:
                neighbors[other].discard(node)
                ends.append(other)


def _part(start: int, missing: set[int], neighbors: list[set[int]]) -> tuple[set[int], set[int]]:
    """Collect the missing nodes joined to `start`, and the known ones around them."""
    part, rim, open_ = {start}, set(), [start]
    while open_:
        for other in neighbors[open_.pop()]:
            if other not in missing:
                rim.add(other)
            elif other not in part:
                part.add(other)
                open_.append(other)
    return part, rim


def _place(points: Float, part: list[int], neighbors: list[set[int]], rim: set[int]) -> None:
    index = {node: k for k, node in enumerate(part)}
    matrix = np.zeros((len(part), len(part)))
    right = np.zeros((len(part), 3))
    known = {node: _vector(points[node]) for node in rim}
    for node, k in index.items():
        matrix[k, k] = len(neighbors[node])
        for other in neighbors[node]:
            if other in index:
                matrix[k, index[other]] -= 1
            else:
                right[k] += known[other]
    for node, (x, y, z) in zip(part, np.linalg.solve(matrix, right), strict=True):
        points[node] = np.degrees([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)])


def _vector(point: Float) -> Float:
    lat, lon = np.radians(point)
    return np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
