"""Accuracies by labels, and a dispatcher that follows them, recorded and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.dispatch import Dispatcher
from inferway.dispatch.measured import ENOUGH, LabeledAccuracy
from inferway.dispatch.recording import ACCURACY, EVENT, Recording
from inferway.dispatch.replay import events, replay
from inferway.profiling.prediction_powered import KEPT, AnswerComparison
from inferway.site import Fleet
from inferway.site.confidence import corrected, difficulty_tables

_PLAIN = np.array([0.6, 0.8, 0.9])
FLEET = Fleet(
    ("a", "b", "c"),
    np.array([10.0, 5.0, 1.0]),
    _PLAIN,
    np.array([1, 1, 2]),
    buffer=20,
    confidence=difficulty_tables(_PLAIN, 0.8, 0.8),
)
FALLEN = np.array([0.6, 0.82, 0.7])
_RATIO = st.floats(0.0, 1.0)


@given(st.lists(_RATIO, min_size=1, max_size=9), _RATIO)
def test_a_correction_moves_the_mean_to_the_accuracy_and_stays_in_0_to_1(
    bins: list[float], after: float
) -> None:
    before = float(np.mean(bins))
    moved = corrected(np.array(bins), before, after)
    assert ((moved >= -1e-12) & (moved <= 1.0 + 1e-12)).all()
    if 0.0 < before < 1.0:
        assert moved.mean() == pytest.approx(after)


def test_tables_are_corrected_by_who_answers() -> None:
    tables = FLEET.confidence
    assert tables is not None
    moved = tables.corrected(FLEET.accuracy, FALLEN)
    # Whoever was asked first, the mean of each class's answers is what is measured of it.
    means = np.einsum("ib,ibj->ij", moved.mass, moved.expected)
    assert means == pytest.approx(np.broadcast_to(FALLEN, (3, 3)), abs=1e-3)


def test_the_balance_and_the_choice_follow() -> None:
    dispatcher = Dispatcher(FLEET, "tad", target=0.75)
    assert dispatcher.arrive(0.0, 1, classes=0b100) in (2, 3)
    assert dispatcher.balance == pytest.approx(0.15)
    dispatcher.correct(FALLEN)
    assert dispatcher.arrive(0.0, 1, classes=0b100) in (2, 3)
    assert dispatcher.balance == pytest.approx(0.15 - 0.05)
    # A floor is one of what is measured.
    assert dispatcher.arrive(0.0, 1, floor=0.85) < 0
    assert dispatcher.fleet.accuracy.tolist() == _PLAIN.tolist()


def test_escalate_goes_by_the_tables_that_it_would_have_been_built_with() -> None:
    dispatcher = Dispatcher(FLEET, "escalate", target=0.75)
    dispatcher.correct(FALLEN)
    tables = FLEET.confidence
    assert tables is not None
    anew = replace(FLEET, accuracy=FALLEN, confidence=tables.corrected(_PLAIN, FALLEN))
    built = Dispatcher(anew, "escalate", target=0.75)
    np.testing.assert_array_equal(dispatcher.site.bin_accuracy, built.site.bin_accuracy)
    for name in ("best", "own", "most_gain", "gains", "mass", "gained"):
        np.testing.assert_array_equal(
            getattr(dispatcher.policy, name), getattr(built.policy, name), err_msg=name
        )
    dispatcher.correct(_PLAIN)
    before = Dispatcher(FLEET, "escalate", target=0.75)
    np.testing.assert_allclose(dispatcher.policy.gains, before.policy.gains)


@pytest.mark.parametrize("wrong", [[0.5, 0.5], [0.5, 0.5, 1.5], [0.5, 0.5, np.nan]])
def test_what_is_no_accuracy_is_refused(wrong: list[float]) -> None:
    dispatcher = Dispatcher(FLEET, "priced", target=0.75)
    with pytest.raises(ValueError, match="accuracies"):
        dispatcher.correct(np.array(wrong))
    assert dispatcher.site.accuracy.tolist() == _PLAIN.tolist()


@pytest.mark.parametrize("policy", ["priced", "tad", "escalate"])
@pytest.mark.parametrize("rows", [1_000_000, 300])
def test_what_is_measured_is_part_of_what_is_recorded(
    tmp_path: Path, policy: str, rows: int
) -> None:
    dispatcher = Dispatcher(FLEET, policy, target=0.75, rate_per_s=8.0)
    recording = Recording(dispatcher, tmp_path / "run", rows=rows, keep=50)
    generator = np.random.default_rng(3)
    for step in range(1_000):
        now = step / 6
        recording.arrive(now, int(generator.integers(-(2**63), 2**63)))
        for server in np.flatnonzero(recording.site.queue).tolist():
            if generator.random() < 0.5:
                if policy == "escalate":
                    k = recording.site.server_class[server]
                    credit = recording.site.accuracy[k].item()
                    recording.settle(server, now, step, generator.random(1), credit)
                recording.finish(server, now, 0.1)
        if step % 100 == 0:
            recording.correct(_PLAIN if step < 450 else FALLEN + generator.normal(0, 0.01, 3))
    recording.close()
    written = np.concatenate([one for _, one in events(tmp_path / "run")])
    assert np.count_nonzero(written["kind"] == ACCURACY) >= 3 * 3
    found = replay(tmp_path / "run", requests=None)
    assert (found.differences, found.losses) == ((), ())
    # It is what the decisions hang on.
    for file in (tmp_path / "run").glob("*.events"):
        changed = np.fromfile(file, EVENT)
        changed["value"][changed["kind"] == ACCURACY] = 0.75
        changed.tofile(file)
    assert replay(tmp_path / "run", requests=None).differences != ()


def labeled(
    labels: int, true: float, expected: float, *, profile: float | None = None
) -> LabeledAccuracy:
    measured = LabeledAccuracy(expected if profile is None else profile)
    random = np.random.default_rng(1)
    for right in (random.random(labels) < true).tolist():
        measured.add(float(right), expected)
    return measured


def test_the_profile_counts_until_labels_speak_against_it() -> None:
    assert LabeledAccuracy(0.9).accuracy(0.9) == 0.9
    assert labeled(200, 0.9, 0.9).accuracy(0.9) == 0.9
    worse, better = (labeled(200, true, 0.8).accuracy(0.8) for true in (0.5, 0.97))
    # A lower limit either way.
    assert 0.3 < worse < 0.5
    assert 0.8 < better < 0.97


def test_with_enough_labels_their_mean_counts_and_the_latest_most() -> None:
    measured = labeled(ENOUGH, 0.7, 0.9)
    assert measured.accuracy(0.9) == pytest.approx(measured.right)
    measured = labeled(20_000, 0.9, 0.9)
    random = np.random.default_rng(2)
    for right in (random.random(5_000) < 0.8).tolist():
        measured.add(float(right), 0.9)
    assert measured.accuracy(0.9) == pytest.approx(0.8, abs=0.03)


def test_answers_that_were_chosen_by_their_confidence_say_as_much_as_others() -> None:
    # Of a variant that is right of 80 % and fell to 72 %, only sure answers, of 95 %, were sent.
    measured = labeled(20_000, 0.95 * 0.9, 0.95, profile=0.8)
    assert measured.accuracy(0.8) == pytest.approx(0.72, abs=0.02)


@pytest.mark.parametrize("labels", [0, 200, 2_000])
def test_a_profile_that_is_measured_anew_is_not_corrected_by_what_it_says_already(
    labels: int,
) -> None:
    measured = labeled(labels, 0.5, 0.8)
    anew = measured.accuracy(0.5)
    assert anew == pytest.approx(0.5, abs=0.03)
    # Labels speak against the old profile, and nothing else does.
    assert measured.accuracy(0.8) == (pytest.approx(0.4, abs=0.13) if labels else 0.8)


@pytest.mark.parametrize("labels", [100, ENOUGH + 100])
def test_it_goes_on_from_what_is_written_down(labels: int) -> None:
    measured = labeled(labels, 0.6, 0.9)
    again = LabeledAccuracy.unpack(measured.pack())
    assert again.accuracy(0.9) == measured.accuracy(0.9)
    for one in (measured, again):
        one.add(1.0, 0.9)
    assert again.accuracy(0.9) == measured.accuracy(0.9)


RIGHT = 0.85


def shadowed(
    seed: int, labels: int, *, share: float, use: bool = True
) -> tuple[LabeledAccuracy, LabeledAccuracy, bool]:
    """Join a run whose profile is right, with 20 answers a label, of which a share is compared.

    Returns what counts with comparisons, and by labels alone, and whether the former's interval
    ever left the accuracy out. A fifth of the requests are hard; the reference is right in 97 of
    100, and without `use` it agrees with anything as often.
    """
    random = np.random.default_rng(seed)
    both, alone, wrong = LabeledAccuracy(RIGHT), LabeledAccuracy(RIGHT), False
    while alone.labels < labels:
        hard, right, better, other, compared, kept, label = random.random(7)
        expected = 0.4 if hard < 0.2 else 0.9625
        score = float(right < expected)
        agrees = better < 0.97 if score else better >= 0.97 and other < 0.3
        comparison = None
        if compared < share:
            comparison = AnswerComparison(
                "best", float(agrees if use else other < 0.3), share, bool(kept < KEPT)
            )
            both.compare(comparison)
        if label < 0.05:
            both.add(score, RIGHT, comparison)
            alone.add(score, RIGHT)
            low, high = both.interval
            wrong |= not low <= RIGHT <= high
    return both, alone, wrong


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_with_comparisons_the_interval_holds_at_every_step_in_95_of_100_runs(share: float) -> None:
    runs = 60
    assert sum(shadowed(seed, 300, share=share)[2] for seed in range(runs)) <= 0.05 * runs


def test_with_comparisons_what_counts_is_nearer_than_by_labels_alone() -> None:
    labels = ENOUGH + 100
    found = [shadowed(seed, labels, share=1.0) for seed in range(25)]
    both, alone = (np.array([run[at].accuracy(RIGHT) for run in found]) for at in (0, 1))
    errors = [np.sqrt(np.mean((one - RIGHT) ** 2)) for one in (both, alone)]
    assert errors[0] < 0.75 * errors[1]
    assert abs(both.mean() - RIGHT) < 4 * both.std() / np.sqrt(len(found))


def test_with_comparisons_the_limit_of_few_labels_is_nearer_and_a_fall_believed_as_soon() -> None:
    """Of a variant that its profile says is right of 95 %, and that is of 85 %."""
    believed, widths = [], []
    for seed in range(12):
        random, first = np.random.default_rng(seed), [ENOUGH, ENOUGH]
        both, alone = LabeledAccuracy(0.95), LabeledAccuracy(0.95)
        while both.labels < ENOUGH - 1:
            right, label, kept = random.random(3)
            score = float(right < RIGHT)
            comparison = AnswerComparison("best", score, 1.0, bool(kept < KEPT))
            both.compare(comparison)
            if label < 0.05:
                both.add(score, 0.95, comparison)
                alone.add(score, 0.95)
                for at, one in enumerate((both, alone)):
                    if one.labels < first[at] and one.accuracy(0.95) < 0.95:
                        first[at] = one.labels
        believed.append(first)
        widths.append([np.subtract(*one.interval) for one in (both, alone)])
    joint, labels = np.mean(believed, axis=0)
    assert joint < 1.15 * labels < 0.5 * ENOUGH
    joint, labels = np.abs(np.mean(widths, axis=0))
    assert joint < 0.95 * labels


def test_a_reference_that_says_nothing_changes_next_to_nothing() -> None:
    found = [shadowed(seed, ENOUGH + 100, share=1.0, use=False) for seed in range(10)]
    apart = [abs(both.accuracy(RIGHT) - alone.accuracy(RIGHT)) for both, alone, _ in found]
    assert np.mean(apart) < 0.004


@pytest.mark.parametrize("labels", [100, ENOUGH + 100, 1_500])
def test_comparisons_go_on_from_what_is_written_down(labels: int) -> None:
    both, alone, _ = shadowed(1, labels, share=0.5)
    again = LabeledAccuracy.unpack(both.pack())
    comparison = AnswerComparison("best", 1.0, 0.5, True)
    for one in (both, again):
        one.compare(comparison)
        one.add(1.0, RIGHT, comparison)
    assert again.pack() == both.pack()
    assert again.accuracy(0.99) == both.accuracy(0.99) != alone.accuracy(0.99)


def test_with_another_reference_comparisons_begin_anew_and_labels_stay() -> None:
    both, alone, _ = shadowed(1, ENOUGH + 100, share=0.5)
    assert both.accuracy(RIGHT) != alone.accuracy(RIGHT)
    both.compare(AnswerComparison("another", 1.0, 0.5, True))
    # One of what it is compared with no more is a label like others.
    both.add(1.0, RIGHT, AnswerComparison("best", 1.0, 0.5, True))
    alone.add(1.0, RIGHT)
    assert both.accuracy(RIGHT) == alone.accuracy(RIGHT)


def test_labels_of_a_state_without_comparisons_stay() -> None:
    state = msgspec.msgpack.encode((0.9, ENOUGH, 0.8, 0.9, b""))
    assert LabeledAccuracy.unpack(state).accuracy(0.9) == pytest.approx(0.8)
