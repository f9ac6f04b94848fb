"""The networks of actor and critic: tanh layers whose passes run block by block in NumPy.

PyTorch differentiates, but the two passes through the layers are ours: over blocks of rows that
stay in the second-level cache, with NumPy's matrix products and tanh, and a first layer that skips
what is zero. docs/guides/train-a-scheduler.md has it measured beside PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from inferway.learning.rows import Rows

__all__ = ["HIDDEN", "Initial", "Perceptron"]

Arrays = list[NDArray[Any]]
Initial = Literal["orthogonal", "uniform"]
HIDDEN: Final = (90, 60)
"""Hidden layers of actor and critic: [Tan24], Sec. 5.1.4."""

# Rows at a time: 512 x 2 (90 + 60) float32 are 0.6 MB.
_ROWS: Final = 512


class Perceptron(nn.Module):  # type: ignore[misc]
    """Fully connected layers, tanh after all but the last.

    Parameters
    ----------
    inputs, outputs
        Sizes.
    hidden
        Sizes of the hidden layers.
    initial
        ``orthogonal`` (biases 0; hidden layers with gain sqrt 2, the last with `gain`) or
        ``uniform`` (PyTorch's own for linear layers; the last scaled by `gain`). The paper does
        not say which.
    gain
        Of the last layer: small for an actor, so that it begins near even routing.
    generator
        Draws the weights.

    Attributes
    ----------
    weights
        Each (in, out).
    biases
        Each (out,).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int] = HIDDEN,
        initial: Initial = "orthogonal",
        gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = list(pairwise((inputs, *hidden, outputs)))
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(size)) for size in sizes])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(size[1])) for size in sizes])
        last = len(sizes) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if initial == "orthogonal":
                stretch = gain if place == last else 2**0.5
                nn.init.orthogonal_(weight, stretch, generator=generator)
                continue
            bound = sizes[place][0] ** -0.5 * (gain if place == last else 1.0)
            nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.uniform_(bias, -bound, bound, generator=generator)

    def forward(self, rows: Rows, chosen: NDArray[np.int64]) -> Tensor:
        """(B, out) of these B rows, with gradients to the parameters, none to the rows."""
        answer: Tensor = _Passes.apply(rows, chosen, *self.weights, *self.biases)
        return answer

    def arrays(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Weight (in, out) and bias (out,) of each layer, in the parameters' own memory."""
        pairs = zip(self.weights, self.biases, strict=True)
        return [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in pairs]

    def answer(self, rows: Rows, chosen: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """(B, out) of these B rows, or all, without gradients."""
        picked = np.arange(len(rows)) if chosen is None else chosen
        weights, biases = zip(*self.arrays(), strict=True)
        answer = np.empty((len(picked), len(biases[-1])), weights[0].dtype)
        for start in range(0, len(picked), _ROWS):
            block = slice(start, start + _ROWS)
            last = _hidden(rows, picked[block], weights, biases)[-1]
            np.matmul(last, weights[-1], out=answer[block])
        answer += biases[-1]
        return answer


class _Passes(torch.autograd.Function):  # type: ignore[misc]
    """Forward and backward through tanh layers."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, chosen: NDArray[np.int64], *parameters: Tensor) -> Tensor:
        weights, biases = _halves(parameters)
        ctx.save_for_backward(*parameters)
        ctx.rows, ctx.chosen, ctx.hidden = rows, chosen, []
        answer = np.empty((len(chosen), len(biases[-1])), weights[0].dtype)
        for start in range(0, len(chosen), _ROWS):
            block = slice(start, start + _ROWS)
            layers = _hidden(rows, chosen[block], weights, biases)
            np.matmul(layers[-1], weights[-1], out=answer[block])
            ctx.hidden.append(layers)
        answer += biases[-1]
        return torch.from_numpy(answer)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weights, biases = _halves(ctx.saved_tensors)
        to_weights = [np.zeros_like(one) for one in weights]
        to_biases = [np.zeros_like(one) for one in biases]
        slopes = slope.contiguous().numpy()
        for place, hidden in enumerate(ctx.hidden):
            block = slice(place * _ROWS, (place + 1) * _ROWS)
            above = slopes[block]
            ones = np.ones(len(above), above.dtype)
            for layer in range(len(weights) - 1, 0, -1):
                below = hidden[layer - 1]
                to_weights[layer] += below.T @ above
                to_biases[layer] += ones @ above
                # A product over one column is a slow one in NumPy; this is the same.
                turned = weights[layer].T
                above = above * turned if len(turned) == 1 else above @ turned
                above *= 1 - below * below
            to_biases[0] += ones @ above
            ctx.rows.add_transposed(ctx.chosen[block], above, to_weights[0])
        ctx.hidden = ctx.rows = None
        return None, None, *map(torch.from_numpy, to_weights), *map(torch.from_numpy, to_biases)


def _halves(parameters: Sequence[Tensor]) -> tuple[Arrays, Arrays]:
    """Weights and biases of a network."""
    arrays = [one.detach().numpy() for one in parameters]
    return arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]


def _hidden(
    rows: Rows,
    chosen: NDArray[np.int64],
    weights: Sequence[NDArray[Any]],
    biases: Sequence[NDArray[Any]],
) -> Arrays:
    """What the hidden layers say of a block of rows."""
    first = np.empty((len(chosen), weights[0].shape[1]), weights[0].dtype)
    rows.product(chosen, weights[0], biases[0], first)
    layers = [np.tanh(first, out=first)]
    for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
        below = layers[-1] @ weight
        below += bias
        layers.append(np.tanh(below, out=below))
    return layers
