"""A delivery network as the kernels of the online policies read it, and each node's part of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Float, Offset


class Layout(NamedTuple):
    """Views of the network's arrays, and what follows from them once."""

    # Of `Options`: (R + 1,), (O,), (O,).
    option_first: NDArray[np.int64]
    pair: NDArray[np.int32]
    cost: Float
    # Of `Pairs`: (V + 1,), (P,), (P,); and of `Models`: (M,).
    first: NDArray[np.int64]
    size: Float
    model: NDArray[np.int32]
    task: NDArray[np.int32]
    # Of `Pairs`: (P,).
    capacity: Float
    pinned: Float
    free: NDArray[np.bool_]  # (P,) whether placement decides about the pair: it is not pinned
    # (V,) what is left of the budget beside pinned instances; 0 at repositories, whose allocation
    # is fixed.
    budget: Float
    total: Float  # (V,) bytes of all models that placement may put there, useful or not
    rest: Float  # (V,) bytes of those that no request type can use


def layout_of(network: DeliveryNetwork) -> Layout:
    """Lay a network out for the kernels."""
    pairs, options, nodes = network.pairs, network.options, len(network.nodes)
    free = (pairs.pinned == 0) & ~network.repository[pairs.node]
    whole = np.bincount(pairs.node, weights=pairs.size, minlength=nodes)
    fixed = np.bincount(pairs.node[~free], weights=pairs.size[~free], minlength=nodes)
    return Layout(
        option_first=options.first,
        pair=options.pair,
        cost=options.cost,
        first=pairs.first,
        size=pairs.size,
        model=pairs.model,
        task=network.models.task,
        capacity=pairs.capacity,
        pinned=pairs.pinned,
        free=free,
        budget=np.where(network.repository, 0.0, np.maximum(network.budget - fixed, 0.0)),
        total=whole - fixed + network.rest,
        rest=network.rest,
    )


class Crossing(NamedTuple):
    """A request type whose path goes through the node."""

    type: int
    task: int
    place: int  # Hops from the type's entry to this node
    length: int  # Hops from its entry to the end of its path, a repository
    # Neighbors on the path, towards the repository and towards the entry; None at its ends.
    upstream: int | None
    downstream: int | None
    pair: Offset  # (k,) the node's own options by cost, as indices of its pairs
    cost: Float  # (k,) their costs
    option: Offset  # (k,) their numbers in the network's arrays, by which loads are reported


class NodeData(NamedTuple):
    """One node's knowledge of the network: its own models and budget, and the paths through it."""

    node: int  # Its number
    layout: Layout  # Its pairs alone, as the kernels read them
    variants: tuple[str, ...]  # (p,) names of the variants that its pairs are copies of
    crossings: dict[int, Crossing]  # The request types through it, by their number
    delay_s: Float  # (p,) mean inference delay of its pairs by the file, s
    links_s: dict[int, float]  # Round trips to neighbors further up by the file, s

    def measured(self, requests: Float, load: Float) -> tuple[dict[int, float], dict[int, Float]]:
        """Cut out what the node measures itself of a slot of the whole network.

        Parameters
        ----------
        requests
            (R,) of each type.
        load
            (O,) requests that each option served.

        Returns
        -------
        tuple
            Requests of each type that enters here, and for each type what its options here served.
        """
        entering = (rho for rho, one in self.crossings.items() if one.downstream is None)
        arrived = {rho: float(requests[rho]) for rho in entering}
        return arrived, {rho: load[one.option] for rho, one in self.crossings.items()}


def data_of(network: DeliveryNetwork) -> list[NodeData]:
    """Cut a network into what each of its nodes knows."""
    whole, options, pairs = layout_of(network), network.options, network.pairs
    crossings: list[dict[int, Crossing]] = [{} for _ in network.nodes]
    links_s: list[dict[int, float]] = [{} for _ in network.nodes]
    for rho, path in enumerate(network.requests.path):
        first, last = network.paths.first[path : path + 2]
        route, rtt_s = network.paths.node[first:last], network.paths.rtt_s[first:last]
        for here, there, one_s in zip(route[:-1], route[1:], np.diff(rtt_s), strict=True):
            links_s[here][int(there)] = float(one_s)
        of_type = np.arange(options.first[rho], options.first[rho + 1])
        for place, node in enumerate(route):
            option = of_type[options.hop[of_type] == place]
            crossings[node][rho] = Crossing(
                type=rho,
                task=int(network.requests.task[rho]),
                place=place,
                length=len(route) - 1,
                upstream=int(route[place + 1]) if place + 1 < len(route) else None,
                downstream=int(route[place - 1]) if place else None,
                pair=options.pair[option].astype(np.int64) - pairs.first[node],
                cost=options.cost[option],
                option=option,
            )
    found = []
    for v in range(len(network.nodes)):
        own = slice(pairs.first[v], pairs.first[v + 1])
        model = whole.model[own]
        local = Layout(
            option_first=np.zeros(1, np.int64),
            pair=np.zeros(0, np.int32),
            cost=np.zeros(0),
            first=np.array([0, len(model)], np.int64),
            model=np.arange(len(model), dtype=np.int32),
            task=whole.task[model],
            **{k: getattr(whole, k)[own] for k in ("size", "capacity", "pinned", "free")},
            **{k: getattr(whole, k)[v : v + 1] for k in ("budget", "total", "rest")},
        )
        variants = tuple(network.variants[k] for k in network.models.variant[model])
        delay_s = network.delay_s[network.models.variant[model], network.hardware[v]]
        found.append(NodeData(v, local, variants, crossings[v], delay_s, links_s[v]))
    return found
