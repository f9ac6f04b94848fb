"""The softmax-Gaussian policy on the probability simplex: [Tan24], eq. 8 and 9.

An action is y = softmax(z) with z drawn from N(f, sigma^2 I). Softmax forgets one direction of z,
so the density of y is not that of z; it is the logistic-normal density of Aitchison and Shen
(doi 10.1093/biomet/67.2.261), which eq. 9 writes without choosing a reference coordinate.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints


class SoftmaxGaussian(Distribution):  # type: ignore[misc]
    """Density of softmax(z), z normal with independent components of one standard deviation.

    With q = log y - f and the mean q' of q over its n components, eq. 9 is

        log p(y) = -sum((q - q')^2) / (2 sigma^2) - (n - 1) log(sigma sqrt(2 pi)) - log(n) / 2
                   - sum(log y),

    a density with respect to dy_1 ... dy_(n-1), the last component being what the others leave.
    The paper prints the square as (sum q)^2 / n - sum q^2; centered it loses no digits, and as the
    centered q does not change when log y is shifted, unnormalized log actions give it as well.

    Parameters
    ----------
    loc
        (..., n) f, what the network says; n at least 2. Components that are minus infinity are
        no part of the simplex: y is 0 there. That is for `validate_args=False` and
        `log_prob_of_log` alone.
    scale
        sigma, above 0: a number or (...).
    validate_args
        As for other distributions of PyTorch.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {
        "loc": constraints.real_vector,
        "scale": constraints.positive,
    }
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self, loc: Tensor, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        if loc.dim() < 1 or loc.shape[-1] < 2:
            raise ValueError(f"loc holds at least 2 components, not a shape of {tuple(loc.shape)}")
        self.loc = loc
        self.scale = torch.as_tensor(scale, dtype=loc.dtype, device=loc.device)
        if self.scale.dim():
            batch = torch.broadcast_shapes(loc.shape[:-1], self.scale.shape)
            self.loc = loc.expand(*batch, loc.shape[-1])
            self.scale = self.scale.expand(batch)
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> SoftmaxGaussian:
        """Repeat the distribution; as for other distributions of PyTorch."""
        batch = torch.Size(batch_shape)
        new: SoftmaxGaussian = self._get_checked_instance(SoftmaxGaussian, _instance)
        new.loc = self.loc.expand(*batch, *self.event_shape)
        new.scale = self.scale.expand(batch) if self.scale.dim() else self.scale
        super(SoftmaxGaussian, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def center(self) -> Tensor:
        """(..., n) softmax(f), the action with sigma = 0: what a deployed policy does."""
        return torch.softmax(self.loc, -1)

    @property
    def mode(self) -> Tensor:
        """(..., n) where eq. 9 is greatest; not `center`, as the density is one of y, not of z.

        With c = log y less its mean, the density's logarithm is a concave quadratic plus the convex
        n log sum exp(c): c <- f - f' + sigma^2 (n softmax(c) - 1), the concave-convex procedure
        (doi 10.1162/08997660360581958), never lowers it. The maximum is the only one for
        n sigma^2 < 2 (0.698 and n = 4: 1.95); else it is the one that `center` leads to.
        """
        c = flat = self.loc - self.loc.mean(-1, keepdim=True)
        n, variance = self.event_shape[0], self.scale[..., None] ** 2
        for _ in range(1000):
            before, c = c, flat + variance * (n * torch.softmax(c, -1) - 1)
            near = 4 * torch.finfo(c.dtype).eps * c.abs().clamp(min=1.0).amax(-1, keepdim=True)
            if ((c - before).abs() <= near).all():
                break
        return torch.softmax(c, -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw y, with gradients to `loc` and `scale`."""
        return self.rsample_log(sample_shape).exp()

    def rsample_log(self, sample_shape: Any = ()) -> Tensor:
        """Draw log y, which says what y is where y itself would be rounded to zero."""
        noise = self.loc.new_empty(self._extended_shape(torch.Size(sample_shape))).normal_()
        return torch.log_softmax(self.loc + self.scale[..., None] * noise, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """(...) log density at y; -inf or not-a-number on the simplex's edge, where it is 0.

        What was drawn as log y is better given to `log_prob_of_log`.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self.log_prob_of_log(value.log(), normalized=True)

    def log_prob_of_log(self, log_y: Tensor, *, normalized: bool = False) -> Tensor:
        """(...) log density at softmax(log_y).

        Parameters
        ----------
        log_y
            (..., n) logarithms of an action, or of any multiple of it, such as the z drawn.
        normalized
            Whether exp(log_y) is known to have the sum 1.
        """
        away = torch.isneginf(self.loc)
        if bool(away.any()):
            return self._log_prob_of_part(log_y, ~away, normalized)
        n, q = self.event_shape[0], log_y - self.loc
        q = q - q.mean(-1, keepdim=True)
        square = (q * q).sum(-1) / (2 * self.scale**2)
        norm = (n - 1) * (self.scale.log() + 0.5 * math.log(2 * math.pi)) + 0.5 * math.log(n)
        total = log_y.sum(-1)
        if not normalized:
            total = total - n * torch.logsumexp(log_y, -1)
        return -square - norm - total

    def _log_prob_of_part(self, log_y: Tensor, there: Tensor, normalized: bool) -> Tensor:
        """(...) as `log_prob_of_log` over the components that are there, one at least."""
        n = there.sum(-1).to(self.loc.dtype)
        q = torch.where(there, log_y - self.loc, 0.0)
        q = torch.where(there, q - q.sum(-1, keepdim=True) / n[..., None], 0.0)
        square = (q * q).sum(-1) / (2 * self.scale**2)
        norm = (n - 1) * (self.scale.log() + 0.5 * math.log(2 * math.pi)) + 0.5 * n.log()
        kept = torch.where(there, log_y, -math.inf)
        total = torch.where(there, log_y, 0.0).sum(-1)
        if not normalized:
            total = total - n * torch.logsumexp(kept, -1)
        return -square - norm - total

    def entropy(self, samples: int = 256) -> Tensor:
        """(...) estimate of -E[log p(y)], with gradients.

        All but E[log sum exp(z)] is known exactly; that mean is taken over draws in pairs of
        opposite sign, so that its error is of second order in sigma.

        Parameters
        ----------
        samples
            Pairs to draw.
        """
        n = self.event_shape[0]
        noise = self.scale[..., None] * self.loc.new_empty((samples, *self.loc.shape)).normal_()
        both = torch.logsumexp(self.loc + noise, -1) + torch.logsumexp(self.loc - noise, -1)
        total = self.loc.sum(-1) - n * both.mean(0) / 2  # E[sum(log y)]
        known = (n - 1) * (self.scale.log() + 0.5 * math.log(2 * math.pi * math.e))
        return known + 0.5 * math.log(n) + total
