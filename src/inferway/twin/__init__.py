"""The twin: the same policies on a simulated site."""

from inferway.twin.replication import ConservationError
from inferway.twin.result import Estimate, Result, TaskResult
from inferway.twin.scenario import Failures, Scenario, SetOutage, scenario_of
from inferway.twin.simulation import run, simulate

__all__ = [
    "ConservationError",
    "Estimate",
    "Failures",
    "Result",
    "Scenario",
    "SetOutage",
    "TaskResult",
    "run",
    "scenario_of",
    "simulate",
]
