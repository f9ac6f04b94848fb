"""Sites under slotted control: what every environment and trainer of ours stands on.

The simulation is the twin's (`inferway.twin.kernel.routed`): E independent sites in lockstep, each
routed at random by the probabilities of its slot, with the reward of paper 003, eq. 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.column import time_pieces
from inferway.deployment.workloads import (
    Arrivals,
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from inferway.site.compiled import entry
from inferway.twin.kernel import flow as flows
from inferway.twin.kernel import routed
from inferway.twin.kernel import sites as kernel
from inferway.twin.kernel.chance import streams
from inferway.twin.kernel.laws import laws
from inferway.twin.scenario import Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LONGEST_TRACE = 20_000_000
_CHUNK = 65_536


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
        Whether observations say the workload's state: paper 003's full observability.
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
    gains: tuple[float, ...] = field(default=())

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


class Sites:
    """E sites in lockstep, one decision per site and slot.

    Parameters
    ----------
    control
        What they are.
    count
        E.
    seed
        Site e draws from streams of its own, the same whatever E is.
    """

    def __init__(self, control: Control, *, count: int = 1, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"at least one site, not {count}")
        self.control = control
        self.count = count
        self._sites = _sites(control, count)
        bind, self._advance, self._look = _entries()
        self._bound = bind(self._sites)
        self._own_batches = np.array(
            [
                [(1, 1) if batch is None else (batch.min, batch.max) for batch in self._offers]
                for _ in range(count)
            ],
            np.int64,
        )
        self.observation: NDArray[np.float32] = self._sites.observation
        """(E, d) float32: what a controller sees, in the order of
        `inferway.scheduling.observation`; the next slot writes over it."""
        self.rewards: Floats = self._sites.reward
        """(E,) of the last slot, eq. 2; the next slot writes over it."""
        self.outcomes: kernel.Outcomes = self._sites.outcomes
        """What became of requests in the last slot; the next slot writes over it."""
        self.arrivals: Ints = self.outcomes.arrived
        """(E,) requests that arrived in the last slot."""
        self.restart(seed)

    @property
    def _offers(self) -> Any:
        scenario = self.control.scenario
        return scenario.batches or (None,) * len(scenario.fleet.rate)

    @property
    def counts(self) -> kernel.Counted:
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

    def restart(self, seed: int, site: int | None = None) -> None:
        """Empty all sites, or one, at time 0, the workload somewhere in its long run."""
        for e in range(self.count) if site is None else (site,):
            self._restart(e, seed)
        self._look(self._bound)

    def _restart(self, e: int, seed: int) -> None:
        sites = self._sites
        for array in sites.servers:
            array[e] = 0
        sites.clock_s[e] = 0.0
        sites.reward[e] = 0.0
        sites.states[e] = streams(seed, e, 3)
        for counts in (*sites.counted, *sites.outcomes):
            counts[e] = 0
        chance = np.random.default_rng(streams(seed, e, 4)[3])
        _begin(sites.flow, e, self.control.scenario.arrivals, chance)

    def step(self, probabilities: Floats, batches: Ints | None = None) -> Floats:
        """Run all sites for a slot.

        Parameters
        ----------
        probabilities
            (E, n) float64 by server, at least 0, each row with a sum above 0.
        batches
            (E, K, 2) int64 smallest and largest batch; None for the scenario's own.

        Returns
        -------
        (E,) rewards, in place as `rewards`.
        """
        rules = self._own_batches if batches is None else batches
        self._advance(self._bound, probabilities, rules, self.control.slot_s)
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
        found: dict[str, NDArray[Any]] = {}
        for part in ("servers", "routed", "counted", "outcomes"):
            for name, array in getattr(sites, part)._asdict().items():
                found[f"{part}.{name}"] = array
        for name in ("next_s", "phase", "switch_s", "end_s", "at", "base_s"):
            found[f"flow.{name}"] = getattr(sites.flow, name)
        for name in ("clock_s", "reward", "observation", "states"):
            found[name] = getattr(sites, name)
        return found


@cache
def _entries() -> tuple[Any, Any, Any]:
    return entry(kernel.bind), entry(routed.advance), entry(routed.look)


def _sites(control: Control, count: int) -> kernel.Sites:
    scenario, fleet = control.scenario, control.scenario.fleet
    assert fleet.buffer is not None
    n, classes, phases = fleet.servers, len(fleet.rate), control.phases
    places = 1 << fleet.buffer.bit_length()
    rule = laws(scenario.service, scenario.batches or (None,) * classes)
    mean_s = np.array([time.mean_s for time in scenario.service])
    deadline_s = np.inf if scenario.deadline_s is None else scenario.deadline_s
    by_class = (count, phases, classes)
    drops = scenario.late == "drop" and scenario.deadline_s is not None
    batched = any(batch is not None for batch in scenario.batches)
    gains = control.accuracy_weight * np.array(control.reward_gains)
    return kernel.Sites(
        servers=kernel.Servers(
            queue=np.zeros((count, n), np.uint32),
            tail=np.zeros((count, n), np.uint32),
            taken=np.zeros((count, n), np.uint32),
            started_s=np.zeros((count, n)),
            free_s=np.zeros((count, n)),
            arrived_s=np.zeros((count, n, places)),
            ends_s=np.zeros((count, n, places)),
            phase=np.zeros((count, n, places), np.uint8),
        ),
        flow=_flow(scenario.arrivals, scenario.capacity_per_s, count),
        routed=kernel.Routed(
            threshold=np.ones((count, n)),
            other=np.zeros((count, n), np.uint32),
            smallest=np.ones((count, classes), np.int64),
            largest=np.ones((count, classes), np.int64),
        ),
        counted=kernel.Counted(
            arrived=np.zeros((count, phases), np.int64),
            rejected=np.zeros((count, phases), np.int64),
            dropped=np.zeros((count, phases), np.int64),
            sent=np.zeros(by_class, np.int64),
            answered=np.zeros((*by_class, 2), np.int64),
            batches=np.zeros(by_class, np.int64),
        ),
        outcomes=kernel.Outcomes(
            arrived=np.zeros(count, np.int64),
            rejected=np.zeros(count, np.int64),
            late=np.zeros(count, np.int64),
            timely=np.zeros((count, classes), np.int64),
        ),
        terms=kernel.Terms(
            server_class=np.repeat(np.arange(classes, dtype=np.uint32), fleet.count),
            capacity=fleet.buffer,
            deadline_s=deadline_s,
            drops=drops,
            eager=not batched and not drops,
            worth=np.stack([gains, np.full(classes, -1.0)], axis=1),
            loss=control.rejected_weight,
            service_s=np.maximum(mean_s, rule.batch_s.max(axis=1)),
            age_s=fleet.buffer * float(mean_s.max()),
            sees_phase=control.sees_phase,
            batches=control.batches,
        ),
        laws=rule,
        clock_s=np.zeros(count),
        reward=np.zeros(count),
        observation=np.zeros((count, control.features), np.float32),
        states=np.zeros((count, 3), np.uint64),
    )


def _flow(arrivals: Arrivals, capacity_per_s: float, count: int) -> flows.Flow:
    kind, mean_s, lasts_s = flows.MAP, np.ones(1), np.full(1, np.inf)
    after, along, times_s = np.full((1, 1), np.inf), np.empty((1, 0)), np.zeros(1)
    match arrivals:
        case MapArrivals():
            d0, d1 = np.array(arrivals.d0), np.array(arrivals.d1)
            silent = d0 - np.diag(np.diag(d0))
            with np.errstate(divide="ignore"):
                mean_s, lasts_s = 1.0 / d1.sum(axis=1), 1.0 / silent.sum(axis=1)
            after = _cumulative(silent)
            along = np.empty((len(d0), 0))
            if (d1 != np.diag(np.diag(d1))).any():
                along = _cumulative(d1)
        case PhasedArrivals(phases=phases):
            kind = flows.PHASES
            mean_s = np.array([1.0 / one.mean_rate_per_s(capacity_per_s) for one in phases])
            lasts_s = np.array([one.for_ for one in phases])
            after = _cumulative(np.roll(np.eye(len(phases)), 1, axis=1))
            along = np.empty((len(phases), 0))
        case TraceArrivals(file=file, speed=speed):
            kind = flows.TRACE
            pieces = list(time_pieces(file, _CHUNK))
            listed = np.concatenate(pieces)[:_LONGEST_TRACE] / speed
            if len(listed) < 2 or listed[0] == listed[-1]:
                raise ValueError(f"{file} has no rate: all its times are equal")
            listed = listed - listed[0]
            # It goes round: a mean gap lies between its last arrival and its first.
            times_s = np.append(listed, listed[-1] * len(listed) / (len(listed) - 1))
        case PoissonArrivals():
            mean_s = np.array([1.0 / arrivals.mean_rate_per_s(capacity_per_s)])
        case _:
            raise AssertionError(arrivals)
    return flows.Flow(
        kind=kind,
        mean_s=mean_s,
        lasts_s=lasts_s,
        after=after,
        along=along,
        times_s=times_s,
        next_s=np.zeros(count),
        phase=np.zeros(count, np.int64),
        switch_s=np.zeros(count),
        end_s=np.zeros(count),
        at=np.zeros(count, np.int64),
        base_s=np.zeros(count),
    )


def _cumulative(rates: Floats) -> Floats:
    """(m, m) cumulative chances by row; the last that can be takes what rounding leaves."""
    found = np.cumsum(rates, axis=1)
    for row, of in zip(found, rates, strict=True):
        row /= max(row[-1], 1e-300)
        row[np.flatnonzero(of)[-1] if of.any() else -1 :] = np.inf
    return found


def _begin(flow: flows.Flow, e: int, arrivals: Arrivals, chance: np.random.Generator) -> None:
    """The workload at a random time of its long run; the first site's trace at its beginning."""
    flow.phase[e] = 0
    flow.switch_s[e] = 0.0
    if isinstance(arrivals, TraceArrivals):
        length_s = flow.times_s[-1]
        begin_s = 0.0 if e == 0 else chance.random() * length_s
        at = int(np.searchsorted(flow.times_s[:-1], begin_s))
        again = at == len(flow.times_s) - 1
        flow.at[e] = 0 if again else at
        flow.base_s[e] = (length_s if again else 0.0) - begin_s
        flow.end_s[e] = np.inf
        flow.next_s[e] = flow.base_s[e] + flow.times_s[flow.at[e]]
        return
    left_s = np.inf
    if isinstance(arrivals, MapArrivals):
        flow.phase[e] = chance.choice(len(arrivals.d0), p=arrivals.stationary)
        left_s = chance.standard_exponential() * flow.lasts_s[flow.phase[e]]
    elif isinstance(arrivals, PhasedArrivals):
        ends_s = np.cumsum(flow.lasts_s)
        begin_s = chance.random() * ends_s[-1]
        phase = int(np.searchsorted(ends_s, begin_s, side="right"))
        flow.phase[e] = phase
        left_s = ends_s[phase] - begin_s
        flow.switch_s[e] = left_s - flow.lasts_s[phase]
    flow.end_s[e] = left_s
    gap_s = chance.standard_exponential() * flow.mean_s[flow.phase[e]]
    flow.next_s[e] = min(gap_s, left_s)
