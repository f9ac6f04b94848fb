"""Slots per CPU second that a scheduler is trained on: ours and Stable-Baselines3's.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/training.py [--updates 10] [--json]

Both train with the paper's settings (5e4 slots an update, 5 epochs, minibatches of 1e4, networks
90-60 for actor and critic) on the same 250 sites of examples/edge-burst.yaml, in one thread:

- `ours`: what `inferway train` does.
- `stable-baselines3`: its PPO, with eq. 9 as a custom distribution.

CPU time, not counting the first update, in which code is compiled and memory is touched.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from http_stack import machine

import inferway
from inferway.learning.control import Control
from inferway.learning.density import SoftmaxGaussian
from inferway.learning.deployed import control_of
from inferway.learning.ppo import Learner
from inferway.learning.settings import Settings
from inferway.learning.site import SlottedSites

FILE = Path(__file__).parents[1] / "examples" / "edge-burst.yaml"
SETTINGS = Settings()


def ours(control: Control) -> Callable[[], object]:
    """One update of the learner."""
    return Learner(control, SETTINGS, seed=1).update


def stable_baselines(control: Control) -> Callable[[], object]:
    """An update of Stable-Baselines3's PPO."""
    from gymnasium import spaces
    from stable_baselines3 import PPO
    from stable_baselines3.common.distributions import Distribution
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.vec_env import VecEnv

    class Environments(VecEnv):
        """The sites, acted upon by log y."""

        def __init__(self) -> None:
            count, d = SETTINGS.sites, control.features
            self.sites = SlottedSites(control, count=count, seed=1)
            seen = spaces.Box(0.0, 1.0, (d,), np.float32)
            super().__init__(count, seen, spaces.Box(-1e3, 1e3, (4,), np.float32))
            self.ended, self.told = np.zeros(count, bool), [{} for _ in range(count)]

        def reset(self) -> Any:
            return self.sites.observation.copy()

        def step_async(self, actions: Any) -> None:
            self.routing = np.exp(actions.astype(np.float64))

        def step_wait(self) -> Any:
            rewards = self.sites.step(self.routing).astype(np.float32)
            return self.sites.observation.copy(), rewards, self.ended, self.told

        def close(self) -> None:
            pass

        def env_is_wrapped(self, *_: Any, **__: Any) -> Any:
            return [False] * self.num_envs

        def get_attr(self, *_: Any, **__: Any) -> Any:
            return [None] * self.num_envs

        set_attr = env_method = get_attr

    class Eq9(Distribution):
        """`SoftmaxGaussian` as Stable-Baselines3 wants it; actions are log y."""

        def proba_distribution_net(self, latent_dim: int) -> Any:
            return torch.nn.Linear(latent_dim, 4)

        def proba_distribution(self, f: Any) -> Any:
            self.distribution = SoftmaxGaussian(f, SETTINGS.sigma, validate_args=False)
            return self

        def log_prob(self, actions: Any) -> Any:
            return self.distribution.log_prob_of_log(actions)

        def entropy(self) -> None:
            return None

        def sample(self) -> Any:
            return self.distribution.rsample_log()

        def mode(self) -> Any:
            return self.distribution.center.log()

        def actions_from_params(self, f: Any, deterministic: bool = False) -> Any:
            return self.proba_distribution(f).get_actions(deterministic)

        def log_prob_from_params(self, f: Any) -> Any:
            actions = self.actions_from_params(f)
            return actions, self.log_prob(actions)

    class Policy(ActorCriticPolicy):
        def _build(self, lr_schedule: Any) -> None:
            super()._build(lr_schedule)
            self.action_dist = Eq9()
            self.action_net = self.action_dist.proba_distribution_net(60)
            self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1))

        def _get_action_dist_from_latent(self, latent_pi: Any) -> Any:
            return self.action_dist.proba_distribution(self.action_net(latent_pi))

    model = PPO(
        Policy,
        Environments(),
        n_steps=SETTINGS.slots_per_update // SETTINGS.sites,
        batch_size=SETTINGS.minibatch,
        n_epochs=SETTINGS.epochs,
        learning_rate=SETTINGS.learning_rate,
        normalize_advantage=False,
        max_grad_norm=1e9,
        device="cpu",
        policy_kwargs={
            "net_arch": {"pi": [90, 60], "vf": [90, 60]},
            "activation_fn": torch.nn.Tanh,
        },
    )
    return lambda: model.learn(SETTINGS.slots_per_update, reset_num_timesteps=False)


def speed(update: Callable[[], object], updates: int) -> float:
    """Slots per CPU second."""
    update()
    start = time.process_time()
    for _ in range(updates):
        update()
    return updates * SETTINGS.slots_per_update / (time.process_time() - start)


def simulation(control: Control, slots: int = 400) -> float:
    """Slots per CPU second of the sites alone."""
    sites = SlottedSites(control, count=SETTINGS.sites, seed=1)
    routing = np.full((SETTINGS.sites, 4), 0.25)
    sites.step(routing)
    start = time.process_time()
    for _ in range(slots):
        sites.step(routing)
    return slots * SETTINGS.sites / (time.process_time() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    control = control_of(inferway.load(FILE))
    found = {"simulation": simulation(control)}
    for name, make in (("ours", ours), ("stable-baselines3", stable_baselines)):
        found[name] = speed(make(control), arguments.updates)
    if arguments.json:
        print(json.dumps({"machine": machine(), "slots_per_cpu_s": found}, indent=2))
        return
    for name, rate in found.items():
        print(f"{name:18s} {rate:12,.0f} slots per CPU second")


if __name__ == "__main__":
    main()
