"""The placement contract: what a policy sees once a slot, and what it returns.

A policy is built for a network, holds a first allocation, and is then told once a slot what the
slot brought. It reads no clock and has no random generator of its own: what it draws follows from
its seed, the slot's number and the node's, so that a node of a live network that knows these draws
the same. `network.options` fixes the meaning of every array.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Allocation, Float


class Observation(NamedTuple):
    """What one slot brought.

    Attributes
    ----------
    requests
        (R,) requests of each type.
    load
        (O,) requests that each option served.
    """

    requests: Float
    load: Float


class Policy(Protocol):
    """What the twin and `inferway place` need of a policy."""

    @property
    def allocation(self) -> Allocation:
        """(P,) the allocation that holds now."""

    @property
    def fractional(self) -> Float | None:
        """(P,) the fractional allocation behind it; None for policies that have none."""

    def step(self, observation: Observation) -> Allocation:
        """Take in a slot and return the next one's allocation."""


class NamedPolicy(Policy, Protocol):
    """A policy that a deployment file can name (`inferway.placement.table`)."""

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> Policy:
        """Make the policy; `batches` is (T, R), all slots' requests, for policies in hindsight."""
