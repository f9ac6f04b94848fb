"""The price of waiting: levels of room, and decisions of exchange that count it."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement.layout import layout_of
from inferway.placement.waiting import PRICES, levels, price, queued, unhurried


@pytest.mark.parametrize("copies", [1, 2, 3, 20])
def test_levels_cost_what_waits_from_below_and_touch_it_at_their_prices(copies: int) -> None:
    parts = levels(copies)[copies - 1]
    assert parts.sum() == pytest.approx(1.0)
    assert (parts > 0).all()
    ends = np.cumsum(parts)

    def paid(busy: float) -> float:
        used = np.clip(busy - (ends - parts), 0.0, parts)
        return copies * float(used @ PRICES)

    grid = np.linspace(0.0, 0.999, 1000)
    short = np.array([queued(busy, copies) - paid(busy) for busy in grid])
    assert short.min() > -1e-9
    for k, one in enumerate(PRICES[1:], 1):
        # Somewhere within each level the slope is its price, and nothing is short there.
        inside = (grid >= ends[k] - parts[k]) & (grid <= ends[k])
        busy = min(grid[inside], key=lambda at: abs(price(at, copies) - one))
        assert queued(busy, copies) == pytest.approx(paid(busy), abs=2e-3 * copies * one)


def test_the_price_is_the_slope_of_what_waits() -> None:
    for copies in (1, 3, 8):
        for busy in (0.3, 0.8, 0.95):
            slope = (queued(busy + 1e-6, copies) - queued(busy - 1e-6, copies)) / 2e-6
            assert copies * price(busy, copies) == pytest.approx(slope, rel=1e-6)


def test_one_copy_waits_as_pollaczek_and_khinchine_say() -> None:
    for busy in (0.2, 0.6, 0.95):
        assert queued(busy, 1) == pytest.approx(busy * busy / (2 * (1 - busy)))


def test_copies_that_share_a_queue_have_more_room_before_it_costs() -> None:
    ends = np.cumsum(levels(12), axis=1)[:, :-1]
    assert (np.diff(ends, axis=0) > 0).all()


def test_capacities_without_hurry_are_those_below_a_price_of_one_service_time() -> None:
    network = naive.random_network(2, nodes=4, tasks=2, types=4, copies=2, pins=True)
    layout = layout_of(network)
    models = network.models
    kind = [
        (node, models.task[model], models.variant[model])
        for node, model in zip(network.pairs.node, network.pairs.model, strict=True)
    ]
    lower = unhurried(layout, kind)
    assert np.array_equal(lower.capacity[~layout.free], layout.capacity[~layout.free])
    assert layout.free.sum() > 4
    for p in np.flatnonzero(layout.free):
        busy = lower.capacity[p] / layout.capacity[p]
        assert price(busy, kind.count(kind[p])) == pytest.approx(1.0)
