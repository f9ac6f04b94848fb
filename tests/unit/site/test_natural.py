"""Numbers that are never below 0, compiled and plain."""

from __future__ import annotations

import numpy as np

from inferway.site.compiled import entry
from inferway.site.natural import natural


@entry
def _element(values: np.ndarray, place: int) -> float:
    return float(values[natural(place)])


def test_places_are_the_same_compiled_and_plain() -> None:
    values = np.arange(5.0)
    for place in range(5):
        assert _element(values, place) == natural(place) == place
        assert _element(values, np.int32(place)) == place
