"""The deployment file: load, validate, explain."""

from inferway.deployment.cautions import Caution, check
from inferway.deployment.deployment import (
    Batch,
    Deployment,
    Failure,
    Model,
    Node,
    Outage,
    ServiceTime,
    Task,
    Variant,
)
from inferway.deployment.error import DeploymentError, Problem
from inferway.deployment.load import load
from inferway.deployment.measure import measured
from inferway.deployment.policies import PolicySpec
from inferway.deployment.remote import Remote
from inferway.deployment.schema import schema

__all__ = [
    "Batch",
    "Caution",
    "Deployment",
    "DeploymentError",
    "Failure",
    "Model",
    "Node",
    "Outage",
    "PolicySpec",
    "Problem",
    "Remote",
    "ServiceTime",
    "Task",
    "Variant",
    "check",
    "load",
    "measured",
    "schema",
]
