"""Refresh periods."""

from __future__ import annotations

import re
from pathlib import Path

import naive_placement as naive
import pytest

from inferway.deployment import load
from inferway.placement import build_policy
from inferway.placement.infida import DYNAMIC, Refresh, refresh_of


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
    assert refresh_of("dynamic") == refresh_of((1, 32, 60))
    found = slots(refresh_of("dynamic"), 240)
    gaps = [b - a for a, b in zip([0, *found], found, strict=False)]
    assert gaps[0] == 1
    assert gaps == sorted(gaps)
    assert gaps[-1] == 32


@pytest.mark.parametrize("value", [0, (0.5, 4, 10), (1, 4, -1)])
def test_a_period_below_one_slot_is_refused(value) -> None:
    with pytest.raises(ValueError, match="one slot or more"):
        refresh_of(value)


def test_what_is_no_period_is_refused() -> None:
    with pytest.raises(ValueError, match="a number of slots, or dynamic, not 'never'"):
        refresh_of("never")


def test_a_file_may_say_dynamic_and_strict(tmp_path) -> None:
    file = tmp_path / "network.yaml"
    said = "policy: infida, rounding: fresh, refresh: dynamic, residual: strict"
    topology = Path(__file__).parents[3] / "examples" / "topology-2.yaml"
    text = re.sub(r"placement: \{.*\}", f"placement: {{{said}}}", topology.read_text())
    assert said in text
    file.write_text(text)
    placement = load(file).placement
    options = {name: one for name, one in placement.options.items() if name != "slot"}
    policy = build_policy(placement.policy, naive.random_network(3), **options)
    assert policy._options[2:] == (DYNAMIC, True, True)
