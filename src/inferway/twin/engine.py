"""Engines: one replication's arrays, and the compiled loop that moves them.

Three kinds with one face. `markov` draws the next event from total rates, where arrivals are
Poisson and service is exponential; `ordered` keeps completions in a ring per class, where every
class has one service time; `general` keeps them in a heap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numba.core.types import float64, int64

from inferway.deployment.workloads import PhasedArrivals, PoissonArrivals
from inferway.dispatch.contract import build_policy, policy_class
from inferway.dispatch.dispatcher import faults_of, no_server
from inferway.dispatch.steps import Binding
from inferway.scheduling import UNKNOWN, Routing, Signal, steer
from inferway.site.compiled import BRANCHES, call_of, entry
from inferway.site.draw import streams
from inferway.site.handle import Pinned, pin
from inferway.site.view import (
    ALL_CLASSES,
    Changes,
    Floats,
    Ints,
    JoinedDevices,
    SharedDevices,
    Site,
)
from inferway.twin.kernel import escalation, event_list, general, markov, state
from inferway.twin.kernel.service_times import laws
from inferway.twin.kernel.state import BROKEN, DEEP, DONE, FULL, REFUSED, ROOM, Records, empty_tally
from inferway.twin.scenario import Scenario
from inferway.workload import PhaseCourse, phases_of, stream
from inferway.workload.arrivals import spans

Kind = Literal["markov", "ordered", "general"]
KINDS: tuple[Kind, ...] = ("markov", "ordered", "general")
# Requests in the system at which a run is given up: no stable site holds so many.
MOST_PRESENT = 1 << 24
# Fields of the view and of events that only a full upkeep fills.
TIMES = frozenset(
    {
        "started_s",
        "ends_s",
        "free_s",
        "runs_end_s",
        "crowd",
        "arrived_s",
        "expected_s",
        "head",
        "wait_s",
        "service_s",
    }
)
# Of these, those of the buffers.
BUFFERS = frozenset({"arrived_s", "expected_s", "head"})
# What is predicted of a request by who sends it; and of devices, by time.
FORESEEN = frozenset({"wait_s", "service_s"})
AHEAD = frozenset({"free_s", "runs_end_s", "crowd"})
# Fields that say who has room at a device.
SHOWN = frozenset({"idle", "idle_classes", "used", "shown", "holds"})
METHODS = ("choose", "learn", "pull", "settle")
_VIEW = "inferway.site."
_ROWS = 1 << 16  # Records of requests that are handed over together
_ENTRIES = 1024  # Requests that there is room for, to begin with
_PLACES = 64  # Places of the view at a server without a buffer limit, to begin with


class CrowdedError(RuntimeError):
    """More requests in the system than any stable site holds."""


def names_read(
    policy: type,
    *,
    devices: bool = False,
    methods: Collection[str] = METHODS,
    but: str | None = None,
) -> frozenset[str]:
    """Every global and attribute that the policy's functions may use.

    At a site with devices or without; of these methods, and without functions of the modules whose
    names begin with `but`.
    """
    names: set[str] = set()
    seen: set[FunctionType] = set()
    left = [getattr(policy, method, None) for method in methods]
    while left:
        function = left.pop()
        if isinstance(function, FunctionType) and function in BRANCHES:
            kind, with_it, without = BRANCHES[function]
            left.append(with_it if devices or kind is not SharedDevices else without)
            continue
        plain = getattr(function, "py_func", function)
        if not isinstance(plain, FunctionType) or plain in seen:
            continue
        if but is not None and plain.__module__.startswith(but):
            continue
        seen.add(plain)
        codes = [plain.__code__]
        for code in codes:  # it grows by those within
            codes += [one for one in code.co_consts if isinstance(one, CodeType)]
            names.update(code.co_names)
            for value in map(plain.__globals__.get, code.co_names):
                module = isinstance(value, ModuleType)
                left += [getattr(value, one, None) for one in code.co_names] if module else [value]
        left += [cell.cell_contents for cell in plain.__closure__ or ()]
    return frozenset(names)


def reads_times(policy: type, *, devices: bool = False) -> bool:
    """Tell whether the policy needs more of the view than lengths and who is idle."""
    return not TIMES.isdisjoint(names_read(policy, devices=devices))


def asks_for_waits(policy: type) -> bool:
    """Tell whether it looks ahead at devices by `predicted_wait` alone, and only to decide."""
    own = names_read(policy, devices=True, methods=("choose", "settle"), but=_VIEW)
    told = names_read(policy, devices=True, methods=("learn", "pull"))
    return AHEAD.isdisjoint(own | told)


def watches_room(policy: type) -> bool:
    """Tell whether it may look at who has room at a device when a run has ended there."""
    if hasattr(policy, "pull") or hasattr(policy, "settle"):
        return True
    return not SHOWN.isdisjoint(names_read(policy, devices=True, methods=("learn",)))


def kinds_of(scenario: Scenario, *, records: bool = False) -> tuple[Kind, ...]:
    """The kinds that can run a scenario, and record requests if asked to, the fastest first."""
    policy = policy_class(scenario.policy, scenario.folder)
    # A batch takes its own time, and the number that waits is no longer all there is to know.
    plain = not (
        scenario.failures
        or scenario.outages
        or any(scenario.batches)
        or scenario.movable
        or scenario.fleet.devices is not None
        or scenario.walk is not None
    )
    distributions = {time.distribution for time in scenario.service}
    if plain and distributions == {"deterministic"}:
        return ("ordered", "general")
    if (
        plain
        and distributions == {"exponential"}
        and not hasattr(policy, "pull")
        and not hasattr(policy, "settle")
        and not records
        and scenario.deadline_s is None
        and scenario.queue == "per-server"
        and scenario.scheduling is None
        and (scenario.drift is None or not scenario.measured)  # nobody explores there
        and not scenario.measured_s  # it serves at the rates that the site shows
        and isinstance(scenario.arrivals, PoissonArrivals | PhasedArrivals)
        and "HOLD" not in names_read(policy)
        and not reads_times(policy)
    ):
        return ("markov", "general")
    return ("general",)


def engine_of(
    scenario: Scenario,
    *,
    seed: int,
    replication: int = 0,
    kind: Kind | None = None,
    records: bool = False,
    sink: Callable[[Records], None] | None = None,
    shared: Floats | None = None,
) -> GeneralEngine | MarkovEngine:
    """An engine at time 0. Nothing counts before `count_anew`.

    `shared` is the array that policies of several tasks share, for targets over these.

    Another kind than the first of `kinds_of` may be asked for. Requests are recorded where somebody
    wants it or there is a sink, which is given the records of requests that have left, when there
    are enough of them. ValueError where the policy lacks what it needs, or the kind cannot run the
    scenario.
    """
    records = records or sink is not None
    able = kinds_of(scenario, records=records)
    chosen = kind or able[0]
    if chosen not in able:
        raise ValueError(f"the engine {chosen} cannot run this; {' and '.join(able)} can")
    if chosen == "markov":
        return MarkovEngine(scenario, seed, replication, shared)
    return GeneralEngine(scenario, seed, replication, chosen, records, sink, shared)


class SiteEngine:
    """What all engines have: a policy, counters, random streams and the call of their loop.

    Its `world` is what the compiled loop reads and writes.
    """

    # The entry, and the types of what it takes besides the world.
    loop: ClassVar[tuple[Any, tuple[Any, ...]]]
    kind: Kind
    world: Any
    cpu_s = 0.0  # CPU time spent in the compiled loop

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        replication: int,
        shared: Floats | None = None,
        times: bool = False,
    ) -> None:
        self.scenario = scenario
        policy: Any = build_policy(
            scenario.policy,
            scenario.fleet,
            target=scenario.target,
            rate_per_s=scenario.told_rate_per_s,
            folder=scenario.folder,
            **scenario.build_options(),
        )
        self.policy = policy if shared is None else policy._replace(shared=shared)
        # Sets the routing; None where the policy decides alone.
        self.controller: Any = scenario.controller()
        scheduled = self.controller is not None and math.isfinite(self.controller.slot_s)
        reads = reads_times(type(self.policy), devices=scenario.fleet.devices is not None)
        self.predicts = reads or scenario.deadline_s is not None or scheduled
        # Whether the view has times: for the policy, or for those of tasks that share the devices.
        self.reads_times = self.predicts or times
        devices = scenario.fleet.devices
        self.reads_buffers = self.reads_times and (
            scheduled
            or scenario.walk is not None  # predictions change
            or (devices is not None and bool(devices.exclusive.any()))
            or hasattr(self.policy, "pull")
            or any(scenario.batches)
            or not BUFFERS.isdisjoint(names_read(type(self.policy), devices=True))
        )
        self.phases = phases_of(scenario.arrivals, scenario.capacity_per_s)
        own = scenario.target or 0.0
        self.targets = np.array(
            [own if one.accuracy_target is None else one.accuracy_target for one in self.phases]
        )
        self.states = streams(seed, replication, 5)
        self.tally = self._empty_tally()
        self.places = scenario.fleet.buffer or state.UNLIMITED
        self._called: Any = None  # The world of the last call, as it was laid out for that
        self._pinned = Pinned(None, None)
        self._compiled: Any = None

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        return cast("Site", self.world.site)

    @property
    def again(self) -> escalation.SecondAnswers | None:
        """Counts of second answers; None where the policy asks for none."""
        found = getattr(self.world, "again", None)
        return found if isinstance(found, escalation.SecondAnswers) else None

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self.site.clock_s[0])

    def count_anew(self) -> None:
        """Forget what was counted; requests that arrive from now on count."""
        self.tally = self._empty_tally()
        self.world = self.world._replace(tally=self.tally)

    def _empty_tally(self) -> state.Tally:
        fleet = self.scenario.fleet
        devices = 0 if fleet.devices is None else len(fleet.devices.names)
        return empty_tally(len(self.phases), len(fleet.rate), devices)

    def reroute(self) -> None:
        """Let the controller decide now, where there is one."""

    def hand_over(self) -> None:
        """Give the records so far to whoever takes them."""

    def call(self, *arguments: Any) -> tuple[int, int]:
        """Call the loop: why it ended, and what it returns besides.

        A world that is another than before is laid out anew. Room for more requests is made where
        that was missing. ValueError where the policy does not compile, PolicyError where it divides
        by zero or decides for no server, CrowdedError rather than room for too many requests.
        """
        start_s, began_s = time.thread_time(), self.now_s
        with faults_of(self.scenario.policy, self.policy):
            if self.world is not self._called:
                self._pinned, self._called = pin(self.world), self.world
                compiled, kinds = self.loop
                self._compiled = call_of(compiled, self._pinned.kind, *kinds)
            ended, left = self._compiled(self._pinned.handle, *arguments)
        self.cpu_s += time.thread_time() - start_s
        self.count_lengths(began_s)
        self.check(ended)
        return int(ended), int(left)

    def count_lengths(self, began_s: float) -> None:
        """Add to lengths and to what is held of devices the time since the loop was called.

        Where a server reaches a length, the kernels subtract the time since the call began, and
        where it falls below again, they add it. Lengths at the end of the call lack all its time.
        """
        site, reached_s, took_s = self.site, self.tally.reached_s, self.now_s - began_s
        servers = np.zeros(reached_s.shape)
        at = (site.server_class, np.minimum(site.queue, reached_s.shape[1] - 1))
        np.add.at(servers, at, 1.0)
        reached_s += took_s * servers[:, ::-1].cumsum(axis=1)[:, ::-1]
        if not self.tally.held_s.size:
            return
        if isinstance(site.devices.joined, JoinedDevices):  # what this task's runs hold
            k = site.server_class[site.devices.holds]
            taken = site.devices.taken[k] * took_s
            np.add.at(self.tally.held_s, site.devices.device[k], taken)
            self.tally.held_s[:] += took_s * self._changed_for()
        else:
            self.tally.held_s[:] += site.devices.used * took_s

    def _changed_for(self) -> Ints:
        """(D,) slots of the devices that are being changed for this task, one of several."""
        devices = self.site.devices
        if not isinstance(devices.changes, Changes):
            return np.zeros_like(devices.slots)
        server = devices.changes.loads - devices.joined.first
        return np.where((server >= 0) & (server < len(devices.holds)), devices.slots, 0)

    def check(self, ended: int) -> None:
        """Make room for more requests, or raise an error, where the loop ended for that."""
        if ended == BROKEN:
            others = "REJECT nor HOLD" + (", nor of an answer ACCEPT" if self.again else "")
            raise no_server(self.scenario.policy, self.scenario.fleet, others)
        if ended == ROOM:
            entries = len(self.world.waiting.next)
            if entries >= MOST_PRESENT:
                raise CrowdedError(f"more than {entries:,} requests are in the system")
            self.world = self.world._replace(waiting=state.enlarged(self.world.waiting))


class GeneralEngine(SiteEngine):
    """See `inferway.twin.kernel.general`."""

    loop = (entry(general.run), (float64[::1], int64[::1], int64, float64))

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        replication: int,
        kind: Kind,
        records: bool,
        sink: Callable[[Records], None] | None,
        shared: Floats | None = None,
        times: bool = False,
    ) -> None:
        super().__init__(scenario, seed, replication, shared, times)
        self.kind, self._sink = kind, sink
        fleet, rules = scenario.fleet, self._rules(records)
        servers = fleet.servers
        batches = scenario.batches or (None,) * len(fleet.rate)
        for variant, batch in zip(fleet.variants, batches, strict=True):
            if not rules.pulls and batch is not None and batch.min > rules.places:
                raise ValueError(
                    f"{variant} waits for {batch.min} requests to form a batch, and a server holds "
                    f"{rules.places} at most; lower its `min` or give servers more places"
                )
        limited = rules.places < state.UNLIMITED
        places = (rules.places if limited else _PLACES) if self.reads_buffers else 1
        outages, changes = outages_of(scenario)
        site = scenario.site(self.targets[0], places)
        if fleet.devices is not None:
            lazily = self.controller is None and asks_for_waits(type(self.policy))
            # A batch may wait for more, and who is settled leaves before the next begins.
            prompt = not (any(batches) or rules.pulls or hasattr(self.policy, "settle"))
            shared_ = site.devices._replace(predicts=self.predicts, lazily=lazily, prompt=prompt)
            site = site._replace(devices=shared_)
        self.world = state.World(
            bound=Binding(
                site,
                np.zeros(servers, np.bool_),
                np.full(4, np.nan),
                np.zeros(len(fleet.rate)),
                scenario.walk is not None,
                rules.drops and scenario.deadline_s is not None,
                policy=self.policy,
            ),
            upkeep=self._upkeep(),
            future=event_list.rings(fleet)
            if kind == "ordered"
            else event_list.heap(4 * servers + len(changes) + 64),
            laws=laws(scenario.service, batches),
            serving=state.empty_serving(servers),
            waiting=state.empty_waiting(servers, _ENTRIES),
            tally=self.tally,
            records=state.empty_records(_ROWS if records else 0),
            outages=outages,
            rules=rules,
            targets=self.targets,
            states=self.states,
            counts=np.array([0, 0, 0, 0, ALL_CLASSES], np.int64),
            since_s=np.array([np.inf, 0.0]),
            again=self._again(),
        )
        # The first random failure of each server, and the set changes.
        random = np.random.default_rng(int(self.states[2]))
        failing = np.flatnonzero(np.isfinite(outages.every_s)).tolist()
        future = [
            (servers + one, float(random.exponential(outages.every_s[one]))) for one in failing
        ]
        self._retiring = 2 * servers + len(changes)  # The first of the items that `retire` uses
        for item, at_s in [*future, *enumerate(changes, 2 * servers)]:
            event_list.put_in_heap(self.world.future, 0, item, at_s)
        # Arrivals have a generator of their own: the same for every policy and every engine.
        self._stream = stream(
            scenario.arrivals, capacity_per_s=scenario.capacity_per_s, seed=int(self.states[3])
        )
        self._times_s, self._phases, self._at = np.zeros(0), np.zeros(0, np.int64), 0
        self._course = PhaseCourse(scenario.arrivals)
        self._said_s = self.world.laws.batch_s.copy()
        # Of the drift: neither arrivals nor decisions depend on it.
        self._drift = np.random.default_rng([int(self.states[3]), 1])
        # By which services take longer than is said.
        self.slowness = np.ones(1)
        if scenario.walk is not None:
            self.slowness = scenario.walk.begin(self._drift)
            self.world.laws.batch_s[:] = self._said_s * self.slowness

    def slow_down(self) -> None:
        """Let services take as much longer, or less, as their drift says from now on."""
        walk = self.scenario.walk
        if walk is not None:
            self.slowness = walk.after(self.slowness, walk.every_s, self._drift)
            self.world.laws.batch_s[:] = self._said_s * self.slowness

    def run(self, times_s: Floats, phases: Any, until_s: float) -> None:
        """Run through arrivals of one's own up to a time; the last is inf, and none is later."""
        at = self._step(times_s, phases, 0, until_s)
        assert at == len(times_s) - 1, (at, len(times_s))

    def _upkeep(self) -> state.Lengths | state.Ends | state.Times:
        if self.reads_buffers:
            return state.Times(0)
        return state.Ends(0) if self.reads_times else state.Lengths(0)

    def _again(self) -> escalation.SecondAnswers | escalation.SingleAnswer:
        """Make what second answers need, if the policy asks for any."""
        if not hasattr(self.policy, "settle"):
            return escalation.SingleAnswer(0)
        sample, bins = self.scenario.answers, self.scenario.fleet.confidence
        if sample is None:
            mass = np.zeros((len(self.scenario.fleet.rate), 0)) if bins is None else bins.mass
            sample = escalation.sampled(mass)
        return escalation.empty_again(sample, len(self.phases), _ENTRIES, self.states[4:].copy())

    def _rules(self, records: bool) -> state.Rules:
        scenario = self.scenario
        central = scenario.queue == "central"
        buffer, servers = scenario.fleet.buffer, scenario.fleet.servers
        pulls, drops = hasattr(self.policy, "pull"), scenario.late == "drop"
        return state.Rules(
            places=1 if central else self.places,
            central=(buffer - 1) * servers if central and buffer else state.UNLIMITED,
            holds=central,
            pulls=pulls,
            expires=drops and scenario.deadline_s is not None and not pulls,
            deadline_s=np.inf if scenario.deadline_s is None else scenario.deadline_s,
            drops=drops,
            records=records,
            grows=self.reads_buffers and not central and self.places == state.UNLIMITED,
            tells=self.controller is not None and self.controller.on_rejection,
            unwatched=not watches_room(type(self.policy)),
            foresees=not FORESEEN.isdisjoint(names_read(type(self.policy), methods=("learn",))),
        )

    def reroute(self) -> None:
        """Let the controller look at the site as it is now, and route as it says."""
        if self.controller is not None:
            self.follow(*self.controller.decide([self.site], [self.signal()]))

    def signal(self) -> Signal:
        """What the controller is told of the workload's state."""
        if not self.controller.sees_phase:
            return UNKNOWN
        if self._at == len(self._times_s):
            self.fetch()  # or it is not known yet in which phase the workload is
        return Signal(*self._course.at(self.now_s))

    def follow(self, routing: Routing | None) -> None:
        """Route as a controller says."""
        steer(self.policy, routing)
        self.world.counts[state.REROUTED] = 1

    @property
    def present(self) -> int:
        """Requests in the system."""
        return int(self.world.counts[state.PRESENT])

    @property
    def uncounted(self) -> int:
        """Those of them that do not count."""
        return int(self.world.counts[state.UNCOUNTED])

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived.

        Fewer than asked, before that time, where the workload has ended.
        """
        left = arrivals
        while left > 0 and self.now_s < until_s:
            if self._at == len(self._times_s) and not self.fetch():
                break
            stop = min(self._at + left, len(self._times_s))
            at = self._step(self._times_s[:stop], self._phases[:stop], self._at, until_s)
            left -= at - self._at
            self._at = at
        return arrivals - left

    def fetch(self) -> bool:
        """Get the next arrivals of the workload; whether there are any."""
        chunk = next(self._stream, None)
        if chunk is None:
            return False
        self._times_s, self._phases, self._at = chunk.times_s, chunk.phase, 0
        if self.controller is not None and self.controller.sees_phase:
            self._course.follow(chunk)
        return True

    def explore(self, k: int) -> int:
        """Run until one more request has arrived, which goes to class k; how many have arrived."""
        self.world.counts[state.CLASSES] = 1 << k
        try:
            return self.advance(1)
        finally:
            self.world.counts[state.CLASSES] = ALL_CLASSES

    def retire(self, server: int, at_s: float) -> None:
        """Let a server of a movable scenario take no more requests; it answers those it has."""
        self._move(2 * server, at_s)

    def enlist(self, server: int, at_s: float) -> None:
        """Let a server that was retired take requests again."""
        self._move(2 * server + 1, at_s)

    def _move(self, number: int, at_s: float) -> None:
        if not self.scenario.movable:
            raise ValueError("this scenario's servers stay where they are")
        # There is room: one change of each server at most is to come.
        at_s = max(at_s, self.now_s)
        event_list.put_in_heap(self.world.future, 0, self._retiring + number, at_s)

    def drain(self) -> None:
        """Run until the site is empty."""
        self._step(np.zeros(0), np.zeros(0, np.int64), 0, np.inf)

    def count_anew(self) -> None:
        """Forget what was counted."""
        super().count_anew()
        escalation.forgotten(self.world.again)
        self.world.since_s[0] = self.now_s
        self.world.counts[state.UNCOUNTED] = self.present

    def hand_over(self) -> None:
        """Give the records so far to the sink."""
        if self._sink is not None and self.world.records.size[0]:
            self._sink(self.world.records)
        self.world.records.size[0] = 0

    def mend(self, ended: int) -> None:
        """Do what the loop ended for, so that it can go on."""
        if ended == ROOM:
            self.world = self.world._replace(
                future=event_list.larger(self.world.future),
                again=escalation.enlarged(self.world.again),
            )
        elif ended == DEEP:
            bound = self.world.bound
            self.world = self.world._replace(bound=bound._replace(site=state.deeper(bound.site)))
        elif ended == REFUSED:
            self.reroute()
        if ended == FULL:
            self.hand_over()
        if ended == FULL or (ended == ROOM and self.world.rules.records):
            least = 2 * len(self.world.waiting.next)
            if len(self.world.records.arrived_s) < least:
                self.hand_over()
                self.world = self.world._replace(records=state.empty_records(least))
        self.world.counts[state.TROUBLE] = 0

    def _step(self, times_s: Any, phases: Any, at: int, until_s: float) -> int:
        ended = ROOM
        while ended != DONE:
            ended, at = self.call(times_s, phases, at, until_s)
            self.mend(ended)
        return at


class MarkovEngine(SiteEngine):
    """See `inferway.twin.kernel.markov`."""

    kind: Kind = "markov"
    loop = (entry(markov.run), (float64, int64, float64, int64, int64, float64))

    def __init__(
        self, scenario: Scenario, seed: int, replication: int, shared: Floats | None = None
    ) -> None:
        super().__init__(scenario, seed, replication, shared)
        site = scenario.site(self.targets[0], 1)
        self.world = markov.Chain(
            self.policy,
            site,
            state.empty_serving(scenario.fleet.servers),
            state.empty_waiting(scenario.fleet.servers, 1024),
            self.tally,
            self.states,
            1.0 / site.rate,
        )
        self._spans = (
            spans(scenario.arrivals, horizon_s=np.inf, capacity_per_s=scenario.capacity_per_s)
            if isinstance(scenario.arrivals, PhasedArrivals)
            else iter(self.phases)
        )
        self._span = next(self._spans)
        self._counted_s = np.inf

    @property
    def present(self) -> int:
        """Requests in the system."""
        return int(self.site.queue.sum())

    @property
    def uncounted(self) -> int:
        """Those of them that do not count."""
        serving, waiting = self.world.serving, self.world.waiting
        phases = []
        for server in np.flatnonzero(self.site.queue):
            phases.append(serving.phase[server])
            entry = waiting.first[server]
            for _ in range(1, self.site.queue[server]):
                phases.append(waiting.phase[entry])
                entry = waiting.next[entry]
        return sum(int(phase < 0) for phase in phases)

    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived."""
        left = arrivals
        while left > 0 and self.now_s < until_s:
            span = self._span
            self.site.target[0] = self.targets[span.phase]
            assert span.rate_per_s is not None
            # Counted from the end, a phase means the same, and that its requests do not count.
            phase = span.phase - (0 if self._counted_s < np.inf else len(self.phases))
            left = self._step(span.rate_per_s, phase, min(until_s, span.end_s), left)
            if self.now_s >= span.end_s:
                self._span = next(self._spans)
        return arrivals - left

    def drain(self) -> None:
        """Run until the site is empty."""
        self._step(0.0, 0, np.inf, 1)

    def count_anew(self) -> None:
        """Forget what was counted."""
        super().count_anew()
        self._counted_s = self.now_s

    def _step(self, rate_per_s: float, phase: int, until_s: float, arrivals: int) -> int:
        ended = ROOM
        while ended != DONE:
            ended, arrivals = self.call(
                rate_per_s, phase, until_s, arrivals, self.places, self._counted_s
            )
        return arrivals


def outages_of(scenario: Scenario) -> tuple[state.Outages, list[float]]:
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
    movable = np.arange(fleet.servers if scenario.movable else 0)
    outages = state.Outages(
        every_s,
        for_s,
        np.concatenate([np.array(servers, np.int64), np.repeat(movable, 2)]),
        np.concatenate([np.array(signs, np.int64), np.tile([2, -2], len(movable))]),
    )
    return outages, list(times_s)
