"""A site under slotted control as a Gymnasium environment, `inferway/EdgeSite-v0`.

Gymnasium since 1.0 looks at no entry points of packages; importing `inferway` after it, or this
module at any time, registers the environment.

    import gymnasium
    import inferway

    env = gymnasium.make("inferway/EdgeSite-v0", max_episode_steps=1000)
    envs = gymnasium.make_vec("inferway/EdgeSite-v0", num_envs=512)  # natively, one call a slot
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferway.extras import installing
from inferway.learning.decisions import Decisions
from inferway.learning.setting import Observability, setting
from inferway.learning.site import Control, SlottedSites

try:
    import gymnasium

    from inferway.learning.registration import ID, SLOTS
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "environments need gymnasium, which is in the extra `learn`: " + installing("learn"),
        name="gymnasium",
    ) from error

__all__ = ["ID", "SLOTS", "EdgeSite", "counted", "gymnasium", "spaces"]


class EdgeSite(gymnasium.Env):  # type: ignore[misc]
    """One site; a step is a slot, and nothing ever ends but by a time limit.

    An episode begins with empty queues at a random time of the workload's long run.

    Parameters
    ----------
    file, task, node, slot_s, observability, batching, alpha, beta, gains
        As of `inferway.learning.setting.setting`.
    control
        The site itself, in place of all these.

    Attributes
    ----------
    observation_space
        Box(0, 1, (d,), float32), laid out as `inferway.scheduling.observation` says.
    action_space
        Box(0, 1, (a,), float32): see `inferway.learning.decisions.Decisions`.

    Notes
    -----
    The reward is eq. 2 of [Tan24] over the slot: beta times the accuracy for each answer in
    time, -1 for a late one, -alpha for a request rejected. A step's info counts the same slot:
    requests ``arrived``, ``rejected`` (or dropped) and answered ``late``, and as ``goodput`` the
    expected number of correct answers in time.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        file: str | PathLike[str] | None = None,
        *,
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
        self.sites = SlottedSites(self.control)
        self._decisions = Decisions(self.control)
        self.observation_space, self.action_space = spaces(self.control)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; a seed gives the course of the first `SlottedSites` of it."""
        super().reset(seed=seed)
        begin = int(self.np_random.integers(2**62)) if seed is None else seed
        self.sites.restart(begin)
        return self.sites.observation[0].copy(), {}

    def step(
        self, action: NDArray[Any]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Run a slot."""
        sites = self.sites
        reward = sites.step(*self._decisions.read(np.asarray(action)[None]))
        info = {name: of[0].item() for name, of in counted(sites).items()}
        return sites.observation[0].copy(), float(reward[0]), False, False, info


def spaces(control: Control) -> tuple[Any, Any]:
    """Of the observations and actions of one site."""
    return tuple(
        gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32)
        for length in (control.features, Decisions(control).length)
    )


def counted(sites: SlottedSites) -> dict[str, NDArray[Any]]:
    """(E,) what became of requests in the last slot."""
    arrived, rejected, late, timely = sites.outcomes
    return {
        "arrived": arrived.copy(),
        "rejected": rejected.copy(),
        "late": late.copy(),
        "goodput": timely.astype(np.float64) @ sites.control.scenario.fleet.accuracy,
    }
