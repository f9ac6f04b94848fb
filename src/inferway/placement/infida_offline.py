"""INFIDA offline: one static allocation from INFIDA's own average ([SiSalem23], Prop. V.1.1).

Each iteration takes a mirror step along the subgradient of the time-averaged gain G_T (eq. 14). As
in the paper's experiments, the potential available capacities are those that the current integral
allocation leaves in each slot. The fractional states are averaged and rounded.

Departure: several roundings are drawn and the best in hindsight is kept, which an offline policy
can see; the guarantee in expectation holds for each.
"""

from __future__ import annotations

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.ascent import initial
from inferway.placement.contract import Allocation, Float, Static
from inferway.placement.hindsight import Horizon, average_gain, horizon_of, needed
from inferway.placement.infida import couple_all, learn_node, round_all, subgradient_of_loads
from inferway.placement.layout import Layout, layout_of
from inferway.placement.serving import fill
from inferway.site.compiled import entry


class InfidaOffline(Static):
    """A static allocation, by INFIDA on the whole horizon.

    It takes (T, R) requests of each type and slot, `iterations` mirror steps (the paper's T-tilde)
    at a constant learning rate eta or one that tunes itself, and `draws` roundings of which the
    best is kept. ValueError for batches of another shape, or numbers that are not positive.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        iterations: int = 400,
        learning_rate: float | None = None,
        draws: int = 8,
    ) -> None:
        if iterations < 1 or draws < 1:
            raise ValueError(f"{iterations} iterations and {draws} draws: both must be positive")
        if learning_rate is not None and not learning_rate > 0:
            raise ValueError(f"the learning rate must be positive, not {learning_rate}")
        horizon = horizon_of(network, needed(batches, "infida-offline"))
        layout = layout_of(network)
        self.fractional = average = np.zeros(len(network.pairs.node))
        rate = 0.0 if learning_rate is None else float(learning_rate)
        _climb(layout, horizon, rate, seed, iterations, average)
        self.allocation = _best(network, layout, horizon, average, seed, draws)


def _best(
    network: DeliveryNetwork, layout: Layout, horizon: Horizon, y: Float, seed: int, draws: int
) -> Allocation:
    """Round `draws` times within the budgets, and keep what gains most."""
    none = np.zeros_like(y)
    best, most = np.zeros(len(y), np.uint8), -np.inf
    for draw in range(draws):
        x = np.zeros(len(y), np.uint8)
        couple_all(layout, y, seed + draw, x)
        if draw == 0:  # the paper's own rounding first, kept if it fits and gains more
            round_all(layout, y, none, seed, 0, True, best)
            most = average_gain(network, horizon, best)
        gained = average_gain(network, horizon, x)
        if gained > most:
            best, most = x, gained
    return best


@entry
def _climb(
    layout: Layout, horizon: Horizon, rate: float, seed: int, iterations: int, average: Float
) -> None:
    pairs, nodes, first = len(layout.size), len(layout.rest), layout.option_first
    y = np.empty(pairs)
    spread = np.empty(nodes)
    steep = np.zeros(nodes)
    x = np.zeros(pairs, np.uint8)
    load = np.zeros(len(layout.pair))
    g = np.zeros(pairs)
    part = np.zeros(pairs)
    initial(layout, y, spread)
    for _ in range(iterations):
        for p in range(pairs):
            average[p] += y[p] / iterations
        couple_all(layout, y, seed, x)
        g[:] = 0.0
        for b in range(len(horizon.weight)):
            requests = horizon.requests[b]
            fill(first, layout.pair, layout.capacity, layout.pinned, x, requests, load)
            subgradient_of_loads(layout, requests, load, y, part)
            for p in range(pairs):
                g[p] += horizon.weight[b] * part[p]
        for v in range(nodes):
            learn_node(layout, v, g, rate, y, spread, steep)
