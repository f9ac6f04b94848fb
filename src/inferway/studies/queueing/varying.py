"""A load or a target that rises and falls on a large site ([Anonymous], Figs. 9 and 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.curves import Curve, Drawing, Panel, panels, series
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.load_curve import around
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    FOUR_CLASSES,
    LOOKS,
    System,
    common,
    phased,
    seconds,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EARLY = 0.05
"""The part of a phase in which a policy has to have adapted."""

_DEPARTURES = (
    "How long a phase lasts did not survive in the text: ours are a sixth of the run, so three of "
    "each.",
    "The accuracy is that of all requests since the last sample, where the paper takes the last "
    "1000: both are one sample each.",
)


@dataclass(frozen=True)
class Settings:
    """The paper's (Sec. 7.2)."""

    system: System = FOUR_CLASSES
    servers: int = 4096
    targets: tuple[float, float] = (0.76, 0.76)
    loads: tuple[float, float] = (0.4, 0.5)
    horizon_s: float = 300_000.0
    cycles: int = 3
    samples: int = 300
    policies: tuple[str, ...] = ("tad", "tad-op", "priced")
    trials: int = 500
    settle: float = 0.25
    """Part of each phase that is left out of its averages."""

    @property
    def phase_s(self) -> float:
        """How long a phase lasts."""
        return self.horizon_s / (2 * self.cycles)

    def queries(self) -> int:
        """How many requests arrive within the horizon, in the mean."""
        rates = [
            load * self.system.greatest(self.servers, target)
            for load, target in zip(self.loads, self.targets, strict=True)
        ]
        return round(self.horizon_s * sum(rates) / 2)


def points(settings: Settings) -> list[Point]:
    """Every policy and trial."""
    queries = settings.queries()
    of_all = {
        **common(settings, "servers", "phase_s"),
        "targets": list(settings.targets),
        "loads": list(settings.loads),
        "queries": queries,
        "sample_s": settings.horizon_s / settings.samples,
        "warmup": 0,
    }
    trials = range(settings.trials)
    return grid(phased, of_all, seconds(queries), policy=settings.policies, trial=trials)


@dataclass(frozen=True)
class _Course:
    """The course of a policy's mean over the trials, and when which phase is."""

    settings: Settings
    results: Results

    @property
    def time_s(self) -> NDArray[np.float64]:
        """Sample times that all rows have: runs end with a request, not at a time."""
        every = [row["time_s"] for row in self.results.rows]
        return np.array(min(every, key=len, default=[]), float)

    def of(self, policy: str, column: str) -> NDArray[np.float64]:
        """Mean over the trials, sample by sample."""
        count = len(self.time_s)
        rows: list[Any] = [row[column][:count] for row in self.results.where(policy=policy).rows]
        return np.mean(rows, axis=0) if rows else np.full(count, math.nan)

    @property
    def bounds(self) -> list[float]:
        """By phase, the bound's number in the system."""
        return self.results.one("bound_in_system") or [math.nan, math.nan]

    @property
    def phase(self) -> NDArray[np.int64]:
        """Which phase a sample looks back on."""
        return (self._before // self.settings.phase_s).astype(np.int64) % 2

    @property
    def into(self) -> NDArray[np.float64]:
        """How far a sample is into its phase, 0..1."""
        return np.mod(self._before, self.settings.phase_s) / self.settings.phase_s

    @property
    def _before(self) -> NDArray[np.float64]:
        return self.time_s - 0.5 * self.settings.horizon_s / self.settings.samples

    def settled(self) -> list[NDArray[np.bool_]]:
        """By phase, the samples after it has settled."""
        return [(self.phase == i) & (self.into > self.settings.settle) for i in range(2)]

    def early(self) -> list[NDArray[np.bool_]]:
        """By phase, its first samples; a run begins with an empty site, no change to adapt to."""
        begun = (self.into <= _EARLY) & (self.time_s > self.settings.phase_s)
        return [(self.phase == i) & begun for i in range(2)]


def figure(settings: Settings, results: Results, title: str) -> Drawing:
    """Accuracy and number in the system over time."""
    course = _Course(settings, results)
    time_s = course.time_s.tolist()
    goal = [100 * settings.targets[i] for i in course.phase]
    number = [Curve(BOUND.label, time_s, [course.bounds[i] for i in course.phase])]
    accuracy = [Curve("target", time_s, goal, dash=":")]
    for look, policy in ((LOOKS[policy], policy) for policy in settings.policies):
        number.append(series(look, time_s, course.of(policy, "in_system").tolist()))
        sampled = 100.0 * course.of(policy, "sampled_accuracy")
        accuracy.append(series(look, time_s, sampled.tolist()))
    limits = around(max(goal, default=0.0), [value for c in accuracy for value in c.y])
    up = "accuracy since the last sample, %"
    return panels(
        [
            Panel("", "time, s", up, accuracy, limits_up=limits),
            Panel("", "time, s", "requests in the system", number),
        ],
        columns=2,
        title=f"{settings.servers} servers, {title}",
    )


def claims(settings: Settings, results: Results, where: str) -> list[Claim]:
    """What Sec. 7.2 says of both figures."""
    course = _Course(settings, results)
    return [
        *(_keeps(course, where, policy) for policy in ("tad", "tad-op")),
        _number(
            course,
            where,
            "TAD-OP is near-optimal in the number of requests in the system.",
            "tad-op",
            "at most 1 %",
        ),
        _number(
            course,
            where,
            "TAD does not reach the optimal number of requests in the system.",
            "tad",
            "at least 2 %",
        ),
        *_adapts(course, where, "tad"),
        *_adapts(course, where, "tad-op"),
        _number(
            course, "ours", "The priced idle queue is near-optimal, too.", "priced", "at most 1 %"
        ),
        _keeps(course, "ours", "priced"),
    ]


def _number(course: _Course, where: str, says: str, policy: str, limit: str) -> Claim:
    number, settings = course.of(policy, "in_system"), course.settings
    over = [
        float(number[chosen].mean() / bound) if chosen.any() else math.nan
        for chosen, bound in zip(course.settled(), course.bounds, strict=True)
    ]
    phases = zip(settings.loads, settings.targets, over, strict=True)
    said = " and ".join(
        f"{100 * (ratio - 1):.2f} % at load {load:g}, target {target:g}"
        for load, target, ratio in phases
    )
    measure = "largest number over the bound's, less 1, of both phases"
    return claim(where, says, measure, max(over) - 1, limit, said)


def _keeps(course: _Course, where: str, policy: str) -> Claim:
    accuracy, targets = course.of(policy, "sampled_accuracy"), course.settings.targets
    short = [
        target - float(accuracy[chosen].mean()) if chosen.any() else math.nan
        for target, chosen in zip(targets, course.settled(), strict=True)
    ]
    return claim(
        where,
        f"{LOOKS[policy].label} keeps the benchmark accuracy while load or target varies.",
        "largest shortfall of a phase's mean accuracy",
        max(short),
        "at most 0.05 %",
        " and ".join(
            f"{target - missing:.5f} at target {target:g}"
            for target, missing in zip(targets, short, strict=True)
        ),
    )


def _adapts(course: _Course, where: str, policy: str) -> list[Claim]:
    """How far the first part of a phase, its transient included, is from what it settles at."""
    number, accuracy = (course.of(policy, name) for name in ("in_system", "sampled_accuracy"))
    settings = course.settings
    away: dict[int, float] = {}
    missed: dict[int, float] = {}
    for target, early, settled in zip(
        settings.targets, course.early(), course.settled(), strict=True
    ):
        if early.any() and settled.any():
            place = len(away)
            away[place] = abs(float(number[early].mean() / number[settled].mean()) - 1)
            missed[place] = abs(float(accuracy[early].mean()) - target)
    within = f"the first {_EARLY:.0%} of a phase, from the change on"
    said = f"{_EARLY * settings.phase_s:.0f} s, of which a sample is "
    said += f"{settings.horizon_s / settings.samples:.0f} s; the transient is counted"
    excellent = f"{LOOKS[policy].label} is excellent at adapting to what varies"
    return [
        claim(
            where,
            f"{excellent}: the number in the system.",
            f"departure of the mean number in {within}, from where it settles",
            most(away, 0)[0],
            "at most 2 %",
            said,
        ),
        claim(
            where,
            f"{excellent}: the accuracy.",
            f"departure of the mean accuracy in {within}, from the target",
            most(missed, 0)[0],
            "at most 0.1 %",
            said,
        ),
    ]


def load_figure(settings: Settings, results: Results) -> Drawing:
    """Accuracy and number in the system over time."""
    low, high = settings.loads
    return figure(settings, results, f"load {low:g} and {high:g} ([Anonymous], Fig. 9)")


def target_figure(settings: Settings, results: Results) -> Drawing:
    """Accuracy and number in the system over time."""
    low, high = settings.targets
    return figure(settings, results, f"target {low:g} and {high:g} ([Anonymous], Fig. 10)")


def load_claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.2 says of Fig. 9."""
    return claims(settings, results, "Sec. 7.2, Fig. 9")


def target_claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.2 says of Fig. 10."""
    where = "Sec. 7.2, Fig. 10"
    rates = results.one("rate_per_s") or [math.nan, math.nan]
    return [
        claim(
            where,
            "Though the load is fixed, the arrival rate changes with the target.",
            "rate at the higher target over that at the lower",
            rates[1] / rates[0],
            "at most 0.99",
            f"{rates[0]:.4g}/s and {rates[1]:.4g}/s: the greatest feasible rate falls",
        ),
        *claims(settings, results, where),
    ]


_SMOKE = {"servers": 256, "horizon_s": 1_200.0, "cycles": 2, "samples": 120, "trials": 1}
_QUICK = {"horizon_s": 12_000.0, "trials": 3}
LOAD = Study(
    name="varying-load",
    source="[Anonymous], Fig. 9",
    shows="Accuracy and number in the system over time while the load varies, 4096 servers.",
    scales=scales(Settings(), smoke=_SMOKE, quick=_QUICK),
    points=points,
    figure=load_figure,
    claims=load_claims,
    departures=_DEPARTURES,
    code=CODE,
)
TARGET = Study(
    name="varying-target",
    source="[Anonymous], Fig. 10",
    shows="Accuracy and number in the system over time while the target varies, 4096 servers.",
    scales=scales(Settings(targets=(0.76, 0.80), loads=(0.5, 0.5)), smoke=_SMOKE, quick=_QUICK),
    points=points,
    figure=target_figure,
    claims=target_claims,
    departures=(
        "The figure's loads and targets did not survive in the text: load 0.5 in both phases "
        "(the text says that it is fixed), targets 0.76 and 0.80.",
        *_DEPARTURES,
    ),
    code=CODE,
)
