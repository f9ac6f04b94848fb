from __future__ import annotations

import csv

import pytest

from inferway.studies.scheduling.other_learners import LEARNERS, trained


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_library_s_learner_leaves_a_curve(tmp_path, learner):
    pytest.importorskip("sb3_contrib")
    found = trained(learner, 24_000, tmp_path / "it.csv", sites=40, every=8_000)
    assert found["slots"] >= 24_000
    with (tmp_path / "it.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["slots"]) for row in rows] == [8_000, 16_000, 24_000]
    for row in rows:
        assert 0.3 < float(row["goodput"]) < 0.81
        assert 0.0 <= float(row["violations"]) < 0.6


def test_another_learner_is_refused(tmp_path):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ValueError, match="expected one of ddpg, recurrent"):
        trained("sarsa", 100, tmp_path / "it.csv", sites=2)
