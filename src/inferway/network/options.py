"""Options to serve each request type, ranked by cost, as flat arrays.

[SiSalem23] (doi:10.1109/TNET.2023.3305922), Sec. III. All is indexed by whole numbers: nodes v < V,
tasks i < N, models m < M, paths q < Q, request types rho = (i, path) < R, options o < O and pairs
p < P. A *model* is one copy of a variant of one task, as the paper counts them (footnote 2): with
20 tasks of 10 variants and at most 3 instances of each, M is 600.

Only useful (node, model) pairs are kept: those that some request type would rather be served by
than by its repository. The others can have no gain, whatever the requests (eq. 16: from where the
repository ranks, ``Z(x) = Z(omega)``), and their subgradient is always 0. How much of a node's
budget they would take all together is `DeliveryNetwork.rest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Index = NDArray[np.int32]
Offset = NDArray[np.int64]


def ranges(counts: NDArray[Any]) -> Offset:
    """(n + 1,) where each of n consecutive ranges begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64, copy=False)


def numbered(counts: NDArray[Any]) -> Index:
    """Count 0, 1, ..., n - 1 for each n of `counts`."""
    start = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum()), dtype=np.int32)
    numbers -= np.repeat(start.astype(np.int32), counts)
    return numbers


class Models(NamedTuple):
    """The catalog: all models of all tasks.

    Attributes
    ----------
    task
        (M,) the task; a task's models are consecutive.
    variant
        (M,) the variant, as an index of `DeliveryNetwork.variants`.
    copy
        (M,) which copy of the variant, from 0.
    accuracy
        (M,) 0..1, the paper's a.
    first
        (N + 1,) range of each task's models.
    """

    task: Index
    variant: Index
    copy: Index
    accuracy: Float
    first: Offset


class Paths(NamedTuple):
    """Routing paths: where requests enter comes first, the repository last.

    Attributes
    ----------
    first
        (Q + 1,) range of each path in the arrays below.
    node
        The nodes of all paths, one path after the other.
    rtt_s
        Round-trip time in seconds from the path's first node to this one; 0 at its first.
    """

    first: Offset
    node: Index
    rtt_s: Float


class Requests(NamedTuple):
    """Request types.

    Attributes
    ----------
    task
        (R,) task.
    path
        (R,) path.
    share
        (R,) share of the task's requests that are of this type; they sum to 1 for each task that
        is requested at all.
    peak
        (R,) requests in a slot, at most: the repositories are planned for it (eq. 9).
    """

    task: Index
    path: Index
    share: Float
    peak: Float


class Pairs(NamedTuple):
    """Useful (node, model) pairs, sorted by node, then by model.

    Attributes
    ----------
    first
        (V + 1,) range of each node's pairs.
    node
        (P,) node.
    model
        (P,) model.
    size
        (P,) what the model takes of the node's budget, in bytes (the paper's s).
    capacity
        (P,) requests that one instance serves in a slot (the paper's L).
    pinned
        (P,) permanent instances (the minimal allocation omega). 0 or 1, but at a repository node
        the number of copies that serve all requests, so the pair serves ``pinned * capacity``.
    """

    first: Offset
    node: Index
    model: Index
    size: Float
    capacity: Float
    pinned: Float


class Options(NamedTuple):
    """Service options of every request type, in the order of their cost (the paper's gamma).

    The k-th option of request type rho is ``first[rho] + k``, so that difference is its rank kappa
    (from 0). Equal costs are ranked by place on the path, then by model. The last option is always
    of a repository; those that would cost as much or more are left out.

    Attributes
    ----------
    first
        (R + 1,) range of each request type's options.
    node
        (O,) node.
    model
        (O,) model.
    pair
        (O,) index in `Pairs`.
    hop
        (O,) place of the node on the path, from 0.
    cost
        (O,) cost of serving one request, in ms for eq. 6.
    repository
        (O,) whether this is the path's repository.
    """

    first: Offset
    node: Index
    model: Index
    pair: Index
    hop: NDArray[np.int16]
    cost: Float
    repository: NDArray[np.bool_]


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
