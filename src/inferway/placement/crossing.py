"""One node's knowledge of the network: its own models and budget, and the paths through it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Float, Offset
from inferway.placement.layout import Layout, layout_of


class Crossing(NamedTuple):
    """A request type whose path goes through the node.

    Attributes
    ----------
    type
        The request type.
    upstream, downstream
        Neighbors on the path, towards the repository and towards the entry; None at its ends.
    pair
        (k,) the node's own options by cost, as indices of its pairs.
    cost
        (k,) their costs.
    option
        (k,) their numbers in the network's arrays, by which loads are reported.
    """

    type: int
    upstream: int | None
    downstream: int | None
    pair: Offset
    cost: Float
    option: Offset


class NodeData(NamedTuple):
    """One node's own data.

    Attributes
    ----------
    node
        Its number.
    layout
        Its pairs alone, as the kernels read them.
    crossings
        The request types through it, by their number.
    """

    node: int
    layout: Layout
    crossings: dict[int, Crossing]


def data_of(network: DeliveryNetwork) -> list[NodeData]:
    """Cut a network into what each of its nodes knows."""
    layout, options, pairs = layout_of(network), network.options, network.pairs
    crossings: list[dict[int, Crossing]] = [{} for _ in network.nodes]
    for rho, path in enumerate(network.requests.path):
        route = network.paths.node[network.paths.first[path] : network.paths.first[path + 1]]
        of_type = np.arange(options.first[rho], options.first[rho + 1])
        for place, node in enumerate(route):
            own = of_type[options.hop[of_type] == place]
            crossings[node][rho] = Crossing(
                type=rho,
                upstream=int(route[place + 1]) if place + 1 < len(route) else None,
                downstream=int(route[place - 1]) if place else None,
                pair=options.pair[own].astype(np.int64) - pairs.first[node],
                cost=options.cost[own],
                option=own,
            )
    found = []
    for v in range(len(network.nodes)):
        start, end = pairs.first[v], pairs.first[v + 1]
        own = slice(start, end)
        local = Layout(
            option_first=np.zeros(1, np.int64),
            pair=np.zeros(0, np.int32),
            cost=np.zeros(0),
            first=np.array([0, end - start], np.int64),
            size=layout.size[own],
            model=np.arange(end - start, dtype=np.int32),
            task=layout.task[layout.model[own]],
            capacity=layout.capacity[own],
            pinned=layout.pinned[own],
            free=layout.free[own],
            budget=layout.budget[v : v + 1],
            total=layout.total[v : v + 1],
            rest=layout.rest[v : v + 1],
        )
        found.append(NodeData(v, local, crossings[v]))
    return found
