"""Asking a second variant where the first one is not sure: against all that ask once, and cascades.

Not in the papers, whose policies and bound choose before they see an answer. On the zoo, confidence
tables are fitted on one half of the test originals, and requests are images of the other; on fleets
of numbers a normal difficulty stands for confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.experiments.curves import Curve, Drawing, Look, Panel, lines, panels
from inferway.experiments.results import largest, most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.folds import FOLDS, calibration
from inferway.studies.queueing.second_answers import (
    CASCADE,
    DEMO,
    Rate,
    on_images,
    on_numbers,
    speed,
)
from inferway.studies.queueing.served_answers import LEAST, on_server
from inferway.studies.queueing.system import BOUND, LOOKS, Settings

_BLIND = ("tad-op", "priced")  # They cannot carry more than the blind bound
_NEAR = 0.001  # Of a target: who is further below it has missed it
_LOOKS = {
    "escalate": Look("escalate (ours)", 2, "-"),
    CASCADE: Look("best fixed cascade", 5, ":"),
    "priced": LOOKS["priced"],
    "tad-op": LOOKS["tad-op"],
}
_AGAIN = Look("bound with escalation", dash=":")


@dataclass(frozen=True)
class EscalationSettings(Settings):
    """Ours; the fleet of numbers is the queueing paper's (Sec. 7)."""

    policies: tuple[str, ...] = ("escalate", CASCADE, "priced", "tad-op")
    variants: tuple[str, ...] = ("tiny", "mini", "small", "medium", "large", "huge", "ensemble")
    goals: tuple[float, ...] = (0.88, 0.90, 0.91, 0.92, 0.925, 0.9305, 0.935, 0.938)
    goal: float = 0.9305  # Between `large` and `huge`
    lower: float = 0.925
    # Over the greatest rate of policies that choose before they see an answer.
    zoo_loads: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.2, 1.5, 2.0)
    zoo_load: float = 0.5  # Against targets
    # Of a stream that has the demo's bursts, 1/s: mean, rate of a burst over that between, and mean
    # lengths of both, s.
    demo_per_s: float = 183.0
    swing: float = 2.5
    quiet_s: float = 1.4
    burst_s: float = 0.7
    # Of the numbers: correlation of confidence and difficulty, and of two classes' difficulties.
    qualities: tuple[float, ...] = (0.5, 0.8, 0.95)
    alike: float = 0.8
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9, 1.2)
    marked: float = 0.9
    # Of a server of the zoo: targets, stream in requests a second, and how long it lasts, s.
    served: tuple[float, ...] = (0.88, 0.9305)
    served_per_s: float = 250.0
    served_s: float = 60.0

    @property
    def demo(self) -> dict[str, float]:
        """The bursty stream, as a point's arguments have it."""
        return {
            "mean_per_s": self.demo_per_s,
            "swing": self.swing,
            "quiet_s": self.quiet_s,
            "burst_s": self.burst_s,
        }


def _points(settings: EscalationSettings) -> list[Point]:
    images = {"variants": list(settings.variants)}
    own = {**images, "queries": settings.queries, "demo": settings.demo}
    seconds = 0.5 + settings.queries / 2e6
    loads: list[Rate] = [DEMO, *settings.zoo_loads]
    places: list[tuple[float, Rate]] = [(settings.goal, load) for load in loads]
    places += [(settings.lower, DEMO)]
    places += [(goal, settings.zoo_load) for goal in settings.goals if goal != settings.goal]
    zoo = [
        point
        for goal, load in places
        for policy in settings.policies
        if load == DEMO or float(load) < 1.0 or policy not in _BLIND
        for point in grid(
            on_images,
            own,
            seconds,
            label={"kind": "zoo"},
            accuracies=["held"],
            fold=FOLDS,
            target=[goal],
            load=[load],
            policy=[policy],
            trial=range(settings.trials),
        )
    ]
    fitted = grid(
        on_images,
        own,
        seconds,
        label={"kind": "zoo"},
        accuracies=["fitted"],
        fold=FOLDS,
        target=[settings.lower],
        load=[DEMO],
        policy=["escalate"],
        trial=range(settings.trials),
    )
    shared = {**settings.common("servers", "target", "queries"), "common": settings.alike}
    numbers = [
        point
        for policy in settings.policies
        for point in grid(
            on_numbers,
            shared,
            seconds,
            label={"kind": "numbers"},
            quality=settings.qualities,
            load=[one for one in settings.loads if one < 1.0 or policy not in _BLIND],
            policy=[policy],
            trial=range(settings.trials),
        )
    ]
    held = grid(calibration, {**images, "seed": 1}, 2.0, label={"kind": "bins"}, number=FOLDS)
    goal = {**images, "target": settings.goal, "load": settings.zoo_load}
    rates = grid(speed, {**goal, "queries": settings.queries}, seconds, label={"kind": "speed"})
    live = grid(
        on_server,
        {
            **images,
            "policy": "escalate",
            "rate_per_s": settings.served_per_s,
            "duration_s": settings.served_s,
            "seed": 1,
        },
        settings.served_s + 20.0,
        label={"kind": "served"},
        target=settings.served,
    )
    return [*zoo, *fitted, *numbers, *held, *rates, *live]


def _figure(settings: EscalationSettings, results: Results) -> Drawing:
    zoo = results.where(kind="zoo", fold=FOLDS[0], accuracies="held")
    goal, marked = settings.goal, settings.zoo_load
    looks = {policy: _LOOKS[policy] for policy in settings.policies}
    shown = [
        _panel(
            f"zoo, target {goal:g}",
            zoo.where(target=goal),
            looks,
            across="load",
            values=settings.zoo_loads,
        ),
        _panel(
            f"zoo, load {marked:g} of the blind bound",
            zoo.where(load=marked),
            looks,
            across="target",
            values=settings.goals,
        ),
        _bins_panel(results.where(kind="bins"), results.where(kind="served")),
    ]
    for quality in settings.qualities:
        here = results.where(kind="numbers", quality=quality)
        title = f"{settings.servers} servers, quality {quality:g}"
        shown.append(
            _panel(title, here, looks, unit="s", scale=1.0, across="load", values=settings.loads)
        )
    return panels(shown, columns=3, title="A second answer where the first is not sure (ours)")


def _panel(
    title: str,
    results: Results,
    looks: Mapping[str, Look],
    *,
    unit: str = "ms",
    scale: float = 1e3,
    across: str,
    values: Sequence[float],
) -> Panel:
    """Mean response times against one axis, with both bounds."""
    axis: Any = {across: values}
    bounds = [
        look.line(results, column, scale=scale, **axis)
        for look, column in ((BOUND, "bound_s"), (_AGAIN, "again_s"))
    ]
    curves = [*bounds, *lines(results, "response_s", looks, scale=scale, **axis)]
    known = [y for curve in bounds for y in curve.y if not math.isnan(y)] or [1.0]
    return Panel(
        title,
        across,
        f"mean response time, {unit}",
        curves,
        scale_up="log",
        limits_up=(0.7 * min(known), 30.0 * max(known)),
    )


def _bins_panel(fitted: Results, served: Results) -> Panel:
    """Accuracies that bins promise, and those of unseen images, simulated and served."""
    same = Look("as promised").series((0.0, 1.0), (0.0, 1.0))
    points = [
        Curve(name, *_shown(bins), color=color, dash="none")
        for name, bins, color in (("bins, 95 %", fitted, 6), ("served, 95 %", served, 1))
        if bins.rows
    ]
    title = "all variants' bins on unseen images"
    return Panel(title, "accuracy by the tables", "accuracy by labels", [same, *points])


def _shown(bins: Results) -> tuple[list[float], list[float], list[float]]:
    """Promised and observed accuracies, and half the widths of the latter's intervals."""
    promised, observed, low, high, _ = _columns(bins)
    return promised.tolist(), observed.tolist(), ((high - low) / 2.0).tolist()


def _columns(bins: Results) -> list[NDArray[np.float64]]:
    """Promised and observed accuracies, both ends of the latter's intervals, and weights."""
    names = ("promised", "observed", "low", "high", "weight")
    return [np.array([one for row in bins.rows for one in row[name]], float) for name in names]


def _claims(settings: EscalationSettings, results: Results) -> list[Claim]:
    zoo = results.where(kind="zoo", accuracies="held")
    return claims(
        *_zoo_claims(settings, zoo),
        *_accuracy_claims(settings, results.where(kind="zoo")),
        _cascade_claim(settings, zoo),
        *_numbers_claims(settings, results.where(kind="numbers")),
        *_bins_claims(results.where(kind="bins")),
        *_served_claims(settings, results.where(kind="served")),
        _speed_claim(results.where(kind="speed")),
    )


def _marked(settings: EscalationSettings) -> list[tuple[str, float, Rate, str]]:
    """Where the response time has a limit: name, target, load, and the limit."""
    below = [load for load in settings.zoo_loads if load < 1.0]
    return [
        ("in the demo's bursts", settings.goal, DEMO, "1.0 ms"),
        (f"at load {max(below):g} of the blind bound", settings.goal, max(below), "1.1 ms"),
        (
            f"at {max(settings.zoo_loads):g} times the blind greatest rate",
            settings.goal,
            max(settings.zoo_loads),
            "1.3 ms",
        ),
        ("in the demo's bursts", settings.lower, DEMO, "0.60 ms"),
    ]


def _zoo_claims(settings: EscalationSettings, zoo: Results) -> list[str]:
    said = []
    for place, goal, load, limit in _marked(settings):
        here = zoo.where(target=goal, load=load)
        own, other = (here.where(fold=number) for number in FOLDS)
        others = {
            _LOOKS[policy].label: own.where(policy=policy)
            for policy in settings.policies
            if policy != "escalate" and own.where(policy=policy).rows
        }
        times = ", ".join(f"{name} {_told(one, goal)}" for name, one in others.items())
        mine = own.where(policy="escalate")
        swapped = other.where(policy="escalate")
        said.append(f"""
          * [ours] On the zoo's profile `escalate` keeps the target {goal:g} {place} in little time.
            - its mean response time: {1e3 * mine.value("response_s")} (at most {limit})
            - p95 {_ms(mine.value("p95_s"))}, {100 * mine.value("escalated"):.0f} % asked again, at
              {mine.value("rate_per_s"):.0f}/s; {times}; bounds {_ms(mine.value("bound_s"))} and
              {_ms(mine.value("again_s"))}; with the halves exchanged
              {_ms(swapped.value("response_s"))} at {swapped.value("rate_per_s"):.0f}/s
            """)
    return said


def _ms(value_s: float) -> str:
    return "none" if math.isnan(value_s) else f"{1e3 * value_s:.3g} ms"


def _told(results: Results, goal: float) -> str:
    """Write a response time, and how far the accuracy is below the target, where it is."""
    time, accuracy = results.measure("response_s"), results.measure("accuracy").mean
    if not time.trials:
        return "cannot keep the target"
    short = f" at accuracy {accuracy:.4f}" if accuracy < goal - _NEAR else ""
    return f"{_ms(time.mean)}{short}" if time.stable else "unstable"


def _accuracy_claims(settings: EscalationSettings, zoo: Results) -> list[str]:
    held, away, labels = zoo.where(accuracies="held", policy="escalate"), {}, {}
    for place, goal, load, _ in _marked(settings)[:3]:
        here = held.where(target=goal, load=load)
        away[place] = abs(here.where(fold=FOLDS[0]).value("accuracy") - goal)
        means = [here.where(fold=number).value("labels") for number in FOLDS]
        labels[place] = float(np.mean(means)) - goal
    far, at = most(away, "nowhere")
    off, at_off = most({place: abs(one) for place, one in labels.items()}, "nowhere")
    fitted = zoo.where(accuracies="fitted", target=settings.lower, policy="escalate")
    apart = [fitted.where(fold=number).value("labels") - settings.lower for number in FOLDS]
    folds = ", ".join(f"{100 * one:+.2f}" for one in apart)
    return [
        f"""
      * There its expected accuracy is at the target {settings.goal:g}.
        - largest distance of the two: {far} (at most 0.1 %)
        - {at}
        """,
        f"""
      * So is the accuracy by labels of images that the fit has not seen.
        - largest distance, mean of both folds: {off} (at most 0.1 %)
        - {at_off}; by place: {", ".join(f"{100 * one:+.2f} points" for one in labels.values())}.
          Accuracies of variants are from the half whose images are sent, as in a profile; where
          they too are from the other half, target {settings.lower:g} in the demo's bursts: {folds}
          points by fold, {100 * float(np.mean(apart)):+.2f} in the mean
        """,
    ]


def _cascade_claim(settings: EscalationSettings, zoo: Results) -> str:
    own = zoo.where(fold=FOLDS[0], target=settings.goal)
    over = {}
    for load in settings.zoo_loads:
        here = own.where(load=load)
        mine = here.value("response_s", policy="escalate")
        over[f"{load:g}"] = mine / here.value("response_s", policy=CASCADE) - 1.0
    worst, at = most(over, "nowhere")
    lost = [load for load, one in over.items() if one > 0.0]
    unknown = [load for load, one in over.items() if math.isnan(one)]
    against = []
    for goal in settings.goals:
        here = zoo.where(fold=FOLDS[0], target=goal, load=settings.zoo_load)
        mine = here.value("response_s", policy="escalate")
        if mine > here.value("response_s", policy=CASCADE):
            against.append(f"{goal:g}")
    return f"""
      * On the zoo `escalate` loses to the best fixed cascade at no load.
        - largest response time over the cascade's, less 1: {worst} (at most 2 %)
        - at load {at}; slower at loads {", ".join(lost) or "none"}; the cascade is unstable at
          {", ".join(unknown) or "none"}; at load {settings.zoo_load:g}, slower at targets
          {", ".join(against) or "none"}
        """


def _numbers_claims(settings: EscalationSettings, numbers: Results) -> list[str]:
    said = []
    for quality in settings.qualities:
        here = numbers.where(quality=quality, load=settings.marked)
        mine, priced, fixed, tad_op = (
            here.where(policy=policy) for policy in ("escalate", "priced", CASCADE, "tad-op")
        )
        over = mine.value("response_s") / priced.value("response_s") - 1.0
        said.append(f"""
          * [ours] On {settings.servers} servers with confidence of quality {quality:g} `escalate`
            is faster than `priced`.
            - its response time over that of `priced`, less 1, at load {settings.marked:g}: {over}
              (at most 0 %)
            - {mine.value("response_s"):.4g} s at accuracy {mine.value("accuracy"):.4f}, `priced`
              {priced.value("response_s"):.4g} s at {priced.value("accuracy"):.4f}, TAD-OP
              {tad_op.value("response_s"):.4g} s; the cascade {_seconds(fixed)}; slower than the
              cascade at loads {_behind(settings, numbers.where(quality=quality))}
            """)
    return said


def _behind(settings: EscalationSettings, numbers: Results) -> str:
    """Loads at which `escalate` is slower than the cascade, where that is stable."""
    behind = [
        f"{load:g}"
        for load in settings.loads
        for here in [numbers.where(load=load)]
        if here.value("response_s", policy="escalate") > here.value("response_s", policy=CASCADE)
    ]
    return ", ".join(behind) or "none"


def _seconds(results: Results) -> str:
    one = results.measure("response_s")
    if not one.trials:
        return "cannot keep the target"
    return f"{one.mean:.4g} s" if one.stable else "is unstable"


def _bins_claims(bins: Results) -> list[str]:
    inside, error, weight = _errors(bins)
    return [
        f"""
      * [ours] What bins promise is what images are, that the fit has not seen.
        - share of bins within the 95 % interval of their images: {_mean(inside)} (at least 95 %)
        - {int(inside.sum())} of {len(inside)} bins of all variants, in both folds
        """,
        f"""
      * [ours] Bins err little.
        - mean over bins of the distance from their images' accuracy: {_mean(error, weight)}
          (at most 2 %)
        - at most {100 * largest(error.tolist()):.1f} points; a bin has some 210 images of 14
          variations an original, so chance is in it
        """,
    ]


def _served_claims(settings: EscalationSettings, served: Results) -> list[str]:
    """Compare what a server says of its answers with their labels; nothing where none was run."""
    if not served.rows:
        return []
    inside, error, weight = _errors(served)
    answers = sum(row["answers"] for row in served.rows)
    left_out = max(row["left_out"] for row in served.rows)
    targets = " and ".join(f"{goal:g}" for goal in settings.served)
    return [
        f"""
      * [ours] What a server says of its answers is what they are, on images that no profile has
        seen.
        - share of bins within the 95 % interval of their answers: {_mean(inside)} (at least 95 %)
        - {int(inside.sum())} of {len(inside)} bins, of first and of second answers, at targets
          {targets}; {answers:.0f} answers of `inferway serve` to images of the originals that the
          bins are not from, drawn anew for the interval; bins of fewer than {LEAST} originals, with
          at most {100 * left_out:.1f} % of the answers, are left out
        """,
        f"""
      * [ours] It errs little.
        - mean over bins of the distance from the answers' accuracy, by answers:
          {_mean(error, weight)} (at most 2 %)
        - {100 * _mean(error):.2f} points where each bin counts the same; at most
          {100 * largest(error.tolist()):.1f} points
        """,
    ]


def _errors(bins: Results) -> list[NDArray[np.float64]]:
    """Tell of each bin if it is in its interval, how far off it is, and its weight."""
    promised, observed, low, high, weight = _columns(bins)
    inside = (low <= promised) & (promised <= high)
    return [inside.astype(float), np.abs(promised - observed), weight]


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> float:
    return float(np.average(values, weights=weights)) if len(values) else math.nan


def _speed_claim(rates: Results) -> str:
    ratio = rates.value("ratio")
    return f"""
      * [ours] The twin runs at least half as fast with `escalate` as with `priced`.
        - queries a second of the processor, over those of `priced`: {ratio} (at least 0.5)
        - {rates.value("escalate") / 1e6:.2f} million and {rates.value("priced") / 1e6:.2f} million,
          best of 5 turns, engine {rates.one("engine")}
        """


ESCALATION = Study(
    name="escalation",
    source="ours, beside [Anonymous], Sec. 7",
    shows="A second variant where the first one is not sure: response times against policies that "
    "ask once, fixed cascades and both bounds, and how far confidence is to be trusted.",
    scales=scales(
        EscalationSettings(queries=20_000_000, trials=3, served_s=240.0),
        smoke={
            "variants": ("mini", "small", "medium"),
            **{"goals": (0.88, 0.905), "goal": 0.905, "lower": 0.88, "zoo_loads": (0.95, 2.0)},
            **{"zoo_load": 0.95, "qualities": (0.8,), "loads": (0.9,)},
            **{"queries": 20_000, "trials": 1, "served": ()},
        },
        quick={"queries": 400_000, "trials": 1, "served_s": 60.0},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The demo's load is a stream of its shape with a mean of 183/s, whatever the machine; "
        "service takes the times of the zoo's profile, without jitter, and each variant has one "
        "server that never waits for a core.",
        "A load is over the greatest rate of policies that choose before they see an answer. At "
        "target 0.938, above the most accurate variant's accuracy, only those that ask twice can "
        "keep it.",
    ),
    code=(
        *("catalog", "dispatch", "profiling", "site", "twin", "workload"),
        *("studies/queueing/system.py", "studies/queueing/cascade.py"),
        *("studies/queueing/folds.py", "studies/queueing/second_answers.py"),
        "studies/queueing/served_answers.py",
    ),
)
