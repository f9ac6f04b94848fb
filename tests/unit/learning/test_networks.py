"""Our passes through the layers against PyTorch's own, and sparse rows against dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.learning.networks import Perceptron  # noqa: E402
from inferway.learning.rows import Rows  # noqa: E402


def sparse(rows: int, features: int, kind: Any = np.float32, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    dense = random.random((rows, features))
    return np.where(dense < 0.8, 0.0, dense).astype(kind)


def reference(network: Perceptron, rows: Any) -> Any:
    """The same layers, by PyTorch."""
    for weight, bias in zip(network.weights[:-1], network.biases[:-1], strict=True):
        rows = torch.tanh(rows @ weight + bias)
    return rows @ network.weights[-1] + network.biases[-1]


@pytest.mark.parametrize("outputs", [1, 4])
def test_passes_are_those_of_the_layers(outputs: int) -> None:
    network = Perceptron(20, outputs, hidden=(9, 6), generator=torch.Generator().manual_seed(1))
    network.double()
    dense = sparse(1300, 20, np.float64)  # three blocks, the last one short
    chosen = np.random.default_rng(1).permutation(1300)[:1100]
    slope = torch.from_numpy(np.random.default_rng(2).normal(size=(1100, outputs)))
    found = network(Rows.of(dense), chosen)
    expected = reference(network, torch.from_numpy(dense[chosen]))
    torch.testing.assert_close(found, expected)
    parameters = list(network.parameters())
    ours = torch.autograd.grad(found, parameters, slope)
    for one, other in zip(ours, torch.autograd.grad(expected, parameters, slope), strict=True):
        torch.testing.assert_close(one, other)


def test_answers_without_gradients_are_the_same() -> None:
    network = Perceptron(30, 3)
    rows = Rows.of(sparse(700, 30))
    found = network.answer(rows)
    np.testing.assert_array_equal(found, network(rows, np.arange(700)).detach().numpy())
    some = np.array([5, 3, 699])
    np.testing.assert_allclose(network.answer(rows, some), found[some], rtol=1e-5, atol=1e-6)


def test_a_network_of_fewer_inputs_sees_the_first_features() -> None:
    network, dense = Perceptron(25, 2), sparse(40, 30)
    np.testing.assert_array_equal(
        network.answer(Rows.of(dense)), network.answer(Rows.of(np.ascontiguousarray(dense[:, :25])))
    )
    network(Rows.of(dense), np.arange(40)).sum().backward()
    assert network.weights[0].grad.shape == (25, 90)


def test_rows_are_appended() -> None:
    dense = sparse(10, 7)
    rows = Rows(10, 7)
    rows.append(dense[:4])
    rows.append(dense[4:])
    weight = np.eye(7, dtype=np.float32)
    back = np.empty((10, 7), np.float32)
    rows.product(np.arange(10), weight, np.zeros(7, np.float32), back)
    np.testing.assert_array_equal(back, dense)
    rows.clear()
    rows.append(dense[6:])
    rows.product(np.arange(4), weight, np.zeros(7, np.float32), back[:4])
    np.testing.assert_array_equal(back[:4], dense[6:])


def test_rows_without_zeros_and_without_anything_else() -> None:
    dense = np.vstack([np.ones((1, 7)), np.zeros((1, 7))]).astype(np.float32)
    rows, out = Rows.of(dense), np.empty((2, 1), np.float32)
    rows.product(np.arange(2), np.ones((7, 1), np.float32), np.ones(1, np.float32), out)
    assert out[:, 0].tolist() == [8.0, 1.0]


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Rows(3, 7).append(np.zeros((4, 7), np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        Rows(3, 7).append(np.zeros((1, 6), np.float32))


def test_initial_weights() -> None:
    network = Perceptron(132, 4, gain=0.01, generator=torch.Generator().manual_seed(1))
    first, last = (weight.detach().double() for weight in (network.weights[0], network.weights[-1]))
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(90).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(last.T @ last, 1e-4 * torch.eye(4).double(), atol=1e-9, rtol=0)
    uniform = Perceptron(132, 4, initial="uniform")
    assert uniform.weights[0].abs().max() <= 132**-0.5
    assert uniform.biases[0].abs().max() > 0
    again = Perceptron(132, 4, gain=0.01, generator=torch.Generator().manual_seed(1))
    assert all((a == b).all() for a, b in zip(network.weights, again.weights, strict=True))
