"""What Triton's extensions tell of a task, held to what its pool has and does."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from doubling import LIMIT_S, SIGNATURE, Gate, One, give

from inferway.dispatch import Dispatcher
from inferway.dispatch.batching import Rule
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.extensions import config_of, statistics_of
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

WORDS = Signature(
    (Tensor("words", "BYTES", (-1, 2)), Tensor("weight", "FP64", (-1,))),
    (Tensor("y", "INT8", (-1, -1, 4)),),
)


def site_of(signature: Signature = SIGNATURE, *gates: Gate, **options: Any) -> TaskSite:
    """Two variants, the second of two servers."""
    fleet = Fleet(("a", "b"), np.array([100.0, 50.0]), np.array([0.7, 0.95]), np.array([1, 2]))
    made = Dispatcher(fleet, "fastest-only", target=0.8, measure=True)
    runtimes = gates or [NullRuntime(signature) for _ in range(3)]
    return TaskSite.of(Pool("task", signature, made, runtimes, PoolOptions(target=0.8, **options)))


def test_dims_are_without_the_batch_axis() -> None:
    config = config_of(site_of(WORDS))
    assert [(one.name, one.data_type, one.dims) for one in config.input] == [
        ("words", "TYPE_STRING", (2,)),
        ("weight", "TYPE_FP64", ()),
    ]
    assert [(one.data_type, one.dims) for one in config.output] == [("TYPE_INT8", (-1, 4))]
    assert config.max_batch_size == 64


def test_instances_and_parameters_are_the_variants() -> None:
    site = site_of(deadline_s=0.25)
    both, one = config_of(site), config_of(site, "b")
    assert [(group.name, group.count) for group in both.instance_group] == [
        ("task/a", 1), ("task/b", 2),
    ]  # fmt: skip
    assert [group.count for group in one.instance_group] == [2]
    told = {name: value.string_value for name, value in one.parameters.items()}
    assert told == {"accuracy": "0.95", "accuracy_target": "0.8", "deadline_ms": "250"}
    assert "dynamic_batching" not in msgspec.to_builtins(both)


def test_batching_is_what_the_rules_offer() -> None:
    rules = [Rule(), Rule((1, 3, 5), 1, 5, wait_s=0.004)]
    site = site_of(rules=rules)
    batching = config_of(site).dynamic_batching
    assert batching is not None
    assert batching.preferred_batch_size == [1, 3, 5]
    assert batching.max_queue_delay_microseconds == 4000
    assert config_of(site, "a").dynamic_batching is None


def test_what_others_run_is_counted_for_its_variant() -> None:
    site = site_of()
    stats = site.stats
    # Two offers of the same variant; the second has gone since.
    site.pool.names = [("a", "here"), ("a", "cloud")]
    site.pool.versions = ("a",)
    stats.variants = ["a", "a@cloud"]
    stats.columns(("a@shop",))
    for k, rows in enumerate((1, 2, 4)):
        stats.answered(k, rows, 0.7, 0.5, 0.25)
        stats.run_sum_s[k] += 0.25
        stats.answered_s[k] = site.now()
    (found,) = statistics_of([site])
    assert (found.version, found.inference_count) == ("a", 7)
    assert found.inference_stats.success.count == 3
    assert found.inference_stats.success.ns == 1_500_000_000
    assert found.inference_stats.queue.ns == found.inference_stats.compute_infer.ns == 750_000_000
    assert found.execution_count == 0  # none ran here


def test_what_has_run_on_several_devices_is_counted_for_its_variant() -> None:
    site = site_of()
    for column in site.stats.columns(("b:cpu", "b:gpu")):
        site.stats.answered(column, 3, 0.7, 0.5, 0.25)
        site.stats.answered_s[column] = site.now()
    assert [one.inference_count for one in statistics_of([site])] == [0, 6]


def test_a_variant_that_has_done_nothing_has_zeros() -> None:
    first, second = statistics_of([site_of()])
    assert (first.version, second.version) == ("a", "b")
    assert (first.last_inference, first.inference_count, first.execution_count) == (0, 0, 0)
    assert first.batch_stats == []
    assert first.inference_stats.success.ns == 0
    assert statistics_of([site_of()], "b") == [second]


def test_requests_are_counted_by_how_they_ended(run: Any) -> None:
    async def main() -> None:
        gates = [Gate(), Gate(), Gate()]
        site = site_of(SIGNATURE, *gates)
        await site.start()
        gates[0].seen()
        ones = [One(float(value)) for value in range(2)]
        give(site, *ones)
        for one in ones:
            await one.answer()
        (found,) = statistics_of([site], "a")
        assert (found.inference_count, found.execution_count) == (2, 2)
        assert found.inference_stats.success.count == found.inference_stats.compute_infer.count == 2
        assert found.inference_stats.fail.count == 0
        assert [one.batch_size for one in found.batch_stats] == [1]
        assert found.batch_stats[0].compute_infer.count == 2
        ran_ns = found.batch_stats[0].compute_infer.ns
        assert ran_ns == found.inference_stats.compute_infer.ns > 0
        assert 0 <= time.time() - found.last_inference / 1e3 < 60
        gates[0].broken = True
        failed = One(3.0)
        give(site, failed)
        await asyncio.wait_for(failed.ended, LIMIT_S)
        assert failed.outcome is Outcome.FAILED
        (found,) = statistics_of([site], "a")
        assert (found.inference_count, found.execution_count) == (2, 2)
        assert (found.inference_stats.success.count, found.inference_stats.fail.count) == (2, 1)
        assert found.inference_stats.fail.ns > 0
        await site.stop()

    run(main())


def test_failures_and_their_time_are_told() -> None:
    site = site_of()
    site.stats.ended(Outcome.FAILED, 0, 0.5)
    site.stats.ended(Outcome.EXPIRED, 0, 0.25)
    site.stats.ended(Outcome.REJECTED, -1, 4.0)  # no variant had been chosen
    first, second = statistics_of([site])
    assert (first.inference_stats.fail.count, first.inference_stats.fail.ns) == (2, 750_000_000)
    assert (second.inference_stats.fail.count, second.inference_stats.fail.ns) == (0, 0)


@pytest.mark.parametrize(("rows", "runs"), [(1, {1: 1}), (4, {4: 1}), (10, {2: 1, 4: 2})])
def test_runs_are_told_by_their_rows(rows: int, runs: dict[int, int]) -> None:
    site = site_of()
    site.stats.ran(0, rows, 4, 0.1 * rows)
    first, _ = statistics_of([site])
    assert {one.batch_size: one.compute_infer.count for one in first.batch_stats} == runs
    assert first.execution_count == sum(runs.values())
    for one in first.batch_stats:
        per_run_s = one.compute_infer.ns / 1e9 / one.compute_infer.count
        assert per_run_s == pytest.approx(0.1 * one.batch_size)
