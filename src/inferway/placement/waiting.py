"""The price of waiting: what one more request at a busy variant costs those that queue there.

Capacities of [SiSalem23] are requests per slot, and a request that fits waits for nothing (eqs. 6
and 7). Requests that come at random do wait, the longer the less idle time there is. Of n copies
with service time s, busy the part rho of the time, L(rho) requests wait in the mean, and by
Little's law their time adds up to L per unit of time: one more request per unit of time costs
``dL / d(rate)`` = s L'(rho) / n. L is convex, so the room of the copies is cut into levels of a
rising price, in service times: its tangents, as far as each is the highest. With the levels as
instances of their own, each at its price above eq. 6, the rule of serving fills them in the order
in which they pay, and goes on to another variant or node where that costs less than to wait.
INFIDA's eq. 7 has one capacity for each pair: that up to a price of one service time.

L is Sakasegawa's for M/M/n (An approximation formula L = alpha rho^beta / (1 - rho), Annals of the
Institute of Statistical Mathematics 29, 1977, doi:10.1007/BF02532776), halved as for service times
that do not vary (Pollaczek and Khinchine; exact for one copy, and within some percent beyond).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from inferway.placement.contract import Float
from inferway.placement.layout import Layout

# Service times that one more request at each level costs. The last takes what is left of the room.
PRICES: Final = (0.0, 0.2, 0.7, 1.7, 4.0, 12.0)
MANY: Final = 64  # More copies wait as so many do
_HALVINGS: Final = 60


def queued(busy: float, copies: int) -> float:
    """Mean number that wait for so many copies, each busy this part of the time, below 1."""
    return 0.5 * busy ** math.sqrt(2.0 * (copies + 1)) / (1.0 - busy)


def price(busy: float, copies: int) -> float:
    """Service times that one more request costs those that wait: the slope of `queued`."""
    power = math.sqrt(2.0 * (copies + 1))
    slope = power * busy ** (power - 1.0) / (1.0 - busy) + busy**power / (1.0 - busy) ** 2
    return 0.5 * slope / copies


@lru_cache(maxsize=1024)
def busy_at(one: float, copies: int) -> float:
    """Part of the time that so many copies are busy where waiting has this price."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if middle >= 1.0 or price(middle, copies) > one:
            high = middle
        else:
            low = middle
    return low


def unhurried(layout: Layout, kind: Sequence[Hashable]) -> Layout:
    """Lower capacities to what copies serve while one more request costs others a service time.

    Parameters
    ----------
    layout
        Of a network or a node.
    kind
        (P,) what is equal for the copies of a variant of a task at a node: all that there may be
        of them count as the copies that share a queue.

    Returns
    -------
    layout
        With the capacities of pairs that are to be decided lowered; pinned ones keep theirs.
    """
    copies = Counter(kind)
    part = np.array([busy_at(1.0, min(copies[one], MANY)) for one in kind])
    return layout._replace(capacity=np.where(layout.free, part, 1.0) * layout.capacity)


def levels(most: int) -> Float:
    """(most, levels) part of a copy's room at each level, where 1, 2, ... copies run."""
    return np.array([_levels(copies) for copies in range(1, most + 1)])


@lru_cache(maxsize=1024)
def _levels(copies: int) -> tuple[float, ...]:
    """Cut where the tangents of the levels' prices meet."""
    heights = [0.0]  # Of the tangents at 0
    for one in PRICES[1:]:
        touched = busy_at(one, copies)
        heights.append(queued(touched, copies) - copies * one * touched)
    ends = np.diff(heights) / (copies * -np.diff(PRICES))
    return tuple(np.diff([0.0, *ends, 1.0]).tolist())
