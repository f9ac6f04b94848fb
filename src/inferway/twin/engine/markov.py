"""The engine for Poisson arrivals and exponential service, around `inferway.twin.kernel.markov`."""

from __future__ import annotations

import numpy as np

from inferway.deployment.workloads import PhasedArrivals
from inferway.twin.engine.engine import Kind, SiteEngine
from inferway.twin.kernel import markov
from inferway.twin.kernel.markov import Chain
from inferway.twin.kernel.state import empty_serving, empty_waiting
from inferway.twin.scenario import Scenario
from inferway.workload.phases import spans


class MarkovEngine(SiteEngine):
    """See `inferway.twin.kernel.markov`."""

    kind: Kind = "markov"

    def __init__(self, scenario: Scenario, seed: int, replication: int) -> None:
        super().__init__(scenario, seed, replication)
        fleet = scenario.fleet
        site = scenario.site(self.targets[0], 1)
        self.world = Chain(
            self.policy,
            site,
            empty_serving(fleet.servers),
            empty_waiting(fleet.servers, 1024),
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
        again = True
        while again:
            began_s = self.now_s
            arguments = phase, until_s, arrivals, self.places, self._counted_s
            ended, arrivals = self.call(markov.run, self.world, rate_per_s, *arguments)
            again = self.go_on(ended, began_s)
        return int(arrivals)
