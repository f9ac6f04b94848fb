"""What a slot of INFIDA costs as the network grows: CPU time, per useful pair, and memory.

    python benchmarks/placement.py [--json] [--copies 1 10 100 1000 2857] [--tasks-per-base 1]
    python benchmarks/placement.py --beside DIR [--turns 7] [--copies 1 10 100]

Topology I of [SiSalem23] (36 nodes, 20 tasks, 600 models), and trees of many such parts under one
cloud: `--copies 2857` has 99,996 nodes. In the first, every task is requested at 2 base stations;
in the others each base station requests `--tasks-per-base` tasks on average. A step is the whole of
INFIDA: observed loads, gain, subgradient, mirror step, projection, rounding. Each size runs in a
process of its own, whose peak memory is told; times are this thread's CPU time, the median of slots
after the first three. Last, the projection with and without sorting, on 600 models.

With ``--beside DIR``, another checkout takes turns with this one, a process each for all sizes: the
ratio of CPU time for building, serving and stepping and for the whole process, with its interval.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from beside import add_options, add_turn, compare

SIZES = (1, 10, 100, 1000, 2857)
SIZES_BESIDE = (1, 10, 100)
TREE = """
tasks:
  detection: {{catalog: {{name: paper/yolov4}}, count: 20, max_instances: 3}}
network:
  tree:
    - {{tier: cloud,  nodes: 1,  hardware: titan-rtx, repository: true}}
    - {{tier: isp,    nodes: {isp},    rtt: 40 ms, budget: 16 GiB, hardware: titan-rtx}}
    - {{tier: metro,  nodes: {metro},  rtt: 15 ms, budget: 12 GiB, hardware: gtx-980}}
    - {{tier: office, nodes: {office}, rtt: 6 ms,  budget: 8 GiB,  hardware: gtx-980}}
    - {{tier: base,   nodes: {base},   rtt: 6 ms,  budget: 4 GiB,  hardware: gtx-980}}
cost: {{alpha: {alpha}}}
placement: {{policy: infida, slot: 60 s}}
seed: 1
workload:
  detection:
    arrivals: {{process: constant, rate: {rate}/s}}
    popularity: {{zipf: 1.2}}
    entries: {{tier: base, per_task: {per_task}}}
"""


def peak_mib() -> float:
    """Greatest memory of this process so far, MiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def measure(copies: int, tasks_per_base: float, alpha: float, slots: int) -> dict[str, float]:
    """Build one network and run INFIDA on it."""
    import inferway
    from inferway.network import deployed
    from inferway.placement import Observation, build_policy, serve

    bases = 24 * copies
    per_task = 2 if copies == 1 else max(1, round(bases * tasks_per_base / 20))
    text = TREE.format(
        isp=copies,
        metro=2 * copies,
        office=8 * copies,
        base=bases,
        rate=7500 * copies,
        per_task=per_task,
        alpha=alpha,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tree.yaml"
        file.write_text(text)
        start = time.thread_time()
        network, demand = deployed(inferway.load(file))
        build = time.thread_time() - start
    built = peak_mib()
    policy = build_policy("infida", network)
    serving, steps = [], []
    load = np.empty(len(network.options.pair))  # kept from slot to slot, as the twin keeps it
    for slot in range(slots):
        requests = demand.counts(slot).astype(np.float64)
        start = time.thread_time()
        serve(network, requests, policy.allocation, out=load)
        served = time.thread_time()
        policy.step(Observation(requests, load))
        steps.append(time.thread_time() - served)
        serving.append(served - start)
    step = statistics.median(steps[3:])
    pairs = len(network.pairs.node)
    return {
        "nodes": len(network.nodes),
        "request_types": len(network.requests.task),
        "pairs": pairs,
        "options": len(network.options.pair),
        "build_s": build,
        "serve_ms": statistics.median(serving[3:]) * 1e3,
        "step_ms": step * 1e3,
        "step_ns_per_pair": step / pairs * 1e9,
        "built_mib": built,
        "peak_mib": peak_mib(),
    }


def slots_of(copies: int) -> int:
    """So many that a small network is measured long enough, and a large one not too long."""
    return 303 if copies == 1 else 13


def turn(
    sizes: Sequence[int], tasks_per_base: float, alpha: float, slots: int | None
) -> dict[str, float]:
    """CPU seconds of each part, by size; the first size once more, as what compiles comes first."""
    costs_s = {}
    measure(sizes[0], tasks_per_base, alpha, 4)
    for copies in sizes:
        found = measure(copies, tasks_per_base, alpha, slots or slots_of(copies))
        nodes = found["nodes"]
        costs_s[f"build, {nodes} nodes"] = found["build_s"]
        costs_s[f"serve, {nodes} nodes"] = found["serve_ms"] / 1e3
        costs_s[f"step, {nodes} nodes"] = found["step_ms"] / 1e3
    return costs_s


def projections(models: int = 600, rounds: int = 2000) -> dict[str, float]:
    """CPU microseconds of a projection after a mirror step, by both algorithms."""
    from inferway.placement.rounding import _project, _project_sorted

    rng = np.random.default_rng(1)
    size = rng.choice([112.0, 156, 187, 395, 805, 1577], models)
    budget = 0.1 * size.sum()
    y = np.full(models, 0.1)
    found = {}
    for name, kernel in (("sorted_us", _project_sorted), ("unsorted_us", _project)):
        state, states = y.copy(), []
        for _ in range(rounds):  # random gradients on a tenth of the models
            state = np.maximum(state, 1e-6)
            chosen = rng.random(models) < 0.1
            state *= np.where(chosen, np.exp(rng.exponential(0.5, models)), 1.0)
            states.append(state.copy())
            kernel(state, size, budget)
        start = time.thread_time()
        for one in states:
            kernel(one, size, budget)
        found[name] = (time.thread_time() - start) / rounds * 1e6
    return found


def main() -> None:
    """Print the growth curve."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--json", action="store_true", help="one JSON document")
    options.add_argument("--copies", type=int, nargs="+", default=[])
    options.add_argument("--tasks-per-base", type=float, default=1.0)
    options.add_argument("--alpha", type=float, default=1.0)
    options.add_argument("--slots", type=int, help="slots per size; 303 on the smallest, else 13")
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    add_options(options)
    add_turn(options)
    asked = options.parse_args()
    sizes = asked.copies or (SIZES if asked.beside is None else SIZES_BESIDE)
    if asked.turn:
        print(json.dumps(turn(sizes, asked.tasks_per_base, asked.alpha, asked.slots)))
        return
    if asked.beside is not None:
        arguments = ["--copies", *map(str, sizes), "--alpha", str(asked.alpha)]
        arguments += ["--tasks-per-base", str(asked.tasks_per_base)]
        arguments += ["--slots", str(asked.slots)] if asked.slots else []
        compare(__file__, arguments, asked)
        return
    if asked.one is not None:
        slots = asked.slots or slots_of(asked.one)
        print(json.dumps(measure(asked.one, asked.tasks_per_base, asked.alpha, slots)))
        return
    rows = []
    if not asked.json:
        print(
            f"{'nodes':>7} {'types':>7} {'pairs':>9} {'build s':>8} {'serve ms':>9} {'step ms':>9} "
            f"{'ns/pair':>8} {'built MiB':>10} {'peak MiB':>9}   (CPU time)"
        )
    for copies in sizes:
        command = [sys.executable, __file__, "--one", str(copies), "--alpha", str(asked.alpha)]
        command += ["--tasks-per-base", str(asked.tasks_per_base)]
        if asked.slots:
            command += ["--slots", str(asked.slots)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        row = json.loads(ran.stdout)
        rows.append(row)
        if not asked.json:
            print(
                f"{row['nodes']:7} {row['request_types']:7} {row['pairs']:9} {row['build_s']:8.2f} "
                f"{row['serve_ms']:9.3f} {row['step_ms']:9.3f} {row['step_ns_per_pair']:8.1f} "
                f"{row['built_mib']:10.0f} {row['peak_mib']:9.0f}",
                flush=True,
            )
    found = projections()
    if asked.json:
        document = {"schema": 1, "machine": platform.processor(), "sizes": rows, **found}
        print(json.dumps(document))
        return
    print(
        f"projection of 600 models: {found['sorted_us']:.1f} us sorted, "
        f"{found['unsorted_us']:.1f} us without sorting"
    )


if __name__ == "__main__":
    main()
