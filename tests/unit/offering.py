"""A node's own copies of a variant, as it offers them."""

from __future__ import annotations

from inferway.network.offers import Offer


def own_offer(
    node: str,
    task: str,
    variant: str,
    accuracy: float,
    service_s: float,
    spare_per_s: float,
    repository: bool = False,
    together: int = 0,
) -> Offer:
    way = (node,)
    return Offer(
        task, variant, node, accuracy, service_s, 0.0, spare_per_s, way, repository, together
    )
