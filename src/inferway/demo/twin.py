"""Live against twin: what each policy did on this machine, and what a simulation makes of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferway.demo.simulation import simulation

REPLICATIONS: Final = 4
_WITHIN_S: Final = 60.0


@dataclass(frozen=True)
class TwinResult:
    """One policy's recorded run, simulated.

    Attributes
    ----------
    policy
        Its name.
    trace
        As `inferway simulate FILE --trace DIR --json` prints it under ``tasks.NAME.trace``: live,
        twin, profiled and error.
    """

    policy: str
    trace: Mapping[str, Any]


def simulate(
    task: str, recorded: Mapping[str, tuple[Path, Path]], cores: int
) -> tuple[list[TwinResult], list[str]]:
    """Simulate recorded runs, each in a process of its own, as many at a time as there are cores.

    The engine runs uncompiled there: a few thousand requests are done long before the compiler
    would be.

    Parameters
    ----------
    task
        What was served.
    recorded
        By policy, the deployment file that was served and the folder of its recording.
    cores
        That may be used.

    Returns
    -------
    results, warnings
        Of the policies whose runs could be simulated; and a sentence for each of the others.
    """
    found, warnings = [], []
    waiting = list(recorded.items())
    while waiting:
        batch, waiting = waiting[: max(cores, 1)], waiting[max(cores, 1) :]
        with ExitStack() as running:
            started = [
                (policy, running.enter_context(simulation(file, _options(recording))))
                for policy, (file, recording) in batch
            ]
            for policy, process in started:
                try:
                    output, errors = process.communicate(timeout=_WITHIN_S)
                except subprocess.TimeoutExpired:
                    warnings.append(f"the twin of {policy} took more than {_WITHIN_S:g} s")
                    continue
                if process.returncode != 0:
                    said = errors.decode(errors="replace").strip().splitlines() or ["nothing"]
                    warnings.append(f"the twin of {policy} could not be run: {said[-1]}")
                    continue
                found.append(TwinResult(policy, json.loads(output)["tasks"][task]["trace"]))
    return found, warnings


def _options(recording: Path) -> list[str]:
    return [
        *("--trace", str(recording), "--replications", str(REPLICATIONS)),
        *("--workers", "1"),
    ]
