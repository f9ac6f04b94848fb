"""RL-PO trained under the shield of `late: drop`, and with services that drift (ours)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from inferway.experiments.curves import Drawing
from inferway.experiments.results import largest
from inferway.learning.settings import TUNED
from inferway.learning.training import train
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.burst_batches import arrivals
from inferway.studies.scheduling.look import Dots, dots, half_width
from inferway.studies.scheduling.train import SEEDS, digest, network
from inferway.twin import run
from inferway.twin.scenario import Scenario
from inferway.twin.service_walk import ServiceWalk

_WARMUP = 2_000
DEADLINE, WIDE, EVEN = "deadline", "deadline, margin 12", "any server alike"
SHIPPED = "RL-PO as it ships"
SHIELD, DRIFT = "RL-PO, trained under the shield", "RL-PO, trained under it with drift"
RULED, LEARNED = (DEADLINE, WIDE, EVEN, SHIPPED), (SHIELD, DRIFT)
WALK = ServiceWalk(low=0.8, high=1.6, step=0.02)
# What services take: what is said, or what a walk makes of it.
WORLDS: Mapping[str, ServiceWalk | None] = {"said": None, "drift": WALK}
_MARGIN = 12.0  # Of predictions' spread: as wide as helped on other seeds than the study's


@dataclass(frozen=True)
class TrainedSettings:
    """Duration of each training, and of each evaluation."""

    slots: int = 1_000_000
    slots_per_update: int = 50_000
    requests: int = 400_000
    trials: int = 3


def _points(settings: TrainedSettings) -> list[Point]:
    made = []
    for trial in range(settings.trials):
        given = {"requests": settings.requests, "seed": trial + 1}
        cost = 2 + 1e-5 * settings.requests
        for row in RULED:
            name = SEEDS[trial % len(SEEDS)] if row == SHIPPED else ""
            file = digest(name) if name else ""
            call = {"row": row, "name": name, "file": file, **given}
            made.append(Point({"row": row, "trial": trial}, ruled, call, cost))
        lasts = {"slots": settings.slots, "slots_per_update": settings.slots_per_update}
        for row in LEARNED:
            call = {"row": row, **lasts, **given}
            cost_s = cost + 5 + settings.slots / 8_000
            made.append(Point({"row": row, "trial": trial}, trained, call, cost_s))
    return made


def site_of(walk: ServiceWalk | None) -> Scenario:
    """The site under the shield, both states of the workload in turn."""
    return replace(burst.scenario(), arrivals=arrivals(), late="drop", walk=walk)


def ruled(row: str, name: str, file: str, requests: int, seed: int) -> dict[str, float]:
    """Run a rule, or a shipped policy by its name, in both worlds; see `_figures`."""
    del file
    found: dict[str, float] = {}
    for world, walk in WORLDS.items():
        site = site_of(walk)
        if row == SHIPPED:
            site = site.scheduled("rl-po", checkpoint=network(name).path)
        elif row == WIDE:
            site = replace(site, options={"margin": _MARGIN})
        elif row == EVEN:
            alike = dict.fromkeys(burst.VARIANTS, 1 / len(burst.VARIANTS))
            site = replace(site, policy="alias", options={"probabilities": alike})
        found |= _figures(site, world, requests, seed)
    return found


def trained(
    row: str, slots: int, slots_per_update: int, requests: int, seed: int
) -> dict[str, float]:
    """Train RL-PO under the shield, with drift or without, and run it in both worlds."""
    control = burst.control("rl-po")
    walk = WALK if row == DRIFT else None
    control = replace(control, scenario=replace(control.scenario, late="drop", walk=walk))
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = train(
            control,
            replace(TUNED, slots=slots, slots_per_update=slots_per_update),
            Path(folder),
            seed=seed,
            tensorboard=False,
            evaluation_slots=slots_per_update,
            checkpoint_every_s=math.inf,
        ).whole()
        policy = Path(folder) / "policy.npz"
        for world, drift in WORLDS.items():
            site = site_of(drift).scheduled("rl-po", checkpoint=policy)
            found |= _figures(site, world, requests, seed)
    return {**found, "cpu_s": made.cpu_s}


def _figures(site: Scenario, world: str, requests: int, seed: int) -> dict[str, float]:
    """Goodput, violations, late answers and share of the heavy model in a world, by state.

    The same seed has the same arrivals and the same drift, whoever decides.
    """
    found = run(site, queries=requests, seed=seed, warmup=_WARMUP, workers=1)
    figures = {}
    for name, place in burst.PHASES.items():
        one = found.phases[place]
        figures[f"goodput_{name}_{world}"] = one.goodput
        figures[f"violations_{name}_{world}"] = one.violation_ratio
        figures[f"late_{name}_{world}"] = one.late
        figures[f"heavy_{name}_{world}"] = one.dispatched.get("heavy", 0.0)
    return figures


def _figure(settings: TrainedSettings, results: Results) -> Drawing:
    rows = [*RULED, *LEARNED]
    shown = [
        Dots(
            title,
            [100 * _mean(results, one, column) for one in rows],
            [100 * half_width(results, column, row=one) for one in rows],
        )
        for title, column in (
            ("bursty, as said, %", "goodput_bursty_said"),
            ("bursty, drift, %", "goodput_bursty_drift"),
            ("normal, drift, %", "goodput_normal_drift"),
        )
    ]
    return dots(rows, shown, title="Goodput under the shield")


def _mean(results: Results, row: str, column: str) -> float:
    return results.measure(column, row=row).mean


def _ahead(results: Results, first: str, second: str, *columns: str) -> float:
    """How much more the first row has than the second, in the mean of columns."""
    gaps = [_mean(results, first, one) - _mean(results, second, one) for one in columns]
    return sum(gaps) / len(gaps)


def _claims(settings: TrainedSettings, results: Results) -> list[Claim]:
    said, drift = "goodput_bursty_said", "goodput_bursty_drift"
    calm, both = "goodput_normal_said", (drift, "goodput_normal_drift")
    apart = _ahead(results, DEADLINE, SHIELD, said)
    lost = largest([_mean(results, row, "violations_bursty_said") for row in LEARNED])
    return claims(f"""
      * [ours] Trained under the shield, RL-PO comes to more in bursts than trained without.
        - its goodput less that of the policies that ship, all under the shield:
          {_ahead(results, SHIELD, SHIPPED, said)!r} (at least 0.5 %)
        - {_beside(results, said)}
      * It is then where `deadline` is.
        - distance of the goodput in bursts: {abs(apart)!r} (at most 0.05 %)
      * That is the shield's doing: to choose any server alike is as good in bursts.
        - distance of the goodput in bursts of RL-PO trained under the shield from that:
          {abs(_ahead(results, EVEN, SHIELD, said))!r} (at most 0.05 %)
      * Who is turned away, dropped or late is hardly anyone.
        - violations in bursts, the larger of both trainings: {lost!r} (at most 0.1 %)
      * Between bursts `deadline` stays ahead.
        - goodput of `deadline` less that of RL-PO trained under the shield:
          {_ahead(results, DEADLINE, SHIELD, calm)!r} (at least 0 %)
        - {_beside(results, calm)}
      * Where services drift, training with drift brings more in bursts.
        - goodput less that of training under the shield alone:
          {_ahead(results, DRIFT, SHIELD, drift)!r} (at least 0 %)
        - {_beside(results, drift)}
      * In bursts with drift what has learned is ahead of `deadline`.
        - goodput less that of `deadline`: {_ahead(results, DRIFT, DEADLINE, drift)!r}
          (at least 0 %)
        - violations: {_beside(results, "violations_bursty_drift")}; late:
          {_beside(results, "late_bursty_drift")}
      * It is also ahead of `deadline` with a wide margin.
        - goodput less that of `deadline` with a margin of {_MARGIN:g}:
          {_ahead(results, DRIFT, WIDE, drift)!r} (at least 0 %)
      * Over both states `deadline` is ahead with drift, too.
        - mean goodput of both states, that of `deadline` less that of RL-PO trained with drift:
          {_ahead(results, DEADLINE, DRIFT, *both)!r} (at least 0 %)
        - normal: {_beside(results, both[1])}
    """)


def _beside(results: Results, column: str) -> str:
    return ", ".join(f"{row} {_written(results, row, column)}" for row in (*RULED, *LEARNED))


def _written(results: Results, row: str, column: str) -> str:
    half, mean = half_width(results, column, row=row), 100 * _mean(results, row, column)
    return f"{mean:.2f} %" if math.isnan(half) else f"{mean:.2f} +- {100 * half:.2f} %"


STUDY = Study(
    name="burst-training",
    source="ours",
    shows="What RL-PO learns under the shield of `late: drop`, and where services drift.",
    scales=scales(
        TrainedSettings(),
        smoke={"slots": 4_000, "slots_per_update": 2_000, "requests": 20_000, "trials": 2},
        quick={"slots": 300_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Services drift together: their factor is a random walk between "
        f"{WALK.low:g} and {WALK.high:g}, whose logarithm has a standard deviation of "
        f"{WALK.step:g} after a second. Bursts are above what the servers can do from a factor of "
        "1.3 on. The site learns service times from what it measures, as live.",
        "The policies that ship were trained for 25 million slots with late requests served.",
        "Each seed has its arrivals and its drift, the same for all rows.",
    ),
    code=(
        *CODE,
        "learning",
        "studies/scheduling/burst_batches.py",
        "studies/scheduling/burst_training.py",
    ),
)
