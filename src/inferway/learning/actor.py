"""The actor: from observations to routing and batch rules, drawn or not, and how likely they are.

Its outputs are f of eq. 8, a number per server, and with batches then the logits of each class's
(smallest, largest) pairs. Given the observation, routing and batch rules are independent, as in
the hybrid actions of H-PPO ([Tan24], ref. 71: doi 10.24963/ijcai.2019/316).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inferway.learning.density import SoftmaxGaussian
from inferway.learning.networks import Initial, Perceptron
from inferway.learning.rows import Rows
from inferway.learning.site import Control
from inferway.scheduling.network import pairs_of

__all__ = ["Actions", "Actor"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Actions(NamedTuple):
    """What B observations were answered with."""

    log_routing: NDArray[np.float32]
    """(B, n) log y: eq. 8 in logarithms, as y may be rounded to 0."""
    pairs: Ints
    """(B, K) which pair of batch sizes; (B, 0) without batches."""


class Actor:
    """A policy for the sites of a control.

    Parameters
    ----------
    control
        The sites.
    hidden, initial, gain, generator
        Of the `Perceptron`.
    """

    def __init__(
        self,
        control: Control,
        *,
        hidden: Sequence[int],
        initial: Initial = "orthogonal",
        gain: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        self.servers = control.scenario.fleet.servers
        offered = control.sizes if control.batches else ()
        self.rules = [np.array(pairs_of(sizes), np.int64) for sizes in offered]
        """By class: (P, 2) the pairs that its logits are of."""
        self.ends = np.cumsum([self.servers, *(len(rule) for rule in self.rules)])
        self.network = Perceptron(
            control.features,
            int(self.ends[-1]),
            hidden=hidden,
            initial=initial,
            gain=gain,
            generator=generator,
        )

    @property
    def heads(self) -> int:
        """Parts of an action: routing, and the rule of each class."""
        return len(self.ends)

    def draw(
        self, outputs: NDArray[np.float32], sigma: float, random: np.random.Generator
    ) -> Actions:
        """Draw an action for each of the network's (B, outputs)."""
        f = outputs[:, : self.servers]
        z = random.standard_normal(f.shape, np.float32)
        z *= np.float32(sigma)
        z += f
        pairs = np.empty((len(f), len(self.rules)), np.int64)
        for k, logits in enumerate(self._logits(outputs)):
            # The greatest of logits with Gumbel noise has the probabilities of their softmax.
            pairs[:, k] = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
        return Actions(_log_softmax(z), pairs)

    def best(self, outputs: NDArray[np.float32]) -> Actions:
        """What a deployed policy does: sigma = 0, and the likeliest batch rules."""
        pairs = np.empty((len(outputs), len(self.rules)), np.int64)
        for k, logits in enumerate(self._logits(outputs)):
            pairs[:, k] = logits.argmax(axis=1)
        return Actions(_log_softmax(outputs[:, : self.servers].copy()), pairs)

    def deployed(self, observation: NDArray[np.float32]) -> tuple[Floats, Ints | None]:
        """Decide as `best` for (B, d) observations."""
        return self.decisions(self.best(self.network.answer(Rows.of(observation))))

    def decisions(self, actions: Actions) -> tuple[Floats, Ints | None]:
        """(B, n) probabilities and (B, K, 2) batch rules, as sites take them."""
        probabilities = np.exp(actions.log_routing.astype(np.float64))
        if not self.rules:
            return probabilities, None
        rules = [rule[actions.pairs[:, k]] for k, rule in enumerate(self.rules)]
        return probabilities, np.stack(rules, axis=1)

    def log_probs(
        self, outputs: Tensor, log_routing: Tensor, pairs: Tensor, sigma: float
    ) -> Tensor:
        """(B, heads) log density of the routing (eq. 9), and log probabilities of the rules."""
        density = SoftmaxGaussian(outputs[:, : self.servers], sigma, validate_args=False)
        parts = [density.log_prob_of_log(log_routing, normalized=True)]
        for k, logits in enumerate(self._logits(outputs)):
            known = torch.log_softmax(logits, 1)
            parts.append(known.gather(1, pairs[:, k : k + 1])[:, 0])
        return torch.stack(parts, 1)

    def rule_entropy(self, outputs: Tensor) -> Tensor:
        """(B,) entropy of the batch rules; zeros without batches."""
        total = torch.zeros(len(outputs))
        for logits in self._logits(outputs):
            known = torch.log_softmax(logits, 1)
            total = total - (known.exp() * known).sum(1)
        return total

    def _logits(self, outputs: Any) -> list[Any]:
        return [outputs[:, self.ends[k] : self.ends[k + 1]] for k in range(len(self.rules))]


def _log_softmax(z: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of (B, n), in place."""
    z -= z.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    return z
