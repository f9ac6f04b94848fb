"""Load or target in two phases on a large site, for Figs. 9 and 10 of [Anonymous]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.studies.queueing.load_curve import around
from inferway.studies.queueing.phases import phased
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_EARLY = 0.05
"""The part of a phase in which a policy has to have adapted."""

DEPARTURES = (
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
        from inferway.dispatch import max_rate

        fleet = self.system.fleet(self.servers)
        rates = [
            load * max_rate(fleet, target)
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


def figure(settings: Settings, results: Results, title: str) -> Figure:
    """Accuracy and number in the system over time."""
    from inferway.experiments.curves import Curve, Panel, panels
    from inferway.studies.queueing.look import LOOKS

    number, accuracy = [], []
    found_s = _times(results)
    time_s, place = found_s.tolist(), _phase(settings, found_s)
    bounds = results.one("bound_in_system") or [math.nan, math.nan]
    number.append(Curve("bound (LP)", time_s, [bounds[i] for i in place]))
    goal = [100 * settings.targets[i] for i in place]
    accuracy.append(Curve("target", time_s, goal, dash=":"))
    for policy in settings.policies:
        look = LOOKS[policy]
        for column, curves, scale in (
            ("in_system", number, 1.0),
            ("sampled_accuracy", accuracy, 100.0),
        ):
            series = scale * _series(results, policy, column, len(time_s))
            curves.append(
                Curve(look.label, time_s, series.tolist(), (), (), look.color, look.dash, False)
            )
    return panels(
        [
            Panel(
                "",
                "time, s",
                "accuracy since the last sample, %",
                accuracy,
                limits_up=around(
                    max(goal, default=0.0), [value for c in accuracy for value in c.y]
                ),
            ),
            Panel("", "time, s", "requests in the system", number),
        ],
        columns=2,
        title=title,
    )


def claims(settings: Settings, results: Results, where: str) -> list[Claim]:
    """What Sec. 7.2 says of both figures."""
    numbers = {policy: _over_bound(settings, results, policy) for policy in settings.policies}
    return [
        *[_keeps(settings, results, where, policy) for policy in ("tad", "tad-op")],
        Claim(
            where,
            "TAD-OP is near-optimal in the number of requests in the system.",
            "largest number over the bound's, less 1, of both phases",
            max(numbers["tad-op"]) - 1,
            at_most=0.01,
            unit="%",
            why=_said(settings, numbers["tad-op"]),
        ),
        Claim(
            where,
            "TAD does not reach the optimal number of requests in the system.",
            "largest number over the bound's, less 1, of both phases",
            max(numbers["tad"]) - 1,
            at_least=0.02,
            unit="%",
            why=_said(settings, numbers["tad"]),
        ),
        *_adapts(settings, results, where, "tad"),
        *_adapts(settings, results, where, "tad-op"),
        Claim(
            "ours",
            "The priced idle queue is near-optimal, too.",
            "largest number over the bound's, less 1, of both phases",
            max(numbers["priced"]) - 1,
            at_most=0.01,
            unit="%",
            why=_said(settings, numbers["priced"]),
        ),
        _keeps(settings, results, "ours", "priced"),
    ]


def _keeps(settings: Settings, results: Results, where: str, policy: str) -> Claim:
    from inferway.studies.queueing.look import LOOKS

    time_s = _times(results)
    accuracy = _series(results, policy, "sampled_accuracy", len(time_s))
    short = [
        settings.targets[i] - float(accuracy[chosen].mean()) if chosen.any() else math.nan
        for i, chosen in enumerate(_settled(settings, time_s))
    ]
    return Claim(
        where,
        f"{LOOKS[policy].label} keeps the benchmark accuracy while load or target varies.",
        "largest shortfall of a phase's mean accuracy",
        max(short),
        at_most=0.0005,
        unit="%",
        why=" and ".join(
            f"{target - missing:.5f} at target {target:g}"
            for target, missing in zip(settings.targets, short, strict=True)
        ),
    )


def _adapts(settings: Settings, results: Results, where: str, policy: str) -> list[Claim]:
    """How far the first part of a phase, its transient included, is from what it settles at."""
    from inferway.studies.queueing.look import LOOKS

    time_s = _times(results)
    number = _series(results, policy, "in_system", len(time_s))
    accuracy = _series(results, policy, "sampled_accuracy", len(time_s))
    phase = _phase(settings, time_s)
    into = np.mod(time_s - 0.5 * settings.horizon_s / settings.samples, settings.phase_s)
    away, missed = math.nan, math.nan
    for i, chosen in enumerate(_settled(settings, time_s)):
        # The first phase begins with an empty site: that is no change to adapt to.
        early = (phase == i) & (into <= _EARLY * settings.phase_s) & (time_s > settings.phase_s)
        if early.any() and chosen.any():
            here = abs(float(number[early].mean() / number[chosen].mean()) - 1)
            away = here if not here <= away else away
            short = abs(float(accuracy[early].mean()) - settings.targets[i])
            missed = short if not short <= missed else missed
    within = f"the first {_EARLY:.0%} of a phase, from the change on"
    said = f"{_EARLY * settings.phase_s:.0f} s, of which a sample is "
    said += f"{settings.horizon_s / settings.samples:.0f} s; the transient is counted"
    label = LOOKS[policy].label
    return [
        Claim(
            where,
            f"{label} is excellent at adapting to what varies: the number in the system.",
            f"departure of the mean number in {within}, from where it settles",
            away,
            at_most=0.02,
            unit="%",
            why=said,
        ),
        Claim(
            where,
            f"{label} is excellent at adapting to what varies: the accuracy.",
            f"departure of the mean accuracy in {within}, from the target",
            missed,
            at_most=0.001,
            unit="%",
            why=said,
        ),
    ]


def _over_bound(settings: Settings, results: Results, policy: str) -> list[float]:
    time_s = _times(results)
    number = _series(results, policy, "in_system", len(time_s))
    bounds = results.one("bound_in_system") or [math.nan, math.nan]
    return [
        float(number[chosen].mean() / bounds[i]) if chosen.any() else math.nan
        for i, chosen in enumerate(_settled(settings, time_s))
    ]


def _said(settings: Settings, over: list[float]) -> str:
    phases = zip(settings.loads, settings.targets, over, strict=True)
    return " and ".join(
        f"{100 * (ratio - 1):.2f} % at load {load:g}, target {target:g}"
        for load, target, ratio in phases
    )


def _times(results: Results) -> NDArray[np.float64]:
    """Sample times that all rows have: runs end with a request, not at a time."""
    found = [row["time_s"] for row in results.rows]
    return np.array(min(found, key=len, default=[]), float)


def _series(results: Results, policy: str, column: str, length: int) -> NDArray[np.float64]:
    """Mean over the trials, sample by sample."""
    rows: list[Any] = [row[column][:length] for row in results.where(policy=policy).rows]
    return np.mean(rows, axis=0) if rows else np.full(length, math.nan)


def _phase(settings: Settings, time_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which phase a sample looks back on."""
    before = time_s - 0.5 * settings.horizon_s / settings.samples
    return (before // settings.phase_s).astype(np.int64) % 2


def _settled(settings: Settings, time_s: NDArray[np.float64]) -> list[NDArray[np.bool_]]:
    """By phase, the samples after it has settled."""
    step_s = settings.horizon_s / settings.samples
    into = np.mod(time_s - 0.5 * step_s, settings.phase_s) / settings.phase_s
    phase = _phase(settings, time_s)
    return [(phase == i) & (into > settings.settle) for i in range(2)]
