"""Why a request is not taken, in a sentence, and when another try is worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from inferway.live.health import Health
from inferway.live.predict import Forecast
from inferway.live.request import Outcome, Request

GAVE_WAY = "a request of higher priority took the place of this one; try again later"


class Rejection(NamedTuple):
    """How a request ends that no server takes."""

    outcome: Outcome
    reason: str
    retry_after_s: float


def rejection(
    request: Request,
    task: str,
    accuracy: Sequence[float],
    forecast: Forecast,
    health: Health,
    left_s: float,
) -> Rejection:
    """Say why a request was not taken.

    Parameters
    ----------
    request
        The one that the policy, or the queues' room, left without a server.
    task
        Its task.
    accuracy
        Of each class, 0..1.
    forecast
        Of the task's servers.
    health
        Of the same.
    left_s
        Until its deadline; inf where it has none, or is served late too.
    """
    mask = forecast.mask(request)
    if not mask:
        best = max(a for k, a in enumerate(accuracy) if request.classes >> k & 1)
        reason = f"accuracy is {request.floor}; the most accurate variant here has {best:g}"
        return Rejection(Outcome.INVALID, reason, 0.0)
    if not health.any_of(mask):
        reason = f"no instance of task {task!r} that may answer this request is healthy now"
        return Rejection(Outcome.UNAVAILABLE, reason, health.retry_s(mask))
    if left_s < math.inf:
        earliest_s = forecast.earliest_s(mask, request.rows)
        if earliest_s > left_s:
            reason = (
                f"no answer is predicted before {max(1e-3, earliest_s * 1e3):.3g} ms, and the "
                f"deadline is in {max(0.0, left_s * 1e3):.3g} ms"
            )
            return Rejection(Outcome.REJECTED, reason, earliest_s - max(0.0, left_s))
    reason = f"task {task!r} has no room for this request now; try again later"
    return Rejection(Outcome.REJECTED, reason, forecast.idle_s(mask))
