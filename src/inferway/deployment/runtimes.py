"""Runtimes of variants, whatever runs them, and service times measured on them."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from inferway.deployment.deployment import Deployment
from inferway.deployment.tasks import ANY_HARDWARE, ServiceTime, Variant

if TYPE_CHECKING:
    from inferway.protocol import Signature
    from inferway.runtime import Runtime, Served

_WARM_UP_RUNS: Final = 3
_FEWEST_RUNS: Final = 5


def runtime_of(variant: Variant, signature: Signature | None = None) -> Served:
    """Make what runs a variant: its model loaded here, or what asks its server.

    Parameters
    ----------
    variant
        A model's file is on this machine.
    signature
        Of the task's other variants, where it is known: for a model that does not say its own.

    Returns
    -------
    Served
        Nothing has been run yet, and no server asked; a `BlockingRemote` makes a runtime of one
        that asks a server. Whoever has it closes it.

    Raises
    ------
    ValueError
        When there is no model, it cannot be loaded, or the key of its server is not set; one
        sentence says why.
    """
    from inferway.runtime import OnnxRuntime

    if variant.remote is not None:
        return variant.remote.runtime(signature=signature)
    model = variant.model
    if model is None or model.path is None:
        where = "it has no model" if model is None else f"{model.uri} is not on this machine"
        raise ValueError(f"{where}, so that nothing can be run")
    return OnnxRuntime(model.path, digest=model.digest)


def blocking_runtime_of(variant: Variant, signature: Signature | None = None) -> Runtime:
    """Do as `runtime_of` does, for those who have a thread to wait with, for a server too.

    Raises
    ------
    ValueError
        As `runtime_of`.
    """
    from inferway.runtime import BlockingRemote, RemoteRuntime

    runtime = runtime_of(variant, signature)
    return BlockingRemote(runtime) if isinstance(runtime, RemoteRuntime) else runtime


def measured(deployment: Deployment, *, seconds: float = 0.3) -> Deployment:
    """Fill in the service time of every variant whose file states none and whose model is there.

    Runs each such model at batch 1 on zeros, one thread, for about `seconds`; a remote one at its
    server, so that the way there and back is in its time. A deployment whose
    variants all have service times comes back as it is. A model that answers several tasks is run
    once.

    Raises
    ------
    ValueError
        If a model does not run, or a server does not answer.
    """
    known: dict[tuple[Path | None, str | None], float] = {}

    def filled(variant: Variant) -> Variant:
        if variant.service or not variant.runnable:
            return variant
        model = variant.model
        file = (None, variant.name) if model is None else (model.path, model.digest)
        if model is None or file not in known:
            known[file] = _mean_s(variant, seconds)
        return replace(variant, service={ANY_HARDWARE: ServiceTime("deterministic", known[file])})

    tasks = {
        name: replace(task, variants={key: filled(one) for key, one in task.variants.items()})
        for name, task in deployment.tasks.items()
    }
    return deployment if tasks == deployment.tasks else replace(deployment, tasks=tasks)


def _mean_s(variant: Variant, seconds: float) -> float:
    from inferway.runtime import RemoteError

    try:
        return _median_s(blocking_runtime_of(variant), seconds)
    except (RemoteError, ValueError) as error:
        if variant.remote is None:
            raise
        raise ValueError(
            f"variant {variant.name} has no `service`, and its server cannot be measured: {error}"
        ) from None


def _median_s(runtime: Runtime, seconds: float) -> float:
    times: list[float] = []
    with closing(runtime):
        inputs = {
            tensor.name: np.zeros([max(1, axis) for axis in tensor.shape], tensor.dtype)
            for tensor in runtime.signature.inputs
        }
        for _ in range(_WARM_UP_RUNS):
            runtime.run(inputs)
        while len(times) < _FEWEST_RUNS or sum(times) < seconds:
            start = time.perf_counter()
            runtime.run(inputs)
            times.append(time.perf_counter() - start)
    # The median: one interrupted run must not decide how a fleet is dispatched to.
    return float(np.median(times))
