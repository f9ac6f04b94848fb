"""Topology -> paths -> request types -> ranked service options, as arrays."""

from inferway.network.cost import CostFunction, Service
from inferway.network.delivery import DeliveryNetwork, delivery_network
from inferway.network.error import NetworkError
from inferway.network.options import Models, Options, Pairs, Paths, Requests
from inferway.network.routes import given_paths, shortest_paths
from inferway.network.topology import Tier, Topology, tree

__all__ = [
    "CostFunction",
    "DeliveryNetwork",
    "Models",
    "NetworkError",
    "Options",
    "Pairs",
    "Paths",
    "Requests",
    "Service",
    "Tier",
    "Topology",
    "delivery_network",
    "given_paths",
    "shortest_paths",
    "tree",
]
