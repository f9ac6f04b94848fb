"""CPU time of a first compile: what an empty cache costs a server's start and a simulation.

    python benchmarks/compile.py [--turns 3] [--json]
    python benchmarks/compile.py --beside DIR

A dispatcher of `priced`; the twin's engine `markov` with `tad-op`; `general` under the bursts of
`examples/edge-burst.yaml`; and offers with the event twin of `examples/delivery-network.yaml`. Each
is a process of its own with a cache of its own, run twice: the first compiles and the second finds
all of it. What the first takes longer is the compiler's time. With ``--beside DIR``, the package of
another checkout takes turns with ours: the median of each and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
EXAMPLES = HERE / "examples"


def dispatcher() -> Callable[[], object]:
    """What a server compiles when it starts."""
    import numpy as np

    from inferway.dispatch import Dispatcher
    from inferway.site import Fleet

    rates, accuracies = np.array([2.0, 1.0, 0.9, 0.1]), np.array([0.7, 0.75, 0.8, 1.0])
    fleet = Fleet(("fast", "middle", "careful", "exact"), rates, accuracies, np.full(4, 4))
    return lambda: Dispatcher(fleet, "priced", target=0.76, rate_per_s=4.0)


def markov() -> Callable[[], object]:
    """The engine of Poisson arrivals and exponential service."""
    import numpy as np

    from inferway.deployment import ServiceTime
    from inferway.deployment.workloads import PoissonArrivals
    from inferway.site import Fleet
    from inferway.twin import Scenario, run

    rates, accuracies = np.array([2.0, 1.0, 0.9, 0.1]), np.array([0.7, 0.75, 0.8, 1.0])
    fleet = Fleet(("fast", "middle", "careful", "exact"), rates, accuracies, np.full(4, 4))
    service = tuple(ServiceTime("exponential", float(1 / rate)) for rate in rates)
    arrivals = PoissonArrivals(process="poisson", load=0.5)
    scenario = Scenario(fleet, service, arrivals, target=0.76)
    return lambda: run(scenario, queries=10, warmup=0, engine="markov", workers=1)


def general() -> Callable[[], object]:
    """The engine for everything, with deadlines and bursts."""
    from inferway.deployment import load
    from inferway.twin.simulation import simulate

    deployment = load(EXAMPLES / "edge-burst.yaml")
    return lambda: simulate(deployment, queries=10, workers=1)


def events() -> Callable[[], object]:
    """A network's dispatchers and placement."""
    from inferway.deployment import load
    from inferway.twin.simulation import simulate

    deployment = load(EXAMPLES / "delivery-network.yaml")
    return lambda: simulate(deployment, slots=1, events=True)


CASES = {
    "dispatcher": dispatcher,
    "engine markov": markov,
    "engine general": general,
    "offers and events": events,
}


def spent_s(name: str) -> float:
    """CPU time of a case in this process, imports and files apart, s."""
    case = CASES[name]()
    start_s = time.process_time()
    case()
    return time.process_time() - start_s


def compiling_s(name: str, checkout: Path) -> float:
    """CPU time of the compiler in a case: with an empty cache, less that with a full one, s."""
    with tempfile.TemporaryDirectory() as cache:
        paths = {"PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": cache}
        environment = os.environ | paths | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--case", name]
        empty_s, full_s = (
            float(subprocess.check_output(command, env=environment).split()[-1]) for _ in range(2)
        )
    return empty_s - full_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(spent_s(options.case))
        return
    checkouts = [HERE] + ([options.beside.resolve()] if options.beside is not None else [])
    rows = {}
    for name in CASES:
        turns = [[compiling_s(name, one) for one in checkouts] for _ in range(options.turns)]
        rows[name] = [statistics.median(times_s) for times_s in zip(*turns, strict=True)]
        if options.json:
            continue
        ours_s, *others_s = rows[name]
        shown = "".join(f"{other_s:10.2f} s   {ours_s / other_s:.2f}" for other_s in others_s)
        print(f"{name:20}{ours_s:8.2f} s{shown}", flush=True)
    if options.json:
        print(json.dumps({"schema": 1, "turns": options.turns, "compiling_s": rows}))


if __name__ == "__main__":
    main()
