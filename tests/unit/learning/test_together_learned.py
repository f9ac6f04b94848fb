"""Actions with a part for each task, and a training over two of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import two
from burst import SMALL

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

import inferway  # noqa: E402
from inferway.learning.density import SoftmaxGaussian  # noqa: E402
from inferway.learning.ppo import Actor, Learner, Potential  # noqa: E402
from inferway.learning.site import joint_sites_of  # noqa: E402
from inferway.learning.training import POLICY, train  # noqa: E402
from inferway.scheduling.neural_policy import read  # noqa: E402
from inferway.scheduling.store import routings_of  # noqa: E402

BRIEF = replace(SMALL, slots=400, slots_per_update=200, sites=4, potential="outcomes", baseline=-1)


def test_each_task_has_a_softmax_and_a_density_of_its_own() -> None:
    control = two.control()
    actor = Actor(control, SMALL, torch.Generator().manual_seed(1))
    assert actor.sizes == [4, 4]
    seen = torch.rand(5, control.features)
    with torch.no_grad():
        heads = actor(seen)
        actions = actor.draw(heads, 0.5, np.random.default_rng(1))
    probabilities, batches = actor.decisions(actions)
    assert batches is None
    np.testing.assert_allclose(probabilities.reshape(5, 2, 4).sum(axis=2), 1.0, rtol=1e-6)
    logs = actor.log_probs(heads, actions, 0.5)
    assert logs.shape == (5, 2)
    for k, f in enumerate(heads):
        own = actions.log_routing[:, 4 * k : 4 * k + 4]
        expected = SoftmaxGaussian(f, 0.5).log_prob_of_log(own, normalized=True)
        torch.testing.assert_close(logs[:, k], expected)


def test_apart_each_part_sees_its_own_site_alone() -> None:
    control = two.control()
    learner = Learner(control, replace(BRIEF, apart=True), 1)
    learner.update()
    actor, size = learner.actor, control.parts[0].features
    seen = torch.rand(3, control.features)
    other = seen.clone()
    other[:, :size] = torch.rand(3, size)
    before, after = actor(seen), actor(other)
    assert (before[0] != after[0]).any()
    assert (before[1] == after[1]).all()
    whole = Learner(control, BRIEF, 1)
    whole.update()
    assert (whole.actor(seen)[1] != whole.actor(other)[1]).any()


def test_what_is_at_both_sites_counts() -> None:
    control = two.control()
    learner = Learner(control, BRIEF, 1)
    sites = joint_sites_of(control, count=4, seed=3)
    for _ in range(5):
        sites.step(np.ones((4, 8)))
    size = control.parts[0].features
    worth = [
        Potential("outcomes", part).of(seen)
        for part, seen in zip(
            control.parts, (sites.observation[:, :size], sites.observation[:, size:]), strict=True
        )
    ]
    assert np.abs(worth).max() > 0
    np.testing.assert_allclose(learner._worth(sites.observation), sum(worth))
    with pytest.raises(ValueError, match="critic_sees_phase is for the training of one task"):
        Learner(control, replace(BRIEF, critic_sees_phase=True), 1)


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_trained_runs_in_the_twin(tmp_path: Path, shared: bool) -> None:
    control = two.control(shared=shared)
    trained = train(control, BRIEF, tmp_path, task="a", tensorboard=False, evaluation_slots=40)
    about = read(tmp_path / POLICY).about
    assert [one.task for one in about.parts] == ["a", "b"]
    assert len(trained.tally.goodput) == 4
    # A training that was cut off goes on to the last digit.
    cut = tmp_path / "cut"
    given: dict[str, Any] = {"task": "a", "tensorboard": False, "evaluation_slots": 40}
    train(control, replace(BRIEF, slots=200), cut, **given)
    train(control, BRIEF, cut, **given)
    whole, parts = (read(folder / POLICY) for folder in (tmp_path, cut))
    for one, other in zip(whole.weights, parts.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    file = two.file(shared=shared, checkpoint=str(tmp_path / POLICY))
    found = inferway.simulate(inferway.load(file), queries=2_000, seed=1)
    assert list(found.tasks) == ["a", "b"]
    assert all(one.queries > 500 for one in found.tasks.values())


def test_a_deployed_policy_acts_as_the_learner_does() -> None:
    control = two.control()
    learner = Learner(control, BRIEF, 2)
    seen = np.random.default_rng(1).random((3, control.features), np.float32)
    expected, _ = learner.actor.deployed(seen)
    from inferway.scheduling.neural_policy import NeuralPolicy

    layers = learner.actor.network.arrays()
    network = NeuralPolicy(
        control.about("a"),
        tuple(weight for weight, _ in layers),
        tuple(bias for _, bias in layers),
        Path("none"),
    )
    for row, vector in zip(expected, seen, strict=True):
        routings = routings_of(network, network.forward(vector))
        acted = np.concatenate([one.probabilities for one in routings])
        np.testing.assert_allclose(acted, row, atol=1e-5)
