"""Upper bound of all schedulers: goodput by state of the workload, and its mean.

In a state with lambda requests per second, let x_k be the requests per second that class k answers
in time. Then

    goodput <= max sum_k a_k x_k / lambda   subject to   sum_k x_k <= lambda,  0 <= x_k <= r_k,

with r_k what class k can serve. A burst that lasts T seconds leaves its last requests a deadline D
beyond its end, and a server is busy with requests of the burst only between its beginning and
T + D: of services with mean s, the n_k servers of a class end at most n_k (T + D) / s within that
time on average (for laws with a coefficient of variation up to 1, by Wald's identity, whatever the
policy knows of the past). Per second of burst this is r_k = n_k / s (1 + D / E[T]). The program is
solved by filling classes in the order of their accuracies.

The normal state has the same bound; its 10 requests per second fit into the heavy servers. What
bursts use of these after their end is left out, so the mean of both is an upper bound, too.
"""

from __future__ import annotations

from collections.abc import Sequence


def state(
    rate_per_s: float,
    *,
    counts: Sequence[int],
    service_s: Sequence[float],
    accuracy: Sequence[float],
    deadline_s: float,
    lasts_s: float,
) -> tuple[float, tuple[float, ...]]:
    """The greatest goodput ratio in a state, and the shares of the classes with it.

    Parameters
    ----------
    rate_per_s
        Arrivals, 1/s.
    counts, service_s, accuracy
        By class: servers, mean service time in s, accuracy.
    deadline_s
        From arrival, s.
    lasts_s
        Mean time in the state, s.
    """
    left, shares = 1.0, [0.0] * len(counts)
    for k in sorted(range(len(counts)), key=lambda k: -accuracy[k]):
        most = counts[k] / service_s[k] * (1 + deadline_s / lasts_s) / rate_per_s
        shares[k] = min(left, most)
        left -= shares[k]
    goodput = sum(a * share for a, share in zip(accuracy, shares, strict=True))
    return goodput, tuple(shares)
