"""Labeled data of the digits zoo, and a file with two of its models as a user's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from inferway.catalog import zoo

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
