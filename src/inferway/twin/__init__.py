"""The twin: the same policies on a simulated site."""

from inferway.twin.replication import ConservationError
from inferway.twin.result import MeanEstimate, TaskResult, TwinResult
from inferway.twin.scenario import Failures, Scenario, SetOutage, scenario_of
from inferway.twin.simulation import groups_of, run, run_together, run_traces, simulate

__all__ = [
    "ConservationError",
    "Failures",
    "MeanEstimate",
    "Scenario",
    "SetOutage",
    "TaskResult",
    "TwinResult",
    "groups_of",
    "run",
    "run_together",
    "run_traces",
    "scenario_of",
    "simulate",
]
