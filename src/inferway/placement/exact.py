"""The best static allocation by mixed-integer programming, and its LP relaxation as a bound.

The time-averaged gain ([SiSalem23], eq. 14) is maximized over allocations *and* who serves whom:
the flow f of a request type over its options, as shares of its requests,

    max  sum over types of r (gamma_last - gamma_o) f_o,   sum_o f_o = 1,   r f_o <= l_o x,

which for given l is eq. 16 (there Z_k is the sum of the first k flows; shares, not requests, keep
the solver's tolerances from showing). By default l is not given; instead all types that use an
instance share its capacity, ``sum r f_o <= L x``. No order of arrival and no dispatch can do
better than that, so the optimum, and the relaxation all the more, bound what `serve` can reach.

Copies of a variant on a node are counted by one integer, which spares the solver their symmetry.
Variables of the program are these counts n of each group of copies, then for each batch the flows
f of each request type over the groups on its path, as shares of its requests:

    max  sum over batches, types of weight r (gamma_last - gamma) f
    s.t. sum s n <= b at each node,   sum f = 1 of each type,
         f <= min(L / r, 1) n,        sum over types of r f <= L n of each group.

With given capacities l the third is ``f <= (l / r) x`` and the last falls away.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Offset, load_of
from inferway.placement.layout import layout_of
from inferway.placement.objective import cost, minimal, room
from inferway.placement.serving import serve
from inferway.placement.static import Horizon, Static, horizon_of, needed

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Program(NamedTuple):
    """max value @ z subject to low <= matrix @ z <= high and 0 <= z <= upper."""

    value: Float
    matrix: csr_array
    low: Float
    high: Float
    upper: Float
    groups: int  # How many groups of copies there are: as many variables, the first, are whole
    group: Offset  # (P,) the group of each pair
    # The mean gain per slot is ``unit * value @ z - base``.
    unit: float
    base: float

    def gain(self, value: float) -> float:
        """Turn the objective into the mean gain per slot, in costs times requests."""
        return value * self.unit - self.base


class _Rows:
    def __init__(self) -> None:
        self._parts: list[tuple[Offset, NDArray[np.integer], Float, Float, Float]] = []
        self.count = 0

    def add(
        self,
        row: NDArray[np.integer],
        column: NDArray[np.integer],
        entry: Float,
        high: Float,
        low: Float | None = None,
    ) -> None:
        """Add rows of given limits, without lower ones if not given; `row` counts within them."""
        low = np.full(len(high), -np.inf) if low is None else low
        self._parts.append((np.asarray(row, np.int64) + self.count, column, entry, high, low))
        self.count += len(high)

    def matrix(self, columns: int) -> tuple[csr_array, Float, Float]:
        """Put together the matrix and its limits."""
        from scipy.sparse import coo_array

        row, column, entry, high, low = map(np.concatenate, zip(*self._parts, strict=True))
        matrix = coo_array((entry, (row, column)), shape=(self.count, columns)).tocsr()
        return matrix, low, high


def program_of(network: DeliveryNetwork, horizon: Horizon, capacity: ArrayLike | None) -> Program:
    """Write the program down; without (O,) potential available capacities l, types share instances.

    ValueError for capacities of another shape, or with batches that differ.
    """
    if capacity is not None and len(horizon.weight) != 1:
        raise ValueError("potential capacities belong to one slot, but the slots differ")
    given = None if capacity is None else load_of(network, capacity)
    options = network.options
    group, copies = _groups(network, merge=given is None)
    groups = len(copies)
    first_of = np.unique(group, return_index=True)[1]  # a pair of each group
    rows = _Rows()
    upper = _counts(network, group, copies, first_of, rows)

    type_of = np.repeat(np.arange(len(options.first) - 1), np.diff(options.first))
    # One flow per type and group: the first option stands for all copies, which cost alike.
    flow = np.unique(type_of * groups + group[options.pair], return_index=True)[1]
    last, omega = options.cost[options.first[1:] - 1], minimal(network)
    saving = last[type_of] - options.cost
    unit = float(horizon.weight @ horizon.requests.sum(axis=1)) or 1.0
    value = [np.zeros(groups)]
    columns, base = groups, 0.0
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        o = flow[requests[type_of[flow]] > 0]
        r, m = requests[type_of[o]], group[options.pair[o]]
        one = room(network)[first_of[m]]  # what one copy serves in a slot
        limit = one if given is None else given[o]
        column = columns + np.arange(len(o))
        value.append(weight * r * saving[o] / unit)
        of_type = np.unique(type_of[o], return_inverse=True)[1]
        _flows(rows, column, m, of_type, limit / r, options.repository[o])
        if given is None:
            # The flows of all types through a group take at most what its copies serve together;
            # a repository is never short (eq. 9).
            short = ~options.repository[o]
            shared, place = np.unique(m[short], return_inverse=True)
            rows.add(
                np.concatenate([place, np.arange(len(shared))]),
                np.concatenate([column[short], shared]),
                np.concatenate([(r / one)[short], -np.ones(len(shared))]),
                np.zeros(len(shared)),
            )
            least = float(saving @ serve(network, requests, omega.astype(np.uint8)))
        else:
            least = float(last @ requests) - cost(network, requests, given, omega)
        columns += len(o)
        base += weight * least
    matrix, low, high = rows.matrix(columns)
    limits = np.concatenate([upper, np.ones(columns - groups)])
    return Program(np.concatenate(value), matrix, low, high, limits, groups, group, unit, base)


def _groups(network: DeliveryNetwork, merge: bool) -> tuple[Offset, Float]:
    """(P,) the group of each pair, and how many pairs each group has."""
    pairs, models = network.pairs, network.models
    if not merge:
        return np.arange(len(pairs.node)), np.ones(len(pairs.node))
    pinned = pairs.pinned > 0
    key = np.stack([pairs.node, models.task[pairs.model], models.variant[pairs.model], pinned])
    group = np.ravel(np.unique(key, axis=1, return_inverse=True)[1]).astype(np.int64)
    return group, np.bincount(group).astype(np.float64)


def _counts(
    network: DeliveryNetwork, group: Offset, copies: Float, first_of: Offset, rows: _Rows
) -> Float:
    """Add the budgets, fix what is pinned, and return the upper limits of the counts."""
    layout, node = layout_of(network), network.pairs.node[first_of]
    decided = layout.free[first_of]
    budget = layout.budget
    scale = np.where(np.isfinite(budget) & (budget > 0), budget, 1.0)
    limited = decided & np.isfinite(budget)[node]
    rows.add(
        node[limited],
        np.flatnonzero(limited),
        network.pairs.size[first_of][limited] / scale[node[limited]],
        np.where(np.isfinite(budget), budget / scale, 1.0),
    )
    pinned = np.bincount(group, network.pairs.pinned > 0, len(copies))
    upper = np.where(decided, copies, pinned)
    every = np.arange(len(copies))
    rows.add(every, every, np.ones(len(copies)), upper, np.where(decided, 0.0, upper))
    return upper


def _flows(
    rows: _Rows,
    column: Offset,
    group: Offset,
    of_type: NDArray[np.integer],
    share: Float,
    repository: NDArray[np.bool_],
) -> None:
    """Let each type's flows sum to 1, each at most what its group's copies can serve of it."""
    n = len(column)
    whole = np.ones(int(of_type.max()) + 1 if n else 0)
    rows.add(of_type, column, np.ones(n), whole, whole)
    most = np.where(repository, 1.0, np.minimum(share, 1.0))
    every = np.arange(n)
    rows.add(
        np.concatenate([every, every]),
        np.concatenate([column, group]),
        np.concatenate([np.ones(n), -most]),
        np.zeros(n),
    )


@dataclass(frozen=True)
class StaticOptimum:
    """Solution found and proved by the solver.

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


def best_static(
    network: DeliveryNetwork,
    batches: ArrayLike,
    *,
    time_limit_s: float = 60.0,
    gap: float = 1e-6,
    capacity: ArrayLike | None = None,
) -> StaticOptimum:
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

    program = program_of(network, horizon_of(network, batches), capacity)
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
    # The first copies of each group, as many as were counted.
    left = np.rint(found.x[: program.groups]).astype(np.int64)
    chosen = minimal(network).astype(np.uint8)
    for p in np.flatnonzero(chosen == 0):
        if left[program.group[p]] > 0:
            chosen[p] = 1
            left[program.group[p]] -= 1
    return StaticOptimum(
        allocation=chosen,
        gain=program.gain(-float(found.fun)),
        bound=program.gain(-float(found.mip_dual_bound)),
        proven=found.status == 0,
        seconds=seconds,
    )


def relaxation(
    network: DeliveryNetwork, batches: ArrayLike, *, capacity: ArrayLike | None = None
) -> float:
    """Bound the mean gain per slot of every allocation by the LP; arguments as `best_static`."""
    from scipy.optimize import linprog

    program = program_of(network, horizon_of(network, batches), capacity)
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
    return program.gain(-float(found.fun))


class Exact(Static):
    """The best static allocation, as a policy; errors as for `best_static`."""

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        time_limit_s: float = 60.0,
    ) -> None:
        rows = needed(batches, "exact")
        self.optimum = best_static(network, rows, time_limit_s=time_limit_s)
        self.allocation = self.optimum.allocation
