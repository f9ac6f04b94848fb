"""Change of goodput, violations and the heavy share in training ([Tan24], Figs. 2, 4 and 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.scheduling import other_learners
from inferway.studies.scheduling.burst import BURSTY, NORMAL, PHASES
from inferway.studies.scheduling.look import half_interval, interval, welch
from inferway.studies.scheduling.other_learners import TRIALS, trained_name
from inferway.studies.scheduling.train import SEEDS, curve_of, digest

_PLAIN = (*SEEDS, "rl-fo")
_BATCHED = ("rl-po-b", "rl-fo-b")
_PERIODIC = ("periodic-rl-po", "periodic-rl-fo")
_LEVELS = (0.99, 1.0)  # of RL-PO's final goodput: where both trainings are compared
_SEEDED = "over RL-PO's seeds, Student's t: the one training of RL-FO is taken to spread as they do"
_TAILS = (0.025, 0.975)
_LATE = 0.1  # the last part of a training that its end is averaged over


@dataclass(frozen=True)
class Settings:
    """The trainings; they are stored with the policies, so every scale shows the same."""

    names: tuple[str, ...] = (*_PLAIN, *_BATCHED, *_PERIODIC)
    others: tuple[str, ...] = other_learners.LEARNERS


def _points(settings: Settings) -> list[Point]:
    others = {
        trained_name(learner, seed): f"{other_learners.COMMAND} {learner} --seed {seed}"
        for learner in settings.others
        for seed in range(TRIALS)
    }
    commands = {**dict.fromkeys(settings.names), **others}
    made = (
        {"name": one, "command": how, "file": digest(one, ".csv")} for one, how in commands.items()
    )
    return [Point({"name": given["name"]}, kept, given, 0.05) for given in made]


def kept(name: str, command: str | None, file: str) -> dict[str, Any]:
    """A learning curve: a list per column."""
    del file
    return dict(curve_of(name, command))


def _figure(settings: Settings, results: Results) -> Drawing:
    rows = {
        "Fig. 2": _PLAIN,
        "Fig. 4": _BATCHED,
        "Fig. 6": _PERIODIC,
    }
    columns = {"goodput": "goodput", "violations": "violations", "heavy share": "heavy"}
    shown = []
    for title, names in rows.items():
        there = [name for name in names if results.where(name=name).rows]
        seeds = [name for name in there if name in SEEDS]
        alone = [name for name in there if len(seeds) <= 1 or name not in seeds]
        for up, column in columns.items():
            curves = [
                *(_band(results, seeds, column, "RL-PO", 0) if len(seeds) > 1 else []),
                *(curve for name in alone for curve in _states(results, name, column)),
            ]
            shown.append(Panel(f"{title}: {up}", "slots, millions", f"{up}, %", curves))
    for up, column in columns.items():
        curves = [
            one
            for color, learner in enumerate(settings.others)
            for one in _band(results, _seeds(results, learner), column, _SAID[learner], color)
        ]
        shown.append(Panel(f"no noise: {up}", "slots, millions", f"{up}, %", curves))
    return panels(shown, columns=3, title="Learning curves ([Tan24], Figs. 2, 4 and 6)")


def _curve(results: Results, name: str, column: str) -> tuple[list[float], list[float]]:
    slots, values = (results.one(one, name=name) for one in ("slots", column))
    return [one / 1e6 for one in slots], [100 * one for one in values]


def _seeds(results: Results, learner: str) -> list[str]:
    """Names of a learner's trainings that there are."""
    every = (trained_name(learner, seed) for seed in range(TRIALS))
    return [name for name in every if results.where(name=name).rows]


def _band(
    results: Results, seeds: Sequence[str], column: str, label: str, color: int
) -> list[Curve]:
    """The mean of the seeds, with their deviation as whiskers."""
    drawn = []
    if not seeds:
        return []
    for state, phase in PHASES.items():
        every = [_curve(results, name, f"{column}_{phase}") for name in seeds]
        length = min(len(values) for _, values in every)
        values = np.array([values[:length] for _, values in every])
        drawn.append(
            Curve(
                f"{label}, {state}, {len(seeds)} seed{'s' * (len(seeds) > 1)}",
                every[0][0][:length],
                values.mean(axis=0).tolist(),
                values.std(axis=0, ddof=len(seeds) > 1).tolist(),
                color=color,
                dash="-" if phase == BURSTY else ":",
                markers=False,
            )
        )
    return drawn


def _states(results: Results, name: str, column: str) -> list[Curve]:
    label = name.removeprefix("periodic-").upper()
    return [
        Look(f"{label}, {state}", int("fo" in name), "-" if phase == BURSTY else ":").series(
            *_curve(results, name, f"{column}_{phase}")
        )
        for state, phase in PHASES.items()
    ]


def _end(results: Results, name: str, column: str = "goodput") -> float:
    """A column's mean over the last part of a training."""
    values = results.one(column, name=name) or [math.nan]
    last = values[-max(1, round(_LATE * len(values))) :]
    known = [value for value in last if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _at(results: Results, name: str, column: str, slots: float) -> float:
    values, known = results.one(column, name=name), results.one("slots", name=name)
    return math.nan if values is None else float(np.interp(slots, known, values))


def _claims(settings: Settings, results: Results) -> list[Claim]:
    heavy = f"heavy_{NORMAL}"
    # RL-FO was trained once: it is taken to spread as RL-PO does over its seeds.
    seeds = [name for name in SEEDS if results.where(name=name).rows]
    finals = [_end(results, name) for name in seeds]
    mean = float(np.mean(finals)) if finals else math.nan
    higher, half = _end(results, "rl-fo") - mean, _prediction(finals)
    made = [
        claim(
            "Sec. 5.2.1, Fig. 2",
            "With the workload's state goodput is higher at the end of the training.",
            "goodput of RL-FO less the mean of RL-PO's, with the noise of training",
            higher,
            "at least 0 %",
            _ends(results, (*seeds, "rl-fo")),
            **interval(higher - half, higher + half, _SEEDED),
        ),
        *(_fewer_slots(results, seeds, part, part * mean) for part in _LEVELS),
        claim(
            "Sec. 5.2.2, Fig. 4",
            "With batches the heavy share of the normal state is learned later.",
            "heavy share of RL-PO-B at the slots at which RL-PO has 80 %, less 80 %",
            _at(results, "rl-po-b", heavy, _reached(results, "rl-po", 0.8, heavy)) - 0.8,
            "at most 0 %",
        ),
        _close(results, seeds, finals),
    ]
    return [*made, *_others(settings, results)]


_SAID = {"rl-po": "RL-PO", "ppo": "PPO", "recurrent": "RecurrentPPO", "ddpg": "DDPG"}
# By learner: where, the sentence, and which other one it is held against.
_FAILS = (
    ("ddpg", "Sec. 4", "DDPG fails to learn good policies.", "rl-po"),
    ("recurrent", "Sec. 4", "A recurrent policy does not help.", "rl-po"),
    ("recurrent", "ours", "Memory by itself does not help.", "ppo"),
    ("ppo", "ours", "A library's PPO, with no trick of ours, comes to no more.", "rl-po"),
)


def _others(settings: Settings, results: Results) -> list[Claim]:
    made = []
    for learner, where, says, beside in _FAILS:
        if not {learner, beside} <= {*settings.others}:
            continue
        slots = _trained(results, learner)
        both = [_then(results, one, "goodput", slots) for one in (learner, beside)]
        difference, half = welch(*both)
        made.append(
            claim(
                where,
                says,
                f"goodput without noise, {_SAID[learner]}'s less {_SAID[beside]}'s",
                difference,
                "at most 0 %",
                f"after {slots / 1e6:g} million slots: "
                + "; ".join(_beside(results, one, slots) for one in (learner, beside)),
                **interval(difference - half, difference + half, "over trainings: Welch's"),
            )
        )
    return made


def _trained(results: Results, learner: str) -> float:
    """Slots that a learner's trainings have in common; NaN where there is none."""
    rows = [results.one("slots", name=name) for name in _seeds(results, learner)]
    return min((float(slots[-1]) for slots in rows), default=math.nan)


def _then(results: Results, learner: str, column: str, slots: float) -> list[float]:
    """What each training had come to after so many slots."""
    return [_at(results, name, column, slots) for name in _seeds(results, learner)]


def _beside(results: Results, learner: str, slots: float) -> str:
    by_seed = [100 * one for one in _then(results, learner, "goodput", slots)]
    bursty, lost, heavy = (
        100 * float(np.mean(_then(results, learner, column, slots) or [math.nan]))
        for column in (f"goodput_{BURSTY}", "violations", f"heavy_{NORMAL}")
    )
    return (
        f"{_SAID[learner]} {', '.join(f'{one:.2f}' for one in by_seed)} % by seed (bursty "
        f"{bursty:.2f} %, violations {lost:.2f} %, {heavy:.0f} % heavy in the normal state)"
    )


def _fewer_slots(results: Results, seeds: Sequence[str], part: float, level: float) -> Claim:
    """Both at the same level of goodput: a part of where RL-PO ends."""
    own = _reached(results, "rl-fo", level)
    theirs = [_reached(results, name, level) for name in seeds]
    value = own / float(np.mean(theirs)) if theirs else math.nan
    half = _prediction([math.log(one) for one in theirs if one > 0])
    low, high = (
        value * math.exp(sign * half) if half > 0 < value else math.nan for sign in (-1, 1)
    )
    return claim(
        "Sec. 5.2.1, Fig. 2",
        f"With the workload's state fewer slots are needed to {100 * part:g} % of where RL-PO "
        "ends.",
        "RL-FO's slots to that goodput over RL-PO's slots to the same goodput",
        value,
        "at most 1.0",
        f"goodput {100 * level:.2f} %: RL-FO {own / 1e6:g} million slots, RL-PO "
        + ", ".join(f"{one / 1e6:g}" for one in theirs)
        + " million by seed; curves have a point every hundredth of the training",
        **interval(low, high, _SEEDED),
    )


def _close(results: Results, seeds: Sequence[str], finals: Sequence[float]) -> Claim:
    spread = float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan
    free, known = len(finals) - 1, spread > 0
    low, high = (spread * math.sqrt(free / chdtri(free, q)) if known else math.nan for q in _TAILS)
    return claim(
        "Fig. 2",
        "The trials of RL-PO end close to each other.",
        f"standard deviation of the final goodput over {len(seeds)} seeds",
        spread,
        "at most 0.5 %",
        _ends(results, seeds),
        **interval(low, high, "over RL-PO's seeds: chi-squared, for a variance"),
    )


def _prediction(values: Sequence[float]) -> float:
    """Half the 95 % interval of one more training less the mean of these; NaN for fewer than two.

    The one more is taken to have their spread.
    """
    return half_interval(values, 1 + 1 / max(len(values), 1))


def _reached(results: Results, name: str, level: float, column: str = "goodput") -> float:
    """Slots until a column first comes to a level; NaN where it never does."""
    values, slots = (results.one(one, name=name) or [] for one in (column, "slots"))
    points = zip(slots, values, strict=True)
    return next((float(slot) for slot, value in points if value >= level), math.nan)


def _ends(results: Results, names: Sequence[str]) -> str:
    trained = {name: results.one("slots", name=name) for name in names}
    return ", ".join(
        f"{name}: {100 * _end(results, name):.2f} % (violations "
        f"{100 * _end(results, name, 'violations'):.2f} %) after {slots[-1] / 1e6:g} million"
        for name, slots in trained.items()
        if slots is not None
    )


STUDY = Study(
    name="learning-curves",
    source="[Tan24], Figs. 2, 4 and 6",
    shows="Goodput, violations and heavy share in the course of training, with and without the "
    "workload's state, with batches, on the periodic workload, and by other learners.",
    scales=scales(Settings(), smoke={"names": ("rl-po", "rl-fo", "rl-po-b", *SEEDS[1:])}),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Values are of the trajectories that were trained on, with their noise (sigma 0.698), over "
        "stretches of a hundredth of the training; the paper does not say whether its are.",
        "Trainings have 25 million slots or fewer, not 250 million.",
        "The claims about other learners are of evaluations without noise: in training noise "
        "differs, sigma 0.698 before a softmax for RL-PO, 0.1 on weights in 0..1 for DDPG, a "
        "learned Gaussian on such weights for a library's PPO, with memory or without.",
        "The curves are stored with the policies; `inferway.studies.scheduling.train` makes both, "
        "and `other_learners` those without noise.",
    ),
    code=("studies/scheduling/train.py", "studies/scheduling/learning_curves.py"),
)
