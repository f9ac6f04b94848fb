"""Learned and ruled schedulers in bursts, with batches, shields and slower services (ours)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inferway.deployment.workloads import PhasedArrivals, phased
from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.results import largest, least
from inferway.studies import Claim, Point, Results, Study, claims, scales
from inferway.studies.scheduling import CODE, burst
from inferway.studies.scheduling.batch_sizes import phase_bound
from inferway.studies.scheduling.look import half_width
from inferway.studies.scheduling.train import SEEDS, digest, network
from inferway.twin import run
from inferway.twin.scenario import Scenario

_STATE_S = 100.0  # each state of the workload lasts so long
_WARMUP = 2_000
_PHIS = (burst.LIGHT_PHI, burst.HEAVY_PHI)
DEADLINE, JOINING, LEARNED = "deadline", "joining", "rl-po-b"


@dataclass(frozen=True)
class BurstSettings:
    """Batch curves, of the light and of the heavy model, and how much slower services are."""

    phis: tuple[tuple[float, float], ...] = (_PHIS, (0.5, 0.1), (0.6, 0.2), (0.8, 0.4), (0.9, 0.5))
    factors: tuple[float, ...] = (1.0, 1.25, 1.5)
    learned: tuple[str, ...] = SEEDS
    requests: int = 200_000
    trials: int = 3


def arrivals() -> PhasedArrivals:
    """Both states of the workload in turn."""
    return phased((_STATE_S, rate_per_s, None) for rate_per_s in burst.RATE_PER_S)


def _points(settings: BurstSettings) -> list[Point]:
    made = []
    for trial in range(settings.trials):
        given = {"requests": settings.requests, "seed": trial + 1}
        cases: list[tuple[str, Mapping[str, Any]]] = [
            *(
                (row, {"phis": phis, "late": late})
                for phis in settings.phis
                for row, late in (
                    *((row, "drop") for row in (DEADLINE, JOINING, LEARNED)),
                    *([(LEARNED, "serve")] if phis == _PHIS else []),
                )
            ),
            *(
                (row, {"factor": factor, "late": late})
                for factor in settings.factors
                for row, late in (
                    (DEADLINE, "drop"),
                    *((row, late) for row in settings.learned for late in ("serve", "drop")),
                )
            ),
        ]
        for row, asked in cases:
            file = digest(row) if row.startswith("rl-") else ""
            label = {"row": row, "trial": trial, "phis": None, "factor": 1.0, **asked}
            # What a point is asked for is kept as JSON, which has no tuples.
            lists = {"phis": list(asked["phis"])} if "phis" in asked else {}
            call = {"row": row, "file": file, **given, **asked, **lists}
            made.append(Point(label, in_burst, call, 1 + 5e-6 * settings.requests))
    return made


def in_burst(
    row: str,
    file: str,
    requests: int,
    seed: int,
    late: Literal["drop", "serve"],
    phis: Sequence[float] | None = None,
    factor: float = 1.0,
) -> dict[str, Any]:
    """Run one row by events and count what came of the requests, by state.

    A row is `deadline`, `joining` or a shipped policy's name. Services take so many times what the
    file says, which is what predictions begin with. With `late` drop, servers that are predicted
    to be late are left out before anything else decides.
    """
    del file
    light_s, heavy_s = burst.SERVICE_S
    site = burst.scenario(
        service_s=(factor * light_s, factor * heavy_s),
        phis=None if phis is None else (phis[0], phis[1]),
    )
    if phis is None:  # what the file says is the first prediction
        said_s = dict(zip(burst.VARIANTS, burst.SERVICE_S, strict=True))
        site = replace(site, measured_s={name: {1: (s, s)} for name, s in said_s.items()})
    site = replace(site, arrivals=arrivals(), late=late)
    found = run(_decided(site, row), queries=requests, seed=seed, warmup=_WARMUP, workers=1)
    figures: dict[str, Any] = {}
    for name, place in burst.PHASES.items():
        one = found.phases[place]
        figures[f"goodput_{name}"] = one.goodput
        figures[f"violations_{name}"] = one.violation_ratio
        figures[f"heavy_{name}"] = one.dispatched.get("heavy", 0.0)
    return figures


def _decided(site: Scenario, row: str) -> Scenario:
    if row == DEADLINE:
        return site
    if row == JOINING:
        return replace(site, folder=Path(__file__).parent, policy="./rules.py:Joining")
    return site.scheduled(row.partition("-seed-")[0], checkpoint=network(row).path)


def slowed_bound(factor: float) -> float:
    """The greatest goodput in a burst, one request at a time, of services slower by a factor."""
    return burst.upper_bound(
        burst.RATE_PER_S[burst.BURSTY],
        counts=(2, 2),
        service_s=[factor * one for one in burst.SERVICE_S],
        accuracy=burst.ACCURACY,
        deadline_s=burst.DEADLINE_S,
        lasts_s=_STATE_S,
    )[0]


def _figure(settings: BurstSettings, results: Results) -> Drawing:
    order = sorted(settings.phis)
    batches = [
        Curve(
            row,
            [phis[0] for phis in order],
            [100 * _mean(results, row, "drop", phis=phis) for phis in order],
            color=color,
        )
        for color, row in enumerate((DEADLINE, JOINING, LEARNED))
    ]
    slow = [
        Curve(
            f"{row}, late: {late}",
            settings.factors,
            [100 * _mean(results, row, late, phis=None, factor=one) for one in settings.factors],
            color=color,
            dash=":" if late == "serve" else "-",
        )
        for color, row in enumerate((DEADLINE, *settings.learned))
        for late in ("serve", "drop")
        if row != DEADLINE or late == "drop"
    ]
    up = "goodput in bursts, %"
    shown = [
        Panel("batches", "phi of the light model", up, batches),
        Panel("services that are slower than the file says", "by this factor", up, slow),
    ]
    return panels(shown, columns=2, title="Learned and ruled in bursts")


def _mean(
    results: Results, row: str, late: str, column: str = "goodput_bursty", **label: Any
) -> float:
    return results.measure(column, row=row, late=late, **label).mean


def _claims(settings: BurstSettings, results: Results) -> list[Claim]:
    trained = {"phis": _PHIS}  # type: Any
    below = {
        _written(phis): phase_bound(phis) - _mean(results, DEADLINE, "drop", phis=phis)
        for phis in settings.phis
    }
    farthest = max(below, key=lambda one: (below[one], one))
    lost = {
        row: _mean(results, row, "drop", "violations_bursty", **trained)
        for row in (DEADLINE, JOINING, LEARNED)
    }
    ruled = _mean(results, DEADLINE, "drop", **trained)
    single = _mean(results, DEADLINE, "drop", phis=None, factor=1.0)
    gaps = {
        late: {
            (row, factor): _mean(results, DEADLINE, "drop", phis=None, factor=factor)
            - _mean(results, row, late, phis=None, factor=factor)
            for row in settings.learned
            for factor in settings.factors
        }
        for late in ("serve", "drop")
    }
    (blind, blind_at), (shielded, shielded_at) = (
        least(gaps[late], ("", math.nan)) for late in ("serve", "drop")
    )
    shield = [
        _mean(results, row, "drop", "violations_bursty", phis=None, factor=1.0)
        for row in settings.learned
    ]
    slow = {
        factor: slowed_bound(factor) - _mean(results, DEADLINE, "drop", phis=None, factor=factor)
        for factor in settings.factors
    }
    return claims(f"""
      * [ours] With batches `deadline` comes within 0.05 points of the bound of the burst.
        - distance with the curve that the policies were trained on: {below[_written(_PHIS)]!r}
          (at most 0.05 %)
        - {100 * ruled:.3f} % of at most {100 * phase_bound(_PHIS):.3f} %; {_normal(results)}
      * It comes within 0.2 points with other curves, too.
        - greatest distance: {below[farthest]!r} (at most 0.2 %)
        - at phi {farthest}; {_listed(below)}
      * Nobody is late or turned away.
        - violations in the burst: {lost[DEADLINE]!r} (at most 0.01 %)
      * That is so as it heeds who waits and who will come.
        - violations in the burst of the same rule without: {lost[JOINING]!r} (at least 10 %)
        - goodput {100 * _mean(results, JOINING, "drop", **trained):.2f} %
      * Batches bring it most of what they can bring.
        - goodput in the burst less that with runs of one: {ruled - single!r} (at least 0.35 %)
        - {100 * single:.3f} % with runs of one; the bound rises by 0.42 points
      * Learned batch sizes bring no more.
        - goodput in the burst, that of `deadline` less RL-PO-B's, which is trained without the
          shield, with it or without: {_learned(results, ruled)!r} (at least 0 %)
        - RL-PO-B with the shield {_percent(results, LEARNED, "drop", **trained)} and
          {100 * lost[LEARNED]:.2f} % violations, without
          {_percent(results, LEARNED, "serve", **trained)}
      * The shield of `late: drop` takes RL-PO its violations in bursts.
        - most of them, over the trainings: {largest(shield)!r} (at most 0.1 %)
        - {_by_row(results, settings, "drop", 1.0)}; without the shield
          {_by_row(results, settings, "serve", 1.0)}
      * With the shield RL-PO comes to no more than `deadline`, also where services are slower.
        - least goodput of `deadline` less RL-PO's, over trainings and factors: {shielded!r}
          (at least 0 %)
        - {shielded_at[0]} at {shielded_at[1]:g}; at the greatest factor
          {_by_row(results, settings, "drop", max(settings.factors))}
      * Without the shield it comes to less, also where services are slower.
        - least goodput of `deadline` less RL-PO's, over trainings and factors: {blind!r}
          (at least 0 %)
        - {blind_at[0]} at {blind_at[1]:g}; at the greatest factor
          {_by_row(results, settings, "serve", max(settings.factors))}
      * `deadline` learns how slow services are, and stays within 0.5 points of the bound.
        - greatest distance: {max(slow.values())!r} (at most 0.5 %)
        - {", ".join(f"{factor:g} times: {100 * one:.3f} points" for factor, one in slow.items())}
    """)


def _written(phis: Sequence[float]) -> str:
    return f"{phis[0]:g} and {phis[1]:g}"


def _listed(below: Mapping[str, float]) -> str:
    return ", ".join(f"phi {at}: {100 * one:.3f} points" for at, one in below.items())


def _normal(results: Results) -> str:
    calm = results.measure("goodput_normal", row=DEADLINE, late="drop", phis=_PHIS).mean
    return f"in the normal state {100 * calm:.2f} %"


def _learned(results: Results, ruled: float) -> float:
    both = [_mean(results, LEARNED, late, phis=_PHIS) for late in ("serve", "drop")]
    return ruled - largest(both)


def _percent(results: Results, row: str, late: str, **label: Any) -> str:
    half = half_width(results, "goodput_bursty", row=row, late=late, **label)
    mean = f"{100 * _mean(results, row, late, **label):.2f}"
    return f"{mean} %" if math.isnan(half) else f"{mean} +- {100 * half:.2f} %"


def _by_row(results: Results, settings: BurstSettings, late: str, factor: float) -> str:
    said = (f"{_percent(results, row, late, phis=None, factor=factor)}" for row in settings.learned)
    ruled = _percent(results, DEADLINE, "drop", phis=None, factor=factor)
    return f"RL-PO {', '.join(said)} by training, `deadline` {ruled}"


STUDY = Study(
    name="burst-batches",
    source="ours",
    shows="Learned and ruled schedulers in bursts: with batches, under the shield of `late: drop`, "
    "and where services are slower than the file says.",
    scales=scales(
        BurstSettings(),
        smoke={
            **{"phis": (_PHIS,), "factors": (1.0, 1.25), "learned": ("rl-po",)},
            **{"requests": 40_000, "trials": 1},
        },
        quick={},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Learned policies are those that ship: trained with late requests served, without the "
        "shield, at the file's service times; RL-PO from three seeds, RL-PO-B from one.",
        "Services that slow down are shown one level at a time, each for a whole run: a course "
        "that is slow beside the second in which `deadline` learns them.",
        f"Both states last {_STATE_S:g} s in turn, so that each run has many beginnings of bursts.",
    ),
    code=(*CODE, "studies/scheduling/rules.py", "studies/scheduling/burst_batches.py"),
)
