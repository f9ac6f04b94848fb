"""One replication's engine: the arrays it runs on, and the compiled loop that moves them.

Three kinds with one face. `markov` draws the next event from total rates, where arrivals are
Poisson and service is exponential; `ordered` keeps completions in a ring per class, where every
class has one service time; `general` keeps them in a heap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numba
import numpy as np

from inferway.deployment.workloads import PhasedArrivals, PoissonArrivals
from inferway.dispatch.dispatcher import PolicyError, compile_reason
from inferway.dispatch.steps import Binding
from inferway.dispatch.table import build_policy, policy_class
from inferway.site.compiled import entry, fingerprint
from inferway.site.view import Site
from inferway.twin import futures, general, markov
from inferway.twin.chance import streams
from inferway.twin.laws import laws
from inferway.twin.reading import names_read, reads_times
from inferway.twin.scenario import Scenario
from inferway.twin.state import (
    BROKEN,
    DEEP,
    FULL,
    PRESENT,
    ROOM,
    TROUBLE,
    UNLIMITED,
    Counts,
    Outages,
    Records,
    Rules,
    Times,
    World,
    empty_records,
    empty_serving,
)
from inferway.twin.tally import Tally, empty_tally
from inferway.twin.upkeep import deeper
from inferway.twin.waiting import empty_waiting, enlarged
from inferway.workload import phases_of, stream
from inferway.workload.phases import spans

Kind = Literal["markov", "ordered", "general"]
KINDS: tuple[Kind, ...] = ("markov", "ordered", "general")
MOST_PRESENT = 1 << 24
"""Requests in the system at which a run is given up: no stable site holds so many."""
_ROWS = 1 << 16
"""Records of requests that are handed over together."""
_PLACES = 64
"""Places of the view at a server without a buffer limit, to begin with."""


class CrowdedError(RuntimeError):
    """More requests in the system than any stable site holds."""


class Engine(Protocol):
    """What a replication needs of an engine."""

    kind: Kind
    policy: Any
    tally: Tally
    cpu_s: float
    """CPU time spent in the compiled loop."""

    @property
    def site(self) -> Site:
        """The view that the policy sees."""

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived.

        Fewer than asked, before that time, where the workload has ended.
        """

    def drain(self) -> None:
        """Run without further arrivals until the site is empty."""

    def count_anew(self) -> None:
        """Forget what was counted; requests that arrive from now on count."""

    @property
    def now_s(self) -> float:
        """The time."""

    @property
    def present(self) -> int:
        """Requests in the system."""


def kind_of(scenario: Scenario, *, records: bool = False) -> Kind:
    """The fastest kind that can run a scenario."""
    policy, _ = policy_class(scenario.policy, scenario.folder)
    plain = (
        not hasattr(policy, "pull")
        and scenario.deadline_s is None
        and scenario.queue == "per-server"
        and not scenario.failures
        and not scenario.outages
    )
    distributions = {time.distribution for time in scenario.service}
    if (
        plain
        and not records
        and distributions == {"exponential"}
        and isinstance(scenario.arrivals, PoissonArrivals | PhasedArrivals)
        and "HOLD" not in names_read(policy)
        and not reads_times(policy)
    ):
        return "markov"
    batched = hasattr(policy, "pull") and any(scenario.batches)
    if (
        distributions == {"deterministic"}
        and not batched
        and not scenario.failures
        and not scenario.outages
    ):
        return "ordered"
    return "general"


def engine_of(
    scenario: Scenario,
    *,
    seed: int,
    replication: int = 0,
    kind: Kind | None = None,
    records: bool = False,
    sink: Callable[[Records], None] | None = None,
) -> Engine:
    """An engine at time 0. Nothing counts before `Engine.count_anew`.

    Parameters
    ----------
    kind
        Another than the one that `kind_of` would choose.
    records
        Whether requests are recorded; implied by `sink`.
    sink
        Given the records of requests that have left, when there are enough of them.

    Raises
    ------
    ValueError
        Where the policy does not compile or lacks what it needs.
    """
    records = records or sink is not None
    chosen = kind or kind_of(scenario, records=records)
    if chosen == "markov":
        return MarkovEngine(scenario, seed, replication)
    return GeneralEngine(scenario, seed, replication, chosen, records, sink)


class _Engine:
    """What all kinds share: policy, site, tally and the compiled entry."""

    kind: Kind

    def __init__(self, scenario: Scenario, seed: int, replication: int) -> None:
        self.scenario = scenario
        self.policy: Any = build_policy(
            scenario.policy,
            scenario.fleet,
            target=scenario.target,
            rate_per_s=scenario.told_rate_per_s,
            folder=scenario.folder,
            **scenario.build_options(),
        )
        found, self._sources = policy_class(scenario.policy, scenario.folder)
        self._times = reads_times(found) or scenario.deadline_s is not None
        capacity_per_s = scenario.capacity_per_s
        self.phases = phases_of(scenario.arrivals, capacity_per_s)
        own = scenario.target or 0.0
        self.targets = np.array(
            [own if one.accuracy_target is None else one.accuracy_target for one in self.phases]
        )
        self.states = streams(seed, replication, 4)
        # Arrivals have a generator of their own: the same for every policy and every engine.
        self._arrivals_seed = int(self.states[3])
        self.tally = empty_tally(len(self.phases), len(scenario.fleet.rate))
        self.cpu_s = 0.0
        self.places = scenario.fleet.buffer or UNLIMITED

    def _call(self, function: Any, *arguments: Any) -> Any:
        start_s = time.thread_time()
        try:
            return function(*arguments)
        except numba.core.errors.NumbaError as error:
            raise ValueError(
                f"policy {self.scenario.policy} does not compile: {compile_reason(error)}"
            ) from error
        finally:
            self.cpu_s += time.thread_time() - start_s

    def _boundary_s(self) -> float:
        """The time after which requests count: the last arrival's, who was before."""
        return self.now_s if self.now_s > 0.0 else -np.inf

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        raise NotImplementedError

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self.site.clock_s[0])

    def _check_room(self, entries: int) -> None:
        if entries >= MOST_PRESENT:
            raise CrowdedError(f"more than {entries:,} requests are in the system")


class MarkovEngine(_Engine):
    """See `inferway.twin.markov`."""

    kind: Kind = "markov"

    def __init__(self, scenario: Scenario, seed: int, replication: int) -> None:
        super().__init__(scenario, seed, replication)
        fleet = scenario.fleet
        self._site = scenario.site(self.targets[0], 1)
        self.serving = empty_serving(fleet.servers)
        self.waiting = empty_waiting(fleet.servers, 1024)
        self._spans = self._segments()
        self._span = next(self._spans)
        self._counted_s = np.inf
        self._run = _compiled("markov", self._sources, fingerprint(self._sources))

    def _segments(self) -> Any:
        arrivals = self.scenario.arrivals
        if isinstance(arrivals, PhasedArrivals):
            return spans(arrivals, horizon_s=np.inf, capacity_per_s=self.scenario.capacity_per_s)
        return iter(self.phases)

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        return self._site

    @property
    def present(self) -> int:
        """Requests in the system."""
        return int(self.site.queue.sum())

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run on; see `Engine.advance`."""
        left = arrivals
        while left > 0 and self.now_s < until_s:
            span = self._span
            self.site.target[0] = self.targets[span.phase]
            assert span.rate_per_s is not None
            left = self._step(span.rate_per_s, span.phase, min(until_s, span.end_s), left)
            if self.now_s >= span.end_s:
                self._span = next(self._spans)
        return arrivals - left

    def drain(self) -> None:
        """Run until the site is empty."""
        self._step(0.0, 0, np.inf, 1)

    def count_anew(self) -> None:
        """Forget what was counted."""
        self.tally = empty_tally(len(self.phases), len(self.scenario.fleet.rate))
        self._counted_s = self._boundary_s()

    def _step(self, rate_per_s: float, phase: int, until_s: float, arrivals: int) -> int:
        while True:
            began_s = self.now_s
            lengths = _lengths(self.site)
            ended, arrivals = self._call(
                self._run,
                self.policy,
                self.site,
                self.serving,
                self.waiting,
                self.tally,
                self.states,
                rate_per_s,
                phase,
                until_s,
                arrivals,
                self.places,
                self._counted_s,
            )
            _charge(self.tally, self.site, lengths, self.now_s - began_s)
            if ended != ROOM:
                return int(arrivals)
            self._check_room(len(self.waiting.next))
            self.waiting = enlarged(self.waiting)


class GeneralEngine(_Engine):
    """See `inferway.twin.general`."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        replication: int,
        kind: Kind,
        records: bool,
        sink: Callable[[Records], None] | None,
    ) -> None:
        super().__init__(scenario, seed, replication)
        self.kind = kind
        self._sink = sink
        fleet, rules = scenario.fleet, self._rules(records)
        if kind == "ordered" and kind_of(scenario, records=True) != "ordered":
            raise ValueError("the engine `ordered` needs one service time per class")
        servers = fleet.servers
        limited = rules.places < UNLIMITED
        places = (rules.places if limited else _PLACES) if self._times else 1
        site = scenario.site(self.targets[0], places)
        outages, changes = _outages(scenario)
        binding = Binding(
            self.policy,
            site,
            np.zeros(servers, np.bool_),
            np.full(2, np.nan),
            False,
            rules.drops and scenario.deadline_s is not None,
        )
        self.world = World(
            bound=binding,
            upkeep=Times(0) if self._times else Counts(0),
            future=futures.rings(fleet)
            if kind == "ordered"
            else futures.heap(4 * servers + len(changes) + 64),
            laws=laws(scenario.service, scenario.batches or (None,) * len(fleet.rate)),
            serving=empty_serving(servers),
            waiting=empty_waiting(servers, 1024),
            tally=self.tally,
            records=empty_records(_ROWS if records else 0),
            outages=outages,
            rules=rules,
            targets=self.targets,
            states=self.states,
            counts=np.zeros(2, np.int64),
            since_s=np.array([np.inf, 0.0]),
        )
        _schedule(self.world, changes)
        self._stream = stream(
            scenario.arrivals,
            capacity_per_s=scenario.capacity_per_s,
            seed=self._arrivals_seed,
        )
        self._times_s, self._phases = np.zeros(0), np.zeros(0, np.int64)
        self._at = 0
        self._run = _compiled("general", self._sources, fingerprint(self._sources))

    def _rules(self, records: bool) -> Rules:
        scenario = self.scenario
        central = scenario.queue == "central"
        buffer, servers = scenario.fleet.buffer, scenario.fleet.servers
        return Rules(
            places=1 if central else self.places,
            central=(buffer - 1) * servers if central and buffer else UNLIMITED,
            holds=central,
            pulls=hasattr(self.policy, "pull"),
            deadline_s=np.inf if scenario.deadline_s is None else scenario.deadline_s,
            drops=scenario.late == "drop",
            records=records,
        )

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        return cast("Site", self.world.bound.site)

    @property
    def present(self) -> int:
        """Requests in the system."""
        return int(self.world.counts[PRESENT])

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run on; see `Engine.advance`."""
        left = arrivals
        while left > 0 and self.now_s < until_s:
            if self._at == len(self._times_s) and not self._fetch():
                break
            stop = min(self._at + left, len(self._times_s))
            at = self._step(self._times_s[:stop], self._phases[:stop], self._at, until_s)
            left -= at - self._at
            self._at = at
        return arrivals - left

    def _fetch(self) -> bool:
        chunk = next(self._stream, None)
        if chunk is None:
            return False
        self._times_s, self._phases, self._at = chunk.times_s, chunk.phase, 0
        return True

    def drain(self) -> None:
        """Run until the site is empty."""
        self._step(np.zeros(0), np.zeros(0, np.int64), 0, np.inf)

    def count_anew(self) -> None:
        """Forget what was counted."""
        self.tally = empty_tally(len(self.phases), len(self.scenario.fleet.rate))
        self.world = self.world._replace(tally=self.tally)
        self.world.since_s[0] = self._boundary_s()

    def hand_over(self) -> None:
        """Give the records so far to the sink."""
        if self._sink is not None and self.world.records.size[0]:
            self._sink(self.world.records)
        self.world.records.size[0] = 0

    def _step(self, times_s: Any, phases: Any, at: int, until_s: float) -> int:
        while True:
            began_s = self.now_s
            lengths = _lengths(self.site)
            ended, at = self._call(self._run, self.world, times_s, phases, at, until_s)
            _charge(self.tally, self.site, lengths, self.now_s - began_s)
            if ended == ROOM:
                self._check_room(len(self.world.waiting.next))
                self.world = self.world._replace(
                    waiting=enlarged(self.world.waiting), future=futures.larger(self.world.future)
                )
                if self.world.rules.records:
                    self._enlarge_records()
            elif ended == FULL:
                self.hand_over()
                self._enlarge_records()
            elif ended == DEEP:
                bound = self.world.bound
                self.world = self.world._replace(bound=bound._replace(site=deeper(bound.site)))
            elif ended == BROKEN:
                raise PolicyError(
                    f"policy {self.scenario.policy} returned a number that is neither a server of "
                    f"0..{self.scenario.fleet.servers - 1} nor REJECT nor HOLD"
                )
            else:
                return int(at)
            self.world.counts[TROUBLE] = 0

    def _enlarge_records(self) -> None:
        least = 2 * len(self.world.waiting.next)
        if len(self.world.records.arrived_s) < least:
            self.hand_over()
            self.world = self.world._replace(records=empty_records(least))


def _lengths(site: Site) -> Any:
    return site.queue.copy()


def _charge(tally: Tally, site: Site, before: Any, elapsed_s: float) -> None:
    """Count the time that queues had the lengths with which a call ended: they changed since.

    The kernels add, at each change, the time since the call began to the old length and take it
    from the new one; what is left is the whole call for the lengths at its end.
    """
    longest = tally.lengths.shape[1] - 1
    np.add.at(tally.lengths, (site.server_class, np.minimum(site.queue, longest)), elapsed_s)


def _outages(scenario: Scenario) -> tuple[Outages, list[tuple[float, int]]]:
    """Failures by server, and the set changes as (time, index)."""
    fleet = scenario.fleet
    every_s, for_s = np.full(fleet.servers, np.inf), np.full(fleet.servers, np.inf)
    for variant, failure in scenario.failures.items():
        k = fleet.variants.index(variant)
        every_s[fleet.first[k] : fleet.first[k + 1]] = failure.every_s
        for_s[fleet.first[k] : fleet.first[k + 1]] = failure.for_s
    server, change, times = [], [], []
    for outage in scenario.outages:
        first = int(fleet.first[fleet.variants.index(outage.variant)])
        for one in range(first, first + outage.count):
            for sign, at_s in ((1, outage.at_s), (-1, outage.at_s + outage.for_s)):
                server.append(one)
                change.append(sign)
                times.append(at_s)
    outages = Outages(every_s, for_s, np.array(server, np.int64), np.array(change, np.int64))
    return outages, [(at_s, index) for index, at_s in enumerate(times)]


def _schedule(world: World, changes: list[tuple[float, int]]) -> None:
    servers = len(world.outages.every_s)
    random = np.random.default_rng(int(world.states[2]))
    for server in np.flatnonzero(np.isfinite(world.outages.every_s)):
        at_s = float(random.exponential(world.outages.every_s[server]))
        futures.put_in_heap(world.future, 0, servers + int(server), at_s)
    for at_s, index in changes:
        futures.put_in_heap(world.future, 0, 2 * servers + index, at_s)


@lru_cache(maxsize=64)
def _compiled(name: str, sources: tuple[Path, ...], _fingerprint: str) -> Any:
    function: Callable[..., Any] = markov.run if name == "markov" else general.run
    return entry(function, sources=sources)
