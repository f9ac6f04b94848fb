"""A policy over thousands of slots, in windows: what it gains in each, and what it climbs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.experiments.results import Results
from inferway.network import DeliveryNetwork
from inferway.placement import Observation, PlacementPolicy, build_policy, gain, potential
from inferway.placement.contract import Allocation, Float
from inferway.placement.table import expected_batches
from inferway.studies.placement.setting import scenario
from inferway.studies.placement.trial import POLICIES, summary
from inferway.twin.slots import run_slots

EDGES = (30, 240, 480, 960, 1440, 1920, 2880)
"""Where windows end, besides the last slot; the first is for learning."""

STATIC_SLOTS = 240
"""An allocation that stays gains alike in every slot of a fixed popularity: so many are enough."""

_BINS = 100
_WATCHED = 4  # one slot of so many: what is climbed changes little from one to the next


def windows(slots: int) -> list[tuple[int, int]]:
    """First slot and end of each window of a run."""
    ends = [0, *(edge for edge in EDGES if edge < slots), slots]
    return list(pairwise(ends))


def named(window: tuple[int, int]) -> str:
    """A window in words."""
    return f"slots {window[0]} to {window[1]}"


def long_run(
    system: str,
    alpha: float,
    rate_per_s: float,
    sliding: bool,
    policy: str,
    slots: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a policy of `inferway.studies.placement.trial` on one of the papers' networks for long.

    Policies in hindsight run for `STATIC_SLOTS` where popularity is fixed: every slot has the same
    mean requests, and the allocation never changes.

    Returns
    -------
    dict
        See `inferway.studies.placement.trial.summary`; besides, ``windows_ms``, the gain per
        request in each of `windows`; ``series_ms``, the same in equal parts of the run;
        ``until_ms``, that of the run until the end of each part; and ``climbed_ms``, in each
        window the gain of eq. 16 at the fractional allocation, with the potential available
        capacities of eq. 7: what mirror ascent climbs. It is empty where there is none.
    """
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed)
    look = POLICIES[policy]
    static = look.policy in HINDSIGHT
    run = min(slots, STATIC_SLOTS) if static and not sliding else slots
    made = build_policy(
        look.policy,
        built.network,
        seed=seed,
        batches=expected_batches(built.demand, run) if static else None,
        **{**look.options, **(options or {})},
    )
    watched = _Watched(built.network, made)
    result = run_slots(built.network, built.demand, watched, slots=run, name=policy)
    each = result.gain / result.requests
    if run < slots:
        each = np.full(slots, each.mean())
    ends = np.unique(np.linspace(0, slots, min(_BINS, slots) + 1).astype(int))
    row = summary(result)
    row["windows_ms"] = [float(each[start:end].mean()) for start, end in windows(slots)]
    row["series_ms"] = [float(each[start:end].mean()) for start, end in pairwise(ends)]
    row["until_ms"] = [float(each[:end].mean()) for end in ends[1:]]
    row["climbed_ms"] = [] if watched.fractional is None else watched.means(windows(slots))
    return row


class _Watched:
    """A policy that is measured before each step."""

    def __init__(self, network: DeliveryNetwork, policy: PlacementPolicy) -> None:
        self._network, self._policy = network, policy
        self._climbed: list[float] = []

    @property
    def allocation(self) -> Allocation:
        """As the policy has it."""
        return self._policy.allocation

    @property
    def fractional(self) -> Float | None:
        """As the policy has it."""
        return self._policy.fractional

    def step(self, observation: Observation) -> Allocation:
        """Measure, and let the policy learn."""
        y, found = self._policy.fractional, math.nan
        if y is not None and len(self._climbed) % _WATCHED == 0:
            capacity = potential(self._network, observation.requests, observation.load)
            asked = float(np.sum(observation.requests))
            found = gain(self._network, observation.requests, capacity, y) / asked
        self._climbed.append(found)
        return self._policy.step(observation)

    def means(self, parts: Sequence[tuple[int, int]]) -> list[float]:
        """Of each window; of all that there is where the run was shorter."""
        values = np.array(self._climbed)
        if len(values) < parts[-1][1]:
            return [float(np.nanmean(values))] * len(parts)
        return [float(np.nanmean(values[start:end])) for start, end in parts]


def mean_of(results: Results, column: str, place: int, **label: Any) -> float:
    """Mean over the trials of one entry of a column of lists; NaN without rows."""
    rows = [row[column] for row in results.where(**label).rows]
    known = [row[place] for row in rows if row]
    return float(np.mean(known)) if known else math.nan


def best_window(values: Sequence[float]) -> int:
    """The window with the greatest gain; the first of none."""
    known = [k for k, value in enumerate(values) if not math.isnan(value)]
    return max(known, key=lambda k: values[k], default=0)


def seconds(policy: str, slots: int, *, sliding: bool = False) -> float:
    """About how long a run takes on one core."""
    look = POLICIES[policy]
    static = look.policy in HINDSIGHT and not sliding
    return look.seconds + 0.0006 * (min(slots, STATIC_SLOTS) if static else slots)
