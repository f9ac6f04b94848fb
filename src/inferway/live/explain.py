"""Explanations of answers: kept as raw values, put into words when someone asks."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inferway.live.request import InferRequest, Outcome
from inferway.site.view import SIZES

KEPT = 4096
"""Requests that a site can explain."""


# Without the garbage collector: thousands of these live as long as it takes to replace them, and to
# look at them again and again would hold requests up by milliseconds. They hold no containers.


class Snapshot(msgspec.Struct, gc=False):
    """The site as the policy saw it."""

    now_s: float
    balance: float
    queue: bytes
    ends_s: bytes
    free_s: bytes
    row_s: bytes
    healthy: bytes
    shares: bytes
    """Probability of each server; empty where requests are not routed by probabilities."""


class FleetFacts(NamedTuple):
    """Facts of a fleet that explanations need.

    Attributes
    ----------
    variants, accuracy, first
        Names, accuracies in 0..1, and where each class begins.
    target
        The accuracy target, or None.
    places
        Places at each server.
    most_rows
        Rows of one run at most, by class.
    """

    variants: tuple[str, ...]
    accuracy: list[float]
    first: list[int]
    target: float | None
    places: int
    most_rows: list[int]


class LoggedRequest(msgspec.Struct, gc=False):
    """A request that has ended, without its tensors; as in `InferRequest`."""

    fleet: FleetFacts
    """That it was decided for."""
    id: bytes
    before: Snapshot | None
    server: int
    rows: int
    requests_together: int
    rows_together: int
    classes: int
    floor: float
    deadline_s: float
    priority: int
    counted: bool
    received_s: float
    predicted_s: float
    latency_s: float
    service_s: float
    outcome: Outcome
    reason: str
    elsewhere: bool
    """Whether another node answered."""


class RequestLog:
    """The last requests of a task, whoever served it."""

    def __init__(self) -> None:
        self._kept: deque[LoggedRequest] = deque(maxlen=KEPT)

    def keep(self, request: InferRequest, fleet: FleetFacts) -> None:
        """Remember how a request that was decided for this fleet ended, without its tensors."""
        assert request.outcome is not None
        self._kept.append(
            LoggedRequest(
                fleet,
                request.id,
                request.before,
                request.server,
                request.rows,
                *request.together,
                request.classes,
                request.floor,
                request.deadline_s,
                request.priority,
                request.counted,
                request.received_s,
                request.predicted_s,
                request.latency_s,
                request.service_s,
                request.outcome,
                request.reason,
                request.passed is not None,
            )
        )

    def explain(self, identity: bytes) -> dict[str, Any] | None:
        """Say why the last request of that name was answered as it was; None where it is unknown.

        As `GET /v2/models/{task}/explain/{id}` shows it; times in milliseconds.
        """
        for kept in reversed(self._kept):
            if kept.id == identity:
                return _words(kept)
        return None


def _words(ended: LoggedRequest) -> dict[str, Any]:
    fleet = ended.fleet
    before, outcome, deadline_s = ended.before, ended.outcome, ended.deadline_s
    chosen = _class(fleet, ended.server)
    candidates = [] if before is None else _candidates(before, ended)
    told: dict[str, Any] = {
        "id": ended.id.decode("latin-1"),
        "outcome": outcome.name.lower(),
        "variant": None if chosen is None else fleet.variants[chosen],
        "instance": None if chosen is None else ended.server - fleet.first[chosen],
        "rows": ended.rows,
        "batch": _batch(ended, chosen),
        "pinned": not ended.counted,
        "accuracy_floor": ended.floor or None,
        "priority": ended.priority or None,
        "deadline_ms": _ms(deadline_s - ended.received_s) if deadline_s < math.inf else None,
        "predicted_latency_ms": None if chosen is None else _ms(ended.predicted_s),
        "latency_ms": _ms(ended.latency_s) if outcome is Outcome.ANSWERED else None,
        "service_ms": _ms(ended.service_s) if outcome is Outcome.ANSWERED else None,
        "accuracy_target": fleet.target,
        "balance_before": None if before is None else before.balance,
        "balance_after": None,
        "candidates": candidates,
        "reason": ended.reason,
    }
    if before is not None:
        moved = 0.0
        if ended.counted and chosen is not None and outcome is Outcome.ANSWERED:
            moved = ended.rows * (fleet.accuracy[chosen] - (fleet.target or 0.0))
        told["balance_after"] = before.balance + moved
        for candidate in candidates:
            wait_s = candidate["predicted_wait_ms"] + candidate["predicted_service_ms"]
            late = before.now_s + wait_s / 1e3 > deadline_s
            candidate["in_time"] = not late
            candidate["chosen"] = candidate["variant"] == told["variant"]
        if chosen is not None and not ended.reason:
            told["reason"] = _why(fleet, chosen, candidates, told)
    return told


def _candidates(before: Snapshot, ended: LoggedRequest) -> list[dict[str, Any]]:
    fleet = ended.fleet
    rows = ended.rows
    queue = np.frombuffer(before.queue, np.int32)
    ends_s, free_s = np.frombuffer(before.ends_s), np.frombuffer(before.free_s)
    left_s = np.maximum(0.0, ends_s - before.now_s) + (free_s - ends_s)
    wait_s = np.where(queue == 0, 0.0, left_s)
    row_s = np.frombuffer(before.row_s).reshape(len(queue), SIZES)
    most = np.repeat(fleet.most_rows, np.diff(fleet.first))
    full, rest = np.divmod(rows, most)
    service_s = full * most * _of_size(row_s, most) + rest * _of_size(row_s, rest)
    healthy = np.frombuffer(before.healthy, np.bool_)
    shares = np.frombuffer(before.shares)
    found = []
    for k, name in enumerate(fleet.variants):
        own = slice(fleet.first[k], fleet.first[k + 1])
        # The first in time of those that take requests, or of all where none does.
        rests = np.where(healthy[own], 0.0, 1e9)
        first = own.start + int(np.argmin(rests + wait_s[own] + service_s[own]))
        allowed = bool(ended.classes >> k & 1) and fleet.accuracy[k] >= ended.floor
        found.append(
            {
                "variant": name,
                "accuracy": fleet.accuracy[k],
                "allowed": allowed,
                "instances": fleet.first[k + 1] - fleet.first[k],
                "healthy": int(np.count_nonzero(healthy[own])),
                "idle": int(np.count_nonzero(healthy[own] & (queue[own] == 0))),
                "full": int(np.count_nonzero(queue[own] >= fleet.places)),
                "queue": queue[own].tolist(),
                "probability": [round(p, 6) for p in shares[own].tolist()] or None,
                "predicted_wait_ms": _ms(float(wait_s[first])),
                "predicted_service_ms": _ms(float(service_s[first])),
            }
        )
    return found


def _why(
    fleet: FleetFacts, chosen: int, candidates: list[dict[str, Any]], told: dict[str, Any]
) -> str:
    name = fleet.variants[chosen]
    if told["pinned"]:
        return f"the request was pinned to {name}"
    fit = [one for one in candidates if one["allowed"] and one["in_time"] and one["healthy"]]
    if len(fit) == 1:
        return f"{name} was the only variant that was allowed, healthy and predicted to be in time"
    if told["candidates"][chosen]["probability"] is not None:
        shares = ", ".join(f"{sum(one['probability']):.3g} {one['variant']}" for one in fit)
        return f"the scheduler's probabilities drew {name}; they were {shares}"
    idle = [one["variant"] for one in fit if one["idle"]]
    state = f"idle were {', '.join(idle)}" if idle else "none was idle"
    if fleet.target is None:
        return f"the policy chose {name} of {len(fit)} variants; {state}"
    side = "ahead of" if told["balance_before"] >= 0 else "behind"
    return (
        f"the policy chose {name} of {len(fit)} variants; {state}, and the mean accuracy was "
        f"{side} its target by a balance of {told['balance_before']:.4g}"
    )


def _batch(ended: LoggedRequest, chosen: int | None) -> dict[str, int] | None:
    """Requests that were run at once, this one included; None where that was not here."""
    if ended.outcome is not Outcome.ANSWERED or ended.elsewhere or chosen is None:
        return None
    told = {"requests": ended.requests_together, "rows": ended.rows_together}
    if not ended.requests_together:
        told = {"requests": 1, "rows": ended.rows}
    runs = -(-told["rows"] // ended.fleet.most_rows[chosen])
    return told | {"runs": runs} if runs > 1 else told


def _class(fleet: FleetFacts, server: int) -> int | None:
    if server < 0:
        return None
    return next(k for k in range(len(fleet.variants)) if server < fleet.first[k + 1])


def _of_size(row_s: Any, rows: Any) -> Any:
    """By server, what each row takes in a run of so many; of none, whatever."""
    sizes = [min(SIZES - 1, max(0, int(one) - 1).bit_length()) for one in rows]
    return row_s[np.arange(len(row_s)), sizes]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)
