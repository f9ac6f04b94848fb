"""Sites under slotted control: what every environment and trainer of ours stands on.

The simulation is `inferway.learning.routed`: E independent sites in lockstep, each routed
at random by the probabilities of its slot, with the reward of [Tan24], eq. 2. `evaluate` runs a
policy as it is deployed and counts what came of the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from inferway.learning import routed
from inferway.learning.arrivals import begin, flow_of
from inferway.learning.by_events import EventSites
from inferway.learning.control import Control
from inferway.learning.together import JointSites
from inferway.site.compiled import call_of, entry
from inferway.site.draw import streams
from inferway.site.handle import pin
from inferway.twin.kernel.service_times import laws

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Observation = NDArray[np.float32]
# (E, d) observations to (E, n) probabilities and (E, K, 2) batch rules, or None.
Decide = Callable[[Observation], tuple[Floats, Ints | None]]


class SlottedSites:
    """E sites in lockstep, one decision per site and slot.

    Site e draws from streams of its own, the same whatever E is.

    Attributes
    ----------
    observation
        (E, d) float32: what a controller sees, in the order of `inferway.scheduling.observation`.
        The next slot writes over it, as over `rewards`, `outcomes` and `arrivals`.
    rewards
        (E,) of the last slot, eq. 2.
    outcomes, arrivals
        Of the last slot's requests; (E,) how many arrived.
    counts
        Of the requests since `clear`, by site and phase of arrival.
    clock_s, phase
        (E,) the time, and the workload's phase.
    away
        (E, n) uint8: servers that are away are not 0. Where the scenario has failures, each is on
        or off for exponential times, in its long run at the beginning, and changes where slots end.
    """

    def __init__(self, control: Control, *, count: int = 1, seed: int = 0) -> None:
        if count < 1:
            raise ValueError(f"at least one site, not {count}")
        if control.scenario.walk is not None:
            raise ValueError("services drift at sites that run by events: see `sites_of`")
        if control.scenario.fleet.devices is not None:
            raise ValueError("servers share devices at sites that run by events: see `sites_of`")
        self.control, self.count = control, count
        self._sites = sites = _sites(control, count)
        # A slot takes a microsecond; to unpack forty arrays at each call would take twenty.
        self._pinned = pin(sites)
        self._advance = call_of(_ADVANCE, self._pinned.kind, *_DECISION)
        self._look = call_of(_LOOK, self._pinned.kind)
        self._come_and_go = call_of(_COME_AND_GO, self._pinned.kind) if control.changing else None
        own = [(1, 1) if batch is None else (batch.min, batch.max) for batch in control.offered]
        self._own_batches = np.array([own] * count, np.int64)
        self.observation, self.rewards = sites.observation, sites.reward
        self.outcomes, self.counts = sites.outcomes, sites.counted
        self.arrivals = sites.outcomes.arrived
        self.clock_s, self.phase = sites.clock_s, sites.flow.phase
        self.away = sites.presence.away
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Empty all sites, at time 0, the workload somewhere in its long run."""
        sites, arrivals = self._sites, self.control.scenario.arrivals
        for array in (*sites.servers, sites.clock_s, sites.reward, *sites.counted, *sites.outcomes):
            array[:] = 0
        for e in range(self.count):
            sites.states[e] = streams(seed, e, 3)
            begin(sites.flow, e, arrivals, np.random.default_rng(streams(seed, e, 4)[3]))
        if self._come_and_go is not None:
            presence, gone = sites.presence, _gone(self.control)
            presence.share[:] = 0.0
            for e in range(self.count):
                presence.states[e] = word = streams(seed, e, 5)[4]
                presence.away[e] = np.random.default_rng(word).random(len(gone)) < gone
        self._look(self._pinned.handle)

    def step(self, probabilities: Floats, batches: Ints | None = None) -> Floats:
        """Run all sites for a slot; the (E,) rewards, in place as `rewards`.

        (E, n) probabilities by server are float64 at least 0, each row with a sum above 0; (E, K,
        2) are int64 smallest and largest batches, None for the scenario's own. What a server that
        is away is given goes to the others.
        """
        rules = np.ascontiguousarray(self._own_batches if batches is None else batches)
        routing = np.ascontiguousarray(probabilities)
        self._advance(self._pinned.handle, routing, rules, self.control.slot_s)
        if self._come_and_go is not None:
            self._come_and_go(self._pinned.handle)
        return self.rewards

    def clear(self) -> None:
        """Count anew."""
        for counts in self.counts:
            counts[:] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all that changes, for `restore`."""
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
        nested = {
            f"{part}.{name}": array
            for part in ("servers", "routed", "counted", "outcomes")
            for name, array in getattr(sites, part)._asdict().items()
        }
        flow = ("next_s", "phase", "switch_s", "end_s", "at", "base_s")
        nested |= {f"flow.{name}": getattr(sites.flow, name) for name in flow}
        if self.control.changing:
            for name in ("away", "states", "share"):
                nested[f"presence.{name}"] = getattr(sites.presence, name)
        own = ("clock_s", "reward", "observation", "states")
        return nested | {name: getattr(sites, name) for name in own}


Sites = SlottedSites | EventSites


def sites_of(control: Control, *, count: int = 1, seed: int = 0) -> Sites:
    """Make the sites of a task: by events where it needs that, else those that are faster."""
    made = EventSites if control.by_events else SlottedSites
    return made(control, count=count, seed=seed)


def joint_sites_of(control: Control, *, count: int = 1, seed: int = 0) -> Sites | JointSites:
    """Make the sites of a control: those of its one task, or of all of them together."""
    parts = [sites_of(one, count=count, seed=seed) for one in control.parts]
    if len(parts) == 1:
        return parts[0]
    joint = JointSites(control, parts)
    joint.restart(seed)
    return joint


def parts_of(sites: Sites | JointSites) -> list[Sites]:
    """The sites of each task: one, as a rule."""
    return sites.parts if isinstance(sites, JointSites) else [sites]


_ADVANCE, _LOOK = entry(routed.advance), entry(routed.look)
_COME_AND_GO = entry(routed.come_and_go)
# Types of what `routed.advance` takes besides the sites.
_DECISION = (numba.float64[:, ::1], numba.int64[:, :, ::1], numba.float64)


def _sites(control: Control, count: int) -> routed.SiteArrays:
    scenario, fleet = control.scenario, control.scenario.fleet
    assert fleet.buffer is not None
    n, classes, phases = fleet.servers, len(fleet.rate), control.phases
    places = n, 1 << fleet.buffer.bit_length()
    rule = laws(scenario.service, control.offered)
    mean_s = np.array([time.mean_s for time in scenario.service])
    drops = scenario.late == "drop" and scenario.deadline_s is not None
    gains = control.accuracy_weight * np.array(control.reward_gains)

    every_s, for_s = np.array(control.outages).T
    # The process at the ends of slots forgets where it was at this rate.
    forgets_per_s = np.repeat(1.0 / every_s + 1.0 / for_s, fleet.count)
    changes = 1.0 - np.exp(-control.slot_s * forgets_per_s)

    def zeros(*shape: int, kind: Any = np.float64) -> NDArray[Any]:
        return np.zeros((count, *shape), kind)

    ints, words = partial(zeros, kind=np.int64), partial(zeros, kind=np.uint32)
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
            deadline_s=control.deadline_s,
            drops=drops,
            eager=not any(scenario.batches) and not drops,
            worth=np.stack([gains, np.full(classes, -1.0)], axis=1),
            loss=control.rejected_weight,
            service_s=np.maximum(mean_s, rule.batch_s.max(axis=1)),
            age_s=fleet.buffer * float(mean_s.max()),
            sees_phase=control.sees_phase,
            batches=control.batches,
            changing=control.changing,
        ),
        laws=rule,
        clock_s=zeros(),
        reward=zeros(),
        observation=zeros(control.features, kind=np.float32),
        states=zeros(3, kind=np.uint64),
        presence=routed.Presence(
            away=zeros(n, kind=np.uint8),
            states=zeros(kind=np.uint64),
            share=zeros(n),
            goes=_gone(control) * changes,
            returns=(1.0 - _gone(control)) * changes,
        ),
    )


def _gone(control: Control) -> Floats:
    """(n,) share of the time that each server is away."""
    every_s, for_s = np.array(control.outages).T
    gone = np.divide(for_s, every_s + for_s, out=np.zeros(len(for_s)), where=np.isfinite(every_s))
    return np.repeat(gone, control.scenario.fleet.count)


@dataclass(frozen=True)
class PhaseTally:
    """Counts by phase of the workload at arrival, over all sites."""

    arrived: Ints  # (m,)
    rejected: Ints  # (m,) or dropped
    late: Ints  # (m,) answered late
    timely: Ints  # (m, K) answered in time
    sent: Ints  # (m, K) accepted
    accuracy: Floats  # (K,)
    # (m,) the most accurate class for the phase's requests; of several tasks, their own
    best: Ints

    @staticmethod
    def of(sites: Sites | JointSites) -> PhaseTally:
        """Sum what sites have counted since they were cleared.

        Phases and classes of several tasks are those of each, one behind the other.
        """
        if isinstance(sites, JointSites):
            return _one_behind_the_other([PhaseTally.of(part) for part in sites.parts])
        counts = sites.counts
        accuracy = np.asarray(sites.control.scenario.fleet.accuracy, np.float64)
        return PhaseTally(
            arrived=counts.arrived.sum(axis=0),
            rejected=(counts.rejected + counts.dropped).sum(axis=0),
            late=counts.answered[..., 1].sum(axis=(0, 2)),
            timely=counts.answered[..., 0].sum(axis=0),
            sent=counts.sent.sum(axis=0),
            accuracy=accuracy,
            best=np.full(counts.arrived.shape[1], accuracy.argmax()),
        )

    @property
    def goodput(self) -> Floats:
        """(m,) correct answers in time per request; nan in a phase without requests."""
        return _share(self.timely @ self.accuracy, self.arrived)

    @property
    def violations(self) -> Floats:
        """(m,) share of the requests that were rejected or late."""
        return _share(self.rejected + self.late, self.arrived)

    @property
    def heavy(self) -> Floats:
        """(m,) share of the accepted requests at the most accurate class."""
        return _share(self.sent[np.arange(len(self.best)), self.best], self.sent.sum(axis=1))

    @property
    def overall_goodput(self) -> float:
        """Mean of the phases with requests: [Tan24]'s overall."""
        return _mean(self.goodput)

    @property
    def overall_violations(self) -> float:
        """As `overall_goodput`."""
        return _mean(self.violations)

    def figures(self) -> dict[str, float]:
        """Name the shares as a learning curve does: overall, and by phase behind the name."""
        by_phase = {
            f"{name}_{phase}": share
            for name in ("goodput", "violations", "heavy")
            for phase, share in enumerate(getattr(self, name).tolist())
        }
        overall = {"goodput": self.overall_goodput, "violations": self.overall_violations}
        return overall | by_phase


def _one_behind_the_other(tallies: Sequence[PhaseTally]) -> PhaseTally:
    """The tally of several tasks: no request of one goes to a class of another."""
    classes = np.cumsum([0, *(len(one.accuracy) for one in tallies)])

    def blocks(arrays: Sequence[Ints]) -> Ints:
        every = np.zeros((sum(len(one) for one in arrays), classes[-1]), np.int64)
        at = 0
        for first, one in zip(classes, arrays, strict=False):
            every[at : at + len(one), first : first + one.shape[1]] = one
            at += len(one)
        return every

    return PhaseTally(
        arrived=np.concatenate([one.arrived for one in tallies]),
        rejected=np.concatenate([one.rejected for one in tallies]),
        late=np.concatenate([one.late for one in tallies]),
        timely=blocks([one.timely for one in tallies]),
        sent=blocks([one.sent for one in tallies]),
        accuracy=np.concatenate([one.accuracy for one in tallies]),
        best=np.concatenate(
            [one.best + first for one, first in zip(tallies, classes, strict=False)]
        ),
    )


def _share(part: NDArray[np.generic], whole: Ints) -> Floats:
    share = np.full(len(whole), np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share


def _mean(shares: Floats) -> float:
    counted = shares[~np.isnan(shares)]
    return float(counted.mean()) if len(counted) else float("nan")


def evaluate(
    decide: Decide,
    control: Control,
    *,
    slots: int = 600_000,
    sites: int = 200,
    seed: int = 0,
    warmup: int = 10,
) -> PhaseTally:
    """Run a policy and count the sites' requests by phase at their arrival.

    The slots are those of all sites together, rounded up to whole slots of each: the paper's
    600,000 by default. Sites begin empty, the workload in its long run; their first slots, the
    warm-up, do not count. The seed is that of workload, service times and routing.
    """
    run = joint_sites_of(control, count=sites, seed=seed)
    for t in range(warmup + -(-slots // sites)):
        if t == warmup:
            run.clear()
        run.step(*decide(run.observation))
    return PhaseTally.of(run)
