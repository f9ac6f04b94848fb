"""Small runs of all that is compiled: printed with the JIT off, called where it is on.

What each policy decides and where placement puts what, the engines of the twin, slotted sites; and
what becomes of engines that are broken on purpose.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import naive_placement as naive
import numba
import numpy as np
import test_routed
from fleets import sure
from systems import HERE, VERSATILE, poisson, records
from test_twin_runs import two_classes

from inferway.dispatch import POLICIES, Dispatcher, max_rate
from inferway.dispatch.dispatcher import PolicyError
from inferway.placement import Observation, build_policy, project, serve
from inferway.site import ALL_CLASSES, Fleet
from inferway.twin import ConservationError, Scenario, SetOutage, run
from inferway.twin.kernel import general

OFF = bool(numba.config.DISABLE_JIT)


def decided(name: str, max_wait_s: float | None = None) -> list[float]:
    """Servers, in turn, and at the end the accuracy balance."""
    fleet = Fleet(
        ("a", "b", "c"),
        np.array([8.0, 3.0, 1.0]),
        np.array([0.6, 0.8, 0.95]),
        np.array([2, 2, 3]),
        buffer=4,
    )
    fleet = sure(fleet)
    rate = 0.8 * max_rate(fleet, 0.8)
    dispatcher = Dispatcher(fleet, name, target=0.8, rate_per_s=rate, max_wait_s=max_wait_s)
    dispatcher.set_lasting(0b100)
    generator = np.random.default_rng(11)
    found: list[float] = []
    for step in range(600):
        now, word = step / 10, int(generator.integers(-(2**63), 2**63))
        deadline = now + 1.5 if step % 7 == 0 else np.inf
        classes = 0b110 if step % 11 == 0 else ALL_CLASSES
        floor = 0.7 if step % 13 == 0 else 0.0
        server = dispatcher.arrive(
            now, word, deadline, floor, 0, classes, 1 + step % 3, step % 11 != 0
        )
        found.append(server)
        for server in range(fleet.servers):
            waiting = int(dispatcher.site.queue[server])
            if waiting > 1 and generator.random() < 0.05:
                dispatcher.withdraw(server, waiting - 1, now)
            elif waiting and generator.random() < 0.3:
                dispatcher.finish(server, now, 0.1)
                if dispatcher.settles:
                    confidence = np.array([step % 10 / 10])
                    found.append(dispatcher.settle(server, now, word, confidence, 0.8))
                    found.append(dispatcher.credit)
        if step % 50 == 0:
            dispatcher.mark(step % fleet.servers, step % 100 == 0, now)
    return [*found, dispatcher.balance]


def decisions() -> dict[str, list[float]]:
    """Every policy's decisions over a fixed course of events."""
    found = {name: decided(name) for name in POLICIES}
    return found | {f"{name}, saturated": decided(name, 0.3) for name in POLICIES}


def placements() -> dict[str, Any]:
    """Loads and allocations of placement policies, slot by slot, and a projection."""
    found: dict[str, Any] = {}
    for name in ("infida", "infida-offline", "static-greedy", "olag", "greedy"):
        network = naive.random_network(5, nodes=4, tasks=2, types=5, copies=2, pins=True)
        batches = np.array([naive.batch(network, k) for k in range(4)])
        options = {"iterations": 10} if name == "infida-offline" else {}
        policy = build_policy(name, network, seed=2, batches=batches, **options)
        rows = []
        for requests in batches:
            load = serve(network, requests, policy.allocation)
            rows.append([float(f"{value:.9g}") for value in load])
            policy.step(Observation(requests, load))
            rows.append(policy.allocation.tolist())
        found[name] = rows
    found["fresh"] = build_policy("infida", network, rounding="fresh").allocation.tolist()
    projected = project([3.0, 0.2, 0.1], [1.0, 2.0, 3.0], 2.5)
    found["projection"] = [float(f"{value:.9g}") for value in projected]
    return found


def numbers() -> dict[str, Any]:
    """Results by engine, and the course of a run with all there is."""
    found: dict[str, Any] = {}
    for kind, law in (("markov", "exponential"), ("ordered", "deterministic")):
        result = run(two_classes(law), queries=400, warmup=50, engine=kind).to_json()
        found[kind] = {**result, "queries_per_cpu_s": None}
    result = run(two_classes("exponential"), queries=400, warmup=50, engine="general").to_json()
    found["general"] = {**result, "queries_per_cpu_s": None}
    asked = two_classes("exponential")
    asked = replace(asked, fleet=sure(asked.fleet), policy="escalate", options={"price": 5.0})
    asked = replace(asked, arrivals=poisson(3.0), deadline_s=9.0, target=0.75)
    result = run(asked, queries=400, warmup=50, engine="general").to_json()
    found["escalate"] = {**result, "queries_per_cpu_s": None}
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
    found = {
        "decisions": decisions(),
        "placements": placements(),
        "numbers": numbers(),
        "slotted": test_routed.numbers(),
        "broken": broken() if OFF else {},
    }
    json.dump(found, sys.stdout)
