"""The engine for everything else, around `inferway.twin.kernel.general`: rings or a heap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from inferway.dispatch.steps import Binding
from inferway.scheduling import UNKNOWN, Signal, steer
from inferway.twin.engine.engine import Kind, SiteEngine
from inferway.twin.kernel import event_list, general
from inferway.twin.kernel.service_times import laws
from inferway.twin.kernel.state import (
    DEEP,
    FULL,
    PRESENT,
    REFUSED,
    REROUTED,
    ROOM,
    TROUBLE,
    UNCOUNTED,
    UNLIMITED,
    Lengths,
    Outages,
    Records,
    Rules,
    Times,
    World,
    deeper,
    empty_records,
    empty_serving,
    empty_waiting,
)
from inferway.twin.scenario import Scenario
from inferway.workload import PhaseCourse, stream

_ROWS = 1 << 16  # Records of requests that are handed over together
_PLACES = 64  # Places of the view at a server without a buffer limit, to begin with


class GeneralEngine(SiteEngine):
    """See `inferway.twin.kernel.general`."""

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
        batches = scenario.batches or (None,) * len(fleet.rate)
        for variant, batch in zip(fleet.variants, batches, strict=True):
            if not rules.pulls and batch is not None and batch.min > rules.places:
                raise ValueError(
                    f"{variant} waits for {batch.min} requests to form a batch, and a server holds "
                    f"{rules.places} at most; lower its `min` or give servers more places"
                )
        servers = fleet.servers
        limited = rules.places < UNLIMITED
        places = (rules.places if limited else _PLACES) if self.reads_times else 1
        site = scenario.site(self.targets[0], places)
        outages, changes = outages_of(scenario)
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
            upkeep=Times(0) if self.reads_times else Lengths(0),
            future=event_list.rings(fleet)
            if kind == "ordered"
            else event_list.heap(4 * servers + len(changes) + 64),
            laws=laws(scenario.service, batches, ruled=not rules.pulls),
            serving=empty_serving(servers),
            waiting=empty_waiting(servers, 1024),
            tally=self.tally,
            records=empty_records(_ROWS if records else 0),
            outages=outages,
            rules=rules,
            targets=self.targets,
            states=self.states,
            counts=np.zeros(4, np.int64),
            since_s=np.array([np.inf, 0.0]),
        )
        schedule(self.world, changes)
        self._stream = stream(
            scenario.arrivals,
            capacity_per_s=scenario.capacity_per_s,
            seed=self.arrivals_seed,
        )
        self._times_s, self._phases = np.zeros(0), np.zeros(0, np.int64)
        self._at = 0
        self._course = PhaseCourse(scenario.arrivals)

    def _rules(self, records: bool) -> Rules:
        scenario = self.scenario
        central = scenario.queue == "central"
        buffer, servers = scenario.fleet.buffer, scenario.fleet.servers
        pulls = hasattr(self.policy, "pull")
        drops = scenario.late == "drop"
        return Rules(
            places=1 if central else self.places,
            central=(buffer - 1) * servers if central and buffer else UNLIMITED,
            holds=central,
            pulls=pulls,
            expires=drops and scenario.deadline_s is not None and not pulls,
            deadline_s=np.inf if scenario.deadline_s is None else scenario.deadline_s,
            drops=drops,
            records=records,
            grows=self.reads_times and not central and self.places == UNLIMITED,
            tells=self.controller is not None and self.controller.on_rejection,
        )

    def reroute(self) -> None:
        """Let the controller look at the site as it is now, and route as it says."""
        if self.controller is None:
            return
        signal = UNKNOWN
        if self.controller.sees_phase:
            if self._at == len(self._times_s):
                self._fetch()  # or it is not known yet in which phase the workload is
            signal = Signal(*self._course.at(self.now_s))
        seen = self.controller.observe(self.site, signal)
        steer(self.policy, self.controller.act(seen))
        self.world.counts[REROUTED] = 1

    @property
    def present(self) -> int:
        """Requests in the system."""
        return int(self.world.counts[PRESENT])

    @property
    def uncounted(self) -> int:
        """Those of them that do not count."""
        return int(self.world.counts[UNCOUNTED])

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived.

        Fewer than asked, before that time, where the workload has ended.
        """
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
        if self.controller is not None and self.controller.sees_phase:
            self._course.follow(chunk)
        return True

    def drain(self) -> None:
        """Run until the site is empty."""
        self._step(np.zeros(0), np.zeros(0, np.int64), 0, np.inf)

    def count_anew(self) -> None:
        """Forget what was counted."""
        super().count_anew()
        self.world.since_s[0] = self.now_s
        self.world.counts[UNCOUNTED] = self.present

    def hand_over(self) -> None:
        """Give the records so far to the sink."""
        if self._sink is not None and self.world.records.size[0]:
            self._sink(self.world.records)
        self.world.records.size[0] = 0

    def _step(self, times_s: Any, phases: Any, at: int, until_s: float) -> int:
        again = True
        while again:
            began_s = self.now_s
            ended, at = self.call(general.run, self.world, times_s, phases, at, until_s)
            again = self.go_on(ended, began_s)
            if ended == ROOM:
                future = event_list.larger(self.world.future)
                self.world = self.world._replace(future=future)
                if self.world.rules.records:
                    self._enlarge_records()
            elif ended == FULL:
                self.hand_over()
                self._enlarge_records()
            elif ended == DEEP:
                bound = self.world.bound
                self.world = self.world._replace(bound=bound._replace(site=deeper(bound.site)))
            elif ended == REFUSED:
                self.reroute()
            self.world.counts[TROUBLE] = 0
        return int(at)

    def _enlarge_records(self) -> None:
        least = 2 * len(self.world.waiting.next)
        if len(self.world.records.arrived_s) < least:
            self.hand_over()
            self.world = self.world._replace(records=empty_records(least))


def outages_of(scenario: Scenario) -> tuple[Outages, list[float]]:
    """Failures by server, and the times of the set changes."""
    fleet = scenario.fleet
    first = dict(zip(fleet.variants, fleet.first.tolist(), strict=False))
    every_s, for_s = np.full((2, fleet.servers), np.inf)
    for variant, failure in scenario.failures.items():
        own = slice(first[variant], first[variant] + fleet.count[fleet.variants.index(variant)])
        every_s[own], for_s[own] = failure.every_s, failure.for_s
    changes = [
        (first[outage.variant] + one, sign, at_s)
        for outage in scenario.outages
        for one in range(outage.count)
        for sign, at_s in ((1, outage.at_s), (-1, outage.at_s + outage.for_s))
    ]
    servers, signs, times_s = zip(*changes, strict=True) if changes else ((), (), ())
    outages = Outages(every_s, for_s, np.array(servers, np.int64), np.array(signs, np.int64))
    return outages, list(times_s)


def schedule(world: World, changes_s: list[float]) -> None:
    """Put the first random failure of each server, and the set changes, into the future."""
    every_s, servers = world.outages.every_s, len(world.outages.every_s)
    random = np.random.default_rng(int(world.states[2]))
    for server in np.flatnonzero(np.isfinite(every_s)).tolist():
        at_s = float(random.exponential(every_s[server]))
        event_list.put_in_heap(world.future, 0, servers + server, at_s)
    for index, at_s in enumerate(changes_s):
        event_list.put_in_heap(world.future, 0, 2 * servers + index, at_s)
