"""What is wrong with a deployment's network, unwise in it, or made up by its import."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferway.deployment.warnings import Caution
from inferway.network.deployed import network_of, topology_of
from inferway.network.gml import load_gml

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Findings(NamedTuple):
    """Of a network that can be used.

    Attributes
    ----------
    size
        How many nodes, links and, where the file has a workload, request types and useful (node,
        model) pairs.
    cautions
        Advice, of the kind ``too-large``.
    notes
        What a graph file does not say and its import made up, a sentence each.
    """

    size: dict[str, int]
    cautions: list[Caution]
    notes: list[str]


def check(deployment: Deployment) -> Findings | None:
    """Build a deployment's network to see whether it can be used; None where it has none.

    Raises
    ------
    DeploymentError
        Where it cannot, as `network_of`.
    """
    written = deployment.network
    if written is None:
        return None
    topology = topology_of(deployment)
    size = {"nodes": len(topology.nodes), "links": len(topology.links)}
    cautions: list[Caution] = []
    if deployment.workload:
        network = network_of(deployment)
        size |= {"request_types": len(network.requests.task), "pairs": len(network.pairs.node)}
        line = deployment.line_of("network")
        cautions = [Caution("too-large", "network", line, said) for said in network.warnings]
    notes = [] if written.gml is None else load_gml(written.gml).report.sentences()
    return Findings(size, cautions, notes)
