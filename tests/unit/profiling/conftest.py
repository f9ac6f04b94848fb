"""Labeled data of the digits zoo, and a file with two of its models as a user's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.catalog import zoo
from inferway.deployment import Variant
from inferway.profiling import measuring as room
from inferway.profiling.memory import MemoryUse, memory_of

# One size keeps the measuring of times short.
OWN = """
tasks:
  digits:
    accuracy_target: 0.5
    variants:
      tiny: {model: tiny.onnx, batch: {sizes: [1]}}
      small: {model: small.onnx, batch: {sizes: [1]}, confidence: margin}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with own.yaml, two models and test.npz."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("tiny", "small"):
        shutil.copy(zoo.model_path("digits", name), folder / f"{name}.onnx")
    tests = zoo.testset()
    rows = np.random.default_rng(1).permutation(len(tests))[:800]
    np.savez(
        folder / "test.npz",
        image=tests.images[rows],
        labels=tests.labels[rows],
        groups=tests.source[rows],
    )
    (folder / "own.yaml").write_text(OWN)
    return folder


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy of the file, models and data beside it."""
    shutil.copytree(folder, tmp_path / "own")
    return tmp_path / "own" / "own.yaml"


@pytest.fixture(scope="module")
def memory_measured_once() -> Iterator[None]:
    """Measure the memory of each model in a process once: few of these tests look at it."""
    known: dict[object, MemoryUse] = {}

    def recalled(variant: Variant, signature: Any, inputs: Any) -> MemoryUse:
        assert variant.model is not None
        shapes = tuple((name, array.shape) for name, array in inputs.items())
        key = (variant.model.path.read_bytes(), shapes)
        if key not in known:
            known[key] = memory_of(variant, signature, inputs)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "memory_of", recalled)
        yield


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured anew."""

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("measured again")

    for name in ("_outputs", "service_times", "memory_of"):
        monkeypatch.setattr(room, name, run)
