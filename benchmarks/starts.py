"""CPU time in which commands start: a file of nine tasks beside one of a single task.

    python benchmarks/starts.py [--turns N]

Nine tasks may cost 1.3 times one. Code is compiled before the first turn.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 1.3
COMMANDS = {
    "check": [],
    "bound": ["--json"],
    "simulate": ["--json", "--queries", "1000"],
    "serve": ["--json", "--http-port", "0", "--admin-port", "0", "--forget"],
}
VARIANTS = ("tiny", "medium", "ensemble")


def written(folder: Path, tasks: int) -> Path:
    """Write a deployment with so many tasks of the digits zoo."""
    lines = ["tasks:"]
    for k in range(tasks):
        lines += [f"  digits{k}:", "    accuracy_target: 0.92", "    variants:"]
        lines += [f"      {name}: {{model: 'zoo://digits/{name}'}}" for name in VARIANTS]
    instances = ", ".join(f"digits{k}/{name}: 1" for k in range(tasks) for name in VARIANTS)
    lines += ["nodes:", f"  here: {{instances: {{{instances}}}, buffer: 15}}"]
    lines += ["dispatch: {policy: priced}", "workload:"]
    lines += [f"  digits{k}: {{arrivals: {{process: poisson, rate: 100/s}}}}" for k in range(tasks)]
    path = folder / f"tasks-{tasks}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def cpu_s(command: str, file: Path) -> float:
    """Run a command to its end, a server until it is ready; the CPU time of its process, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "inferway", command, str(file), *COMMANDS[command]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    if command == "serve":
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print the least CPU times of each command; 1 where nine tasks cost more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        one, nine = (written(Path(folder), tasks) for tasks in (1, 9))
        for command in COMMANDS:
            cpu_s(command, nine)
            pairs = [(cpu_s(command, one), cpu_s(command, nine)) for _ in range(turns)]
            least_one, least_nine = (min(times) for times in zip(*pairs, strict=True))
            ratio = least_nine / least_one
            worst = max(worst, ratio)
            print(f"{command:9} {least_one:.2f} s  {least_nine:.2f} s  {ratio:.2f}", flush=True)
    print(f"greatest ratio {worst:.2f}, limit {LIMIT}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
