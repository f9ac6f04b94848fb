"""The paper's small edge server, and policies for it with weights that do something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferway.scheduling.neural_policy import About
from inferway.site import Fleet

ABOUT = About(
    policy="rl-po",
    task="recognise",
    variants=("light", "heavy"),
    counts=(2, 2),
    accuracies=(0.7769, 0.8278),
    service_s=(0.0107, 0.0429),
    buffer=15,
    deadline_s=0.3,
    slot_s=1.0,
)


def arrays_of(about: About, seed: int = 1) -> dict[str, np.ndarray]:
    """What an exported policy holds: small random weights, so that outputs differ."""
    generator = np.random.default_rng(seed)
    sizes = [about.layout.size, 90, 60, about.outputs]
    arrays: dict[str, np.ndarray] = {"about": np.array(about.to_json())}
    for i in range(3):
        weight = generator.normal(0, sizes[i] ** -0.5, sizes[i : i + 2])
        arrays[f"weight_{i}"] = weight.astype(np.float32)
        arrays[f"bias_{i}"] = generator.normal(0, 0.1, sizes[i + 1]).astype(np.float32)
    return arrays


@pytest.fixture
def fleet() -> Fleet:
    """Two light servers, two heavy ones."""
    return Fleet(
        ("light", "heavy"),
        np.array([1 / 0.0107, 1 / 0.0429]),
        np.array([0.7769, 0.8278]),
        np.array([2, 2]),
        buffer=15,
    )


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Write a policy, with changes to what it was trained for."""

    def write(name: str = "policy.npz", seed: int = 1, **changes: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **arrays_of(replace(ABOUT, **changes), seed))  # type: ignore[arg-type]
        return path

    return write
