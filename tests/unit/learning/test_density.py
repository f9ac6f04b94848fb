"""Eq. 9 against integrals, the change of variables, draws and finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import dblquad, quad

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.learning.density import SoftmaxGaussian  # noqa: E402

F2 = [0.4, -0.3]
F3 = [0.5, -1.0, 0.2]
F4 = [1.5, -0.5, 0.0, 0.3]
SIGMA = 0.698


def density(f: list[float], sigma: float = SIGMA) -> Any:
    return SoftmaxGaussian(torch.tensor(f, dtype=torch.float64), sigma)


def printed(f: list[float], sigma: float, y: list[float]) -> float:
    """Eq. 9 as the paper prints it."""
    n = len(f)
    q = [-one + math.log(part) for one, part in zip(f, y, strict=True)]
    power = sum(q) ** 2 / (2 * n * sigma**2) - sum(one * one for one in q) / (2 * sigma**2)
    norm = math.sqrt(n) * (sigma * math.sqrt(2 * math.pi)) ** (n - 1) * math.prod(y)
    return math.exp(power) / norm


@pytest.mark.parametrize("y", [[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.15, 0.05]])
def test_is_what_the_paper_prints(y: list[float]) -> None:
    found = density(F4).log_prob(torch.tensor(y, dtype=torch.float64)).exp().item()
    assert found == pytest.approx(printed(F4, SIGMA, y), rel=1e-12)


@pytest.mark.parametrize("sigma", [0.3, SIGMA, 1.5])
def test_integrates_to_one_over_two_servers(sigma: float) -> None:
    policy = density(F2, sigma)

    def at(y: float) -> float:
        return float(policy.log_prob(torch.tensor([y, 1 - y], dtype=torch.float64)).exp())

    assert quad(at, 0, 1, epsabs=1e-10)[0] == pytest.approx(1.0, abs=1e-8)


def test_integrates_to_one_over_three_servers() -> None:
    policy = density(F3)

    def at(b: float, a: float) -> float:
        y = torch.tensor([a, b, 1 - a - b], dtype=torch.float64)
        return float(policy.log_prob(y).exp())

    total = dblquad(at, 0, 1, 0, lambda a: 1 - a, epsabs=1e-5, epsrel=1e-5)[0]
    assert total == pytest.approx(1.0, abs=1e-4)


def test_is_the_change_of_variables() -> None:
    """The ratios z_i - z_n are normal; dy over them has the determinant prod(y)."""
    f, y = np.array(F4), np.array([0.4, 0.3, 0.2, 0.1])
    n = len(f)
    ratios = np.log(y[:-1] / y[-1])
    spread = SIGMA**2 * (np.eye(n - 1) + 1)
    away = ratios - (f[:-1] - f[-1])
    log_normal = -0.5 * away @ np.linalg.solve(spread, away)
    log_normal -= 0.5 * np.linalg.slogdet(2 * np.pi * spread)[1]
    expected = log_normal - np.log(y).sum()
    assert density(F4).log_prob(torch.tensor(y)).item() == pytest.approx(expected, rel=1e-12)


def test_parts_that_are_away_leave_the_density_of_the_others() -> None:
    some = [1.5, -math.inf, 0.0, -math.inf]
    f = torch.tensor([some, F4, [-math.inf, 2.0, -math.inf, -math.inf]], dtype=torch.float64)
    f.requires_grad_()
    policy = SoftmaxGaussian(f, SIGMA, validate_args=False)
    y = torch.tensor([[0.7, 0.0, 0.3, 0.0], [0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]]).double()
    found = policy.log_prob_of_log(y.log(), normalized=True)
    part = density([1.5, 0.0]).log_prob_of_log(y[0, [0, 2]].log(), normalized=True)
    whole = density(F4).log_prob_of_log(y[1].log(), normalized=True)
    assert found.tolist() == pytest.approx([part.item(), whole.item(), 0.0], rel=1e-12)
    # Not normalized, what the others are multiplied by does not count.
    torch.testing.assert_close(policy.log_prob_of_log(y.log() + 3.0), found)
    found.sum().backward()
    assert f.grad is not None
    assert torch.isfinite(f.grad).all()
    assert (f.grad[torch.isneginf(f)] == 0).all()
    near = torch.tensor([1.5, 0.0], dtype=torch.float64, requires_grad=True)
    SoftmaxGaussian(near, SIGMA).log_prob_of_log(y[0, [0, 2]].log(), normalized=True).backward()
    torch.testing.assert_close(f.grad[0, [0, 2]], near.grad)


def test_unnormalized_logarithms_say_the_same() -> None:
    policy = density(F4)
    z = torch.tensor([3.0, -2.0, 0.5, 1.0], dtype=torch.float64)
    expected = policy.log_prob(torch.softmax(z, -1))
    torch.testing.assert_close(policy.log_prob_of_log(z), expected)
    torch.testing.assert_close(policy.log_prob_of_log(z + 700.0), expected)


def test_stays_exact_where_an_action_is_rounded_to_zero() -> None:
    policy = SoftmaxGaussian(torch.tensor([400.0, 0.0, 0.0]), 0.5)
    log_y = policy.rsample_log()
    assert (log_y.exp() == 0).any()
    assert torch.isfinite(policy.log_prob_of_log(log_y, normalized=True))


def test_gradient() -> None:
    y = torch.log_softmax(torch.tensor([[0.2, 0.1, -0.4], [1.0, 0.0, 2.0]]).double(), -1)
    f = torch.tensor([F3, F3], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.7, 0.4], dtype=torch.float64, requires_grad=True)

    def log_prob(f: Any, sigma: Any) -> Any:
        return SoftmaxGaussian(f, sigma).log_prob_of_log(y, normalized=True)

    assert torch.autograd.gradcheck(log_prob, (f, sigma))


def test_gradient_with_respect_to_f_is_the_centered_distance() -> None:
    f = torch.tensor(F3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    SoftmaxGaussian(f, SIGMA).log_prob(y).backward()
    q = y.log() - f.detach()
    torch.testing.assert_close(f.grad, (q - q.mean()) / SIGMA**2)


def test_draws_are_on_the_simplex_and_follow_the_density() -> None:
    torch.manual_seed(1)
    drawn = density(F2).sample((200_000,))
    torch.testing.assert_close(drawn.sum(-1), torch.ones(200_000, dtype=torch.float64))
    below = drawn[:, 0] < 0.5

    def at(y: float) -> float:
        return printed(F2, SIGMA, [y, 1 - y])

    expected = quad(at, 0, 0.5)[0]
    assert below.double().mean().item() == pytest.approx(expected, abs=4 * 0.5 / 200_000**0.5)


def test_draws_have_gradients() -> None:
    f = torch.tensor(F3, requires_grad=True)
    SoftmaxGaussian(f, SIGMA).rsample()[0].backward()
    assert f.grad is not None
    assert f.grad[0] > 0


@pytest.mark.parametrize("f", [F2, F3, F4])
def test_entropy_is_minus_the_mean_log_density(f: list[float]) -> None:
    torch.manual_seed(2)
    policy = density(f)
    log_y = policy.rsample_log((400_000,))
    surprise = -policy.log_prob_of_log(log_y, normalized=True)
    error = surprise.std().item() / 400_000**0.5
    assert policy.entropy(20_000).item() == pytest.approx(surprise.mean().item(), abs=5 * error)


@pytest.mark.parametrize("sigma", [0.2, SIGMA, 2.0])
def test_mode_is_a_maximum(sigma: float) -> None:
    torch.manual_seed(3)
    policy = density(F4, sigma)
    top = policy.log_prob(policy.mode)
    near = torch.softmax(policy.mode.log() + 0.02 * torch.randn(2000, 4, dtype=torch.float64), -1)
    assert (policy.log_prob(near) <= top + 1e-12).all()


def test_mode_is_not_the_center_but_tends_to_it() -> None:
    assert (density(F4).mode - density(F4).center).abs().max() > 0.01
    torch.testing.assert_close(density(F4, 1e-3).mode, density(F4).center, atol=1e-5, rtol=0)


def test_batches_expansion_and_shapes() -> None:
    policy = SoftmaxGaussian(torch.zeros(5, 3), torch.full((5,), 0.3))
    assert (policy.batch_shape, policy.event_shape) == ((5,), (3,))
    assert policy.sample((7,)).shape == (7, 5, 3)
    assert policy.log_prob(policy.sample((7,))).shape == (7, 5)
    wide = SoftmaxGaussian(torch.zeros(3), 0.3).expand((2, 4))
    assert wide.sample().shape == (2, 4, 3)
    assert wide.entropy().shape == (2, 4)


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 components"):
        SoftmaxGaussian(torch.zeros(1), 0.3)
    with pytest.raises(ValueError, match="scale"):
        SoftmaxGaussian(torch.zeros(2), -0.3)
    with pytest.raises(ValueError, match="support"):
        SoftmaxGaussian(torch.zeros(2), 0.3).log_prob(torch.tensor([0.5, 0.6]))
