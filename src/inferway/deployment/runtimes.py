"""Runtimes of variants, whatever runs them, and service times measured on them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.deployment import Deployment
from inferway.deployment.errors import DeploymentError, Problem
from inferway.deployment.models import ModelError, signature_of
from inferway.deployment.tasks import ANY_HARDWARE, ServiceTime, Task, Variant

if TYPE_CHECKING:
    from inferway.protocol import Signature
    from inferway.runtime import Runtime, Served

_WARM_UP_RUNS: Final = 3
_FEWEST_RUNS: Final = 5


def runtime_of(variant: Variant, signature: Signature | None = None, *, log: Any = None) -> Served:
    """Make what runs a variant: its model loaded here, what asks its server, or its processes.

    Parameters
    ----------
    variant
        A model's file is on this machine.
    signature
        Of the task's other variants, where it is known: for a model that does not say its own.
    log
        Told what a class of the user's own prints, and how its processes end; None writes that to
        standard error.

    Returns
    -------
    Served
        Nothing has been run yet, and no server asked; a `BlockingRemote` makes a runtime of one
        that asks a server. Whoever has it closes it.

    Raises
    ------
    ValueError
        When there is no model, it cannot be loaded, or the key of its server is not set; one
        sentence says why. `inferway.runtime.UnsaidSignatureError` is one for a class that does not
        say its signature.
    """
    from inferway.runtime import OnnxRuntime

    if variant.python is not None:
        return variant.python.runtime(signature=signature, name=variant.name, log=log)

    if variant.remote is not None:
        return variant.remote.runtime(signature=signature)
    model = variant.model
    if model is None or model.path is None:
        where = "it has no model" if model is None else f"{model.uri} is not on this machine"
        raise ValueError(f"{where}, so that nothing can be run")
    return OnnxRuntime(model.path, digest=model.digest, providers=variant.providers)


def blocking_runtime_of(variant: Variant, signature: Signature | None = None) -> Runtime:
    """Do as `runtime_of` does, for those who have a thread to wait with, for a server too.

    Raises
    ------
    ValueError
        As `runtime_of`.
    """
    from inferway.runtime import AwaitedRuntime, BlockingRemote

    runtime = runtime_of(variant, signature)
    return BlockingRemote(runtime) if isinstance(runtime, AwaitedRuntime) else runtime


def signature_said(task: Task) -> Signature | None:
    """Read a task's signature from a model file that is here; None where none says it."""
    for variant in task.variants.values():
        if variant.model is not None:
            with suppress(ModelError):  # of a zoo, whose models are not looked at when it is read
                return signature_of(variant.model)
    return None


def lacking_providers(deployment: Deployment, *, untimed: bool = False) -> list[Problem]:
    """Say which variants run on execution providers that the installed ONNX Runtime has not.

    With `untimed`, of those alone that state no service time.
    """
    stated = {
        f"tasks.{task.name}.variants.{variant.name}.providers": variant.providers
        for task in deployment.tasks.values()
        for variant in task.variants.values()
        if variant.providers and not (untimed and variant.service)
    }
    if not stated:
        return []
    from inferway.runtime.providers import unavailable

    return [
        Problem(deployment.line_of(field), field, reason)
        for field, providers in stated.items()
        if (reason := unavailable(providers))
    ]


def measured(deployment: Deployment, *, seconds: float = 0.3) -> Deployment:
    """Fill in the service time of every variant whose file states none and whose model is there.

    Runs each such model at batch 1 on zeros, one thread, for about `seconds`; a remote one at its
    server, so that the way there and back is in its time. A deployment whose
    variants all have service times comes back as it is. A model that answers several tasks is run
    once.

    Raises
    ------
    DeploymentError
        If ONNX Runtime has not the execution providers that are stated.
    ValueError
        If a model does not run, or a server does not answer.
    """
    if lacking := lacking_providers(deployment, untimed=True):
        raise DeploymentError(deployment.path, lacking)
    known: dict[tuple[object, ...], float] = {}

    def with_times(task: Task) -> Task:
        variants = dict(task.variants)
        untimed = [name for name, one in variants.items() if one.runnable and not one.service]
        if not untimed:
            return task
        asks = any(variants[name].python is not None for name in untimed)
        signature = signature_said(task) if asks else None

        def measure(name: str) -> None:
            nonlocal signature
            variant = variants[name]
            model = variant.model
            file: tuple[object, ...] = ()
            if model is not None:
                file = model.path, model.digest, variant.providers
            if model is None or file not in known:
                known[file], signature = _measured(variant, seconds, signature)
            service = {ANY_HARDWARE: ServiceTime("deterministic", known[file])}
            variants[name] = replace(variant, service=service)

        in_turn(untimed, measure)
        return replace(task, variants=variants)

    tasks = {name: with_times(task) for name, task in deployment.tasks.items()}
    return deployment if tasks == deployment.tasks else replace(deployment, tasks=tasks)


def in_turn(names: Iterable[str], work: Callable[[str], None]) -> None:
    """Do work for each name; where a class does not say its signature, it comes last.

    By then another variant may have said it.

    Raises
    ------
    inferway.runtime.UnsaidSignatureError
        When none has. What the work raises otherwise comes through.
    """
    from inferway.runtime import UnsaidSignatureError

    waiting, mute = deque(names), set[str]()
    while waiting:
        name = waiting.popleft()
        try:
            work(name)
        except UnsaidSignatureError:
            if name in mute or not waiting:
                raise
            mute.add(name)
            waiting.append(name)


def _measured(
    variant: Variant, seconds: float, signature: Signature | None
) -> tuple[float, Signature]:
    """Measure a variant of a task with this signature, as far as it is known; it says its own."""
    from inferway.runtime import RemoteError, UnsaidSignatureError

    try:
        known = None if variant.remote is not None else signature
        runtime = blocking_runtime_of(variant, known)
        return _median_s(runtime, seconds), runtime.signature
    except UnsaidSignatureError:
        raise
    except (RemoteError, ValueError) as error:
        if variant.model is not None:
            raise
        whose = "its class" if variant.remote is None else "its server"
        raise ValueError(
            f"variant {variant.name} has no `service`, and {whose} cannot be measured: {error}"
        ) from None


def _median_s(runtime: Runtime, seconds: float) -> float:
    from inferway.runtime import zeros

    times: list[float] = []
    with closing(runtime):
        inputs = zeros(runtime.signature.inputs)
        for _ in range(_WARM_UP_RUNS):
            runtime.run(inputs)
        while len(times) < _FEWEST_RUNS or sum(times) < seconds:
            start = time.perf_counter()
            runtime.run(inputs)
            times.append(time.perf_counter() - start)
    # The median: one interrupted run must not decide how a fleet is dispatched to.
    return float(np.median(times))
