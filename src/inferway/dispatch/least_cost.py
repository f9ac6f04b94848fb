"""Least cost: every request where it costs the least by eq. 6 of [SiSalem23], its wait included.

In the paper (Sec. III-E) a request goes to the option of the smallest serving cost, round trip plus
service time plus the price of inaccuracy, that is not saturated. Its options have a capacity per
slot and no queue; here they have one, so that the predicted wait is part of the latency that a
request pays for, and what is saturated is `max_wait` to say (`inferway.dispatch.Dispatcher`).

A request that waits makes others wait, which eq. 6 does not count. At a server of Poisson arrivals,
busy the part rho of the time, one that finds u of work before it adds ``u rho / (1 - rho)`` to the
waits of those that come after it, besides what does not depend on u: the first step of policy
iteration from a random split (Krishnan, Joining the right queue: a Markov decision rule, 26th IEEE
Conference on Decision and Control, 1987). So at a `wait_price` of 1 / (1 - rho) a wait costs what
it costs all.

Equal costs go to the class that answers sooner. The paper ranks them by place on the path; what is
nearer to the entry is the quicker among equals, as far as the way there is what they differ in.

Within a class, idle servers come before busy ones: a service that has outlived its prediction is
predicted to end now, and servers of a class that have measured different times, as those that
forward to the same place do, differ by chance more often than by nature.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number
from inferway.site import (
    REJECT,
    Fleet,
    Request,
    Site,
    has_class,
    predicted_join,
)

ALPHA = 1.0  # ms per point of inaccuracy, as where a deployment file does not say
_POINT_S = 0.1  # What inaccuracy costs at alpha 1, s: 100 points of 1 ms
# Times that differ by less are equal: they are sums, and their rounding must not decide.
_TIE_S = 1e-9


class LeastCost(NamedTuple):
    """Predicted wait and service time, and the price of inaccuracy."""

    price_s: float  # Seconds per unit of inaccuracy, 0..1
    wait_price: float = 1.0  # Seconds per second of predicted wait

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        alpha: Annotated[
            Number | None,
            Field(
                description="Milliseconds per point of inaccuracy; if not given, as `cost` says, "
                "or 1."
            ),
        ] = None,
        wait_price: Annotated[
            Number,
            Field(
                ge=1.0,
                description="Milliseconds that one of predicted wait costs: 1 as the request's "
                "own, more with what it makes others wait.",
            ),
        ] = 1.0,
    ) -> LeastCost:
        """Set the prices.

        ValueError for an alpha below 0 or not finite, and a price of waiting below 1.
        """
        if alpha is None:
            alpha = ALPHA
        if not (alpha >= 0.0 and np.isfinite(alpha)):
            raise ValueError(f"alpha is {alpha:g} ms per point; it must be 0 or more")
        if not (wait_price >= 1.0 and np.isfinite(wait_price)):
            raise ValueError(f"a second of wait costs 1 s or more, not {wait_price:g}")
        return cls(_POINT_S * float(alpha), float(wait_price))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The server of the least cost; REJECT where none may take the request."""
        best, least = REJECT, np.inf
        for k in range(site.rate.size):
            if not has_class(request.classes, k):
                continue
            mine, mine_s, idle = REJECT, np.inf, False
            for server in range(site.first[k], site.first[k + 1]):
                free = site.queue[server] == 0
                if not request.allowed[server] or (idle and not free):
                    continue
                wait_s, service_s = predicted_join(site, server, request.rows)
                time_s = self.wait_price * wait_s + service_s
                if time_s < mine_s - _TIE_S or (free and not idle):
                    mine, mine_s, idle = server, time_s, free
            cost_s = mine_s + self.price_s * (1.0 - site.accuracy[k])
            if cost_s < least - _TIE_S:
                best, least = mine, cost_s
        return best
