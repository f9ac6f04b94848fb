"""Training of what the paper says fails or does not help: DDPG and a recurrent policy (Sec. 4).

`python -m inferway.studies.scheduling.other_learners` trains each of `LEARNERS` for its `SLOTS`
on the sites of RL-PO, from each of three seeds. Beside the shipped policies it writes what
they came to on the way, without exploration noise, on sites of their own; networks are not kept.

Three are a library's, with its defaults but for what stands here: Stable-Baselines3's DDPG, whose
actor ends in weights in 0..1 that are divided by their sum; sb3-contrib's RecurrentPPO, an LSTM
with a Gaussian over such weights; and Stable-Baselines3's PPO with the same settings and no memory,
to tell what memory brings by itself. Networks have 90 and 60 units like RL-PO's. Rewards are those
of eq. 2 less what arrivals bring at the light model, divided by the deviation of their discounted
sums, as in RL-PO's training; there is no shaping. ``rl-po`` is ours, as `inferway train` trains it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferway.learning.settings import TUNED
from inferway.learning.site import Decide, Observation, evaluate
from inferway.studies.scheduling.burst import control
from inferway.studies.scheduling.train import folder, in_one_thread, write_curve

TRIALS = 3  # seeds 0, 1, 2
SLOTS = {"rl-po": 1_000_000, "ppo": 1_000_000, "recurrent": 1_000_000, "ddpg": 300_000}
LEARNERS = tuple(SLOTS)
EVALUATED = 400_000  # slots of the last evaluation
COMMAND = "python -m inferway.studies.scheduling.other_learners"
_EVERY = 100_000  # slots between two evaluations, each of so many
_ON_THE_WAY = 40_000
_SEED = 101  # of the sites of all evaluations
_DISCOUNT = 0.9  # as RL-PO's, which learns nothing with 0.99 in so few slots


def trained_name(learner: str, seed: int) -> str:
    """Name of what a training came to, beside the shipped policies."""
    return f"evaluated-{learner}-seed-{seed}"


def trained(
    learner: str,
    slots: int,
    file: Path,
    *,
    seed: int = 0,
    sites: int = 0,
    every: int = _EVERY,
    evaluated: int = EVALUATED,
) -> dict[str, float]:
    """Train a learner and write what it comes to without noise, a line for `every` slots.

    Slots are over all sites in lockstep; 0 sites are 50 with DDPG, 250 with RL-PO and 100 with the
    others. The last line is over `evaluated` slots. Gives CPU time and slots; ValueError for
    another learner.
    """
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    rows: list[dict[str, float]] = []

    def record(now: int, decide: Callable[[], Decide]) -> None:
        if now - (rows[-1]["slots"] if rows else 0) >= every or now >= slots:
            over = evaluated if now >= slots else min(_ON_THE_WAY, evaluated)
            tally = evaluate(decide(), control("rl-po"), slots=over, seed=_SEED)
            rows.append({"slots": now, **tally.figures()})

    if learner == "rl-po":
        _own(slots, seed, sites, record)
    else:
        _library(learner, slots, seed, sites, record)
    write_curve(file, rows)
    return {"slots": float(rows[-1]["slots"]), "cpu_s": time.process_time() - start}


Record = Callable[[int, Callable[[], Decide]], None]


def _own(slots: int, seed: int, sites: int, record: Record) -> None:
    from inferway.learning.ppo import Learner

    count = sites or TUNED.sites
    per_update = min(TUNED.slots_per_update, slots // count * count)
    wanted = replace(TUNED, slots=slots, sites=count, slots_per_update=per_update)
    learner = Learner(control("rl-po"), wanted, seed)
    while learner.slots < slots:
        learner.update()
        record(learner.slots, lambda: learner.actor.deployed)


def _library(learner: str, slots: int, seed: int, sites: int, record: Record) -> None:
    model = _model(learner, seed, sites)

    def seen(*_: Any) -> bool:
        # The last step is recorded when the learner has learned from it.
        if model.num_timesteps < slots:
            record(model.num_timesteps, lambda: decider(model))
        return True

    model.learn(slots, callback=seen)
    record(model.num_timesteps, lambda: decider(model))


def decider(model: Any) -> Decide:
    """Decide as a library's model does without noise; one with a memory begins with none."""
    from inferway.learning.environment import ActionReader

    reader = ActionReader(control("rl-po"))
    memory: Any = None

    def decide(observation: Observation) -> Any:
        nonlocal memory
        actions, memory = model.predict(observation, state=memory, deterministic=True)
        return reader.read(actions)

    return decide


def _model(learner: str, seed: int, sites: int) -> Any:
    import numpy as np
    from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

    from inferway.learning.stable_baselines import baseline_sites

    if learner not in LEARNERS:
        raise ValueError(f"no such learner as {learner}: expected one of {', '.join(LEARNERS)}")
    on, count = control("rl-po"), sites or (50 if learner == "ddpg" else 100)
    light = min(on.reward_gains)

    class Relative(VecEnvWrapper):  # type: ignore[misc]
        """Rewards less what arrivals bring at the light model."""

        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            seen, rewards, ended, told = self.venv.step_wait()
            return seen, rewards - light * self.venv.envs.sites.arrivals, ended, told

    made = baseline_sites(count, control=on, max_episode_steps=None)
    envs = VecNormalize(
        Relative(made), norm_obs=False, norm_reward=True, clip_reward=np.inf, gamma=_DISCOUNT
    )
    same: dict[str, Any] = {"gamma": _DISCOUNT, "seed": seed, "device": "cpu"}
    if learner == "ddpg":
        from stable_baselines3 import DDPG
        from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

        quiet = NormalActionNoise(np.zeros(4), np.full(4, 0.1))
        return DDPG(
            "MlpPolicy",
            envs,
            **{"batch_size": 256, "buffer_size": 500_000, "learning_starts": 10_000},
            **{"train_freq": 1, "gradient_steps": 2, "policy_kwargs": {"net_arch": [90, 60]}},
            action_noise=VectorizedActionNoise(quiet, count),
            **same,
        )
    own: dict[str, Any] = {"n_steps": 100, "batch_size": 2_500, "n_epochs": 5}
    own |= {"gae_lambda": 0.8, "learning_rate": 1e-3}
    if learner == "ppo":
        from stable_baselines3 import PPO

        return PPO("MlpPolicy", envs, **own, policy_kwargs={"net_arch": [90, 60]}, **same)
    from sb3_contrib import RecurrentPPO

    shared = {"shared_lstm": True, "enable_critic_lstm": False}
    kinds = {"net_arch": [60], "lstm_hidden_size": 90, **shared}
    return RecurrentPPO("MlpLstmPolicy", envs, **own, policy_kwargs=kinds, **same)


def main() -> None:
    """Train and keep what comes of it."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("learners", nargs="*", metavar="LEARNER", help=", ".join(LEARNERS))
    parser.add_argument("--slots", type=float, help="to train for")
    parser.add_argument("--seed", type=int, help="one training, in place of three")
    arguments = parser.parse_args()
    for learner in arguments.learners or LEARNERS:
        if learner not in LEARNERS:
            parser.error(f"no such learner as {learner}: expected one of {', '.join(LEARNERS)}")
        slots = int(arguments.slots or SLOTS[learner])
        for seed in range(TRIALS) if arguments.seed is None else (arguments.seed,):
            file = folder() / f"{trained_name(learner, seed)}.csv"
            found = trained(learner, slots, file, seed=seed)
            print(
                f"{learner}, seed {seed}: {found['slots']:,.0f} slots in {found['cpu_s']:.0f} s of "
                "CPU time",
                file=sys.stderr,
            )


if __name__ == "__main__":
    in_one_thread(main)
