"""Drift: a variant's true accuracy changes, a share of the answers is labeled, and who follows.

The twin knows accuracies as profiles say them. Here the true ones are others from a set time on,
and answers are right by these. A share of them is labeled, at random, and where the promise is on
what is measured, the policy goes by `inferway.dispatch.measured` as a live server's does, from the
labels of about a second, or of some twenty where these take longer to come.

With shadows, a share of the answers is compared with the most accurate variant's as well, where a
server of that is idle when they are looked at. How far two variants are right at the same requests
no file says. Here it is as it helps little: of two variants the less accurate one is right nowhere
where the other is wrong, and wrong answers of both are the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from inferway.deployment.tasks import Drift
from inferway.dispatch.drift_alarm import DriftWatch
from inferway.dispatch.joint import TargetState
from inferway.dispatch.measured import (
    EXPLORED,
    Exploration,
    LabeledAccuracy,
    by_profile,
    correct,
)
from inferway.profiling.prediction_powered import KEPT, AnswerComparison
from inferway.site.confidence import corrected
from inferway.site.fleet import Fleet
from inferway.site.view import Floats
from inferway.twin.kernel.escalation import SecondAnswers
from inferway.twin.result import DriftResult

LAST: Final = 2000  # Labels whose mean is told at the end
_TOGETHER: Final = 20  # Labels that come together, about, but not sooner than a live server counts
_SOONEST_S: Final = 1.0


@dataclass
class Labels:
    """Truth of one replication's answers, before the drift and after it."""

    answers: Floats  # (2,) before and after
    right: Floats  # (2,) sums of true accuracies
    scores: list[float]  # Of the last `LAST` labels
    count: int = 0  # Labels
    compared: int = 0  # Answers that a shadow was run of
    # Drift alarms: when, s from the beginning, and of which variant.
    alarms: list[tuple[float, str]] = field(default_factory=list)


class Labeling:
    """Labels an engine's answers, and lets its policy follow them where the promise does.

    Parameters
    ----------
    engine
        At its beginning.
    fleet, drift
        Its own.
    measured
        Whether the promise is on what is measured.
    rate_per_s
        Mean arrival rate, 1/s.
    seed
        Of the labels.
    shadow
        Share of the answers of other variants that are compared with the most accurate one's.

    Attributes
    ----------
    every_s
        How often `look` is due, s.
    counted, right
        Sums over all answers so far: of the accuracies that counted, and of the true ones.
    """

    def __init__(
        self,
        engine: Any,
        fleet: Fleet,
        drift: Drift,
        *,
        measured: bool,
        rate_per_s: float,
        seed: tuple[int, int],
        shadow: float = 0.0,
    ) -> None:
        self._engine, self._fleet, self._drift, self._measured = engine, fleet, drift, measured
        self._random = np.random.default_rng(seed)
        self._shadow, self._beside = shadow, np.random.default_rng((*seed, 1))
        told = engine.scenario.targets
        labels_per_s = max(drift.labels * rate_per_s, 1e-9)
        self.every_s = max(_SOONEST_S, _TOGETHER / labels_per_s)
        true = fleet.accuracy.copy()
        names = fleet.names  # a variant has a class for each device that copies of it run on
        true[[name == drift.variant for name in names]] += drift.accuracy
        self._true = np.clip(true, 0.0, 1.0)
        profiles = dict(zip(names, fleet.accuracy.tolist(), strict=True))
        grades = np.where(fleet.graded, fleet.accuracy, -1.0)
        self._best = [k for k, name in enumerate(names) if name == names[int(grades.argmax())]]
        labeled = {name: LabeledAccuracy(profile) for name, profile in profiles.items()}
        self._labeled = [labeled[name] for name in names]
        self._watches = (
            {name: DriftWatch(profile) for name, profile in profiles.items()} if drift.alarm else {}
        )
        self._labels_of = dict.fromkeys(profiles, 0)
        self._exploration = Exploration()
        self._targets = [
            TargetState(one, row)
            for one, row in zip(told, engine.policy.shared if told else (), strict=True)
            if fleet.task in one["tasks"]
        ]
        # How often `explore` is due, s; never where nothing follows labels.
        self.explore_s = EXPLORED / rate_per_s if measured else None
        self._scores = deque[float](maxlen=LAST)
        self.labels = Labels(np.zeros(2), np.zeros(2), [])
        self._tally, self._seen_s = None, 0.0
        self._answered, self._earned = np.zeros((2, len(fleet.variants)))
        self.counted = self.right = 0.0

    def look(self) -> None:
        """Look at the answers since the last time."""
        engine, fleet = self._engine, self._fleet
        if engine.tally is not self._tally:  # what was counted is forgotten
            self._tally = engine.tally
            self._answered, self._earned = np.zeros((2, len(fleet.variants)))
        so_far, site = engine.tally.answered.sum(axis=0).astype(np.float64), engine.site
        answered, self._answered = so_far - self._answered, so_far
        if isinstance(engine.again, SecondAnswers):
            sums = engine.again.earned.sum(axis=0)
            earned, self._earned = sums - self._earned, sums
        else:
            earned = answered * site.accuracy
        from_s, self._seen_s = self._seen_s, engine.now_s
        if not answered.any():
            return
        # What the profile expected of these answers, and how right they are.
        expected = np.array(
            [
                by_profile(total / count, profile, now) if count else profile
                for total, count, profile, now in zip(
                    earned.tolist(),
                    answered.tolist(),
                    fleet.accuracy.tolist(),
                    site.accuracy.tolist(),
                    strict=True,
                )
            ]
        )
        right = np.clip(corrected(expected, fleet.accuracy, self._true), 0.0, 1.0)
        took_s = max(self._seen_s - from_s, 1e-300)
        fallen = min(max((self._seen_s - self._drift.at_s) / took_s, 0.0), 1.0)
        mean = (1.0 - fallen) * expected + fallen * right
        parts = np.array([1.0 - fallen, fallen])
        self.labels.answers += parts * answered.sum()
        self.labels.right += parts * np.array([answered @ expected, answered @ right])
        self.counted += float(earned.sum())
        self.right += float(answered @ mean)
        self._label(answered, np.clip(mean, 0.0, 1.0), expected)

    def _watch(self, name: str, score: float, expected: float) -> None:
        """Have a label looked at for drift, as a live server has; what counts begins anew then."""
        watch = self._watches.get(name)
        if watch is None:
            return
        self._labels_of[name] += 1
        if watch.add(score, expected, self._seen_s, self._labels_of[name]) is None:
            return
        self.labels.alarms.append((self._seen_s, name))
        classes = [k for k, one in enumerate(self._fleet.names) if one == name]
        anew = watch.relabeled(self._labeled[classes[0]].profile)
        for k in classes:
            self._labeled[k] = anew

    def _label(self, answered: Floats, mean: Floats, expected: Floats) -> None:
        """Label a share of answers, which are right as often as this, and let the policy follow."""
        random = self._random
        count = random.binomial(answered.astype(np.int64), self._drift.labels)
        classes = random.permutation(np.repeat(np.arange(len(count)), count))
        scores = (random.random(len(classes)) < mean[classes]).astype(float).tolist()
        compared = self._compare(answered - count, mean, classes.tolist(), scores)
        for k, score, comparison in zip(classes.tolist(), scores, compared, strict=True):
            self._labeled[k].add(score, float(expected[k]), comparison)
            self._watch(self._fleet.names[k], score, float(expected[k]))
            self._scores.append(score)
        self.labels.count += len(classes)
        self.labels.scores = list(self._scores)
        if self._measured and len(classes):
            profiles, graded = self._fleet.accuracy.tolist(), self._fleet.graded.tolist()
            now = [
                one.accuracy(profile) if known else profile
                for one, profile, known in zip(self._labeled, profiles, graded, strict=True)
            ]
            correct(self._engine.site, self._engine.policy, self._fleet, np.array(now))
            self._exploration.follow(self._fleet.accuracy, self._engine.site.accuracy)

    def _compare(
        self, others: Floats, mean: Floats, classes: list[int], scores: list[float]
    ) -> list[AnswerComparison | None]:
        """Compare a share of the answers with the most accurate variant's, while it is idle.

        Parameters
        ----------
        others
            (K,) answers without a label, by class.
        mean
            (K,) how often answers are right.
        classes, scores
            Of each label, the class that answered and how right it was.

        Returns
        -------
        list of AnswerComparison or None
            Of each label, what its answer came to beside the other; None where it was not compared.
        """
        made: list[AnswerComparison | None] = [None] * len(classes)
        idle = any(self._engine.site.idle[k] > 0 for k in self._best)
        if not self._shadow or not idle:
            return made
        random, fleet = self._beside, self._fleet
        best = float(mean[self._best[0]])
        for at, (k, score) in enumerate(zip(classes, scores, strict=True)):
            if self._is_compared(k) and random.random() < self._shadow:
                # Who is the less accurate of both is right nowhere where the other is wrong.
                right = float(mean[k])
                agrees = min(best / right, 1.0) if score else min((1.0 - best) / (1.0 - right), 1.0)
                made[at] = self._compared(k, float(random.random() < agrees))
        for k in range(len(fleet.names)):
            if self._is_compared(k):
                same = 1.0 - abs(best - float(mean[k]))
                for _ in range(random.binomial(int(others[k]), self._shadow)):
                    self._compared(k, float(random.random() < same))
        return made

    def _is_compared(self, k: int) -> bool:
        return k not in self._best and bool(self._fleet.graded[k])

    def _compared(self, k: int, agrees: float) -> AnswerComparison:
        kept = bool(self._beside.random() < KEPT)
        name = self._fleet.names[self._best[0]]
        comparison = AnswerComparison(name, agrees, self._shadow, kept)
        self._labeled[k].compare(comparison)
        self.labels.compared += 1
        return comparison

    def explored(self) -> int:
        """Choose the class, ruled out by labels, that the next request is to go to; -1 for none."""
        engine = self._engine
        k = self._exploration.choose(engine.site, targets=self._targets)
        late_s, rate = engine.scenario.deadline_s, self._fleet.rate
        # Who would be late is not asked.
        if k < 0 or (late_s is not None and 1.0 / rate[k] > late_s):
            return -1
        return int(k)


def drifted(drift: Drift, measured: bool, found: list[Labels]) -> DriftResult:
    """Put replications together."""
    answers, right = (
        np.sum([getattr(one, name) for one in found], 0) for name in ("answers", "right")
    )
    scores = np.array([score for one in found for score in one.scores])
    with np.errstate(invalid="ignore"):
        before, after = (right / answers).tolist()
    many = len(scores) > 1
    seen_s = [
        next(
            (at_s for at_s, name in one.alarms if at_s >= drift.at_s and name == drift.variant),
            None,
        )
        for one in found
    ]
    alarms_s = [at_s - drift.at_s for at_s in seen_s if at_s is not None]
    return DriftResult(
        variant=drift.variant,
        at_s=drift.at_s,
        by="measured" if measured else "profile",
        before=before,
        after=after,
        labels=sum(one.count for one in found),
        compared=sum(one.compared for one in found),
        last_labels=len(scores),
        last_mean=float(scores.mean()) if len(scores) else float("nan"),
        half_width=float(1.96 * scores.std(ddof=1) / np.sqrt(len(scores)))
        if many
        else float("nan"),
        alarms=len(alarms_s),
        false_alarms=sum(at_s < drift.at_s for one in found for at_s, _ in one.alarms),
        alarm_s=sum(alarms_s) / len(alarms_s) if alarms_s else float("nan"),
    )
