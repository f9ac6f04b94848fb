"""Triton's extensions of the protocol, as typed messages: model configuration and statistics.

Names are Triton's, over HTTP and, with its numbers, over gRPC
(`inferway/live/grpc/inference.proto`). Source: Triton's `extension_model_configuration.md`,
`extension_statistics.md` and `model_config.proto`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class AllVersions(msgspec.Struct):
    """The version policy under which every version is served."""


class VersionPolicy(msgspec.Struct):
    """Which versions of a model are served: all of them."""

    all: AllVersions


class TensorConfig(msgspec.Struct):
    """An input or output; `dims` are its shape without the batch axis, -1 where any length goes."""

    name: str
    data_type: str
    dims: tuple[int, ...]


class InstanceGroup(msgspec.Struct):
    """The instances of a variant, and what they run on."""

    name: str
    kind: Literal["KIND_CPU", "KIND_MODEL"]
    count: int


class DynamicBatching(msgspec.Struct):
    """How requests are run together: sizes in rows, and the longest wait for more."""

    preferred_batch_size: list[int]
    max_queue_delay_microseconds: int


class ParameterText(msgspec.Struct):
    """Value of a parameter."""

    string_value: str


class ModelConfig(msgspec.Struct, omit_defaults=True):
    """Configuration of a task, or of one of its variants; `max_batch_size` is that of a run."""

    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]
    instance_group: list[InstanceGroup]
    parameters: dict[str, ParameterText]
    dynamic_batching: DynamicBatching | None = None


class StatisticDuration(msgspec.Struct):
    """How often something was done, and how long that took in all, ns."""

    count: int
    ns: int


class InferStatistics(msgspec.Struct):
    """Requests by how they ended, and where the time of those that were answered went."""

    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class BatchStatistics(msgspec.Struct):
    """Runs of a model on so many rows."""

    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


class ModelStatistics(msgspec.Struct):
    """What a variant has done: answers are rows, executions are runs of the model.

    `last_inference` is when it last answered, in milliseconds since 1970; 0 before.
    """

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]


class StatisticsList(msgspec.Struct):
    """The statistics of variants, one after the other."""

    model_stats: list[ModelStatistics]
