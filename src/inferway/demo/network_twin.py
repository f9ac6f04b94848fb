"""What both twins predict of each placement policy, from the file that the nodes are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.twin.network_result import NetworkResult

__all__ = ["LOAD_S", "Prediction", "predict"]

LOAD_S: Final = 0.03
"""How long a model of the zoo takes from the order to its first request: the files are here, and
the mover's log had 10 to 50 ms between one copy and the next."""


@dataclass(frozen=True)
class Prediction:
    """What the twins say of one policy.

    Attributes
    ----------
    ntag_ms, slot_ntag_ms
        Gain per request, by the event twin and by the slot twin.
    latency_s, accuracy, moved_bytes_per_slot
        By the event twin; the accuracy is that of the variants' profiles.
    gain_ms, slot_gain_ms
        By slot; NaN where nothing was asked.
    """

    ntag_ms: float
    slot_ntag_ms: float
    latency_s: float
    accuracy: float
    moved_bytes_per_slot: float
    gain_ms: tuple[float, ...]
    slot_gain_ms: tuple[float, ...]


def predict(
    deployment: Deployment,
    policy: str,
    *,
    slots: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> Prediction:
    """Simulate a policy slot by slot and request by request.

    Parameters
    ----------
    deployment
        With this machine's service times.
    policy
        A placement policy, as `inferway.placement.POLICIES` names it.
    slots, seed
        As driven: the event twin then has the very requests that the nodes got, and the slot twin
        as many by the same law.
    progress
        Called with how many requests more have entered the event twin, now and then.
    """
    from inferway.twin.network.events import simulate_events
    from inferway.twin.slots import simulate_slots

    rough = simulate_slots(deployment, slots=slots, seed=seed, policy=policy)
    fine = simulate_events(
        deployment,
        slots=slots,
        seed=seed,
        policy=policy,
        fetch_rate=float("inf"),
        start_s=LOAD_S,
        progress=progress,
    )
    return Prediction(
        fine.ntag_ms,
        rough.ntag_ms,
        fine.latency_s,
        fine.accuracy,
        fine.mu_bytes_per_slot,
        _by_slot(fine),
        _by_slot(rough),
    )


def _by_slot(result: NetworkResult) -> tuple[float, ...]:
    asked = np.where(result.requests > 0, result.requests, np.nan)
    return tuple((result.gain / asked).tolist())
