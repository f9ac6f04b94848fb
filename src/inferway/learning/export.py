"""A trained policy as the file that schedulers read: plain arrays, and what they were trained for.

`inferway.scheduling.neural_policy` reads it, without PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import PhasedArrivals
from inferway.learning.site import Control
from inferway.scheduling.neural_policy import About
from inferway.scheduling.observation import ObservationLayout


def about(
    control: Control,
    task: str,
    *,
    slots: int = 0,
    seed: int = 0,
    command: str = "",
    result: Mapping[str, Any] | None = None,
) -> About:
    """Describe a policy for these sites, as its file does."""
    scenario, fleet = control.scenario, control.scenario.fleet
    assert fleet.buffer is not None
    times = tuple(
        (time.mean_s,) if batch is None else tuple(map(float, batch.service_s))
        for time, batch in zip(scenario.service, scenario.batches, strict=False)
    )
    longest_s = None
    if control.sees_phase and isinstance(scenario.arrivals, PhasedArrivals):
        longest_s = max(phase.for_ for phase in scenario.arrivals.phases)
    return About(
        policy=f"rl-{'fo' if control.sees_phase else 'po'}{'-b' if control.batches else ''}",
        task=task,
        variants=tuple(fleet.variants),
        counts=tuple(map(int, fleet.count)),
        accuracies=tuple(map(float, fleet.accuracy)),
        service_s=tuple(time.mean_s for time in scenario.service),
        buffer=fleet.buffer,
        deadline_s=np.inf if scenario.deadline_s is None else scenario.deadline_s,
        slot_s=control.slot_s,
        batch_sizes=control.sizes if control.batches else None,
        batch_service_s=times if control.batches else None,
        phases=control.phases if control.sees_phase else None,
        longest_phase_s=longest_s,
        slots=slots,
        seed=seed,
        command=command,
        result=dict(result or {}),
    )


def layout_of_control(control: Control) -> ObservationLayout:
    """ObservationLayout of the observations of these sites."""
    return about(control, "").layout


def save(
    path: Path, layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]], about: About
) -> None:
    """Write a policy: ``weight_i``, ``bias_i`` by layer, and ``about``."""
    arrays: dict[str, NDArray[Any]] = {"about": np.array(about.to_json())}
    for place, (weight, bias) in enumerate(layers):
        arrays[f"weight_{place}"] = np.ascontiguousarray(weight)
        arrays[f"bias_{place}"] = bias
    write_npz(path, arrays)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file that is either as it was before or whole, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
