"""The system of [Tan24] (Sec. 5.1): one edge server, two variants, a workload with bursts.

Service times are not printed. 42.9 ms and 10.7 ms give what Table 2 says of HW and LW: four
servers of 42.9 ms turn away 48.2 % of 180 requests per second, as printed (48.11 %).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import MapArrivals, PhasedArrivals, phased
from inferway.learning.control import Control
from inferway.site import Fleet
from inferway.twin.scenario import Scenario

TASK = "recognise"
VARIANTS = ("light", "heavy")
# EfficientNet-B0 and PNASNet-5-Large: the calibration of the module's docstring.
SERVICE_S = (0.0107, 0.0429)
ACCURACY = (0.7769, 0.8278)  # on ImageNet's validation set, as printed (Sec. 5.1.1).
# Accuracies that rewards count in training: other data than the evaluation's (Sec. 5.1.1). The
# paper evaluates on ImageNet's validation set and lets the reward of eq. 2 count accuracies on
# ImageNet-V2, "matched frequency" (Recht et al., ICML 2019), without printing them. These are top-1
# of timm's ``results-imagenetv2-matched-frequency.csv``: of `efficientnet_b0.ra_in1k` (224 x 224,
# crop 0.875; 0.77698 on ImageNet, the paper's 77.69 %) and `pnasnet5large.tf_in1k` (331 x 331, crop
# 0.911; 0.82814; 0.82782 in timm's earlier tables, the paper's 82.78 %). No other EfficientNet-B0
# there has the paper's accuracy.
GAINS = (0.6615, 0.7256)
SIZES = (1, 3, 5)  # of batches (Sec. 5.2.2).
# Part of one request's time that a batch pays once: a small network hardly fills a GPU, so that
# batches cost it little more.
LIGHT_PHI = 0.7
HEAVY_PHI = 0.3  # a large network fills it already
BUFFER = 15
DEADLINE_S = 0.3
VIOLATIONS = 0.02  # of a P98 requirement

BURSTY, NORMAL = 0, 1
PHASES = {"bursty": BURSTY, "normal": NORMAL}
RATE_PER_S = (180.0, 10.0)
# The first is printed as 0.036, which fits nothing else in the paper; see `table_2`.
LEAVING_PER_S = (0.0036, 0.0002)
HOLDING_S = (1 / LEAVING_PER_S[0], 1 / LEAVING_PER_S[1])
WORKLOADS = ("map", "periodic")


def arrivals_of(workload: str) -> MapArrivals | PhasedArrivals:
    """``map``: eq. 12. ``periodic``: Sec. 5.2.3, each state for its mean sojourn time.

    Both have the bursty state as phase 0. ValueError for another name.
    """
    if workload == "map":
        out, back = LEAVING_PER_S
        high, low = RATE_PER_S
        silent, arriving = [[-high - out, out], [back, -low - back]], [[high, 0.0], [0.0, low]]
        return MapArrivals.read({"process": "map", "d0": silent, "d1": arriving})
    if workload == "periodic":
        return phased(
            (holding_s, rate_per_s, None)
            for rate_per_s, holding_s in zip(RATE_PER_S, HOLDING_S, strict=True)
        )
    raise ValueError(f"unknown workload {workload!r}: expected one of {', '.join(WORKLOADS)}")


def mean_rate_per_s() -> float:
    """Requests per second in the long run, of both workloads."""
    held = np.array(HOLDING_S)
    return float(held @ np.array(RATE_PER_S) / held.sum())


def batch_service_s(service_s: float, phi: float) -> tuple[float, ...]:
    """Service times of whole batches of `SIZES`, s: assumed, as the paper prints none.

    A batch of b takes s1 (phi + (1 - phi) b). ValueError where phi is not in 0..1.
    """
    if not 0 <= phi <= 1:
        raise ValueError(f"the part that a batch pays once is in 0..1, not {phi:g}")
    return tuple(service_s * (phi + (1 - phi) * size) for size in SIZES)


def scenario(
    workload: str = "map",
    *,
    counts: tuple[int, int] = (2, 2),
    deadline_s: float = DEADLINE_S,
    service_s: tuple[float, float] = SERVICE_S,
    distribution: str = "deterministic",
    cv: float = 0.0,
    phis: tuple[float, float] | None = None,
) -> Scenario:
    """The site as the twin has it; late requests are served.

    Light and heavy are the counts of servers (a variant of none is left out), the mean service
    times, s, with their law and its coefficient of variation, and with batches the phis of
    `batch_service_s`.
    """
    there = [k for k, count in enumerate(counts) if count]
    fleet = Fleet(
        variants=tuple(VARIANTS[k] for k in there),
        rate=np.array([1 / service_s[k] for k in there]),
        accuracy=np.array([ACCURACY[k] for k in there]),
        count=np.array([counts[k] for k in there]),
        buffer=BUFFER,
    )
    batches: tuple[Batch | None, ...] = ()
    if phis is not None:
        times = [batch_service_s(service_s[k], phis[k]) for k in there]
        batches = tuple(Batch(SIZES, of, 1, SIZES[-1]) for of in times)
    return Scenario(
        fleet=fleet,
        service=tuple(ServiceTime(distribution, service_s[k], cv=cv) for k in there),
        arrivals=arrivals_of(workload),
        policy="deadline",
        deadline_s=deadline_s,
        late="serve",
        batches=batches,
    )


def control(
    policy: str,
    workload: str = "map",
    *,
    deadline_s: float = DEADLINE_S,
    phis: tuple[float, float] = (LIGHT_PHI, HEAVY_PHI),
) -> Control:
    """The site as ``rl-po``, ``rl-fo`` or, with batches, these with ``-b`` are trained on it.

    Rewards count `GAINS`.
    """
    batches = policy.endswith("-b")
    return Control(
        scenario(workload, deadline_s=deadline_s, phis=phis if batches else None),
        sees_phase=policy.startswith("rl-fo"),
        batches=batches,
        gains=GAINS,
    )


def upper_bound(
    rate_per_s: float,
    *,
    counts: Sequence[int],
    service_s: Sequence[float],
    accuracy: Sequence[float],
    deadline_s: float,
    lasts_s: float,
) -> tuple[float, tuple[float, ...]]:
    """The greatest goodput of all schedulers in a state of the workload, and the classes' shares.

    The state has lambda requests per second and lasts so long in the mean; servers, mean service
    times and accuracies are by class. Let x_k be the requests per second that class k answers in
    time. Then

        goodput <= max sum_k a_k x_k / lambda   subject to   sum_k x_k <= lambda,  0 <= x_k <= r_k,

    with r_k what class k can serve. A burst that lasts T seconds leaves its last requests a
    deadline D beyond its end, and a server is busy with requests of the burst only between its
    beginning and T + D: of services with mean s, the n_k servers of a class end at most
    n_k (T + D) / s within that time on average (for laws with a coefficient of variation up to 1,
    by Wald's identity, whatever the policy knows of the past). Per second of burst this is
    r_k = n_k / s (1 + D / E[T]). The program is solved by filling classes in the order of their
    accuracies.

    The normal state has the same bound; its 10 requests per second fit into the heavy servers. What
    bursts use of these after their end is left out, so the mean of both is an upper bound, too.
    """
    left, shares = 1.0, [0.0] * len(counts)
    for k in sorted(range(len(counts)), key=lambda k: -accuracy[k]):
        most = counts[k] / service_s[k] * (1 + deadline_s / lasts_s) / rate_per_s
        shares[k] = min(left, most)
        left -= shares[k]
    return sum(a * share for a, share in zip(accuracy, shares, strict=True)), tuple(shares)
