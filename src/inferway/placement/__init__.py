"""Placement: which variants live on which node, slot by slot.

A policy is built by its name for a delivery network; it holds an allocation and is told once a slot
what the slot brought (`inferway.placement.contract`).
"""

from inferway.placement.contract import (
    POLICIES,
    Observation,
    PlacementPolicy,
    build_policy,
    policy_class,
)
from inferway.placement.exact import StaticOptimum, best_static, relaxation
from inferway.placement.objective import cost, gain, minimal, potential, subgradient
from inferway.placement.rounding import dep_round, project, project_sorted
from inferway.placement.serving import instances, serve

__all__ = [
    "POLICIES",
    "Observation",
    "PlacementPolicy",
    "StaticOptimum",
    "best_static",
    "build_policy",
    "cost",
    "dep_round",
    "gain",
    "instances",
    "minimal",
    "policy_class",
    "potential",
    "project",
    "project_sorted",
    "relaxation",
    "serve",
    "subgradient",
]
