"""Drift alarms: none while an accuracy stays, one when it falls, over restarts as well."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("river.drift", reason="alarms need river: pip install 'inferway[drift]'")

from inferway.dispatch.drift_alarm import KEPT, DriftAlarm, DriftWatch


def alarms_of(watch: DriftWatch, scores: np.ndarray, expected: float | None) -> list[DriftAlarm]:
    told = (watch.add(float(one), expected, 7.0, k) for k, one in enumerate(scores, 1))
    return [alarm for alarm in told if alarm is not None]


@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.95, 0.99])
def test_an_accuracy_that_stays_raises_no_alarm_and_one_that_falls_does(accuracy: float) -> None:
    random, watch = np.random.default_rng(1), DriftWatch(accuracy)
    assert alarms_of(watch, random.random(100_000) < accuracy, accuracy) == []
    (alarm,) = alarms_of(watch, random.random(1_000) < accuracy - 0.1, accuracy)
    assert alarm.before == pytest.approx(accuracy, abs=0.04)
    assert alarm.after == pytest.approx(accuracy - 0.1, abs=0.1)
    assert (watch.alarms, watch.last, alarm.fell) == (1, alarm, True)
    anew = watch.relabeled(accuracy)
    assert anew.right == pytest.approx(alarm.after, abs=1e-9)
    assert 0 < anew.labels < alarm.labels + 100


def test_who_answers_other_requests_than_before_has_not_drifted() -> None:
    random, watch = np.random.default_rng(2), DriftWatch(0.9)
    for hard in (0.95, 0.7):  # what the profile expects of the answers falls, and so they do
        assert alarms_of(watch, random.random(4_000) < hard, hard) == []
    # Without a profile nothing is expected: there it looks the same as a fall.
    blind = DriftWatch(0.0)
    found = [alarms_of(blind, random.random(4_000) < hard, None) for hard in (0.95, 0.7)]
    assert [len(one) for one in found] == [0, 1]
    assert found[1][0].after == pytest.approx(0.7, abs=0.15)


def test_a_rise_is_told_as_well() -> None:
    random, watch = np.random.default_rng(3), DriftWatch(0.8)
    assert alarms_of(watch, random.random(3_000) < 0.7, 0.8) == []
    (alarm,) = alarms_of(watch, random.random(3_000) < 0.95, 0.8)
    assert not alarm.fell


def test_a_restart_goes_on_with_the_labels_before_it() -> None:
    random, before = np.random.default_rng(4), DriftWatch(0.95)
    alarms_of(before, random.random(3 * KEPT) < 0.95, 0.95)
    after = DriftWatch.unpack(before.pack())
    fallen = random.random(800) < 0.8
    # A watch that had forgotten would have nothing to compare with.
    assert len(alarms_of(after, fallen, 0.95)) == 1
    assert alarms_of(DriftWatch(0.95), fallen, 0.95) == []
    again = DriftWatch.unpack(after.pack())
    assert (again.alarms, again.last) == (1, after.last)


def test_a_watch_begun_anew_keeps_its_alarms_and_no_label() -> None:
    random, blind = np.random.default_rng(5), DriftWatch(0.0)
    alarms_of(blind, random.random(2_000) < 0.9, None)
    assert len(alarms_of(blind, random.random(2_000) < 0.5, None)) == 1
    anew = blind.anew(0.5)
    assert (anew.profile, anew.alarms, anew.last) == (0.5, 1, blind.last)
    assert alarms_of(anew, random.random(2_000) < 0.5, 0.5) == []
    (alarm,) = alarms_of(anew, random.random(1_000) < 0.2, 0.5)
    assert anew.relabeled(0.5).expected == pytest.approx(0.5)
    assert alarm.before == pytest.approx(0.5, abs=0.05)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected|truncated"):
        DriftWatch.unpack(b"\x94\x00")
