"""How long batches take on this machine, model by model ([Anonymous], Fig. 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from inferway.catalog import zoo
from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.profiling.timing import Timed, service_times
from inferway.runtime import OnnxRuntime
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales

# By rising accuracy.
_MODELS = ("mini", "small", "medium", "large", "huge", "ensemble")


@dataclass(frozen=True)
class TimesSettings:
    """Ours: the paper's figure has ResNet models on a Titan X, and no numbers in the text."""

    models: tuple[str, ...] = _MODELS
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    rounds: int = 5
    round_s: float = 0.25
    trials: int = 3


def measured(
    *, model: str, sizes: list[int], rounds: int, round_s: float, seed: int
) -> dict[str, Any]:
    """Measure a model of the digits zoo as `inferway profile` does, alone on this machine.

    Of each size in turn: mean, median and 95th percentile of a call and the mean processor time of
    its thread, in seconds; and how many calls there were. The seed only tells trials apart.
    """
    del seed
    runtime = OnnxRuntime(zoo.model_path("digits", model))
    try:
        images = {zoo.INPUT: zoo.testset("digits").images[: max(sizes)]}
        (times,) = service_times(
            [Timed(model, [runtime.run], images, sizes)], rounds=rounds, round_s=round_s
        )
    finally:
        runtime.close()
    columns = ("mean_s", "p50_s", "p95_s", "cpu_s", "calls")
    return {name: [getattr(one, name) for one in times] for name in columns}


def _points(settings: TimesSettings) -> list[Point]:
    given = {
        "sizes": list(settings.sizes),
        "rounds": settings.rounds,
        "round_s": settings.round_s,
    }
    cost = 1.5 * settings.rounds * settings.round_s * len(settings.sizes)
    return grid(measured, given, cost, model=settings.models, trial=range(settings.trials))


def _times(results: Results, model: str) -> list[float]:
    """Processor times by size, s: the least of the trials, as others can only make them longer."""
    rows = [row["cpu_s"] for row in results.where(model=model).rows]
    return np.min(rows, axis=0).tolist() if rows else []


def fixed_part(sizes: tuple[int, ...], times_s: list[float]) -> float:
    """Part of the time of one request that does not grow with the batch, by least squares.

    The line t(b) = t (phi + (1 - phi) b) is fitted with equal weights of relative errors.
    """
    if not times_s:
        return math.nan
    weights = 1 / np.array(times_s)
    rows = np.column_stack([np.ones(len(sizes)), sizes]) * weights[:, None]
    fixed, each = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0]
    return float(fixed / (fixed + each))


def _figure(settings: TimesSettings, results: Results) -> Drawing:
    looks = {model: Look(model, color) for color, model in enumerate(settings.models)}
    times = {model: _times(results, model) for model in settings.models}
    whole, each = (
        [
            look.curve(
                settings.sizes,
                [
                    1000 * time_s / (size if per_request else 1)
                    for size, time_s in zip(settings.sizes, times[model], strict=True)
                ],
            )
            for model, look in looks.items()
            if times[model]
        ]
        for per_request in (False, True)
    )
    axis: dict[str, Any] = {
        "scale_across": "log",
        "scale_up": "log",
        "ticks_across": settings.sizes,
    }
    return panels(
        [
            Panel("a batch", "batch size", "processor time, ms", whole, **axis),
            Panel("a request of it", "batch size", "processor time, ms", each, **axis),
        ],
        columns=2,
        title="Batch inference time of the digits zoo (after [Anonymous], Fig. 2)",
    )


def _claims(settings: TimesSettings, results: Results) -> list[Claim]:
    sizes, times = settings.sizes, {model: _times(results, model) for model in settings.models}
    known = [model for model in settings.models if times[model]]
    quicker, falls, saves = {}, {}, {}
    for small, large in pairwise(known):
        for size, one, other in zip(sizes, times[small], times[large], strict=True):
            quicker[f"{small} and {large}, batch {size}"] = one / other
    for model in known:
        for (a, one), (b, other) in pairwise(zip(sizes, times[model], strict=True)):
            falls[f"{model}, from {a} to {b}"] = other / one
        saves[model] = times[model][-1] / (sizes[-1] * times[model][0])
    tails = {
        f"{row['model']}, batch {size}": late / middle
        for row in results.rows
        for size, late, middle in zip(sizes, row["p95_s"], row["p50_s"], strict=True)
    }
    slow, at_slow = most(quicker, "")
    flat, at_flat = least(falls, "")
    tail, at_tail = most(tails, "")
    usual = float(np.median(list(tails.values()))) if tails else math.nan
    phis = {model: fixed_part(sizes, times[model]) for model in known}
    told = ", ".join(f"{model} {phi:.2f}" for model, phi in phis.items())
    return claims(f"""
      * [Sec. 2.1, Fig. 2] A more accurate model takes longer, whatever the batch.
        - largest time of a model over the next more accurate one's: {slow} (at most 1)
        - {at_slow}
      * A larger batch takes longer, whatever the model.
        - least time of a batch over the next smaller one's: {flat} (at least 1)
        - {at_flat}
      * [Sec. 3.3] A batch is more reliable than exponential service: times hardly vary.
        - 95th percentile of a call over its median, the median of models, sizes and trials:
          {usual} (at most 1.5)
        - exponential service has 4.32; largest {tail:.2f}, of {at_tail}
      * [ours] A request in the largest batch takes less time than one alone.
        - its time over that of one alone, the largest of all models:
          {max(saves.values(), default=math.nan)} (at most 0.9)
        - {", ".join(f"{model} {one:.2f}" for model, one in saves.items())}
      * As the studies of batches assume, about seven tenths of a run's time do not grow with them.
        - least part that does not: {min(phis.values(), default=math.nan)} (0.5 to 0.9)
        - {told}; `batches` takes 0.7 and Fig. 5 of [Tan24] is computed with 0.7 and 0.3
    """)


STUDY = Study(
    name="batch-times",
    source="after [Anonymous], Fig. 2",
    shows="Service times of real models by batch size, on the machine that runs the study.",
    scales=scales(
        TimesSettings(),
        smoke={"models": ("small", "huge"), "rounds": 2, "round_s": 0.02, "trials": 1},
        quick={"models": _MODELS[:-1], "rounds": 3, "round_s": 0.1},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "The figure has ResNet models on a Titan X, of which the text gives no numbers and this "
        "machine has none: here ONNX Runtime answers with the digits zoo on one core.",
        "Times are processor times of the calling thread, what a free core would take, the least "
        "of three trials; percentiles are of the wall, on which other work shows.",
    ),
    code=("profiling", "runtime"),
)
