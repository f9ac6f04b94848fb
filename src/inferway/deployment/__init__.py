"""The deployment file: load, validate, explain."""

from inferway.deployment.deployment import (
    Batch,
    Deployment,
    Model,
    Node,
    ServiceTime,
    Task,
    Variant,
)
from inferway.deployment.error import DeploymentError, Problem
from inferway.deployment.load import load
from inferway.deployment.policies import PolicySpec

__all__ = [
    "Batch",
    "Deployment",
    "DeploymentError",
    "Model",
    "Node",
    "PolicySpec",
    "Problem",
    "ServiceTime",
    "Task",
    "Variant",
    "load",
]
