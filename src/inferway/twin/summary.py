"""From the tallies of replications to means, percentiles, errors and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.deployment.workloads import PhasedArrivals
from inferway.site.view import Floats
from inferway.twin.kernel.counters import quantiles
from inferway.twin.replication import Replicated
from inferway.twin.result import ClassResult, Estimate, PhaseResult, Series, TaskResult
from inferway.twin.scenario import Scenario
from inferway.workload import Span, phases_of

_BATCHES = 32
"""Batch means per replication; the blocks are joined to as many."""
_ENOUGH = 8
"""Replications from which on their own spread gives the error."""
_DRIFT, _RISE = 6.0, 1.5
"""Growth, in square roots of the arrivals, that no stable site shows; and how much longer the
second half of a run takes to answer where a growth of one such root is none of chance."""
_PERCENTILES = (0.5, 0.95, 0.99)


def summarize(scenario: Scenario, outcomes: Sequence[Replicated]) -> TaskResult:
    """Put the replications of a scenario together."""
    names, accuracy = scenario.fleet.variants, scenario.fleet.accuracy
    tallies = [outcome.tally for outcome in outcomes]
    arrived = _total(tallies, "arrived")
    rejected, dropped = _total(tallies, "rejected"), _total(tallies, "dropped")
    answered, late = _total(tallies, "answered"), _total(tallies, "late")
    sent = _total(tallies, "sent")
    histogram, response_s = _total(tallies, "histogram"), _total(tallies, "response_s")
    queries = int(arrived.sum())
    p50_s, p95_s, p99_s = quantiles(histogram.sum(axis=(0, 1)), _PERCENTILES)
    spans = phases_of(scenario.arrivals, scenario.capacity_per_s)
    in_time = (answered - late) @ accuracy
    lost = rejected + dropped + late.sum(axis=1)
    span_s = sum(outcome.span_s for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    stable, notes = _verdict(scenario, outcomes)
    return TaskResult(
        response_time_s=_estimate(outcomes, 1),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        accuracy=_estimate(outcomes, 2),
        accuracy_target=scenario.target,
        balance=float(np.mean([outcome.balance for outcome in outcomes])),
        shares=_shares(names, answered.sum(axis=0)),
        classes=_classes(scenario, outcomes, answered, histogram, response_s),
        rejected=_ratio(rejected.sum(), queries),
        dropped=_ratio(dropped.sum(), queries),
        late=_ratio(late.sum(), queries),
        goodput=_ratio(in_time.sum(), queries),
        violation_ratio=_ratio(lost.sum(), queries),
        in_system=_ratio(sum(outcome.area for outcome in outcomes), span_s),
        rate_per_s=_ratio(queries, span_s),
        queries=queries,
        queries_per_cpu_s=_ratio(queries, cpu_s),
        phases=tuple(
            _phase(
                scenario,
                span,
                int(arrived[p]),
                sent[p],
                answered[p],
                histogram[p].sum(axis=0),
                float(response_s[p].sum()),
                {
                    "rejected": float(rejected[p]),
                    "dropped": float(dropped[p]),
                    "late": float(late[p].sum()),
                    "goodput": float(in_time[p]),
                    "violation_ratio": float(lost[p]),
                },
            )
            for p, span in enumerate(spans)
        ),
        stable=stable,
        notes=notes,
        engine=outcomes[0].kind,
        replications=len(outcomes),
        warmup=sum(outcome.warmup for outcome in outcomes),
        simulated_s=span_s,
        complete=all(outcome.complete for outcome in outcomes),
        series=_series(accuracy, outcomes),
        dispatched=_over(names, sent.sum(axis=0), queries),
    )


def _total(tallies: Sequence[Any], name: str) -> Any:
    return np.sum([getattr(tally, name) for tally in tallies], axis=0)


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole > 0 else math.nan


def _shares(names: Sequence[str], answered: Any) -> dict[str, float]:
    return _over(names, answered, answered.sum())


def _over(names: Sequence[str], counts: Any, total: float) -> dict[str, float]:
    return {name: _ratio(one, total) for name, one in zip(names, counts, strict=True)}


def _estimate(outcomes: Sequence[Replicated], column: int) -> Estimate:
    """A mean over answers, with an error by replications or, where they are few, by batch means.

    Both are ratios of sums over batches of unequal numbers of answers.
    """
    if len(outcomes) >= _ENOUGH:
        batches = np.array([outcome.blocks.sum(axis=0) for outcome in outcomes])
    else:
        batches = np.concatenate([_joined(outcome.blocks) for outcome in outcomes])
    answers, total = batches[:, 0].sum(), batches[:, column].sum()
    if answers == 0:
        return Estimate(math.nan, math.nan)
    mean = total / answers
    if len(batches) < 2:
        return Estimate(float(mean), math.nan)
    residuals = batches[:, column] - mean * batches[:, 0]
    spread = math.sqrt(float((residuals**2).sum()) * len(batches) / (len(batches) - 1))
    return Estimate(float(mean), float(spread / answers))


def _joined(blocks: Floats) -> Floats:
    parts = np.array_split(blocks, min(_BATCHES, max(1, len(blocks))))
    return np.array([part.sum(axis=0) for part in parts])


def _classes(
    scenario: Scenario,
    outcomes: Sequence[Replicated],
    answered: Any,
    histogram: Any,
    response_s: Any,
) -> dict[str, ClassResult]:
    found = {}
    total = answered.sum()
    for k, name in enumerate(scenario.fleet.variants):
        p50_s, p95_s, p99_s = quantiles(histogram[:, k].sum(axis=0), _PERCENTILES)
        lengths = np.average(
            [outcome.lengths[k] for outcome in outcomes],
            axis=0,
            weights=[max(outcome.span_s, 1e-300) for outcome in outcomes],
        )
        found[name] = ClassResult(
            share=_ratio(answered[:, k].sum(), total),
            utilization=float(lengths[1:].sum()),
            response_time_s=_ratio(response_s[:, k].sum(), answered[:, k].sum()),
            p50_s=p50_s,
            p95_s=p95_s,
            p99_s=p99_s,
            queue_lengths=lengths,
        )
    return found


def _phase(
    scenario: Scenario,
    span: Span,
    arrived: int,
    sent: Any,
    answered: Any,
    histogram: Any,
    response_s: float,
    counts: dict[str, float],
) -> PhaseResult:
    p50_s, p95_s, p99_s = quantiles(histogram, _PERCENTILES)
    target = scenario.target if span.accuracy_target is None else span.accuracy_target
    return PhaseResult(
        accuracy_target=target,
        rate_per_s=span.rate_per_s,
        response_time_s=_ratio(response_s, answered.sum()),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        accuracy=_ratio(answered @ scenario.fleet.accuracy, answered.sum()),
        shares=_shares(scenario.fleet.variants, answered),
        queries=arrived,
        dispatched=_over(scenario.fleet.variants, sent, arrived),
        **{name: _ratio(count, arrived) for name, count in counts.items()},
    )


def _verdict(scenario: Scenario, outcomes: Sequence[Replicated]) -> tuple[bool, tuple[str, ...]]:
    """Whether the site was stable, and what a reader should know."""
    notes = []
    crowded = [outcome.crowded for outcome in outcomes if outcome.crowded]
    growth = sum(outcome.growth for outcome in outcomes)
    arrivals = sum(outcome.queries for outcome in outcomes)
    phased = isinstance(scenario.arrivals, PhasedArrivals)
    steady = not phased or len(phases_of(scenario.arrivals, scenario.capacity_per_s)) == 1
    roots = (growth - scenario.fleet.servers) / math.sqrt(max(arrivals, 1))
    grows = steady and (roots > _DRIFT or (roots > 1.0 and _rise(outcomes) > _RISE))
    if crowded:
        notes.append(f"unstable: {crowded[0]}, so it was ended there")
    elif grows:
        # A reader compares with one workload, or with one recording.
        runs = len(outcomes)
        among = f"in the mean of {runs} replications, " if runs > 1 else ""
        notes.append(
            f"unstable: {among}{growth / runs:,.0f} more requests were in the system at the end "
            f"than at the start, {growth / arrivals:.2%} of the arrivals; its means depend on how "
            "long it ran"
        )
    if not all(outcome.complete for outcome in outcomes) and not crowded:
        notes.append(f"ended early: {arrivals:,} requests counted")
    return not (crowded or grows), tuple(notes)


def _rise(outcomes: Sequence[Replicated]) -> float:
    """Mean response time of the second halves of the runs over that of the first halves."""
    halves = np.zeros((2, 2))
    for outcome in outcomes:
        middle = len(outcome.blocks) // 2
        halves[0] += outcome.blocks[:middle, :2].sum(axis=0)
        halves[1] += outcome.blocks[middle:, :2].sum(axis=0)
    (first, first_s), (second, second_s) = halves
    return _ratio(second_s * first, first_s * second)


def _series(accuracy: Floats, outcomes: Sequence[Replicated]) -> Series | None:
    samples = min(len(outcome.series.time_s) for outcome in outcomes)
    if samples == 0:
        return None
    sent = np.array([outcome.series.sent[:samples] for outcome in outcomes], np.float64)
    since = np.diff(sent, axis=1, prepend=np.zeros((len(outcomes), 1, len(accuracy))))
    with np.errstate(invalid="ignore"):
        return Series(
            time_s=np.array(outcomes[0].series.time_s[:samples]),
            in_system=np.array([one.series.present[:samples] for one in outcomes], np.float64),
            accuracy=since @ accuracy / since.sum(axis=2),
            running_accuracy=sent @ accuracy / sent.sum(axis=2),
        )
