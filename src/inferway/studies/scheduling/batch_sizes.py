"""Learned batch sizes, and what they depend on ([Tan24], Fig. 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.learning.site import PhaseTally, SlottedSites
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.train import digest, network
from inferway.studies.scheduling.trial import learned

_SITES = 200
_WARMUP = 10


@dataclass(frozen=True)
class Settings:
    """Policies, and other batch curves than the one that they were trained with."""

    policies: tuple[str, ...] = ("rl-po-b", "rl-fo-b")
    # Of the light and of the heavy model; the first is the one of the training.
    phis: tuple[tuple[float, float], ...] = (
        (burst.LIGHT_PHI, burst.HEAVY_PHI), (0.5, 0.1), (0.6, 0.2), (0.8, 0.4), (0.9, 0.5),
        (0.5, 0.5),
    )  # fmt: skip
    slots: int = 600_000
    trials: int = 3


def _points(settings: Settings) -> list[Point]:
    cost_s, slots = 1 + 8e-6 * settings.slots, settings.slots
    return [
        Point(
            {"policy": policy, "light": phis[0], "heavy": phis[1], "trial": trial},
            used,
            {"policy": policy, "file": digest(policy), "slots": slots, "phis": [*phis]}
            | {"seed": trial + 1},
            cost_s,
        )
        for policy in settings.policies
        for phis in settings.phis
        for trial in range(settings.trials)
    ]


def used(
    policy: str, file: str, phis: tuple[float, float], slots: int, seed: int
) -> dict[str, Any]:
    """Run a trained policy and see which batch rules it sets.

    Gives, by state of the workload, goodput and violations; ``min`` and ``max`` of each model, its
    mean smallest and largest batch; the share of each size; and the mean batch that was served. The
    upper bound of the bursty goodput is ``bound``.
    """
    del file
    decide, (light, heavy) = learned(network(policy)), phis
    run = SlottedSites(
        burst.control(policy, phis=(light, heavy)), count=min(_SITES, slots), seed=seed
    )
    # By state, model, smallest or largest, and size.
    seen = np.zeros((2, 2, 2, len(burst.SIZES)))
    for t in range(_WARMUP + -(-slots // run.count)):
        if t == _WARMUP:
            run.clear()
            seen[:] = 0
        phase = run.phase.copy()
        probabilities, rules = decide(run.observation)
        assert rules is not None
        chosen = rules[..., None] == np.array(burst.SIZES)
        for at in burst.PHASES.values():
            seen[at] += chosen[phase == at].sum(axis=0)
        run.step(probabilities, rules)
    shares = seen / np.maximum(seen.sum(axis=3, keepdims=True), 1)
    batches = run.counts.batches.sum(axis=0)
    answered = run.counts.answered.sum(axis=(0, 3))
    figures = PhaseTally.of(run).figures()
    row: dict[str, Any] = {name: figures[name] for name in ("goodput", "violations")}
    row["bound"] = phase_bound((light, heavy))
    for name, at in burst.PHASES.items():
        for column in ("goodput", "violations", "heavy"):
            row[f"{column}_{name}"] = figures[f"{column}_{at}"]
        for k, model in enumerate(burst.VARIANTS):
            for which, of in zip(("min", "max"), shares[at, k], strict=True):
                row[f"{which}_{model}_{name}"] = float(of @ burst.SIZES)
                row[f"{which}_{model}_{name}_shares"] = of.tolist()
            served = int(batches[at, k])
            row[f"batch_{model}_{name}"] = answered[at, k] / served if served else math.nan
    return row


def phase_bound(phis: tuple[float, float]) -> float:
    """The upper bound of the bursty goodput where all batches have their fastest size."""
    fastest = [
        float(min(np.array(burst.batch_service_s(service_s, phi)) / burst.SIZES))
        for service_s, phi in zip(burst.SERVICE_S, phis, strict=True)
    ]
    return burst.upper_bound(
        burst.RATE_PER_S[burst.BURSTY],
        counts=(2, 2),
        service_s=fastest,
        accuracy=burst.ACCURACY,
        deadline_s=burst.DEADLINE_S,
        lasts_s=burst.HOLDING_S[burst.BURSTY],
    )[0]


def _figure(settings: Settings, results: Results) -> Drawing:
    light, heavy = settings.phis[0]
    trained, order = results.where(light=light, heavy=heavy), sorted(settings.phis)
    policies = list(enumerate(settings.policies))
    shown = [
        Panel(
            f"{model} model, {name} state",
            "batch size",
            "share of the slots, %",
            [
                Curve(
                    f"{policy.upper()}, {which}imum",
                    burst.SIZES,
                    _shares(trained, f"{which}_{model}_{name}_shares", policy),
                    color=color,
                    dash=dash,
                )
                for color, policy in policies
                for which, dash in (("min", ":"), ("max", "-"))
            ],
            limits_up=(-5.0, 105.0),
            ticks_across=burst.SIZES,
        )
        for model in ("heavy", "light")
        for name in burst.PHASES
    ]
    for column, up in (("goodput", "goodput, overall, %"), ("violations", "violations, %")):
        curves = [
            Curve(
                policy.upper(),
                [light for light, _ in order],
                [100 * _at(results, column, policy, phis) for phis in order],
                color=color,
                dash="",
            )
            for color, policy in policies
        ]
        shown.append(Panel("other batch curves", "phi of the light model", up, curves))
    return panels(shown, columns=2, title="Batch sizes learned ([Tan24], Fig. 5)")


def _at(results: Results, column: str, policy: str, phis: tuple[float, float]) -> float:
    return results.measure(column, policy=policy, light=phis[0], heavy=phis[1]).mean


def _shares(results: Results, column: str, policy: str) -> list[float]:
    """Of each size, the mean over the trials in percent."""
    rows = [row[column] for row in results.where(policy=policy).rows]
    return (100 * np.mean(rows, axis=0)).tolist() if rows else [math.nan] * len(burst.SIZES)


def _claims(settings: Settings, results: Results) -> list[Claim]:
    first, (light, heavy) = settings.policies[0], settings.phis[0]
    trained, made = results.where(light=light, heavy=heavy), []
    for policy in settings.policies:
        of = partial(trained.value, policy=policy)
        means = (
            f"{model}, {name}: {of(f'min_{model}_{name}'):.2f} to {of(f'max_{model}_{name}'):.2f}"
            for model in burst.VARIANTS
            for name in burst.PHASES
        )
        made.append(f"""
            [Sec. 5.2.2, Fig. 5] {policy.upper()}: in the normal state the smallest batch of both
            models is set to small values.
            - greatest mean of the smallest batch:
              {max(of(f"min_{model}_normal") for model in burst.VARIANTS)!r} (at most 1.5)
            - {"; ".join(means)}
            """)
    if "rl-po-b" in settings.policies:
        share = _shares(trained, "min_heavy_bursty_shares", "rl-po-b")[-1] / 100
        made.append(f"""
            RL-PO-B: in the bursty state the heavy model mostly serves batches of 5.
            - share of the slots with 5 as its smallest batch: {share!r} (at least 50 %)
            - mean batch served {trained.value("batch_heavy_bursty", policy="rl-po-b"):.2f}
            """)
    own = _at(results, "goodput", first, settings.phis[0])
    losses = {phis: own - _at(results, "goodput", first, phis) for phis in settings.phis}
    points = (f"phi {a:g} and {b:g}: {-100 * loss:+.2f} points" for (a, b), loss in losses.items())
    bounds = [phase_bound(phis) for phis in settings.phis]
    made.append(f"""
        [ours] {first.upper()} depends little on the batch curve assumed.
        - greatest loss of goodput with another curve than in training:
          {max(losses.values())!r} (at most 1 %)
        - {", ".join(points)}

        Batches raise the upper bound of the bursty goodput by little.
        - bound with the curve assumed less that without batches:
          {bounds[0] - phase_bound((0.0, 0.0))!r} (at most 1 %)
        - {100 * bounds[0]:.2f} %; over the curves tried {100 * min(bounds):.2f} to
          {100 * max(bounds):.2f} %
        """)
    return claims(*made)


STUDY = Study(
    name="batch-sizes",
    source="[Tan24], Fig. 5",
    shows="The smallest and largest batches that the trained policies set for each model, in the "
    "bursty and in the normal state, and what another batch curve makes of them.",
    scales=scales(
        Settings(),
        smoke={"phis": Settings.phis[:2], "slots": 20_000, "trials": 1},
        quick={"slots": 200_000},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The paper prints no batch service times: a batch of b takes s1 (phi + (1 - phi) b) with "
        "phi 0.7 for the light and 0.3 for the heavy model.",
        "Only the final configurations are shown, not their evolution in training.",
    ),
    code=CODE,
)
