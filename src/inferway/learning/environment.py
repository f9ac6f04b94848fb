"""Sites under slotted control as Gymnasium environments, `inferway/EdgeSite-v0`.

Gymnasium since 1.0 looks at no entry points of packages; importing `inferway` after it, or this
module at any time, registers the environment.

    import gymnasium
    import inferway

    env = gymnasium.make("inferway/EdgeSite-v0", max_episode_steps=1000)
    envs = gymnasium.make_vec("inferway/EdgeSite-v0", num_envs=512)  # natively, one call a slot

An action is one flat vector of numbers in 0..1, since learners such as Stable-Baselines3's take no
dictionaries: a weight per server, in the fleet's order, and with batching then two per class.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferway.extras import installing
from inferway.learning.control import Control
from inferway.learning.deployed import setting
from inferway.learning.site import Floats, Ints, Observation, Sites, sites_of

try:
    import gymnasium

    from inferway.learning.registration import SLOTS
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "environments need gymnasium, which is in the extra `learn`: " + installing("learn"),
        name="gymnasium",
    ) from error

Step = tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class ActionReader:
    """Reads the actions for sites under a control.

    Weights are divided by their sum: (1, 1, 0, 0) and (0.2, 0.2, 0, 0) are the same. Where all are
    0, requests go to all servers alike. What is below 0 counts as 0.

    Of a class's two numbers, the first picks its smallest batch and the second its largest from the
    sizes that it offers, each size having an equal part of 0..1; a largest below the smallest means
    the smallest.
    """

    def __init__(self, control: Control) -> None:
        self._servers = control.scenario.fleet.servers
        self._ones = np.ones(self._servers)
        offered = control.sizes if control.batches else ()
        self._sizes = [np.array(sizes, np.int64) for sizes in offered]
        # Numbers in an action.
        self.length = self._servers + 2 * len(self._sizes)

    def read(self, actions: NDArray[Any]) -> tuple[Floats, Ints | None]:
        """(E, n) weights with sums above 0, and (E, K, 2) batch rules or None, of (E, `length`).

        ValueError for actions of another shape, and such as are no numbers.
        """
        if actions.ndim != 2 or actions.shape[1] != self.length:
            raise ValueError(
                f"an action has {self.length} numbers, one per server"
                f"{' and two per class' if self._sizes else ''}, not {actions.shape[1:]}"
            )
        if not np.isfinite(actions).all():
            raise ValueError("an action has a number that is nan or infinite")
        weights = np.maximum(actions[:, : self._servers], 0.0, dtype=np.float64)
        weights[weights @ self._ones == 0.0] = 1.0
        if not self._sizes:
            return weights, None
        picks = actions[:, self._servers :].reshape(len(actions), -1, 2)
        rules = np.empty(picks.shape, np.int64)
        for k, sizes in enumerate(self._sizes):
            rules[:, k] = sizes[(picks[:, k] * len(sizes)).astype(int).clip(0, len(sizes) - 1)]
        np.maximum(rules[..., 0], rules[..., 1], out=rules[..., 1])
        return weights, rules


class EdgeSite(gymnasium.Env):  # type: ignore[misc]
    """One site; a step is a slot, and nothing ever ends but by a time limit.

    An episode begins with empty queues at a random time of the workload's long run.

    Parameters
    ----------
    control
        The site; `edge_site` makes one of a file.

    Attributes
    ----------
    observation_space
        Box(0, 1, (d,), float32), laid out as `inferway.scheduling.observation` says.
    action_space
        Box(0, 1, (a,), float32): see `ActionReader`.

    Notes
    -----
    The reward is eq. 2 of [Tan24] over the slot: beta times the accuracy for each answer in
    time, -1 for a late one, -alpha for a request rejected. A step's info counts the same slot:
    requests ``arrived``, ``rejected`` (or dropped) and answered ``late``, and as ``goodput`` the
    expected number of correct answers in time.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, control: Control) -> None:
        self.control, self.sites = control, sites_of(control)
        self._decisions = ActionReader(control)
        self.observation_space, self.action_space = spaces(control)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; a seed gives the course of the first `SlottedSites` of it."""
        super().reset(seed=seed)
        self.sites.restart(int(self.np_random.integers(2**62)) if seed is None else seed)
        return self.sites.observation[0].copy(), {}

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Run a slot."""
        sites = self.sites
        reward = sites.step(*self._decisions.read(np.asarray(action)[None]))
        info = {name: of[0].item() for name, of in counted(sites).items()}
        return sites.observation[0].copy(), float(reward[0]), False, False, info


def spaces(control: Control) -> tuple[Any, Any]:
    """Of the observations and actions of one site."""
    lengths = control.features, ActionReader(control).length
    return tuple(gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32) for length in lengths)


def counted(sites: Sites) -> dict[str, NDArray[Any]]:
    """(E,) what became of requests in the last slot."""
    *counts, timely = sites.outcomes
    found = dict(zip(("arrived", "rejected", "late"), map(np.copy, counts), strict=True))
    return found | {"goodput": timely.astype(np.float64) @ sites.control.scenario.fleet.accuracy}


class EdgeSites(gymnasium.vector.VectorEnv):  # type: ignore[misc]
    """SlottedSites in lockstep: their episodes begin together and end together.

    Parameters
    ----------
    control
        The sites; `edge_sites` makes them of a file. Spaces, rewards and infos as of `EdgeSite`.
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

    Raises
    ------
    ValueError
        For an option out of range.
    """

    def __init__(
        self,
        control: Control,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = SLOTS,
        autoreset_mode: Any = gymnasium.vector.AutoresetMode.NEXT_STEP,
        copy: bool = True,
    ) -> None:
        modes = gymnasium.vector.AutoresetMode
        mode = modes(autoreset_mode)
        if mode is modes.DISABLED:
            raise ValueError("sites in lockstep begin anew together: NextStep or SameStep")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"an episode has one slot or more, not {max_episode_steps}")
        self.metadata = EdgeSite.metadata | {"autoreset_mode": mode}
        self.control, self.num_envs = control, num_envs
        self.sites, self._decisions = sites_of(control, count=num_envs), ActionReader(control)
        self.single_observation_space, self.single_action_space = spaces(control)
        batch_space = gymnasium.vector.utils.batch_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step, self._copy = mode is modes.SAME_STEP, copy
        self._limit, self._slots = max_episode_steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode at every site; a seed gives the course of `SlottedSites` of it."""
        super().reset(seed=seed)
        self._slots = 0
        self.sites.restart(int(self.np_random.integers(2**62)) if seed is None else seed)
        return self._seen(), {}

    def step(self, actions: NDArray[Any]) -> Step:
        """Run a slot at every site."""
        count = self.num_envs
        never = np.zeros(count, np.bool_)
        if self._slots == self._limit:  # with NextStep alone
            seen, info = self.reset()
            return seen, np.zeros(count), never, never.copy(), info
        rewards = self.sites.step(*self._decisions.read(np.asarray(actions)))
        rewards = rewards.copy() if self._copy else rewards
        self._slots += 1
        ends, seen = self._slots == self._limit, self._seen()
        info = _masked(counted(self.sites), count)
        if ends and self._same_step:
            last = np.empty(count, object)
            last[:] = list(self.sites.observation.copy())
            info = _masked({"final_obs": last, "final_info": info}, count)
            seen, _ = self.reset()
        return seen, rewards, never, np.full(count, ends), info

    def _seen(self) -> Observation:
        return self.sites.observation.copy() if self._copy else self.sites.observation


def _masked(values: dict[str, Any], count: int) -> dict[str, Any]:
    """Put a mask behind each, as Gymnasium has it, of the sites that have a value: all."""
    return values | {f"_{name}": np.ones(count, np.bool_) for name in values}


def edge_site(
    file: str | PathLike[str] | None = None, *, control: Control | None = None, **options: Any
) -> EdgeSite:
    """Make the environment of one site.

    Parameters
    ----------
    file, options
        As of `inferway.learning.deployed.setting`.
    control
        The site itself, in place of all these.
    """
    return EdgeSite(control or setting(file, **options))


def edge_sites(
    num_envs: int = 1,
    file: str | PathLike[str] | None = None,
    *,
    max_episode_steps: int | None = SLOTS,
    autoreset_mode: Any = gymnasium.vector.AutoresetMode.NEXT_STEP,
    copy: bool = True,
    control: Control | None = None,
    **options: Any,
) -> EdgeSites:
    """Make the vector environment of many sites.

    Parameters
    ----------
    num_envs, max_episode_steps, autoreset_mode, copy
        As of `EdgeSites`.
    file, options, control
        As of `edge_site`.
    """
    return EdgeSites(
        control or setting(file, **options),
        num_envs,
        max_episode_steps=max_episode_steps,
        autoreset_mode=autoreset_mode,
        copy=copy,
    )
