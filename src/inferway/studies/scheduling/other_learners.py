"""Training of what the paper says fails or does not help: DDPG and a recurrent policy (Sec. 4).

`python -m inferway.studies.scheduling.other_learners [ddpg] [recurrent]` trains each for `SLOTS`
slots on the sites of RL-PO and writes its learning curve beside the shipped policies.

Both are a library's, with its defaults but for what stands here: Stable-Baselines3's DDPG, whose
actor ends in weights in 0..1 that are divided by their sum, and sb3-contrib's RecurrentPPO, an LSTM
with a Gaussian over such weights. Networks have 90 and 60 units like RL-PO's. Rewards are those of
eq. 2 less what arrivals bring at the light model, divided by the deviation of their discounted
sums, as in RL-PO's training; there is no shaping.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from inferway.learning.site import PhaseTally, SlottedSites
from inferway.studies.scheduling.burst import control
from inferway.studies.scheduling.train import folder, in_one_thread, write_curve

SLOTS = {"ddpg": 1_500_000, "recurrent": 1_000_000}
LEARNERS = tuple(SLOTS)
COMMAND = "python -m inferway.studies.scheduling.other_learners"
_EVERY = 50_000  # slots in a line of a learning curve
_DISCOUNT = 0.9  # as RL-PO's, which learns nothing with 0.99 in so few slots


def trained(
    learner: str, slots: int, file: Path, *, seed: int = 0, sites: int = 0, every: int = _EVERY
) -> dict[str, float]:
    """Train ``ddpg`` or ``recurrent`` and write the learning curve, a line for `every` slots.

    Slots are over all sites in lockstep; 0 sites are 50 with DDPG, and 100 with the recurrent
    policy. Gives CPU time and slots; ValueError for another learner.
    """
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    count = sites or {"ddpg": 50, "recurrent": 100}.get(learner, 0)
    model, run = _model(learner, control("rl-po"), count, seed)
    rows: list[dict[str, float]] = []

    def record(*_: Any) -> bool:
        if model.num_timesteps - (rows[-1]["slots"] if rows else 0) >= every:
            rows.append({"slots": model.num_timesteps, **PhaseTally.of(run).figures()})
            run.clear()
        return True

    model.learn(slots, callback=record)
    write_curve(file, rows)
    return {"slots": float(model.num_timesteps), "cpu_s": time.process_time() - start}


def _model(learner: str, on: Any, count: int, seed: int) -> tuple[Any, SlottedSites]:
    import numpy as np
    from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

    from inferway.learning.stable_baselines import baseline_sites

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
        model = DDPG(
            "MlpPolicy",
            envs,
            **{"batch_size": 256, "buffer_size": 500_000, "learning_starts": 10_000},
            **{"train_freq": 1, "gradient_steps": 2, "policy_kwargs": {"net_arch": [90, 60]}},
            action_noise=VectorizedActionNoise(quiet, count),
            **same,
        )
    elif learner == "recurrent":
        from sb3_contrib import RecurrentPPO

        shared = {"shared_lstm": True, "enable_critic_lstm": False}
        model = RecurrentPPO(
            "MlpLstmPolicy",
            envs,
            **{"n_steps": 100, "batch_size": 2_500, "n_epochs": 5},
            **{"gae_lambda": 0.8, "learning_rate": 1e-3},
            policy_kwargs={"net_arch": [60], "lstm_hidden_size": 90, **shared},
            **same,
        )
    else:
        raise ValueError(f"no such learner as {learner}: expected one of {', '.join(LEARNERS)}")
    return model, made.envs.sites


def main() -> None:
    """Train and keep the curves."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("learners", nargs="*", metavar="LEARNER", help="ddpg, recurrent")
    parser.add_argument("--slots", type=float, help="to train for")
    arguments = parser.parse_args()
    for learner in arguments.learners or LEARNERS:
        if learner not in LEARNERS:
            parser.error(f"no such learner as {learner}: expected one of {', '.join(LEARNERS)}")
        slots = int(arguments.slots or SLOTS[learner])
        found = trained(learner, slots, folder() / f"{learner}.csv")
        print(
            f"{learner}: {found['slots']:,.0f} slots in {found['cpu_s']:.0f} s of CPU time",
            file=sys.stderr,
        )


if __name__ == "__main__":
    in_one_thread(main)
