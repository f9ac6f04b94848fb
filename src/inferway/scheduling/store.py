"""Trained policies, and which of them decides for the servers that are there.

A policy is for one set of servers ([Tan24], Sec. 6.3, which switches between such policies at
faults), or for any part of one: that is an extension which the paper names (Sec. 6.2) and does not
build. The latter is trained with servers that come and go. It is told which are there, and what it
gives those that are away is left out of its probabilities.

At each slot the policy for just the servers that are healthy now decides; it sees and routes to
these alone. Where there is none, one for any part decides, the one of the fewest servers among
those that cover the present ones. Where there is neither, no routing is set and each request is
left to `deadline`.

A policy may schedule several tasks (Sec. 6.2): it sees the sites of all of them, one behind the
other, and gives a routing for each. Such a one is for one set of servers.
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
from inferway.scheduling.neural_policy import About, NeuralPolicy, fits, pairs_of, read
from inferway.scheduling.observation import Vector, observe
from inferway.site.fleet import Fleet
from inferway.site.view import Flags, Floats, Ints, Site


class LearnedController:
    """A trained network that observes and acts, for one task or for several."""

    def __init__(self, network: NeuralPolicy) -> None:
        self.network = network
        self._layout = network.about.layout
        self._layouts = [part.layout for part in network.about.parts]

    def observe(
        self,
        site: Site,
        signal: Signal,
        servers: Ints | None = None,
        places: Ints | None = None,
    ) -> Vector:
        """The vector of `inferway.scheduling.observation`, of these servers or of all."""
        return observe(self._layout, site, signal, servers, places)

    def act(self, observation: Vector) -> Routing:
        """Routing over the servers, and batch sizes of the classes, that it was trained for."""
        flagged = self._layout.flagged
        there = None if flagged is None else observation[flagged] > 0
        return routing_of(self.network, self.network.forward(observation), there)

    def observe_all(
        self, sites: Sequence[Site], signals: Sequence[Signal], servers: Sequence[Ints | None]
    ) -> Vector:
        """The vectors of all its tasks' sites, one behind the other."""
        each = zip(self._layouts, sites, signals, servers, strict=True)
        return np.concatenate([observe(*one) for one in each])

    def act_all(self, observation: Vector) -> list[Routing]:
        """The routing of each of its tasks."""
        outputs, found, at = self.network.forward(observation), list[Routing](), 0
        for part in self.network.about.parts:
            found.append(_routing_of(part, outputs[at : at + part.outputs]))
            at += part.outputs
        return found


def routing_of(network: NeuralPolicy, outputs: Any, there: Flags | None = None) -> Routing:
    """Read a network's (outputs,) numbers, where (n,) of its servers are there or all."""
    return _routing_of(network.about, outputs, there)


def _routing_of(about: About, outputs: Any, there: Flags | None = None) -> Routing:
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


class FittedPolicy:
    """A trained policy at a fleet: which server stands where in what it sees and says.

    Parameters
    ----------
    network
        For one set of servers, those of all classes of its own, or for any part of them.
    fleet
        Whose servers they are; of a policy for any part, by the names of their variants.
    """

    def __init__(self, network: NeuralPolicy, fleet: Fleet) -> None:
        about = network.about
        self.controller = LearnedController(network)
        self.most = np.array(about.counts)
        names = fleet.variants if about.outages is None else tuple(fleet.names)
        own = [about.variants.index(name) if name in about.variants else -1 for name in names]
        # Classes of the fleet that it knows, and which of its own they are.
        self.classes = np.flatnonzero(np.array(own) >= 0)
        self.known = np.array(own, np.int64)[self.classes]
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


class Seen(NamedTuple):
    """Observation of a store."""

    fitted: FittedPolicy | None  # The policy that decides for the present servers
    vector: Vector
    servers: Ints  # The present servers
    places: Ints | None  # Where these stand, for a policy of any part


class PolicyStore:
    """Trained policies by the number of healthy servers of each class, and those for any part.

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
        self._servers, self._fleet = fleet.servers, fleet
        self._by_counts: dict[tuple[int, ...], FittedPolicy] = {}
        self._parts: list[FittedPolicy] = []
        for network in networks:
            about, fitted = network.about, FittedPolicy(network, fleet)
            if about.outages is not None:
                self._parts.append(fitted)
            elif set(about.variants) <= set(fleet.variants):
                counts = dict(zip(about.variants, about.counts, strict=True))
                self._by_counts[tuple(counts.get(one, 0) for one in fleet.variants)] = fitted
        self._parts.sort(key=lambda fitted: int(fitted.most.sum()))

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
        """Read the trained policies of one task.

        Raises
        ------
        ValueError
            Where there is none, one was trained for other conditions, or it is to schedule several
            tasks.
        """
        if tasks is not None and len(tasks) > 1:
            raise ValueError(
                f"one policy schedules {' and '.join(tasks)} together, and none of them alone"
            )
        fleet = conditions.fleet
        policy, deadline_s = conditions.policy, conditions.deadline_s
        networks = networks_of(
            checkpoint,
            fleet,
            policy=policy,
            deadline_s=deadline_s,
            slot_s=slot,
            changing=conditions.changing,
        )
        for network in networks:
            _check(network, network.about, conditions)
        return cls(networks, fleet, slot, event == "rejection")

    @staticmethod
    def build_together(
        conditions: Sequence[Conditions],
        *,
        slot: float,
        event: str | None,
        checkpoint: Path,
        tasks: Sequence[str],
    ) -> JointPolicyStore:
        """Read the trained policies of several tasks, in the order of their conditions.

        Options and errors are those of `build`.
        """
        assert len(tasks) == len(conditions)
        networks = _networks_at(checkpoint)
        by_counts: dict[Any, NeuralPolicy] = {}
        for network in networks:
            _check_tasks(network, [one.fleet.task for one in conditions])
            for number, (about, own) in enumerate(
                zip(network.about.parts, conditions, strict=True)
            ):
                fits(
                    network,
                    part_of(own.fleet, about) if checkpoint.is_dir() else own.fleet,
                    policy=own.policy,
                    deadline_s=own.deadline_s,
                    slot_s=slot,
                    part=number,
                )
                _check(network, about, own)
            _keep_apart(by_counts, network, [one.counts for one in network.about.parts])
        fleets = [one.fleet for one in conditions]
        return JointPolicyStore(networks, fleets, slot, event == "rejection")

    def observe(self, site: Site, signal: Signal) -> Seen:
        """The healthy servers, as the policy for them sees them."""
        present = np.flatnonzero(site.healthy)
        counts = np.bincount(site.server_class[present], minlength=self._classes)
        exact = self._by_counts.get(tuple(counts.tolist()))
        if exact is not None:
            everywhere = len(present) == self._servers
            vector = exact.controller.observe(site, signal, None if everywhere else present)
            return Seen(exact, vector, present, None)
        for fitted in self._parts if len(present) else ():
            if (places := fitted.places(present)) is not None:
                vector = fitted.controller.observe(site, signal, present, places)
                return Seen(fitted, vector, present, places)
        return Seen(None, np.zeros(0, np.float32), present, None)

    def act(self, observation: Seen) -> Routing | None:
        """The routing over all servers; None where there is no policy for those that are left."""
        fitted, vector, servers, places = observation
        if fitted is None:
            return None
        return _whole(fitted.controller.act(vector), fitted, self._fleet, servers, places)


class JointPolicyStore:
    """Trained policies for several tasks, by the healthy servers of each class of all of them."""

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
        self._by_counts: dict[Any, tuple[LearnedController, list[FittedPolicy]]] = {}
        for network in networks:
            parts = network.about.parts
            fitted = [
                FittedPolicy(replace(network, about=part), fleet)
                for part, fleet in zip(parts, fleets, strict=True)
            ]
            every = [dict(zip(part.variants, part.counts, strict=True)) for part in parts]
            key = tuple(
                tuple(counts.get(one, 0) for one in fleet.variants)
                for counts, fleet in zip(every, fleets, strict=True)
            )
            self._by_counts[key] = LearnedController(network), fitted

    def observe_all(self, sites: Sequence[Site], signals: Sequence[Signal]) -> Any:
        """The healthy servers of all tasks, as the policy for them sees them."""
        present = [np.flatnonzero(site.healthy) for site in sites]
        counts = tuple(
            tuple(np.bincount(site.server_class[here], minlength=len(fleet.rate)).tolist())
            for site, here, fleet in zip(sites, present, self._fleets, strict=True)
        )
        known = self._by_counts.get(counts)
        if known is None:
            return None
        picks = [
            None if len(here) == fleet.servers else here
            for here, fleet in zip(present, self._fleets, strict=True)
        ]
        return known, known[0].observe_all(sites, signals, picks), present

    def act_all(self, observation: Any) -> list[Routing | None]:
        """The routing of each task; None for all where there is no policy for what is left."""
        if observation is None:
            return [None] * len(self._fleets)
        (controller, fitted), vector, present = observation
        each = zip(controller.act_all(vector), fitted, self._fleets, present, strict=True)
        return [_whole(*one) for one in each]


def _whole(
    routing: Routing, fitted: FittedPolicy, fleet: Fleet, servers: Ints, places: Any = None
) -> Routing:
    """Extend a routing over the servers that are left, by their places in it, to all of a fleet."""
    probabilities = np.zeros(fleet.servers)
    probabilities[servers] = routing.probabilities[slice(None) if places is None else places]
    # A class without a server left has no batches to form.
    smallest, largest = np.ones((2, len(fleet.variants)), np.int64)
    smallest[fitted.classes] = routing.smallest[fitted.known]
    largest[fitted.classes] = routing.largest[fitted.known]
    return Routing(probabilities, smallest, largest)


def _networks_at(place: Path) -> list[NeuralPolicy]:
    files = [place]
    if place.is_dir():
        files = sorted(file for ending in ("npz", "npz.xz") for file in place.glob(f"*.{ending}"))
    networks = [read(file) for file in files]
    if not networks:
        raise ValueError(f"{place} holds no trained policy: there is no .npz or .npz.xz file in it")
    return networks


def _keep_apart(by_servers: dict[Any, NeuralPolicy], network: NeuralPolicy, key: Any) -> None:
    """Note a policy by its servers; ValueError where another one is for the same."""
    key = str(key)
    if key in by_servers:
        raise ValueError(
            f"{network.path} and {by_servers[key].path} were trained for the same servers"
        )
    by_servers[key] = network


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


def networks_of(
    place: Path,
    fleet: Fleet,
    *,
    policy: str,
    deadline_s: float | None,
    slot_s: float,
    changing: bool = False,
) -> list[NeuralPolicy]:
    """The policies at a path: one file, or all ``.npz`` and ``.npz.xz`` files of a folder.

    ValueError where there is none, or one was trained for something else: another kind of policy,
    buffer, deadline or slot, or, unless fleets are `changing`, servers that the fleet has not.
    """
    folder, networks = place.is_dir(), _networks_at(place)
    by_counts: dict[Any, NeuralPolicy] = {}
    for network in networks:
        about = network.about
        _check_tasks(network, [fleet.task])
        part = part_of(fleet, about) if folder else fleet
        fits(network, part, policy=policy, deadline_s=deadline_s, slot_s=slot_s, changing=changing)
        servers = tuple(zip(about.variants, about.counts, strict=True))
        _keep_apart(by_counts, network, (servers, about.outages is None))
    return networks


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
