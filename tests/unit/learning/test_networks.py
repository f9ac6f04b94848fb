"""The networks: their values, slopes and first weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from burst import SMALL

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.learning.ppo import Perceptron  # noqa: E402
from inferway.learning.settings import Settings  # noqa: E402

WIDE = Settings()


def generator() -> Any:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("outputs", [1, 4])
def test_values_and_slopes_are_those_of_tanh_layers(outputs: int) -> None:
    network = Perceptron(20, outputs, SMALL, generator()).double()
    rows = torch.rand(300, 20, dtype=torch.float64)
    expected = rows
    for layer in network.layers[:-1]:
        expected = torch.tanh(layer(expected))
    expected = network.layers[-1](expected)
    torch.testing.assert_close(network(rows), expected)
    parameters = list(network.parameters())
    slope = torch.rand(300, outputs, dtype=torch.float64)
    ours = torch.autograd.grad(network(rows), parameters, slope)
    for one, other in zip(ours, torch.autograd.grad(expected, parameters, slope), strict=True):
        torch.testing.assert_close(one, other)


def test_arrays_are_the_layers_in_their_own_memory() -> None:
    network, rows = Perceptron(30, 3, SMALL, generator()), torch.rand(7, 30)
    (first, bias), (second, _), (third, _) = network.arrays()
    assert (first.shape, second.shape, third.shape) == ((30, 16), (16, 8), (8, 3))
    torch.testing.assert_close(network.layers[0](rows), rows @ torch.from_numpy(first))
    bias[:] = 1.0
    assert (network.layers[0].bias == 1.0).all()


def test_initial_weights() -> None:
    network = Perceptron(132, 4, WIDE, generator(), gain=0.01)
    first, last = (network.layers[place].weight.detach().double() for place in (0, -1))
    torch.testing.assert_close(first @ first.T, 2 * torch.eye(90).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4).double(), atol=1e-9, rtol=0)
    uniform = Perceptron(132, 4, replace(WIDE, initial="uniform"))
    assert uniform.layers[0].weight.abs().max() <= 132**-0.5
    assert uniform.layers[0].bias.abs().max() > 0
    again = Perceptron(132, 4, WIDE, generator(), gain=0.01)
    pairs = zip(network.parameters(), again.parameters(), strict=True)
    assert all((one == other).all() for one, other in pairs)
