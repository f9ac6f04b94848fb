"""The same policies on real backbones (ours).

Two are typed from public facts: Abilene (2005) and NSFNET T1 (1991) as they are commonly drawn,
cities and which of them are joined, with the round-trip times of light in fibre between them.
Others are read from graph files where a folder of them is named.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import least
from inferway.network import Topology, load_gml
from inferway.network.gml import great_circle_m, rtt_of
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import (
    GIB,
    POLICIES,
    Settings,
    curves,
    demanded,
    placement_study,
    run,
    summary,
)

# Environment variable that names a folder with GML files, such as the Internet Topology Zoo's.
VARIABLE: Final = "INFERWAY_TOPOLOGIES"

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


@dataclass(frozen=True)
class BackboneSettings(Settings):
    """Backbones whose best-placed node is the cloud; requests enter everywhere else."""

    names: tuple[str, ...] = (
        "Abilene", "NSFNET", "Geant2012", "DeutscheTelekom", "Garr201201", "Interoute", "Colt",
    )  # fmt: skip
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "exchange", "infida-offline", "static-greedy", "olag",
        "greedy",
    )  # fmt: skip
    rate_per_node: float = 1000.0
    budget: float = 2 * GIB
    trials: int = 3


def backbone(name: str) -> Topology:
    """Return one of `BUILT_IN`, or the file NAME.gml of the folder that `VARIABLE` names.

    NetworkError for a file that is none; KeyError where no folder is named.
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


def simulated(
    name: str,
    policy: str,
    alpha: float,
    rate_per_node: float,
    budget: float,
    slots: int,
    seed: int,
) -> dict[str, Any]:
    """Run a policy on a backbone; see `inferway.studies.placement.trial.summary`."""
    topology = equipped(backbone(name), budget)
    places = np.flatnonzero(~topology.repository)
    built = demanded(
        topology,
        places,
        alpha=alpha,
        rate_per_s=rate_per_node * len(places),
        sliding=True,
        seed=seed,
        copies=3,
        per_task=max(2, len(places) // 5),
    )
    row = summary(run(built, POLICIES[policy].build(built, slots, seed), policy, slots))
    return {
        **{name: value for name, value in row.items() if not name.startswith("served by")},
        "nodes": len(topology.nodes),
        "links": len(topology.links),
        "hops": float(np.diff(built.network.paths.first).mean() - 1),
    }


def equipped(plain: Topology, budget: float) -> Topology:
    """Make the node that is nearest to all others the cloud, and give the others a budget each."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    count = len(plain.nodes)
    one, other = plain.links.T
    graph = csr_array((plain.rtt_s + 1e-9, (one, other)), shape=(count, count))
    repository = np.arange(count) == int(np.argmin(dijkstra(graph, directed=False).sum(axis=1)))
    return Topology(
        plain.nodes,
        plain.links,
        plain.rtt_s,
        np.where(repository, np.inf, budget),
        np.where(repository, 0, 1).astype(np.int32),
        ("titan-rtx", "gtx-980"),
        repository,
    )


def _points(settings: BackboneSettings) -> list[Point]:
    axes: dict[str, Any] = {"name": found(settings.names), "policy": settings.policies}
    return grid(
        simulated,
        settings.given("alpha", "rate_per_node", "budget", "slots"),
        lambda policy, **_: 4 * POLICIES[policy].cost(settings.slots),
        **axes,
        trial=range(settings.trials),
    )


def _figure(settings: BackboneSettings, results: Results) -> Drawing:
    nodes = sorted(set(results.distinct("nodes"))) or [0]
    title = ", ".join(
        f"{name} {results.one('nodes', name=name)}" for name in results.distinct("name")
    )
    own = {
        policy: results.where(policy=policy).values("ntag_ms", nodes=nodes)
        for policy in ("infida-offline", *settings.policies)
    }
    best = own.pop("infida-offline")
    gain = [
        POLICIES[policy].look.curve(nodes, [100 * a / b for a, b in zip(one, best, strict=True)])
        for policy, one in own.items()
    ]
    moved = curves(results, settings.policies, "mu_mib", nodes=nodes)
    # What never moves has no place on a logarithmic axis.
    moved = [one for one in moved if max(one.y) > 0]
    axis: dict[str, Any] = {"scale_across": "log", "ticks_across": nodes}
    up = "% of INFIDA-offline's gain"
    return panels(
        [
            Panel("gain", "nodes", up, gain, levels=[("", 100.0)], **axis),
            Panel("models fetched", "nodes", "MiB per slot", moved, scale_up="log", **axis),
        ],
        columns=2,
        title=f"Real backbones: {title}",
    )


def _claims(settings: BackboneSettings, results: Results) -> list[Claim]:
    names, on = results.distinct("name"), "on real backbones."
    missing = ", ".join(name for name in settings.names if name not in names)
    absent = f"; not at hand: {missing} (set {VARIABLE} to a folder with their GML files)"
    absent = absent if missing else ""

    def ratios(column: str, policy: str, rival: str) -> dict[str, float]:
        mine, theirs = (results.where(policy=one).by(column, name=names) for one in (policy, rival))
        return {name: mine[name] / theirs[name] for name in names}

    def gains(rival: str, says: str, limit: str, policy: str = "infida-coupled") -> str:
        each = ratios("ntag_ms", policy, rival)
        less = {name: one - 1 for name, one in each.items()}
        return f"""[ours] {says} {on}
            - least gain over {POLICIES[rival].label}, less 1: {least(less, "")[0]} ({limit})
            - {percents(less, "+.1f", "{} {}")}{absent}"""

    fewer = ratios("mu_mib", "infida", "infida-coupled")
    return claims(
        gains("olag", "INFIDA gains more than OLAG", "at least 0 %"),
        gains("greedy", "INFIDA gains more than greedy", "at least 0 %"),
        gains("infida", "Coupled rounding gains as much as the paper's", "at least -2 %"),
        f"""Coupled rounding moves far fewer bytes {on}
        - least ratio of the bytes moved: {least(fewer, "")[0]} (at least 5.0)
        - {", ".join(f"{one:.0f}" for one in fewer.values())} times fewer{absent}""",
        gains("olag", "Exchange gains more than OLAG", "at least 0 %", "exchange"),
        gains("infida-offline", "Exchange gains more than hindsight", "at least 0 %", "exchange"),
    )


STUDY = placement_study(
    name="real-topologies",
    source="ours",
    shows="INFIDA and its rivals on real backbones.",
    scales=scales(
        BackboneSettings(),
        smoke={"slots": 12, "trials": 1, "names": ("Abilene",)},
        quick={"slots": 120, "names": BackboneSettings.names[:5]},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        f"Abilene and NSFNET are built in; the others are run where {VARIABLE} names a folder with "
        "their GML files.",
        "The node with the least total round-trip time to all others is the cloud; all others have "
        "2 GiB on a GTX 980, and each task is requested at a fifth of them.",
    ),
)
