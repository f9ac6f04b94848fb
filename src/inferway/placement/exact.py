"""The best static allocation by mixed-integer programming, and its LP relaxation as a bound.

The time-averaged gain (paper 000, eq. 14) is maximized over allocations *and* over who serves whom:
the flow f of a request type over its options, as shares of its requests,

    max  sum over types of r (gamma_last - gamma_o) f_o,   sum_o f_o = 1,   r f_o <= l_o x,

which for given l is eq. 16 (there Z_k is the sum of the first k flows; shares, not requests, keep
the solver's tolerances from showing). By default l is not given; instead all types that use an
instance share its capacity, ``sum r f_o <= L x``. No order of arrival and no dispatch can do
better than that, so the optimum, and the relaxation all the more, bound what `serve` can reach.

Copies of a variant on a node are counted by one integer, which spares the solver their symmetry.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Allocation, Float
from inferway.placement.contract import Observation
from inferway.placement.gain import room
from inferway.placement.hindsight import Horizon, horizon_of, needed
from inferway.placement.layout import layout_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Exact", "Optimum", "best_static", "relaxation"]


@dataclass(frozen=True)
class Optimum:
    """What the solver found and proved.

    Attributes
    ----------
    allocation
        (P,) the best allocation found.
    gain
        Its mean gain per slot with the best possible flows; costs times requests.
    bound
        No allocation gains more than this, proven.
    proven
        Whether the solver finished; else time ran out and `gain` and `bound` lie apart.
    seconds
        Time taken.
    """

    allocation: Allocation
    gain: float
    bound: float
    proven: bool
    seconds: float

    @property
    def gap(self) -> float:
        """Proven gap, as a share of the bound."""
        return 0.0 if self.bound <= 0 else max(0.0, 1.0 - self.gain / self.bound)


class _Program(NamedTuple):
    """max value @ z subject to low <= matrix @ z <= high, 0 <= z <= upper; counts come first."""

    value: Float
    matrix: csr_array
    low: Float
    high: Float
    upper: Float
    groups: int
    group: NDArray[np.int64]
    """(P,) which count a pair belongs to."""
    unit: float
    base: float


def best_static(
    network: DeliveryNetwork,
    batches: ArrayLike,
    *,
    time_limit_s: float = 60.0,
    gap: float = 1e-6,
    capacity: ArrayLike | None = None,
) -> Optimum:
    """Find the best static allocation.

    Parameters
    ----------
    network
        The inference delivery network.
    batches
        (T, R) requests of each type in each slot.
    time_limit_s
        When to stop with what has been found.
    gap
        Relative gap at which an optimum counts as proven.
    capacity
        (O,) potential available capacities l, for a single slot's exact eq. 16; if not given, types
        share each instance's capacity.

    Raises
    ------
    ValueError
        For arrays of another shape, or `capacity` with slots that differ.
    RuntimeError
        Where the solver finds nothing within the time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = _program(network, horizon_of(network, batches), capacity)
    start = time.perf_counter()
    integral = np.arange(len(program.value)) < program.groups
    found = milp(
        -program.value,
        integrality=integral.astype(np.uint8),
        bounds=Bounds(0.0, program.upper),
        constraints=LinearConstraint(program.matrix, program.low, program.high),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    seconds = time.perf_counter() - start
    if found.x is None:
        raise RuntimeError(f"the solver found no allocation in {time_limit_s} s: {found.message}")
    counts = np.rint(found.x[: program.groups]).astype(np.int64)
    return Optimum(
        allocation=_allocation(network, program, counts),
        gain=_gain_of(program, -float(found.fun)),
        bound=_gain_of(program, -float(found.mip_dual_bound)),
        proven=found.status == 0,
        seconds=seconds,
    )


def relaxation(
    network: DeliveryNetwork, batches: ArrayLike, *, capacity: ArrayLike | None = None
) -> float:
    """Bound the mean gain per slot of every allocation by the LP; arguments as `best_static`."""
    from scipy.optimize import linprog

    program = _program(network, horizon_of(network, batches), capacity)
    equal = program.low == program.high
    found = linprog(
        -program.value,
        A_ub=program.matrix[~equal],
        b_ub=program.high[~equal],
        A_eq=program.matrix[equal],
        b_eq=program.high[equal],
        bounds=[(0.0, float(limit)) for limit in program.upper],
        method="highs",
    )
    if found.x is None or found.fun is None:
        raise RuntimeError(f"the LP relaxation has no solution: {found.message}")
    return _gain_of(program, -float(found.fun))


def _gain_of(program: _Program, value: float) -> float:
    return value * program.unit - program.base


def _program(network: DeliveryNetwork, horizon: Horizon, capacity: ArrayLike | None) -> _Program:
    from scipy.sparse import coo_array

    if capacity is not None and len(horizon.weight) != 1:
        raise ValueError("potential capacities belong to one slot, but the slots differ")
    options, pairs = network.options, network.pairs
    group, copies = _groups(network, merge=capacity is None)
    groups = len(copies)
    layout = layout_of(network)
    most = room(network)
    types = len(options.first) - 1
    type_of = np.repeat(np.arange(types), np.diff(options.first))
    # One flow per type and group: the first option stands for all copies, which cost alike.
    key = type_of * groups + group[options.pair]
    _, flow_option = np.unique(key, return_index=True)
    flow_type, flow_group = type_of[flow_option], group[options.pair[flow_option]]
    saving = options.cost[options.first[1:] - 1][type_of] - options.cost
    unit = float(horizon.weight @ horizon.requests.sum(axis=1)) or 1.0

    rows: list[Any] = []
    columns: list[Any] = []
    entries: list[Any] = []
    low: list[Any] = []
    high: list[Any] = []
    count = 0

    def add(row: Any, column: Any, entry: Any, least: Any, greatest: Any) -> None:
        nonlocal count
        rows.append(row + count)
        columns.append(column)
        entries.append(entry)
        low.append(least)
        high.append(greatest)
        count += len(least)

    # Budgets, over the counts of what placement decides about.
    first_of = np.zeros(groups, np.int64)
    first_of[group[::-1]] = np.arange(len(group))[::-1]
    decided = layout.free[first_of]
    nodes = len(network.nodes)
    sizes = np.where(decided, pairs.size[first_of], 0.0)
    scale = np.where(layout.budget > 0, layout.budget, 1.0)
    node = pairs.node[first_of]
    fits = np.isfinite(layout.budget)
    limited = decided & fits[node]
    add(
        node[limited],
        np.flatnonzero(limited),
        (sizes / scale[node])[limited],
        np.full(nodes, -np.inf),
        np.where(fits, layout.budget / scale, 1.0),
    )
    value = [np.zeros(groups)]
    fixed = np.where(layout.free, 0.0, np.maximum(pairs.pinned > 0, 0.0))
    upper = np.where(decided, copies, np.bincount(group, weights=fixed, minlength=groups))
    lower = np.where(decided, 0.0, upper)
    add(np.arange(groups), np.arange(groups), np.ones(groups), lower, upper)

    flows = groups
    base = 0.0
    instance = most[first_of]  # what one copy serves in a slot
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        wanted = requests[flow_type] > 0
        o, t, m = flow_option[wanted], flow_type[wanted], flow_group[wanted]
        r = requests[t]
        n = len(o)
        column = flows + np.arange(n)
        limit = instance[m] if capacity is None else np.asarray(capacity, np.float64)[o]
        value.append(weight * r * saving[o] / unit)
        used, position = np.unique(t, return_inverse=True)
        add(position, column, np.ones(n), np.ones(len(used)), np.ones(len(used)))
        # f <= min(l / r, 1) x; a repository's last resort is never short (eq. 9).
        share = np.where(options.repository[o], 1.0, np.minimum(limit / r, 1.0))
        add(
            np.concatenate([np.arange(n), np.arange(n)]),
            np.concatenate([column, m]),
            np.concatenate([np.ones(n), -share]),
            np.full(n, -np.inf),
            np.zeros(n),
        )
        if capacity is None:
            shared, place = np.unique(m[~options.repository[o]], return_inverse=True)
            add(
                np.concatenate([place, np.arange(len(shared))]),
                np.concatenate([column[~options.repository[o]], shared]),
                np.concatenate([(r / instance[m])[~options.repository[o]], -np.ones(len(shared))]),
                np.full(len(shared), -np.inf),
                np.zeros(len(shared)),
            )
        flows += n
        base += weight * _least_saving(network, requests, saving, capacity)
    matrix = coo_array(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))),
        shape=(count, flows),
    ).tocsr()
    bounds = np.concatenate([upper, np.ones(flows - groups)])
    return _Program(
        np.concatenate(value),
        matrix,
        np.concatenate(low),
        np.concatenate(high),
        bounds,
        groups,
        group,
        unit,
        base,
    )


def _least_saving(
    network: DeliveryNetwork, requests: Float, saving: Float, capacity: ArrayLike | None
) -> float:
    """What the minimal allocation saves over the last options, where instances are pinned below."""
    from inferway.placement.gain import cost, minimal
    from inferway.placement.serving import serve

    options = network.options
    omega = minimal(network)
    if capacity is None:
        return float(saving @ serve(network, requests, omega.astype(np.uint8)))
    last = options.cost[options.first[1:] - 1]
    return float(last @ requests) - cost(network, requests, capacity, omega)


def _groups(network: DeliveryNetwork, merge: bool) -> tuple[NDArray[np.int64], Float]:
    """(P,) the group of each pair, and how many pairs each group has."""
    pairs, models = network.pairs, network.models
    if not merge:
        return np.arange(len(pairs.node)), np.ones(len(pairs.node))
    key = np.stack(
        [pairs.node, models.task[pairs.model], models.variant[pairs.model], pairs.pinned > 0]
    )
    _, group = np.unique(key, axis=1, return_inverse=True)
    group = np.ravel(group).astype(np.int64)
    return group, np.bincount(group).astype(np.float64)


def _allocation(
    network: DeliveryNetwork, program: _Program, counts: NDArray[np.int64]
) -> Allocation:
    """Take the first copies of each group, as many as were counted."""
    chosen = (network.pairs.pinned > 0).astype(np.uint8)
    left = counts.copy()
    for p in np.flatnonzero(chosen == 0):
        if left[program.group[p]] > 0:
            chosen[p] = 1
            left[program.group[p]] -= 1
    return chosen


class Exact:
    """The best static allocation, as a policy.

    Parameters and errors as for `best_static`.
    """

    def __init__(
        self, network: DeliveryNetwork, batches: Float, *, time_limit_s: float = 60.0
    ) -> None:
        self.optimum = best_static(network, batches, time_limit_s=time_limit_s)

    @classmethod
    def build(
        cls,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        time_limit_s: float = 60.0,
    ) -> Exact:
        """Make the policy, which draws nothing; ValueError without `batches`."""
        del seed
        return cls(network, needed(batches, "exact"), time_limit_s=time_limit_s)

    @property
    def allocation(self) -> Allocation:
        """(P,) the static allocation."""
        return self.optimum.allocation

    @property
    def fractional(self) -> None:
        """None: there is no fractional state."""
        return

    def step(self, observation: Observation) -> Allocation:
        """Return the same allocation, whatever happened."""
        del observation
        return self.optimum.allocation
