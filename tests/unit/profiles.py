"""Profiles made by hand, of models that nobody ran, and those of a file that is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import inferway
from inferway.catalog import Profile
from inferway.catalog.profile import (
    BatchTime,
    ConfidenceBins,
    MachineTimes,
    PairBins,
    ProfiledAccuracy,
    ProfiledData,
    ProfiledSignature,
    VariantProfile,
)
from inferway.deployment.profile import profile_path
from inferway.machine import machine_hash

DATA = ProfiledData("sha256:" + "d" * 64, 100, 10, 50, 50, 1, "class")


def times_of(mean_s: float) -> MachineTimes:
    """Give times of batches of 1 and 8, the latter seven times as long."""
    alone = tuple(
        BatchTime(size, 1.1 * s, s, s, 2 * s, 0.1 * s, s, s, 100)
        for size, s in ((1, mean_s), (8, 7 * mean_s))
    )
    return MachineTimes(alone, alone, 2, 20, 30, {"python": "3"}, "2026-01-01")


def bins_of(*accuracy: float, kind: str = "probability") -> ConfidenceBins:
    """Give bins of equal mass at edges of equal distance."""
    count = len(accuracy)
    edges = tuple(k / count for k in range(1, count))
    return ConfidenceBins(
        kind, None, False, edges, accuracy, (1 / count,) * count, (None,) * count, 0.01
    )


def measured(
    digest: str,
    *,
    accuracy: float = 0.5,
    mean_s: float = 1e-3,
    size_bytes: int | None = 10,
    bins: ConfidenceBins | None = None,
    machine: str | None = None,
) -> VariantProfile:
    """Give the profile of the model with a digest, timed on this machine if on no other."""
    return VariantProfile(
        digest,
        size_bytes,
        ProfiledSignature((), ()),
        ProfiledAccuracy(accuracy, (accuracy - 0.02, accuracy + 0.02), 50, "class"),
        bins,
        {machine or machine_hash(): times_of(mean_s)},
    )


def pair_of(first: str, second: str, own: ConfidenceBins, *accuracy: float) -> PairBins:
    """Give the second one's accuracies in the first one's bins."""
    return PairBins(first, second, own.accuracy, accuracy)


def of_zoo(name: str, one: VariantProfile) -> Profile:
    """Make it a variant of a zoo."""
    return Profile(name, f"{name}.onnx", 12, one)


def profiled(file: Path, **options: Any) -> Any:
    """Measure a file on the data beside it, briefly, and write its profile."""
    data = options.pop("data", file.parent / "test.npz")
    return inferway.profile(file, data, **{"rounds": 1, "write": True, **options})


def changed(file: Path, change: Any) -> None:
    """Change what the profile of a file holds."""
    path = profile_path(file)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
