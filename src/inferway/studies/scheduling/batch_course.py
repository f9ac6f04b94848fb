"""Batch sizes in the course of training ([Tan24], Fig. 5a, b, d and e).

`python -m inferway.studies.scheduling.batch_course rl-po-b rl-fo-b` trains each as `train` does,
for `SLOTS` slots, and writes beside the shipped policies which sizes it sets as it goes.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.results import most
from inferway.learning.control import Control
from inferway.learning.settings import TUNED
from inferway.learning.site import Decide, SlottedSites
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.train import digest, folder, in_one_thread

SLOTS = 2_000_000
COMMAND = "python -m inferway.studies.scheduling.batch_course"
_POINTS = 40  # of a curve
_SITES, _SEEN = 200, 100  # sites, and slots of each, that a point is taken from
_ENDS = ("min", "max")


def columns() -> list[str]:
    """Names of the curves: smallest or largest batch, model, state of the workload."""
    return [f"{end}_{model}_{name}" for end, model, name in product(_ENDS, *_OF)]


_OF = (burst.VARIANTS, tuple(burst.PHASES))


def sizes_set(decide: Decide, control: Control, seed: int) -> dict[str, float]:
    """Mean smallest and largest batch that a policy sets, by model and state, without noise."""
    run = SlottedSites(control, count=_SITES, seed=seed)
    sums, slots = np.zeros((len(burst.PHASES), len(burst.VARIANTS), 2)), np.zeros(len(burst.PHASES))
    for _ in range(_SEEN):
        phase = run.phase.copy()
        probabilities, rules = decide(run.observation)
        assert rules is not None  # of a policy with batches
        for at in burst.PHASES.values():
            sums[at] += rules[phase == at].sum(axis=0)
            slots[at] += (phase == at).sum()
        run.step(probabilities, rules)
    means = sums / np.maximum(slots, 1)[:, None, None]
    return {
        f"{end}_{model}_{name}": float(means[at, k, which])
        for which, end in enumerate(_ENDS)
        for k, model in enumerate(burst.VARIANTS)
        for name, at in burst.PHASES.items()
    }


def trained(policy: str, slots: int, file: Path) -> None:
    """Train a policy with batches and write its course, a line for each of `_POINTS` parts."""
    import torch

    from inferway.learning.ppo import Learner

    torch.set_num_threads(1)
    control = burst.control(policy)
    learner = Learner(control, replace(TUNED, slots=slots))
    rows = [{"slots": 0.0, **sizes_set(learner.actor.deployed, control, 1)}]
    while learner.slots < slots:
        learner.update()
        if learner.slots >= len(rows) * slots / _POINTS or learner.slots >= slots:
            found = sizes_set(learner.actor.deployed, control, 1)
            rows.append({"slots": float(learner.slots), **found})
    write_course(file, rows)


def write_course(file: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a course, a line for each row, with ``slots`` and `columns`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, ["slots", *columns()], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{one:.6g}" for name, one in row.items()} for row in rows)


def name_of(policy: str) -> str:
    """Name of a policy's course, beside the shipped policies."""
    return f"{policy}-sizes"


@dataclass(frozen=True)
class CourseSettings:
    """The policies with batches, without and with the workload's state."""

    policies: tuple[str, ...] = ("rl-po-b", "rl-fo-b")


def _points(settings: CourseSettings) -> list[Point]:
    return [
        Point({"policy": one}, kept, {"policy": one, "file": digest(name_of(one), ".csv")}, 0.05)
        for one in settings.policies
    ]


def kept(policy: str, file: str) -> dict[str, Any]:
    """Read a course: a list per column; ValueError where it is not there."""
    del file
    path = folder() / f"{name_of(policy)}.csv"
    if not path.is_file():
        raise ValueError(f"there is no {path}: `{COMMAND} {policy}` makes it")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in ("slots", *columns())}


def _figure(settings: CourseSettings, results: Results) -> Drawing:
    shown = []
    for model, name in product(reversed(_OF[0]), _OF[1]):
        curves = []
        for color, policy in enumerate(settings.policies):
            for row in results.where(policy=policy).rows:
                for end, dash in zip(_ENDS, (":", "-"), strict=True):
                    look = Look(f"{policy.upper()}, {end}imum", color, dash)
                    slots = [one / 1e6 for one in row["slots"]]
                    curves.append(look.series(slots, row[f"{end}_{model}_{name}"]))
        title = f"{model} model, {name} state"
        up = "mean batch size set"
        shown.append(Panel(title, "million slots", up, curves, limits_up=(0.8, 5.2)))
    return panels(shown, columns=2, title="Batch sizes in training ([Tan24], Fig. 5a, b, d, e)")


def _steps(row: Mapping[str, Any], name: str) -> list[float]:
    """Mean change from one point to the next, in each quarter of each curve of a state."""
    found = []
    for end, model in product(_ENDS, burst.VARIANTS):
        steps = np.abs(np.diff(row[f"{end}_{model}_{name}"]))
        found.append([float(part.mean()) for part in np.array_split(steps, 4)])
    return [float(one) for one in np.mean(found, axis=0)]


def _claims(settings: CourseSettings, results: Results) -> list[Claim]:
    known: Sequence[str] = [one for one in settings.policies if len(results.where(policy=one))]
    steps = {
        (policy, name): _steps(results.where(policy=policy).rows[0], name)
        for policy in known
        for name in burst.PHASES
    }
    flatter, at = most(
        {one.upper(): steps[one, "normal"][-1] - steps[one, "normal"][0] for one in known}, ""
    )
    varies = {
        one.upper(): sum(steps[one, "bursty"]) / max(sum(steps[one, "normal"]), 1e-9)
        for one in known
    }
    ends = "; ".join(
        f"{one.upper()}, {model}, {name}: {row[f'min_{model}_{name}'][-1]:.1f} to "
        f"{row[f'max_{model}_{name}'][-1]:.1f}"
        for one in known
        for row in results.where(policy=one).rows
        for model, name in product(*_OF)
    )
    small = max(
        (
            row[f"min_{model}_normal"][-1]
            for one in known
            for row in results.where(policy=one).rows
            for model in burst.VARIANTS
        ),
        default=math.nan,
    )
    return claims(f"""
      * [Sec. 5.2.2, Fig. 5b and e] In the normal state the curves become flatter as training goes
        on.
        - mean change from point to point in the last quarter less that in the first, the larger of
          the policies: {flatter} (at most 0)
        - {at}
      * [Sec. 5.2.2, Fig. 5a and d] In the bursty state they are more variable.
        - their total change over that of the normal state, the least of the policies:
          {min(varies.values(), default=math.nan)} (at least 1)
        - {", ".join(f"{one} {value:.2f}" for one, value in varies.items())}
      * [Sec. 5.2.2, Fig. 5] In the normal state the smallest batch is set to small values.
        - largest mean smallest batch at the end: {small} (at most 1.5)
        - {ends}
    """)


STUDY = Study(
    name="batch-course",
    source="[Tan24], Fig. 5a, b, d and e",
    shows="The batch sizes that the policies set in the course of their training.",
    scales=scales(CourseSettings(), smoke={"policies": ("rl-po-b",)}),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        f"Trainings of {SLOTS / 1e6:g} million slots, not 250; sizes are those that the policy of "
        "that moment sets without noise, over 20,000 slots.",
    ),
    code=(),
)


def main() -> None:
    """Train and keep the courses."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="rl-po-b, rl-fo-b")
    parser.add_argument("--slots", type=float, default=SLOTS, help="to train for")
    given = parser.parse_args()
    for policy in given.policies or CourseSettings.policies:
        if policy not in CourseSettings.policies:
            parser.error(f"no policy with batches is called {policy}")
        file = folder() / f"{name_of(policy)}.csv"
        trained(policy, int(given.slots), file)
        print(file)


if __name__ == "__main__":
    in_one_thread(main)
