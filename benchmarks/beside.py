"""Two checkouts in turns: the ratio of what each costs in CPU time, with its interval.

In a turn both are measured, the one that begins changing from turn to turn, so that what else runs
on the machine meets both. A ratio is the geometric mean over the turns of ours over the other's,
and its interval the 95 % one of Student's t on their logarithms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parents[1]
TURNS = 7
"""The least that an interval is told of."""
CONFIDENCE = 0.95
WHOLE = "whole process"


class Ratio(NamedTuple):
    """A cost over another's, and the ends of its interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(ours: Sequence[float], others: Sequence[float]) -> Ratio:
    """Compare what was measured in the same turns."""
    # Here and not above: processes that only measure need neither.
    import numpy as np
    from scipy.special import stdtrit

    logarithms = np.log(np.divide(ours, others))
    mean, turns = float(logarithms.mean()), len(logarithms)
    half = stdtrit(turns - 1, (1 + CONFIDENCE) / 2) * logarithms.std(ddof=1) / np.sqrt(turns)
    return Ratio(*(float(np.exp(mean + shift)) for shift in (0.0, -half, half)))


def verdict_of(ratio: Ratio, at_most: float) -> str:
    """Say whether a cost is at most so many times another's, as far as that is settled."""
    if ratio.high <= at_most:
        return "yes"
    return "no" if ratio.low > at_most else "not settled"


def spent_s(pid: int) -> float:
    """Tell the time that a process has had a core, in seconds.

    Linux's scheduler counts nanoseconds, where `psutil` has hundredths of a second.
    """
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(one.read_text().split()[0]) for one in threads) / 1e9
    import psutil

    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def order(names: Iterable[str], turn: int) -> list[str]:
    """Tell who comes first in a turn."""
    return list(names)[:: 1 if turn % 2 == 0 else -1]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark's command line ask for another checkout."""
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--turns", type=_turns, default=TURNS, help=f"with it, {TURNS} or more")


def add_turn(parser: argparse.ArgumentParser) -> None:
    """Let `compare` ask a benchmark for one turn of its own."""
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)


def _turns(text: str) -> int:
    turns = int(text)
    if turns < TURNS:
        raise argparse.ArgumentTypeError(f"an interval is told of at least {TURNS} turns")
    return turns


def compare(
    script: str, arguments: Sequence[str], given: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Run a benchmark with `--turn` once of each checkout in each turn, and print the ratios.

    It is always this checkout's script, with either's package. It prints seconds of CPU time by
    part as a JSON object in its last line. A first turn that fills the caches is not counted.
    Returns the medians and ratios by part, as they are printed.
    """
    checkouts = {"here": HERE, "beside": given.beside.resolve()}
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for turn in range(given.turns + 1):
        for name in order(checkouts, turn):
            cost_s = _run([sys.executable, script, *arguments, "--turn"], checkouts[name])
            if turn > 0:
                costs[name].append(cost_s)
    ours, others = costs.values()
    rows = {
        part: {
            "here_s": float(median([one[part] for one in ours])),
            "beside_s": float(median([one[part] for one in others])),
            **ratio_of([one[part] for one in ours], [one[part] for one in others])._asdict(),
        }
        for part in ours[0]
        if part in others[0]
    }
    if given.json:
        from http_stack import machine

        found = {"beside": str(given.beside), "turns": given.turns, "parts": rows}
        print(json.dumps({"schema": 1, "machine": machine(), **found}))
    else:
        print_ratios(rows, given.turns, given.beside)
    return rows


def _run(command: list[str], checkout: Path) -> dict[str, float]:
    """Run one process with a checkout's package; CPU seconds by part and as a whole."""
    paths = {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, env=os.environ | paths, stdout=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    whole_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return parts | {WHOLE: whole_s}


def print_ratios(rows: dict[str, dict[str, Any]], turns: int, other: Path) -> None:
    """Print a line for each part: median CPU seconds of both, and the ratio with its interval."""
    print(f"{turns} turns; ratio of CPU time to that of {other}, {CONFIDENCE:.0%} interval")
    width = max(map(len, rows)) + 2
    print(f"{'CPU seconds, median':{width}}{'here':>12}{'beside':>12}   ratio")
    for part, row in rows.items():
        ratio = Ratio(row["ratio"], row["low"], row["high"])
        print(f"{part:{width}}{row['here_s']:12.4g}{row['beside_s']:12.4g}   {ratio}")
