"""What a published table says of one variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One variant of a table.

    Attributes
    ----------
    name
        The variant.
    accuracy
        0..1.
    size_bytes
        What one running copy takes of a node's budget.
    mean_s
        Mean time of one inference in seconds, by hardware.
    """

    name: str
    accuracy: float
    size_bytes: int
    mean_s: Mapping[str, float]
