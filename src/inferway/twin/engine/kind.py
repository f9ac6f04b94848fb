"""Which kind of engine runs a scenario."""

from __future__ import annotations

from typing import Literal

from inferway.deployment.workloads import PhasedArrivals, PoissonArrivals
from inferway.dispatch.table import policy_class
from inferway.twin.reading import names_read, reads_times
from inferway.twin.scenario import Scenario

Kind = Literal["markov", "ordered", "general"]
KINDS: tuple[Kind, ...] = ("markov", "ordered", "general")


def kinds_of(scenario: Scenario, *, records: bool = False) -> tuple[Kind, ...]:
    """The kinds that can run a scenario, the fastest first.

    Parameters
    ----------
    records
        Whether requests are recorded.
    """
    policy = policy_class(scenario.policy, scenario.folder)
    pulls = hasattr(policy, "pull")
    steady = not scenario.failures and not scenario.outages
    distributions = {time.distribution for time in scenario.service}
    found: list[Kind] = ["general"]
    # A batch takes its own time, and the number that waits is no longer all there is to know.
    batched = any(scenario.batches)
    if distributions == {"deterministic"} and steady and not batched:
        found.insert(0, "ordered")
    if (
        distributions == {"exponential"}
        and steady
        and not pulls
        and not batched
        and not records
        and scenario.deadline_s is None
        and scenario.queue == "per-server"
        and scenario.scheduling is None
        and not scenario.measured_s  # it serves at the rates that the site shows
        and isinstance(scenario.arrivals, PoissonArrivals | PhasedArrivals)
        and "HOLD" not in names_read(policy)
        and not reads_times(policy)
    ):
        found.insert(0, "markov")
    return tuple(found)
