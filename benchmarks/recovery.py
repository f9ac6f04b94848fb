"""Measure what faults cost a network of nodes: requests lost, time to recover, budgets, state.

Runs the scenarios of ``tests/live/network`` so many times and puts their figures into one table: a
ring of four nodes in network namespaces, 60 requests a second from a client on the entry node, and
in the middle of them a cut link, a killed node, a full disk, and so on. Needs root, /dev/net/tun
and the test dependencies; for the scenario of the clock, also libfaketime::

    apt-get install -y faketime
    sudo python benchmarks/recovery.py [--rounds 3] [--only cut] [--json]

With ``--beside DIR``, a checkout of another version, its nodes meet the same scenarios in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from inferway.lab import obstacle
from inferway.machine import machine

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "live" / "network"
VARIABLE = "INFERWAY_FIGURES"
TIMES = (
    "recovered_s",
    "around_s",
    "avoided_s",
    "healed_s",
    "used_again_s",
    "longest_s",
    "back_s",
    "ready_s",
    "joined_s",
    "loaded_s",
)
IN_WORDS = {
    "recovered_s": "recovered",
    "around_s": "first answer by the other way",
    "avoided_s": "last request over the slow link",
    "healed_s": "after healing",
    "used_again_s": "used again after healing",
    "longest_s": "longest wait of what the fault met",
    "back_s": "after the restart",
    "ready_s": "ready again",
    "joined_s": "joined",
    "loaded_s": "model loaded after repair",
}


def run(only: str | None, beside: Path | None = None) -> tuple[list[dict[str, Any]], int]:
    """Run the scenarios once; returns their figures, and how many tests failed.

    Parameters
    ----------
    only
        Which, as pytest's -k has it.
    beside
        Checkout of the version that runs; None for this one.
    """
    version = {} if beside is None else {"PYTHONPATH": str(beside / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "--reruns", "0", str(TESTS)]
    if only is not None:
        command += ["-k", only]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures"
        file.touch()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, VARIABLE: str(file), **version},
            stdout=subprocess.PIPE,
            text=True,
        )
        figures = [json.loads(line) for line in file.read_text().splitlines()]
    told = done.stdout.strip().splitlines()
    wrong = [line for line in told if line.startswith(("FAILED", "ERROR"))]
    print(told[-1] if told else "-", *wrong, sep="\n", file=sys.stderr)
    return figures, len(wrong)


def table(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rounds of each scenario together: sums of requests, the worst of everything else."""
    rows = []
    for scenario in dict.fromkeys(one["scenario"] for one in figures):
        those = [one for one in figures if one["scenario"] == scenario]
        reasons: Counter[str] = Counter()
        for one in those:
            reasons.update(one["failures"])
        row: dict[str, Any] = {"scenario": scenario, "rounds": len(those)}
        for count in ("requests", "answered", "refused", "broken", "silent"):
            row[count] = sum(one[count] for one in those)
        row["slowest_s"] = max(one["slowest_s"] for one in those)
        for name in TIMES:
            found = [one[name] for one in those if one.get(name) is not None]
            if found:
                row[name] = {"median": median(found), "worst": max(found)}
        if "slow" in those[0]:
            counts = [one["slow"] for one in those]
            row["slow"] = {"median": median(counts), "worst": max(counts)}
        row["used_most"] = max(max(one["used_most"].values()) for one in those)
        if "state_intact" in those[0]:
            row["state_intact"] = all(one["state_intact"] for one in those)
        row["failures"] = dict(reasons.most_common())
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    """Write a row of the table."""
    times = [
        f"{IN_WORDS[name]} {row[name]['median']:.2f} ({row[name]['worst']:.2f})"
        for name in TIMES
        if name in row
    ]
    if "slow" in row:
        times.append(f"slow requests {row['slow']['median']:g} ({row['slow']['worst']})")
    state = {True: "yes", False: "**no**", None: ""}[row.get("state_intact")]
    return (
        f"| {row['scenario']} | {row['requests']:,} | {row['answered']:,} | {row['refused']} "
        f"| {row['broken']} | {row['silent']} | {'; '.join(times)} | {row['slowest_s']:.2f} "
        f"| {100 * row['used_most']:.1f} % | {state} |"
    )


def main() -> int:
    """Measure and print; the status says whether a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", help="words of the tests' names, as pytest's -k; all are marked as slow"
    )
    parser.add_argument("--beside", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (reason := obstacle()) is not None:
        print(reason, file=sys.stderr)
        return 2
    figures: list[dict[str, Any]] = []
    failed = 0
    for k in range(options.rounds):
        print(f"round {k + 1} of {options.rounds}:", file=sys.stderr)
        of_one, wrong = run(options.only)
        figures, failed = figures + of_one, failed + wrong
        if options.beside is not None:
            # There tests may fail: it is what they are for.
            of_other, _ = run(options.only, options.beside)
            figures += [{**one, "scenario": f"{one['scenario']}, before"} for one in of_other]
    rows = table(figures)
    if options.json:
        found = {"schema": 1, "machine": machine(), "failed": failed, "scenarios": rows}
        print(json.dumps(found, indent=1))
        return int(failed > 0)
    print(
        "| what happens | requests | answered | refused with a sentence | connection ended or "
        "refused | silence | seconds, median (worst) | slowest answer, s | most of a budget | "
        "state intact |"
    )
    print("|---|---:|---:|---:|---:|---:|---|---:|---:|---|")
    for row in rows:
        print(shown(row))
    for row in rows:
        for why, count in row["failures"].items():
            print(f"{row['scenario']}: {count} x {why}", file=sys.stderr)
    print(f"machine: {json.dumps(machine())}; tests that failed: {failed}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
