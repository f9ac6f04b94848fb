"""Points of the placement studies: a policy on a network, for some slots or for long.

The papers do not give INFIDA's learning rate: it tunes itself here, in all studies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.policies import HINDSIGHT
from inferway.experiments.curves import Curve, Look, Panel, line, series
from inferway.network import DeliveryNetwork
from inferway.placement import Observation, PlacementPolicy, build_policy, gain, potential
from inferway.placement.contract import Allocation, Float
from inferway.placement.table import expected_batches
from inferway.studies import Point, Results, grid
from inferway.studies.placement.setting import MODELS, DeliveryScenario, scenario
from inferway.twin.result import NetworkResult
from inferway.twin.slots import run_slots

# What the rows depend on.
CODE = ("site", "network", "placement", "workload", "catalog/published.py", "twin/slots.py",
        "twin/result.py", "studies/placement/setting.py",
        "studies/placement/trial.py")  # fmt: skip
# A departure of most studies.
TUNED = "The learning rate, which the paper does not give, tunes itself."
# Where windows of long runs end, besides the last slot; the first is for learning.
EDGES = (30, 240, 480, 960, 1440, 1920, 2880)
# An allocation that stays gains alike in every slot of a fixed popularity: so many are enough.
STATIC_SLOTS = 240
_LATE = 4  # the last quarter of the slots counts as settled
_BINS = 100
_WATCHED = 4  # one slot of so many: what is climbed changes little from one to the next


class PaperPolicy(NamedTuple):
    """A policy in a study: one reading of the papers."""

    look: Look
    policy: str  # its name in `inferway.placement.POLICIES`
    options: Mapping[str, Any] = {}  # what differs from its defaults
    seconds: float = 0.2  # about how long it takes to decide in hindsight

    @property
    def label(self) -> str:
        """In legends and claims."""
        return self.look.label

    def cost(self, slots: int, each: float = 0.0015, *, sliding: bool = True) -> float:
        """About how many seconds so many slots take on one core."""
        static = self.policy in HINDSIGHT and not sliding
        return self.seconds + each * (min(slots, STATIC_SLOTS) if static else slots)

    def build(
        self,
        built: DeliveryScenario,
        slots: int,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> PlacementPolicy:
        """Make it for a network; in hindsight, for the requests of these slots."""
        return build_policy(
            self.policy,
            built.network,
            seed=seed,
            batches=expected_batches(built.demand, slots) if self.policy in HINDSIGHT else None,
            **{**self.options, **(options or {})},
        )


POLICIES: Mapping[str, PaperPolicy] = {
    "infida": PaperPolicy(Look("INFIDA", 0, "-"), "infida", {"rounding": "fresh"}),
    "infida-coupled": PaperPolicy(Look("INFIDA, coupled (ours)", 6, "--"), "infida"),
    "infida-offline": PaperPolicy(Look("INFIDA-offline", 2, "-."), "infida-offline", seconds=2.0),
    "static-greedy": PaperPolicy(Look("static greedy", 1, "-."), "static-greedy", seconds=3.0),
    "static-greedy-served": PaperPolicy(
        Look("static greedy, until served", 4, "-."),
        "static-greedy",
        {"stop": "all-served"},
        seconds=2.0,
    ),
    "olag": PaperPolicy(Look("OLAG", 3, "--"), "olag"),
    "olag-literal": PaperPolicy(Look("OLAG (literal)", 3, ":"), "olag-literal"),
    "greedy": PaperPolicy(Look("greedy (forwarded)", 5, ":"), "greedy"),
    "exact": PaperPolicy(Look("MILP", -1, "-"), "exact", {"time_limit_s": 60.0}, seconds=10.0),
}
"""By name. ``static-greedy`` ends where nothing gains, ``static-greedy-served`` once no request
reaches the cloud. ``olag`` is the strong reading; in ``olag-literal`` replicas of the chosen model
keep their counters, as the text's letter says, and ``greedy`` counts what a node forwards."""


@dataclass(frozen=True)
class Settings:
    """Of the studies of the papers' networks; how many slots they ran they do not say."""

    system: str = "I"
    systems: tuple[str, ...] = ()
    alpha: float = 1.0
    alphas: tuple[float, ...] = ()
    rate_per_s: float = 7500.0
    rates_per_s: tuple[float, ...] = ()
    policies: tuple[str, ...] = ()
    sliding: tuple[bool, ...] = (False,)
    copies: int = 3  # replicas of a model on a node, at most
    slots: int = 480
    trials: int = 5

    def given(self, *names: str) -> dict[str, Any]:
        """These settings by name, as arguments of a point."""
        return {name: getattr(self, name) for name in names}

    def panel(
        self, title: str, across: str, up: str, results: Results, column: str, **axis: Any
    ) -> Panel:
        """A curve for each policy, as `curves` draws them."""
        return Panel(title, across, up, curves(results, self.policies, column, **axis))


_FIELDS = {
    **{"system": "systems", "alpha": "alphas", "rate_per_s": "rates_per_s"},
    **{"policy": "policies", "sliding": "sliding"},
}


def every(*axes: str, given: Sequence[str] = ()) -> Callable[[Settings], list[Point]]:
    """Points of `simulated` along axes, each of several values in the settings, or of one."""

    def points(settings: Settings) -> list[Point]:
        values: dict[str, Any] = {
            axis: getattr(settings, _FIELDS[axis]) or [getattr(settings, axis)] for axis in axes
        }
        return grid(
            simulated,
            settings.given("slots", *given),
            lambda policy, **_: POLICIES[policy].cost(settings.slots),
            **values,
            trial=range(settings.trials),
        )

    return points


def curves(results: Results, policies: Sequence[str], column: str, **axis: Any) -> list[Curve]:
    """One curve per policy: means over trials, and twice their errors where there are several."""
    drawn = [
        line(results.where(policy=policy), column, POLICIES[policy].look, **axis)
        for policy in policies
    ]
    return [one if any(map(math.isfinite, one.error)) else replace(one, error=()) for one in drawn]


def pairs(look: Look, results: Results, across: str, up: str, **axis: Any) -> Curve:
    """A column against another one, a point for each value of an axis."""
    return look.curve(*(results.values(column, **axis) for column in (across, up)))


def course(look: Look, y: NDArray[np.float64], slots: int) -> Curve:
    """A dense curve of equal parts of a run, against the middle of each."""
    return series(look, ((np.arange(len(y)) + 0.5) * slots / len(y)).tolist(), y.tolist())


def mean_series(results: Results, column: str, **label: Any) -> NDArray[np.float64]:
    """Mean over the trials of a column of lists, entry by entry; one NaN without rows."""
    rows = [row[column] for row in results.where(**label).rows]
    return np.asarray(np.mean(rows, axis=0)) if rows else np.array([np.nan])


def mean_of(results: Results, column: str, place: int, **label: Any) -> float:
    """Mean over the trials of one entry of a column of lists; NaN without rows."""
    rows = [row[column] for row in results.where(**label).rows]
    known = [row[place] for row in rows if row]
    return float(np.mean(known)) if known else math.nan


def windows(slots: int) -> list[tuple[int, int]]:
    """First slot and end of each window of a long run."""
    return list(pairwise([0, *(edge for edge in EDGES if edge < slots), slots]))


def simulated(
    system: str,
    alpha: float,
    rate_per_s: float,
    sliding: bool,
    policy: str,
    slots: int,
    seed: int,
    copies: int = 3,
    options: Mapping[str, Any] | None = None,
    series: bool = False,
) -> dict[str, Any]:
    """Run a policy of `POLICIES` on one of the papers' networks; see `summary`."""
    built = scenario(
        system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed, copies=copies
    )
    made = POLICIES[policy].build(built, slots, seed, options)
    return summary(run(built, made, policy, slots), series=series)


def run(built: DeliveryScenario, policy: PlacementPolicy, name: str, slots: int) -> NetworkResult:
    """Run a policy by the twin's slots."""
    return run_slots(built.network, built.demand, policy, slots=slots, name=name)


def summary(result: NetworkResult, *, series: bool = False) -> dict[str, Any]:
    """A run as a row.

    ``late_ms`` is the gain per request in the last quarter, ``cost_ms`` the mean cost less that of
    accuracy and latency nowhere: the gain of repositories alone is 0. With `series`, ``gain`` and
    ``moved`` list every slot.
    """
    late = slice(-max(1, result.slots // _LATE), None)
    per_request = result.gain / result.requests
    every_slot = {"gain": per_request.tolist(), "moved": (result.moved / 2**20).tolist()}
    return {
        "ntag_ms": result.ntag_ms,
        "late_ms": float(result.gain[late].sum() / result.requests[late].sum()),
        "mu_mib": result.mu_bytes_per_slot / 2**20,
        "latency_ms": 1000 * result.latency_s,
        "inaccuracy": 100 * result.inaccuracy,
        "cpu_ms": 1000 * result.cpu_s_per_slot,
        **{f"served by {name}": part.share for name, part in result.tiers.items()},
        **(every_slot if series else {}),
    }


def allocated(
    system: str, alpha: float, rate_per_s: float, slots: int, seed: int, copies: int
) -> dict[str, Any]:
    """INFIDA's fractional allocation of the most popular task's models, per tier (Fig. 5).

    Beside the numbers of `summary`: for each tier but the cloud ``y of TIER``, a list by model,
    least accurate first, the replicas of each beside each other, the mean over the nodes on the
    task's paths; and ``repository``, the variant that the cloud runs.
    """
    built = scenario(
        system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed, copies=copies
    )
    policy = POLICIES["infida"].build(built, slots, seed)
    return {**summary(run(built, policy, "infida", slots)), **_popular(built, policy, copies)}


def _popular(built: DeliveryScenario, policy: PlacementPolicy, copies: int) -> dict[str, Any]:
    network, pairs, models = built.network, built.network.pairs, built.network.models
    assert policy.fractional is not None  # INFIDA has one
    spread: NDArray[np.float64] = policy.state.spread  # type: ignore[attr-defined]
    types, first = np.flatnonzero(network.requests.task == 0), network.paths.first
    nodes = np.unique(
        np.concatenate(
            [network.paths.node[first[q] : first[q + 1]] for q in network.requests.path[types]]
        )
    )
    rank = {entry.name: rank for rank, entry in enumerate(MODELS)}
    ranks = np.array([rank[name] for name in network.variants])
    places = copies * ranks[models.variant] + models.copy
    own = np.flatnonzero(models.task[pairs.model] == 0)
    y = np.repeat(spread[:, None], copies * len(MODELS), axis=1)
    holders = np.repeat(np.arange(len(network.tier)), np.diff(pairs.first))
    y[holders[own], places[pairs.model[own]]] = policy.fractional[own]
    tiers = {
        tier: nodes[(network.tier[nodes] == k) & ~network.repository[nodes]]
        for k, tier in enumerate(network.tiers)
    }
    last = network.options.model[network.options.first[types[0] + 1] - 1]
    return {
        **{f"y of {tier}": y[at].mean(axis=0).tolist() for tier, at in tiers.items() if at.size},
        "repository": network.variants[models.variant[last]],
    }


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
    """Run a policy of `POLICIES` on one of the papers' networks for long.

    Policies in hindsight run for `STATIC_SLOTS` where popularity is fixed: every slot has the same
    mean requests, and the allocation never changes. Beside the numbers of `summary`:
    ``windows_ms``, the gain per request in each of `windows`; ``series_ms``, the same in equal
    parts of the run; ``until_ms``, that of the run until the end of each part; and ``climbed_ms``,
    in each window the gain of eq. 16 at the fractional allocation, with the potential available
    capacities of eq. 7: what mirror ascent climbs. It is empty where there is none.
    """
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed)
    static = POLICIES[policy].policy in HINDSIGHT and not sliding
    few = min(slots, STATIC_SLOTS) if static else slots
    watched = _Watched(built.network, POLICIES[policy].build(built, few, seed, options))
    result = run(built, watched, policy, few)
    each = result.gain / result.requests
    if few < slots:
        each = np.full(slots, each.mean())
    ends = np.unique(np.linspace(0, slots, min(_BINS, slots) + 1).astype(int))
    return {
        **summary(result),
        "windows_ms": [float(each[start:end].mean()) for start, end in windows(slots)],
        "series_ms": [float(each[start:end].mean()) for start, end in pairwise(ends)],
        "until_ms": [float(each[:end].mean()) for end in ends[1:]],
        "climbed_ms": [] if watched.fractional is None else watched.means(windows(slots)),
    }


class _Watched:
    """A policy that is measured before each step."""

    def __init__(self, network: DeliveryNetwork, policy: PlacementPolicy) -> None:
        self._network, self._policy = network, policy
        self._climbed: list[float] = []

    @property
    def allocation(self) -> Allocation:
        return self._policy.allocation

    @property
    def fractional(self) -> Float | None:
        return self._policy.fractional

    def step(self, observation: Observation) -> Allocation:
        y, gained = self._policy.fractional, math.nan
        if y is not None and len(self._climbed) % _WATCHED == 0:
            capacity = potential(self._network, observation.requests, observation.load)
            asked = float(np.sum(observation.requests))
            gained = gain(self._network, observation.requests, capacity, y) / asked
        self._climbed.append(gained)
        return self._policy.step(observation)

    def means(self, parts: Sequence[tuple[int, int]]) -> list[float]:
        """Of each window; of all that there is where the run was shorter."""
        values = np.array(self._climbed)
        whole = len(values) >= parts[-1][1]
        return [float(np.nanmean(values[slice(*part) if whole else ...])) for part in parts]
