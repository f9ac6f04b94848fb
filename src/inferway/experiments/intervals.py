"""95 % intervals of what claims measure, so that no seed alone decides one.

Two sources of chance are in the rows. Where a study has trials, each with a seed of its own, the
claims are computed again with one trial left out at a time (the jackknife; J. W. Tukey, Annals of
Mathematical Statistics 29, 1958, p. 614), with Student's t for as many trials as there are. Where
it has fewer than three, the simulator's own standard errors stand in: the claims are computed again
from rows that are drawn anew around the measured ones (the parametric bootstrap; B. Efron, Annals
of Statistics 7, 1979, doi 10.1214/aos/1176344552), and the interval is the normal one, less the
bias: the largest of many measured values is larger than the largest of the true ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results

METHODS = {
    "jackknife": "over trials: one left out at a time, Student's t",
    "bootstrap": "over the simulator's standard errors: rows drawn anew, normal, less the bias",
}
"""By name: what `Claim.method` says."""

_GROUPS = 20
"""At most so many trials are left out one by one; more are left out in groups."""
_DRAWS = 100
_NORMAL = 1.959964
_SEED = 1
_EXACT = 1e-12
"""A value that moves by less is the same: sums of the same numbers differ in their last bits."""


Again = Callable[[Results], Sequence[Claim]]
Floats = NDArray[np.float64]


def with_intervals(again: Again, results: Results) -> list[Claim]:
    """Compute claims from rows, each with its interval where chance could change the value.

    Parameters
    ----------
    again
        Computes the claims from whatever rows there are.
    results
        All rows.
    """
    claims = list(again(results))
    trials = results.distinct("trial")

    if len(trials) >= 3:
        return _told(claims, *_jackknife(claims, again, results, trials), "jackknife")
    columns = {name for row in results.rows for name in row if f"{name}_se" in row}
    if columns:
        return _told(claims, *_bootstrap(claims, again, results, sorted(columns)), "bootstrap")
    return claims


def _jackknife(
    claims: Sequence[Claim], again: Again, results: Results, trials: Sequence[Any]
) -> tuple[Floats, Floats]:
    """Ends of the interval of each claim."""
    from scipy.special import stdtrit

    groups = min(len(trials), _GROUPS)
    group_of = {trial: place % groups for place, trial in enumerate(trials)}
    values = _values(
        claims,
        [
            again(Results([row for row in results.rows if group_of.get(row.get("trial")) != left]))
            for left in range(groups)
        ],
    )
    spread = np.sqrt((groups - 1) * values.var(axis=0))
    half = float(stdtrit(groups - 1, 0.975)) * spread
    value = np.array([claim.value for claim in claims])
    return value - half, value + half


def _bootstrap(
    claims: Sequence[Claim], again: Again, results: Results, columns: Sequence[str]
) -> tuple[Floats, Floats]:
    """Ends of the interval of each claim."""
    chance = np.random.default_rng(_SEED)
    values = _values(claims, [again(_drawn(results, columns, chance)) for _ in range(_DRAWS)])
    value = np.array([claim.value for claim in claims])
    center = 2 * value - values.mean(axis=0)
    half = _NORMAL * values.std(axis=0, ddof=1)
    return np.minimum(center - half, value), np.maximum(center + half, value)


def _drawn(results: Results, columns: Sequence[str], chance: np.random.Generator) -> Results:
    """The rows with every measured mean drawn anew around what was measured."""
    rows = []
    for row in results.rows:
        errors = {
            name: float(row[f"{name}_se"])
            for name in columns
            if math.isfinite(row.get(f"{name}_se", math.nan))
        }
        moved = {name: row[name] + chance.normal(0.0, error) for name, error in errors.items()}
        rows.append({**row, **moved})
    return Results(rows)


def _values(claims: Sequence[Claim], others: Sequence[Sequence[Claim]]) -> Floats:
    """(others, claims) values; not a number where a claim is another one."""
    found = np.full((len(others), len(claims)), np.nan)
    for place, other in enumerate(others):
        if len(other) == len(claims):
            found[place] = [claim.value for claim in other]
    return np.where(np.isfinite(found), found, np.nan)


def _told(claims: Sequence[Claim], low: Floats, high: Floats, method: str) -> list[Claim]:
    """Claims with the intervals that there are; what brings its own keeps it."""
    found = []
    for claim, least, most in zip(claims, low.tolist(), high.tolist(), strict=True):
        known = math.isfinite(least) and math.isfinite(most)
        known = known and most - least > _EXACT * max(1.0, abs(claim.value))
        if claim.low is None and known:
            found.append(replace(claim, low=least, high=most, method=METHODS[method]))
        else:
            found.append(claim)
    return found
