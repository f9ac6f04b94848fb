"""Two backbones typed from public facts, and graph files where a folder of them is named.

Abilene (2005) and NSFNET T1 (1991) as they are commonly drawn: cities and which of them are joined.
Round-trip times are those of light in fibre between the cities.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from inferway.network import Topology, load_gml
from inferway.network.fibre import great_circle_m, rtt_of

VARIABLE: Final = "INFERWAY_TOPOLOGIES"
"""Environment variable that names a folder with GML files, such as the Internet Topology Zoo's."""

BUILT_IN: Final = ("Abilene", "NSFNET")

_ABILENE = (
    {
        "Seattle": (47.61, -122.33), "Sunnyvale": (37.37, -122.04), "LosAngeles": (34.05, -118.24),
        "Denver": (39.74, -104.99), "KansasCity": (39.10, -94.58), "Houston": (29.76, -95.37),
        "Chicago": (41.88, -87.63), "Indianapolis": (39.77, -86.16), "Atlanta": (33.75, -84.39),
        "Washington": (38.91, -77.04), "NewYork": (40.71, -74.01),
    },
    "Seattle-Sunnyvale Seattle-Denver Sunnyvale-LosAngeles Sunnyvale-Denver LosAngeles-Houston "
    "Denver-KansasCity KansasCity-Houston KansasCity-Indianapolis Houston-Atlanta "
    "Indianapolis-Chicago Indianapolis-Atlanta Chicago-NewYork Atlanta-Washington "
    "Washington-NewYork",
)  # fmt: skip
_NSFNET = (
    {
        "Seattle": (47.61, -122.33), "PaloAlto": (37.44, -122.14), "SanDiego": (32.72, -117.16),
        "SaltLakeCity": (40.76, -111.89), "Boulder": (40.01, -105.27), "Houston": (29.76, -95.37),
        "Lincoln": (40.81, -96.68), "Champaign": (40.12, -88.24), "AnnArbor": (42.28, -83.74),
        "Pittsburgh": (40.44, -80.00), "Atlanta": (33.75, -84.39), "Ithaca": (42.44, -76.50),
        "CollegePark": (38.98, -76.94), "Princeton": (40.35, -74.66),
    },
    "Seattle-PaloAlto Seattle-SanDiego Seattle-Champaign PaloAlto-SanDiego PaloAlto-SaltLakeCity "
    "SanDiego-Houston SaltLakeCity-Boulder SaltLakeCity-AnnArbor Boulder-Lincoln Boulder-Houston "
    "Houston-Atlanta Houston-CollegePark Lincoln-Champaign Champaign-Pittsburgh "
    "AnnArbor-Ithaca AnnArbor-Princeton Pittsburgh-Atlanta Pittsburgh-Ithaca "
    "Pittsburgh-Princeton Ithaca-CollegePark CollegePark-Princeton",
)  # fmt: skip


def backbone(name: str) -> Topology:
    """Return one of `BUILT_IN`, or the file NAME.gml of the folder that `VARIABLE` names.

    Raises
    ------
    NetworkError
        For a file that is none.
    KeyError
        Where no folder is named.
    """
    if name not in BUILT_IN:
        return load_gml(Path(os.environ[VARIABLE]) / f"{name}.gml").topology
    cities, joined = _ABILENE if name == "Abilene" else _NSFNET
    names = tuple(cities)
    links = np.array([[names.index(end) for end in link.split("-")] for link in joined.split()])
    at = np.array([cities[one] for one in names])
    return Topology(names, links, rtt_of(great_circle_m(at[links[:, 0]], at[links[:, 1]])))


def found(names: tuple[str, ...]) -> list[str]:
    """Of these, the ones that are at hand."""
    folder = os.environ.get(VARIABLE)
    here = [] if folder is None else [one.stem for one in Path(folder).glob("*.gml")]
    return [name for name in names if name in BUILT_IN or name in here]
