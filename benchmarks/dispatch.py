"""What one decision costs, called from Python as the live server does.

    python benchmarks/dispatch.py [--json]

One request arrives and is finished at once on a fleet of 64 servers ([Anonymous], Sec. 3.3), for
each policy. Of one that settles, an answer is accepted, and one is kept while a second server is
asked, by a confidence in the last and in the first of 20 bins. CPU time of this thread, median over
rounds; the peer in the same run is the price of calling an empty compiled function with the same
handle.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numba
import numpy as np

from inferway.dispatch import POLICIES, Dispatcher, max_rate
from inferway.site import ACCEPT, ALL_CLASSES, Fleet
from inferway.site.confidence import difficulty_tables

FLEET = Fleet(
    ("fast", "middle", "careful", "exact"),
    np.array([2.0, 1.0, 0.9, 0.1]),
    np.array([0.70, 0.75, 0.80, 1.0]),
    np.array([16, 16, 16, 16]),
)
FLEET = replace(FLEET, confidence=difficulty_tables(FLEET.accuracy, 0.8, 0.8))
TARGET = 0.76


def cost_us(call: Callable[[], object], calls: int = 5_000, rounds: int = 15) -> float:
    """Median CPU time of one call, us."""
    found = []
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - start) / calls * 1e6)
    return statistics.median(found)


@numba.njit
def _empty(handle: object) -> int:
    return 0


def measure() -> dict[str, dict[str, float]]:
    """CPU microseconds of arrive, and of arrive and finish together, by policy."""
    results = {}
    for name in POLICIES:
        rate = 0.5 * max_rate(FLEET, TARGET)
        dispatcher = Dispatcher(FLEET, name, target=TARGET, rate_per_s=rate)

        def both(site: Dispatcher = dispatcher) -> None:
            server = site.arrive(0.0, 12345, np.inf, 0.0, 0, ALL_CLASSES, 1, True)
            site.finish(server, 0.0, 0.5)

        def finish_alone(site: Dispatcher = dispatcher) -> None:
            site.finish(0, 0.0, 0.5)

        both()
        total = cost_us(both)
        row = results[name] = {"arrive_finish_us": total}
        if dispatcher.settles:
            accepted, asked_finish = settling(dispatcher)
        # `finish` of a server with a long queue costs the same each time.
        dispatcher.site.queue[0], dispatcher.site.rows[0] = 10**9, 1
        finish = cost_us(finish_alone)
        row["arrive_us"] = total - finish
        if dispatcher.settles:
            row |= {"settle_accept_us": accepted, "settle_ask_us": asked_finish - finish}
        row["empty_call_us"] = cost_us(lambda site=dispatcher: _empty(site._bound))
    return results


def settling(dispatcher: Dispatcher) -> tuple[float, float]:
    """Cost of an accepted answer, and of one for which another is asked, finished at once, us."""
    price, (low, high) = dispatcher.policy.price.copy(), (np.array([0.0]), np.array([0.99]))
    last = int(dispatcher.site.first[-2])
    dispatcher.policy.price[0] = 1e3  # at which an unsure answer is worth a slow second one

    def accept() -> None:
        assert dispatcher.settle(0, 0.0, 12345, high, 0.7) == ACCEPT

    def ask() -> None:
        server = dispatcher.settle(0, 0.0, 12345, low, 0.7)
        assert server >= last
        dispatcher.finish(server, 0.0, 10.0)

    costs = cost_us(ask), cost_us(accept)
    dispatcher.policy.price[:] = price
    return costs[1], costs[0]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="one JSON document")
    as_json = options.parse_args().json
    results = measure()
    if as_json:
        print(json.dumps({"schema": 1, "machine": platform.processor(), "policies": results}))
        return
    columns = {
        "arrive": "arrive_us",
        "arrive+finish": "arrive_finish_us",
        "settle, accept": "settle_accept_us",
        "settle, ask": "settle_ask_us",
        "empty call": "empty_call_us",
    }
    print(f"{'us of CPU':20}" + "".join(f"{title:>16}" for title in columns))
    for name, row in results.items():
        cells = (f"{row[key]:16.2f}" if key in row else f"{'':16}" for key in columns.values())
        print(f"{name:20}" + "".join(cells))


if __name__ == "__main__":
    main()
