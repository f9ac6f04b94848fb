"""Where the requests for each task enter the network."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_TYPES: Final = 10_000_000
"""Request types, each a task and a node where it enters, that a network is laid out for."""
_ENTRIES = 0xE427  # tells this use of the seed from others


def assign(
    tasks: int, places: NDArray[np.int64], per_task: int | None = None, *, seed: int = 0
) -> NDArray[np.int64]:
    """Draw entry nodes for each task.

    Parameters
    ----------
    tasks
        How many tasks.
    places
        The nodes to draw from, all different.
    per_task
        How many for each task, drawn at random without repeating one; all if None. Each receives
        an equal part of the task's requests.
    seed
        The same seed gives the same nodes; a larger number of tasks begins with the same ones.

    Returns
    -------
    (tasks, per_task) nodes, ascending in each row.

    Raises
    ------
    ValueError
        If there is no place, or fewer than `per_task`; or there are too many request types.
    """
    if not len(places):
        raise ValueError("there is no node where requests could enter")
    types = tasks * (len(places) if per_task is None else per_task)
    if types > MOST_TYPES:
        raise ValueError(
            f"{tasks:,} tasks that enter at {types // tasks:,} nodes each are {types:,} request "
            f"types, and {MOST_TYPES:,} are the most; give `entries` a smaller `per_task`"
        )
    if per_task is None:
        return np.tile(np.sort(places), (tasks, 1))
    if not 1 <= per_task <= len(places):
        raise ValueError(
            f"each task is to enter at {per_task} nodes, but there are {len(places)} to draw from"
        )
    rng = np.random.default_rng([seed, _ENTRIES])
    drawn = [rng.choice(len(places), per_task, replace=False) for _ in range(tasks)]
    return np.sort(places[np.array(drawn)], axis=1)
