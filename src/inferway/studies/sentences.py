"""Claims that several studies make, and how they write numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferway.experiments.claim import claim

ours = partial(claim, "ours")
"""A claim that stands in no paper."""


def percents(values: Mapping[Any, float], digits: str = ".1f", said: str = "{}: {}") -> str:
    """Ratios by name, in percent."""
    return ", ".join(said.format(name, f"{100 * one:{digits}} %") for name, one in values.items())
