"""Rehearse a network event by event: dispatch at every node, forwarding, offers, moving models.

All three time scales together, as live: each node decides request by request, tells its neighbors
what it can serve, and loads and unloads what placement says at the end of each slot.

Departures from the live node: work other than serving takes no time (reading, forwarding, control
messages but for their way); nodes and links do not fail, and links take what the file says; how
sure each answer is is drawn by what profiles say, or the task's difficulty; a second answer that
comes too late keeps its server until it has come; placement sees all of the network's counts at the
end of a slot, as if letters were there at once, unless it is said what becomes of letters
(`inferway.twin.network.letters`); what was fetched once is fetched again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand, requests_of
from inferway.network.layout import DEFAULT_ALPHA, deployed
from inferway.network.offers import LOOK_S, Offer, OfferBook, received
from inferway.placement.contract import Allocation, Observation, PlacementPolicy, policy_of
from inferway.placement.delays import Measuring
from inferway.placement.moves import Load, Moves, Rest, Unload
from inferway.placement.objective import minimal
from inferway.placement.serving import serve, spent
from inferway.twin.network.engine import Engine
from inferway.twin.network.ledger import Ledger
from inferway.twin.network.letters import Mail, PlacementByLetters
from inferway.twin.network.nodes import NodePool, NodePools, Terrain
from inferway.twin.result import EventResult
from inferway.twin.slots import placement_of, placement_options

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# Bytes per second at which a model is fetched: a link of 1 Gbit/s, all for itself.
FETCH_RATE: Final = 125e6
START_S: Final = 0.5  # Opening a model and warming it up, s
TOLD_S: Final = 0.1  # How long news of an offer may take beside the way itself, as live
_ROUNDING: Final = 1e-9
_WORDS = 0xD4A3  # tells this use of the seed from others
_BLOCK = 8192


def simulate_events(
    deployment: Deployment,
    *,
    slots: int,
    seed: int | None = None,
    policy: str | None = None,
    fetch_rate: float = FETCH_RATE,
    start_s: float = START_S,
    letters_lost: float | None = None,
    letters_s: float | None = None,
    measure: bool = True,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> EventResult:
    """Run a deployment's network request by request.

    Parameters
    ----------
    deployment
        A file with `network` and `workload`, from `inferway.load`.
    slots
        How many slots.
    seed
        Of the requests, the service times and what policies draw; the file's if not given.
    policy
        Another placement policy than the file's; as for `inferway.twin.slots.simulate_slots`.
    fetch_rate
        Bytes per second at which a node fetches a model; inf where that takes no time.
    start_s
        How long a fetched model takes until it can serve, s.
    letters_lost
        Share of the letters about a slot that never come, 0 to 1.
    letters_s
        Mean time that a letter about placement takes beside half the round trip, s; exponential.
        With this or `letters_lost`, each node decides with the letters that came in time, a tenth
        of a slot after its end at the latest, as live; with neither, at the end with all of them.
    measure
        Whether nodes predict by the service times that they measure, as live, or by the file's.
    stop
        Ends it early once it is set.
    progress
        Called with how many requests more have entered, now and then.
    options
        The placement policy's own, over those of the file.

    Raises
    ------
    DeploymentError
        Where the file has no network, or one that cannot be used.
    ValueError
        For a number out of its range, an unknown policy or option, a dispatch policy that cannot
        run at some node, or one central queue at a node.
    KeyboardInterrupt
        Where `stop` was set before a request entered.
    """
    for holds, sentence in (
        (slots >= 1, f"the twin runs one slot or more, not {slots}"),
        (
            fetch_rate > 0,
            f"models are fetched at more than 0 bytes per second, not {fetch_rate:g}",
        ),
        (
            start_s >= 0 and math.isfinite(start_s),
            f"a model takes 0 s or more to start, not {start_s:g}",
        ),
    ):
        if not holds:
            raise ValueError(sentence)
    network, demand = deployed(deployment)
    demand = replace(demand, seed=deployment.seed if seed is None else seed)
    built: PlacementPolicy | partial[PlacementByLetters]
    if letters_lost is None and letters_s is None:
        name, built = placement_of(
            deployment, network, demand, slots=slots, policy=policy, options=options
        )
    else:
        name = policy_of(deployment, policy)
        built = partial(
            PlacementByLetters,
            network,
            name,
            seed=demand.seed,
            mail=Mail(letters_lost or 0.0, letters_s or 0.0),
            deployment=deployment,
            options=placement_options(deployment, name, options),
        )
    run = _Run(
        deployment,
        network,
        demand,
        built,
        slots=slots,
        load_s=lambda size: size / fetch_rate + start_s,
        measure=measure,
    )
    return run.result(name, stop or threading.Event(), progress)


class OfferExchange:
    """When nodes hear what others can serve: offers on their way.

    Whom a node goes by, and what it tells, its `OfferBook` decides as in the live node. Departures:
    only those that go by a node's offers are told them, what changes together is told without
    gathering, and a letter takes half a round trip. `own` says what a node runs now, as it offers
    it; `changed` is told a node and the tasks for which what it goes by has changed.
    """

    def __init__(
        self,
        terrain: Terrain,
        own: Callable[[int], list[Offer]],
        changed: Callable[[int, set[str]], None],
        after: Callable[[float, Callable[[Any], None], Any], None],
    ) -> None:
        self._own, self._changed, self._after = own, changed, after
        self._names, self._downstream = terrain.network.nodes, terrain.downstream
        upstream = {w: v for v, below in enumerate(terrain.downstream) for w in below}
        self._books = [
            OfferBook(name, self._names[upstream[v]] if v in upstream else None)
            for v, name in enumerate(self._names)
        ]
        self.letters = 0  # Told so far

    def heard(self, node: int) -> Mapping[str, list[Offer]]:
        """Return what a node goes by, by task."""
        return self._books[node].used

    def begin(self) -> None:
        """All nodes know all offers, as after some time without changes."""
        for _ in self._names:
            for node in range(len(self._names)):
                for reader, offers, _rtt_s in self._letters(node, 0.0):
                    self._take(reader, node, offers)

    def tell(self, node: int, now_s: float) -> None:
        """Tell the neighbors of a node what has changed, or everything where that is due."""
        if self._downstream[node]:
            for reader, offers, rtt_s in self._letters(node, now_s):
                self.letters += 1
                letter = (now_s + 0.5 * rtt_s, reader, node, offers)
                self._after(0.5 * rtt_s, self._hear, letter)

    def _letters(self, node: int, now_s: float) -> list[tuple[int, list[Offer], float]]:
        """Write to each neighbor below what is new to it; with the round trip there, s."""
        book, me = self._books[node], self._names[node]
        book.offer(self._own(node))
        letters = []
        for reader, rtt_s in self._downstream[node].items():
            name = self._names[reader]
            offers = book.news(name, tuple(book.heard), now_s)
            if offers is not None:
                read = [received(one, me, rtt_s, me=name) for one in offers]
                letters.append((reader, read, rtt_s))
        return letters

    def _take(self, reader: int, teller: int, offers: list[Offer]) -> tuple[set[str], bool]:
        book = self._books[reader]
        book.heard[self._names[teller]] = offers
        return book.look(tuple(book.heard))

    def _hear(self, letter: tuple[float, int, int, list[Offer]]) -> None:
        at_s, reader, teller, offers = letter
        tasks, differs = self._take(reader, teller, offers)
        if tasks:
            self._changed(reader, tasks)
        if differs:
            self._after(0.0, lambda node: self.tell(node, at_s), reader)


class BudgetError(AssertionError):
    """A node that holds more than its budget: the twin itself is wrong."""


class Mover:
    """Moves of one node, one at a time, as `Moves` say in the live node too.

    Departures: no load fails or is cut short, what comes or goes is announced at once, and nothing
    else moves until it has ended.

    Parameters
    ----------
    terrain, node
        Where.
    running
        The node's pairs that take requests; the mover changes them.
    refresh
        Called with a task when copies of it have come or go; returns the pool that was replaced.
    clock
        The engine.
    told_s
        How long after it has been said what is to run the first copies may go: by then everybody
        has heard that they are offered no more, and what was sent meanwhile has come.
    load_s
        How long a copy of so many bytes takes until it can serve, s.
    moved
        Told a pair when it begins to load.
    """

    def __init__(
        self,
        terrain: Terrain,
        node: int,
        running: set[int],
        *,
        refresh: Callable[[int], NodePool | None],
        clock: Engine,
        told_s: float,
        load_s: Callable[[float], float],
        moved: Callable[[int], None],
    ) -> None:
        network = terrain.network
        pairs = network.pairs
        self._refresh, self._clock, self._told_s = refresh, clock, told_s
        self._load_s, self._moved = load_s, moved
        self._look_s = inf  # When the mover looks again by itself; inf for never
        self._name = network.nodes[node]
        self._here = range(int(pairs.first[node]), int(pairs.first[node + 1]))
        own = [terrain.models[i] for i in terrain.at[node]]
        kind = {p: (model.task, model.variant) for model in own for p in model.pairs}
        self._moves = Moves[int, tuple[int, str]](
            size=lambda p: float(pairs.size[p]),
            kind=kind.__getitem__,
            order=int,
            budget=inf if network.repository[node] else float(network.budget[node]),
            pinned=[p for p in self._here if pairs.pinned[p] > 0],
            running=running,
        )
        self.most = 0.0  # The greatest number of bytes held at once

    def toward(self, allocation: Allocation) -> None:
        """Go on towards a (P,) allocation of the network."""
        self._want(allocation)
        self._go_on()

    def begin(self, allocation: Allocation) -> None:
        """Have it all there at once."""
        self._want(allocation)
        self._moves.running.update(self._moves.wanted)
        self._check()

    @property
    def used(self) -> float:
        """Bytes held: copies that serve, that begin to and that end to."""
        return self._moves.used_bytes

    def _want(self, allocation: Allocation) -> None:
        now_s = self._clock.now_s
        wanted = [p for p in self._here if allocation[p]]
        self._moves.want(wanted, now_s, stay_until_s=now_s + self._told_s)

    def _go_on(self) -> None:
        moves, clock = self._moves, self._clock
        # One at a time, as live: the next move waits for the end of the last.
        while not moves.loading and not moves.leaving:
            match moves.next(clock.now_s):
                case Load(pair=p):
                    moves.load(p)
                    self._check()
                    self._moved(p)
                    load_s = self._load_s(moves.size(p))
                    if load_s > 0.0:
                        clock.after(load_s, self._loaded, p)
                    else:
                        self._arrive(p)
                case Unload(pair=p):
                    moves.unload(p)
                    moves.taken_up()
                    before = self._refresh(moves.kind(p)[0])
                    if before is not None and before.in_flight:
                        before.gone = lambda p=p: self._left(p)
                    else:
                        moves.gone(p)
                case Rest(until_s=until_s):
                    if until_s < self._look_s:
                        self._look_s = until_s
                        clock.after(until_s - clock.now_s, self._look, None)
                    return

    def _arrive(self, p: int) -> None:
        self._moves.loaded(p)
        self._moves.taken_up()
        self._refresh(self._moves.kind(p)[0])

    def _look(self, _: Any) -> None:
        self._look_s = inf
        self._go_on()

    def _loaded(self, p: int) -> None:
        self._arrive(p)
        self._go_on()

    def _left(self, p: int) -> None:
        self._moves.gone(p)
        self._go_on()

    def _check(self) -> None:
        used, budget = self.used, self._moves.budget
        self.most = max(self.most, used)
        if used > budget * (1 + _ROUNDING):
            raise BudgetError(
                f"node {self._name} holds {used:.0f} bytes, over its budget of {budget:.0f}"
            )


class _Run:
    def __init__(
        self,
        deployment: Deployment,
        network: DeliveryNetwork,
        demand: Demand,
        policy: PlacementPolicy | partial[PlacementByLetters],
        *,
        slots: int,
        load_s: Callable[[float], float],
        measure: bool,
    ) -> None:
        self._network, self._slots = network, slots
        self._trace = requests_of(network, demand, slots * network.slot_s)
        self._seed = demand.seed
        self._task_number = {name: i for i, name in enumerate(network.tasks)}
        alpha = DEFAULT_ALPHA if deployment.cost is None else deployment.cost.alpha
        terrain = Terrain(deployment, network)
        self._ledger = Ledger(terrain, slots, alpha)
        rates, peaks = (
            dict(zip(terrain.entry, per_s.tolist(), strict=True))
            for per_s in (
                demand.expected(0) / demand.slot_s,
                network.requests.peak / network.slot_s,
            )
        )
        self._pools = NodePools(
            deployment,
            terrain,
            rates,
            peaks,
            lambda node: self._exchange.heard(node),
            seed=demand.seed,
            measure=measure,
        )
        self._engine = Engine(terrain, self._pools, self._ledger)
        self._exchange = OfferExchange(terrain, self._pools.own, self._heard, self._engine.after)
        paths = network.paths
        self._movers = [
            Mover(
                terrain,
                v,
                running,
                refresh=lambda task, v=v: self._changed(v, task),  # type: ignore[misc]
                clock=self._engine,
                told_s=TOLD_S + float(paths.rtt_s[paths.node == v].max(initial=0.0)),
                load_s=load_s,
                moved=lambda p: self._ledger.fetch(self._ledger.slot, [p]),
            )
            for v, running in enumerate(self._pools.running)
        ]
        self._policy: PlacementPolicy | PlacementByLetters
        if isinstance(policy, partial):
            self._policy = policy(after=self._engine.after, decided=self._move)
        else:
            self._policy = policy
        self._ended = False

    def result(
        self, name: str, stop: threading.Event, progress: Callable[[int], None] | None
    ) -> EventResult:
        """Run all slots, or until it is stopped, let everything end, and sum up."""
        network, ledger, policy = self._network, self._ledger, self._policy
        if isinstance(policy, PlacementByLetters):
            policy.begin()
        for mover in self._movers:
            mover.begin(policy.allocation)
        self._exchange.begin()
        for node in range(len(network.nodes)):
            for task in range(len(network.tasks)):
                self._refresh(node, task)
            self._engine.after(LOOK_S, self._look, node)
        done, complete, cpu_s = 0, True, 0.0
        while complete and done < self._slots:
            if stop.is_set():
                complete = False
                break
            began = time.thread_time()
            complete = self._slot(done, stop, progress)
            cpu_s += time.thread_time() - began - ledger.cpu[done]
            done += 1
        if not ledger.entered and not complete:
            raise KeyboardInterrupt
        self._ended = True
        self._engine.drain()
        self._engine.check()
        most = np.array([mover.most for mover in self._movers])
        limited = network.limited
        notes = (policy.told,) if isinstance(policy, PlacementByLetters) else ()
        return ledger.summed(
            name,
            done,
            policy.fractional,
            cpu_s=cpu_s,
            letters=self._exchange.letters,
            notes=notes,
            targets=self._pools.targets(),
            used_most=float((most[limited] / network.budget[limited]).max(initial=0.0)),
            complete=complete,
        )

    def _slot(
        self, slot: int, stop: threading.Event, progress: Callable[[int], None] | None
    ) -> bool:
        """Run one slot; False where it was stopped within it."""
        network, ledger, trace = self._network, self._ledger, self._trace
        end_s = (slot + 1) * network.slot_s
        first, last = np.searchsorted(trace.time_s, [slot * network.slot_s, end_s], side="left")
        counts = np.bincount(trace.type[first:last], minlength=len(network.requests.task))
        requests = counts.astype(np.float64)
        alone = spent(network, serve(network, requests, minimal(network).astype(np.uint8)))
        ledger.begin(slot, alone / np.where(counts > 0, counts, 1), self._pools.running)
        words = np.random.default_rng([self._seed, _WORDS, slot])
        for start in range(first, last, _BLOCK):
            if stop.is_set():
                return False
            end = min(start + _BLOCK, last)
            draws = words.integers(-(2**63), 2**63, end - start, dtype=np.int64)
            self._engine.run(
                trace.time_s[start:end].tolist(), trace.type[start:end].tolist(), draws.tolist()
            )
            ledger.requests[slot] += end - start
            if progress is not None:
                progress(end - start)
        self._engine.until(end_s)
        load = ledger.close(self._pools.running)
        observed, policy, last = Observation(requests, load), self._policy, slot + 1 >= self._slots
        measured = self._pools.measured(network.slot_s)
        if isinstance(policy, PlacementByLetters):
            ledger.cpu[slot] = policy.cut()
            if not last:
                ledger.slot = slot + 1  # what is fetched now is for it
                policy.close_slot(slot + 1, observed, measured)
            return True
        began = time.thread_time()
        if isinstance(policy, Measuring):
            policy.measure(measured)
        allocation = policy.step(observed)
        ledger.cpu[slot] = time.thread_time() - began
        if not last:
            ledger.slot = slot + 1
            self._move(allocation)
        return True

    def _move(self, allocation: Allocation) -> None:
        """Let nodes go on towards a (P,) allocation."""
        for node, mover in enumerate(self._movers):
            self._pools.aim(node, allocation)
            self._exchange.tell(node, self._engine.now_s)
            mover.toward(allocation)

    def _changed(self, node: int, task: int) -> NodePool | None:
        before = self._refresh(node, task)
        self._exchange.tell(node, self._engine.now_s)
        return before

    def _heard(self, node: int, tasks: set[str]) -> None:
        for task in map(self._task_number.__getitem__, sorted(tasks)):
            outdated, resting = self._pools.heed(node, task, self._engine.now_s)
            self._engine.move_out(resting)
            if outdated:
                self._refresh(node, task)

    def _refresh(self, node: int, task: int) -> NodePool | None:
        """Make a pool anew; the one before waits for no larger batches."""
        before = self._pools.refresh(node, task, self._engine.now_s)
        if before is not None:
            self._engine.flush(before)
        return before

    def _look(self, node: int) -> None:
        if not self._ended:
            self._pools.look(node, self._engine.now_s)
            self._exchange.tell(node, self._engine.now_s)
            self._engine.after(LOOK_S, self._look, node)
