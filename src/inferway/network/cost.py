"""What serving a request costs ([SiSalem23], Sec. III-C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Service(NamedTuple):
    """One way of serving a request: what a cost function sees (eq. 5).

    Attributes
    ----------
    nodes
        The path from the entry to the node that serves, p_1 ... p_j, by name.
    task, variant
        What is asked for, and what answers.
    accuracy
        The variant's, 0..1.
    delay_s
        Its mean inference delay on the node that serves, in seconds.
    rtt_s
        Round-trip time from the entry to that node, in seconds.
    """

    nodes: tuple[str, ...]
    task: str
    variant: str
    accuracy: float
    delay_s: float
    rtt_s: float


# Any cost is allowed, also one that falls along the path; infinity keeps a variant from a node.
CostFunction = Callable[[Service], float]


def latency_and_inaccuracy(
    rtt_s: NDArray[np.float64],
    delay_s: NDArray[np.float64],
    accuracy: NDArray[np.float64],
    alpha: float,
) -> NDArray[np.float64]:
    """Eq. 6 in milliseconds: round trip plus delay plus `alpha` per point of inaccuracy.

    The paper takes accuracy in 0..1 there and inaccuracy in 0..100 in its experiments (its footnote
    8); `alpha` is that of the experiments, so 100 times smaller than eq. 6 would need.
    """
    return 1000.0 * (rtt_s + delay_s) + alpha * (100.0 * (1.0 - accuracy))
