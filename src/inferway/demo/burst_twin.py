"""What the twin predicts of each scheduler, from its deployment file alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from inferway.demo.burst_load import PHASES
from inferway.demo.burst_result import Outcome
from inferway.demo.simulation import simulation

_WITHIN_S: Final = 60.0
_QUERIES: Final = 6000
_REPLICATIONS: Final = 3
_OPTIONS: Final = (
    *("--warmup", "0", "--queries", str(_QUERIES)),
    *("--replications", str(_REPLICATIONS), "--workers", "1"),
)


def predict(
    task: str, heavy: str, files: Mapping[str, Path], cores: int
) -> tuple[dict[str, dict[str, Outcome]], list[str]]:
    """Simulate each file in a process of its own, as many at a time as there are cores.

    Parameters
    ----------
    task, heavy
        The task, and its most accurate variant.
    files
        By scheduler.
    cores
        That may be used.

    Returns
    -------
    outcomes, warnings
        By scheduler and phase; and a sentence for each that could not be simulated.
    """
    found: dict[str, dict[str, Outcome]] = {}
    warnings: list[str] = []
    waiting = list(files.items())
    while waiting:
        group, waiting = waiting[: max(cores, 1)], waiting[max(cores, 1) :]
        with ExitStack() as running:
            started = [
                (name, running.enter_context(simulation(file, _OPTIONS))) for name, file in group
            ]
            for name, process in started:
                try:
                    output, errors = process.communicate(timeout=_WITHIN_S)
                except subprocess.TimeoutExpired:
                    warnings.append(f"the twin of {name} took more than {_WITHIN_S:g} s")
                    continue
                if process.returncode != 0:
                    said = errors.decode(errors="replace").strip().splitlines() or ["nothing"]
                    warnings.append(f"the twin of {name} could not be run: {said[-1]}")
                    continue
                phases = json.loads(output)["tasks"][task]["phases"]
                found[name] = {
                    phase: _outcome(numbers, heavy)
                    for phase, numbers in zip(PHASES, phases, strict=True)
                }
    return found, warnings


def _outcome(numbers: Mapping[str, Any], heavy: str) -> Outcome:
    return Outcome(
        goodput=numbers["goodput"],
        violation_ratio=numbers["violation_ratio"],
        accuracy=numbers["accuracy"],
        heavy=numbers["shares"].get(heavy, 0.0),
    )
