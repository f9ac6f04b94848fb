"""TAD-OP without some of its routing tuples ([Anonymous], Sec. 5.2 and 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferway.experiments.curves import Drawing, Look, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Results, Study, claim, scales
from inferway.studies.queueing.ablated import NAME
from inferway.studies.queueing.system import CODE as SYSTEM_CODE
from inferway.studies.queueing.system import Settings, every, response_panel, simulated

CODE = (*SYSTEM_CODE, "studies/queueing/ablated.py")
WHOLE = "nothing"  # without which tuples TAD-OP is whole
_LOOKS = {
    WHOLE: Look("TAD-OP", 0, "-"),
    "shuffles": Look("without pairs that shuffle", 1, "--"),
    "singletons": Look("without singletons", 2, "--"),
    "both": Look("proper pairs only", 4, ":"),
}


def ablated(*, without: str, **arguments: Any) -> Mapping[str, Any]:
    """Simulate TAD-OP without some of its routing tuples; other arguments as `simulated`."""
    if without == WHOLE:
        return simulated(policy="tad-op", **arguments)
    return simulated(policy=NAME, options={"without": without}, **arguments)


def slower(results: Results, without: str) -> float:
    """Response time without some tuples over that with all; infinite where it is unstable."""
    whole, less = (results.measure("response_s", without=name) for name in (WHOLE, without))
    if not whole.trials or not less.trials or not whole.stable:
        return math.nan
    return less.mean / whole.mean if less.stable else math.inf


def _figure(settings: Settings, results: Results) -> Drawing:
    shown = [
        response_panel(
            f"target {100 * target:g} %",
            results.where(target=target),
            _LOOKS,
            settings.loads,
            2.5,
            by="without",
        )
        for target in settings.targets
    ]
    title = f"TAD-OP without some routing tuples, {settings.servers} servers"
    return panels(shown, columns=3, title=title)


def _claims(settings: Settings, results: Results) -> list[Claim]:
    return [
        _matters(settings, results, "shuffles", "Sec. 6.1", "Pairs that shuffle are needed."),
        _matters(settings, results, "singletons", "Sec. 5.2", "Singletons are needed."),
    ]


def _matters(settings: Settings, results: Results, without: str, where: str, says: str) -> Claim:
    ratios, short = {}, {}
    for target in settings.targets:
        for load in settings.loads:
            here = results.where(target=target, load=load)
            whole, less = (
                here.measure("response_s", without=name).mean for name in (WHOLE, without)
            )
            place = f"target {target:g}, load {load:g}"
            ratios[f"{place}: {less:.4g} s against {whole:.4g} s"] = slower(here, without)
            short[place] = target - here.measure("accuracy", without=without).mean
    worst, at = most(ratios, "no points are known")
    lost, where_lost = most(short, "")
    return claim(
        where,
        says,
        "largest response time without them over TAD-OP's, less 1",
        worst - 1,
        "at least 5 %",
        f"{at}; accuracy falls short by {100 * lost:.2g} points at most ({where_lost})",
    )


STUDY = Study(
    name="ablation",
    source="[Anonymous], Sec. 5.2 and 6",
    shows="TAD-OP without pairs that shuffle, and without singletons.",
    scales=scales(
        # At 0.78 the bound uses a pair that shuffles from load 0.5 on, at 0.72 a singleton.
        Settings(
            servers=1024,
            targets=(0.72, 0.76, 0.78),
            loads=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
        ),
        smoke={"servers": 64, "targets": (0.78,), "loads": (0.8,), "queries": 40_000},
        quick={
            "targets": (0.72, 0.78),
            "loads": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
            "queries": 1_000_000,
            "precision": 0.0015,
        },
    ),
    points=every(ablated, "servers", without=tuple(_LOOKS), target="targets", load="loads"),
    figure=_figure,
    claims=_claims,
    departures=("The paper has no figure of this: system, targets and loads are ours.",),
    code=CODE,
)
