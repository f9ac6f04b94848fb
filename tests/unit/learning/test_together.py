"""Sites of several tasks that one policy decides for: what is seen, counted and gone on with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import two

import inferway
from inferway.learning.control import Control
from inferway.learning.deployed import control_of, differences, setting, trained_for
from inferway.learning.site import PhaseTally, evaluate, joint_sites_of, parts_of, sites_of
from inferway.learning.together import JointSites


def actions(steps: int, count: int, seed: int = 1) -> np.ndarray:
    """(T, E, 8) routing of both tasks' four servers."""
    return np.random.default_rng(seed).random((steps, count, 8)) + 0.01


@pytest.mark.parametrize("late", ["serve", "drop"])
def test_tasks_with_servers_of_their_own_run_as_each_alone(late: Any) -> None:
    control = two.control(late=late)
    assert control.tasks == ("a", "b")
    both = joint_sites_of(control, count=3, seed=4)
    assert isinstance(both, JointSites)
    first = sites_of(control.parts[0], count=3, seed=4)
    for action in actions(20, 3):
        rewards = both.step(action).copy()
        first.step(action[:, :4])
        np.testing.assert_array_equal(
            both.observation[:, : first.observation.shape[1]], first.observation
        )
        np.testing.assert_allclose(rewards, sum(part.rewards for part in both.parts))
        np.testing.assert_array_equal(both.parts[0].rewards, first.rewards)
        assert both.arrivals.tolist() == sum(part.arrivals for part in both.parts).tolist()
    assert both.observation.shape[1] == control.features == control.about().inputs
    # Their workloads are drawn apart.
    assert both.parts[0].arrivals.tolist() != both.parts[1].arrivals.tolist()


def test_on_shared_cores_the_load_of_one_keeps_the_other_waiting() -> None:
    """Task a is asked for the same, and is late more often where b sends all to its slow model."""
    control = two.control(shared=True)
    assert all(part.by_events for part in control.parts)
    late = []
    for server in (4, 6):
        sites = joint_sites_of(control, count=4, seed=2)
        routing = np.full((4, 8), 1e-9)
        routing[:, [0, 1, server, server + 1]] = 1.0
        for _ in range(60):
            sites.step(routing)
        tally = PhaseTally.of(parts_of(sites)[0])
        late.append((int(tally.arrived.sum()), float(tally.violations.max())))
    assert late[0][0] == late[1][0]
    assert late[1][1] > late[0][1] + 0.02


@pytest.mark.parametrize("shared", [False, True])
def test_a_state_is_gone_on_with_to_the_last_digit(shared: bool) -> None:
    control = two.control(shared=shared, late="drop")
    every, half = actions(16, 2), 8
    whole = joint_sites_of(control, count=2, seed=5)
    for action in every[:half]:
        whole.step(action)
    state = whole.state()
    again = joint_sites_of(control, count=2, seed=77)
    again.restore(state)
    for action in every[half:]:
        np.testing.assert_array_equal(whole.step(action), again.step(action))
        np.testing.assert_array_equal(whole.observation, again.observation)
    before, after = PhaseTally.of(whole), PhaseTally.of(again)
    assert before.sent.tolist() == after.sent.tolist()
    with pytest.raises(ValueError, match="this state is not one of 2 such sites"):
        again.restore({})


def test_a_run_begins_anew() -> None:
    control = two.control(shared=True)
    sites = joint_sites_of(control, count=2, seed=5)
    first = [sites.step(action).copy() for action in actions(6, 2)]
    sites.restart(5)
    again = [sites.step(action).copy() for action in actions(6, 2)]
    np.testing.assert_array_equal(first, again)


def test_the_tally_of_both_has_that_of_each() -> None:
    control = two.control()
    even = np.full((2, 8), 1.0)

    def decide(observation: Any) -> tuple[np.ndarray, None]:
        return even[: len(observation)], None

    both = evaluate(decide, control, slots=40, sites=2, seed=3)
    alone = evaluate(
        lambda seen: (even[: len(seen), :4], None), control.parts[0], slots=40, sites=2, seed=3
    )
    assert both.goodput[:2] == pytest.approx(alone.goodput, rel=1e-12)
    assert both.heavy[:2].tolist() == alone.heavy.tolist()
    assert len(both.goodput) == 4
    assert both.timely[:2, 2:].sum() == both.timely[2:, :2].sum() == 0
    assert both.heavy[2:] == pytest.approx(0.5, abs=0.1)


def test_what_is_trained_for_whom() -> None:
    deployment = inferway.load(two.file())
    assert trained_for(deployment) == ("a", "b")
    assert trained_for(deployment, "b") == ("b",)
    assert control_of(deployment, "b").others == ()
    with pytest.raises(ValueError, match="one policy schedules a and b; write them into"):
        control_of(deployment, accuracies={"light": 0.7, "heavy": 0.8})
    sentences = differences(deployment, control_of(deployment), "a", "rl-fo")
    assert [one.partition(":")[0] for one in sentences] == ["a", "b"]


def test_a_policy_for_several_has_the_names_of_all() -> None:
    assert [part.task for part in two.control().about().parts] == ["a", "b"]
    assert [part.task for part in two.control().about("a").parts] == ["a", "b"]


def test_parts_are_of_one_kind() -> None:
    control = two.control()
    first, other = control.parts
    with pytest.raises(ValueError, match="tasks of one policy have slots of one length, it sees"):
        replace(first, others=(replace(other, slot_s=2.0),))
    about = control.about("a")
    assert [one.task for one in about.parts] == ["a", "b"]
    assert [one.deadline_s for one in about.parts] == [0.3, 0.2]


def test_an_environment_is_of_one_task(tmp_path: Any) -> None:
    import json

    path = tmp_path / "two.yaml"
    path.write_text(json.dumps(two.file()))
    with pytest.raises(ValueError, match="an environment is of one task; name one of a, b"):
        setting(path)
    made: Control = setting(path, task="b")
    assert made.deadline_s == 0.2
