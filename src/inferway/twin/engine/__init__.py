"""Engines: one replication's arrays, and the compiled loop that moves them.

Three kinds with one face. `markov` draws the next event from total rates, where arrivals are
Poisson and service is exponential; `ordered` keeps completions in a ring per class, where every
class has one service time; `general` keeps them in a heap.
"""

from __future__ import annotations

from collections.abc import Callable

from inferway.twin.engine.engine import KINDS, CrowdedError, Kind, kinds_of
from inferway.twin.engine.general import GeneralEngine
from inferway.twin.engine.markov import MarkovEngine
from inferway.twin.kernel.state import Records
from inferway.twin.scenario import Scenario

__all__ = [
    "KINDS",
    "CrowdedError",
    "GeneralEngine",
    "Kind",
    "MarkovEngine",
    "engine_of",
    "kinds_of",
]


def engine_of(
    scenario: Scenario,
    *,
    seed: int,
    replication: int = 0,
    kind: Kind | None = None,
    records: bool = False,
    sink: Callable[[Records], None] | None = None,
) -> GeneralEngine | MarkovEngine:
    """An engine at time 0. Nothing counts before `count_anew`.

    Another kind than the first of `kinds_of` may be asked for. Requests are recorded where somebody
    wants it or there is a sink, which is given the records of requests that have left, when there
    are enough of them. ValueError where the policy lacks what it needs, or the kind cannot run the
    scenario.
    """
    records = records or sink is not None
    able = kinds_of(scenario, records=records)
    chosen = kind or able[0]
    if chosen not in able:
        raise ValueError(f"the engine {chosen} cannot run this; {' and '.join(able)} can")
    if chosen == "markov":
        return MarkovEngine(scenario, seed, replication)
    return GeneralEngine(scenario, seed, replication, chosen, records, sink)
