"""Actions of any learner as decisions: numbers in 0..1 become routing and batch rules.

An action is one flat vector, since learners such as Stable-Baselines3's take no dictionaries: a
weight per server, in the fleet's order, and with batching then two numbers per class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.learning.site import Control

__all__ = ["Decisions"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Decisions:
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

    @property
    def length(self) -> int:
        """Numbers in an action."""
        return self._servers + 2 * len(self._sizes)

    def read(self, actions: NDArray[Any]) -> tuple[Floats, Ints | None]:
        """(E, n) weights with sums above 0, and (E, K, 2) batch rules or None.

        Parameters
        ----------
        actions
            (E, `length`).

        Raises
        ------
        ValueError
            For actions of another shape, and such as are no numbers.
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
            place = (picks[:, k] * len(sizes)).astype(np.int64)
            rules[:, k] = sizes[place.clip(0, len(sizes) - 1)]
        np.maximum(rules[..., 0], rules[..., 1], out=rules[..., 1])
        return weights, rules
