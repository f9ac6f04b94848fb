"""What a run of the network twin gives: gain, bytes moved, latency and inaccuracy, by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.twin.result import finite

if TYPE_CHECKING:
    import pandas as pd

Float = NDArray[np.float64]


@dataclass(frozen=True)
class PartResult:
    """What one tier served, or what the requests for one task got."""

    share: float
    """Of all requests."""
    latency_s: float
    """Mean round trip and inference delay of a request."""
    inaccuracy: float
    """Mean, 0..1."""
    ntag_ms: float | None
    """Gain per request; None for tiers, which have none of their own."""
    mu_bytes_per_slot: float
    """Bytes of models fetched per slot."""
    used: float | None
    """Mean share of the budgets in use; None for tasks, and where there is no budget."""

    def to_json(self) -> dict[str, float | None]:
        """By name, without what does not apply."""
        numbers = {
            "share": self.share,
            "latency_s": self.latency_s,
            "inaccuracy": self.inaccuracy,
            "ntag_ms": self.ntag_ms,
            "mu_bytes_per_slot": self.mu_bytes_per_slot,
            "used": self.used,
        }
        return {name: finite(value) for name, value in numbers.items() if value is not None}


@dataclass(frozen=True)
class Regret:
    """How far a run stayed behind the best static allocation, in cost times requests."""

    best: Float
    """(T,) gain per slot of the best static allocation that was found."""
    discounted: float
    """(1 - 1/e) of its total gain less the run's: what Theorem V.1 bounds."""
    plain: float
    """Its total gain less the run's."""
    bound: float
    """A sqrt(T)."""
    gap: float
    """Proven gap of the best static allocation, as a share."""

    def to_json(self) -> dict[str, float | None]:
        """By name."""
        numbers = {
            "plain": self.plain,
            "discounted": self.discounted,
            "bound": self.bound,
            "optimality_gap": self.gap,
        }
        return {name: finite(value) for name, value in numbers.items()}


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """One policy on one network over some slots.

    Attributes
    ----------
    policy
        Its name.
    slots, slot_s
        How many, and their length in seconds.
    ntag_ms
        Time-averaged gain per request ([SiSalem23], eq. 23), in the unit of the cost.
    mu_bytes_per_slot
        Time-averaged model updates (eq. 24).
    latency_s, inaccuracy
        Means over requests: seconds, and 0..1.
    cpu_s_per_slot
        CPU time of the policy's step, the mean without the first, which loads compiled code.
    tiers, tasks
        The same by part.
    requests, gain, moved
        (T,) per slot: requests, gain in cost times requests, bytes fetched.
    network
        What ran; the arrays below follow its options and pairs.
    served
        (O,) requests that each option served.
    presence
        (P,) share of the slots in which each useful pair was allocated.
    fractional
        (P,) the fractional allocation at the end; None where the policy has none.
    regret
        Against the best static allocation, if it was asked for.
    notes
        What a reader should know: an early end.
    """

    policy: str
    slots: int
    slot_s: float
    ntag_ms: float
    mu_bytes_per_slot: float
    latency_s: float
    inaccuracy: float
    cpu_s_per_slot: float
    tiers: dict[str, PartResult]
    tasks: dict[str, PartResult]
    requests: Float
    gain: Float
    moved: Float
    network: DeliveryNetwork
    served: Float
    presence: Float
    fractional: Float | None
    regret: Regret | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """By name, as `inferway simulate FILE --json` prints it."""
        found: dict[str, Any] = {
            "policy": self.policy,
            "ntag_ms": finite(self.ntag_ms),
            "mu_bytes_per_slot": finite(self.mu_bytes_per_slot),
            "latency_s": finite(self.latency_s),
            "inaccuracy": finite(self.inaccuracy),
            "slots": self.slots,
            "slot_s": self.slot_s,
            "cpu_s_per_slot": finite(self.cpu_s_per_slot),
            "tiers": {name: part.to_json() for name, part in self.tiers.items()},
            "tasks": {name: part.to_json() for name, part in self.tasks.items()},
        }
        if self.regret is not None:
            found["regret"] = self.regret.to_json()
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per slot: requests, gain per request, bytes fetched."""
        import pandas as pd

        return pd.DataFrame(
            {
                "time_s": np.arange(self.slots) * self.slot_s,
                "requests": self.requests,
                "gain_ms": self.gain / np.where(self.requests > 0, self.requests, 1.0),
                "moved_bytes": self.moved,
            },
            index=pd.RangeIndex(self.slots, name="slot"),
        )
