"""The networks of [SiSalem23] and [SiSalem21], and a policy's runs on one, short or long.

What the papers leave open, and what was taken: tiers 0 to 4 of Topology I have 1, 1, 2, 8 and 24
nodes, those of the conference 1, 1, 4, 20 and 60; Topology II is a cloud, one node of tiers 1 and
3, and two base stations. Each task is requested at two base stations drawn at random, half each.
INFIDA's learning rate, which they do not give, tunes itself, in all studies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog.published import table
from inferway.deployment import ServiceTime, Task, Variant
from inferway.deployment.policies import HINDSIGHT
from inferway.deployment.workloads import Popularity, constant
from inferway.experiments.curves import Curve, Look, Panel
from inferway.network import (
    DeliveryNetwork,
    Demand,
    Level,
    Requests,
    Topology,
    delivery_network,
    shortest_paths,
    tree,
)
from inferway.network.demand import TaskStream, peaks
from inferway.network.layout import assign
from inferway.placement import Observation, PlacementPolicy, build_policy, gain, potential
from inferway.placement.contract import Allocation, Float, expected_batches
from inferway.studies import Point, Results, Study, grid
from inferway.studies.placement.marginal import Marginal
from inferway.twin.result import NetworkResult
from inferway.twin.slots import run_slots

# What the rows depend on.
CODE = ("site", "network", "placement", "workload", "catalog/published.py", "twin/slots.py",
        "twin/result.py", "studies/placement/trial.py",
        "studies/placement/marginal.py")  # fmt: skip
placement_study = partial(Study, code=CODE)
# A departure of most studies.
TUNED = "The learning rate, which the paper does not give, tunes itself."
# Where windows of long runs end, besides the last slot; the first is for learning.
EDGES = (30, 240, 480, 960, 1440, 1920, 2880)
# An allocation that stays gains alike in every slot of a fixed popularity: so many are enough.
STATIC_SLOTS = 240
GIB: Final = float(2**30)
_SLOT_S: Final = 60.0
_TASKS: Final = 20
WINDOW: Final = 2.7e7  # requests between two shifts of a sliding popularity, the paper's W


def _conference(part: float) -> tuple[Level, ...]:
    """The conference's tree. RTTs are ours: they add up to the 50 ms that the paper states."""
    mixed = ((0.75, GIB * part), (0.25, 4 * GIB * part))
    return (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.025, 16 * GIB * part, "gtx-980"),
        Level("tier 2", 4, 0.015, 12 * GIB * part, "gtx-980"),
        Level("tier 3", 20, 0.005, 8 * GIB * part, "gtx-980"),
        Level("base", 60, 0.005, mixed, "gtx-980"),
    )


# Trees, from the cloud down.
SYSTEMS: Final[Mapping[str, tuple[Level, ...]]] = {
    "I": (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.040, 16 * GIB, "titan-rtx"),
        Level("tier 2", 2, 0.015, 12 * GIB, "gtx-980"),
        Level("tier 3", 8, 0.006, 8 * GIB, "gtx-980"),
        Level("base", 24, 0.006, 4 * GIB, "gtx-980"),
    ),
    "II": (
        Level("cloud", 1, hardware="titan-rtx", repository=True),
        Level("tier 1", 1, 0.040, 16 * GIB, "titan-rtx"),
        Level("tier 3", 1, 0.021, 8 * GIB, "gtx-980"),
        Level("base", 2, 0.006, 4 * GIB, "gtx-980"),
    ),
    "conference": _conference(1.0),
    "conference, smaller": _conference(0.2),
}

# Table II, by increasing accuracy, as the figures order it.
MODELS: Final = tuple(sorted(table("paper/yolov4"), key=lambda entry: entry.accuracy))


class DeliveryScenario(NamedTuple):
    """A network and its requests."""

    network: DeliveryNetwork
    demand: Demand
    topology: Topology


def yolov4(copies: int) -> Task:
    """The papers' 20 detection tasks."""
    variants = {
        entry.name: Variant(
            entry.name,
            accuracy=entry.accuracy,
            size_bytes=entry.size_bytes,
            service={
                hardware: ServiceTime("deterministic", mean_s)
                for hardware, mean_s in entry.mean_s.items()
            },
        )
        for entry in table("paper/yolov4")
    }
    return Task("detection", variants, count=_TASKS, max_instances=copies)


@lru_cache(maxsize=4)
def scenario(
    system: str, *, alpha: float, rate_per_s: float, sliding: bool, seed: int, copies: int = 3
) -> DeliveryScenario:
    """Build one of `SYSTEMS` with its requests.

    A point of inaccuracy is worth `alpha` ms. Popularity may slide by five tasks every `WINDOW`
    requests. The seed is of the base stations where tasks are requested, and of the requests;
    `copies` limits the replicas of a model on a node.
    """
    topology = tree(SYSTEMS[system], seed=seed)
    asked: dict[str, Any] = {"alpha": alpha, "rate_per_s": rate_per_s, "sliding": sliding}
    places = topology.of_tier("base")
    return demanded(topology, places, **asked, seed=seed, copies=copies, per_task=2)


def demanded(
    topology: Topology,
    places: np.ndarray[Any, np.dtype[np.int64]],
    *,
    alpha: float,
    rate_per_s: float,
    sliding: bool,
    seed: int,
    copies: int,
    per_task: int,
) -> DeliveryScenario:
    """Give a topology the papers' tasks and requests, which enter at some of `places`."""
    moving = {"shift": 5, "every": f"{WINDOW / rate_per_s!r} s"} if sliding else None
    stream = TaskStream(
        constant(rate_per_s),
        Popularity.read({"zipf": 1.2, **({"sliding": moving} if moving else {})}),
        np.arange(_TASKS * per_task).reshape(_TASKS, per_task),
    )
    entry, path = np.unique(
        assign(_TASKS, places, per_task, seed=seed).ravel(), return_inverse=True
    )
    types = _TASKS * per_task
    requests = Requests(
        task=np.repeat(np.arange(_TASKS), per_task).astype(np.int32),
        path=path.astype(np.int32),
        share=np.full(types, 1.0 / per_task),
        peak=peaks((stream,), types, _SLOT_S),
    )
    network = delivery_network(
        [yolov4(copies)],
        topology,
        shortest_paths(topology, entry, np.flatnonzero(topology.repository)),
        requests,
        alpha=alpha,
        slot_s=_SLOT_S,
    )
    return DeliveryScenario(network, Demand((stream,), types, _SLOT_S, seed), topology)


# Policies of studies alone, by name.
OWN: Final = {"infida-marginal": Marginal}


class PaperPolicy(NamedTuple):
    """A policy in a study: one reading of the papers, or one of ours."""

    look: Look
    policy: str  # its name in `inferway.placement.POLICIES`, or in `OWN`
    options: Mapping[str, Any] = {}  # what differs from its defaults
    seconds: float = 0.2  # about how long it takes to decide in hindsight
    each: float = 0.0015  # and a slot

    @property
    def label(self) -> str:
        """In legends and claims."""
        return self.look.label

    def cost(self, slots: int, each: float | None = None, *, sliding: bool = True) -> float:
        """About how many seconds so many slots take on one core."""
        static = self.policy in HINDSIGHT and not sliding
        slot = self.each if each is None else each
        return self.seconds + slot * (min(slots, STATIC_SLOTS) if static else slots)

    def build(
        self,
        built: DeliveryScenario,
        slots: int,
        seed: int,
        options: Mapping[str, Any] | None = None,
    ) -> PlacementPolicy:
        """Make it for a network; in hindsight, for the requests of these slots."""
        if self.policy in OWN:
            return OWN[self.policy](built.network, seed=seed, **{**self.options, **(options or {})})
        return build_policy(
            self.policy,
            built.network,
            seed=seed,
            batches=expected_batches(built.demand, slots) if self.policy in HINDSIGHT else None,
            **{**self.options, **(options or {})},
        )


# By name. ``static-greedy`` ends where nothing gains, ``static-greedy-served`` once no request
# reaches the cloud. ``olag`` is the strong reading; in ``olag-literal`` replicas of what is chosen
# keep their counters, to the letter, and ``greedy`` counts what a node forwards.
POLICIES: Mapping[str, PaperPolicy] = {
    "infida": PaperPolicy(Look("INFIDA", 0, "-"), "infida", {"rounding": "fresh"}),
    "infida-strict": PaperPolicy(
        Look("INFIDA, budgets kept", 2, "-."), "infida", {"rounding": "fresh", "residual": "strict"}
    ),
    "infida-coupled": PaperPolicy(Look("INFIDA, coupled (ours)", 6, "--"), "infida"),
    "infida-marginal": PaperPolicy(
        Look("INFIDA, real marginals (ours)", 4, ":"), "infida-marginal", seconds=2.0
    ),
    "exchange": PaperPolicy(Look("exchange (ours)", 5, "-"), "exchange", seconds=2.0, each=0.02),
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
        POLICIES[policy].look.line(results.where(policy=policy), column, **axis)
        for policy in policies
    ]
    return [one if any(map(math.isfinite, one.error)) else replace(one, error=()) for one in drawn]


def pairs(look: Look, results: Results, across: str, up: str, **axis: Any) -> Curve:
    """A column against another one, a point for each value of an axis."""
    return look.curve(*(results.values(column, **axis) for column in (across, up)))


def course(look: Look, y: NDArray[np.float64], slots: int) -> Curve:
    """A dense curve of equal parts of a run, against the middle of each."""
    return look.series(((np.arange(len(y)) + 0.5) * slots / len(y)).tolist(), y.tolist())


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
    late = slice(-max(1, result.slots // 4), None)
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
    system: str,
    alpha: float,
    rate_per_s: float,
    slots: int,
    seed: int,
    copies: int,
    policy: str = "infida",
) -> dict[str, Any]:
    """Show a policy's allocation of the most popular task's models, per tier (Fig. 5).

    Beside the numbers of `summary`: for each tier but the cloud ``y of TIER``, a list by model,
    least accurate first, the replicas of each beside each other, the mean over the nodes on the
    task's paths; and ``repository``, the variant that the cloud runs. The allocation is the
    fractional one where the policy has one.
    """
    built = scenario(
        system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed, copies=copies
    )
    made = POLICIES[policy].build(built, slots, seed)
    return {**summary(run(built, made, policy, slots)), **_popular(built, made, copies)}


def _popular(built: DeliveryScenario, policy: PlacementPolicy, copies: int) -> dict[str, Any]:
    network, pairs, models = built.network, built.network.pairs, built.network.models
    held, spread = policy.allocation.astype(float), np.zeros(len(network.nodes))
    if policy.fractional is not None:
        held, spread = policy.fractional, policy.state.spread  # type: ignore[attr-defined]
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
    y[holders[own], places[pairs.model[own]]] = held[own]
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
    ends = np.unique(np.linspace(0, slots, min(100, slots) + 1).astype(int))
    return {
        **summary(result),
        "windows_ms": [float(each[start:end].mean()) for start, end in windows(slots)],
        "series_ms": [float(each[start:end].mean()) for start, end in pairwise(ends)],
        "until_ms": [float(each[:end].mean()) for end in ends[1:]],
        "climbed_ms": [] if watched.fractional is None else watched.means(windows(slots)),
    }


class _Watched:
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
        # What is climbed changes little from one slot to the next.
        if y is not None and len(self._climbed) % 4 == 0:
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
