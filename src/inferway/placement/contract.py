"""The placement contract: what a policy sees once a slot, and what it returns.

A policy is built for a network, holds a first allocation, and is then told once a slot what the
slot brought. It reads no clock and has no random generator of its own: what it draws follows from
its seed, the slot's number and the node's, so that a node of a live network that knows these draws
the same. `network.options` fixes the meaning of every array.

Policies are found by their names, and imported when asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.deployment.policies import PLACEMENT
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.policies.registry import policy_class as find

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Those that decide for the nodes of a network.
POLICIES = {name: row for name, row in PLACEMENT.items() if not row.within}
WRITTEN = "written"  # What the file itself lists, among the policies of the network twin
# Where a file names none: from alpha 2 on it gains the most of those that learn, below about the
# same, with far fewer bytes (docs/studies/placement.md).
DEFAULT = "exchange"

Float = NDArray[np.float64]
Index = NDArray[np.int32]
Offset = NDArray[np.int64]
Hops = NDArray[np.int16]
Mask = NDArray[np.bool_]
Allocation = NDArray[np.uint8]  # (P,) 1 where a useful pair's model is on its node


def batch_of(network: DeliveryNetwork, requests: ArrayLike) -> Float:
    """(R,) requests of each type in a slot; ValueError if they are not that."""
    types = len(network.options.first) - 1
    return _counts(requests, (types,), "requests", "one number per request type")


def batches_of(network: DeliveryNetwork, batches: ArrayLike) -> Float:
    """(T, R) requests of each type in each slot, T > 0; ValueError if they are not that."""
    types = len(network.options.first) - 1
    slots = np.shape(batches)[0] if np.ndim(batches) == 2 else 0
    if not slots:
        raise ValueError(
            f"batches have the shape {np.shape(batches)}: a row of {types} types per slot is needed"
        )
    return _counts(batches, (slots, types), "batches", "a row per slot, a column per request type")


def load_of(network: DeliveryNetwork, load: ArrayLike) -> Float:
    """(O,) requests that each option served; ValueError if they are not that."""
    return _counts(load, (len(network.options.pair),), "loads", "one number per service option")


def fractional_of(network: DeliveryNetwork, allocation: ArrayLike) -> Float:
    """(P,) a fractional or integral allocation; ValueError if it is not that."""
    shape = (len(network.pairs.node),)
    found = _counts(allocation, shape, "allocation", "one number per useful pair")
    if found.size and found.max() > 1:
        raise ValueError(f"an allocation lies between 0 and 1, but one number is {found.max():.6g}")
    return found


def integral_of(network: DeliveryNetwork, allocation: ArrayLike) -> Allocation:
    """(P,) an integral allocation; ValueError if it is not that."""
    given = np.asarray(allocation)
    pairs = len(network.pairs.node)
    if given.dtype == np.uint8 and given.shape == (pairs,) and (not pairs or given.max() <= 1):
        return np.ascontiguousarray(given)  # what policies hold: a large one is not copied
    found = fractional_of(network, allocation)
    exact = found.astype(np.uint8)
    if not np.array_equal(found, exact):
        raise ValueError("an integral allocation holds only 0 and 1")
    return exact


def _counts(values: ArrayLike, shape: tuple[int, ...], name: str, meaning: str) -> Float:
    found = np.ascontiguousarray(values, np.float64)
    if found.shape != shape:
        raise ValueError(f"{name} have the shape {found.shape}, not {shape}: {meaning}")
    # A number that is none compares as false.
    if found.size and not (found.min() >= 0 and found.max() < np.inf):
        raise ValueError(f"{name} hold a negative number or one that is not finite")
    return found


class Observation(NamedTuple):
    """Observations of one slot."""

    requests: Float  # (R,) requests of each type
    load: Float  # (O,) requests that each option served


class PlacementPolicy(Protocol):
    """Interface of a policy that the twin and `inferway place` need."""

    @property
    def allocation(self) -> Allocation:
        """(P,) the allocation that holds now."""

    @property
    def fractional(self) -> Float | None:
        """(P,) the fractional allocation behind it; None for policies that have none."""

    def step(self, observation: Observation) -> Allocation:
        """Take in a slot and return the next one's allocation."""


def policy_class(name: str, folder: Path | None = None) -> Any:
    """Find the class of a placement policy; see `inferway.policies.policy_class`.

    Its `build` takes the network, a seed and, for policies in hindsight, all slots' requests.
    """
    return find("placement", name, folder)


def build_policy(
    name: str,
    network: DeliveryNetwork,
    *,
    seed: int = 0,
    batches: Float | None = None,
    folder: Path | None = None,
    **options: Any,
) -> PlacementPolicy:
    """Make a policy by its name.

    Parameters
    ----------
    name
        One of `POLICIES`, or ``./file.py:Class``.
    network
        The inference delivery network.
    seed
        Of what the policy draws.
    batches
        (T, R) requests of each type in each slot, for policies in hindsight.
    folder
        Where a relative file name starts; the current folder by default.
    options
        The policy's own, as its class documents them.

    Raises
    ------
    ValueError
        For an unknown name or option, a wrong value, or where `batches` are needed and missing.
    """
    try:
        return policy_class(name, folder).build(network, seed=seed, batches=batches, **options)
    except TypeError as error:
        raise ValueError(f"placement policy {name}: {error}") from error


def policy_of(deployment: Deployment, policy: str | None = None) -> str:
    """Name the placement policy that runs: the one asked for, the file's, or `DEFAULT`.

    A file that lists `instances` and no `placement` says what runs itself: ``written``.
    """
    if policy is not None:
        return policy
    if deployment.placement is not None:
        return deployment.placement.policy
    listed = any(node.instances for node in deployment.nodes.values())
    return WRITTEN if listed else DEFAULT


def expected_batches(demand: Demand, slots: int) -> Float:
    """(T, R) mean requests of each type and slot: what policies in hindsight are given.

    The counts themselves differ in every slot by chance; their means repeat, and repeated slots are
    evaluated once.
    """
    return np.array([demand.expected(slot) for slot in range(slots)])
