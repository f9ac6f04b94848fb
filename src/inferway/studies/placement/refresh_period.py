"""Models fetched and gain against the refresh period ([SiSalem23], Fig. 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.trial import CODE, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Curve

_DYNAMIC = "B from 1 to 32"


@dataclass(frozen=True)
class Settings:
    """The paper's: its caption says B in 4, 8, 16, its text 4, 8, 32. All are run."""

    periods: tuple[int, ...] = (1, 4, 8, 16, 32)
    dynamic: tuple[float, float, float] = (1.0, 32.0, 60.0)
    alpha: float = 1.0
    rate_per_s: float = 7500.0
    slots: int = 480
    trials: int = 5


def _runs(settings: Settings) -> list[tuple[str, str, dict[str, Any]]]:
    """Label, policy and options of each curve."""
    fixed = [(f"B = {b}", "infida", {"refresh": b}) for b in settings.periods]
    return [
        *fixed,
        (_DYNAMIC, "infida", {"refresh": list(settings.dynamic)}),
        ("coupled, B = 1 (ours)", "infida-coupled", {}),
        ("OLAG", "olag", {}),
        ("greedy (forwarded)", "greedy", {}),
    ]


def points(settings: Settings) -> list[Point]:
    """Every refresh period, and the rivals."""
    return [
        Point(
            {"run": label, "trial": trial},
            simulated,
            {
                "system": "I",
                "alpha": settings.alpha,
                "rate_per_s": settings.rate_per_s,
                "sliding": True,
                "policy": policy,
                "slots": settings.slots,
                "seed": trial + 1,
                "options": options,
                "series": True,
            },
            seconds(policy, settings.slots),
        )
        for label, policy, options in _runs(settings)
        for trial in range(settings.trials)
    ]


def _series(results: Results, label: str, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = [row[column] for row in results.where(run=label).rows]
    return np.asarray(np.mean(rows, axis=0)) if rows else np.array([math.nan])


def figure(settings: Settings, results: Results) -> Figure:
    """Time averages of bytes fetched and of gain, as they go on."""
    from inferway.experiments.curves import Panel, panels

    labels = [label for label, _, _ in _runs(settings)]
    moved = [_average(results, label, k, "moved") for k, label in enumerate(labels)]
    gain = [_average(results, label, k, "gain") for k, label in enumerate(labels)]
    return panels(
        [
            Panel("models fetched", "slot", "MU until then, MiB per slot", moved, scale_up="log"),
            Panel("gain", "slot", "NTAG until then, ms", gain),
        ],
        columns=2,
        title="Refresh periods under sliding popularity",
    )


def _average(results: Results, label: str, k: int, column: str) -> Curve:
    from inferway.experiments.curves import Curve

    values = _series(results, label, column)
    slots = np.arange(1, len(values) + 1)
    shown = np.cumsum(values) / slots
    shown[shown <= 0] = math.nan
    dash = "-" if label.startswith("B") else "--"
    return Curve(label, slots.tolist(), shown.tolist(), (), (), k % 7, dash, markers=False)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-B."""
    where = "Sec. VI-B, Fig. 8"
    mu = {label: results.value("mu_mib", run=label) for label, _, _ in _runs(settings)}
    ntag = {label: results.value("ntag_ms", run=label) for label, _, _ in _runs(settings)}
    slowest = f"B = {settings.periods[-1]}"
    fixed = [mu[f"B = {b}"] for b in settings.periods]
    late = slice(-max(1, settings.slots // 4), None)
    hour = slice(0, min(60, settings.slots))

    def mean(label: str, column: str, part: slice) -> float:
        return float(_series(results, label, column)[part].mean())

    all_of_them = ", ".join(f"{label}: {value:,.0f}" for label, value in mu.items())
    gains = ", ".join(f"{label}: {value:.2f}" for label, value in ntag.items())
    return [
        Claim(
            where,
            "The longer the refresh period, the fewer bytes are fetched.",
            "largest ratio of a period's bytes to the next shorter one's",
            max(b / a for a, b in pairwise(fixed)),
            at_most=1.0,
            why=f"MiB per slot: {all_of_them}",
        ),
        Claim(
            where,
            "Even with a long period INFIDA eventually exceeds OLAG.",
            f"gain with {slowest} over OLAG's in the last quarter, less 1",
            mean(slowest, "gain", late) / mean("OLAG", "gain", late) - 1,
            at_least=0.0,
            unit="%",
            why=f"NTAG in ms: {gains}",
        ),
        Claim(
            where,
            "OLAG rarely updates its allocation.",
            "its bytes per slot over INFIDA's with B = 1",
            mu["OLAG"] / mu[f"B = {settings.periods[0]}"],
            at_most=0.1,
            why=f"with counters of what is forwarded: {mu['greedy (forwarded)']:,.0f} MiB per slot",
        ),
        Claim(
            where,
            "A dynamic period converges faster than the one that it ends at.",
            "its gain in the first hour over that with B = 32, less 1",
            mean(_DYNAMIC, "gain", hour) / mean(slowest, "gain", hour) - 1,
            at_least=0.0,
            unit="%",
        ),
        Claim(
            where,
            "The update cost of the dynamic period becomes that of the one that it ends at.",
            "its bytes in the last quarter over those with B = 32",
            mean(_DYNAMIC, "moved", late) / mean(slowest, "moved", late),
            at_least=0.7,
            at_most=1.3,
        ),
        Claim(
            "ours",
            "Coupled rounding fetches less than any of the refresh periods.",
            "its bytes over those with B = 32",
            mu["coupled, B = 1 (ours)"] / mu[slowest],
            at_most=1.0,
            why=f"gain {ntag['coupled, B = 1 (ours)']:.2f} ms against {ntag[slowest]:.2f} ms, and "
            f"{ntag['B = 1']:.2f} ms with B = 1",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="refresh-period",
    source="[SiSalem23], Fig. 8",
    shows="What it costs in gain to move models less often.",
    scales={
        "smoke": replace(_PAPER, slots=70, trials=1),
        "quick": replace(_PAPER, slots=480, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("The learning rate, which the paper does not give, tunes itself.",),
    code=CODE,
)
