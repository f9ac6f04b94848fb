"""One learned policy for instances that come and go, against one for each set of them (ours)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from inferway.experiments.curves import Drawing
from inferway.learning.control import Control
from inferway.learning.settings import TUNED
from inferway.learning.training import save, train
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.burst_batches import arrivals
from inferway.studies.scheduling.look import Dots, dots, half_width
from inferway.twin import run
from inferway.twin.scenario import Failures, Scenario

EVERY_S, FOR_S = 300.0, 60.0
"""Mean times until an instance goes away, and until it is back."""
SETS = tuple((light, heavy) for light, heavy in product(range(3), repeat=2) if light + heavy)
"""Light and heavy instances that may be left."""
DEADLINE, HAND = "deadline", "hand rule"
WHOLE = "RL-PO of all, else deadline"
SWITCHED, LONGER = "RL-PO of each set", "RL-PO of each set, trained longer"
ANY = "RL-PO of any part"
RULED, LEARNED = (DEADLINE, HAND), (WHOLE, SWITCHED, LONGER, ANY)
WORLDS: Mapping[str, bool] = {"outages": True, "all": False}
"""Whether instances come and go."""
_WARMUP = 2_000
_UPDATE = 20_000  # Slots
_SITES = 200


@dataclass(frozen=True)
class ChangingSettings:
    """Duration of the training of any part, and of each evaluation."""

    slots: int = 3_000_000
    requests: int = 400_000
    trials: int = 3


def _points(settings: ChangingSettings) -> list[Point]:
    made = []
    for trial in range(settings.trials):
        given = {"requests": settings.requests, "seed": trial + 1}
        cost_s = 2 + 1e-5 * settings.requests
        for row in RULED:
            label = {"row": row, "trial": trial}
            made.append(Point(label, ruled, {"row": row, **given}, cost_s))
        for row in LEARNED:
            label, call = {"row": row, "trial": trial}, {"row": row, "slots": settings.slots}
            lasts = sum(slots_of(row, settings.slots).values())
            made.append(Point(label, trained, {**call, **given}, cost_s + lasts / 60_000))
    return made


def slots_of(row: str, slots: int) -> dict[tuple[int, int], int]:
    """How long the policy of each set is trained where that of any part has so many slots."""
    if row in (ANY, WHOLE):
        return {(2, 2): slots}
    # A single instance leaves nothing to learn.
    several = [counts for counts in SETS if sum(counts) > 1]
    each = slots if row == LONGER else slots // len(several)
    return dict.fromkeys(several, max(_UPDATE, each // _UPDATE * _UPDATE))


def site_of(changes: bool) -> Scenario:
    """The site, both states of the workload in turn; instances come and go or are all there."""
    site = replace(burst.scenario(), arrivals=arrivals())
    return replace(site, failures=_failures(site)) if changes else site


def _failures(site: Scenario) -> dict[str, Failures]:
    return dict.fromkeys(site.fleet.variants, Failures(EVERY_S, FOR_S))


def control_of(counts: tuple[int, int], *, changes: bool) -> Control:
    """The site that a policy is trained on, with the rewards of those that ship."""
    site = burst.scenario(counts=counts)
    gains = [one for one, count in zip(burst.GAINS, counts, strict=True) if count]
    return Control(replace(site, failures=_failures(site) if changes else {}), gains=tuple(gains))


def ruled(row: str, requests: int, seed: int) -> dict[str, float]:
    """Run a rule in both worlds; see `_figures`."""
    found: dict[str, float] = {}
    for world, changes in WORLDS.items():
        site = site_of(changes)
        if row == HAND:
            site = site.scheduled("hand")
        found |= _figures(site, world, requests, seed)
    return found


def trained(row: str, slots: int, requests: int, seed: int) -> dict[str, float]:
    """Train the policies of a row, and run them in both worlds."""
    found, cpu_s = dict[str, float](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        store.mkdir()
        for counts, lasts in slots_of(row, slots).items():
            control, name = control_of(counts, changes=row == ANY), "-".join(map(str, counts))
            made = train(
                control,
                replace(TUNED, slots=lasts, slots_per_update=_UPDATE, sites=_SITES),
                Path(folder) / name,
                seed=seed,
                tensorboard=False,
                evaluation_slots=_UPDATE,
                checkpoint_every_s=math.inf,
            ).whole()
            cpu_s += made.cpu_s
            made.policy.rename(store / f"{name}.npz")
        if row in (SWITCHED, LONGER):
            for counts in ((1, 0), (0, 1)):
                _only(control_of(counts, changes=False), store / f"{counts}.npz")
        for world, changes in WORLDS.items():
            site = site_of(changes).scheduled("rl-po", checkpoint=store)
            found |= _figures(site, world, requests, seed)
    return {**found, "cpu_s": cpu_s}


def _only(control: Control, path: Path) -> None:
    """Write the policy of a single instance, which has all requests."""
    about = control.about()
    sizes = (about.layout.size, 1, 1, about.outputs)
    layers = [
        (np.zeros(size, np.float32), np.zeros(size[1], np.float32)) for size in pairwise(sizes)
    ]
    save(path, layers, about)


def _figures(site: Scenario, world: str, requests: int, seed: int) -> dict[str, float]:
    """Goodput, violations and share of the heavy model in a world, by state and in their mean.

    The same seed has the same arrivals and the same outages, whoever decides.
    """
    found = run(site, queries=requests, seed=seed, warmup=_WARMUP, workers=1)
    figures: dict[str, float] = {}
    for name, place in burst.PHASES.items():
        one = found.phases[place]
        figures[f"goodput_{name}_{world}"] = one.goodput
        figures[f"violations_{name}_{world}"] = one.violation_ratio
        figures[f"heavy_{name}_{world}"] = one.dispatched.get("heavy", 0.0)
    for what in ("goodput", "violations"):
        both = [figures[f"{what}_{name}_{world}"] for name in burst.PHASES]
        figures[f"{what}_{world}"] = sum(both) / len(both)
    return figures


def _figure(settings: ChangingSettings, results: Results) -> Drawing:
    rows = [*RULED, *LEARNED]
    shown = [
        Dots(
            title,
            [100 * _mean(results, one, column) for one in rows],
            [100 * half_width(results, column, row=one) for one in rows],
        )
        for title, column in (
            ("outages, bursty, %", "goodput_bursty_outages"),
            ("outages, normal, %", "goodput_normal_outages"),
            ("all there, both, %", "goodput_all"),
        )
    ]
    return dots(rows, shown, title="Goodput where instances come and go")


def _mean(results: Results, row: str, column: str) -> float:
    return results.measure(column, row=row).mean


def _ahead(results: Results, first: str, second: str, column: str) -> float:
    return _mean(results, first, column) - _mean(results, second, column)


def _claims(settings: ChangingSettings, results: Results) -> list[Claim]:
    outages, whole = "goodput_outages", "goodput_all"
    return claims(f"""
      * [ours] Where instances come and go, one policy for any part is no worse than one for each
        set, trained for as many slots together.
        - its goodput, mean of both states, less that of the policies that are switched:
          {_ahead(results, ANY, SWITCHED, outages)!r} (at least -0.2 %)
        - bursty: {_beside(results, "goodput_bursty_outages")};
          normal: {_beside(results, "goodput_normal_outages")}
      * It is not far behind policies that have each been trained for as long as it has.
        - its goodput less theirs: {_ahead(results, ANY, LONGER, outages)!r} (at least -0.5 %)
      * While all instances are there, it loses little against the policy for all, trained as long.
        - its goodput less that of the policy for all: {_ahead(results, ANY, WHOLE, whole)!r}
          (at least -0.5 %)
        - {_beside(results, whole)}
      * A rule that needs no training is ahead of all that was learned here.
        - goodput of `deadline` less that of the policy for any part:
          {_ahead(results, DEADLINE, ANY, outages)!r} (at least 0 %)
        - violations: {_beside(results, "violations_outages")}
      * So is leaving what one policy does not know to that rule.
        - goodput of the policy for all, and `deadline` while an instance is away, less that of the
          policy for any part: {_ahead(results, WHOLE, ANY, outages)!r} (at least 0 %)
      * It has learned more than a rule of one comparison.
        - its goodput less that of the hand rule: {_ahead(results, ANY, HAND, outages)!r}
          (at least 0 %)
    """)


def _beside(results: Results, column: str) -> str:
    return ", ".join(f"{row} {_written(results, row, column)}" for row in (*RULED, *LEARNED))


def _written(results: Results, row: str, column: str) -> str:
    half, mean = half_width(results, column, row=row), 100 * _mean(results, row, column)
    return f"{mean:.2f} %" if math.isnan(half) else f"{mean:.2f} +- {100 * half:.2f} %"


STUDY = Study(
    name="changing-instances",
    source="ours",
    shows="One learned policy for any part of the instances, against one for each set.",
    scales=scales(
        ChangingSettings(),
        smoke={"slots": 40_000, "requests": 20_000, "trials": 2},
        quick={"slots": 1_000_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "[Tan24] names both: policies that are switched at faults (Sec. 6.3), and instances that "
        "change with time (Sec. 6.2), which it leaves open; it measures neither.",
        f"An instance goes away after {EVERY_S:g} s and is back after {FOR_S:g} s in the mean, in "
        "training where slots end, in the evaluation at any time. Late requests are served.",
        "The policies for each set know no outages: each is trained as if its instances were all "
        "that there ever are. With a single instance there is nothing to learn.",
        "Each seed has its arrivals and its outages, the same for all rows.",
    ),
    code=(
        *CODE,
        "learning",
        "studies/scheduling/burst_batches.py",
        "studies/scheduling/changing.py",
    ),
)
