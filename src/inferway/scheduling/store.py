"""A store of trained policies, one for each set of instances left by faults ([Tan24], Sec. 6.3).

At each slot the policy for the servers that are healthy now decides; it sees and routes to these
alone. Where the store has none for them, no routing is set and each request is left to `deadline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.section import FuturePath
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.scheduling.neural_policy import NeuralPolicy, fits, pairs_of, read
from inferway.scheduling.observation import Vector, observe
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Ints, Site


class LearnedController:
    """A trained network that observes and acts."""

    def __init__(self, network: NeuralPolicy) -> None:
        self.network = network
        self._layout = network.about.layout

    def observe(self, site: Site, signal: Signal, servers: Ints | None = None) -> Vector:
        """The vector of `inferway.scheduling.observation`, of these servers or of all."""
        return observe(self._layout, site, signal, servers)

    def act(self, observation: Vector) -> Routing:
        """Routing over the servers, and batch sizes of the classes, that it was trained for."""
        return routing_of(self.network, self.network.forward(observation))


def routing_of(network: NeuralPolicy, outputs: Any) -> Routing:
    """Read a network's (outputs,) numbers."""
    about = network.about
    servers, classes = sum(about.counts), len(about.counts)
    smallest, largest = np.ones(classes, np.int64), np.ones(classes, np.int64)
    at = servers
    for k, sizes in enumerate(about.batch_sizes or ()):
        pairs = pairs_of(sizes)
        smallest[k], largest[k] = pairs[int(np.argmax(outputs[at : at + len(pairs)]))]
        at += len(pairs)
    return Routing(softmax(outputs[:servers]), smallest, largest)


def softmax(values: Any) -> Floats:
    """(n,) probabilities in proportion to the exponentials of (n,) numbers."""
    scaled = np.exp(np.asarray(values, np.float64) - np.max(values))
    return np.asarray(scaled / scaled.sum())


class Seen(NamedTuple):
    """Observation of a store."""

    policy: LearnedController | None  # The policy for the present servers
    vector: Vector
    servers: Ints  # The present servers


class PolicyStore:
    """Trained policies by the number of healthy servers of each class.

    They are checked for the fleet but for the counts of servers; see `networks_of`.
    """

    def __init__(
        self,
        networks: Sequence[NeuralPolicy],
        fleet: Fleet,
        slot_s: float,
        on_rejection: bool = False,
    ) -> None:
        self.slot_s = slot_s
        self.on_rejection = on_rejection
        self.sees_phase = any(bool(network.about.phases) for network in networks)
        self._classes = len(fleet.variants)
        self._servers = fleet.servers
        self._place = {variant: k for k, variant in enumerate(fleet.variants)}
        self._by_counts: dict[tuple[int, ...], LearnedController] = {}
        for network in networks:
            counts = dict(zip(network.about.variants, network.about.counts, strict=True))
            key = tuple(counts.get(variant, 0) for variant in fleet.variants)
            self._by_counts[key] = LearnedController(network)

    @classmethod
    def build(
        cls,
        conditions: Conditions,
        *,
        slot: Slot = 1.0,
        event: Event = None,
        checkpoint: Annotated[
            FuturePath,
            Field(
                description="The trained policy, relative to this file; or a folder with one for "
                "each set of healthy\ninstances, of which the matching one is used, and `deadline` "
                "while there is none."
            ),
        ],
    ) -> PolicyStore:
        """Read the trained policies.

        Raises
        ------
        ValueError
            Where there is none, or one was trained for other conditions.
        """
        fleet = conditions.fleet
        policy, deadline_s = conditions.policy, conditions.deadline_s
        networks = networks_of(checkpoint, fleet, policy=policy, deadline_s=deadline_s, slot_s=slot)
        for network in networks:
            _check(network, conditions)
        return cls(networks, fleet, slot, event == "rejection")

    def observe(self, site: Site, signal: Signal) -> Seen:
        """The healthy servers, as the policy for them sees them."""
        present = np.flatnonzero(site.healthy)
        counts = np.bincount(site.server_class[present], minlength=self._classes)
        policy = self._by_counts.get(tuple(counts.tolist()))
        if policy is None:
            return Seen(None, np.zeros(0, np.float32), present)
        everywhere = len(present) == self._servers
        vector = policy.observe(site, signal, None if everywhere else present)
        return Seen(policy, vector, present)

    def act(self, observation: Seen) -> Routing | None:
        """The routing over all servers; None where there is no policy for those that are left."""
        policy, vector, servers = observation
        if policy is None:
            return None
        routing = policy.act(vector)
        probabilities = np.zeros(self._servers)
        probabilities[servers] = routing.probabilities
        # A class without a server left has no batches to form.
        smallest, largest = np.ones(self._classes, np.int64), np.ones(self._classes, np.int64)
        present = [self._place[variant] for variant in policy.network.about.variants]
        smallest[present], largest[present] = routing.smallest, routing.largest
        return Routing(probabilities, smallest, largest)


def networks_of(
    place: Path, fleet: Fleet, *, policy: str, deadline_s: float | None, slot_s: float
) -> list[NeuralPolicy]:
    """The policies at a path: one file, or all ``.npz`` and ``.npz.xz`` files of a folder.

    ValueError where there is none, or one was trained for something else: another kind of policy,
    buffer, deadline or slot, or servers that the fleet has not.
    """
    folder = place.is_dir()
    files = [place]
    if folder:
        files = sorted(file for ending in ("npz", "npz.xz") for file in place.glob(f"*.{ending}"))
    networks = [read(file) for file in files]
    if not networks:
        raise ValueError(f"{place} holds no trained policy: there is no .npz or .npz.xz file in it")
    by_counts: dict[tuple[tuple[str, int], ...], NeuralPolicy] = {}
    for network in networks:
        part = part_of(fleet, network) if folder else fleet
        fits(network, part, policy=policy, deadline_s=deadline_s, slot_s=slot_s)
        key = tuple(zip(network.about.variants, network.about.counts, strict=True))
        if key in by_counts:
            raise ValueError(
                f"{network.path} and {by_counts[key].path} were trained for the same servers"
            )
        by_counts[key] = network
    return networks


def part_of(fleet: Fleet, network: NeuralPolicy) -> Fleet:
    """The servers of a fleet that a policy was trained for; all where the fleet has not these."""
    counts = dict(zip(network.about.variants, network.about.counts, strict=True))
    present = dict(zip(fleet.variants, fleet.count.tolist(), strict=True))
    if any(count > present.get(variant, 0) for variant, count in counts.items()):
        return fleet
    kept = [k for k, variant in enumerate(fleet.variants) if variant in counts]
    return replace(
        fleet,
        variants=tuple(fleet.variants[k] for k in kept),
        rate=fleet.rate[kept],
        accuracy=fleet.accuracy[kept],
        count=np.array([counts[fleet.variants[k]] for k in kept]),
        price=None,
        energy=np.empty(0),
    )


def _check(network: NeuralPolicy, conditions: Conditions) -> None:
    """Refuse a policy that was trained for other phases or batches; ValueError says which."""
    about, phases = network.about, conditions.phases
    if about.phases and not phases:
        raise ValueError(
            f"{about.policy} goes by the workload's state, which a live server cannot see"
        )
    kinds = [
        "periodic" if periodic else "random"
        for periodic in (about.longest_phase_s is not None, conditions.periodic)
    ]
    if about.phases and (about.phases, kinds[0]) != (len(phases), kinds[1]):
        raise ValueError(
            f"{network.path} was trained for a workload of {about.phases} {kinds[0]} phases; "
            f"this one has {len(phases)} {kinds[1]} ones"
        )
    offered = dict(zip(conditions.fleet.variants, conditions.batches, strict=False))
    for variant, sizes in zip(about.variants, about.batch_sizes or (), strict=False):
        batch = offered.get(variant)
        served = (1,) if batch is None else batch.sizes
        if {1, *served} != {1, *sizes}:
            raise ValueError(
                f"{network.path} was trained for batches of {', '.join(map(str, sizes))} at "
                f"{variant}, which serves batches of {', '.join(map(str, served))}"
            )
