"""CPU time and memory that it takes to rank the service options of large networks.

    python benchmarks/network.py [--nodes 1000 10000 100000]

A tree of five tiers shaped as the first topology of [SiSalem23], two thirds of its nodes base
stations, and as many tasks as keep three request types at every four base stations. Each size runs
in a process of its own, so that its peak of resident memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

GIB = 2**30


def measure(nodes: int) -> dict[str, float]:
    import numpy as np

    from inferway.catalog.published import table
    from inferway.deployment import ServiceTime, Task, Variant
    from inferway.network import Level, Requests, delivery_network, shortest_paths, tree
    from inferway.network.layout import assign
    from inferway.workload.popularity import zipf

    variants = {
        entry.name: Variant(
            entry.name,
            accuracy=entry.accuracy,
            size_bytes=entry.size_bytes,
            service={h: ServiceTime("deterministic", mean) for h, mean in entry.mean_s.items()},
        )
        for entry in table("paper/yolov4")
    }
    start = time.process_time()
    isp, metro, office = max(1, nodes // 300), max(2, nodes // 40), nodes // 4
    topology = tree(
        [
            Level("cloud", 1, hardware="titan-rtx", repository=True),
            Level("isp", isp, 0.040, 16 * GIB, "titan-rtx"),
            Level("metro", metro, 0.015, 12 * GIB, "gtx-980"),
            Level("office", office, 0.006, 8 * GIB, "gtx-980"),
            Level("base", nodes - 1 - isp - metro - office, 0.006, 4 * GIB, "gtx-980"),
        ]
    )
    base = topology.of_tier("base")
    per_task = 75
    tasks = len(base) // 100
    entries = assign(tasks, base, per_task, seed=1).ravel()
    entry, path = np.unique(entries, return_inverse=True)
    paths = shortest_paths(topology, entry, np.flatnonzero(topology.repository))
    share = np.full(len(entries), 1 / per_task)
    requests = Requests(
        np.repeat(np.arange(tasks), per_task).astype(np.int32),
        path.astype(np.int32),
        share,
        np.repeat(zipf(tasks, 1.2), per_task) * share * 450_000 * nodes / 36,
    )
    task = Task("detection", variants, count=tasks, max_instances=3)
    network = delivery_network([task], topology, paths, requests)
    return {
        "nodes": len(topology.nodes),
        "request_types": len(entries),
        "pairs": len(network.pairs.node),
        "options": len(network.options.node),
        "cpu_s": time.process_time() - start,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given.one)))
        return
    print(f"{'nodes':>8} {'types':>8} {'pairs':>10} {'options':>10} {'CPU s':>8} {'peak MB':>8}")
    for nodes in given.nodes:
        run = [sys.executable, __file__, "--one", str(nodes)]
        row = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
        print(
            f"{row['nodes']:8} {row['request_types']:8} {row['pairs']:10} {row['options']:10} "
            f"{row['cpu_s']:8.2f} {row['peak_mb']:8.0f}"
        )


if __name__ == "__main__":
    main()
