from __future__ import annotations

import csv

import numpy as np
import pytest

from inferway.studies import Results
from inferway.studies.scheduling.learning_curves import STUDY, Settings
from inferway.studies.scheduling.other_learners import LEARNERS, decider, trained, trained_name


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_leaves_what_it_came_to_without_noise(tmp_path, learner):
    pytest.importorskip("sb3_contrib")
    given = {"sites": 50, "every": 10_000, "evaluated": 20_000}
    found = trained(learner, 30_000, tmp_path / "it.csv", **given)
    assert found["slots"] == 30_000
    with (tmp_path / "it.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    slots = [int(row["slots"]) for row in rows]
    assert slots[-1] == 30_000
    if learner != "rl-po":  # that learns from all of these slots at once
        assert slots == [10_000, 20_000, 30_000]
    for row in rows:
        assert 0.3 < float(row["goodput"]) < 0.81
        assert 0.0 <= float(row["violations"]) < 0.6


class Remembering:
    """A model that sends all to one server, the next one each time that it is asked."""

    def predict(self, observation, state=None, deterministic=False):
        assert deterministic  # no noise
        place = 0 if state is None else state
        actions = np.zeros((len(observation), 4), np.float32)
        actions[:, place] = 0.5
        return actions, place + 1


def test_what_decides_keeps_its_memory_from_slot_to_slot_and_begins_with_none():
    pytest.importorskip("gymnasium")
    seen = np.zeros((3, 8), np.float32)
    for _ in range(2):
        decide = decider(Remembering())
        for place in range(3):
            weights, rules = decide(seen)
            assert weights.argmax(axis=1).tolist() == [place] * 3
            assert rules is None


def test_another_learner_is_refused(tmp_path):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ValueError, match="expected one of rl-po, ppo, recurrent, ddpg"):
        trained("sarsa", 100, tmp_path / "it.csv", sites=2)


def rows_of(finals):
    """What trainings came to at their ends, by learner."""
    columns = ("goodput", "violations", "goodput_0", "goodput_1", "heavy_0", "heavy_1")
    return [
        {"name": trained_name(learner, seed), "slots": [5e5, 1e6]}
        | {column: [0.1, final] for column in columns}
        for learner, values in finals.items()
        for seed, final in enumerate(values)
    ]


def test_a_learner_fails_only_where_its_seeds_say_so():
    finals = {
        "rl-po": (0.780, 0.781, 0.779),
        "ppo": (0.77, 0.79, 0.78),
        "recurrent": (0.790, 0.791, 0.789),
        "ddpg": (0.70, 0.71, 0.69),
    }
    settings = Settings(names=())
    found = STUDY.claims(settings, Results(rows_of(finals)))
    verdicts = {claim.says: claim.verdict for claim in found}
    assert verdicts["DDPG fails to learn good policies."] == "yes"
    assert verdicts["A recurrent policy does not help."] == "no"
    assert verdicts["Memory by itself does not help."] == "not settled"
    (recurrent,) = [claim for claim in found if claim.says.startswith("A recurrent")]
    assert recurrent.value == pytest.approx(0.01)
    assert "79.00, 79.10, 78.90 % by seed" in recurrent.why
