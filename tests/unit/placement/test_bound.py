"""The constant of the regret bound."""

from __future__ import annotations

import math

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement.regret import PSI, regret_bound


def test_it_is_appendix_gs() -> None:
    # One free node of budget 3, two variants of sizes 2 and 4, both useful; R = 1.
    network = naive.assemble(
        [naive.Node(np.inf), naive.Node(3.0)],
        [([1, 0], [0.0, 50.0])],
        [(0, 0, 30.0)],
        [[naive.Variant(0.6, 2.0, (50.0,)), naive.Variant(0.6, 4.0, (40.0,))]],
        slot_s=1.0,
    )
    costs = network.options.cost
    difference = costs[-1] - costs[0]
    lipschitz = 1 * 50.0 * difference / 2.0
    spread = 3.0 * math.log(6.0 / 3.0)
    expected = PSI * lipschitz * math.sqrt(4.0 * 2 * 2) * math.sqrt(2 * spread)
    assert regret_bound(network).constant == pytest.approx(expected)


def test_nothing_to_decide_has_no_regret() -> None:
    network = naive.assemble(
        [naive.Node(np.inf)], [([0], [0.0])], [(0, 0, 3.0)], [[naive.Variant(0.6, 2.0, (50.0,))]]
    )
    with pytest.raises(ValueError, match="no pair is left to placement"):
        regret_bound(network)
