"""A delivery network as the compiled kernels of the online policies read it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Float


class Layout(NamedTuple):
    """Views of the network's arrays, and what follows from them once.

    Attributes
    ----------
    option_first, pair, cost
        Of `Options`: (R + 1,), (O,), (O,).
    first, size, model
        Of `Pairs`: (V + 1,), (P,), (P,).
    task
        (M,) of `Models`.
    capacity, pinned
        Of `Pairs`: (P,).
    free
        (P,) whether placement decides about the pair: it is not pinned.
    budget
        (V,) what is left of the budget beside pinned instances; 0 at repositories, whose
        allocation is fixed.
    total
        (V,) bytes of all models that placement may put there, useful or not.
    rest
        (V,) bytes of those that no request type can use.
    """

    option_first: NDArray[np.int64]
    pair: NDArray[np.int32]
    cost: Float
    first: NDArray[np.int64]
    size: Float
    model: NDArray[np.int32]
    task: NDArray[np.int32]
    capacity: Float
    pinned: Float
    free: NDArray[np.bool_]
    budget: Float
    total: Float
    rest: Float


def layout_of(network: DeliveryNetwork) -> Layout:
    """Lay a network out for the kernels."""
    pairs = network.pairs
    free = (pairs.pinned == 0) & ~network.repository[pairs.node]
    nodes = len(network.nodes)
    whole = np.bincount(pairs.node, weights=pairs.size, minlength=nodes)
    fixed = np.bincount(pairs.node[~free], weights=pairs.size[~free], minlength=nodes)
    total = whole - fixed + network.rest
    budget = np.where(network.repository, 0.0, np.maximum(network.budget - fixed, 0.0))
    return Layout(
        option_first=network.options.first,
        pair=network.options.pair,
        cost=network.options.cost,
        first=pairs.first,
        size=pairs.size,
        model=pairs.model,
        task=network.models.task,
        capacity=pairs.capacity,
        pinned=pairs.pinned,
        free=free,
        budget=budget,
        total=total,
        rest=network.rest,
    )
