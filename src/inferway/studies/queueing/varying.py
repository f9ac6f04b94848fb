"""A load or a target that rises and falls on a large site ([Anonymous], Figs. 9 and 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.load_curve import around
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    LOOKS,
    Settings,
    greatest,
    phased,
    seconds,
)

_EARLY = 0.05  # the part of a phase in which a policy has to have adapted
_DEPARTURES = (
    "How long a phase lasts did not survive in the text: ours are a sixth of the run, so three of "
    "each.",
    "The accuracy is that of all requests since the last sample, where the paper takes the last "
    "1000: both are one sample each.",
)


@dataclass(frozen=True)
class VaryingSettings(Settings):
    """The paper's (Sec. 7.2); `loads` and `targets` are those of the two phases."""

    servers: int = 4096
    targets: tuple[float, ...] = (0.76, 0.76)
    loads: tuple[float, ...] = (0.4, 0.5)
    policies: tuple[str, ...] = ("tad", "tad-op", "priced")
    trials: int = 500
    horizon_s: float = 300_000.0
    cycles: int = 3
    samples: int = 300

    @property
    def phase_s(self) -> float:
        """Duration of a phase."""
        return self.horizon_s / (2 * self.cycles)

    @property
    def sample_s(self) -> float:
        """Time between two samples."""
        return self.horizon_s / self.samples


def _points(settings: VaryingSettings) -> list[Point]:
    rates = [
        load * greatest(settings.system, settings.servers, target)
        for load, target in zip(settings.loads, settings.targets, strict=True)
    ]
    queries = round(settings.horizon_s * sum(rates) / 2)
    names = ("servers", "phase_s", "targets", "loads", "sample_s")
    of_all = {**settings.common(*names), "queries": queries, "warmup": 0}
    trials = range(settings.trials)
    return grid(phased, of_all, seconds(queries), policy=settings.policies, trial=trials)


class _Course:
    """The course of means over the trials, and when which phase is."""

    def __init__(self, settings: VaryingSettings, results: Results) -> None:
        self.settings, self.results = settings, results
        # Sample times that all rows have: runs end with a request, not at a time.
        every = [row["time_s"] for row in results.rows]
        self.time_s = np.array(min(every, key=len, default=[]), float)
        looked_back_s = self.time_s - 0.5 * settings.sample_s
        into = np.mod(looked_back_s, settings.phase_s) / settings.phase_s
        # A run begins with an empty site, no change to adapt to.
        early = (into <= _EARLY) & (self.time_s > settings.phase_s)
        self.phase = (looked_back_s // settings.phase_s).astype(np.int64) % 2
        # By phase: the samples after it has settled, those at its beginning, and the bound's number
        # in the system.
        self.settled = [(self.phase == i) & (into > 0.25) for i in range(2)]
        self.early = [(self.phase == i) & early for i in range(2)]
        self.bounds: list[float] = results.one("bound_in_system") or [math.nan, math.nan]

    def of(self, policy: str, column: str) -> NDArray[np.float64]:
        """Mean over the trials, sample by sample."""
        count = len(self.time_s)
        rows = [row[column][:count] for row in self.results.where(policy=policy).rows]
        return np.mean(np.array(rows), axis=0) if rows else np.full(count, math.nan)

    def settles(self, policy: str, column: str) -> list[float]:
        """By phase, the mean once it has settled."""
        values = self.of(policy, column)
        return [float(values[at].mean()) if at.any() else math.nan for at in self.settled]

    def number(self, says: str, policy: str, limit: str) -> str:
        settled = zip(self.settles(policy, "in_system"), self.bounds, strict=True)
        over = [mean / bound - 1 for mean, bound in settled]
        phases = zip(over, self.settings.loads, self.settings.targets, strict=True)
        said = " and ".join(
            f"{100 * more:.2f} % at load {load:g}, target {target:g}"
            for more, load, target in phases
        )
        return f"""{says}
            - largest number over the bound's, less 1, of both phases: {max(over)} ({limit})
            - {said}"""

    def keeps(self, policy: str) -> str:
        kept = self.settles(policy, "sampled_accuracy")
        phases = list(zip(self.settings.targets, kept, strict=True))
        return f"""
            {LOOKS[policy].label} keeps the benchmark accuracy while load or target varies.
            - largest shortfall of a phase's mean accuracy:
              {max(target - mean for target, mean in phases)} (at most 0.05 %)
            - {" and ".join(f"{mean:.5f} at target {target:g}" for target, mean in phases)}
            """.strip()

    def adapts(self, policy: str) -> str:
        in_system, accuracy = (self.of(policy, name) for name in ("in_system", "sampled_accuracy"))
        away: dict[float, float] = {}
        missed: dict[float, float] = {}
        phases = zip(self.settings.targets, self.early, self.settled, strict=True)
        for place, (target, early, settled) in enumerate(phases):
            if early.any() and settled.any():
                away[place] = abs(float(in_system[early].mean() / in_system[settled].mean()) - 1)
                missed[place] = abs(float(accuracy[early].mean()) - target)
        excellent = f"{LOOKS[policy].label} is excellent at adapting to what varies"
        within = f"the first {_EARLY:.0%} of a phase, from the change on"
        said = f"""{_EARLY * self.settings.phase_s:.0f} s, of which a sample is
            {self.settings.sample_s:.0f} s; the transient is counted"""
        return f"""
            {excellent}: the number in the system.
            - departure of the mean number in {within}, from where it settles:
              {most(away, 0)[0]} (at most 2 %)
            - {said}
          * {excellent}: the accuracy.
            - departure of the mean accuracy in {within}, from the target:
              {most(missed, 0)[0]} (at most 0.1 %)
            - {said}""".strip()


def _figure(settings: VaryingSettings, results: Results, varies: str, number: int) -> Drawing:
    course = _Course(settings, results)
    time_s = course.time_s.tolist()
    goal = [100 * settings.targets[i] for i in course.phase]
    in_system = [Curve(BOUND.label, time_s, [course.bounds[i] for i in course.phase])]
    accuracy = [Curve("target", time_s, goal, dash=":")]
    for policy, look in settings.looks.items():
        in_system.append(look.series(time_s, course.of(policy, "in_system").tolist()))
        sampled = 100.0 * course.of(policy, "sampled_accuracy")
        accuracy.append(look.series(time_s, sampled.tolist()))
    limits = around(max(goal, default=0.0), [value for curve in accuracy for value in curve.y])
    up, (low, high) = "accuracy since the last sample, %", getattr(settings, f"{varies}s")
    return panels(
        [
            Panel("", "time, s", up, accuracy, limits_up=limits),
            Panel("", "time, s", "requests in the system", in_system),
        ],
        columns=2,
        title=f"{settings.servers} servers, {varies} {low:g} and {high:g} ([Anonymous], Fig. "
        f"{number})",
    )


def _claims(settings: VaryingSettings, results: Results, number: int) -> list[Claim]:
    of = _Course(settings, results)
    near = "TAD-OP is near-optimal in the number of requests in the system."
    far = "TAD does not reach the optimal number of requests in the system."
    own = "The priced idle queue is near-optimal, too."
    rates = results.one("rate_per_s") or [math.nan, math.nan]
    falls = f"""Though the load is fixed, the arrival rate changes with the target.
        - rate at the higher target over that at the lower: {rates[1] / rates[0]} (at most 0.99)
        - {rates[0]:.4g}/s and {rates[1]:.4g}/s: the greatest feasible rate falls
      * """
    return claims(f"""
      * [Sec. 7.2, Fig. {number}] {falls if number == 10 else ""}{of.keeps("tad")}
      * {of.keeps("tad-op")}
      * {of.number(near, "tad-op", "at most 1 %")}
      * {of.number(far, "tad", "at least 2 %")}
      * {of.adapts("tad")}
      * {of.adapts("tad-op")}
      * [ours] {of.number(own, "priced", "at most 1 %")}
      * {of.keeps("priced")}
    """)


_SMOKE = {"servers": 256, "horizon_s": 1_200.0, "cycles": 2, "samples": 120, "trials": 1}
_QUICK = {"horizon_s": 12_000.0, "trials": 3}
LOAD = Study(
    name="varying-load",
    source="[Anonymous], Fig. 9",
    shows="Accuracy and number in the system over time while the load varies, 4096 servers.",
    scales=scales(VaryingSettings(), smoke=_SMOKE, quick=_QUICK),
    points=_points,
    figure=partial(_figure, varies="load", number=9),
    claims=partial(_claims, number=9),
    departures=_DEPARTURES,
    code=CODE,
)
TARGET = Study(
    name="varying-target",
    source="[Anonymous], Fig. 10",
    shows="Accuracy and number in the system over time while the target varies, 4096 servers.",
    scales=scales(
        VaryingSettings(targets=(0.76, 0.80), loads=(0.5, 0.5)), smoke=_SMOKE, quick=_QUICK
    ),
    points=_points,
    figure=partial(_figure, varies="target", number=10),
    claims=partial(_claims, number=10),
    departures=(
        "The figure's loads and targets did not survive in the text: load 0.5 in both phases "
        "(the text says that it is fixed), targets 0.76 and 0.80.",
        *_DEPARTURES,
    ),
    code=CODE,
)
