"""Prints small runs of all engines, and what becomes of broken ones, with the JIT on or off."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numba
from systems import HERE, VERSATILE, records
from test_twin_runs import two_classes

from inferway.dispatch.dispatcher import PolicyError
from inferway.twin import ConservationError, Scenario, SetOutage, run
from inferway.twin.kernel import general

OFF = bool(numba.config.DISABLE_JIT)


def numbers() -> dict[str, Any]:
    """Results by engine, and the course of a run with all there is."""
    found: dict[str, Any] = {}
    for kind, law in (("markov", "exponential"), ("ordered", "deterministic")):
        result = run(two_classes(law), queries=400, warmup=50, engine=kind).to_json()
        found[kind] = {**result, "queries_per_cpu_s": None}
    result = run(two_classes("exponential"), queries=400, warmup=50, engine="general").to_json()
    found["general"] = {**result, "queries_per_cpu_s": None}
    every = replace(
        two_classes("exponential"),
        policy=VERSATILE,
        folder=HERE,
        options={"mode": 1, "hold": 3},
        deadline_s=4.0,
        outages=(SetOutage("a", 2, 5.0, 4.0),),
    )
    found["course"] = [
        [repr(value) for value in left] for left in records(every, 200, 1, "general")
    ]
    return found


def complaint(scenario: Scenario, kind: Any) -> str:
    """What a run that must fail says."""
    try:
        run(scenario, queries=200, warmup=0, engine=kind)
    except (ConservationError, PolicyError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def broken() -> dict[str, str]:
    """Break the simulator, and policies, on purpose; only plain Python lets itself be broken."""
    scenario = two_classes("exponential")
    leave, complete = general._leave, general._complete
    found = {}

    def forget(world: Any, arrived_s: float, *rest: Any) -> None:
        if world.tally.answered.sum() != 100:
            leave(world, arrived_s, *rest)
        else:
            world.tally.answered[0, 0] += 2

    general._leave = forget
    found["made"] = complaint(scenario, "general")

    def age(world: Any, arrived_s: float, *rest: Any) -> None:
        leave(world, arrived_s - 1e-3, *rest)

    general._leave = age
    found["aged"] = complaint(scenario, "general")
    general._leave = leave

    def lose(world: Any, server: int, now_s: float) -> None:
        general.pop(world.waiting, server)
        general.exit_(
            world.upkeep, world.bound.site, server, int(world.bound.site.server_class[server])
        )
        world.counts[general.PRESENT] -= 1
        world.serving.batch[server] = 0

    general._complete = lose
    found["lost"] = complaint(scenario, "general")
    general._complete = complete
    for kind in ("markov", "general"):
        for number in (7, -3):
            wrong = replace(
                scenario,
                policy="./policies/wrong.py:Wrong",
                options={"number": number},
                folder=HERE,
            )
            found[f"{kind} {number}"] = complaint(wrong, kind)
    return found


if __name__ == "__main__":
    json.dump({**numbers(), "broken": broken() if OFF else {}}, sys.stdout)
