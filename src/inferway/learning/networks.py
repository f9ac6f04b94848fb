"""The networks of actor and critic: tanh layers whose passes run block by block in NumPy.

PyTorch differentiates, but the two passes through the layers are ours: over blocks of rows that
stay in the second-level cache, with NumPy's matrix products and tanh. docs/guides/
train-a-scheduler.md has both measured.
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

__all__ = ["HIDDEN", "Initial", "Perceptron"]

Initial = Literal["orthogonal", "uniform"]
HIDDEN: Final = (90, 60)
"""Hidden layers of actor and critic: paper 003, Sec. 5.1.4."""

# Rows at a time: 512 x (132 + 90 + 60) float32 are 0.6 MB.
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

    def forward(self, rows: Tensor) -> Tensor:
        """(B, in) to (B, out), with gradients to the parameters, none to `rows`."""
        answer: Tensor = _Passes.apply(rows, *self.weights, *self.biases)
        return answer

    def arrays(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Weight (in, out) and bias (out,) of each layer, in the parameters' own memory."""
        pairs = zip(self.weights, self.biases, strict=True)
        return [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in pairs]

    def answer(self, rows: NDArray[Any]) -> NDArray[Any]:
        """(B, in) to (B, out) in NumPy, without gradients."""
        layers = self.arrays()
        answer = np.empty((len(rows), layers[-1][0].shape[1]), layers[0][0].dtype)
        for start in range(0, len(rows), _ROWS):
            block = slice(start, start + _ROWS)
            hidden = rows[block]
            for weight, bias in layers[:-1]:
                hidden = hidden @ weight
                hidden += bias
                np.tanh(hidden, out=hidden)
            np.add(hidden @ layers[-1][0], layers[-1][1], out=answer[block])
        return answer


class _Passes(torch.autograd.Function):  # type: ignore[misc]
    """Forward and backward through tanh layers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *parameters: Tensor) -> Tensor:
        half = len(parameters) // 2
        ctx.save_for_backward(rows, *parameters)
        weights = [one.detach().numpy() for one in parameters[:half]]
        biases = [one.detach().numpy() for one in parameters[half:]]
        source = rows.detach().numpy()
        answer = np.empty((len(source), weights[-1].shape[1]), weights[0].dtype)
        ctx.hidden = []
        for start in range(0, len(source), _ROWS):
            block = slice(start, start + _ROWS)
            layers = [source[block]]
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                below = layers[-1] @ weight
                below += bias
                layers.append(np.tanh(below, out=below))
            np.matmul(layers[-1], weights[-1], out=answer[block])
            ctx.hidden.append(layers[1:])
        answer += biases[-1]
        return torch.from_numpy(answer)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, *parameters = ctx.saved_tensors
        half = len(parameters) // 2
        weights = [one.detach().numpy() for one in parameters[:half]]
        to_weights = [np.zeros_like(one) for one in weights]
        to_biases = [np.zeros_like(one.detach().numpy()) for one in parameters[half:]]
        source, slopes = rows.detach().numpy(), slope.contiguous().numpy()
        for place, hidden in enumerate(ctx.hidden):
            block = slice(place * _ROWS, (place + 1) * _ROWS)
            layers = [source[block], *hidden]
            above = slopes[block]
            for layer in range(half - 1, -1, -1):
                to_weights[layer] += layers[layer].T @ above
                to_biases[layer] += above.sum(axis=0)
                if layer:
                    below = above @ weights[layer].T
                    through = layers[layer] * layers[layer]
                    np.subtract(1, through, out=through)
                    above = np.multiply(below, through, out=below)
        ctx.hidden = None
        return None, *map(torch.from_numpy, to_weights), *map(torch.from_numpy, to_biases)
