"""How fast schedulers can be trained: slots and requests per second of CPU on one core.

    OMP_NUM_THREADS=1 python benchmarks/environment.py [--rounds 7] [--json]

examples/edge-burst.yaml with `late: serve`: two light and two heavy servers, bursts, slots of 1 s,
each with new routing and an observation of 132 numbers. Beside the sites that training runs on: the
same through Gymnasium, with service times that vary, with late requests dropped, and, as the peer,
the twin's general engine under the policy `alias`, stopped and observed once a slot. All take turns
in each round and the best round counts: others may use the machine. Needs `inferway[learn]`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import inferway
from inferway.deployment import ServiceTime
from inferway.dispatch.alias import set_routing
from inferway.learning.control import Control
from inferway.learning.deployed import setting
from inferway.learning.registration import ID
from inferway.learning.site import SlottedSites
from inferway.machine import machine
from inferway.scheduling import UNKNOWN
from inferway.scheduling.observation import layout_of, observe
from inferway.twin import Scenario
from inferway.twin.engine import GeneralEngine, engine_of

FILE = Path(__file__).parents[1] / "examples" / "edge-burst.yaml"
ROUTING = [0.44, 0.44, 0.06, 0.06]
GOALS = (
    ("512 sites", "slots", 1.4e6),
    ("512 sites", "requests", 25e6),
    ("1 site", "slots", 0.35e6),
)
Run = Callable[[], tuple[int, int]]
"""Slots and requests of one go."""


def of_sites(control: Control, count: int, slots: int) -> Run:
    """The sites as training steps them."""
    sites = SlottedSites(control, count=count, seed=1)
    routing = np.tile(ROUTING, (count, 1))

    def run() -> tuple[int, int]:
        sites.clear()
        for _ in range(slots):
            sites.step(routing)
        return slots * count, int(sites.counts.arrived.sum())

    return run


def of_vector(count: int, slots: int, **options: Any) -> Run:
    """A step of the vector environment."""
    envs = gymnasium.make_vec(ID, num_envs=count, max_episode_steps=None, file=FILE, **options)
    envs.reset(seed=1)
    actions = np.tile(np.array(ROUTING, np.float32), (count, 1))

    def run() -> tuple[int, int]:
        requests = sum(int(envs.step(actions)[-1]["arrived"].sum()) for _ in range(slots))
        return slots * count, requests

    return run


def of_one(slots: int) -> Run:
    """A step of the environment of one site, in Gymnasium's wrappers."""
    env = gymnasium.make(ID, max_episode_steps=1 << 40, file=FILE)
    env.reset(seed=1)
    action = np.array(ROUTING, np.float32)

    def run() -> tuple[int, int]:
        return slots, sum(env.step(action)[-1]["arrived"] for _ in range(slots))

    return run


def of_engine(scenario: Scenario, slots: int) -> Run:
    """The general engine, stopped at the end of each slot to look at the site and to route."""
    fleet = scenario.fleet
    engine = engine_of(replace(scenario, policy="alias", options={}), seed=1, kind="general")
    assert isinstance(engine, GeneralEngine)
    engine.count_anew()
    layout = layout_of(
        counts=fleet.count, service_s=1.0 / fleet.rate, buffer=int(fleet.buffer or 0)
    )
    routing = np.array(ROUTING)

    def run() -> tuple[int, int]:
        before = int(engine.tally.arrived.sum())
        begin_s = engine.now_s
        for slot in range(slots):
            set_routing(engine.policy, routing)
            engine.advance(1 << 40, begin_s + slot + 1.0)
            observe(layout, engine.site, UNKNOWN)
        return slots, int(engine.tally.arrived.sum()) - before

    return run


def of_requests(scenario: Scenario, requests: int) -> Run:
    """The general engine alone: so many requests, and the slots in which they came."""
    engine = engine_of(replace(scenario, policy="alias", options={}), seed=1, kind="general")
    engine.count_anew()

    def run() -> tuple[int, int]:
        begin_s = engine.now_s
        arrived = engine.advance(requests)
        return round(engine.now_s - begin_s), arrived

    return run


def cases(scale: float) -> dict[str, Run]:
    """Everything that takes turns."""

    def of(slots: float) -> int:
        return max(1, round(slots * scale))

    control = setting(FILE)
    scenario = control.scenario
    varied = tuple(ServiceTime("lognormal", one.mean_s, cv=0.5) for one in scenario.service)
    return {
        "512 sites": of_sites(control, 512, of(1000)),
        "1 site": of_sites(control, 1, of(200_000)),
        "512 sites through Gymnasium": of_vector(512, of(1000)),
        "512 sites through Gymnasium, copy=False": of_vector(512, of(1000), copy=False),
        "1 site through Gymnasium": of_one(of(40_000)),
        "512 sites, lognormal service": of_sites(
            replace(control, scenario=replace(scenario, service=varied)), 512, of(1000)
        ),
        "512 sites, late: drop": of_sites(
            replace(control, scenario=replace(scenario, late="drop")), 512, of(1000)
        ),
        "general engine": of_engine(scenario, of(20_000)),
        "general engine, never stopped": of_requests(scenario, of(1_000_000)),
    }


def measure(rounds: int, scale: float) -> dict[str, dict[str, float]]:
    """Slots and requests per CPU second of the best of the rounds, by case."""
    named = cases(scale)
    best = {name: {"slots": 0.0, "requests": 0.0} for name in named}
    for round_ in range(rounds + 1):
        for name, case in named.items():
            start_s = time.process_time()
            slots, requests = case()
            taken_s = time.process_time() - start_s
            # The first round compiles. Slots differ in their requests, so these say which is best.
            if round_ and requests / taken_s > best[name]["requests"]:
                best[name] = {"slots": slots / taken_s, "requests": requests / taken_s}
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of slots")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    found = measure(options.rounds, options.scale)
    goals = [(*goal, found[goal[0]][goal[1]]) for goal in GOALS]
    if options.json:
        listed = [
            {"goal": f"{name}, {what}/s", "measured": value, "wanted": wanted}
            for name, what, wanted, value in goals
        ]
        document = {"schema": 1, "machine": machine(), "measured": found, "goals": listed}
        print(json.dumps(document | {"inferway": inferway.__version__}, indent=1))
        return
    print(f"{'per CPU second':42}{'M slots':>12}{'M requests':>12}{'ns a request':>14}")
    for name, value in found.items():
        requests = value["requests"]
        print(f"{name:42}{value['slots'] / 1e6:12.3f}{requests / 1e6:12.2f}{1e9 / requests:14.0f}")
    print()
    for name, what, wanted, reached in goals:
        met = "met" if reached >= wanted else "NOT met"
        print(f"{f'{name}, {what}/s':42}{reached:12.4g}{wanted:12.4g}   {met}")


if __name__ == "__main__":
    main()
