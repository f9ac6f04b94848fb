"""Control: the site that a scheduler decides on slot by slot, and what its decisions are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferway.deployment import Batch
from inferway.deployment.workloads import (
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from inferway.scheduling.neural_policy import About
from inferway.twin.scenario import Scenario


@dataclass(frozen=True)
class Control:
    """A site and how it is controlled; ValueError where slots of random routing cannot run it.

    The scenario is a fleet with a limited buffer, service times and how they drift, arrivals
    (Poisson, map, phases or trace), deadline, whether late requests are served, and `failures`:
    with them servers go away and come back at random, observations say which are there, and what
    is trained is for any part of the fleet. Its policy plays no part.
    """

    scenario: Scenario
    slot_s: float = 1.0  # between two decisions
    sees_phase: bool = False  # observations say the workload's state: full observability
    # A decision also sets the smallest and largest batch of each class; else the scenario's hold.
    batches: bool = False
    rejected_weight: float = 1.0  # alpha of eq. 2
    accuracy_weight: float = 1.0  # beta
    # (K,) accuracies in the reward, else the fleet's: the paper trains on other data than it is
    # evaluated on.
    gains: tuple[float, ...] = ()
    # The sites of further tasks that the same policy decides for; see `parts`.
    others: tuple[Control, ...] = ()

    def __post_init__(self) -> None:
        scenario, fleet, gains = self.scenario, self.scenario.fleet, self.reward_gains
        fastest_s, kinds = 1.0 / float(max(fleet.rate)), MapArrivals | PhasedArrivals
        refused = {
            "a site under slotted control has a limited buffer: give its node `buffer`": (
                fleet.buffer is None
            ),
            "random routing has no central queue: leave `queue: central` out": (
                scenario.queue != "per-server"
            ),
            "outages at set times are not part of training, where servers come and go at random": (
                scenario.outages
            ),
            f"a slot is longer than 0 s, not {self.slot_s:g}": not self.slot_s > 0,
            f"the deadline of {self.deadline_s:g} s is shorter than the fastest service time, "
            f"{fastest_s:g} s: no request could be in time": self.deadline_s < fastest_s,
            f"arrivals of the kind {scenario.arrivals.process} are not simulated in slots; "
            "poisson, map, phases and trace are": (
                not isinstance(scenario.arrivals, kinds | PoissonArrivals | TraceArrivals)
            ),
            "no variant has a `batch`, so there are no batch sizes to choose from": (
                self.batches and not any(scenario.batches)
            ),
            f"gains are {len(fleet.rate)} accuracies in 0..1, not {gains}": (
                len(gains) != len(fleet.rate) or not all(0 <= gain <= 1 for gain in gains)
            ),
            "servers come and go in the training of one task: leave the outages of several out": (
                bool(self.others) and any(one.scenario.failures for one in (self, *self.others))
            ),
            "tasks of one policy have slots of one length, it sees and sets the same of each": any(
                (one.slot_s, one.sees_phase, one.batches)
                != (self.slot_s, self.sees_phase, self.batches)
                for one in self.others
            ),
        }
        for sentence, holds in refused.items():
            if holds:
                raise ValueError(sentence)

    @property
    def parts(self) -> tuple[Control, ...]:
        """The control of each task that one policy decides for: one, as a rule."""
        return replace(self, others=()), *self.others

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that one policy decides for, by name."""
        return tuple(part.scenario.fleet.task for part in self.parts)

    @property
    def by_events(self) -> bool:
        """Tell whether its sites run event by event.

        That is for the shield of `late: drop`, services that drift, or devices that servers share.
        """
        drops = self.scenario.late == "drop" and self.scenario.deadline_s is not None
        return drops or self.scenario.walk is not None or self.scenario.fleet.devices is not None

    @property
    def changing(self) -> bool:
        """Tell whether servers come and go."""
        return bool(self.scenario.failures)

    @property
    def outages(self) -> tuple[tuple[float, float], ...]:
        """(K, 2) mean times until a server of each class goes and is back, s; inf for never."""
        never = (np.inf, np.inf)
        return tuple(
            never if failing is None else (failing.every_s, failing.for_s)
            for failing in map(self.scenario.failures.get, self.scenario.fleet.variants)
        )

    @property
    def deadline_s(self) -> float:
        """From arrival; infinite where the scenario has none."""
        return np.inf if self.scenario.deadline_s is None else self.scenario.deadline_s

    @property
    def offered(self) -> tuple[Batch | None, ...]:
        """(K,) batches of each class, None where there are none."""
        return self.scenario.batches or (None,) * len(self.scenario.fleet.rate)

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """(K,) batch sizes that each class offers."""
        return tuple((1,) if batch is None else batch.sizes for batch in self.offered)

    @property
    def reward_gains(self) -> tuple[float, ...]:
        """(K,) reward of an answer in time, before its weight."""
        return self.gains or tuple(map(float, self.scenario.fleet.accuracy))

    @property
    def phases(self) -> int:
        """Phases of the workload."""
        match self.scenario.arrivals:
            case MapArrivals(d0=phases) | PhasedArrivals(phases=phases):
                return len(phases)
        return 1

    def about(self, task: str = "", **trained: Any) -> About:
        """Describe a policy for these sites, as its file does; `trained` are other fields of it.

        One for several tasks has the names of all, which tell their order.
        """
        scenario, fleet, longest_s = self.scenario, self.scenario.fleet, None
        task = task or (fleet.task if self.others else "")
        assert fleet.buffer is not None
        service_s = tuple(time.mean_s for time in scenario.service)
        if self.sees_phase and isinstance(scenario.arrivals, PhasedArrivals):
            longest_s = max(phase.for_ for phase in scenario.arrivals.phases)
        return About(
            policy=f"rl-{'fo' if self.sees_phase else 'po'}{'-b' if self.batches else ''}",
            task=task,
            variants=tuple(fleet.variants),
            counts=tuple(map(int, fleet.count)),
            accuracies=tuple(map(float, fleet.accuracy)),
            service_s=service_s,
            buffer=fleet.buffer,
            deadline_s=self.deadline_s,
            slot_s=self.slot_s,
            batch_sizes=self.sizes if self.batches else None,
            batch_service_s=tuple(
                (mean_s,) if batch is None else tuple(map(float, batch.service_s))
                for mean_s, batch in zip(service_s, self.offered, strict=True)
            )
            if self.batches
            else None,
            phases=self.phases if self.sees_phase else None,
            longest_phase_s=longest_s,
            outages=self.outages if self.changing else None,
            others=tuple(one.about(one.scenario.fleet.task) for one in self.others),
            **trained,
        )

    @property
    def features(self) -> int:
        """Length of an observation, of all tasks."""
        return self.about().inputs
