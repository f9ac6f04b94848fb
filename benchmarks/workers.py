"""What workers cost on top of the work, in processes and on Ray, beside the same work in turn here.

    python benchmarks/workers.py [--turns 7] [--points 20] [--chunk 0.1] [--json]

Every point is a chunk of its own: hashing that takes a core so long (`--chunk`, seconds), with an
argument of as many bytes as a small deployment has. In a turn the same points are computed by this
thread, by one process and by one worker of a Ray cluster of this machine, in changing order,
through what studies and sweeps go through (`inferway.experiments.workers`). One worker has what
this thread has, a core, so that a ratio of 1 is no overhead.

Time is counted from the first result to the last: what comes before it, starting processes or Ray,
is said apart. `clock` is time on the wall, less what the thread that computes waited for a core
that others had, as Linux's scheduler counts it: what is left is work, and waiting for more of it.
`CPU` is that of all processes together: this one, the worker, and those of Ray. A ratio is the
geometric mean over the turns, with its 95 % interval. Needs the extra `ray`; without it, that row
is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import psutil
from beside import TURNS, order, ratio_of, spent_s
from http_stack import machine

from inferway.experiments.runner import Point
from inferway.experiments.workers import Workers, by_workers

BLOCK = b"\0" * 16_384
ARGUMENT_BYTES = 10_000
GOALS = {"processes": 1.03, "ray": 1.15}


def hashed(blocks: int, given: bytes) -> dict[str, float]:
    """Take a core for as long as so many blocks take; tell how long the thread waited for one."""

    def waited_s() -> float:
        with open("/proc/thread-self/schedstat") as file:  # noqa: PTH123 (as little as there is)
            return int(file.read().split()[1]) / 1e9

    before_s = waited_s()
    digest = hashlib.sha256(given)
    for _ in range(blocks):
        digest.update(BLOCK)
    thread = threading.get_native_id()
    return {"thread": thread, "before_s": before_s, "after_s": waited_s()}


def blocks_of(chunk_s: float) -> int:
    """How many blocks take so long here."""
    tried = 2_000
    took_s = []
    for _ in range(5):
        start_s = time.process_time()
        hashed(tried, b"")
        took_s.append(time.process_time() - start_s)
    return max(1, round(tried * chunk_s / min(took_s)))


class Cost(NamedTuple):
    """Seconds until the first result came, and from there to the last."""

    first_s: float
    clock_s: float
    cpu_s: float


def cpu_s() -> float:
    """CPU time of this process and all below it that live."""
    me = psutil.Process()
    return sum(spent_s(one.pid) for one in (me, *me.children(recursive=True)))


def cost(who: Workers, points: list[Point]) -> Cost:
    """Compute points by one worker."""
    start_s = time.perf_counter()
    ended = by_workers(points, who)
    last = next(ended).result
    first_s, first_cpu_s = time.perf_counter(), cpu_s()
    waited_s = 0.0
    for _ in points[1:]:
        before, last = last, next(ended).result
        same = before["thread"] == last["thread"]
        waited_s += last["after_s"] - (before["after_s"] if same else last["before_s"])
    last_s, last_cpu_s = time.perf_counter(), cpu_s()
    ended.close()
    return Cost(first_s - start_s, last_s - first_s - waited_s, last_cpu_s - first_cpu_s)


@contextmanager
def one_worker(engine: str) -> Iterator[Workers]:
    """One worker; a cluster of Ray is of this turn alone, so that the others run beside none."""
    if engine != "ray":
        yield Workers(engine, 1)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield Workers("ray")
    finally:
        ray.shutdown()


def main() -> None:
    """Measure, and print a row for each engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--chunk", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    engines = ["here", "processes"]
    engines += ["ray"] if importlib.util.find_spec("ray") else []
    blocks, argument = blocks_of(given.chunk), os.urandom(ARGUMENT_BYTES)
    points = [
        Point({"place": i}, hashed, {"blocks": blocks, "given": argument}, given.chunk)
        for i in range(given.points)
    ]
    costs: dict[str, list[Cost]] = {engine: [] for engine in engines}
    load = os.getloadavg()[0]
    for turn in range(given.turns):
        for engine in order(engines, turn):
            with one_worker(engine) as who:
                costs[engine].append(cost(who, points))
    rows: dict[str, Any] = {}
    for engine, found in costs.items():
        rows[engine] = {name: median(getattr(one, name) for one in found) for name in Cost._fields}
        for name in ("clock_s", "cpu_s") if engine != "here" else ():
            ratio = ratio_of(
                [getattr(one, name) for one in found], [getattr(one, name) for one in costs["here"]]
            )
            rows[engine][f"{name[:-2]}_ratio"] = ratio._asdict()
    about = {"turns": given.turns, "points": given.points, "chunk_s": given.chunk}
    if given.json:
        print(json.dumps({"schema": 1, "machine": machine(), **about, "load": load, "rows": rows}))
        return
    print(f"{machine()}, load average {load:.1f} at the start")
    print(f"{given.turns} turns of {given.points} chunks of {1e3 * given.chunk:g} ms; medians, s")
    print(f"{'':11}{'first':>8}{'clock':>8}{'CPU':>8}   ratio of clock          ratio of CPU")
    for engine, row in rows.items():
        line = f"{engine:11}{row['first_s']:8.2f}{row['clock_s']:8.3f}{row['cpu_s']:8.3f}"
        for name in ("clock_ratio", "cpu_ratio"):
            if name in row:
                ratio = "{ratio:.3f} ({low:.3f} to {high:.3f})".format(**row[name])
                line += f"   {ratio}"
        print(line + (f"   goal {GOALS[engine]:.2f}" if engine in GOALS else ""))


if __name__ == "__main__":
    main()
