"""Compiling all that a deployment runs, in both worlds, before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferway.dispatch.deployed import dispatcher_of
from inferway.site.compiled import Compilation, watched
from inferway.twin.scenario import scenario_of
from inferway.twin.simulation import run, simulate

if TYPE_CHECKING:
    from inferway.deployment import Deployment


def compile_beforehand(deployment: Deployment) -> list[Compilation]:
    """Compile what the deployment's policies need in the live server and in the twin.

    Returns
    -------
    list of Compilation
        In the order in which they were made; none where all was in the cache.

    Raises
    ------
    ValueError
        Where a policy does not compile, or the file lacks what its policy needs.
    """
    made: list[Compilation] = []
    with watched(done=made.append):
        if deployment.network is not None:
            if deployment.workload:
                for events in (False, True):
                    simulate(deployment, slots=1, events=events)
            return made
        for task in deployment.tasks:
            dispatcher_of(deployment, task)
            if task in deployment.workload:
                run(scenario_of(deployment, task), queries=1, warmup=0, workers=1)
    return made
