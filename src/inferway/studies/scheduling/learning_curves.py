"""How goodput, violations and the heavy share change in training ([Tan24], Figs. 2, 4 and 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.scheduling import other_learners
from inferway.studies.scheduling.burst import BURSTY, NORMAL
from inferway.studies.scheduling.shipped import SEEDS, curve_of, digest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Curve, Panel

_PLAIN = (*SEEDS, "rl-fo")
_BATCHED = ("rl-po-b", "rl-fo-b")
_PERIODIC = ("periodic-rl-po", "periodic-rl-fo")
_STATES = (("bursty", BURSTY), ("normal", NORMAL))
_LEVELS = (0.99, 1.0)
"""Of RL-PO's final goodput: where both trainings are compared."""
_SEEDED = "over RL-PO's seeds, Student's t: the one training of RL-FO is taken to spread as they do"
_LATE = 0.1
"""The last part of a training that its end is averaged over."""


@dataclass(frozen=True)
class Settings:
    """Which trainings; they are stored with the policies, so every scale shows the same."""

    names: tuple[str, ...] = (*_PLAIN, *_BATCHED, *_PERIODIC)
    others: tuple[str, ...] = other_learners.LEARNERS


def points(settings: Settings) -> list[Point]:
    """One stored curve each."""
    names = [(name, None) for name in settings.names]
    others = [(name, other_learners.COMMAND + f" {name}") for name in settings.others]
    return [
        Point(
            {"name": name},
            kept,
            {"name": name, "command": command, "file": digest(name, ".csv")},
            0.05,
        )
        for name, command in (*names, *others)
    ]


def kept(name: str, command: str | None, file: str) -> dict[str, Any]:
    """A learning curve: a list per column."""
    del file
    return dict(curve_of(name, command))


def figure(settings: Settings, results: Results) -> Figure:
    """Goodput, violations and heavy share against slots, a row for each of the paper's figures."""
    from inferway.experiments.curves import panels

    rows = (
        ("Fig. 2", _PLAIN),
        ("Fig. 4", _BATCHED),
        ("Fig. 6", _PERIODIC),
        ("others", ("rl-po", *settings.others)),
    )
    shown = []
    for title, names in rows:
        there = [name for name in names if results.where(name=name).rows]
        for up, column in (("goodput", "goodput"), ("violations", "violations"), ("", "heavy")):
            shown.append(_panel(results, title, there, column, up or "heavy share"))
    return panels(shown, columns=3, title="Learning curves ([Tan24], Figs. 2, 4 and 6)")


def _panel(results: Results, title: str, names: Sequence[str], column: str, up: str) -> Panel:
    from inferway.experiments.curves import Panel

    curves: list[Curve] = []
    seeds = [name for name in names if name in SEEDS]
    if len(seeds) > 1:
        curves += _band(results, seeds, column)
        names = [name for name in names if name not in seeds]
    for name in names:
        color = 1 if "fo" in name else {"ddpg": 2, "recurrent": 3}.get(name, 0)
        curves += _states(results, name, column, color)
    return Panel(f"{title}: {up}", "slots, millions", f"{up}, %", curves)


def _band(results: Results, seeds: Sequence[str], column: str) -> list[Curve]:
    """The mean of the seeds, with their deviation as whiskers."""
    from inferway.experiments.curves import Curve

    found = []
    for state, phase in _STATES:
        rows = [results.one(f"{column}_{phase}", name=name) for name in seeds]
        length = min(map(len, rows))
        values = 100 * np.array([row[:length] for row in rows])
        across = [slots / 1e6 for slots in results.one("slots", name=seeds[0])[:length]]
        found.append(
            Curve(
                f"RL-PO, {state}, {len(seeds)} seeds",
                across,
                values.mean(axis=0).tolist(),
                values.std(axis=0, ddof=1).tolist(),
                (),
                0,
                "-" if phase == BURSTY else ":",
                markers=False,
            )
        )
    return found


def _states(results: Results, name: str, column: str, color: int) -> list[Curve]:
    from inferway.experiments.curves import Curve

    label = name.removeprefix("periodic-").upper().replace("RECURRENT", "recurrent")
    return [
        Curve(
            f"{label}, {state}",
            [slots / 1e6 for slots in results.one("slots", name=name)],
            [100 * value for value in results.one(f"{column}_{phase}", name=name)],
            (),
            (),
            color,
            "-" if phase == BURSTY else ":",
            markers=False,
        )
        for state, phase in _STATES
    ]


def end(results: Results, name: str, column: str) -> float:
    """A column's mean over the last part of a training."""
    values = results.one(column, name=name)
    if values is None:
        return math.nan
    last = values[-max(1, round(_LATE * len(values))) :]
    known = [value for value in last if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def at(results: Results, name: str, column: str, slots: float) -> float:
    """A column after so many slots."""
    values, known = results.one(column, name=name), results.one("slots", name=name)
    if values is None:
        return math.nan
    return float(np.interp(slots, known, values))


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. 5.2.1, 5.2.2 and Sec. 4."""
    found = [
        _higher_end(results),
        *(_fewer_slots(results, part) for part in _LEVELS),
        Claim(
            "Sec. 5.2.2, Fig. 4",
            "With batches the heavy share of the normal state is learned later.",
            "heavy share of RL-PO-B at the slots at which RL-PO has 80 %, less 80 %",
            at(
                results,
                "rl-po-b",
                f"heavy_{NORMAL}",
                _reached(results, "rl-po", 0.8, f"heavy_{NORMAL}"),
            )
            - 0.8,
            at_most=0.0,
            unit="%",
        ),
    ]
    found.append(_close(results))
    for name, says in (
        ("ddpg", "DDPG fails to learn good policies."),
        ("recurrent", "A recurrent policy does not help."),
    ):
        if name not in settings.others:
            continue
        slots = (results.one("slots", name=name) or [math.nan])[-1]
        same = at(results, "rl-po", "goodput", slots)
        found.append(
            Claim(
                "Sec. 4",
                says,
                f"its goodput after {slots / 1e6:.2g} million slots less RL-PO's then",
                end(results, name, "goodput") - same,
                at_most=0.0,
                unit="%",
                why=f"{_ends(results, (name,))}; RL-PO {100 * same:.2f} % with greater noise; "
                "heavy share of the normal state "
                f"{100 * end(results, name, f'heavy_{NORMAL}'):.0f} %, RL-PO "
                f"{100 * at(results, 'rl-po', f'heavy_{NORMAL}', slots):.0f} %",
            )
        )
    return found


def _seeds(results: Results) -> list[str]:
    return [name for name in SEEDS if results.where(name=name).rows]


def _higher_end(results: Results) -> Claim:
    """RL-FO was trained once: it is taken to spread as RL-PO does over its seeds."""
    finals = [end(results, name, "goodput") for name in _seeds(results)]
    mean = float(np.mean(finals)) if finals else math.nan
    value = end(results, "rl-fo", "goodput") - mean
    half = _prediction(finals)
    return Claim(
        "Sec. 5.2.1, Fig. 2",
        "With the workload's state goodput is higher at the end of the training.",
        "goodput of RL-FO less the mean of RL-PO's, with the noise of training",
        value,
        at_least=0.0,
        unit="%",
        why=_ends(results, (*_seeds(results), "rl-fo")),
        low=None if math.isnan(half) else value - half,
        high=None if math.isnan(half) else value + half,
        method="" if math.isnan(half) else _SEEDED,
    )


def _fewer_slots(results: Results, part: float) -> Claim:
    """Both at the same level of goodput: a part of where RL-PO ends."""
    finals = [end(results, name, "goodput") for name in _seeds(results)]
    level = part * float(np.mean(finals)) if finals else math.nan
    mine = _reached(results, "rl-fo", level)
    theirs = [_reached(results, name, level) for name in _seeds(results)]
    value = mine / float(np.mean(theirs)) if theirs else math.nan
    half = _prediction([math.log(one) for one in theirs if one > 0])
    sure = not math.isnan(half) and half > 0 and value > 0
    return Claim(
        "Sec. 5.2.1, Fig. 2",
        f"With the workload's state fewer slots are needed to {100 * part:g} % of where RL-PO "
        "ends.",
        "RL-FO's slots to that goodput over RL-PO's slots to the same goodput",
        value,
        at_most=1.0,
        why=f"goodput {100 * level:.2f} %: RL-FO {mine / 1e6:g} million slots, RL-PO "
        + ", ".join(f"{one / 1e6:g}" for one in theirs)
        + " million by seed; curves have a point every hundredth of the training",
        low=value * math.exp(-half) if sure else None,
        high=value * math.exp(half) if sure else None,
        method=_SEEDED if sure else "",
    )


def _close(results: Results) -> Claim:
    from scipy.special import chdtri

    seeds = _seeds(results)
    finals = [end(results, name, "goodput") for name in seeds]
    spread = float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan
    known = not math.isnan(spread) and spread > 0
    free = len(finals) - 1
    return Claim(
        "Fig. 2",
        "The trials of RL-PO end close to each other.",
        f"standard deviation of the final goodput over {len(seeds)} seeds",
        spread,
        at_most=0.005,
        unit="%",
        why=_ends(results, seeds),
        low=spread * math.sqrt(free / float(chdtri(free, 0.025))) if known else None,
        high=spread * math.sqrt(free / float(chdtri(free, 0.975))) if known else None,
        method="over RL-PO's seeds: chi-squared, for a variance" if known else "",
    )


def _prediction(values: Sequence[float]) -> float:
    """Half the 95 % interval of one more training less the mean of these; NaN for fewer than two.

    The one more is taken to have their spread.
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    return float(stdtrit(len(values) - 1, 0.975)) * spread


def _reached(results: Results, name: str, level: float, column: str = "goodput") -> float:
    """Slots until a column first comes to a level; NaN where it never does."""
    values = results.one(column, name=name)
    if values is None or math.isnan(level):
        return math.nan
    above = [place for place, value in enumerate(values) if value >= level]
    return float(results.one("slots", name=name)[above[0]]) if above else math.nan


def _ends(results: Results, names: Sequence[str]) -> str:
    said = []
    for name in names:
        slots = results.one("slots", name=name)
        if slots is not None:
            said.append(
                f"{name}: {100 * end(results, name, 'goodput'):.2f} % (violations "
                f"{100 * end(results, name, 'violations'):.2f} %) after {slots[-1] / 1e6:g} million"
            )
    return ", ".join(said)


_PAPER = Settings()
STUDY = Study(
    name="learning-curves",
    source="[Tan24], Figs. 2, 4 and 6",
    shows="Goodput, violations and heavy share in the course of training, with and without the "
    "workload's state, with batches, on the periodic workload, and by other learners.",
    scales={
        "smoke": replace(_PAPER, names=("rl-po", "rl-fo", "rl-po-b", *SEEDS[1:])),
        "quick": _PAPER,
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Values are of the trajectories that were trained on, with their noise (sigma 0.698), over "
        "stretches of a hundredth of the training; the paper does not say whether its are.",
        "Trainings have 25 million slots or fewer, not 250 million.",
        "Noise differs between learners: sigma 0.698 before a softmax for RL-PO, 0.1 on weights "
        "in 0..1 for DDPG, a learned Gaussian on such weights for the recurrent policy.",
        "The curves are stored with the policies; `inferway.studies.scheduling.train` makes both, "
        "and `other_learners` those of DDPG and of the recurrent policy.",
    ),
    code=("studies/scheduling/shipped.py", "studies/scheduling/learning_curves.py"),
)
