"""How far the policies are from the proven best static allocation (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.studies.placement.look import POLICIES
from inferway.studies.placement.setting import scenario
from inferway.studies.placement.trial import CODE, point
from inferway.studies.results import Results
from inferway.studies.study import Claim, Point, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PSI = 1 - 1 / math.e
_POLICIES = ("infida", "infida-coupled", "infida-offline", "static-greedy", "olag", "greedy")


@dataclass(frozen=True)
class Settings:
    """Topology I and II under fixed popularity, where a static allocation can be the best."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    rate_per_s: float = 7500.0
    policies: tuple[str, ...] = _POLICIES
    slots: int = 480
    trials: int = 3
    time_limit_s: float = 300.0


def proven(
    system: str, alpha: float, rate_per_s: float, seed: int, time_limit_s: float
) -> dict[str, Any]:
    """Solve the MILP for the mean requests.

    Returns
    -------
    dict
        ``ntag_ms`` of the allocation, ``bound_ms`` proven, ``relaxed_ms`` of the LP relaxation, per
        request; ``seconds``.
    """
    from inferway.placement import best_static, relaxation

    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed)
    batches = np.array([built.demand.expected(0)])
    found = best_static(built.network, batches, time_limit_s=time_limit_s)
    each = 1 / float(batches.sum())
    return {
        "ntag_ms": float(each * found.gain),
        "bound_ms": float(each * found.bound),
        "relaxed_ms": float(each * relaxation(built.network, batches)),
        "proven": found.proven,
        "seconds": found.seconds,
    }


def points(settings: Settings) -> list[Point]:
    """The MILP and every policy at every alpha."""
    found = []
    for system in settings.systems:
        for alpha in settings.alphas:
            for trial in range(settings.trials):
                label = {"system": system, "alpha": alpha, "policy": "exact", "trial": trial}
                arguments = {
                    "system": system,
                    "alpha": alpha,
                    "rate_per_s": settings.rate_per_s,
                    "seed": trial + 1,
                    "time_limit_s": settings.time_limit_s,
                }
                found.append(Point(label, proven, arguments, settings.time_limit_s / 3))
                found += [
                    point(system, alpha, settings.rate_per_s, False, one, settings.slots, trial)
                    for one in settings.policies
                ]
    return found


def figure(settings: Settings, results: Results) -> Figure:
    """Gap to the proven bound of each policy."""
    from inferway.report.curves import Curve, Panel, panels

    shown = []
    for system in settings.systems:
        drawn = []
        for policy in settings.policies:
            look = POLICIES[policy]
            y = [100 * gap for gap in _gaps(settings, results, system, policy)]
            drawn.append(
                Curve(
                    look.label,
                    settings.alphas,
                    np.maximum(y, 1e-3).tolist(),
                    (),
                    (),
                    look.color,
                    look.dash,
                )
            )
        relaxed = [
            100
            * (
                results.value("relaxed_ms", system=system, alpha=alpha)
                / results.value("bound_ms", system=system, alpha=alpha)
                - 1
            )
            for alpha in settings.alphas
        ]
        drawn.append(
            Curve(
                "LP relaxation, above it",
                settings.alphas,
                np.maximum(relaxed, 1e-3).tolist(),
            )
        )
        shown.append(
            Panel(
                f"Topology {system}",
                "alpha, ms per point",
                "gap to the bound, %",
                drawn,
                scale_up="log",
            )
        )
    return panels(shown, columns=2, title="Settled gain against the MILP")


def _gaps(settings: Settings, results: Results, system: str, policy: str) -> list[float]:
    return [
        1
        - results.value("late_ms", system=system, alpha=alpha, policy=policy)
        / results.value("bound_ms", system=system, alpha=alpha)
        for alpha in settings.alphas
    ]


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near each policy comes."""
    limits = {"infida": 0.1, "infida-coupled": 0.1, "infida-offline": 0.05, "static-greedy": 0.1}
    found = []
    for policy in limits:
        each = {
            (system, alpha): gap
            for system in settings.systems
            for alpha, gap in zip(
                settings.alphas, _gaps(settings, results, system, policy), strict=True
            )
        }
        known = {place: gap for place, gap in each.items() if not math.isnan(gap)}
        worst = max(known, key=lambda one: known[one], default=None)
        said = ", ".join(f"{s} {a:g}: {100 * gap:.2f} %" for (s, a), gap in known.items())
        found.append(
            Claim(
                "ours",
                f"{POLICIES[policy].label} settles near the best static allocation.",
                "largest gap to the proven bound",
                math.nan if worst is None else known[worst],
                at_most=limits[policy],
                unit="%",
                why=f"by topology and alpha: {said}",
            )
        )
        if policy == "infida":
            found.append(
                Claim(
                    "Theorem V.1",
                    "INFIDA's mean gain is at least 1 - 1/e of the best static one, in the end.",
                    "least gain over the bound",
                    math.nan if worst is None else 1 - known[worst],
                    at_least=_PSI,
                    unit="%",
                )
            )
    solved = results.where(policy="exact")
    gaps = [1 - row["ntag_ms"] / row["bound_ms"] for row in solved.rows]
    slow = max((row["seconds"] for row in solved.rows), default=math.nan)
    found.append(
        Claim(
            "ours",
            "The MILP is solved to within 0.1 %.",
            "largest proven gap",
            max(gaps, default=math.nan),
            at_most=0.001,
            unit="%",
            why=f"in up to {slow:.1f} s",
        )
    )
    return found


_PAPER = Settings()
STUDY = Study(
    name="milp-gap",
    source="ours",
    shows="The policies beside the proven best static allocation.",
    scales={
        "smoke": replace(
            _PAPER, slots=20, trials=1, systems=("I",), alphas=(1.0,), time_limit_s=20.0
        ),
        "quick": replace(_PAPER, slots=120, trials=1, alphas=(1.0, 3.0, 5.0), time_limit_s=20.0),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    code=CODE,
)
