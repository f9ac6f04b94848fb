"""Many sites as one Gymnasium vector environment: a call runs them all for a slot."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.learning.decisions import Decisions

# Gymnasium from there, which says what to install where it is missing.
from inferway.learning.edge_site import SLOTS, EdgeSite, counted, gymnasium, spaces
from inferway.learning.setting import Observability, setting
from inferway.learning.site import Control, SlottedSites

__all__ = ["EdgeSites"]

Step = tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class EdgeSites(gymnasium.vector.VectorEnv):  # type: ignore[misc]
    """SlottedSites in lockstep: their episodes begin together and end together.

    Parameters
    ----------
    num_envs
        How many.
    max_episode_steps
        Slots after which all are truncated; None for never.
    autoreset_mode
        When the next episode begins: ``NextStep``, with the step after the last, whose actions
        are ignored and whose rewards are 0, or ``SameStep``, with the last step itself, which
        has the last observations in its info as ``final_obs``.
    copy
        Whether each step gives observations and rewards of its own; else the next writes over
        them, which saves a tenth of the time.
    file, task, node, slot_s, observability, batching, alpha, beta, gains, control
        As of `inferway.learning.edge_site.EdgeSite`, and so are spaces, rewards and infos.

    Raises
    ------
    ValueError
        For an option out of range.
    """

    def __init__(
        self,
        num_envs: int = 1,
        file: str | PathLike[str] | None = None,
        *,
        max_episode_steps: int | None = SLOTS,
        autoreset_mode: Any = gymnasium.vector.AutoresetMode.NEXT_STEP,
        copy: bool = True,
        task: str | None = None,
        node: str | None = None,
        slot_s: float | None = None,
        observability: Observability = "po",
        batching: bool = False,
        alpha: float = 1.0,
        beta: float = 1.0,
        gains: Sequence[float] | None = None,
        control: Control | None = None,
    ) -> None:
        modes = gymnasium.vector.AutoresetMode
        mode = modes(autoreset_mode)
        if mode is modes.DISABLED:
            raise ValueError("sites in lockstep begin anew together: NextStep or SameStep")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"an episode has one slot or more, not {max_episode_steps}")
        self.control = control or setting(
            file,
            task=task,
            node=node,
            slot_s=slot_s,
            observability=observability,
            batching=batching,
            alpha=alpha,
            beta=beta,
            gains=gains,
        )
        self.metadata = EdgeSite.metadata | {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.sites = SlottedSites(self.control, count=num_envs)
        self._decisions = Decisions(self.control)
        self.single_observation_space, self.single_action_space = spaces(self.control)
        batch_space = gymnasium.vector.utils.batch_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step = mode is modes.SAME_STEP
        self._copy = copy
        self._limit = max_episode_steps
        self._slots = 0
        self._every, self._none = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode at every site; a seed gives the course of `SlottedSites` of it."""
        super().reset(seed=seed)
        self._slots = 0
        self.sites.restart(int(self.np_random.integers(2**62)) if seed is None else seed)
        return self._seen(), {}

    def step(self, actions: NDArray[Any]) -> Step:
        """Run a slot at every site."""
        if self._slots == self._limit:  # with NextStep alone
            seen, info = self.reset()
            return seen, np.zeros(self.num_envs), self._none.copy(), self._none.copy(), info
        rewards = self.sites.step(*self._decisions.read(np.asarray(actions)))
        rewards = rewards.copy() if self._copy else rewards
        self._slots += 1
        info = self._masked(counted(self.sites))
        ends = self._slots == self._limit
        seen = self._seen()
        if ends and self._same_step:
            last = np.empty(self.num_envs, object)
            last[:] = list(self.sites.observation.copy())
            info = self._masked({"final_obs": last, "final_info": info})
            seen, _ = self.reset()
        return seen, rewards, self._none.copy(), np.full(self.num_envs, ends), info

    def _seen(self) -> NDArray[np.float32]:
        return self.sites.observation.copy() if self._copy else self.sites.observation

    def _masked(self, values: dict[str, Any]) -> dict[str, Any]:
        """With a mask behind each, as Gymnasium has it, of the sites that have a value: all."""
        return values | {f"_{name}": self._every.copy() for name in values}
