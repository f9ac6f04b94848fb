"""What one decision costs, called from Python as the live server does.

    python benchmarks/dispatch.py [--json]

One request arrives and is finished at once on a fleet of 64 servers ([Anonymous], Sec. 3.3), for
each policy. CPU time of this thread, median over rounds; the peer in the same run is the price of
calling an empty compiled function with the same handle.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numba
import numpy as np

from inferway.dispatch import POLICIES, Dispatcher, max_rate
from inferway.site import ALL_CLASSES, Fleet

FLEET = Fleet(
    ("fast", "middle", "careful", "exact"),
    np.array([2.0, 1.0, 0.9, 0.1]),
    np.array([0.70, 0.75, 0.80, 1.0]),
    np.array([16, 16, 16, 16]),
)
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
        # `finish` of a server with a long queue costs the same each time.
        dispatcher.site.queue[0] = 10**9
        results[name] = {"arrive_finish_us": total, "arrive_us": total - cost_us(finish_alone)}
        empty = cost_us(lambda site=dispatcher: _empty(site._bound))
        results[name]["empty_call_us"] = empty
    return results


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="one JSON document")
    as_json = options.parse_args().json
    results = measure()
    if as_json:
        print(json.dumps({"schema": 1, "machine": platform.processor(), "policies": results}))
        return
    print(f"{'policy':20} {'arrive':>8} {'arrive+finish':>14} {'empty call':>11}   (us of CPU)")
    for name, row in results.items():
        print(
            f"{name:20} {row['arrive_us']:8.2f} {row['arrive_finish_us']:14.2f}"
            f" {row['empty_call_us']:11.2f}"
        )


if __name__ == "__main__":
    main()
