"""One replication of a scenario: policy, counters, random streams and the compiled loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, cast

import numpy as np
from numba.core.types import float64, int64

from inferway.deployment.workloads import PhasedArrivals, PoissonArrivals
from inferway.dispatch.contract import build_policy, policy_class
from inferway.dispatch.dispatcher import faults_of, no_server
from inferway.site.compiled import call_of, entry
from inferway.site.draw import streams
from inferway.site.handle import Pinned, pin
from inferway.site.view import Site
from inferway.twin.kernel import general, markov
from inferway.twin.kernel.counters import empty_tally
from inferway.twin.kernel.state import BROKEN, DONE, ROOM, UNLIMITED, enlarged
from inferway.twin.scenario import Scenario
from inferway.workload import phases_of

# Fields of the view and of events that only a full upkeep fills.
TIMES = frozenset(
    {"started_s", "ends_s", "free_s", "arrived_s", "expected_s", "head", "wait_s", "service_s"}
)


def names_read(policy: type) -> frozenset[str]:
    """Every global and attribute that the policy's functions may use."""
    found: set[str] = set()
    seen: set[int] = set()
    for method in ("choose", "learn", "pull"):
        function = getattr(policy, method, None)
        if function is not None:
            _collect(function, found, seen)
    return frozenset(found)


def reads_times(policy: type) -> bool:
    """Tell whether the policy needs more of the view than lengths and who is idle."""
    return not TIMES.isdisjoint(names_read(policy))


def _collect(function: Any, found: set[str], seen: set[int]) -> None:
    plain = getattr(function, "py_func", function)
    if not isinstance(plain, FunctionType) or id(plain) in seen:
        return
    seen.add(id(plain))
    for code in _codes(plain.__code__):
        found.update(code.co_names)
        for name in code.co_names:
            value = plain.__globals__.get(name)
            if isinstance(value, ModuleType):
                for attribute in code.co_names:
                    _collect(getattr(value, attribute, None), found, seen)
            else:
                _collect(value, found, seen)
    for cell in plain.__closure__ or ():
        _collect(cell.cell_contents, found, seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


Kind = Literal["markov", "ordered", "general"]
KINDS: tuple[Kind, ...] = ("markov", "ordered", "general")


def kinds_of(scenario: Scenario, *, records: bool = False) -> tuple[Kind, ...]:
    """The kinds that can run a scenario, and record requests if asked to, the fastest first."""
    policy = policy_class(scenario.policy, scenario.folder)
    pulls = hasattr(policy, "pull")
    steady = not scenario.failures and not scenario.outages
    distributions = {time.distribution for time in scenario.service}
    found: list[Kind] = ["general"]
    # A batch takes its own time, and the number that waits is no longer all there is to know.
    batched = any(scenario.batches)
    if distributions == {"deterministic"} and steady and not batched:
        found.insert(0, "ordered")
    if (
        distributions == {"exponential"}
        and steady
        and not pulls
        and not batched
        and not records
        and scenario.deadline_s is None
        and scenario.queue == "per-server"
        and scenario.scheduling is None
        and not scenario.measured_s  # it serves at the rates that the site shows
        and isinstance(scenario.arrivals, PoissonArrivals | PhasedArrivals)
        and "HOLD" not in names_read(policy)
        and not reads_times(policy)
    ):
        found.insert(0, "markov")
    return tuple(found)


# Requests in the system at which a run is given up: no stable site holds so many.
MOST_PRESENT = 1 << 24


class CrowdedError(RuntimeError):
    """More requests in the system than any stable site holds."""


class SiteEngine:
    """An engine at time 0; nothing counts before `count_anew`.

    Its `world` is what the compiled loop reads and writes.
    """

    kind: Kind
    world: Any
    cpu_s = 0.0  # CPU time spent in the compiled loop

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
        # Sets the routing; None where the policy decides alone.
        self.controller = scenario.controller()
        scheduled = self.controller is not None and math.isfinite(self.controller.slot_s)
        self.reads_times = (
            reads_times(type(self.policy)) or scenario.deadline_s is not None or scheduled
        )
        self.phases = phases_of(scenario.arrivals, scenario.capacity_per_s)
        own = scenario.target or 0.0
        self.targets = np.array(
            [own if one.accuracy_target is None else one.accuracy_target for one in self.phases]
        )
        self.states = streams(seed, replication, 4)
        # Arrivals have a generator of their own: the same for every policy and every engine.
        self.arrivals_seed = int(self.states[3])
        self.tally = empty_tally(len(self.phases), len(scenario.fleet.rate))
        self.places = scenario.fleet.buffer or UNLIMITED
        self._content: Any = None
        self._pinned = Pinned(None, None)
        self._compiled: Any = None

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        return cast("Site", self.world.site)

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self.site.clock_s[0])

    def count_anew(self) -> None:
        """Forget what was counted; requests that arrive from now on count."""
        self.tally = empty_tally(len(self.phases), len(self.scenario.fleet.rate))
        self.world = self.world._replace(tally=self.tally)

    def reroute(self) -> None:
        """Let the controller decide now, where there is one."""

    def hand_over(self) -> None:
        """Give the records so far to whoever takes them."""

    def call(self, loop: Any, content: Any, *arguments: Any) -> Any:
        """Call a kernel's `run`, whose content is laid out anew where it is another than before.

        ValueError where the policy does not compile, PolicyError where it divides by zero.
        """
        start_s = time.thread_time()
        with faults_of(self.scenario.policy, self.policy):
            if content is not self._content:
                self._pinned, self._content = pin(content), content
                compiled, kinds = _LOOPS[loop]
                self._compiled = call_of(compiled, self._pinned.kind, *kinds)
            ended = self._compiled(self._pinned.handle, *arguments)
        self.cpu_s += time.thread_time() - start_s
        return ended

    def go_on(self, ended: int, since_s: float) -> bool:
        """Tell whether a call that ended so has to be made again, with more room.

        The time that queues had the lengths with which it ended is counted: they changed since. The
        kernels add, at each change, the time since the call began to the old length and take it
        from the new one; what is left is the whole call for the lengths at its end. PolicyError
        where the policy's decision is none, CrowdedError rather than room for too many requests.
        """
        site, lengths = self.site, self.tally.lengths
        at = (site.server_class, np.minimum(site.queue, lengths.shape[1] - 1))
        np.add.at(lengths, at, self.now_s - since_s)
        if ended == BROKEN:
            raise no_server(self.scenario.policy, self.scenario.fleet)
        if ended == ROOM:
            entries = len(self.world.waiting.next)
            if entries >= MOST_PRESENT:
                raise CrowdedError(f"more than {entries:,} requests are in the system")
            self.world = self.world._replace(waiting=enlarged(self.world.waiting))
        return ended != DONE


# Entries, and types of what they take besides the content.
_LOOPS: dict[Any, tuple[Any, tuple[Any, ...]]] = {
    markov.run: (entry(markov.run), (float64, int64, float64, int64, int64, float64)),
    general.run: (entry(general.run), (float64[::1], int64[::1], int64, float64)),
}
