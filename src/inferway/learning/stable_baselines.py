"""Many sites as a vector environment of Stable-Baselines3, which has an interface of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.extras import installing
from inferway.learning.environment import EdgeSites, edge_sites
from inferway.learning.site import Observation

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "this needs stable-baselines3, which is in the extra `learn`: " + installing("learn"),
        name="stable_baselines3",
    ) from error


class BaselineSites(VecEnv):  # type: ignore[misc]
    """SlottedSites in lockstep for the learners of Stable-Baselines3.

    Parameters
    ----------
    envs
        They begin anew with ``autoreset_mode="SameStep"``; `baseline_sites` makes them of a file.
    """

    def __init__(self, envs: EdgeSites) -> None:
        self.envs, num_envs = envs, envs.num_envs
        super().__init__(num_envs, envs.single_observation_space, envs.single_action_space)
        self._returns, self._length = np.zeros(num_envs), 0

    def reset(self) -> Observation:
        """Begin an episode, with the seed of `seed` if one was set since the last."""
        seed = self._seeds[0]
        self._reset_seeds()
        self._returns[:], self._length = 0.0, 0
        return self.envs.reset(seed=seed)[0]

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next slot."""
        self._actions = actions

    def step_wait(self) -> tuple[Observation, NDArray[Any], NDArray[Any], list[dict[str, Any]]]:
        """Run it."""
        seen, rewards, _, ended, told = self.envs.step(self._actions)
        self._returns += rewards
        self._length += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            for info, last, total in zip(infos, told["final_obs"], self._returns, strict=True):
                info["terminal_observation"] = last
                info["TimeLimit.truncated"] = True
                info["episode"] = {"r": float(total), "l": self._length}
            self._returns[:], self._length = 0.0, 0
        return seen, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute, which all sites share."""
        return [getattr(self.envs, attr_name) for _ in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set it for all sites."""
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of all sites together."""
        answer = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [answer for _ in self._chosen(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No site is."""
        return [False for _ in self._chosen(indices)]

    def _chosen(self, indices: Any) -> Iterable[int]:
        return self._get_indices(indices)  # type: ignore[no-any-return]


def baseline_sites(num_envs: int = 1, file: str | None = None, **options: Any) -> BaselineSites:
    """Make sites for a learner, as `inferway.learning.environment.edge_sites` has them."""
    return BaselineSites(edge_sites(num_envs, file, autoreset_mode="SameStep", **options))
