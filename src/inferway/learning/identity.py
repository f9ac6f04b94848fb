"""What makes a training the one that a checkpoint is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inferway.learning.settings import Settings
from inferway.learning.site import Control

__all__ = ["check_same", "identity_of"]


def identity_of(
    control: Control, settings: Settings, task: str, seed: int, start: Path | None
) -> dict[str, Any]:
    """What makes a training this one and none other."""
    scenario = control.scenario
    described = {
        name: _plain(getattr(control, name))
        for name in ("slot_s", "sees_phase", "batches", "rejected_weight", "accuracy_weight")
    }
    described["gains"] = list(control.reward_gains)
    described |= {
        name: _plain(getattr(scenario, name))
        for name in ("fleet", "service", "arrivals", "deadline_s", "late", "batches")
    }
    chosen = dataclasses.asdict(settings)
    if not settings.scheduled:
        del chosen["slots"]
    return {
        "task": task,
        "seed": seed,
        "start": None if start is None else str(start),
        "settings": _plain(chosen),
        "sites": described,
    }


def _plain(value: Any) -> Any:
    """As JSON gives it back; infinities by name."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    match value:
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case float() if not np.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, with what differs, unless a checkpoint is of the training wanted."""
    if found.get("identity") == wanted:
        return
    known = found.get("identity", {})
    differ = []
    for part, value in wanted.items():
        other = known.get(part)
        if isinstance(value, dict) and isinstance(other, dict):
            keys = [key for key in value | other if value.get(key) != other.get(key)]
            differ += [
                f"{key} ({_short(other.get(key))} there, {_short(value.get(key))} now)"
                for key in keys
            ]
        elif value != other:
            differ.append(f"{part} ({_short(other)} there, {_short(value)} now)")
    raise ValueError(
        f"{path} is of another training: {'; '.join(differ)}. Name another --out, or remove it."
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
