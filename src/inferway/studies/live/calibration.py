"""Speed of this machine today: the time that one request to each variant takes, alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression, linprog

from inferway.catalog.zoo import testset
from inferway.dispatch.bounds import max_rate
from inferway.loadgen import Stream, replay
from inferway.loadgen.process import Progress
from inferway.site.fleet import Fleet
from inferway.studies.live.servers import DemoError

_LEAST: Final = 20
_MOST: Final = 300


class Calibration(NamedTuple):
    """Times from send to answer of lone requests, in seconds by variant.

    Attributes
    ----------
    service_s
        Median: what to plan with. Not the mean, for a shared machine has pauses that are no part
        of the service.
    least_s
        Tenth percentile, for a lower bound: nothing is answered much faster, even if the machine
        was busy with other things while it was measured.
    """

    service_s: dict[str, float]
    least_s: dict[str, float]


def calibrate(
    url: str,
    expected_s: Mapping[str, float],
    *,
    each_s: float = 1.5,
    progress: Progress | None = None,
    task: str = "digits",
) -> Calibration:
    """Measure the time from send to answer of requests sent one after another.

    It holds the model, the server's work and the generator's, so it is also what a request takes
    of the cores that all of them share.

    Parameters
    ----------
    url, task
        Whom to ask: a server of the digits zoo.
    expected_s
        By variant, the service time of its profile, fastest first. It tells how many requests fit
        in `each_s`; and its order stands: where the measured times contradict it, the variants
        differ by less than the noise, and get the same time.
    each_s
        How long to measure each variant, seconds, roughly.

    Raises
    ------
    DemoError
        When a variant does not answer.
    KeyboardInterrupt
        When the requests were stopped by it.
    """
    streams, images = [], testset(task).images[:256]
    for variant, expected in expected_s.items():
        count = int(np.clip(each_s / (expected + 3e-4), _LEAST, _MOST))
        # All due at once on one connection: each is sent when the one before is answered.
        streams.append(Stream(task, np.zeros(count), images, variant=variant))
    records = replay(url, streams, connections=1, grace_s=60.0, progress=progress)
    if any(record.interrupted for record in records):
        raise KeyboardInterrupt
    least, median = [], []
    for variant, record in zip(expected_s, records, strict=True):
        if not record.answered.all():
            raise DemoError(f"variant {variant} did not answer {(~record.answered).sum()} requests")
        # The first few meet cold caches.
        low, middle = np.percentile((record.done_s - record.sent_s)[5:], (10, 50)).tolist()
        least.append(low)
        median.append(middle)
    # The closest times that do not fall.
    ordered = [isotonic_regression(times_s).x.tolist() for times_s in (median, least)]
    return Calibration(*(dict(zip(expected_s, times_s, strict=True)) for times_s in ordered))


def times_of(fleet: Fleet) -> dict[str, float]:
    """Service times of a fleet's profiles, in seconds by variant."""
    return dict(zip(fleet.variants, (1 / fleet.rate).tolist(), strict=True))


def as_measured(fleet: Fleet, service_s: Mapping[str, float]) -> Fleet:
    """Return the fleet with measured service times, in seconds by variant."""
    return replace(fleet, rate=np.array([1 / service_s[name] for name in fleet.variants]))


def feasible_rate(fleet: Fleet, target: float, cores: float) -> float:
    """Greatest arrival rate that keeps the target when all instances share a few cores.

    Definition 1 of [Anonymous] lets every server work at its own rate at the same time. With more
    instances than cores they cannot: the requests' total work must fit into the cores. So, with
    x_k the rate that goes to class k: maximize sum(x) subject to sum((a_k - target) x_k) >= 0,
    x_k <= n_k mu_k, and sum(x_k / mu_k) <= cores.

    The fleet's service rates hold the whole work of a request. The rate is at most
    `inferway.dispatch.bounds.max_rate`.
    """
    solution = linprog(
        -np.ones(len(fleet.rate)),
        A_ub=np.array([target - fleet.accuracy, 1 / fleet.rate]),
        b_ub=[0.0, cores],
        bounds=[(0.0, float(capacity)) for capacity in fleet.capacity],
        method="highs",
    )
    if solution.x is None:
        raise DemoError(f"no rate keeps the target {target:g}: {solution.message}")
    return min(float(solution.x.sum()), max_rate(fleet, target))
