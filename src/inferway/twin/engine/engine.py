"""One replication of a scenario: policy, counters, random streams and the compiled loop."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numba.core.types import float64, int64

from inferway.dispatch.contract import build_policy
from inferway.dispatch.dispatcher import PolicyError
from inferway.policies.fault import COMPILE_ERRORS, compile_reason, division
from inferway.site.compiled import call_of, entry
from inferway.site.pinned import Pinned, pin
from inferway.site.view import Site
from inferway.twin.engine.kind import Kind, reads_times
from inferway.twin.kernel import general, markov
from inferway.twin.kernel.counters import Tally, empty_tally
from inferway.twin.kernel.rng import streams
from inferway.twin.kernel.state import UNLIMITED
from inferway.twin.scenario import Scenario
from inferway.workload import phases_of

MOST_PRESENT = 1 << 24
"""Requests in the system at which a run is given up: no stable site holds so many."""


class CrowdedError(RuntimeError):
    """More requests in the system than any stable site holds."""


class Engine(ABC):
    """An engine at time 0; nothing counts before `count_anew`."""

    kind: Kind
    cpu_s = 0.0
    """CPU time spent in the compiled loop."""

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
        self.controller = scenario.controller()
        """Sets the routing; None where the policy decides alone."""
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
        self.tally = self.fresh_tally()
        self.places = scenario.fleet.buffer or UNLIMITED
        self._content: Any = None
        self._pinned = Pinned(None, None)
        self._compiled: Any = None

    @property
    @abstractmethod
    def site(self) -> Site:
        """The view that the policy sees."""

    @property
    @abstractmethod
    def present(self) -> int:
        """Requests in the system."""

    @property
    @abstractmethod
    def uncounted(self) -> int:
        """Those of them that do not count, since they arrived during the warm-up."""

    @abstractmethod
    def advance(self, arrivals: int, until_s: float = np.inf) -> int:
        """Run until so many more requests have arrived, or until a time; how many have arrived.

        Fewer than asked, before that time, where the workload has ended.
        """

    @abstractmethod
    def drain(self) -> None:
        """Run without further arrivals until the site is empty."""

    @abstractmethod
    def count_anew(self) -> None:
        """Forget what was counted; requests that arrive from now on count."""

    @property
    def now_s(self) -> float:
        """The time."""
        return float(self.site.clock_s[0])

    def reroute(self) -> None:
        """Let the controller decide now, where there is one."""
        return

    def hand_over(self) -> None:
        """Give the records so far to whoever takes them."""
        return

    def fresh_tally(self) -> Tally:
        """Counters at 0."""
        return empty_tally(len(self.phases), len(self.scenario.fleet.rate))

    def call(self, loop: Any, content: Any, *arguments: Any) -> Any:
        """Call a kernel's `run`, whose content is laid out anew where it is another than before.

        ValueError where the policy does not compile, PolicyError where it divides by zero.
        """
        start_s = time.thread_time()
        try:
            if content is not self._content:
                self._pinned, self._content = pin(content), content
                compiled, kinds = _LOOPS[loop]
                self._compiled = call_of(compiled, self._pinned.kind, *kinds)
            return self._compiled(self._pinned.handle, *arguments)
        except COMPILE_ERRORS as error:
            reason = compile_reason(error, type(self.policy))
            raise ValueError(f"policy {self.scenario.policy} does not compile: {reason}") from error
        except ZeroDivisionError as error:
            where = division(error, type(self.policy))
            if where is None:
                raise
            raise PolicyError(f"policy {self.scenario.policy} {where}") from error
        finally:
            self.cpu_s += time.thread_time() - start_s

    def no_server(self) -> PolicyError:
        """Say that the policy's decision is none."""
        return PolicyError(
            f"policy {self.scenario.policy} returned a number that is neither a server of "
            f"0..{self.scenario.fleet.servers - 1} nor REJECT nor HOLD"
        )

    def check_room(self, entries: int) -> None:
        """Raise CrowdedError rather than make room for more than this many requests."""
        if entries >= MOST_PRESENT:
            raise CrowdedError(f"more than {entries:,} requests are in the system")

    def charge(self, since_s: float) -> None:
        """Count the time that queues had the lengths with which a call ended: they changed since.

        The kernels add, at each change, the time since the call began to the old length and take it
        from the new one; what is left is the whole call for the lengths at its end.
        """
        site, lengths = self.site, self.tally.lengths
        longest = lengths.shape[1] - 1
        at = (site.server_class, np.minimum(site.queue, longest))
        np.add.at(lengths, at, self.now_s - since_s)


_LOOPS: dict[Any, tuple[Any, tuple[Any, ...]]] = {
    markov.run: (entry(markov.run), (float64, int64, float64, int64, int64, float64)),
    general.run: (entry(general.run), (float64[::1], int64[::1], int64, float64)),
}
"""Entries, and types of what they take besides the content."""
