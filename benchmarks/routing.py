"""What probabilistic routing costs: one compiled choice, by the number of servers.

    python benchmarks/routing.py [--json]

[Tan24], Sec. 5.2.4: "within a few nanoseconds". The policy's own `choose` runs in a compiled loop
over random words, by probabilities drawn from an exponential distribution. Its peers in the same
run find the server by a linear scan of the cumulated probabilities and by bisection of them; an
empty loop says what drawing the number costs. CPU time of this thread, the median over rounds. A
table costs its making at each slot.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from inferway.dispatch.alias import Alias, set_routing
from inferway.dispatch.contract import choose
from inferway.site import ALL_CLASSES, Fleet, Request, empty_site, uniform
from inferway.site.handle import handle

SERVERS = (4, 64, 4096)
CALLS = 1_000_000
ROUNDS = 9


@numba.njit
def _alias(bound: Any, words: Any, cumulated: Any) -> int:
    found = 0
    policy, site, request = handle(bound[0]), handle(bound[1]), bound[2]
    for i in range(words.size):
        found += choose(policy, site, request, words[i])
    return found


@numba.njit
def _scan(bound: Any, words: Any, cumulated: Any) -> int:
    found = 0
    for i in range(words.size):
        u = uniform(words[i], 0)
        server = 0
        while cumulated[server] <= u:
            server += 1
        found += server
    return found


@numba.njit
def _bisection(bound: Any, words: Any, cumulated: Any) -> int:
    found = 0
    for i in range(words.size):
        u = uniform(words[i], 0)
        low, high = 0, cumulated.size - 1
        while low < high:
            middle = (low + high) >> 1
            if cumulated[middle] <= u:
                low = middle + 1
            else:
                high = middle
        found += low
    return found


@numba.njit
def _nothing(bound: Any, words: Any, cumulated: Any) -> int:
    found = 0
    for i in range(words.size):
        found += int(uniform(words[i], 0) * cumulated.size)
    return found


KINDS: dict[str, Callable[..., int]] = {
    "alias": _alias,
    "scan": _scan,
    "bisection": _bisection,
    "number alone": _nothing,
}


def median_s(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU time of a call, s."""
    call()
    found = []
    for _ in range(rounds):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return statistics.median(found)


def measure(servers: int) -> dict[str, float]:
    """Nanoseconds of a choice by kind, and microseconds to set the routing."""
    fleet = Fleet(("a",), np.ones(1), np.ones(1), np.array([servers]))
    alias = Alias.build(fleet, target=None, rate_per_s=None)
    generator = np.random.default_rng(servers)
    probabilities = generator.exponential(size=servers)
    probabilities /= probabilities.sum()
    set_routing(alias, probabilities)
    site = empty_site(fleet, None, 15)
    request = Request(0.0, np.inf, 0.0, 0, 1, ALL_CLASSES, site.open, False)
    words = generator.integers(-(2**63), 2**63, CALLS)
    cumulated = np.cumsum(probabilities)
    cumulated[-1] = 1.0
    bound = (alias, site, request)
    found = {
        name: median_s(lambda kind=kind: kind(bound, words, cumulated)) / CALLS * 1e9
        for name, kind in KINDS.items()
    }
    table = median_s(lambda: [set_routing(alias, probabilities) for _ in range(200)]) / 200
    return found | {"set routing, us": table * 1e6}


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="one JSON document")
    as_json = options.parse_args().json
    results = {servers: measure(servers) for servers in SERVERS}
    if as_json:
        print(json.dumps({"schema": 1, "machine": platform.processor(), "servers": results}))
        return
    print(f"{'servers':>8}" + "".join(f"{name:>16}" for name in results[SERVERS[0]]) + "   (ns)")
    for servers, row in results.items():
        print(f"{servers:8}" + "".join(f"{value:16.1f}" for value in row.values()))


if __name__ == "__main__":
    main()
