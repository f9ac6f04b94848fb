"""When servers fail and return, laid out for the general engine."""

from __future__ import annotations

import numpy as np

from inferway.twin.kernel import futures
from inferway.twin.kernel.state import Outages, World
from inferway.twin.scenario import Scenario


def outages_of(scenario: Scenario) -> tuple[Outages, list[tuple[float, int]]]:
    """Failures by server, and the set changes as (time, index)."""
    fleet = scenario.fleet
    every_s, for_s = np.full(fleet.servers, np.inf), np.full(fleet.servers, np.inf)
    for variant, failure in scenario.failures.items():
        k = fleet.variants.index(variant)
        every_s[fleet.first[k] : fleet.first[k + 1]] = failure.every_s
        for_s[fleet.first[k] : fleet.first[k + 1]] = failure.for_s
    server, change, times = [], [], []
    for outage in scenario.outages:
        first = int(fleet.first[fleet.variants.index(outage.variant)])
        for one in range(first, first + outage.count):
            for sign, at_s in ((1, outage.at_s), (-1, outage.at_s + outage.for_s)):
                server.append(one)
                change.append(sign)
                times.append(at_s)
    outages = Outages(every_s, for_s, np.array(server, np.int64), np.array(change, np.int64))
    return outages, [(at_s, index) for index, at_s in enumerate(times)]


def schedule(world: World, changes: list[tuple[float, int]]) -> None:
    """Put the first random failure of each server, and the set changes, into the future."""
    servers = len(world.outages.every_s)
    random = np.random.default_rng(int(world.states[2]))
    for server in np.flatnonzero(np.isfinite(world.outages.every_s)):
        at_s = float(random.exponential(world.outages.every_s[server]))
        futures.put_in_heap(world.future, 0, servers + int(server), at_s)
    for at_s, index in changes:
        futures.put_in_heap(world.future, 0, 2 * servers + index, at_s)
