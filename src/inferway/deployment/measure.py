"""Service times for models that come without a profile, measured on this machine."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from inferway.deployment.deployment import Deployment
from inferway.deployment.tasks import ANY_HARDWARE, ServiceTime, Variant

if TYPE_CHECKING:
    from inferway.runtime import Runtime

_WARM_UP_RUNS = 3
_FEWEST_RUNS = 5


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
    from inferway.runtime.remote import BlockingRemote
    from inferway.runtime.runtime import OnnxRuntime
    from inferway.runtime.server import RemoteError

    if variant.remote is None:
        assert variant.model is not None
        assert variant.model.path is not None  # others state their service time
        return _median_s(OnnxRuntime(variant.model.path), seconds)
    try:
        return _median_s(BlockingRemote(variant.remote.runtime()), seconds)
    except (RemoteError, ValueError) as error:
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
