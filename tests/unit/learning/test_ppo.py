"""The learner: its likelihoods, what it does with them, and that it goes on where it stood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from burst import SMALL, control

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.learning.ppo import Actions, Actor, DivergenceError, Learner  # noqa: E402
from inferway.learning.settings import Settings  # noqa: E402
from inferway.learning.site import SlottedSites, evaluate  # noqa: E402
from inferway.twin.scenario import Failures  # noqa: E402

KINDS = [
    {},
    {"sees_phase": True},
    {"batches": True},
    {"sees_phase": True, "batches": True},
]


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_to_the_last_digit(kind: dict[str, bool]) -> None:
    settings = replace(SMALL, scale=True, potential="outcomes", baseline=-1.0, symlog=1.0)
    whole = Learner(control(**kind), settings, seed=3)
    first = Learner(control(**kind), settings, seed=3)
    for learner in (whole, first):
        learner.update()
    state = {name: array.copy() for name, array in first.state().items()}
    for _ in range(2):
        whole.update()
    second = Learner(control(**kind), settings, seed=99)
    second.restore(state)
    same(second.state(), state)
    for _ in range(2):
        second.update()
    same(whole.state(), second.state())


def failing(**kind: bool) -> Any:
    """The site with servers that come and go."""
    made = control(**kind)
    failures = {"light": Failures(20.0, 10.0), "heavy": Failures(20.0, 10.0)}
    return replace(made, scenario=replace(made.scenario, failures=failures))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_goes_to_servers_that_are_away(kind: dict[str, bool]) -> None:
    learner = Learner(failing(**kind), SMALL, seed=3)
    for _ in range(30):
        observation = learner.sites.observation.copy()
        away = learner.sites.away != 0
        for decide in (learner.actor.deployed, drawing(learner)):
            probabilities, rules = decide(observation)
            some = ~away.all(axis=1)
            assert (probabilities[away & some[:, None]] == 0).all()
            assert (probabilities[~away] > 0).all()
            np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
        learner.sites.step(probabilities, rules)
    first = learner.update()
    assert np.isfinite([first.kl, first.surrogate, first.value_error]).all()


def drawing(learner: Learner) -> Any:
    def decide(observation: Any) -> Any:
        with torch.no_grad():
            heads = learner.actor(torch.from_numpy(observation))
        return learner.actor.decisions(learner.actor.draw(heads, 0.5, learner.random))

    return decide


def test_training_with_servers_that_come_and_go_goes_on_to_the_last_digit() -> None:
    settings = replace(SMALL, scale=True, potential="outcomes", baseline=-1.0, symlog=1.0)
    whole, first = (Learner(failing(), settings, seed=3) for _ in range(2))
    for learner in (whole, first):
        learner.update()
    second = Learner(failing(), settings, seed=99)
    second.restore({name: array.copy() for name, array in first.state().items()})
    for learner in (whole, second):
        learner.update()
    same(whole.state(), second.state())


def test_seeds_differ() -> None:
    one, other = (Learner(control(), SMALL, seed) for seed in (1, 2))
    assert one.update().reward != other.update().reward
    assert not np.array_equal(*(of.state()["actor.network.layers.0.weight"] for of in (one, other)))


@pytest.mark.parametrize("kind", KINDS)
def test_first_step_starts_from_the_policy_that_collected(kind: dict[str, bool]) -> None:
    """Before any step the importance weights are 1, the surrogate is the mean advantage."""
    settings = replace(SMALL, epochs=1, minibatch=2000, standardize=True)
    first = Learner(control(**kind), settings, seed=5).update()
    assert first.kl == pytest.approx(0, abs=1e-6)
    assert first.clipped == 0
    assert first.surrogate == pytest.approx(0, abs=1e-5)


def test_batch_rules_are_drawn_as_their_logits_say() -> None:
    actor = Actor(control(batches=True), SMALL)
    assert [len(rule) for rule in actor.rules] == [6, 3]
    assert actor.rules[0].tolist() == [[1, 1], [1, 3], [1, 5], [3, 3], [3, 5], [5, 5]]
    outputs = torch.linspace(-1, 2, 13).repeat(20_000, 1)
    f, *rules = outputs.split([4, 6, 3], 1)
    heads = (f, *(torch.log_softmax(logits, 1) for logits in rules))
    drawn = actor.draw(heads, 0.5, np.random.default_rng(1))
    assert isinstance(drawn, Actions)
    for k, log in enumerate(heads[1:]):
        shares = np.bincount(drawn.pairs[:, k], minlength=log.shape[1]) / 20_000
        np.testing.assert_allclose(shares, log[0].exp(), atol=0.015)
    log_probs = actor.log_probs(heads, drawn, 0.5)
    assert log_probs.shape == (20_000, 3)
    torch.testing.assert_close(log_probs[:, 1], heads[1][0, drawn.pairs[:, 0]])
    expected = -sum((log[0].exp() * log[0]).sum() for log in heads[1:])
    torch.testing.assert_close(actor.rule_entropy(heads)[0], expected)
    routing, rules = actor.decisions(actor.best(heads))
    assert rules is not None
    assert rules[0].tolist() == [[5, 5], [3, 3]]
    np.testing.assert_allclose(routing.sum(1), 1.0)


def test_only_the_critic_sees_the_phase_if_told_so() -> None:
    learner = Learner(control(), replace(SMALL, critic_sees_phase=True), seed=1)
    assert learner.actor.network.layers[0].in_features == 132
    assert learner.critic.layers[0].in_features == 134
    assert learner.sites.observation.shape == (20, 134)
    learner.update()


def test_learns_to_spare_the_heavy_servers_in_bursts() -> None:
    """Even routing loses a third of a burst; after 200,000 slots it is less."""
    settings = Settings(
        slots=200_000,
        slots_per_update=10_000,
        sites=100,
        minibatch=2_500,
        learning_rate=2e-3,
        baseline=-1.0,
        potential="outcomes",
        scale=True,
        symlog=1.0,
        standardize=True,
        hidden=(32, 16),
    )
    learner = Learner(control(), settings, seed=1)
    before = evaluate(learner.actor.deployed, control(), slots=50_000, seed=2)
    for _ in range(settings.updates):
        last = learner.update()
    after = evaluate(learner.actor.deployed, control(), slots=50_000, seed=2)
    assert learner.slots == last.slots == 200_000
    assert after.overall_goodput > before.overall_goodput + 0.05
    assert last.explained > 0.5


def test_evaluation_is_the_same_each_time_and_counts_what_was_accepted() -> None:
    def even(seen: Any) -> Any:
        return np.full((len(seen), 4), 0.25), None

    one, other = (evaluate(even, control(), slots=20_000, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.timely, other.timely)
    np.testing.assert_allclose(one.sent.sum(1) + one.rejected, one.arrived)
    assert one.violations.shape == (2,)
    assert 0.4 < one.heavy[1] < 0.6


def test_a_number_that_is_none_ends_the_training() -> None:
    learner = Learner(control(), replace(SMALL, learning_rate=1e30), seed=1)
    with pytest.raises(DivergenceError, match="after 2,000 slots"):
        learner.update()


def test_a_state_of_other_networks_or_sites_is_refused() -> None:
    state = Learner(control(), SMALL, seed=1).state()
    with pytest.raises(ValueError, match="not one of such a training"):
        Learner(control(), replace(SMALL, hidden=(16, 9)), seed=1).restore(state)
    with pytest.raises(ValueError, match="sites"):
        Learner(control(), replace(SMALL, sites=10), seed=1).restore(state)
    with pytest.raises(ValueError, match="not one of such a training"):
        Learner(control(), SMALL, seed=1).restore({"slots": np.array(1)})


def test_optional_limits_hold() -> None:
    settings = replace(SMALL, norm=1e-6, kl=1e-9, entropy=0.1, final_sigma=0.1, final_rate=0.0)
    learner = Learner(control(batches=True), settings, seed=1)
    told = [learner.update() for _ in range(4)]
    assert [round(one.sigma, 4) for one in told] == [0.698, 0.5485, 0.399, 0.2495]
    assert told[-1].rate == pytest.approx(2.5e-4 / 4)


def test_sites_of_the_learner_are_those_of_its_seed_only() -> None:
    one, other = (Learner(control(), SMALL, seed=8) for _ in range(2))
    np.testing.assert_array_equal(one.sites.observation, other.sites.observation)
    assert isinstance(one.sites, SlottedSites)
