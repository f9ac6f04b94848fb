"""Latency against load, with and without batches, while the mean accuracy is kept at a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferway.deployment import Batch
from inferway.deployment.workloads import poisson
from inferway.experiments.curves import Drawing, Look, Panel, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.system import (
    CODE,
    Settings,
    System,
    greatest,
    keeps_target,
    measured,
    precise,
    scenario,
    seconds,
)

_LOOKS = {
    "none": Look("one at a time", 0, "--"),
    "batches": Look("batches", 3),
    "padded": Look("batches, padded", 2, "-."),
    "waiting": Look("batches that wait for more", 1, ":"),
}


_PAIR = System((100.0, 25.0), (0.80, 0.95), (0.5, 0.5))


@dataclass(frozen=True)
class BatchesSettings(Settings):
    """Ours: a quick variant and an accurate one, two servers each, service times in seconds."""

    system: System = _PAIR
    servers: int = 4
    target: float = 0.90
    # Of the greatest rate without batches.
    loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.1, 1.3, 1.5, 1.7, 1.9)
    kinds: tuple[str, ...] = ("none", "batches", "padded", "waiting")
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    # Part of a run's time that does not grow with its requests.
    fixed: float = 0.7
    wait_s: float = 0.01
    queries: int = 10_000_000
    precision: float | None = 0.0015
    most: int = 50_000_000


def _points(settings: BatchesSettings) -> list[Point]:
    shared = settings.common("servers", "target", "sizes", "fixed", "wait_s", "queries", "most")
    cost = seconds(settings.queries, settings.precision)
    axes: dict[str, Any] = {"kind": settings.kinds, "load": settings.loads}
    return grid(batched, {**shared, "precision": settings.precision, "seed": 1}, cost, **axes)


def batched(
    *,
    system: Mapping[str, Any],
    servers: int,
    target: float,
    load: float,
    kind: str,
    sizes: Sequence[int],
    fixed: float,
    wait_s: float,
    queries: int,
    seed: int,
    precision: float | None = None,
    most: int = 50_000_000,
) -> dict[str, Any]:
    """Simulate a site under `priced`, whose runs take always the same time for their size.

    Parameters
    ----------
    load
        Arrivals over the greatest rate that keeps the target without batches.
    kind
        ``none``, ``batches``, ``padded`` (requests that fill no size may be run as the next one),
        or ``waiting`` (a batch that could be larger waits for more).
    sizes, fixed
        Of batches; a batch of b requests takes fixed + (1 - fixed) b times a lone one's time.
    wait_s
        Longest wait of a batch, s.
    """
    site = System.of(system)
    arrivals = poisson(load * greatest(site, servers, target))
    asked = scenario(site.fleet(servers), arrivals, "deterministic", target, "priced", {})
    if kind != "none":
        batches = tuple(
            Batch(
                tuple(sizes),
                tuple(time.mean_s * (fixed + (1 - fixed) * size) for size in sizes),
                pad=kind == "padded",
                wait_s=wait_s if kind == "waiting" else 0.0,
            )
            for time in asked.service
        )
        asked = replace(asked, batches=batches)
    result = precise(asked, queries=queries, seed=seed, warmup=None, precision=precision, most=most)
    return {**measured(result), "p95_s": result.p95_s}


def _figure(settings: BatchesSettings, results: Results) -> Drawing:
    looks = {kind: _LOOKS[kind] for kind in settings.kinds}
    drawn: dict[str, Any] = {"by": "kind", "load": settings.loads}
    goal, across = 100 * settings.target, "load, of the greatest without batches"
    mean_ms, p95_ms = (
        lines(results, column, looks, scale=1e3, **drawn) for column in ("response_s", "p95_s")
    )
    return panels(
        [
            Panel("", across, "mean response time, ms", mean_ms, scale_up="log"),
            Panel("", across, "p95, ms", p95_ms, scale_up="log"),
            Panel(
                *("", across, "accuracy, %"),
                lines(results, "accuracy", looks, scale=100, **drawn),
                levels=[("target", goal)],
                limits_up=(goal - 1, goal + 3),
            ),
        ],
        columns=3,
        title=f"Batches under an accuracy target of {goal:g} %, {settings.servers} servers (ours)",
    )


def _claims(settings: BatchesSettings, results: Results) -> list[Claim]:
    alone, together = (
        results.where(kind=kind).by("response_s", load=settings.loads)
        for kind in ("none", "batches")
    )
    loads = [load for load in settings.loads if not math.isnan(together[load])]
    few = {load: together[load] / alone[load] - 1 for load in loads if load <= 0.5}
    slower, at = most(few, math.nan)
    high = max((load for load in loads if not math.isnan(alone[load])), default=math.nan)
    short = {
        f"{_LOOKS[kind].label}, at load {load:g}": settings.target
        - results.measure("accuracy", kind=kind, load=load).mean
        for kind in settings.kinds
        for load in settings.loads
        if not math.isnan(results.value("response_s", kind=kind, load=load))
    }
    waits = results.where(kind="waiting").by("response_s", load=settings.loads)
    lost = min(
        (waits[load] / together[load] - 1 for load in loads if load <= 0.3), default=math.nan
    )
    sooner = together.get(high, math.nan) / alone.get(high, math.nan) - 1
    top = max(loads, default=math.nan)
    return claims(
        f"""
      * [ours] Batches serve more than what is possible without them.
        - greatest load at which queues stay bounded: {top} (at least 1.5)
        - of the greatest rate that keeps the target one request at a time
      * Near that rate they answer sooner, too.
        - mean response time with batches over that without, less 1: {sooner} (at most -5 %)
        - at load {high:g}
      * Where few wait, batches cost nothing.
        - largest mean response time over that without batches, less 1: {slower} (at most 2 %)
        - at load {at:g}; loads up to 0.5
      * Waiting for more costs time where load is low.
        - least mean response time over that of batches that do not wait, less 1: {lost} (at least
          5 %)
        - loads up to 0.3, {1e3 * settings.wait_s:g} ms
      * {keeps_target("The target is kept, with batches and without.", short, "{}", "")}
        """
    )


STUDY = Study(
    name="batches",
    source="ours",
    shows="Latency against load with and without batches, while a mean accuracy is kept.",
    scales=scales(
        BatchesSettings(),
        smoke={"loads": (0.3, 0.9, 1.5), "queries": 20_000, "most": 20_000, "precision": None},
        quick={"queries": 400_000, "precision": 0.003, "most": 4_000_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The times of batches are assumed: seven tenths of a run's time do not grow with its "
        "requests.",
    ),
    code=CODE,
)
