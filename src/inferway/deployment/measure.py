"""Service times for models that come without a profile, measured on this machine."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np

from inferway.deployment.deployment import ANY_HARDWARE, Deployment, ServiceTime, Variant

__all__ = ["measured"]

_WARM_UP_RUNS = 3
_FEWEST_RUNS = 5


def measured(deployment: Deployment, *, seconds: float = 0.3) -> Deployment:
    """Fill in the service time of every variant whose file states none and whose model is there.

    Runs each such model at batch 1 on zeros, one thread, for about `seconds`. A deployment whose
    variants all have service times comes back as it is.

    Raises
    ------
    ValueError
        If a model does not run.
    """
    tasks = {}
    for name, task in deployment.tasks.items():
        variants = {key: _with_service(variant, seconds) for key, variant in task.variants.items()}
        tasks[name] = dataclasses.replace(task, variants=variants)
    return deployment if tasks == deployment.tasks else dataclasses.replace(deployment, tasks=tasks)


def _with_service(variant: Variant, seconds: float) -> Variant:
    if variant.service or variant.model is None:
        return variant
    service = ServiceTime("deterministic", _mean_s(variant.model.path, seconds))
    return dataclasses.replace(variant, service={ANY_HARDWARE: service})


def _mean_s(path: Path, seconds: float) -> float:
    from inferway.runtime.onnx import OnnxRuntime

    runtime = OnnxRuntime(path)
    try:
        inputs = {
            tensor.name: np.zeros([max(1, axis) for axis in tensor.shape], tensor.dtype)
            for tensor in runtime.signature.inputs
        }
        for _ in range(_WARM_UP_RUNS):
            runtime.run(inputs)
        times: list[float] = []
        while len(times) < _FEWEST_RUNS or sum(times) < seconds:
            start = time.perf_counter()
            runtime.run(inputs)
            times.append(time.perf_counter() - start)
        # The median: one interrupted run must not decide how a fleet is dispatched to.
        return float(np.median(times))
    finally:
        runtime.close()
