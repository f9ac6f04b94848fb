from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.catalog.published import table
from inferway.deployment import ServiceTime, Variant


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file and return its path."""

    def writer(text: str | bytes, name: str = "d.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writer


@pytest.fixture(scope="session")
def yolo() -> dict[str, Variant]:
    """The paper's ten variants."""
    return {
        entry.name: Variant(
            entry.name,
            accuracy=entry.accuracy,
            size_bytes=entry.size_bytes,
            service={h: ServiceTime("deterministic", mean) for h, mean in entry.mean_s.items()},
        )
        for entry in table("paper/yolov4")
    }
