"""The waiting time in the M/D/1 queue, exactly.

Erlang's distribution in the form of Franx (doi 10.1016/S0167-6377(01)00108-0), whose terms are all
positive: Erlang's own alternate in sign and lose every digit in the tail.
"""

from __future__ import annotations

import math

import numpy as np

from inferway.site.view import Floats

_NEGLIGIBLE = 1e-17


def later_than(wait_s: float, rate_per_s: float, service_s: float) -> float:
    """Probability of waiting for longer than `wait_s` in an M/D/1 queue.

    Parameters
    ----------
    wait_s
        Time, s; below 0 the probability is 1.
    rate_per_s
        Arrival rate, 1/s.
    service_s
        Service time, s.

    Returns
    -------
    float
        1 where the queue is not stable. Its error is below 1e-12, also relative to 1 - P.

    Notes
    -----
    For (k - 1) D <= x < k D, with Q_j the probability that at most j requests wait:

        P(W <= x) = sum over j = 0 .. k - 1 of Q_{k-1-j} Poisson(lambda (k D - x), j)

    At the time x after an arrival, that is k D - x before the k-th service time from it is over, it
    is in service if those that waited or have come since then are few enough.
    """
    if wait_s < 0.0:
        return 1.0
    if rate_per_s <= 0.0:
        return 0.0
    load = rate_per_s * service_s
    if load >= 1.0:
        return 1.0
    k = math.floor(wait_s / service_s) + 1
    below = np.cumsum(at_departures(load, k + 1))[1:]  # Q_j: at most j + 1 in the system
    weights = _poisson(rate_per_s * max(0.0, k * service_s - wait_s), k)
    return min(1.0, max(0.0, 1.0 - float(below[::-1] @ weights)))


def at_departures(load: float, count: int) -> Floats:
    """(count,) probabilities of 0, 1, ... requests in an M/D/1 queue of a load below 1.

    By the recursion on tails (Ramaswami, doi 10.1080/15326348808807077), which only adds: what is
    there after a departure is what was there before, less one, and what came during a service.
    """
    arrivals = _poisson(load, count + 1)
    tail = _upper(load, arrivals)
    found = np.zeros(count)
    found[0] = 1.0 - load
    for j in range(1, count):
        above = found[0] * tail[j - 1] + found[1:j] @ tail[j - 1 : 0 : -1]
        found[j] = above / arrivals[0]
    return found


def _poisson(mean: float, count: int) -> Floats:
    """(count,) probabilities of 0, 1, ... under Poisson's law."""
    return math.exp(-mean) * np.cumprod(np.append(1.0, mean / np.arange(1, count)))


def _upper(mean: float, probabilities: Floats) -> Floats:
    """(count,) probabilities of more than 0, 1, ..., summed from the small end."""
    term, number = float(probabilities[-1]), len(probabilities)
    beyond = 0.0
    while term > _NEGLIGIBLE * max(beyond, 1e-300):
        term *= mean / number
        number += 1
        beyond += term
    return np.cumsum(np.append(probabilities[1:], beyond)[::-1])[::-1]
