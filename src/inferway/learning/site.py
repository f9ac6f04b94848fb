"""Sites under slotted control: what every environment and trainer of ours stands on.

The simulation is `inferway.learning.routed`: E independent sites in lockstep, each routed
at random by the probabilities of its slot, with the reward of [Tan24], eq. 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import (
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from inferway.learning import routed
from inferway.learning.arrivals import begin, flow_of
from inferway.site.compiled import call_of, entry
from inferway.site.draw import streams
from inferway.site.handle import pin
from inferway.twin.kernel.service_times import laws
from inferway.twin.scenario import Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Control:
    """A site and how it is controlled.

    Parameters
    ----------
    scenario
        Fleet with a limited buffer, service times, arrivals (Poisson, map, phases or trace),
        deadline, and whether late requests are served. Its policy plays no part.
    slot_s
        Time between two decisions, s.
    sees_phase
        Whether observations say the workload's state: [Tan24]'s full observability.
    batches
        Whether a decision also sets the smallest and largest batch of each class; otherwise the
        scenario's own hold.
    rejected_weight, accuracy_weight
        alpha and beta of eq. 2.
    gains
        (K,) accuracies in the reward; those of the fleet if not given. The paper trains on other
        data than it is evaluated on.

    Raises
    ------
    ValueError
        Where the scenario is none that slots of random routing can run.
    """

    scenario: Scenario
    slot_s: float = 1.0
    sees_phase: bool = False
    batches: bool = False
    rejected_weight: float = 1.0
    accuracy_weight: float = 1.0
    gains: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        scenario, fleet = self.scenario, self.scenario.fleet
        if fleet.buffer is None:
            raise ValueError(
                "a site under slotted control has a limited buffer: give its node `buffer`"
            )
        if scenario.queue != "per-server":
            raise ValueError("random routing has no central queue: leave `queue: central` out")
        if scenario.failures or scenario.outages:
            raise ValueError("failures are not part of training: train for each fleet on its own")
        if not self.slot_s > 0:
            raise ValueError(f"a slot is longer than 0 s, not {self.slot_s:g}")
        if scenario.deadline_s is not None:
            fastest_s = min(1.0 / float(rate) for rate in fleet.rate)
            if scenario.deadline_s < fastest_s:
                raise ValueError(
                    f"the deadline of {scenario.deadline_s:g} s is shorter than the fastest "
                    f"service time, {fastest_s:g} s: no request could be in time"
                )
        kinds = PoissonArrivals | MapArrivals | PhasedArrivals | TraceArrivals
        if not isinstance(scenario.arrivals, kinds):
            raise ValueError(
                f"arrivals of the kind {scenario.arrivals.process} are not simulated in slots; "
                "poisson, map, phases and trace are"
            )
        if self.batches and not any(scenario.batches):
            raise ValueError("no variant has a `batch`, so there are no batch sizes to choose from")
        gains = self.gains or tuple(fleet.accuracy)
        if len(gains) != len(fleet.rate) or not all(0 <= gain <= 1 for gain in gains):
            raise ValueError(f"gains are {len(fleet.rate)} accuracies in 0..1, not {gains}")

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """(K,) batch sizes that each class offers."""
        offered = self.scenario.batches or (None,) * len(self.scenario.fleet.rate)
        return tuple((1,) if batch is None else batch.sizes for batch in offered)

    @property
    def reward_gains(self) -> tuple[float, ...]:
        """(K,) reward of an answer in time, before its weight."""
        return self.gains or tuple(map(float, self.scenario.fleet.accuracy))

    @property
    def phases(self) -> int:
        """Phases of the workload."""
        match self.scenario.arrivals:
            case MapArrivals(d0=d0):
                return len(d0)
            case PhasedArrivals(phases=phases):
                return len(phases)
        return 1

    @property
    def features(self) -> int:
        """Length of an observation."""
        fleet = self.scenario.fleet
        assert fleet.buffer is not None
        length = fleet.servers * (2 * (fleet.buffer + 1) + 1)
        if self.batches:
            length += fleet.servers
        if self.sees_phase:
            length += self.phases + isinstance(self.scenario.arrivals, PhasedArrivals)
        return length


class SlottedSites:
    """E sites in lockstep, one decision per site and slot.

    Site e draws from streams of its own, the same whatever E is.
    """

    def __init__(self, control: Control, *, count: int = 1, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"at least one site, not {count}")
        self.control = control
        self.count = count
        self._sites = _sites(control, count)
        # A slot takes a microsecond; to unpack forty arrays at each call would take twenty.
        self._pinned = pin(self._sites)
        self._advance = call_of(_ADVANCE, self._pinned.kind, *_DECISION)
        self._look = call_of(_LOOK, self._pinned.kind)
        offers = control.scenario.batches or (None,) * len(control.sizes)
        own = [(1, 1) if batch is None else (batch.min, batch.max) for batch in offers]
        self._own_batches = np.array([own] * count, np.int64)
        self.observation: NDArray[np.float32] = self._sites.observation
        """(E, d) float32: what a controller sees, in the order of
        `inferway.scheduling.observation`; the next slot writes over it."""
        self.rewards: Floats = self._sites.reward
        """(E,) of the last slot, eq. 2; the next slot writes over it."""
        self.outcomes: routed.Outcomes = self._sites.outcomes
        """Outcomes of the last slot's requests; the next slot writes over it."""
        self.arrivals: Ints = self.outcomes.arrived
        """(E,) requests that arrived in the last slot."""
        self.restart(seed)

    @property
    def counts(self) -> routed.PhaseCounts:
        """Counts of the requests since `clear`, by site and phase of arrival."""
        return self._sites.counted

    @property
    def clock_s(self) -> Floats:
        """(E,) the time at each site."""
        return self._sites.clock_s

    @property
    def phase(self) -> Ints:
        """(E,) the workload's phase at each site."""
        return self._sites.flow.phase

    def restart(self, seed: int) -> None:
        """Empty all sites, at time 0, the workload somewhere in its long run."""
        sites, arrivals = self._sites, self.control.scenario.arrivals
        for array in (*sites.servers, sites.clock_s, sites.reward, *sites.counted, *sites.outcomes):
            array[:] = 0
        for e in range(self.count):
            sites.states[e] = streams(seed, e, 3)
            begin(sites.flow, e, arrivals, np.random.default_rng(streams(seed, e, 4)[3]))
        self._look(self._pinned.handle)

    def step(self, probabilities: Floats, batches: Ints | None = None) -> Floats:
        """Run all sites for a slot; the (E,) rewards, in place as `rewards`.

        (E, n) probabilities by server are float64 at least 0, each row with a sum above 0; (E, K,
        2) are int64 smallest and largest batches, None for the scenario's own.
        """
        rules = self._own_batches if batches is None else batches
        given = np.ascontiguousarray(probabilities), np.ascontiguousarray(rules)
        self._advance(self._pinned.handle, *given, self.control.slot_s)
        return self.rewards

    def clear(self) -> None:
        """Count anew."""
        for counts in self._sites.counted:
            counts[:] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """All that changes, for `restore`."""
        return {name: array.copy() for name, array in self._changing().items()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on where `state` was taken, to the last digit; ValueError for another kind of site."""
        changing = self._changing()
        for name, array in changing.items():
            if name not in state or state[name].shape != array.shape:
                raise ValueError(f"this state is not one of {self.count} such sites: {name}")
        for name, array in changing.items():
            array[:] = state[name]

    def _changing(self) -> dict[str, NDArray[Any]]:
        sites = self._sites
        parts = {
            part: getattr(sites, part) for part in ("servers", "routed", "counted", "outcomes")
        }
        nested = {
            f"{part}.{name}": array
            for part, arrays in parts.items()
            for name, array in arrays._asdict().items()
        }
        flow = ("next_s", "phase", "switch_s", "end_s", "at", "base_s")
        nested |= {f"flow.{name}": getattr(sites.flow, name) for name in flow}
        own = ("clock_s", "reward", "observation", "states")
        return nested | {name: getattr(sites, name) for name in own}


_ADVANCE, _LOOK = entry(routed.advance), entry(routed.look)
_DECISION = (numba.float64[:, ::1], numba.int64[:, :, ::1], numba.float64)
"""Types of what `routed.advance` takes besides the sites."""


def _sites(control: Control, count: int) -> routed.SiteArrays:
    scenario, fleet = control.scenario, control.scenario.fleet
    assert fleet.buffer is not None
    n, classes, phases = fleet.servers, len(fleet.rate), control.phases
    places = n, 1 << fleet.buffer.bit_length()
    rule = laws(scenario.service, scenario.batches or (None,) * classes)
    mean_s = np.array([time.mean_s for time in scenario.service])
    drops = scenario.late == "drop" and scenario.deadline_s is not None
    gains = control.accuracy_weight * np.array(control.reward_gains)

    def zeros(*shape: int, kind: Any = np.float64) -> NDArray[Any]:
        return np.zeros((count, *shape), kind)

    ints = partial(zeros, kind=np.int64)
    words = partial(zeros, kind=np.uint32)
    return routed.SiteArrays(
        servers=routed.Servers(
            queue=words(n),
            tail=words(n),
            taken=words(n),
            started_s=zeros(n),
            free_s=zeros(n),
            arrived_s=zeros(*places),
            ends_s=zeros(*places),
            phase=zeros(*places, kind=np.uint8),
        ),
        flow=flow_of(scenario.arrivals, scenario.capacity_per_s, count),
        routed=routed.Routed(
            threshold=zeros(n) + 1,
            other=words(n),
            smallest=ints(classes) + 1,
            largest=ints(classes) + 1,
        ),
        counted=routed.PhaseCounts(
            arrived=ints(phases),
            rejected=ints(phases),
            dropped=ints(phases),
            sent=ints(phases, classes),
            answered=ints(phases, classes, 2),
            batches=ints(phases, classes),
        ),
        outcomes=routed.Outcomes(ints(), ints(), ints(), timely=ints(classes)),
        terms=routed.Terms(
            server_class=np.repeat(np.arange(classes, dtype=np.uint32), fleet.count),
            capacity=fleet.buffer,
            deadline_s=np.inf if scenario.deadline_s is None else scenario.deadline_s,
            drops=drops,
            eager=not any(scenario.batches) and not drops,
            worth=np.stack([gains, np.full(classes, -1.0)], axis=1),
            loss=control.rejected_weight,
            service_s=np.maximum(mean_s, rule.batch_s.max(axis=1)),
            age_s=fleet.buffer * float(mean_s.max()),
            sees_phase=control.sees_phase,
            batches=control.batches,
        ),
        laws=rule,
        clock_s=zeros(),
        reward=zeros(),
        observation=zeros(control.features, kind=np.float32),
        states=zeros(3, kind=np.uint64),
    )
