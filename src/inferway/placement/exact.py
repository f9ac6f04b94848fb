"""The best static allocation by mixed-integer programming, and its LP relaxation as a bound.

The time-averaged gain ([SiSalem23], eq. 14) is maximized over allocations *and* who serves whom:
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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Static
from inferway.placement.hindsight import horizon_of, needed
from inferway.placement.program import Program, program_of


@dataclass(frozen=True)
class StaticOptimum:
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
    counts = np.rint(found.x[: program.groups]).astype(np.int64)
    return StaticOptimum(
        allocation=_allocation(network, program, counts),
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


def _allocation(
    network: DeliveryNetwork, program: Program, counts: NDArray[np.int64]
) -> Allocation:
    """Take the first copies of each group, as many as were counted."""
    chosen = (network.pairs.pinned > 0).astype(np.uint8)
    left = counts.copy()
    for p in np.flatnonzero(chosen == 0):
        if left[program.group[p]] > 0:
            chosen[p] = 1
            left[program.group[p]] -= 1
    return chosen


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
