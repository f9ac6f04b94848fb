"""Trained policies, and which of them decides for the servers that are there.

A policy is for one set of servers ([Tan24], Sec. 6.3, which switches between such policies at
faults), or for any part of one: that is an extension which the paper names (Sec. 6.2) and does not
build. The latter is trained with servers that come and go. It is told which are there, and what it
gives those that are away is left out of its probabilities.

At each slot the policy for just the servers that are healthy now decides; it sees and routes to
these alone. Where there is none, one for any part decides, the one of the fewest servers among
those that cover the present ones. Where there is neither, no routing is set and each request is
left to `deadline`.

A policy is for a list of tasks, of one as a rule (Sec. 6.2): it sees the sites of all of them, one
behind the other, and gives a routing for each. The servers that it is for are those of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from inferway.deployment.section import FuturePath
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.scheduling.neural_policy import About, NeuralPolicy, fits, pairs_of, read
from inferway.scheduling.observation import Vector, observe
from inferway.site.fleet import Fleet
from inferway.site.view import Flags, Floats, Ints, Site


def routings_of(
    network: NeuralPolicy, outputs: Any, there: Sequence[Flags | None] | None = None
) -> list[Routing]:
    """Read a network's (outputs,) numbers, task by task: over the servers that it was trained for.

    (n,) of each task's servers are there, or all.
    """
    parts, routings, at = network.about.parts, list[Routing](), 0
    for part, flags in zip(parts, there or [None] * len(parts), strict=True):
        routings.append(_routing_of(part, outputs[at : at + part.outputs], flags))
        at += part.outputs
    return routings


def _routing_of(about: About, outputs: Any, there: Flags | None) -> Routing:
    servers, classes = sum(about.counts), len(about.counts)
    smallest, largest = np.ones(classes, np.int64), np.ones(classes, np.int64)
    at = servers
    for k, sizes in enumerate(about.batch_sizes or ()):
        pairs = pairs_of(sizes)
        smallest[k], largest[k] = pairs[int(np.argmax(outputs[at : at + len(pairs)]))]
        at += len(pairs)
    values = np.asarray(outputs[:servers], np.float64)
    if there is not None and there.any():
        values = np.where(there, values, -np.inf)
    return Routing(softmax(values), smallest, largest)


def softmax(values: Any) -> Floats:
    """(n,) probabilities in proportion to the exponentials of (n,) numbers."""
    scaled = np.exp(np.asarray(values, np.float64) - np.max(values))
    return np.asarray(scaled / scaled.sum())


class FittedTask:
    """One task of a trained policy at its fleet: which server stands where in what it sees.

    Parameters
    ----------
    about
        For one set of servers, those of all classes of its own, or for any part of them.
    fleet
        Whose servers they are; of a policy for any part, by the names of their variants.
    """

    def __init__(self, about: About, fleet: Fleet) -> None:
        self._layout, self._fleet = about.layout, fleet
        self.most = np.array(about.counts)
        names = fleet.variants if about.outages is None else tuple(fleet.names)
        own = [about.variants.index(name) if name in about.variants else -1 for name in names]
        # Classes of the fleet that it knows, and which of its own they are.
        self._classes = np.flatnonzero(np.array(own) >= 0)
        self._known = np.array(own, np.int64)[self._classes]
        self._of = np.repeat(np.array(own, np.int64), fleet.count)  # by server
        self._first = np.concatenate([[0], np.cumsum(self.most)[:-1]])
        counts = np.bincount(self._of + 1, minlength=len(self.most) + 1)[1:]
        everywhere = np.arange(fleet.servers)
        fits = bool((self._of >= 0).all() and (counts <= self.most).all())
        # A server keeps its place, where there is one for each.
        self._places = self._placed(everywhere) if fits else None

    def places(self, present: Ints) -> Ints | None:
        """(m,) where the present servers stand; None where it is not for all of them."""
        if self._places is not None:
            return np.asarray(self._places[present])
        of = self._of[present]
        if (of < 0).any() or (np.bincount(of, minlength=len(self.most)) > self.most).any():
            return None
        return self._placed(present)

    def _placed(self, servers: Ints) -> Ints:
        of, found = self._of[servers], np.zeros(len(servers), np.int64)
        for k, first in enumerate(self._first):
            mine = np.flatnonzero(of == k)
            found[mine] = first + np.arange(len(mine))
        return found

    def observe(self, site: Site, signal: Signal, servers: Ints, places: Ints | None) -> Vector:
        """The vector of `inferway.scheduling.observation`, of (m,) servers that stand there."""
        everywhere = places is None and len(servers) == len(site.healthy)
        return observe(self._layout, site, signal, None if everywhere else servers, places)

    def there(self, observation: Vector) -> Flags | None:
        """(n,) which servers it was trained for are there, where an observation says so."""
        flagged = self._layout.flagged
        return None if flagged is None else np.asarray(observation[flagged] > 0)

    def whole(self, routing: Routing, servers: Ints, places: Ints | None) -> Routing:
        """Extend a routing over (m,) servers, which stand at these places of it, to the fleet."""
        probabilities = np.zeros(self._fleet.servers)
        probabilities[servers] = routing.probabilities[slice(None) if places is None else places]
        # A class without a server left has no batches to form.
        smallest, largest = np.ones((2, len(self._fleet.variants)), np.int64)
        smallest[self._classes] = routing.smallest[self._known]
        largest[self._classes] = routing.largest[self._known]
        return Routing(probabilities, smallest, largest)


class FittedPolicy:
    """A trained policy at the fleets of its tasks."""

    def __init__(self, network: NeuralPolicy, fleets: Sequence[Fleet]) -> None:
        self.network = network
        each = zip(network.about.parts, fleets, strict=True)
        self.tasks = [FittedTask(part, fleet) for part, fleet in each]

    def decide(
        self,
        sites: Sequence[Site],
        signals: Sequence[Signal],
        present: Sequence[Ints],
        places: Sequence[Ints | None],
    ) -> list[Routing]:
        """The routing of each task over all servers, from what the present ones look like.

        (m,) places are where these stand, of a policy for any part of its servers.
        """
        every = range(len(self.tasks))
        vectors = [
            self.tasks[k].observe(sites[k], signals[k], present[k], places[k]) for k in every
        ]
        outputs = self.network.forward(np.concatenate(vectors))
        there = [self.tasks[k].there(vectors[k]) for k in every]
        routings = routings_of(self.network, outputs, there)
        return [self.tasks[k].whole(routings[k], present[k], places[k]) for k in every]


# By task, servers of each class.
Counts = tuple[tuple[int, ...], ...]


class PolicyStore:
    """Trained policies by the healthy servers of each class of all tasks, and those for any part.

    They are checked for the fleets but for the counts of servers; see `networks_of`.
    """

    def __init__(
        self,
        networks: Sequence[NeuralPolicy],
        fleets: Sequence[Fleet],
        slot_s: float,
        on_rejection: bool = False,
    ) -> None:
        self.slot_s = slot_s
        self.on_rejection = on_rejection
        self.sees_phase = any(bool(network.about.phases) for network in networks)
        self._fleets = tuple(fleets)
        self._by_counts: dict[Counts, FittedPolicy] = {}
        self._any_part: list[FittedPolicy] = []
        for network in networks:
            parts, fitted = network.about.parts, FittedPolicy(network, fleets)
            each = list(zip(parts, fleets, strict=True))
            if any(part.outages is not None for part in parts):
                self._any_part.append(fitted)
            elif all(set(part.variants) <= set(fleet.variants) for part, fleet in each):
                counts = [dict(zip(part.variants, part.counts, strict=True)) for part in parts]
                key = tuple(
                    tuple(own.get(one, 0) for one in fleet.variants)
                    for own, fleet in zip(counts, fleets, strict=True)
                )
                self._by_counts[key] = fitted
        self._any_part.sort(key=lambda fitted: sum(int(one.most.sum()) for one in fitted.tasks))

    @classmethod
    def build(
        cls,
        conditions: Sequence[Conditions],
        *,
        slot: Slot = 1.0,
        event: Event = None,
        checkpoint: Annotated[
            FuturePath,
            Field(
                description="The trained policy, relative to this file; or a folder with one for "
                "each set of healthy\ninstances, of which the matching one is used, else one that "
                "was trained with `--outages`,\nand `deadline` while there is none."
            ),
        ],
        tasks: Annotated[
            tuple[str, ...] | None,
            Field(
                description="Tasks that one policy schedules together, in the order in which it "
                "was trained for them;\neach by itself if not given.",
                min_length=1,
            ),
        ] = None,
    ) -> PolicyStore:
        """Read the trained policies of these tasks.

        Raises
        ------
        ValueError
            Where there is none, one was trained for other conditions, or it is to schedule further
            tasks.
        """
        if tasks is not None and len(tasks) > len(conditions):
            raise ValueError(
                f"one policy schedules {' and '.join(tasks)} together, and none of them alone"
            )
        networks = networks_of(checkpoint, conditions, slot)
        return cls(networks, [one.fleet for one in conditions], slot, event == "rejection")

    def decide(self, sites: Sequence[Site], signals: Sequence[Signal]) -> Sequence[Routing | None]:
        """The routing of each task, by the policy for the servers that are healthy now.

        None for all where there is no such policy.
        """
        present = [np.flatnonzero(site.healthy) for site in sites]
        counts = tuple(
            tuple(np.bincount(site.server_class[here], minlength=len(fleet.variants)).tolist())
            for site, here, fleet in zip(sites, present, self._fleets, strict=True)
        )
        exact = self._by_counts.get(counts)
        if exact is not None:
            return exact.decide(sites, signals, present, [None] * len(present))
        for fitted in self._any_part if all(map(len, present)) else ():
            each = zip(fitted.tasks, present, strict=True)
            places = [task.places(here) for task, here in each]
            if all(one is not None for one in places):
                return fitted.decide(sites, signals, present, places)
        return [None] * len(present)


def policies_at(place: Path) -> list[NeuralPolicy]:
    """Read a trained policy, or all ``.npz`` and ``.npz.xz`` files of a folder.

    ValueError where there is none, or one cannot be read.
    """
    files = [place]
    if place.is_dir():
        files = sorted(file for ending in ("npz", "npz.xz") for file in place.glob(f"*.{ending}"))
    if not files:
        raise ValueError(f"{place} holds no trained policy: there is no .npz or .npz.xz file in it")
    return [read(file) for file in files]


def networks_of(place: Path, conditions: Sequence[Conditions], slot_s: float) -> list[NeuralPolicy]:
    """The policies at a path, as `policies_at` reads them, for tasks under these conditions.

    ValueError where there is none, or one was trained for something else: other tasks, another kind
    of policy, buffer, deadline, slot, phases or batches, or, unless fleets are changing, servers
    that a fleet has not.
    """
    networks = policies_at(place)
    by_servers: dict[Any, NeuralPolicy] = {}
    for network in networks:
        parts = network.about.parts
        _check_tasks(network, [one.fleet.task for one in conditions])
        for number, (about, own) in enumerate(zip(parts, conditions, strict=True)):
            fits(
                network,
                part_of(own.fleet, about) if place.is_dir() else own.fleet,
                policy=own.policy,
                deadline_s=own.deadline_s,
                slot_s=slot_s,
                changing=own.changing,
                part=number,
            )
            _check(network, about, own)
        key = tuple((one.variants, one.counts, one.outages is None) for one in parts)
        if key in by_servers:
            raise ValueError(
                f"{network.path} and {by_servers[key].path} were trained for the same servers"
            )
        by_servers[key] = network
    return networks


def _check_tasks(network: NeuralPolicy, wanted: Sequence[str]) -> None:
    """Refuse a policy that was trained for more tasks or fewer, or for these in another order."""
    trained = [one.task for one in network.about.parts]
    if len(trained) != len(wanted):
        each = [
            "one task" if len(names) == 1 else f"{' and '.join(names)} together"
            for names in (trained, wanted)
        ]
        raise ValueError(f"{network.path} was trained for {each[0]}, not for {each[1]}")
    if trained != [*wanted] and sorted(trained) == sorted(wanted):
        raise ValueError(
            f"{network.path} was trained for {' and '.join(trained)} in this order: give `tasks` "
            "in it"
        )


def part_of(fleet: Fleet, about: About) -> Fleet:
    """The servers of a fleet that a policy was trained for; all where the fleet has not these."""
    counts = dict(zip(about.variants, about.counts, strict=True))
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
        graded=fleet.graded[kept],
        price=None,
        energy=np.empty(0),
        confidence=None,
        devices=None,
    )


def _check(network: NeuralPolicy, about: About, conditions: Conditions) -> None:
    """Refuse a policy that was trained for other phases or batches; ValueError says which."""
    phases = conditions.phases
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
    offered = dict(zip(conditions.fleet.names, conditions.batches, strict=False))
    offered |= dict(zip(conditions.fleet.variants, conditions.batches, strict=False))
    # Of a policy for any part of its servers, or of one of many fleets, some may not be there.
    some = about.outages is not None or conditions.changing
    for variant, sizes in zip(about.variants, about.batch_sizes or (), strict=False):
        if some and variant not in {*conditions.fleet.names, *conditions.fleet.variants}:
            continue
        batch = offered.get(variant)
        served = (1,) if batch is None else batch.sizes
        if {1, *served} != {1, *sizes}:
            raise ValueError(
                f"{network.path} was trained for batches of {', '.join(map(str, sizes))} at "
                f"{variant}, which serves batches of {', '.join(map(str, served))}"
            )
