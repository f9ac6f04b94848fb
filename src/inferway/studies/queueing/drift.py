"""What labels say of an accuracy, how soon an alarm hears of a fall, and who follows it (ours).

Not in the papers, whose accuracies are known and stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from inferway.deployment import load
from inferway.dispatch.drift_alarm import DriftWatch, unwatched
from inferway.dispatch.measured import ENOUGH, LabeledAccuracy
from inferway.experiments.claim import ours, percents
from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.results import largest, most
from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.profiling.intervals import wilson
from inferway.profiling.prediction_powered import KEPT, AnswerComparison, PoweredAccuracy
from inferway.studies import Claim, Point, Results, Study, grid, scales
from inferway.twin import simulate
from inferway.twin.drift import LAST

_RIGHT: Final = 0.97  # Accuracy of the better model that answers are compared with
_SAME: Final = 0.3  # Probability that two wrong answers are the same
_BLOCK: Final = 1_000_000  # Labels that are drawn together, which bounds the memory
_INTERVALS: Final = {"alone": "labels", "joint": "labels and comparisons"}
_WAYS: Final = {
    "measured, alarm": Look("measured, with the alarm", 2, "-"),
    "measured": Look("measured, without it", 0, "--"),
    "profile": Look("profile", 1, ":"),
}


@dataclass(frozen=True)
class DriftSettings:
    """Accuracies of a variant, and a site of three variants of which the best one falls."""

    labeled: float = 0.05  # Share of the answers
    # Of intervals: accuracies, shares of answers that are compared, runs and labels of each.
    held: tuple[float, ...] = (0.5, 0.9, 0.99)
    compared: tuple[float, ...] = (0.2, 1.0)
    runs: int = 1_000
    labels: int = 5_000
    # Of what counts after a fall: accuracies by profile, runs of each.
    counted: tuple[float, ...] = (0.8, 0.9, 0.95)
    counts: int = 400
    # Of alarms: accuracies that stay, labels of each; accuracies that fall, runs of each, labels
    # before the fall and after it.
    staying: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
    quiet: int = 50_000_000
    falling: tuple[float, ...] = (0.6, 0.8, 0.95, 0.99)
    fall: float = 0.1
    falls: int = 1_000
    before: int = 4_000
    after: int = 8_000
    # Of the site: requests, 100 in a second, and when the best variant falls, s.
    policies: tuple[str, ...] = ("priced", "tad", "escalate")
    target: float = 0.9
    queries: int = 300_000
    at_s: float = 600.0
    trials: int = 50


def _watched() -> None:
    """Raise RuntimeError where alarms cannot be."""
    if without := unwatched():
        raise RuntimeError(without)


def covered(
    *, accuracy: float, compared: float, labeled: float, runs: int, labels: int, seed: int
) -> dict[str, int]:
    """Look at both intervals after every label, and count the runs in which one was ever wrong.

    Each answer is right with probability `accuracy`, and labeled or compared with a better model by
    coins of their own.

    Returns
    -------
    dict
        ``runs``, and those in which the interval of labels ``alone``, and the ``joint`` one of
        labels and comparisons, left the accuracy out at any step.
    """
    random = np.random.default_rng(seed)
    missed = dict.fromkeys(_INTERVALS, 0)
    for _ in range(runs):
        wrong = _once(random, accuracy, compared, round(labels / labeled), labeled)
        for name, one in zip(missed, wrong, strict=True):
            missed[name] += one
    return {"runs": runs, **missed}


def counted(
    *, accuracy: float, fall: float, compared: float, labeled: float, runs: int, seed: int
) -> dict[str, float]:
    """Take in labels of a variant that is less accurate than its profile, and say what counts.

    Returns
    -------
    dict
        ``runs``, and of labels ``alone`` and ``joint`` with comparisons the root mean square error
        of what counts after a hundred labels more than are enough, and the mean number of labels
        after which it is below the profile (``alone_labels``, ``joint_labels``).
    """
    random, true = np.random.default_rng(seed), accuracy - fall
    errors, believed = np.zeros((2, runs)), np.full((2, runs), float(ENOUGH))
    answers = round(2 * ENOUGH / labeled)
    for run in range(runs):
        correct, agrees, compares, says, keeps = _drawn(random, true, compared, answers, labeled)
        both = LabeledAccuracy(accuracy), LabeledAccuracy(accuracy)
        for at in np.flatnonzero(compares | says).tolist():
            comparison = None
            if compares[at]:
                comparison = AnswerComparison(
                    "better", float(agrees[at]), compared, bool(keeps[at])
                )
                both[1].compare(comparison)
            if not says[at]:
                continue
            for one, (own, beside) in enumerate(zip(both, (None, comparison), strict=True)):
                own.add(float(correct[at]), accuracy, beside)
                if own.labels < believed[one, run] and own.accuracy(accuracy) < accuracy:
                    believed[one, run] = own.labels
            if both[0].labels == ENOUGH + 100:
                break
        errors[:, run] = [own.accuracy(accuracy) - true for own in both]
    alone, joint = np.sqrt(np.mean(errors**2, axis=1)).tolist()
    alone_labels, joint_labels = believed.mean(axis=1).tolist()
    return {
        "runs": runs,
        "alone": alone,
        "joint": joint,
        "alone_labels": alone_labels,
        "joint_labels": joint_labels,
    }


def _drawn(
    random: np.random.Generator, accuracy: float, compared: float, answers: int, labeled: float
) -> tuple[Any, Any, Any, Any, Any]:
    """Draw of each answer whether it is right, agrees, is compared, labeled and kept for that."""
    drawn = random.random((6, answers))
    correct = drawn[0] < accuracy
    better = drawn[1] < _RIGHT
    agrees = np.where(correct, better, ~better & (drawn[2] < _SAME))
    return correct, agrees, drawn[3] < compared, drawn[4] < labeled, drawn[5] < KEPT


def _once(
    random: np.random.Generator, accuracy: float, compared: float, answers: int, labeled: float
) -> tuple[bool, bool]:
    """Tell of one run whether labels alone, and with comparisons, ever left the accuracy out."""
    correct, agrees, compares, says, keeps = _drawn(random, accuracy, compared, answers, labeled)
    alone, joint = ConfidenceSequence(), PoweredAccuracy("better")
    wrong_alone = wrong_joint = False
    for at in np.flatnonzero(compares | says).tolist():
        agreed = float(agrees[at]) if compares[at] else None
        kept = bool(keeps[at])
        if agreed is not None:
            joint.compare(agreed, compared, kept=kept)
        if not says[at]:
            continue
        score = float(correct[at])
        alone.add(score)
        joint.label(score, agreed, compared, kept=kept)
        low, high = alone.interval
        wrong_alone |= not low <= accuracy <= high
        low, high = joint.interval
        wrong_joint |= not low <= accuracy <= high
    return wrong_alone, wrong_joint


def quiet(*, accuracy: float, labels: int, seed: int) -> dict[str, int]:
    """Count the alarms among so many labels of an accuracy that stays.

    Raises
    ------
    RuntimeError
        Where what raises alarms is not installed.
    """
    _watched()
    random = np.random.default_rng(seed)
    watch, left = DriftWatch(accuracy), labels
    while left:
        drawn = min(left, _BLOCK)
        for right in (random.random(drawn) < accuracy).astype(float).tolist():
            watch.add(right, accuracy, 0.0, 0)
        left -= drawn
    return {"labels": labels, "alarms": watch.alarms}


def fallen(
    *, accuracy: float, fall: float, runs: int, before: int, after: int, seed: int
) -> dict[str, Any]:
    """Count the labels from a fall to the alarm.

    Returns
    -------
    dict
        ``seen``, that number by run, ``runs``, and ``early``, alarms before the fall. Of a run
        without an alarm in `after` labels there is no number.

    Raises
    ------
    RuntimeError
        Where what raises alarms is not installed.
    """
    _watched()
    random = np.random.default_rng(seed)
    seen, early = [], 0
    for _ in range(runs):
        watch = DriftWatch(accuracy)
        for right in (random.random(before) < accuracy).astype(float).tolist():
            watch.add(right, accuracy, 0.0, 0)
        early += watch.alarms
        for number, right in enumerate((random.random(after) < accuracy - fall).tolist()):
            if watch.add(float(right), accuracy, 0.0, 0) is not None:
                seen.append(number + 1)
                break
    return {"runs": runs, "seen": seen, "early": early}


def followed(
    *,
    policy: str,
    way: str,
    target: float,
    labeled: float,
    fall: float,
    at_s: float,
    queries: int,
    seed: int,
) -> dict[str, float]:
    """Simulate a site whose most accurate variant falls, and whose answers are labeled.

    Returns
    -------
    dict
        ``mean`` of the last labels, `LAST` at most, and their ``half_width`` (95 %); ``margin`` of
        the mean over the target less that; the true mean accuracy ``after`` the fall, and the time
        from it to the alarm, ``alarm_s``, -1 for none.

    Raises
    ------
    ValueError
        Where what raises alarms is not installed.
    """
    variants = {
        "a": {"accuracy": 0.82, "service": {"mean": "5 ms"}},
        "b": {"accuracy": 0.93, "service": {"mean": "20 ms"}},
        "c": {"accuracy": 0.95, "service": {"mean": "15 ms"}},
    }
    by, _, alarm = way.partition(", ")
    falls = {"variant": "c", "at": f"{at_s} s", "accuracy": -fall, "labels": labeled}
    document = {
        "tasks": {
            "t": {
                "accuracy_target": {"mean": target, "by": by},
                "feedback": {},
                "drift": {**falls, "alarm": bool(alarm)},
                "difficulty": {"quality": 0.8},
                "variants": variants,
            }
        },
        "nodes": {"here": {"instances": {"t/a": 2, "t/b": 3, "t/c": 2}}},
        "dispatch": {"policy": policy},
        "workload": {"t": {"arrivals": {"process": "poisson", "rate": "100/s"}}},
    }
    found = simulate(load(document), queries=queries, seed=seed).tasks["t"].drift
    assert found is not None
    return {
        "mean": found.last_mean,
        "half_width": found.half_width,
        "margin": found.last_mean - (target - found.half_width),
        "after": found.after,
        "alarm_s": found.alarm_s if found.alarms else -1.0,
    }


def _points(settings: DriftSettings) -> list[Point]:
    answers = settings.labels / settings.labeled
    held = [
        point
        for place, compared in enumerate(settings.compared)
        for point in grid(
            covered,
            {
                "labeled": settings.labeled,
                "runs": settings.runs,
                "labels": settings.labels,
                "seed": 1 + 1_000 * place,  # labels of their own
            },
            settings.runs * (5e-5 * settings.labels + 5e-7 * answers),
            label={"kind": "held"},
            accuracy=settings.held,
            compared=[compared],
        )
    ]
    counts = [
        point
        for place, compared in enumerate(settings.compared)
        for point in grid(
            counted,
            {
                "labeled": settings.labeled,
                "fall": settings.fall,
                "runs": settings.counts,
                "seed": 1 + 1_000 * place,
            },
            1e-1 * settings.counts,
            label={"kind": "counted"},
            accuracy=settings.counted,
            compared=[compared],
        )
    ]
    staying = grid(
        quiet,
        {"labels": settings.quiet, "seed": 1},
        4e-7 * settings.quiet,
        label={"kind": "quiet"},
        accuracy=settings.staying,
    )
    falling = grid(
        fallen,
        {
            "fall": settings.fall,
            "runs": settings.falls,
            "before": settings.before,
            "after": settings.after,
            "seed": 1,
        },
        4e-7 * settings.falls * (settings.before + 1_000),
        label={"kind": "fallen"},
        accuracy=settings.falling,
    )
    site = grid(
        followed,
        {
            "target": settings.target,
            "labeled": settings.labeled,
            "fall": settings.fall,
            "at_s": settings.at_s,
            "queries": settings.queries,
        },
        1e-6 * settings.queries,
        label={"kind": "followed"},
        policy=settings.policies,
        way=_WAYS,
        trial=range(settings.trials),
    )
    return [*held, *counts, *staying, *falling, *site]


def _shares(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Values in order, and the share of all that is as small or smaller."""
    ordered = sorted(values)
    return ordered, [(place + 1) / len(ordered) for place in range(len(ordered))]


def _figure(settings: DriftSettings, results: Results) -> Drawing:
    seen, margins = [], []
    for number, accuracy in enumerate(settings.falling):
        rows = results.where(kind="fallen", accuracy=accuracy).rows
        if labels := [float(one) for row in rows for one in row["seen"]]:
            seen.append(Look(f"from {accuracy:g}", number).series(*_shares(labels)))
    for way, look in _WAYS.items():
        rows = results.where(kind="followed", way=way).rows
        if values := [100.0 * row["margin"] for row in rows]:
            margins.append(look.curve(*_shares(values)))
    fall = f"{100 * settings.fall:g} points"
    return panels(
        [
            Panel(f"alarm after a fall of {fall}", "labels", "share of the runs", seen),
            Panel(
                f"last labels after it, {100 * settings.labeled:g} % labeled",
                "mean over target less half-width, points",
                "share of the runs",
                margins,
            ),
        ],
        columns=2,
        title="A variant's accuracy falls (ours)",
    )


def _coverage(settings: DriftSettings, results: Results, interval: str) -> Claim:
    """Check one interval; what is compared says nothing of the one that is by labels alone."""
    runs, missed = dict[str, int](), dict[str, int]()
    for row in results.where(kind="held").rows:
        place = f"accuracy {row['accuracy']:g}"
        if interval == "joint":
            place += f" with {100 * row['compared']:g} % compared"
        runs[place] = runs.get(place, 0) + row["runs"]
        missed[place] = missed.get(place, 0) + row[interval]
    worst, where = most({place: missed[place] / runs[place] for place in runs}, "nowhere")
    count = runs.get(where, 0)
    return ours(
        f"The interval by {_INTERVALS[interval]} holds the accuracy at every step at once.",
        "largest share of runs in which it ever left it out",
        worst,
        "at most 5 %",
        f"of {count:,} runs of {settings.labels:,} labels at {where}; in all "
        f"{sum(missed.values())} of {sum(runs.values()):,}",
        **_wilson(worst, count),
    )


def _wilson(share: float, count: int) -> dict[str, Any]:
    """A share's interval, as a claim has it."""
    if not count or math.isnan(share):
        return {}
    low, high = wilson(share, count)
    return {"low": low, "high": high, "method": "over runs: Wilson"}


def _poisson(count: int, of: int) -> dict[str, Any]:
    """Interval of a rate per one of so many, of which so many were counted."""
    from scipy.special import gammaincinv

    if not of:
        return {}
    low = float(gammaincinv(count, 0.025)) / of if count else 0.0
    return {
        "low": low,
        "high": float(gammaincinv(count + 1, 0.975)) / of,
        "method": "over labels: Poisson, exact",
    }


def _joined(settings: DriftSettings, results: Results) -> list[Claim]:
    """Compare what counts with comparisons with what counts by labels alone."""
    nearer, sooner, some = {}, {}, {}
    for row in results.where(kind="counted").rows:
        place = f"{row['accuracy']:g} by profile"
        ratio = row["joint"] / row["alone"]
        if row["compared"] < 1.0:
            some[f"{place}, {100 * row['compared']:g} % compared"] = ratio
        else:
            nearer[place], place = ratio, f"{place}, all compared"
        sooner[place] = row["joint_labels"] / row["alone_labels"]
    fall = f"{100 * settings.fall:g} points"
    return [
        ours(
            f"With all answers compared, what counts {ENOUGH + 100} labels after a fall of {fall} "
            "is nearer to the truth than by labels alone.",
            "largest root mean square error over that by labels alone",
            largest(list(nearer.values())),
            "at most 0.85",
            _ratios(nearer | some),
        ),
        ours(
            f"With comparisons, a fall of {fall} is believed as soon.",
            "largest mean of labels until then over that by labels alone",
            largest(list(sooner.values())),
            "at most 1.1",
            _ratios(sooner),
        ),
    ]


def _ratios(ratios: Mapping[str, float]) -> str:
    return "; ".join(f"{one:.2f} at {place}" for place, one in ratios.items())


def _alarms(settings: DriftSettings, results: Results) -> list[Claim]:
    rows = results.where(kind="quiet").rows
    labels, alarms = (sum(row[name] for row in rows) for name in ("labels", "alarms"))
    accuracies = ", ".join(f"{row['accuracy']:g}" for row in rows)
    fall, rows = f"{100 * settings.fall:g} points", results.where(kind="fallen").rows
    within: dict[Any, float] = {}
    half: dict[Any, float] = {}
    for row in rows:
        # Who never saw it comes last.
        seen = [*row["seen"], *[math.inf] * (row["runs"] - len(row["seen"]))]
        within[row["accuracy"]] = sum(one <= LAST for one in seen) / row["runs"]
        half[row["accuracy"]] = float(np.median(seen))
    rare = min(within.values(), default=math.nan)
    slowest = {row["accuracy"]: max(row["seen"], default=math.inf) for row in rows}
    return [
        ours(
            "Where nothing changes, at most one label in a million raises an alarm.",
            "alarms over labels",
            alarms / labels if labels else math.nan,
            "at most 1e-6 per label",
            f"{alarms} among {labels:,} labels of accuracies that stay: {accuracies}",
            **_poisson(alarms, labels),
        ),
        ours(
            f"A fall of {fall} raises one among the {LAST:,} labels that a mean is looked at over.",
            "least share of runs in which it does",
            rare,
            "at least 95 %",
            f"slowest of each: {_each(slowest)}; {sum(row['early'] for row in rows)} before the "
            f"fall",
            **_wilson(rare, rows[0]["runs"] if rows else 0),
        ),
        ours(
            "Half of them come within half of these.",
            f"largest median of labels from a fall of {fall} to its alarm",
            largest(list(half.values())),
            "at most 1000 labels",
            _each(half),
        ),
    ]


def _each(labels: Mapping[float, float]) -> str:
    return ", ".join(f"{one:,.0f} from {accuracy:g}" for accuracy, one in labels.items())


def _recovery(settings: DriftSettings, results: Results) -> list[Claim]:
    site = results.where(kind="followed")
    margin = {
        way: {policy: site.value("margin", way=way, policy=policy) for policy in settings.policies}
        for way in _WAYS
    }
    made = []
    for way, said in (("measured, alarm", "with the alarm"), ("measured", "without it")):
        rows = site.where(way=way).rows
        back = [row["margin"] >= 0.0 for row in rows]
        share = sum(back) / len(back) if back else math.nan
        alarms_s = [row["alarm_s"] for row in rows if row["alarm_s"] >= 0.0]
        alarm = f"; alarm after {np.mean(alarms_s):.0f} s in the mean" if alarms_s else ""
        made += [
            ours(
                f"By what is measured, {said}, the mean of the last {LAST:,} labels is at the "
                f"target again.",
                "least mean over runs of it less target less half-width",
                -largest([-one for one in margin[way].values()]),
                "at least 0 %",
                f"{percents(margin[way], '+.2f')}{alarm}",
            ),
            ours(
                f"So it is in nine of ten runs or more, {said}.",
                "share of the runs of all policies",
                share,
                "at least 90 %",
                f"{sum(back)} of {len(back)}",
                **_wilson(share, len(back)),
            ),
        ]
    rows = site.where(way="profile").rows
    made.append(
        ours(
            "By profiles it is not.",
            "largest mean over runs of it less target less half-width",
            largest(list(margin["profile"].values())),
            "at most 0 %",
            f"{percents(margin['profile'], '+.2f')}; in "
            f"{sum(row['margin'] >= 0.0 for row in rows)} of {len(rows)} runs it is",
        )
    )
    return made


def _claims(settings: DriftSettings, results: Results) -> list[Claim]:
    intervals = [_coverage(settings, results, name) for name in _INTERVALS]
    joined = _joined(settings, results)
    return [*intervals, *joined, *_alarms(settings, results), *_recovery(settings, results)]


STUDY = Study(
    name="drift",
    source="ours",
    shows="What labels say of an accuracy, when an alarm hears of a fall, and who follows it.",
    scales=scales(
        DriftSettings(),
        smoke={"runs": 10, "counts": 2, "labels": 200, "quiet": 50_000, "falls": 10, "trials": 1},
        quick={
            "runs": 1_000,
            "counts": 100,
            "labels": 500,
            "quiet": 10_000_000,
            "falls": 300,
            "trials": 20,
        },
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        "Answers are right by independent draws, and labels and comparisons are at random.",
        f"The better model is right in {100 * _RIGHT:g} % of the answers, whatever they are, and "
        f"gives the same wrong answer in {100 * _SAME:g} %.",
        "On the site, at target 0.9, the most accurate of three variants (0.82, 0.93 and 0.95) "
        "falls after a fifth of the run; the requests come at 100/s.",
        "The half-width is of a 95 % interval, so that a mean that is just at the target is below "
        "it less the half-width in one run of forty.",
    ),
    code=(
        *("site", "dispatch", "twin", "workload", "deployment"),
        *("profiling/confidence_sequence.py", "profiling/prediction_powered.py"),
        "profiling/intervals.py",
    ),
)
