"""Refresh periods."""

from __future__ import annotations

import pytest

from inferway.placement.infida import Refresh, refresh_of


def slots(refresh: Refresh, count: int) -> list[int]:
    last, found = 0, []
    for slot in range(1, count + 1):
        if refresh.due(slot, last):
            last = slot
            found.append(slot)
    return found


def test_a_constant_period() -> None:
    assert slots(refresh_of(1), 4) == [1, 2, 3, 4]
    assert slots(refresh_of(4), 13) == [4, 8, 12]


def test_a_period_that_stretches_from_1_to_32_over_an_hour() -> None:
    found = slots(refresh_of((1, 32, 60)), 240)
    gaps = [b - a for a, b in zip([0, *found], found, strict=False)]
    assert gaps[0] == 1
    assert gaps == sorted(gaps)
    assert gaps[-1] == 32


@pytest.mark.parametrize("value", [0, (0.5, 4, 10), (1, 4, -1)])
def test_a_period_below_one_slot_is_refused(value) -> None:
    with pytest.raises(ValueError, match="one slot or more"):
        refresh_of(value)
