"""A task as Triton's extensions describe it: its configuration, and statistics by variant."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Final

from inferway.live.pool import Pool
from inferway.live.request import Outcome
from inferway.live.site import TaskSite
from inferway.live.stats import Stats
from inferway.protocol import Tensor
from inferway.protocol.triton import (
    AllVersions,
    BatchStatistics,
    DynamicBatching,
    InferStatistics,
    InstanceGroup,
    ModelConfig,
    ModelStatistics,
    ParameterText,
    StatisticDuration,
    TensorConfig,
    VersionPolicy,
)

# The greatest number that a configuration can hold, where a run is not divided here.
_MOST_ROWS: Final = 2**31 - 1


def config_of(site: TaskSite, variant: str | None = None) -> ModelConfig:
    """Describe what a task takes, gives and runs on, or one variant of it.

    Instances and batches are those of this server; what another node runs, its configuration says.

    Parameters
    ----------
    site
        One that a fleet answers.
    variant
        One of the fleet's; None describes all of them together.
    """
    pool = site.pool
    mask = -1 if variant is None else pool.mask_of(variant)
    classes = [k for k in pool.classes if mask >> k & 1]
    own = [k for k in classes if pool.own >> k & 1]
    backends = {_backend(pool, k) for k in own}
    accuracies = [one for k in classes if (one := pool.accuracy[k]) is not None]
    parameters: dict[str, float | None] = {
        "accuracy": None if variant is None else max(accuracies, default=None),
        "accuracy_target": site.target,
        "deadline_ms": None if (limit_s := pool.options.deadline_s) is None else limit_s * 1e3,
    }
    return ModelConfig(
        site.task,
        "inferway",
        backends.pop() if len(backends) == 1 else "",
        VersionPolicy(AllVersions()),
        min(_MOST_ROWS, max(pool.most_rows[k] for k in own or classes)),
        [_tensor(one) for one in pool.signature.inputs],
        [_tensor(one) for one in pool.signature.outputs],
        [
            InstanceGroup(
                f"{site.task}/{pool.variants[k]}",
                "KIND_CPU" if _on_processor(pool, k) else "KIND_MODEL",
                pool.first[k + 1] - pool.first[k],
            )
            for k in own
        ],
        {
            name: ParameterText(f"{value:g}")
            for name, value in parameters.items()
            if value is not None
        },
        _batching(pool, own),
    )


def statistics_of(sites: Iterable[TaskSite], variant: str | None = None) -> list[ModelStatistics]:
    """Tell what each variant of some tasks has done, or one variant.

    Answers of a variant are all that were given here, whoever ran it; runs are this server's own.
    """
    return [
        _variant(site, name, columns)
        for site in sites
        for name, columns in _columns(site).items()
        if variant in (None, name)
    ]


def _backend(pool: Pool, k: int) -> str:
    return str(getattr(pool.runtimes[pool.first[k]], "backend", ""))


def _on_processor(pool: Pool, k: int) -> bool:
    """Tell whether a class runs its model with ONNX Runtime and no other execution provider."""
    runtime = pool.runtimes[pool.first[k]]
    return _backend(pool, k) == "onnxruntime" and not getattr(runtime, "providers", ())


def _tensor(tensor: Tensor) -> TensorConfig:
    datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return TensorConfig(tensor.name, f"TYPE_{datatype}", tensor.shape[1:])


def _batching(pool: Pool, classes: Iterable[int]) -> DynamicBatching | None:
    offered = [] if pool.options.rules is None else [pool.options.rules[k] for k in classes]
    rules = [rule for rule in offered if len(rule.sizes) > 1]
    if not rules:
        return None
    sizes = sorted({size for rule in rules for size in rule.sizes})
    return DynamicBatching(sizes, round(max(rule.wait_s for rule in rules) * 1e6))


def _columns(site: TaskSite) -> dict[str, list[int]]:
    """By variant, where its requests are counted: here, and where other nodes answered them.

    What is here no more goes on being counted: offers, ``VARIANT@NODE``, and copies of a variant
    that several devices had, ``VARIANT:DEVICE``.
    """
    pool = site.pool
    columns: dict[str, list[int]] = {name: [] for name in pool.versions}
    here = dict(zip(pool.columns, (variant for variant, _ in pool.names), strict=True))
    for at, name in enumerate(site.stats.variants):
        variant = here.get(at) or re.split("[@:]", name)[0]
        if variant in columns:
            columns[variant].append(at)
    return columns


def _variant(site: TaskSite, variant: str, columns: list[int]) -> ModelStatistics:
    stats = site.stats
    answered = sum(stats.outcomes[Outcome.ANSWERED][k] for k in columns)
    latency_s = sum(stats.latency_sum_s[k] for k in columns)
    run_s = sum(stats.run_sum_s[k] for k in columns)
    failed = sum(counts[k] for counts in stats.outcomes[Outcome.ANSWERED + 1 :] for k in columns)
    since_s = min((site.now() - stats.answered_s[k] for k in columns), default=math.inf)
    # A runtime takes and gives arrays as they are; what it does with them is part of its run.
    copied, none = _duration(answered, 0.0), _duration(0, 0.0)
    return ModelStatistics(
        site.task,
        variant,
        int((time.time() - since_s) * 1e3) if answered else 0,
        sum(stats.rows[k] for k in columns),
        sum(int(number) for k in columns for number, _ in stats.runs[k].values()),
        InferStatistics(
            success=_duration(answered, latency_s),
            fail=_duration(failed, sum(stats.unanswered_sum_s[k] for k in columns)),
            queue=_duration(answered, max(0.0, latency_s - run_s)),
            compute_input=copied,
            compute_infer=_duration(answered, run_s),
            compute_output=copied,
            cache_hit=none,
            cache_miss=none,
        ),
        _batches(stats, columns),
    )


def _batches(stats: Stats, columns: list[int]) -> list[BatchStatistics]:
    listed = []
    for size in sorted({size for k in columns for size in stats.runs[k]}):
        runs = [run for k in columns if (run := stats.runs[k].get(size)) is not None]
        count = sum(int(run[0]) for run in runs)
        copied = _duration(count, 0.0)
        took = _duration(count, sum(run[1] for run in runs))
        listed.append(BatchStatistics(size, copied, took, copied))
    return listed


def _duration(count: int, total_s: float) -> StatisticDuration:
    return StatisticDuration(count, round(total_s * 1e9))
