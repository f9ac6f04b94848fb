"""Twin of a site whose devices are re-assigned: all tasks at once, slot by slot.

Each task has an engine of its own, with a server for every copy that a device could hold, and most
of them away. They run side by side to the end of a slot; then `inferway.placement.assign`, the same
as live, is told how many requests each task had, and what it wants is brought about: a copy that
goes takes no more requests and answers those that it has, the one that comes is ready after its
`load_time`. Devices are never given to more copies than they have room for, so no run waits for a
copy of another task.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.workloads import PhasedArrivals, TraceArrivals
from inferway.dispatch.joint import empty_shared, means_of
from inferway.dispatch.priced import HEADROOM
from inferway.placement.assign import Assign, Decision, Key, Shift
from inferway.placement.assignment import fluid_bound
from inferway.site.view import Floats
from inferway.twin.engine import CrowdedError, GeneralEngine, engine_of
from inferway.twin.replication import (
    BLOCKS,
    Replicated,
    RunClock,
    finished,
    labeling_of,
    last_of,
    summarize,
    sums,
)
from inferway.twin.result import AssignResult, TaskResult
from inferway.twin.scenario import Scenario, scenario_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.deployment.nodes import Node

_WARM_SLOTS: Final = 6  # Before requests count, where nothing else is asked for
_POLL_S: Final = 0.01  # How often it is looked whether a copy that goes has answered its last
_ALL: Final = 1 << 40  # More requests than any slot has
# Requests of all tasks together that one goes ahead of others with which it shares a target.
_APART: Final = 16.0


def simulate_assigned(
    deployment: Deployment,
    node: str | None,
    names: Sequence[str],
    *,
    queries: int,
    replications: int,
    seed: int,
    warmup: int | None,
    dry_run: bool = False,
    stop: Event | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> tuple[dict[str, TaskResult], AssignResult]:
    """Simulate all tasks of a node under the placement policy `assign`.

    Parameters
    ----------
    deployment, node
        A file whose placement policy is `assign`, and its node.
    names
        The tasks that have a workload here.
    queries, warmup
        Requests per task that count, in the mean over the tasks, and before them: all run for the
        same time. By default there is no warm-up before phases, traces and drift, and else six
        slots.
    replications, seed, stop, progress
        As in `inferway.simulate`; one replication after the other.
    dry_run
        Nothing is moved; what would be is told.

    Raises
    ------
    ValueError
        Where the file lacks what the policy needs, or its instances are more than the devices hold.
    """
    spec = deployment.placement
    assert spec is not None
    place = _place(deployment, node)
    tasks = [deployment.tasks[name] for name in names]
    stop = stop or Event()
    scenarios: dict[str, Scenario] = {}
    outcomes: dict[str, list[Replicated]] = {name: [] for name in names}
    runs: list[_Run] = []
    for number in range(replications):
        policy = Assign.build(place, tasks, means_of(deployment), **spec.options)
        scenarios = scenarios or {
            name: _scenario(deployment, place, policy, name) for name in names
        }
        run = _Run(
            scenarios,
            policy,
            policy.stated(place, {name: one.rate_per_s for name, one in scenarios.items()}),
            (seed, number),
            moves=not dry_run,
            stop=stop,
            progress=progress,
        )
        for name, one in run.whole(queries, warmup).items():
            outcomes[name].append(one)
        runs.append(run)
        if stop.is_set():
            break
    results = {name: summarize(scenarios[name], of) for name, of in outcomes.items()}
    results = {
        name: replace(one, classes={k: v for k, v in one.classes.items() if v.share > 0})
        for name, one in results.items()
    }
    return results, _put_together(runs, policy.slot_s, dry_run)


def _place(deployment: Deployment, node: str | None) -> Node:
    if node is None and len(deployment.nodes) == 1:
        node = next(iter(deployment.nodes))
    if node is None or node not in deployment.nodes:
        raise ValueError(f"name one of the nodes {', '.join(deployment.nodes)}")
    return deployment.nodes[node]


def _most(policy: Assign) -> dict[Key, int]:
    """Copies of each option that its device could hold."""
    return {one.key: max(1, policy.slots.slots[one.device] // one.slots) for one in policy.options}


def _scenario(deployment: Deployment, place: Node, policy: Assign, name: str) -> Scenario:
    """The scenario of one task with a server for every copy that there could be."""
    placed: dict[tuple[str, str], dict[str, int]] = {}
    for (task, variant, device), count in _most(policy).items():
        if task == name:
            placed.setdefault((task, variant), {})[device] = count
    instances = {key: sum(one.values()) for key, one in placed.items()}
    failures = {key: one for key, one in place.failures.items() if key in instances}
    alone = replace(place, placed=placed, instances=instances, failures=failures, outages=())
    found = scenario_of(replace(deployment, nodes={place.name: alone}), name, place.name)
    return replace(found, movable=True)


@dataclass
class _Site:
    """One task: its engine, and which of its servers serve."""

    engine: GeneralEngine
    clock: RunClock
    labeling: Any
    first: dict[Key, tuple[int, int]]  # Servers of each class, from and up to
    serving: set[int]
    blocks: list[Any]
    before: Any = None
    counted: int = 0
    warmed: int = 0
    start: tuple[float, float] = (0.0, 0.0)
    crowded: str = ""
    ended: bool = False


class _Run:
    """One replication of all tasks."""

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        policy: Assign,
        held: Mapping[Key, int],
        seed: tuple[int, int],
        *,
        moves: bool,
        stop: Event,
        progress: Callable[[str, int], None] | None,
    ) -> None:
        self.policy, self._moves, self._stop, self._progress = policy, moves, stop, progress
        self.scenarios = scenarios
        self.now_s = 0.0
        self.decisions: list[tuple[float, Decision]] = []
        self.moved = 0
        self.bounds: list[tuple[float, float]] = []  # Requests of a slot, and the fluid bound
        self.copies_s: Counter[Key] = Counter()
        self._shift = Shift(policy.slots, policy.options, held)
        told = next((one.targets for one in scenarios.values() if one.targets), ())
        # What policies share of targets over several tasks, and how far one goes on before others.
        shared = empty_shared(told, HEADROOM) if told else None
        rate_per_s = sum(one.rate_per_s for one in scenarios.values())
        self._step_s = math.inf if shared is None else _APART / rate_per_s
        self._sites = {
            name: _site(name, one, held, shared if one.targets else None, *seed)
            for name, one in scenarios.items()
        }
        # Copies that answer their last requests, and those that are loaded until a time.
        self._going: list[tuple[Key, int]] = []
        self._coming: list[tuple[float, Key]] = []

    def whole(self, queries: int, warmup: int | None) -> dict[str, Replicated]:
        """Run it all, and let the sites empty."""
        slot_s, names = self.policy.slot_s, list(self._sites)
        rate = sum(one.rate_per_s for one in self.scenarios.values()) / len(names)
        if warmup is not None:
            warm_s = warmup / rate
        else:
            begins = any(
                isinstance(one.arrivals, PhasedArrivals | TraceArrivals) or one.drift is not None
                for one in self.scenarios.values()
            )
            warm_s = 0.0 if begins else _WARM_SLOTS * slot_s
        warm = math.ceil(warm_s / slot_s - 1e-9)
        slots = warm + max(1, math.ceil(queries / rate / slot_s - 1e-9))
        if warm == 0:
            self._count_anew()
        every = max(1, (slots - warm) // BLOCKS)
        for slot in range(slots):
            if self._stop.is_set() or all(one.ended for one in self._sites.values()):
                break
            arrived = self._slot((slot + 1) * slot_s)
            counts = slot >= warm
            for name, count in arrived.items():
                site = self._sites[name]
                if counts:
                    site.counted += count
                else:
                    site.warmed += count
                if counts and self._progress is not None:
                    self._progress(name, count)
            rates = {name: count / slot_s for name, count in arrived.items()}
            if counts:
                bound = fluid_bound(self.policy.slots, self.policy.options, rates)
                self.bounds.append((sum(arrived.values()), bound))
                for key, count in self._shift.serving.items():
                    self.copies_s[key] += count
            self._decide(rates)
            if slot + 1 == warm:
                self._count_anew()
            elif counts and (slot - warm) % every == every - 1:
                self._block()
        self._block()
        return {
            name: last_of(
                finished(
                    one.clock,
                    one.blocks,
                    one.labeling,
                    before=one.before,
                    start=one.start,
                    queries=one.counted,
                    warmup=one.warmed,
                    crowded=one.crowded,
                    complete=not (self._stop.is_set() or one.crowded),
                )
            )
            for name, one in self._sites.items()
        }

    def _decide(self, rates_per_s: Mapping[str, float]) -> None:
        decision = self.policy.step(rates_per_s, self._shift.there)
        if not decision.moves:
            return
        self.decisions.append((self.now_s, decision))
        self.moved += len(decision.moves)
        if self._moves:
            self._shift.wanted = decision.copies

    def _count_anew(self) -> None:
        for site in self._sites.values():
            site.start = (site.engine.now_s, float(site.engine.present))
            site.engine.count_anew()
            site.engine.cpu_s = 0.0
            site.before = sums(site.engine, site.labeling)

    def _block(self) -> None:
        for site in self._sites.values():
            if site.before is None:
                continue
            after = sums(site.engine, site.labeling)
            site.blocks.append(after - site.before)
            site.before = after

    def _slot(self, end_s: float) -> dict[str, int]:
        """Run to the end of a slot; how many requests of each task came."""
        arrived = dict.fromkeys(self._sites, 0)
        while self.now_s < end_s:
            while (step := self._shift.next()) is not None:
                if step.kind == "load":
                    ready_s = self.now_s + self._option(step.key).load_s
                    self._coming.append((ready_s, step.key))
                else:
                    self._going.append((step.key, self._retired(step.key)))
            until_s = min([end_s, self.now_s + self._step_s, *(at_s for at_s, _ in self._coming)])
            if self._going:
                until_s = min(until_s, self.now_s + _POLL_S)
            for name, site in self._sites.items():
                arrived[name] += self._advance(site, until_s)
            self.now_s = until_s
            self._look()
        return arrived

    def _advance(self, site: _Site, until_s: float) -> int:
        if site.crowded:
            return 0
        try:
            count = _run_to(site.clock.advance(_ALL, until_s))
        except CrowdedError as error:
            site.crowded, site.ended = str(error), True
            return 0
        site.ended = site.clock.ended
        return count

    def _look(self) -> None:
        """See which copies have answered their last, and which are loaded."""
        going, self._going = self._going, []
        for key, server in going:
            if self._sites[key[0]].engine.site.queue[server] > 0:
                self._going.append((key, server))
            else:
                self._shift.drained(key)
        coming, self._coming = self._coming, []
        for at_s, key in coming:
            if at_s > self.now_s:
                self._coming.append((at_s, key))
                continue
            site = self._sites[key[0]]
            first, end = site.first[key]
            busy = {server for other, server in self._going if other == key}
            server = next(
                one for one in range(first, end) if one not in site.serving and one not in busy
            )
            site.engine.enlist(server, self.now_s)
            site.serving.add(server)
            self._shift.loaded(key)

    def _retired(self, key: Key) -> int:
        """Retire the copy with the shortest queue; its server."""
        site = self._sites[key[0]]
        first, end = site.first[key]
        queue = site.engine.site.queue
        server = min(
            (one for one in range(first, end) if one in site.serving),
            key=lambda one: (queue[one], -one),
        )
        site.engine.retire(server, self.now_s)
        site.serving.remove(server)
        return server

    def _option(self, key: Key) -> Any:
        return next(one for one in self.policy.options if one.key == key)


def _site(
    name: str,
    scenario: Scenario,
    held: Mapping[Key, int],
    shared: Floats | None,
    seed: int,
    replication: int,
) -> _Site:
    engine = engine_of(scenario, seed=seed, replication=replication, kind="general", shared=shared)
    assert isinstance(engine, GeneralEngine)
    fleet = scenario.fleet
    bounds = fleet.first.tolist()
    first = {
        (name, variant, device): (bounds[k], bounds[k + 1])
        for k, (variant, device) in enumerate(zip(fleet.names, fleet.runs_on, strict=True))
    }
    serving: set[int] = set()
    for key, (begin, end) in first.items():
        here = min(held.get(key, 0), end - begin)
        serving.update(range(begin, begin + here))
        for server in range(begin + here, end):
            engine.retire(server, 0.0)
    labeling = labeling_of(engine, scenario, seed, replication)
    return _Site(engine, RunClock(engine, scenario, None, labeling), labeling, first, serving, [])


def _run_to(course: Generator[float, None, int]) -> int:
    """Run on, whatever else is to go on now; how many requests have arrived."""
    while True:
        try:
            next(course)
        except StopIteration as ended:
            return int(ended.value)


def _put_together(runs: Sequence[_Run], slot_s: float, dry_run: bool) -> AssignResult:
    weights = np.array([pair for run in runs for pair in run.bounds]).reshape(-1, 2)
    requests = float(weights[:, 0].sum())
    slots = len(weights)
    copies: Counter[Key] = Counter()
    for run in runs:
        copies.update(run.copies_s)
    return AssignResult(
        slot_s=slot_s,
        slots=slots,
        moves=0 if dry_run else sum(run.moved for run in runs),
        bound=float(weights[:, 0] @ weights[:, 1] / requests) if requests else math.nan,
        copies={
            "/".join(key[:2]) + f":{key[2]}": n / slots for key, n in sorted(copies.items()) if n
        },
        decisions=tuple(
            {"replication": number, "at_s": at_s, **one.to_json()}
            for number, run in enumerate(runs)
            for at_s, one in run.decisions
        ),
        dry_run=dry_run,
    )
