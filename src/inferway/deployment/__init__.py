"""The deployment file: load, validate, explain."""

from inferway.deployment.deployment import Deployment, load, schema
from inferway.deployment.errors import DeploymentError, Problem
from inferway.deployment.models import Model, OwnClass, Python, Remote
from inferway.deployment.nodes import Failure, Node, Outage
from inferway.deployment.overhead import times_file
from inferway.deployment.policies import PolicySpec
from inferway.deployment.runtimes import measured, runtime_of, signature_said
from inferway.deployment.tasks import (
    AccuracyTarget,
    Batch,
    Difficulty,
    Drift,
    ServiceTime,
    Task,
    Variant,
)
from inferway.deployment.warnings import Caution, check

__all__ = [
    "AccuracyTarget", "Batch", "Caution", "Deployment", "DeploymentError", "Difficulty", "Drift",
    "Failure", "Model", "Node", "Outage", "OwnClass", "PolicySpec", "Problem", "Python", "Remote",
    "ServiceTime", "Task", "Variant", "check", "load", "measured", "runtime_of", "schema",
    "signature_said", "times_file",
]  # fmt: skip
