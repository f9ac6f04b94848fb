"""Cost, gain and its subgradient ([SiSalem23], eq. 7, 11 to 13, 16, 18; Lemmas III.1 and E.1).

All of them take an allocation as (P,) numbers in 0..1: integral allocations and fractional ones
alike, because eq. 13 and 16 extend to fractions as they stand (Sec. IV-A).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from inferway.network.delivery import DeliveryNetwork
from inferway.network.options import Options
from inferway.placement.contract import Float, Index, Offset, batch_of, fractional_of, load_of
from inferway.site.compiled import entry, jit


def minimal(network: DeliveryNetwork) -> Float:
    """(P,) the minimal allocation omega: 1 for permanent instances, else 0."""
    return (network.pairs.pinned > 0).astype(np.float64)


def room(network: DeliveryNetwork) -> Float:
    """(P,) requests per slot that a pair serves if it is allocated.

    It is the paper's L, times the number of copies where a repository runs several.
    """
    return network.pairs.capacity * np.maximum(network.pairs.pinned, 1.0)


def potential(network: DeliveryNetwork, requests: ArrayLike, load: ArrayLike) -> Float:
    """Potential available capacities, eq. 7.

    Parameters
    ----------
    network
        The inference delivery network.
    requests
        (R,) requests of each type in the slot.
    load
        (O,) requests that each option served in it; 0 for models that were not there.

    Returns
    -------
    capacity
        (O,) the paper's l, ``min(L - what other types took, r)``, at least 0.

    Raises
    ------
    ValueError
        For arrays of another shape or with impossible numbers.
    """
    options = network.options
    requests, load = batch_of(network, requests), load_of(network, load)
    taken = np.bincount(options.pair, weights=load, minlength=len(network.pairs.node))
    others = taken[options.pair] - load
    wanted = np.repeat(requests, np.diff(options.first))
    return np.clip(room(network)[options.pair] - others, 0.0, wanted)


def cost(
    network: DeliveryNetwork, requests: ArrayLike, capacity: ArrayLike, allocation: ArrayLike
) -> float:
    """Aggregate cost of a slot, eq. 12, in the unit of the options' costs times requests.

    Parameters
    ----------
    network
        The inference delivery network.
    requests
        (R,) requests of each type.
    capacity
        (O,) potential available capacities, from `potential`.
    allocation
        (P,) numbers in 0..1.

    Raises
    ------
    ValueError
        For arrays of another shape or with impossible numbers.
    """
    options, requests, capacity, y = _checked(network, requests, capacity, allocation)
    return float(_cost(options.first, options.cost, requests, capacity * y[options.pair]))


def gain(
    network: DeliveryNetwork, requests: ArrayLike, capacity: ArrayLike, allocation: ArrayLike
) -> float:
    """Allocation gain of a slot, eq. 16; `cost` at the minimal allocation less `cost` is the same.

    Parameters and errors as for `cost`.
    """
    options, requests, capacity, y = _checked(network, requests, capacity, allocation)
    least = capacity * minimal(network)[options.pair]
    return float(_gain(options.first, options.cost, requests, capacity * y[options.pair], least))


def subgradient(
    network: DeliveryNetwork, requests: ArrayLike, capacity: ArrayLike, allocation: ArrayLike
) -> Float:
    """Subgradient of the gain, eq. 18.

    Parameters and errors as for `cost`.

    Returns
    -------
    g
        (P,) in the unit of the options' costs times requests. Where the gain has a kink it is the
        one-sided derivative towards more of the model.
    """
    options, requests, capacity, y = _checked(network, requests, capacity, allocation)
    g = np.zeros(len(y))
    for_each_type(options.first, options.pair, options.cost, requests, capacity, y, g)
    return g


def _checked(
    network: DeliveryNetwork, requests: ArrayLike, capacity: ArrayLike, allocation: ArrayLike
) -> tuple[Options, Float, Float, Float]:
    """Options, requests, capacities and allocation; z of eq. 11 is capacity times allocation."""
    options, counts = network.options, batch_of(network, requests)
    return options, counts, load_of(network, capacity), fractional_of(network, allocation)


@entry
def for_each_type(
    first: Offset, pair: Index, cost: Float, requests: Float, capacity: Float, y: Float, g: Float
) -> None:
    """Add eq. 18 of all types to `g`."""
    for rho in range(len(requests)):
        r = requests[rho]
        if r <= 0:
            continue
        start = first[rho]
        worst = first[rho + 1] - 1  # K*, the worst needed option
        served = 0.0
        for o in range(start, worst):
            served += capacity[o] * y[pair[o]]
            if served >= r:
                worst = o
                break
        for o in range(start, worst):
            g[pair[o]] += contribution(capacity[o], cost[worst], cost[o])


@jit
def contribution(capacity: float, worst_cost: float, cost: float) -> float:
    """Compute h of eq. 19: what one type adds to its model's component."""
    return capacity * (worst_cost - cost)


@entry
def _cost(first: Offset, cost: Float, requests: Float, effective: Float) -> float:
    total = 0.0
    for rho in range(len(requests)):
        left = requests[rho]
        for o in range(first[rho], first[rho + 1]):
            if left <= 0.0:
                break
            served = min(left, effective[o])
            total += cost[o] * served
            left -= served
    return total


@entry
def _gain(first: Offset, cost: Float, requests: Float, effective: Float, least: Float) -> float:
    total = 0.0
    for rho in range(len(requests)):
        r = requests[rho]
        served = 0.0
        anyway = 0.0
        for o in range(first[rho], first[rho + 1] - 1):
            served = min(r, served + effective[o])
            anyway = min(r, anyway + least[o])
            total += (cost[o + 1] - cost[o]) * (served - anyway)
            if anyway >= r:
                break
    return total
