"""Files of a training: where it stands, and the trained policy that schedulers read.

Both are plain arrays and a text about them, replaced whole; `inferway.scheduling.neural_policy`
reads a policy without PyTorch.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import PhasedArrivals
from inferway.learning.settings import Settings
from inferway.learning.site import Control
from inferway.scheduling.neural_policy import About
from inferway.scheduling.observation import ObservationLayout
from inferway.unreadable import fault


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


CHECKPOINT = "checkpoint.npz"
SCHEMA = 2


class Checkpoint:
    """The file ``checkpoint.npz`` in a folder, which the first checkpoint makes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT

    def write(self, about: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> None:
        """Keep a state and what it is one of; on the disk when this returns."""
        text = json.dumps({"schema": SCHEMA, **about}, allow_nan=False)
        write_npz(self.path, {"about": np.array(text), **state})
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
        """Read what was written last; None where nothing was.

        ValueError where the file is none of ours, or of another version.
        """
        if not self.path.exists():
            return None
        try:
            # NumPy leaves a file that is no archive open.
            with self.path.open("rb") as bytes_, np.load(bytes_, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays.pop("about")[()]))
            schema = about["schema"]
        except Exception as error:  # whatever the parts of NumPy's reader raise
            raise ValueError(f"{self.path} is not a checkpoint: {fault(error)}") from None
        if schema != SCHEMA:
            raise ValueError(
                f"{self.path} is of another version of inferway and cannot be gone on with: it has "
                f"schema {schema}, and {SCHEMA} is what is read. Name another --out, or remove it."
            )
        return about, arrays


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder; RuntimeError where another training does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RuntimeError(
                f"another training writes to {folder}: wait for it, or name another --out"
            ) from None
        yield


def identity_of(
    control: Control, settings: Settings, task: str, seed: int, start: Path | None
) -> dict[str, Any]:
    """Describe what makes a training this one and none other; infinities by name."""
    chosen = dataclasses.asdict(settings)
    if not settings.scheduled:
        del chosen["slots"]
    sites = {name: getattr(control, name) for name in _CONTROL}
    sites |= {"gains": control.reward_gains}
    sites |= {name: getattr(control.scenario, name) for name in _SCENARIO}
    identity = {
        "task": task,
        "seed": seed,
        "start": None if start is None else str(start),
        "settings": chosen,
        "sites": sites,
    }
    text = json.dumps(identity, default=_plain)
    described: dict[str, Any] = json.loads(text, parse_constant=lambda name: str(float(name)))
    return described


_CONTROL = ("slot_s", "sees_phase", "batches", "rejected_weight", "accuracy_weight")
_SCENARIO = ("fleet", "service", "arrivals", "deadline_s", "late", "batches")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)


def check_same(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, with what differs, unless a checkpoint is of the training wanted."""
    identity = saved.get("identity", {})
    compared = []
    for part, now in wanted.items():
        before = identity.get(part)
        if isinstance(now, dict) and isinstance(before, dict):
            compared += [(key, before.get(key), now.get(key)) for key in now | before]
        else:
            compared.append((part, before, now))
    differ = [
        f"{name} ({_short(before)} there, {_short(now)} now)"
        for name, before, now in compared
        if before != now
    ]
    if differ:
        raise ValueError(
            f"{path} is of another training: {'; '.join(differ)}. Name another --out, or remove it."
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
