"""The paper's small edge server, a second task, and what policies for them hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

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


SIGNS = replace(
    ABOUT,
    task="signs",
    variants=("tiny", "large"),
    counts=(1, 2),
    accuracies=(0.6, 0.9),
    service_s=(0.02, 0.05),
    deadline_s=0.2,
)
TASKS = ("recognise", "signs")
BOTH = replace(ABOUT, others=(SIGNS,))


def fleets(heavy: int = 2, large: int = 2) -> list[Fleet]:
    return [
        Fleet(
            about.variants,
            1 / np.array(about.service_s),
            np.array(about.accuracies),
            np.array(counts),
            buffer=15,
            task=about.task,
        )
        for about, counts in ((ABOUT, (2, heavy)), (SIGNS, (1, large)))
    ]


def arrays_of(about: About, seed: int = 1) -> dict[str, np.ndarray]:
    """What an exported policy holds: small random weights, so that outputs differ."""
    generator = np.random.default_rng(seed)
    sizes = [about.inputs, 90, 60, about.outputs]
    arrays: dict[str, np.ndarray] = {"about": np.array(about.to_json())}
    for i in range(3):
        weight = generator.normal(0, sizes[i] ** -0.5, sizes[i : i + 2])
        arrays[f"weight_{i}"] = weight.astype(np.float32)
        arrays[f"bias_{i}"] = generator.normal(0, 0.1, sizes[i + 1]).astype(np.float32)
    return arrays


def side_by_side(*policies: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The policy of two whose parts look at nothing of each other."""
    found = {"about": np.array(BOTH.to_json())}
    for i in range(3):
        weights = [one[f"weight_{i}"] for one in policies]
        whole = np.zeros(np.sum([one.shape for one in weights], axis=0), np.float32)
        row, column = weights[0].shape
        whole[:row, :column], whole[row:, column:] = weights
        found[f"weight_{i}"] = whole
        found[f"bias_{i}"] = np.concatenate([one[f"bias_{i}"] for one in policies])
    return found
