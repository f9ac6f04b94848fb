"""Second answers in the general engine: what of a request is remembered while another is asked.

A world whose policy settles carries `SecondAnswers`; any other carries `SingleAnswer`, and compiled
code has then nothing of all this. Each request is one of N whose confidences and answers are known:
it is drawn when it enters, so that the bins of all classes belong together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inferway.site.compiled import either, jit
from inferway.site.draw import step, unit
from inferway.site.view import Floats, Ints, Site

NOBODY = -1  # In `SecondAnswers.hand`: no answer is in hand


class AnswerSample(NamedTuple):
    """Requests of which it is known how sure each class is, and how right; N of them, K classes.

    Attributes
    ----------
    bins
        (N, K) bin of the confidence of each class, in the fleet's order.
    score
        (N, K) how right its answer is, 0..1; NaN where that is not known.
    """

    bins: Ints
    score: Floats


def sampled(mass: Floats, rows: int = 1 << 14) -> AnswerSample:
    """Requests whose bins have the shares that a profile says, (K, E), apart from each other.

    Of a class without confidence, all are in the first bin, which is not looked at.
    """
    random = np.random.default_rng(0)
    bins = np.zeros((rows, len(mass)), np.int64)
    middles = (np.arange(rows) + 0.5) / rows
    for k, shares in enumerate(mass):
        if shares.sum() > 0.0:
            ends = np.cumsum(shares)[:-1]
            bins[:, k] = random.permutation(np.searchsorted(ends, middles, side="right"))
    return AnswerSample(bins, np.full(bins.shape, np.nan))


class SingleAnswer(NamedTuple):
    """Requests are answered by the server that was asked first."""

    nothing: int


class SecondAnswers(NamedTuple):
    """Requests may be answered by a second server; P phases, K classes, M entries of the pool."""

    bins: np.ndarray  # (N, K) bin of each class's confidence at each of N requests
    # (N, K) how right each class's answer is, 0..1; nan where that is not known, and without any
    # row where none is.
    score: np.ndarray
    # By entry of the pool.
    request: Ints  # (M,) which of the N it is
    # Of the class where it is, as kept with it: to look it up when the answer has come would wait
    # for memory that is far away.
    bin: Ints  # (M,) bin of that one's confidence
    right: Floats  # (M,) score of that one's answer
    hand: Ints  # (M,) server whose answer is in hand, or NOBODY
    worth: Floats  # (M,) expected accuracy of that answer
    credit: Floats  # (M,) expected accuracy that the balance counts
    state: np.ndarray  # (1,) stream of requests
    # (P, K) sums over answers: expected accuracy, of all and of those in time, and score.
    earned: Floats
    in_time: Floats
    scored: Floats
    moved: Ints  # (P, K, K) answers of the second that was asked, by first and second


def empty_again(
    sample: AnswerSample, phases: int, entries: int, state: np.ndarray
) -> SecondAnswers:
    """Nothing is remembered."""
    classes = sample.bins.shape[1]
    score = sample.score[: 0 if np.isnan(sample.score).all() else len(sample.score)]
    whole = bool(((score == 0) | (score == 1)).all())
    return SecondAnswers(
        # Both as small as they can be, as they are looked up at random.
        bins=np.ascontiguousarray(sample.bins, np.uint8 if sample.bins.max() < 256 else np.int16),
        score=np.ascontiguousarray(score, np.uint8 if whole else np.float64),
        request=np.zeros(entries, np.int64),
        bin=np.zeros(entries, np.int64),
        right=np.zeros(entries),
        hand=np.full(entries, NOBODY),
        worth=np.zeros(entries),
        credit=np.zeros(entries),
        state=state,
        earned=np.zeros((phases, classes)),
        in_time=np.zeros((phases, classes)),
        scored=np.zeros((phases, classes)),
        moved=np.zeros((phases, classes, classes), np.int64),
    )


def enlarged(again: SecondAnswers | SingleAnswer) -> SecondAnswers | SingleAnswer:
    """The same with twice the entries."""
    if isinstance(again, SingleAnswer):
        return again
    twice = {
        name: np.concatenate([getattr(again, name), np.zeros_like(getattr(again, name))])
        for name in ("request", "bin", "right", "hand", "worth", "credit")
    }
    return again._replace(**twice)


def forgotten(again: SecondAnswers | SingleAnswer) -> None:
    """Set what was counted to 0."""
    if isinstance(again, SecondAnswers):
        for counts in (again.earned, again.in_time, again.scored, again.moved):
            counts[:] = 0


class InHand(NamedTuple):
    """Memory of a request besides when it came: of `SingleAnswer`, nothing that counts."""

    request: int
    hand: int
    worth: float
    credit: float
    bin: int = 0
    right: float = 0.0


NOTHING = InHand(0, NOBODY, 0.0, 0.0, 0, 0.0)


def _drawn(again: Any) -> int:
    again.state[0] = step(again.state[0])
    return int(unit(again.state[0]) * again.bins.shape[0])


def _score(again: Any, request: int, k: int) -> float:
    return float(again.score[request, k]) if again.score.shape[0] > 0 else np.nan


def _noted(again: Any, entry: int, k: int, second: Any) -> None:
    again.request[entry] = second.request
    if k >= 0:
        again.bin[entry] = again.bins[second.request, k]
        again.right[entry] = score_of(again, second.request, k)
    again.hand[entry] = second.hand
    again.worth[entry] = second.worth
    again.credit[entry] = second.credit


def _remembered(again: Any, entry: int) -> InHand:
    return InHand(
        again.request[entry],
        again.hand[entry],
        again.worth[entry],
        again.credit[entry],
        again.bin[entry],
        again.right[entry],
    )


# ``drawn(again)``: the number of the request that enters.
drawn = either(SecondAnswers, _drawn, lambda again: 0)
# ``score_of(again, request, k)``: how right class k's answer is; nan where that is not known.
score_of = either(SecondAnswers, _score, lambda again, request, k: np.nan)
# ``noted(again, entry, k, second)`` remembers it with an entry of the pool, at a server of class k;
# below 0 at none.
noted = either(SecondAnswers, _noted, lambda again, entry, k, second: None)
# ``remembered(again, entry)``: what was noted with an entry.
remembered = either(SecondAnswers, _remembered, lambda again, entry: NOTHING)


@jit
def expected_of(site: Site, k: int, b: int, expected: Floats) -> bool:
    """Write the (K,) expected accuracies of a request that class k has answered, in bin b.

    False where nothing is known of the answer but its class's accuracy.
    """
    known = site.bin_mass.shape[1] > 0 and site.bin_mass[k, 0] > 0.0
    for j in range(site.rate.size):
        expected[j] = site.bin_accuracy[k, b, j] if known else site.accuracy[j]
    return known


def _counted(
    again: Any, phase: int, first: int, k: int, right: float, earned: float, late: bool
) -> None:
    if phase < 0:
        return
    again.earned[phase, k] += earned
    again.in_time[phase, k] += 0.0 if late else earned
    again.scored[phase, k] += right
    if first >= 0:
        again.moved[phase, first, k] += 1


# ``counted(again, phase, first, k, right, earned, late)`` counts an answer of class k, with its
# score; `first` is the class that was asked before, or below 0.
counted = either(SecondAnswers, _counted, lambda again, phase, first, k, right, earned, late: None)
