"""Topology -> paths -> request types -> ranked service options, as arrays.

`network_of` builds all of it from a deployment file; from Python, `tree`, `load_gml` or
`from_graph` make a `Topology`, `shortest_paths` routes in it, and `delivery_network` ranks the
service options of the request types.
"""

from inferway.network.delivery import DeliveryNetwork, delivery_network
from inferway.network.demand import Demand
from inferway.network.gml import GmlNetwork, GmlReport, load_gml
from inferway.network.layout import (
    Deployed,
    demand_of,
    deployed,
    entries_of,
    members_of,
    network_of,
    topology_of,
)
from inferway.network.options import CostFunction, Models, Options, Pairs, Paths, Requests, Service
from inferway.network.routes import given_paths, shortest_paths
from inferway.network.topology import Level, NetworkError, Topology, from_graph, to_graph, tree

__all__ = [
    "CostFunction",
    "DeliveryNetwork",
    "Demand",
    "Deployed",
    "GmlNetwork",
    "GmlReport",
    "Level",
    "Models",
    "NetworkError",
    "Options",
    "Pairs",
    "Paths",
    "Requests",
    "Service",
    "Topology",
    "delivery_network",
    "demand_of",
    "deployed",
    "entries_of",
    "from_graph",
    "given_paths",
    "load_gml",
    "members_of",
    "network_of",
    "shortest_paths",
    "to_graph",
    "topology_of",
    "tree",
]
