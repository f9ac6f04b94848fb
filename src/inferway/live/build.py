"""From a deployment, its models and what neighbors offer to the fleets that serve it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from inferway.deployment import Batch, Deployment, Node, Task, Variant, runtime_of
from inferway.deployment.runtimes import in_turn
from inferway.dispatch.batching import foresee, rules_of, run_s_of
from inferway.dispatch.deployed import batches_of, dispatcher_of
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.drift_alarm import unwatched
from inferway.dispatch.service_times import (
    carry_over,
    measured_at,
    recall,
    recall_loads,
    remember,
    remember_loads,
)
from inferway.live.errors import LoadError, ServeError
from inferway.live.exclusive import ChangingModel
from inferway.live.headroom import (
    Growths,
    Headroom,
    MemoryNeed,
    identity,
    is_closed,
    memory_need_of,
    tensors_of,
)
from inferway.live.lent import Loan, lend
from inferway.live.options import HELD_LIMIT, PoolOptions, ServerOptions
from inferway.live.pool import Pool, schedule
from inferway.live.upstream.remote import Forwarding
from inferway.machine import cores
from inferway.profiling.confidence import confidence_reader
from inferway.protocol import Signature
from inferway.runtime import (
    Arrays,
    AwaitedRuntime,
    Fault,
    RemoteError,
    Served,
    UnsaidSignatureError,
)
from inferway.runtime.growth import Growth
from inferway.scheduling import (
    Conditions,
    Controller,
    controller_of,
)
from inferway.site import Fleet
from inferway.site.view import WHOLE, Floats

# Faults of servers that may be back: they keep nobody else from starting.
PASSING: Final = frozenset((Fault.UNREACHABLE, Fault.UNAVAILABLE, Fault.OVERLOADED, Fault.LATE))


def check_served(deployment: Deployment) -> None:
    """Refuse what the live server does not run.

    Raises
    ------
    ServeError
        With all the reasons, one per line.
    """
    _refuse(deployment, deployment.unserved())


def check_at_node(deployment: Deployment) -> None:
    """Refuse what nodes of a network do not run; ServeError has all the reasons, one per line."""
    _refuse(deployment, deployment.unserved_at_node())


def _refuse(deployment: Deployment, reasons: list[str]) -> None:
    reasons += [
        f"tasks.{task.name}.drift: {missing}"
        for task in deployment.tasks.values()
        if task.watched and (missing := unwatched())
    ]
    if reasons:
        raise ServeError("\n".join(f"{deployment.path}: {reason}" for reason in reasons))


def would_serve(deployment: Deployment) -> dict[str, list[str]]:
    """Tell the variants of each task that would be served; no model is loaded, takes seconds.

    Raises
    ------
    ServeError
        When it would not be: what the live server does not run, a policy that cannot be made, a
        target that no instance reaches.
    """
    check_served(deployment)
    deployment = deployment.on_cores(cores())
    (node,) = deployment.nodes.values()
    fleets = {
        name: _deciding(deployment, task, node)[0].fleet
        for name, task in deployment.tasks.items()
        if not deployment.assigns or deployment.running(task)
    }
    if together := deployment.scheduled_together:
        _controller(deployment, [fleets[name] for name in together])
    return {name: list(dict.fromkeys(fleet.names)) for name, fleet in fleets.items()}


def pool_of(
    deployment: Deployment,
    task: Task,
    dispatcher: Dispatcher,
    signature: Signature,
    runtimes: Sequence[Served | Forwarding],
    batches: Sequence[Batch | None],
    growth: Callable[[str, int], tuple[Growth, str] | None],
    options: PoolOptions,
) -> Pool:
    """Join what decides to what runs; requests are divided so that they fit into memory.

    The dispatcher's fleet is named as clients name the task, and it foresees batches as the file
    says. There is a runtime of each class: a variant's here, or where another node's is. `batches`
    are those that the file offers on the hardware of each class; None of what another node runs.
    `growth` says of a variant, by the rows of its largest run, what runs take and where that comes
    from; None where it is not known. What the task says is filled into the options.
    """
    fleet, view = dispatcher.fleet, dispatcher.site
    room, needs = options.headroom, list[MemoryNeed | None]()
    for k, (name, runtime) in enumerate(zip(fleet.names, runtimes, strict=True)):
        servers = slice(int(fleet.first[k]), int(fleet.first[k + 1]))
        need = None
        if isinstance(runtime, Forwarding):
            view.most_rows[servers] = WHOLE  # whoever runs it divides it
        elif room is not None:
            largest = int(view.most_rows[servers.start])
            elsewhere = task.variants[name].model is None
            known = (tensors_of(signature), "estimated") if elsewhere else growth(name, largest)
            if known is not None:
                need = memory_need_of(*known, signature, largest, room.limit_bytes)
                view.most_rows[servers] = need.most_rows
        needs.append(need)
    policy = deployment.policy_of(task).options
    return Pool(
        fleet.task,
        signature,
        dispatcher,
        [one for one, count in zip(runtimes, fleet.count, strict=True) for _ in range(int(count))],
        replace(
            options,
            seed=deployment.seed,
            target=task.accuracy_target,
            measured=task.measured,
            deadline_s=task.deadline_s,
            rules=rules_of(view, batches) if any(batches) else None,
            batches=batches,
            demands=needs,
            window_s=None if policy.get("rate") else policy.get("window"),
            idempotent=task.idempotent,
            confidences=_confidences(deployment, task, fleet.names, runtimes)
            if dispatcher.settles
            else (),
            feedback=task.feedback,
            shadow=task.shadow,
            canary=task.canary,
            watched=task.watched,
            models=stated_models(task),
        ),
    )


def stated_models(task: Task) -> dict[str, tuple[str, float | None]]:
    """Say which model each variant is, and its accuracy; nothing where no answers are kept.

    Files may be read for it.
    """
    if task.feedback is None:
        return {}
    return {
        name: (one.identity, one.accuracy if one.graded else None)
        for name, one in task.variants.items()
    }


def _confidences(
    deployment: Deployment,
    task: Task,
    names: Sequence[str],
    runtimes: Sequence[Served | Forwarding],
) -> list[Callable[[Arrays], Floats] | None]:
    """By class, what reads the calibrated confidence of its answers; None of those without."""
    found: list[Callable[[Arrays], Floats] | None] = []
    for name, runtime in zip(names, runtimes, strict=True):
        named = runtime.variant if isinstance(runtime, Forwarding) else name
        variant = task.variants.get(named)
        bins = None if variant is None else variant.confidence_bins
        found.append(
            None
            if bins is None
            else confidence_reader(bins.kind, softmax=bins.softmax, folder=deployment.folder)
        )
    return found


def pools_of(
    deployment: Deployment,
    options: ServerOptions,
    headroom: Headroom,
    growths: Growths,
    log: Any,
    *,
    instead: Pool | None = None,
    task: str | None = None,
) -> list[Pool]:
    """Load every task of a deployment that `check_served` lets pass; takes seconds.

    The options have the pools' clock, and where service times are recalled from and kept; the log
    is told which, and of when. With `task`, only that one is loaded: it borrows the models of the
    pool that it is to be `instead` of, as far as these are the same, and goes on with its service
    times. Where devices are given out anew, a task without an instance is left out, and a fleet
    that cannot keep a target does what it can.

    ServeError when a model or a policy cannot be loaded.
    """
    deployment = deployment.on_cores(cores())
    (node,) = deployment.nodes.values()
    kept = node.measured_overhead
    if options.times is None or kept is None:  # nothing is recalled
        deployment = deployment.with_overhead(None)
    else:  # what models take beyond their profiles is measured, and recalled, as theirs
        deployment = deployment.with_overhead(kept._replace(seconds=kept.own_s))
    (node,) = deployment.nodes.values()
    names = [task] if task is not None else [*deployment.tasks]
    if deployment.assigns:
        names = [name for name in names if deployment.running(deployment.tasks[name])]
    pools = []
    with ExitStack() as undo:
        for name in names:
            kind = deployment.tasks[name]
            pools.append(_pool(deployment, kind, node, options, headroom, growths, log, instead))
            for runtime in {id(one): one for one in _leads(pools[-1])}.values():
                undo.callback(runtime.close)
        if together := deployment.scheduled_together:
            by_task = {pool.task: pool for pool in pools}
            every = [by_task[name] for name in together]
            controller = _controller(deployment, [one.dispatcher.fleet for one in every])
            assert controller is not None
            schedule(controller, every)
        undo.pop_all()
    return pools


def _controller(deployment: Deployment, fleets: Sequence[Fleet]) -> Controller | None:
    """Make what schedules tasks of a file, those of these fleets, together.

    None where nothing does, or dispatch alone; ServeError where it cannot be made.
    """
    (node,) = deployment.nodes.values()
    tasks = [deployment.tasks[fleet.task] for fleet in fleets]
    spec = deployment.scheduling_of(tasks[0])
    if spec is None:
        return None
    conditions = [
        Conditions(
            fleet,
            task.deadline_s,
            batches=batches_of(task, node, fleet),
            changing=deployment.assigns,
        )
        for task, fleet in zip(tasks, fleets, strict=True)
    ]
    try:
        return controller_of(spec, conditions, deployment.folder)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: scheduling: {error}") from error


def _pool(
    deployment: Deployment,
    task: Task,
    node: Node,
    options: ServerOptions,
    headroom: Headroom,
    growths: Growths,
    log: Any,
    instead: Pool | None,
) -> Pool:
    """Load one task; ServeError when a model or a policy cannot be loaded."""
    dispatcher, controller, batches = _deciding(deployment, task, node)
    fleet = dispatcher.fleet
    # As the file says it, before anything that was measured is recalled.
    profiled_s = [
        partial(run_s_of, dispatcher.site.row_s[first].tolist()) for first in fleet.first[:-1]
    ]
    lent = {} if instead is None else _borrowed(instead)
    with ExitStack() as undo:
        for loan in lent.values():
            undo.callback(loan.close)
        try:
            changing = _changing(fleet)
            signature, models = models_of(
                task, list(dict.fromkeys(fleet.names)), log, lent, changing=changing
            )
        except LoadError as error:
            raise ServeError(f"{deployment.path}: tasks.{task.name}.variants.{error}") from error
        if deployment.assigns:
            # The fleets that follow borrow them.
            models = {
                name: one if isinstance(one, Loan) else lend(one) for name, one in models.items()
            }
        for runtime in models.values():
            undo.callback(runtime.close)

        def growth(name: str, largest: int) -> tuple[Growth, str] | None:
            model = task.variants[name].model
            if model is None or not is_closed(signature):
                return None
            assert model.path is not None  # `check_served` has refused others
            return growths.of(task.variants[name], model.path, largest)

        central, room = node.queue == "central", HELD_LIMIT
        if central and node.buffer is not None:
            room = (node.buffer - 1) * fleet.servers
        load_s: dict[str, float] = {}
        remember = _remembering(
            *(deployment, task, dispatcher, node, options.times, log),
            recalls=instead is None,
            load_s=load_s,
        )
        if instead is not None:
            carry_over(dispatcher, instead.dispatcher, fleet.variants)  # type: ignore[arg-type]
        fitted = PoolOptions(
            drop_late=node.late == "drop",
            in_order=central,
            room=room,
            controller=controller,
            headroom=headroom,
            remember=remember,
            now=options.now,
            leading=node.leading if node.overhead_s is None else "",
            profiled_s=profiled_s,
        )
        # Instances of a variant share the weights; each calls from a thread of its own.
        runtimes = [models[name] for name in fleet.names]
        pool = pool_of(deployment, task, dispatcher, signature, runtimes, batches, growth, fitted)
        if pool.held_variants is not None:
            pool.held_variants.load_s = load_s
            pool.expect_loads(pool)
        undo.pop_all()
    for name, loan in lent.items():
        if name not in models:
            loan.close()
    return pool


def _borrowed(pool: Pool) -> dict[str, Loan]:
    """Borrow the models of a pool, as far as they may be lent, by variant."""
    found = {}
    for name, runtime in zip(pool.dispatcher.fleet.names, _leads(pool), strict=True):
        if (
            name not in found
            and isinstance(runtime, Loan)
            and (loan := runtime.again()) is not None
        ):
            found[name] = loan
    return found


def _leads(pool: Pool) -> list[Served | Forwarding]:
    """List what runs each class of a pool."""
    return [pool.runtimes[server] for server in pool.first[:-1]]


def _deciding(
    deployment: Deployment, task: Task, node: Node
) -> tuple[Dispatcher, Controller | None, list[Batch | None]]:
    """Make what decides about a task, and tell the batches that each class forms."""
    place = f"tasks.{task.name}.dispatch"
    try:
        dispatcher = dispatcher_of(deployment, task.name, node.name, best_effort=deployment.assigns)
        batches = batches_of(task, node, dispatcher.fleet)
        place = f"tasks.{task.name}.canary"
        _check_canary(task, dispatcher.fleet, node.name)
        place = f"tasks.{task.name}.dispatch"
        # Times of batches are predicted as the file says them.
        foresee(dispatcher.site, batches)
    except ValueError as error:
        raise ServeError(f"{deployment.path}: {place}: {error}") from error
    # That of several tasks is made when all are there.
    several = bool(deployment.scheduled_together)
    return dispatcher, None if several else _controller(deployment, [dispatcher.fleet]), batches


def _check_canary(task: Task, fleet: Fleet, node: str) -> None:
    """Refuse a canary that does not run here, or that runs alone; ValueError says why."""
    if task.canary is None:
        return
    name, others = task.canary.variant, [one for one in fleet.names if one != task.canary.variant]
    if len(others) == len(fleet.names):
        raise ValueError(f"no instance of {name} runs at {node}, which is to be the canary")
    if not others:
        raise ValueError(f"only {name} runs at {node}, and others have to answer beside a canary")


def _remembering(
    deployment: Deployment,
    task: Task,
    dispatcher: Dispatcher,
    node: Node,
    times: Path | None,
    log: Any,
    *,
    recalls: bool,
    load_s: dict[str, float],
) -> Callable[[], None] | None:
    """Recall what was measured of these models, where it `recalls`; return what keeps it.

    How long models on exclusive devices take to load, s, by class, is in `load_s` from then on.

    None where nothing does. It is said when that fails, and when it works again.
    """
    if times is None:
        return None
    keys, fleet = dict[str, str](), dispatcher.fleet
    variants = {
        name: task.variants[own] for name, own in zip(fleet.variants, fleet.names, strict=True)
    }
    kinds = [node.hardware_of(device) for device in fleet.runs_on]
    alike = Counter(zip(fleet.names, kinds, strict=True))
    if deployment.assigns:  # Copies may come on any of them.
        on = Counter(one.hardware for one in node.devices.values())
        alike = Counter({pair: on[pair[1]] for pair in alike})
    classes = zip(variants.items(), fleet.names, fleet.runs_on, kinds, strict=True)
    for (name, variant), own, device, hardware in classes:
        # Each of several devices of one kind has times of its own.
        where = hardware if alike[own, hardware] == 1 else f"{hardware} at {device}"
        model, remote, python = variant.model, variant.remote, variant.python
        if remote is not None:
            keys[name] = remote.url
        elif python is not None:
            keys[name] = f"{python.target.name} of {python.digest} on {where}"
        else:
            assert model is not None  # `check_served` has refused it
            assert model.path is not None  # what has to be fetched has a digest
            keys[name] = f"{identity(variant, model.path)} on {where}"
    # What the file says, or its profile, counts more than what another run has measured.
    unsaid = {
        name: key
        for (name, key), hardware in zip(keys.items(), kinds, strict=True)
        if variants[name].origin_on(hardware) not in ("file", "profile")
    }
    changing = _changing(fleet)
    loads = {
        name: key
        for (name, key), own in zip(keys.items(), fleet.names, strict=True)
        if own in changing
    }
    if recalls and loads:
        load_s.update(recall_loads(times, loads))
    recalled = recall(dispatcher, unsaid, times) if recalls else []
    if recalled:
        seconds = measured_at([keys[name] for name in recalled], times)
        day = datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")
        log.info(
            "service times recalled",
            task=task.name,
            variants=recalled,
            file=str(times),
            measured=day,
        )
    fails = False

    def keep() -> None:
        nonlocal fails
        failed, fails = fails, False
        try:
            remember(dispatcher, keys, times)
            if loads:
                remember_loads(times, {loads[name]: known_s for name, known_s in load_s.items()})
        except OSError as error:  # it is measured again by whoever starts next
            fails = True
            if not failed:
                reason = error.strerror or str(error)
                log.warning(
                    "service times not kept", task=task.name, file=str(times), reason=reason
                )
            return
        if failed:
            log.info("service times kept again", task=task.name, file=str(times))

    return keep


def _changing(fleet: Fleet) -> frozenset[str]:
    """Variants on devices that hold one at a time."""
    of = fleet.devices
    if of is None:
        return frozenset()
    pairs = zip(fleet.names, of.device.tolist(), strict=True)
    return frozenset(name for name, d in pairs if d >= 0 and bool(of.exclusive[d]))


def models_of(
    task: Task,
    variants: Sequence[str],
    log: Any = None,
    lent: Mapping[str, Served] | None = None,
    changing: Collection[str] = (),
) -> tuple[Signature, Mapping[str, Served]]:
    """Load the models of these variants; they share one signature, which comes first.

    A remote server that is down may come back: its variant is taken to have the signature of the
    others, and its runtime looks whether that is so before the first request. A class that does not
    say its signature comes last for the same reason. The log is told what classes print. Of those
    that are `lent` none is loaded; those that are `changing` stay loaded only while their device
    holds them.

    LoadError when one cannot be loaded, or none says the signature.
    """
    described, loaded = task.variants, dict[str, Served]()
    signature: Signature | None = None
    source = silent = ""
    with ExitStack() as undo:

        def load(name: str) -> None:
            nonlocal signature, source, silent
            told = None if log is None else log.bind(task=task.name, variant=name)
            try:
                # `check_served` has refused those that nothing here runs.
                variant = described[name]
                runtime = (lent or {}).get(name)
                if runtime is None and name in changing:
                    make = partial(_loaded, variant, told)
                    runtime = ChangingModel(make, signature)
                runtime = runtime or runtime_of(variant, signature, log=told)
                undo.callback(runtime.close)
                if isinstance(runtime, AwaitedRuntime):
                    loaded[name] = runtime
                    runtime.learn()
            except UnsaidSignatureError as error:
                raise UnsaidSignatureError(f"{name}: {error}") from error
            except RemoteError as error:
                if error.fault not in PASSING:
                    raise LoadError(f"{name}: {error}") from error
                silent = f"{name}: {error}"
                return
            except ValueError as error:
                raise LoadError(f"{name}: {error}") from error
            loaded[name] = runtime
            if signature is None:
                signature, source = runtime.signature, name
            elif runtime.signature != signature:
                raise LoadError(
                    f"{name}: its signature {runtime.signature} differs from {signature} of "
                    f"{source}"
                )

        # Model files first: their signatures are known whatever servers are down.
        try:
            in_turn(sorted(variants, key=lambda name: _rank(described[name])), load)
        except UnsaidSignatureError as error:
            raise LoadError(str(error)) from error
        if signature is None:
            raise LoadError(f"{silent}, and nothing else says what the task takes and gives")
        for runtime in loaded.values():
            if isinstance(runtime, AwaitedRuntime):
                runtime.known_signature = runtime.known_signature or signature
        undo.pop_all()
    return signature, loaded


def _loaded(variant: Variant, log: Any, signature: Signature | None) -> Served:
    return runtime_of(variant, signature, log=log)


def _rank(variant: Variant) -> int:
    return 0 if variant.model is not None else 1 if variant.python is not None else 2
