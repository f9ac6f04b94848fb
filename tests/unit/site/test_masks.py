"""Bit masks, compiled and plain."""

from __future__ import annotations

import numpy as np

from inferway.site.compiled import entry
from inferway.site.masks import lowest


@entry
def _lowest(mask: int) -> int:
    return lowest(mask)


def test_the_lowest_bit_is_the_same_compiled_and_plain() -> None:
    for bit in range(63):
        mask = (1 << 62) | (5 << bit) & ((1 << 63) - 1)
        assert lowest(mask) == lowest(np.int64(mask)) == _lowest(mask) == bit
