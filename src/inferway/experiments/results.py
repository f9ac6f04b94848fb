"""The rows of a study, and the averages that figures and claims take from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.experiments.claim import Claim


class Measure(NamedTuple):
    """A quantity at one place of a figure."""

    mean: float  # over the trials; NaN where there is no row
    stderr: float  # between trials, or the simulator's own where there is a single one
    stable: bool  # in every trial: an unstable mean depends on how long the run was
    trials: int


Place = TypeVar("Place")


class Results:
    """Rows: a point's label and what its call returned.

    Parameters
    ----------
    rows
        Flat mappings. Rows that differ in ``trial`` only are runs of the same thing with other
        seeds. ``X_se`` is the standard error of column ``X``, and ``stable`` says whether the
        system was; both may be absent.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **label: Any) -> Results:
        """The rows with these values."""
        return Results([row for row in self.rows if label.items() <= row.items()])

    def distinct(self, column: str) -> list[Any]:
        """Values of a column, each once, as they come."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))

    def measure(self, column: str, **label: Any) -> Measure:
        """Mean of a column over the trials of these rows."""
        rows = [row for row in self.where(**label).rows if column in row]
        if not rows:
            return Measure(math.nan, math.nan, True, 0)
        values = np.array([row[column] for row in rows], float)
        errors = np.array([row.get(f"{column}_se", math.nan) for row in rows], float)
        # Few trials say little of their own spread; the simulator's errors say more.
        if len(rows) >= 8 or np.isnan(errors).any():
            spread = float(values.std(ddof=1)) if len(rows) > 1 else math.nan
            stderr = spread / math.sqrt(len(rows))
        else:
            stderr = float(np.sqrt((errors**2).sum())) / len(rows)
        stable = all(row.get("stable", True) for row in rows)
        return Measure(float(values.mean()), stderr, stable, len(rows))

    def value(self, column: str, **label: Any) -> float:
        """The mean where it means something: NaN without rows, or with an unstable one."""
        measured = self.measure(column, **label)
        return measured.mean if measured.stable else math.nan

    def one(self, column: str, **label: Any) -> Any:
        """The column in the first row of these; None where there is none."""
        return next((row[column] for row in self.where(**label).rows if column in row), None)

    def means(self, column: str, **axis: Sequence[Any]) -> list[float]:
        """The mean at each value of one axis, NaN where there are no rows; stable or not."""
        ((across, values),) = axis.items()
        return [self.measure(column, **{across: value}).mean for value in values]

    def by(self, column: str, **axis: Sequence[Any]) -> dict[Any, float]:
        """`value` by each value of one axis."""
        ((across, values),) = axis.items()
        return {value: self.value(column, **{across: value}) for value in values}

    def values(self, column: str, **axis: Sequence[Any]) -> list[float]:
        """`value` at each value of one axis."""
        return list(self.by(column, **axis).values())


def most(values: Mapping[Place, float], nowhere: Place) -> tuple[float, Place]:
    """The largest number that is one, and where it is; NaN, and `nowhere`, without any."""
    numbers = {place: value for place, value in values.items() if not math.isnan(value)}
    place = max(numbers, key=lambda one: numbers[one], default=nowhere)
    return numbers.get(place, math.nan), place


def least(values: Mapping[Place, float], nowhere: Place) -> tuple[float, Place]:
    """The smallest number that is one, and where it is; NaN, and `nowhere`, without any."""
    value, place = most({place: -value for place, value in values.items()}, nowhere)
    return -value, place


def largest(values: Sequence[float]) -> float:
    """The largest; NaN where there is none, or one is no number."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def smallest(values: Sequence[float]) -> float:
    """The smallest; NaN where there is none, or one is no number."""
    return -largest([-value for value in values])


# By name: what `Claim.method` says.
METHODS: Final = {
    "jackknife": "over trials: one left out at a time, Student's t",
    "bootstrap": "over the simulator's standard errors: rows drawn anew, normal, less the bias",
}
# What the brackets in tables are.
EXPLAINED: Final = (
    f"In brackets: 95 % intervals, {'; or '.join(METHODS.values())}. A claim whose interval "
    "straddles its limit is not settled."
)

_DRAWS: Final = 100
_NORMAL: Final = 1.959964
_RESAMPLES: Final = 4000
_BLOCK: Final = 1_000_000  # numbers of one block of resamples, which bounds the memory

Again = Callable[[Results], Sequence[Claim]]
Floats = NDArray[np.float64]


def with_intervals(again: Again, results: Results) -> list[Claim]:
    """Compute claims from all rows, each with its interval where chance could change the value."""
    claims = list(again(results))
    trials = results.distinct("trial")
    columns = sorted({name for row in results.rows for name in row if f"{name}_se" in row})
    if len(trials) < 3 and not columns:
        return claims
    value = np.array([one.value for one in claims])
    if len(trials) >= 3:
        method, half = "jackknife", _jackknife(claims, again, results, trials)
        ends = value - half, value + half
    else:
        chance = np.random.default_rng(1)
        drawn = (_drawn(results, columns, chance) for _ in range(_DRAWS))
        values = _values(claims, again, drawn)
        method, center = "bootstrap", 2 * value - values.mean(axis=0)
        half = _NORMAL * values.std(axis=0, ddof=1)
        ends = np.minimum(center - half, value), np.maximum(center + half, value)

    def with_interval(one: Claim, low: float, high: float) -> Claim:
        # Not-a-number and infinity are wider than nothing, and what brings its own keeps it. Sums
        # of the same numbers differ in their last bits.
        wide = math.isfinite(high - low) and high - low > 1e-12 * max(1.0, abs(one.value))
        if one.low is not None or not wide:
            return one
        return replace(one, low=low, high=high, method=METHODS[method])

    return list(map(with_interval, claims, *(end.tolist() for end in ends)))


def _jackknife(
    claims: Sequence[Claim], again: Again, results: Results, trials: Sequence[Any]
) -> Floats:
    """Half the interval of each claim."""
    from scipy.special import stdtrit

    groups = min(len(trials), 20)  # trials are left out one by one; of more, in groups
    group_of = {trial: place % groups for place, trial in enumerate(trials)}
    without = (
        Results([row for row in results.rows if group_of.get(row.get("trial")) != left])
        for left in range(groups)
    )
    spread = np.sqrt((groups - 1) * _values(claims, again, without).var(axis=0))
    return np.asarray(float(stdtrit(groups - 1, 0.975)) * spread)


def _drawn(results: Results, columns: Sequence[str], chance: np.random.Generator) -> Results:
    """The rows with every measured mean drawn anew around what was measured."""
    return Results(
        [
            row
            | {
                name: row[name] + chance.normal(0.0, float(row[f"{name}_se"]))
                for name in columns
                if math.isfinite(row.get(f"{name}_se", math.nan))
            }
            for row in map(dict, results.rows)
        ]
    )


def _values(claims: Sequence[Claim], again: Again, others: Any) -> Floats:
    """(others, claims) values; not a number where a claim is another one."""
    every = ([one.value for one in again(other)] for other in others)
    nothing = [math.nan] * len(claims)
    values = np.array([row if len(row) == len(claims) else nothing for row in every])
    return np.where(np.isfinite(values), values, np.nan)


def cluster_bootstrap(values: ArrayLike, cluster: ArrayLike, *, seed: int) -> tuple[float, float]:
    """95 % percentile interval of a mean whose values depend on each other within clusters.

    Whole clusters are drawn with replacement, so that a thousand variations of one source image
    do not pass for a thousand observations. Of shape (N,): `values`, and `cluster`, which says by
    integers where each belongs; ValueError where they are empty or differ in length.

    References
    ----------
    A. C. Davison and D. V. Hinkley, doi:10.1017/CBO9780511802843, Sec. 3.8.
    """
    value = np.asarray(values, np.float64)
    _, index = np.unique(np.asarray(cluster), return_inverse=True)
    if value.shape != index.shape or value.size == 0:
        raise ValueError(f"{value.size} values in {index.size} clusters have no interval")
    total = np.bincount(index, weights=value)
    count = np.bincount(index).astype(np.float64)
    rng = np.random.default_rng(seed)
    share = np.full(len(count), 1 / len(count))
    block = max(1, _BLOCK // len(count))
    means = []
    for start in range(0, _RESAMPLES, block):
        rows = min(block, _RESAMPLES - start)
        drawn = rng.multinomial(len(count), share, size=rows).astype(np.float64)
        means.append((drawn @ total) / (drawn @ count))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975)).tolist()
    return low, high
