"""The same policies on real backbones (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.network import Topology
from inferway.studies.placement.backbones import VARIABLE, backbone, found
from inferway.studies.placement.look import POLICIES, curves
from inferway.studies.placement.setting import demanded
from inferway.studies.placement.trial import CODE, run_policy, seconds, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Curve

_GIB = float(2**30)


@dataclass(frozen=True)
class Settings:
    """Backbones whose best-placed node is the cloud; requests enter everywhere else."""

    names: tuple[str, ...] = (
        "Abilene", "NSFNET", "Geant2012", "DeutscheTelekom", "Garr201201", "Interoute", "Colt",
    )  # fmt: skip
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "olag", "greedy",
    )  # fmt: skip
    alpha: float = 1.0
    rate_per_node: float = 1000.0
    budget: float = 2 * _GIB
    slots: int = 480
    trials: int = 3


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
    result, _ = run_policy(built.network, built.demand, policy, slots, seed)
    return {
        **{k: v for k, v in summary(result).items() if not k.startswith("served by")},
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
    center = int(np.argmin(dijkstra(graph, directed=False).sum(axis=1)))
    repository = np.arange(count) == center
    return Topology(
        plain.nodes,
        plain.links,
        plain.rtt_s,
        np.where(repository, np.inf, budget),
        np.where(repository, 0, 1).astype(np.int32),
        ("titan-rtx", "gtx-980"),
        repository,
    )


def points(settings: Settings) -> list[Point]:
    """Every policy on every backbone at hand."""

    def cost(policy: str, **_: Any) -> float:
        return 4 * seconds(policy, settings.slots)

    arguments = {
        "alpha": settings.alpha,
        "rate_per_node": settings.rate_per_node,
        "budget": settings.budget,
        "slots": settings.slots,
    }
    return grid(
        simulated,
        arguments,
        cost,
        name=found(settings.names),
        policy=settings.policies,
        trial=range(settings.trials),
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Gain and bytes fetched on each backbone, by number of nodes."""
    from inferway.experiments.curves import Panel, panels

    nodes = sorted(set(results.distinct("nodes"))) or [0]
    title = ", ".join(
        f"{name} {results.one('nodes', name=name)}" for name in results.distinct("name")
    )
    gain = [
        _shares(results, policy, nodes)
        for policy in settings.policies
        if policy != "infida-offline"
    ]
    moved = curves(results, settings.policies, "nodes", nodes, "mu_mib")
    # What never moves has no place on a logarithmic axis.
    moved = [one for one in moved if max(one.y) > 0]
    shown = [
        Panel(
            "gain",
            "nodes",
            "% of INFIDA-offline's gain",
            gain,
            levels=[("", 100.0)],
            scale_across="log",
            ticks_across=nodes,
        ),
        Panel(
            "models fetched",
            "nodes",
            "MiB per slot",
            moved,
            scale_across="log",
            scale_up="log",
            ticks_across=nodes,
        ),
    ]
    return panels(shown, columns=2, title=f"Real backbones: {title}")


def _shares(results: Results, policy: str, nodes: list[int]) -> Curve:
    from inferway.experiments.curves import Curve

    look = POLICIES[policy]
    y = [
        100
        * results.value("ntag_ms", policy=policy, nodes=count)
        / results.value("ntag_ms", policy="infida-offline", nodes=count)
        for count in nodes
    ]
    return Curve(look.label, nodes, y, (), (), look.color, look.dash)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Whether what holds on trees holds there."""
    names = results.distinct("name")
    missing = [name for name in settings.names if name not in names]
    absent = (
        f"; not at hand: {', '.join(missing)} (set {VARIABLE} to a folder with their GML files)"
        if missing
        else ""
    )

    def margin(policy: str, rival: str) -> dict[str, float]:
        return {
            name: results.value("ntag_ms", name=name, policy=policy)
            / results.value("ntag_ms", name=name, policy=rival)
            - 1
            for name in names
        }

    def least(policy: str, rival: str, says: str, at_least: float) -> Claim:
        each = margin(policy, rival)
        known = [one for one in each.values() if not math.isnan(one)]
        said = ", ".join(f"{name} {100 * one:+.1f} %" for name, one in each.items())
        return Claim(
            "ours",
            says,
            f"least gain over {POLICIES[rival].label}, less 1",
            min(known, default=math.nan),
            at_least=at_least,
            unit="%",
            why=said + absent,
        )

    bytes_ = [
        results.value("mu_mib", name=name, policy="infida")
        / results.value("mu_mib", name=name, policy="infida-coupled")
        for name in names
    ]
    return [
        least("infida-coupled", "olag", "INFIDA gains more than OLAG on real backbones.", 0.0),
        least("infida-coupled", "greedy", "INFIDA gains more than greedy on real backbones.", 0.0),
        least(
            "infida-coupled",
            "infida",
            "Coupled rounding gains as much as the paper's on real backbones.",
            -0.02,
        ),
        Claim(
            "ours",
            "Coupled rounding moves far fewer bytes on real backbones.",
            "least ratio of the bytes moved",
            min((one for one in bytes_ if not math.isnan(one)), default=math.nan),
            at_least=5.0,
            why=f"{', '.join(f'{one:.0f}' for one in bytes_)} times fewer{absent}",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="real-topologies",
    source="ours",
    shows="INFIDA and its rivals on real backbones.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, names=("Abilene",)),
        "quick": replace(_PAPER, slots=120, names=_PAPER.names[:5]),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        f"Abilene and NSFNET are built in; the others are run where {VARIABLE} names a folder with "
        "their GML files.",
        "The node with the least total round-trip time to all others is the cloud; all others have "
        "2 GiB on a GTX 980, and each task is requested at a fifth of them.",
    ),
    code=(*CODE, "studies/placement/backbones.py"),
)
