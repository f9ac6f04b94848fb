"""A small data set, and models that are exported and then served from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris


class Flowers(NamedTuple):
    """Rows of four numbers, three kinds of flower, and a number to be predicted."""

    rows: NDArray[np.float64]
    kinds: NDArray[np.int64]
    widths: NDArray[np.float64]

    @property
    def two(self) -> NDArray[np.int64]:
        return (self.kinds > 0).astype(np.int64)


@pytest.fixture(scope="session")
def flowers() -> Flowers:
    rows, kinds = load_iris(return_X_y=True)
    return Flowers(rows, kinds.astype(np.int64), rows[:, 3] * 1.5)


@pytest.fixture(scope="session")
def people() -> pd.DataFrame:
    """A table with a column of texts, and its labels."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": generator.integers(18, 80, 200).astype(float),
            "city": generator.choice(["Berlin", "Lima", "Osaka"], 200),
            "pay": generator.normal(size=200),
        }
    )
    table["label"] = (table.age > 40).astype(int) + (table.city == "Lima")
    return table


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model.onnx"


def shapes(tensors: Any) -> dict[str, str]:
    """Datatypes and shapes by name, as they are printed."""
    return {one.name: str(one).split(": ")[1] for one in tensors}


@pytest.fixture(scope="session")
def shapes_of() -> Any:
    return shapes
