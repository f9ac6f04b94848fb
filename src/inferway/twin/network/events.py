"""Rehearse a network event by event: dispatch at every node, forwarding, offers, moving models.

All three time scales together, as live: each node decides request by request, tells its neighbors
what it can serve, and loads and unloads what placement says at the end of each slot.

Departures from the live node: work other than serving takes no time (reading, forwarding, control
messages but for their way); nodes and links do not fail; placement sees all of the network's counts
at the end of a slot, as if letters were there at once; what was fetched once is fetched again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.network.arrivals import requests_of
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.layout import DEFAULT_ALPHA, deployed
from inferway.network.offers import LOOK_S
from inferway.placement.contract import Float, Observation, PlacementPolicy
from inferway.placement.objective import minimal
from inferway.placement.serving import serve, spent
from inferway.twin.network.engine import Engine
from inferway.twin.network.exchange import OfferExchange
from inferway.twin.network.ledger import Ledger
from inferway.twin.network.mover import Mover, present
from inferway.twin.network.pools import NodePool, NodePools
from inferway.twin.network.result import EventResult
from inferway.twin.network.terrain import Terrain
from inferway.twin.slots import placement_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

FETCH_RATE: Final = 125e6
"""Bytes per second at which a model is fetched: a link of 1 Gbit/s, all for itself."""
START_S: Final = 0.5
"""Opening a model and warming it up, s."""
TOLD_S: Final = 0.1
"""How long news of an offer may take beside the way itself, as live."""
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
    if slots < 1:
        raise ValueError(f"the twin runs one slot or more, not {slots}")
    if not fetch_rate > 0:
        raise ValueError(f"models are fetched at more than 0 bytes per second, not {fetch_rate:g}")
    if not (start_s >= 0 and math.isfinite(start_s)):
        raise ValueError(f"a model takes 0 s or more to start, not {start_s:g}")
    network, demand = deployed(deployment)
    chosen = deployment.seed if seed is None else seed
    demand = replace(demand, seed=chosen)
    name, built = placement_of(
        deployment, network, demand, slots=slots, seed=chosen, policy=policy, options=options
    )
    run = _Run(
        deployment,
        network,
        demand,
        built,
        slots=slots,
        seed=chosen,
        load_s=lambda size: size / fetch_rate + start_s,
        measure=measure,
    )
    return run.result(name, stop or threading.Event(), progress)


class _Run:
    """One run, put together."""

    def __init__(
        self,
        deployment: Deployment,
        network: DeliveryNetwork,
        demand: Demand,
        policy: PlacementPolicy,
        *,
        slots: int,
        seed: int,
        load_s: Callable[[float], float],
        measure: bool,
    ) -> None:
        self._network, self._policy, self._slots = network, policy, slots
        self._trace = requests_of(network, demand, slots * network.slot_s)
        self._seed = seed
        alpha = DEFAULT_ALPHA if deployment.cost is None else deployment.cost.alpha
        terrain = self._terrain = Terrain(deployment, network)
        self._ledger = Ledger(terrain, slots, alpha)
        self._engine = Engine(terrain, self._ledger)
        self._task_number = {name: i for i, name in enumerate(network.tasks)}
        paths, requests = network.paths, network.requests
        expected = demand.expected(0) / demand.slot_s
        rates = {
            (int(paths.node[paths.first[path]]), int(task)): float(rate)
            for path, task, rate in zip(requests.path, requests.task, expected, strict=True)
        }
        peaks = {
            (int(paths.node[paths.first[path]]), int(task)): float(peak) / network.slot_s
            for path, task, peak in zip(requests.path, requests.task, requests.peak, strict=True)
        }
        self._pools = NodePools(
            deployment,
            terrain,
            rates,
            peaks,
            lambda node: self._exchange.heard(node),
            seed=seed,
            measure=measure,
        )
        self._exchange = OfferExchange(terrain, self._pools.own, self._heard, self._engine.after)
        self._engine.attach(self._pools)
        self._movers = [
            Mover(
                terrain,
                v,
                self._pools.running[v],
                refresh=lambda task, v=v: self._changed(v, task),  # type: ignore[misc]
                clock=self._engine,
                told_s=TOLD_S + float(paths.rtt_s[paths.node == v].max(initial=0.0)),
                load_s=load_s,
                moved=self._ledger.fetched,
            )
            for v in range(len(terrain.nodes))
        ]
        self._ended = False

    def result(
        self, name: str, stop: threading.Event, progress: Callable[[int], None] | None
    ) -> EventResult:
        """Run all slots, or until it is stopped, let everything end, and sum up."""
        for mover in self._movers:
            mover.begin(self._policy.allocation)
        self._exchange.begin()
        for node in range(len(self._terrain.nodes)):
            for task in range(len(self._network.tasks)):
                self._refresh(node, task)
            self._engine.after(LOOK_S, self._look, node)
        least = minimal(self._network).astype(np.uint8)
        done, complete = 0, True
        cpu_s = 0.0
        for slot in range(self._slots):
            if stop.is_set():
                complete = False
                break
            began = time.thread_time()
            complete = self._slot(slot, least, stop, progress)
            cpu_s += time.thread_time() - began - self._ledger.cpu[slot]
            done = slot + 1
            if not complete:
                break
        if not self._ledger.entered and not complete:
            raise KeyboardInterrupt
        self._ended = True
        self._engine.drain()
        self._engine.check()
        budgets = np.array([ground.budget for ground in self._terrain.nodes])
        most = np.array([mover.most for mover in self._movers])
        limited = np.isfinite(budgets) & (budgets > 0) & ~self._network.repository
        return self._ledger.result(
            name,
            done,
            self._policy.fractional,
            cpu_s=cpu_s,
            letters=self._exchange.letters,
            used_most=float((most[limited] / budgets[limited]).max()) if limited.any() else 0.0,
            complete=complete,
        )

    def _slot(
        self,
        slot: int,
        least: Any,
        stop: threading.Event,
        progress: Callable[[int], None] | None,
    ) -> bool:
        """Run one slot; False where it was stopped within it."""
        network, ledger, trace = self._network, self._ledger, self._trace
        end_s = (slot + 1) * network.slot_s
        first, last = np.searchsorted(trace.time_s, [slot * network.slot_s, end_s], side="left")
        counts = np.bincount(trace.type[first:last], minlength=len(network.requests.task))
        alone = spent(network, serve(network, counts.astype(np.float64), least))
        alone_ms = alone / np.where(counts > 0, counts, 1)
        ledger.begin(slot, alone_ms, self._present())
        words = np.random.default_rng([self._seed, _WORDS, slot])
        for start in range(first, last, _BLOCK):
            if stop.is_set():
                return False
            end = min(start + _BLOCK, last)
            draws = words.integers(-(2**63), 2**63, end - start, dtype=np.int64)
            block = slice(start, end)
            self._engine.run(
                trace.time_s[block].tolist(), trace.type[block].tolist(), draws.tolist()
            )
            ledger.requests[slot] += end - start
            if progress is not None:
                progress(end - start)
        self._engine.until(end_s)
        load = ledger.close(self._pools.running)
        began = time.thread_time()
        allocation = self._policy.step(Observation(counts.astype(np.float64), load))
        ledger.cpu[slot] = time.thread_time() - began
        if slot + 1 < self._slots:
            ledger.slot = slot + 1  # what is fetched now is for it
            for node, mover in enumerate(self._movers):
                self._pools.aim(node, allocation)
                self._exchange.tell(node, self._engine.now_s)
                mover.toward(allocation)
        return True

    def _present(self) -> Float:
        return present(len(self._network.pairs.node), self._pools.running)

    def _changed(self, node: int, task: int) -> NodePool | None:
        """Copies of a task have come to a node, or go."""
        before = self._refresh(node, task)
        self._exchange.tell(node, self._engine.now_s)
        return before

    def _heard(self, node: int, tasks: set[str]) -> None:
        """A node goes by other offers for some tasks."""
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
        """A node sees what it can spare, tells that, and looks again in a while."""
        if self._ended:
            return
        self._pools.look(node, self._engine.now_s)
        self._exchange.tell(node, self._engine.now_s)
        self._engine.after(LOOK_S, self._look, node)
