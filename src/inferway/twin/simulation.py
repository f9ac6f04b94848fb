"""Simulate: replications on all cores, with progress, ended by Ctrl-C with what is known so far."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.dispatch.deployed import dispatcher_of
from inferway.site.compiled import Compilation, watched
from inferway.twin.engine import Kind, engine_of
from inferway.twin.joint import JointLoop, engines_of, in_one_loop
from inferway.twin.kernel.state import Records, empty_records
from inferway.twin.replication import replicate, replicate_together, summarize
from inferway.twin.result import Comparison, TaskResult, TwinResult
from inferway.twin.scenario import Scenario, scenario_of, sharers
from inferway.twin.trace import calibrated, departures, measured, replayed, simulated, traces

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.deployment.nodes import Node
    from inferway.site.fleet import Fleet
    from inferway.twin.result import NetworkResult


QUERIES = 1_000_000
_OF_A_TRACE = 16  # Replications of a trace
# The note of a result that Ctrl-C ended.
INTERRUPTED = "interrupted: this is what was known by then"
_SLOTS, _SLOTS_OF_EVENTS = 240, 20  # Of a network, and of one that is simulated request by request
# How soon Ctrl-C is noticed: a thread that waits for a lock without a limit hears nothing.
_POLL_S = 0.1
# What became of a request, by numbers of `twin.kernel.state`.
OUTCOMES = ("answered", "late", "dropped", "rejected")


def simulate(
    deployment: Deployment,
    *,
    node: str | None = None,
    tasks: tuple[str, ...] | None = None,
    queries: int = QUERIES,
    replications: int | None = None,
    seed: int | None = None,
    warmup: int | None = None,
    workers: int | None = None,
    records: Path | None = None,
    trace: Path | None = None,
    stop: threading.Event | None = None,
    policy: str | type | None = None,
    scheduling: str | Mapping[str, Any] | None = None,
    placement: str | Mapping[str, Any] | None = None,
    rate: float | str | None = None,
    load: float | None = None,
    target: float | None = None,
    deadline: float | str | None = None,
    instances: Mapping[str, int] | None = None,
    slots: int | None = None,
    regret: bool = False,
    events: bool = False,
    fetch_rate: float | None = None,
    start_s: float | None = None,
    letters_lost: float | None = None,
    letters_s: float | None = None,
    dry_run: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> TwinResult:
    """Simulate the site of a deployment file, each of its tasks with the policy that it names.

    A file with `network` is simulated slot by slot under its placement policy instead; of the
    parameters, `slots`, `regret`, `events`, `seed`, `stop`, `progress` and what takes the place of
    the file's values apply then.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node that is meant; may be left out where the file has one.
    tasks
        Which of its tasks; all with instances there by default.
    queries
        Requests that count, per task and replication; fewer where a trace ends before.
    replications
        Independent runs, on as many cores as there are; 1 by default, and 16 of a trace, whose
        arrivals are the same in each.
    seed
        The file's by default.
    warmup
        Requests before those that count; found by default.
    workers
        Replications at the same time; as many as there are cores by default.
    records
        A folder for one Parquet file per task with a row per request.
    trace
        A folder that `inferway serve --record` wrote: its requests take the place of the file's
        workload, all of them, and `TaskResult.trace` compares the live server with the twin.
    stop
        Ends it early once it is set, as Ctrl-C does.
    policy, scheduling, placement, rate, load, target, deadline, instances
        In place of what the file says, as `Deployment.with_` has them. Of a network, a `policy`
        that is the name of a placement policy means `placement`.
    slots
        How many slots of a network; 240 by default, and 20 with `events`.
    regret
        Compare with the best static allocation of the network, which may take a minute more.
    events
        Simulate a network request by request instead: dispatch and queues at every node,
        forwarding, offers, and models that take time to move.
    fetch_rate, start_s
        With `events`: bytes per second at which a node fetches a model, 125e6 by default, and how
        long it takes then until it can serve, 0.5 s by default.
    letters_lost, letters_s
        With `events`, and a placement policy whose nodes write to each other: the share of their
        letters about a slot that never come, and the mean time that letters take beside half the
        round trip. With either, nodes decide with what came within a tenth of a slot, as live;
        with neither, at the slot's end with all of it.
    dry_run
        Of the placement policy `assign`: move nothing, and tell what would be moved.
    progress
        Told the task and how many more queries are done, now and then, from several threads; of a
        network the policy and how many more slots, or requests with `events`.

    Returns
    -------
    TwinResult
        By task, or of the network. After Ctrl-C, what had been counted until then, marked as
        incomplete.

    Raises
    ------
    ValueError
        Where the file lacks what a simulation needs, a number is out of range, or there is no
        recording that can be simulated.
    """
    moved = None
    if deployment.network is not None:
        # Imported here: a site needs neither networks nor placement.
        from inferway.placement.contract import POLICIES, WRITTEN

        if isinstance(policy, str) and (policy in POLICIES or policy == WRITTEN):
            policy, moved = None, policy
        if isinstance(placement, str):
            placement, moved = None, placement
    deployment = deployment.with_(
        policy=policy,
        scheduling=scheduling,
        placement=placement,
        rate=rate,
        load=load,
        target=target,
        deadline=deadline,
        instances=instances,
        node=node,
    )
    told = partial(partial, progress) if progress is not None else (lambda name: None)
    if deployment.network is not None:
        apart = {"node": node, "tasks": tasks, "replications": replications, "warmup": warmup}
        for name, value in (apart | {"records": records, "trace": trace}).items():
            if value is not None:
                raise ValueError(
                    f"`{name}` is of one site's queues; this file has a `network`, which is "
                    "simulated as a whole, slot by slot"
                )
        from inferway.placement.contract import policy_of

        settings: dict[str, Any] = {"policy": moved, "seed": seed, "stop": stop}
        settings["progress"] = told(policy_of(deployment, moved))
        moves = {"fetch_rate": fetch_rate, "start_s": start_s}
        moves |= {"letters_lost": letters_lost, "letters_s": letters_s}
        return _networked(deployment, slots, regret, events, moves, settings)
    elsewhere = placement is not None and not deployment.assigns
    if slots is not None or elsewhere or regret or events:
        raise ValueError("the file has no `network`, so there are no slots and no placement")
    settings = {"seed": deployment.seed if seed is None else seed, "workers": workers, "stop": stop}
    if trace is not None:
        settings["replications"] = _OF_A_TRACE if replications is None else replications
        return _traced(deployment, trace, node, tasks, records, told, **settings)
    names = tasks or tuple(deployment.workload)
    if not names:
        raise ValueError("the file has no `workload`, so there is nothing to simulate")
    settings |= {"queries": queries, "warmup": warmup}
    settings["replications"] = 1 if replications is None else replications
    if deployment.assigns:
        if records is not None:
            raise ValueError("`records` are not kept where devices are given out anew")
        groups_of(deployment, names)  # or targets are over others, too
        return _assigned(
            deployment,
            node,
            names,
            dry_run=dry_run,
            progress=progress,
            **settings,
        )
    if dry_run:
        raise ValueError(
            "`dry_run` is of the placement policy assign, which the file does not name"
        )
    found: dict[str, TaskResult] = {}
    for group in groups_of(deployment, with_sharers(deployment, names, node), node):
        if not set(group) & set(names):
            continue
        files = {name: records / f"{name}.parquet" for name in group if records is not None}
        scenarios, absent = without_absent(
            {name: scenario_of(deployment, name, node) for name in group}
        )
        if len(group) > 1:
            told_by = {} if progress is None else {name: partial(progress, name) for name in group}
            together = run_together(scenarios, records=files, progress=told_by, **settings)
        else:
            (name,) = group
            scenario = scenarios[name]
            together = {
                name: run(scenario, progress=told(name), records=files.get(name), **settings)
            }
        found |= {name: _beside(one, absent[name], "workload") for name, one in together.items()}
        if any(INTERRUPTED in found[name].notes for name in group):
            break
    return _reached(found, names)


def _reached(found: Mapping[str, TaskResult], names: Iterable[str]) -> TwinResult:
    """Keep the tasks asked for that were simulated before Ctrl-C, and the names of the others."""
    reached = {name: found[name] for name in names if name in found}
    return TwinResult(reached, not_begun=tuple(name for name in names if name not in found))


def with_sharers(
    deployment: Deployment,
    names: Sequence[str],
    node: str | None = None,
    among: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Add the tasks whose runs those of these may wait for: `among` these, or with a workload.

    Also those that one policy schedules together with them.
    """
    place = _node_of(deployment, node)
    share = {} if place is None else sharers(deployment, place)
    together = deployment.scheduled_together
    among = tuple(deployment.workload) if among is None else among
    found = [*names]
    for name in found:  # it grows meanwhile
        joined = (*share.get(name, ()), *(together if name in together else ()))
        found += [one for one in dict.fromkeys(joined) if one in among and one not in found]
    if len(found) == len(names):
        return tuple(names)
    # In their order, by which each has its random numbers.
    order = [*among, *(one for one in names if one not in among)]
    return tuple(one for one in order if one in found)


def without_absent(
    scenarios: Mapping[str, Scenario],
) -> tuple[dict[str, Scenario], dict[str, list[str]]]:
    """Take it that nothing is asked of tasks that share devices with these and are not among them.

    Returns the scenarios without those, and their names by the task that shares with them.
    """
    absent = {
        name: [other for other in one.beside if other not in scenarios]
        for name, one in scenarios.items()
    }
    alone = {
        name: replace(one, beside=tuple(other for other in one.beside if other in scenarios))
        for name, one in scenarios.items()
    }
    return alone, absent


def _beside(result: TaskResult, absent: Sequence[str], what: str) -> TaskResult:
    """Note in a result that nothing was asked of other tasks that share its devices."""
    if not absent:
        return result
    names = ", ".join(absent)
    note = f"nothing is asked of {names} on the devices that it shares: there is no {what} of it"
    return replace(result, notes=(*result.notes, note))


def _node_of(deployment: Deployment, node: str | None) -> Node | None:
    """The node that is meant; None where that is not clear."""
    if node is None and len(deployment.nodes) == 1:
        node = next(iter(deployment.nodes))
    return deployment.nodes.get(node or "")


def groups_of(
    deployment: Deployment, names: Sequence[str], node: str | None = None
) -> list[tuple[str, ...]]:
    """Group tasks that are simulated together, in their order.

    Targets, devices or a scheduling policy join them.

    Raises
    ------
    ValueError
        Where a target is over one of these and another one that is not simulated, or one policy
        schedules both.
    """
    groups = {name: frozenset((name,)) for name in names}
    for target in deployment.targets.values():
        inside = [name for name in target.tasks if name in groups]
        if not inside:
            continue
        if len(inside) < len(target.tasks):
            left = next(name for name in target.tasks if name not in groups)
            raise ValueError(
                f"targets.{target.name}: it is over {left} as well, which is left out: give "
                "it a workload, and name all tasks of the target"
            )
        whole = frozenset().union(*(groups[name] for name in inside))
        groups |= dict.fromkeys(whole, whole)
    together = deployment.scheduled_together
    if inside := [name for name in together if name in groups]:
        if len(inside) < len(together):
            left = next(name for name in together if name not in groups)
            raise ValueError(
                f"scheduling.tasks: one policy schedules {inside[0]} together with {left}, which "
                "is left out: give it a workload, and name all of these tasks"
            )
        whole = frozenset().union(*(groups[name] for name in together))
        groups |= dict.fromkeys(whole, whole)
    place = _node_of(deployment, node)
    for name, others in ({} if place is None else sharers(deployment, place)).items():
        if name in groups:
            whole = groups[name].union(*(groups[one] for one in others if one in groups))
            groups |= dict.fromkeys(whole, whole)
    return [tuple(one for one in names if one in group) for group in dict.fromkeys(groups.values())]


def _simulable(deployment: Deployment) -> tuple[str, ...]:
    """Name the tasks with a workload, but for those that are joined to a task without one."""
    names = tuple(deployment.workload)
    joined = [one.tasks for one in deployment.targets.values()] + [deployment.scheduled_together]
    while True:
        broken = [tasks for tasks in joined if not set(tasks) <= {*names}]
        left = tuple(name for name in names if not any(name in tasks for tasks in broken))
        if left == names:
            return names
        names = left


def _assigned(
    deployment: Deployment,
    node: str | None,
    names: tuple[str, ...],
    *,
    workers: int | None,
    **settings: Any,
) -> TwinResult:
    """Run in a thread, so that Ctrl-C ends it at the end of a slot."""
    from inferway.twin.assigned import simulate_assigned

    stop = settings["stop"] = settings["stop"] or threading.Event()
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        running = pool.submit(simulate_assigned, deployment, node, names, **settings)
        whole = _ended([running], stop)
        found, moved = running.result()
    finally:
        pool.shutdown(wait=False)
    if not whole or stop.is_set():
        if not any(one.queries for one in found.values()):
            raise KeyboardInterrupt
        found = {name: replace(one, notes=(*one.notes, INTERRUPTED)) for name, one in found.items()}
    return TwinResult(found, placement=moved)


def _networked(
    deployment: Deployment,
    slots: int | None,
    regret: bool,
    events: bool,
    moves: dict[str, float | None],
    settings: dict[str, Any],
) -> TwinResult:
    """Run in a thread, so that Ctrl-C ends it where all sums are whole."""
    given = {key: value for key, value in moves.items() if value is not None}
    slots = slots if slots is not None else _SLOTS_OF_EVENTS if events else _SLOTS
    run: Callable[..., NetworkResult]
    if events:
        from inferway.twin.network.events import simulate_events as run

        if regret:
            raise ValueError("`regret` is of whole slots; leave `events` out to compare by it")
    else:
        from inferway.twin.slots import simulate_slots as run

        if given:
            reason = "in slots, moving takes no time, and letters are there at once"
            raise ValueError(f"`{next(iter(given))}` needs `events`: {reason}")
        given = {"regret": regret}
    stop = settings["stop"] = settings["stop"] or threading.Event()
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        running = pool.submit(run, deployment, slots=slots, **settings, **given)
        _ended([running], stop)
        found = running.result()
    finally:
        pool.shutdown(wait=False)
    if found.slots < slots or not getattr(found, "complete", True):
        found = replace(found, notes=(*found.notes, INTERRUPTED))
    return TwinResult({}, found)


def _traced(
    deployment: Deployment,
    folder: Path,
    node: str | None,
    tasks: tuple[str, ...] | None,
    records: Path | None,
    told: Callable[[str], Any],
    **settings: Any,
) -> TwinResult:
    """Simulate recorded requests, by measured service times and by the file's."""
    found: dict[str, TaskResult] = {}
    every = traces(folder)
    asked = [name for name in every if tasks is None or name in tasks]
    recorded = {name: every[name] for name in with_sharers(deployment, asked, node, every)}
    for name in recorded:
        if name not in deployment.tasks:
            raise ValueError(
                f"{folder} is a recording of task {name!r}; the file has "
                f"{', '.join(map(repr, deployment.tasks))}"
            )
    for group in groups_of(deployment, tuple(recorded), node):
        if not set(group) & set(asked):
            continue
        live = {name: measured(recorded[name]) for name in group}
        told_by = {name: one for name in group if (one := told(name)) is not None}
        queries = max(len(recorded[name].arrived_s) for name in group)
        # One kind of engine for both: each kind is compiled by itself.
        simulation: Callable[..., dict[str, TaskResult]] = partial(
            run_traces, queries=queries, engine="general", progress=told_by, **settings
        )
        with ExitStack() as stack:
            scenarios, absent = without_absent(
                {
                    name: stack.enter_context(replayed(deployment, recorded[name], node))
                    for name in group
                }
            )
            own = {name: records / f"{name}.parquet" for name in group if records is not None}
            measured_by = {name: calibrated(scenarios[name], recorded[name]) for name in group}
            twins = simulation(measured_by, records=own)
            found |= twins
            if any(INTERRUPTED in one.notes for one in twins.values()):
                break
            profiled = simulation(scenarios)
            notes = {name: departures(scenarios[name], recorded[name]) for name in group}
        stopped = any(INTERRUPTED in one.notes for one in profiled.values())
        for name, twin in twins.items():
            beside = (live[name], simulated(twin), simulated(profiled[name]))
            told_of = _beside(twin, absent[name], "recording")
            found[name] = replace(
                told_of,
                trace=Comparison(*beside, tuple(notes[name])),
                notes=(*told_of.notes, INTERRUPTED) if stopped else told_of.notes,
            )
        if stopped:
            break
    if not found:
        raise ValueError(f"{folder} holds no recording of {', '.join(map(repr, tasks or ()))}")
    return _reached(found, asked)


def run_traces(
    scenarios: Mapping[str, Scenario],
    *,
    queries: int,
    records: Mapping[str, Path] | None = None,
    progress: Mapping[str, Callable[[int], None]] | None = None,
    **settings: Any,
) -> dict[str, TaskResult]:
    """Simulate a task of a trace, or several that targets join, to the end.

    `queries` are those of the longest trace; the rest is as in `run_together`.
    """
    if len(scenarios) > 1:  # none is cut off where one is at its end sooner than on average
        queries *= 2
        return run_together(
            scenarios, queries=queries, records=records, progress=progress, **settings
        )
    ((name, scenario),) = scenarios.items()
    settings |= {"records": (records or {}).get(name), "progress": (progress or {}).get(name)}
    return {name: run(scenario, queries=queries, **settings)}


def run(
    scenario: Scenario,
    *,
    queries: int = QUERIES,
    replications: int = 1,
    seed: int = 0,
    warmup: int | None = None,
    workers: int | None = None,
    engine: Kind | None = None,
    sample_s: float | None = None,
    records: Path | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> TaskResult:
    """Simulate one scenario.

    Parameters
    ----------
    scenario
        What is simulated.
    queries, replications, seed, warmup, workers
        As in `simulate`.
    engine
        Which of `inferway.twin.engine.KINDS`; the fastest that can run it by default.
    sample_s
        Sample the number in the system and the accuracy so often; `TaskResult.series` has them.
    records
        A Parquet file for a row per request.
    stop
        Ends it early once it is set, as Ctrl-C does.
    progress
        Told how many more queries are done, now and then, from several threads.

    Raises
    ------
    ValueError
        Where the policy lacks what it needs or does not compile, or a number is out of range.
    ConservationError
        Where the run's counts do not add up.
    """
    if scenario.targets:
        names = ", ".join(str(one["name"]) for one in scenario.targets)
        raise ValueError(
            f"targets: {scenario.fleet.task} shares {names} with other tasks, and is not simulated "
            "alone"
        )
    if scenario.beside:
        raise ValueError(
            f"nodes.{scenario.fleet.node}.devices: {scenario.fleet.task} shares some with "
            f"{', '.join(scenario.beside)}, and is not simulated alone"
        )
    _check_counts(queries, replications, warmup, workers)
    if sample_s is not None and not sample_s > 0:
        raise ValueError(f"samples are more than 0 s apart, not {sample_s or 0:g}")
    queries = int(queries)  # 1e6 is one too
    # Compiled once, before several threads ask for it.
    first = engine_of(scenario, seed=seed, kind=engine, records=records is not None)
    first.advance(0)
    first.drain()
    stop = stop or threading.Event()
    settings: dict[str, Any] = {"queries": queries, "seed": seed, "warmup": warmup}
    settings |= {"kind": first.kind, "sample_s": sample_s, "stop": stop, "progress": progress}
    with ExitStack() as stack:
        if records is not None:
            settings["sink"] = stack.enter_context(RecordFile(records, scenario.fleet)).write
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=workers or os.cpu_count()))
        pending = [
            pool.submit(replicate, scenario, replication=i, **settings) for i in range(replications)
        ]
        interrupted = not _ended(pending, stop) or (
            stop.is_set() and not any(future.exception() for future in pending)
        )
    outcomes = [future.result() for future in pending]
    counted = [outcome for outcome in outcomes if outcome.queries > 0]
    if not counted and interrupted:
        raise KeyboardInterrupt
    result = summarize(scenario, counted or outcomes)
    return replace(result, notes=(*result.notes, INTERRUPTED)) if interrupted else result


def run_together(
    scenarios: Mapping[str, Scenario],
    *,
    queries: int = QUERIES,
    replications: int = 1,
    seed: int = 0,
    warmup: int | None = None,
    workers: int | None = None,
    engine: Kind | None = None,
    records: Mapping[str, Path] | None = None,
    stop: threading.Event | None = None,
    progress: Mapping[str, Callable[[int], None]] | None = None,
) -> dict[str, TaskResult]:
    """Simulate several tasks side by side, which targets, devices or a policy join.

    Parameters
    ----------
    scenarios
        By task.
    queries
        Requests of the busiest task that count, in each replication; the others have those that
        come meanwhile.
    records, progress
        As in `run`, by task.
    replications, seed, warmup, workers, engine, stop
        As in `run`.

    Raises
    ------
    ValueError, ConservationError
        As `run`.
    """
    _check_counts(queries, replications, warmup, workers)
    stop, records = stop or threading.Event(), records or {}
    kinds: dict[str, Kind] = {}
    if in_one_loop(scenarios):
        if engine not in (None, "general"):
            raise ValueError(f"the engine {engine} cannot run this; general can")
        _compile_jointly(scenarios, seed, records)
        kinds = dict.fromkeys(scenarios, "general")
    for name, one in () if kinds else scenarios.items():  # before several threads ask for it
        first = engine_of(one, seed=seed, kind=engine, records=name in records)
        first.advance(0)
        first.drain()
        kinds[name] = first.kind
    with ExitStack() as stack:
        sinks = {
            name: stack.enter_context(RecordFile(file, scenarios[name].fleet)).write
            for name, file in records.items()
        }
        settings: dict[str, Any] = {"queries": int(queries), "seed": seed, "warmup": warmup}
        settings |= {"kinds": kinds, "sinks": sinks, "stop": stop, "progress": progress or {}}
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=workers or os.cpu_count()))
        pending = [
            pool.submit(replicate_together, scenarios, replication=i, **settings)
            for i in range(replications)
        ]
        interrupted = not _ended(pending, stop) or (
            stop.is_set() and not any(future.exception() for future in pending)
        )
    outcomes = [future.result() for future in pending]
    counted = [one for one in outcomes if all(each.queries > 0 for each in one.values())]
    if not counted and interrupted:
        raise KeyboardInterrupt
    found = {
        name: summarize(one, [each[name] for each in counted or outcomes])
        for name, one in scenarios.items()
    }
    if interrupted:
        found = {name: replace(one, notes=(*one.notes, INTERRUPTED)) for name, one in found.items()}
    return found


def _compile_jointly(
    scenarios: Mapping[str, Scenario], seed: int, records: Mapping[str, Path]
) -> None:
    """Compile the loop of these tasks once, before several threads ask for it."""
    JointLoop(
        engines_of(
            [*scenarios.values()],
            seeds=[seed] * len(scenarios),
            replication=0,
            sinks=[(lambda rows: None) if name in records else None for name in scenarios],
            shared=None,
        )
    )


def _check_counts(
    queries: float, replications: int, warmup: int | None, workers: int | None
) -> None:
    """Refuse numbers out of range with a ValueError."""
    for holds, sentence in (
        (
            queries >= 1 and replications >= 1,
            f"queries and replications are at least 1, not {queries} and {replications}",
        ),
        (queries % 1 == 0, f"queries are a whole number, not {queries:g}"),
        (warmup is None or warmup >= 0, f"a warm-up is not negative, as {warmup} is"),
        (workers is None or workers >= 1, f"workers are at least 1, not {workers}"),
    ):
        if not holds:
            raise ValueError(sentence)


class RecordFile:
    """A Parquet file of requests in the order in which they left; several threads may write.

    OSError when it cannot be written.
    """

    def __init__(self, file: Path, fleet: Fleet) -> None:
        # Imported here: most runs record nothing, and pyarrow takes a while.
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._arrow = pa
        self._class_of = np.repeat(np.arange(len(fleet.variants), dtype=np.int32), fleet.count)
        self._variants = pa.array(fleet.variants)
        self._lock = threading.Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        empty = self._table(0, empty_records(0))
        self._writer = pq.ParquetWriter(file, empty.schema, compression="zstd")

    def write(self, replication: int, rows: Records) -> None:
        """Append the rows of a replication."""
        table = self._table(replication, rows)
        with self._lock:
            self._writer.write_table(table)

    def _table(self, replication: int, rows: Records) -> Any:
        pa, size = self._arrow, int(rows.size[0])
        columns = {name: getattr(rows, name)[:size] for name in Records._fields[:-1]}
        server, outcome = (columns[name].astype(np.int32) for name in ("server", "outcome"))
        variant = np.where(server >= 0, self._class_of[np.maximum(server, 0)], 0)
        named = pa.DictionaryArray.from_arrays
        return pa.table(
            {
                "replication": np.full(size, replication, np.int32),
                "arrived_s": columns["arrived_s"],
                "started_s": pa.array(columns["started_s"], from_pandas=True),
                "left_s": columns["left_s"],
                "server": pa.array(server, mask=server < 0),
                "variant": named(pa.array(variant, mask=server < 0), self._variants),
                "outcome": named(pa.array(outcome), pa.array(OUTCOMES)),
                "phase": columns["phase"].astype(np.int32),
            }
        )

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._writer.close()


def _ended(pending: list[Future[Any]], stop: threading.Event) -> bool:
    """Wait for all; Ctrl-C or a failure lets them end early. False after Ctrl-C."""
    left, whole = set(pending), True
    while left:
        try:
            done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            if any(future.exception() for future in done):
                stop.set()
        except KeyboardInterrupt:
            if stop.is_set():  # the second one does not wait for a solver
                raise
            stop.set()
            whole = False
    return whole


def compile_beforehand(deployment: Deployment) -> list[Compilation]:
    """Compile what the deployment's policies need in the live server and in the twin.

    Returns
    -------
    list of Compilation
        In the order in which they were made; none where all was in the cache.

    Raises
    ------
    ValueError
        Where a policy does not compile, or the file lacks what its policy needs.
    """
    made: list[Compilation] = []
    with watched(done=made.append):
        if deployment.network is not None:
            if deployment.workload:
                for events in (False, True):
                    simulate(deployment, slots=1, events=events)
            return made
        for task in deployment.tasks:
            dispatcher_of(deployment, task)
        for group in groups_of(deployment, _simulable(deployment)):
            scenarios, _ = without_absent({task: scenario_of(deployment, task) for task in group})
            if len(scenarios) > 1:
                run_together(scenarios, queries=1, warmup=0, workers=1)
            else:
                run(scenarios[group[0]], queries=1, warmup=0, workers=1)
    return made
