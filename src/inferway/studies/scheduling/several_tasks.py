"""One learned policy for two tasks on cores that they share ([Tan24], Sec. 6.2; ours)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from inferway.deployment.workloads import MapArrivals
from inferway.experiments.curves import Drawing
from inferway.learning.control import Control
from inferway.learning.settings import TUNED
from inferway.learning.training import train
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.look import Dots, dots, half_width
from inferway.twin import Scenario, run_together

_WARMUP = 2_000
TASKS = ("first", "second")
CORES = 4
RATE_PER_S = (150.0, 10.0)  # In a burst, and between two; each state lasts 50 s in the mean
_HOLDING_S = 50.0
PRICED, DEADLINE = "priced", "deadline"
ALONE, APART, TOGETHER = "a policy for each, trained alone", "a part for each", "one policy"
RULED, LEARNED = (DEADLINE, PRICED), (ALONE, APART, TOGETHER)
_TARGET = 0.79  # Mean accuracy that `priced` is told to keep


@dataclass(frozen=True)
class SeveralSettings:
    """Duration of each training, and of each evaluation."""

    slots: int = 1_000_000
    slots_per_update: int = 10_000
    sites: int = 50
    requests: int = 400_000
    trials: int = 3


def _points(settings: SeveralSettings) -> list[Point]:
    made = []
    for trial in range(settings.trials):
        given: dict[str, Any] = {"requests": settings.requests, "seed": trial + 1}
        cost = 2 + 4e-5 * settings.requests
        made += [
            Point({"row": row, "trial": trial}, ruled, {"row": row, **given}, cost) for row in RULED
        ]
        lasts = {name: getattr(settings, name) for name in ("slots", "slots_per_update", "sites")}
        for row in LEARNED:
            call = {"row": row, **lasts, **given}
            cost_s = cost + 10 + settings.slots / 6_000
            made.append(Point({"row": row, "trial": trial}, trained, call, cost_s))
    return made


def site_of(task: str) -> Scenario:
    """The paper's four servers for a task, and a workload of its own, on the shared cores."""
    high, low = RATE_PER_S
    out = 1 / _HOLDING_S
    arrivals = MapArrivals.read(
        {
            "process": "map",
            "d0": [[-high - out, out], [out, -low - out]],
            "d1": [[high, 0.0], [0.0, low]],
        }
    )
    alone = burst.scenario()
    fleet = alone.fleet
    devices = DeviceSlots(
        names=("cpu",),
        slots=np.array([CORES]),
        exclusive=np.array([False]),
        overhead_s=np.zeros(1),
        device=np.zeros(len(fleet.rate), np.int64),
        taken=np.ones(len(fleet.rate), np.int64),
    )
    own = Fleet(
        fleet.variants,
        fleet.rate,
        fleet.accuracy,
        fleet.count,
        buffer=fleet.buffer,
        task=task,
        devices=devices,
    )
    return replace(alone, fleet=own, arrivals=arrivals, late="serve")


def ruled(row: str, requests: int, seed: int) -> dict[str, float]:
    """Run a rule for both tasks; see `_figures`."""
    target = _TARGET if row == PRICED else None
    return _figures(
        {task: replace(site_of(task), policy=row, target=target) for task in TASKS}, requests, seed
    )


def trained(
    row: str, slots: int, slots_per_update: int, sites: int, requests: int, seed: int
) -> dict[str, float]:
    """Train RL-PO for one task alone, or for both with parts apart or together, and run it."""
    first, second = (Control(replace(site_of(task), policy="alias")) for task in TASKS)
    control = first if row == ALONE else replace(first, others=(second,))
    settings = replace(
        TUNED,
        slots=slots,
        slots_per_update=slots_per_update,
        sites=sites,
        minibatch=2_000,
        apart=row == APART,
    )
    with tempfile.TemporaryDirectory() as folder:
        made = train(
            control,
            settings,
            Path(folder),
            task=TASKS[0],
            seed=seed,
            tensorboard=False,
            evaluation_slots=slots_per_update,
            checkpoint_every_s=math.inf,
        ).whole()
        options: dict[str, Any] = {"checkpoint": Path(folder) / "policy.npz"}
        if row != ALONE:
            options["tasks"] = TASKS
        scenarios = {task: site_of(task).scheduled("rl-po", **options) for task in TASKS}
        found = _figures(scenarios, requests, seed)
    return {**found, "cpu_s": made.cpu_s}


def _figures(scenarios: Mapping[str, Scenario], requests: int, seed: int) -> dict[str, float]:
    """Goodput, violations and share of the heavy model by state, means of both tasks.

    The same seed has the same arrivals, whoever decides.
    """
    found = run_together(scenarios, queries=requests, seed=seed, warmup=_WARMUP, workers=1)
    figures: dict[str, float] = {}
    for name, place in burst.PHASES.items():
        every = [one.phases[place] for one in found.values()]
        figures[f"goodput_{name}"] = _mean_of([one.goodput for one in every])
        figures[f"violations_{name}"] = _mean_of([one.violation_ratio for one in every])
        figures[f"heavy_{name}"] = _mean_of([one.dispatched.get("heavy", 0.0) for one in every])
    for column in ("goodput", "violations"):
        figures[column] = _mean_of([figures[f"{column}_{name}"] for name in burst.PHASES])
    return figures


def _mean_of(values: list[float]) -> float:
    return float(np.mean(values))


def _figure(settings: SeveralSettings, results: Results) -> Drawing:
    rows = [*RULED, *LEARNED]
    shown = [
        Dots(
            title,
            [100 * _mean(results, one, column) for one in rows],
            [100 * half_width(results, column, row=one) for one in rows],
        )
        for title, column in (
            ("goodput in bursts, %", "goodput_bursty"),
            ("violations in bursts, %", "violations_bursty"),
            ("goodput between, %", "goodput_normal"),
        )
    ]
    return dots(rows, shown, title="Two tasks on four cores")


def _mean(results: Results, row: str, column: str) -> float:
    return results.measure(column, row=row).mean


def _ahead(results: Results, first: str, second: str, column: str) -> float:
    return _mean(results, first, column) - _mean(results, second, column)


def _claims(settings: SeveralSettings, results: Results) -> list[Claim]:
    return claims(f"""
      * [ours] One policy that sees both tasks brings more than one whose parts see their own
        task alone, trained alike.
        - goodput less that of a part for each:
          {_ahead(results, TOGETHER, APART, "goodput")!r} (at least 0 %)
        - {_beside(results, "goodput")}
      * In bursts that is more than a tenth of a point.
        - goodput in bursts less that of a part for each:
          {_ahead(results, TOGETHER, APART, "goodput_bursty")!r} (at least 0.1 %)
        - {_beside(results, "goodput_bursty")}
      * It loses fewer requests in bursts.
        - violations in bursts of a part for each, less those of one policy:
          {_ahead(results, APART, TOGETHER, "violations_bursty")!r} (at least 0 %)
        - {_beside(results, "violations_bursty")}
      * Policies that were trained alone, with the cores to themselves, lose more than a point in
        bursts to it.
        - goodput in bursts of one policy less theirs:
          {_ahead(results, TOGETHER, ALONE, "goodput_bursty")!r} (at least 1 %)
      * `deadline` is ahead of all that is learned.
        - its goodput less that of the best that is learned:
          {min(_ahead(results, DEADLINE, one, "goodput") for one in LEARNED)!r} (at least 0 %)
        - heavy between bursts: {_beside(results, "heavy_normal")}
      * One policy is ahead of `priced`, which keeps a mean accuracy and knows no deadline.
        - goodput less that of `priced` with a target of {_TARGET:g}:
          {_ahead(results, TOGETHER, PRICED, "goodput")!r} (at least 0 %)
    """)


def _beside(results: Results, column: str) -> str:
    return ", ".join(f"{row} {_written(results, row, column)}" for row in (*RULED, *LEARNED))


def _written(results: Results, row: str, column: str) -> str:
    half, mean = half_width(results, column, row=row), 100 * _mean(results, row, column)
    return f"{mean:.2f} %" if math.isnan(half) else f"{mean:.2f} +- {100 * half:.2f} %"


STUDY = Study(
    name="several-tasks",
    source="ours",
    shows="One learned policy for two tasks that share cores, against a part for each and rules.",
    scales=scales(
        SeveralSettings(),
        smoke={
            "slots": 400,
            "slots_per_update": 200,
            "sites": 4,
            "requests": 10_000,
            "trials": 2,
        },
        quick={"slots": 500_000, "requests": 200_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        f"Each task has two light and two heavy servers on {CORES} cores that both share, "
        f"{RATE_PER_S[0]:g} requests a second in bursts and {RATE_PER_S[1]:g} between, states of "
        "50 s in the mean, drawn apart for each task. Late requests are served, as the paper "
        "trains.",
        "The policy for each is one, trained for a task with the cores to itself, as both tasks "
        "are alike. Parts apart are trained as one policy is, with the same reward and a critic "
        "that sees both; only their weights across tasks are 0.",
        "Each seed has its arrivals, the same for all rows.",
    ),
    code=(*CODE, "learning", "studies/scheduling/several_tasks.py"),
)
