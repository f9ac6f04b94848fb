"""Explanations of answers: kept as raw values, put into words when someone asks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from inferway.dispatch.joint import PLACES, TargetState
from inferway.dispatch.measured import EXPLORED
from inferway.live.copy_moves import CopyMoves, in_words
from inferway.live.request import InferRequest, Outcome
from inferway.site.claims import COLUMNS
from inferway.site.confidence import ConfidenceTables
from inferway.site.view import SIZES

# Requests that a site can explain.
KEPT = 4096


# Of these last ones the most surprising are told; to look at all would hold requests up.
LOOKED_AT = 512

# Without the garbage collector: thousands of these live as long as it takes to replace them, and to
# look at them again and again would hold requests up by milliseconds. They hold no containers.


# The site as the policy saw it, its arrays as bytes. `running` and `waiting_rows` are empty where
# no batches are formed; `shares` are the probabilities of each server, empty where requests are
# not routed by any; `holds` says who holds slots of a device, empty where there is
# none; `prices` the task's own prices and the row of each target over several tasks, likewise;
# `foreseen` what was foreseen of the devices, where any is exclusive; `others` the claims of other
# fleets on the devices; `leads` what requests of each class take of its device before
# they run, empty where there is none.
Snapshot: Any = msgspec.defstruct(
    "Snapshot",
    [
        "now_s", "balance", "queue", "ends_s", "free_s", "row_s", "running", "waiting_rows",
        "healthy", "shares", "holds", "prices", ("foreseen", bytes, b""),
        ("others", bytes, b""), ("leads", bytes, b""),
    ],
    gc=False,
)  # fmt: skip


class FleetFacts(NamedTuple):
    """Facts of a fleet that explanations need; by class, but for the target and the places."""

    variants: tuple[str, ...]
    accuracy: list[float | None]
    first: list[int]
    target: float | None
    places: int
    most_rows: list[int]
    # `Dispatcher.predictions`: waits and service times at a site as it was.
    predictions: Callable[..., Any]
    confidence: ConfidenceTables | None = None
    energy: Sequence[float] = ()
    # Of each target over several tasks that this one is one of: name, tasks, kind and goal.
    targets: tuple[tuple[str, tuple[str, ...], str, float], ...] = ()


# A request that has ended, without its tensors; `elsewhere`: another node has answered. The rest is
# as in `InferRequest`.
_LoggedRequest: Any = msgspec.defstruct(
    "_LoggedRequest",
    [
        "fleet", "elsewhere", "id", "before", "server", "rows", "together", "classes", "floor",
        "deadline_s", "priority", "counted", "received_s", "predicted_s", "latency_s", "service_s",
        "outcome", "reason", "settled", "credit", "confidence", "escalated_from", "settlement",
        "chosen_for",
    ],
    gc=False,
)  # fmt: skip


class RequestLog:
    """The last requests of a task, whoever served it.

    Attributes
    ----------
    moves
        The task's copies that came and went as devices were given out anew.
    """

    def __init__(self) -> None:
        self._kept: deque[Any] = deque(maxlen=KEPT)
        self.moves = CopyMoves()

    def keep(self, request: InferRequest, fleet: FleetFacts) -> None:
        """Remember how a request that was decided for this fleet ended, without its tensors."""
        self._kept.append(
            _LoggedRequest(
                fleet,
                request.passed is not None,
                request.id,
                request.before,
                request.server,
                request.rows,
                request.together,
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
                request.settled,
                request.credit,
                request.confidence,
                request.escalated_from,
                request.settlement,
                request.chosen_for,
            )
        )

    def decisions(self, count: int, now_s: float) -> list[dict[str, Any]]:
        """List requests of the last `LOOKED_AT`, the most surprising first; times in milliseconds.

        Surprising is one that was refused or failed, then one that was late, then one that took
        many times what was predicted, or a small part of it. `now_s` is on the site's clock.
        """
        last = list(islice(reversed(self._kept), LOOKED_AT))
        ranked = sorted(range(len(last)), key=lambda i: _surprise(last[i]), reverse=True)
        return [_brief(last[i], now_s) for i in ranked[:count]]

    def explain(self, identity: bytes) -> dict[str, Any] | None:
        """Say why the last request of that name was answered as it was; None where it is unknown.

        As `GET /v2/models/{task}/explain/{id}` shows it; times in milliseconds.
        """
        named = (one for one in reversed(self._kept) if one.id == identity)
        ended = next(named, None)
        return None if ended is None else _words(ended, self.moves)


def _surprise(ended: Any) -> float:
    if ended.outcome is not Outcome.ANSWERED:
        return 2e9 if ended.outcome in (Outcome.CANCELED, Outcome.INVALID) else 4e9
    if ended.received_s + ended.latency_s > ended.deadline_s:
        return 3e9
    # A millisecond more or less is none.
    return abs(math.log((ended.latency_s + 1e-3) / (ended.predicted_s + 1e-3)))


def _brief(ended: Any, now_s: float) -> dict[str, Any]:
    fleet, answered = ended.fleet, ended.outcome is Outcome.ANSWERED
    late = answered and ended.received_s + ended.latency_s > ended.deadline_s
    chosen = None if ended.server < 0 else bisect_right(fleet.first, ended.server) - 1
    if not answered:
        why = ended.reason or ended.outcome.name.lower()
    elif late:
        over_s = ended.received_s + ended.latency_s - ended.deadline_s
        why = f"{_ms(over_s):g} ms after its deadline"
    else:
        ratio = (ended.latency_s + 1e-3) / (ended.predicted_s + 1e-3)
        longer = f"{ratio:.1f} times what was predicted"
        why = longer if ratio > 1.5 else "sooner than predicted" if ratio < 0.67 else "as predicted"
    return {
        "id": ended.id.decode("latin-1"),
        "ago_ms": _ms(max(0.0, now_s - ended.received_s)),
        "outcome": ended.outcome.name.lower(),
        "late": late,
        "variant": None if chosen is None else fleet.variants[chosen],
        "predicted_latency_ms": None if chosen is None else _ms(ended.predicted_s),
        "latency_ms": _ms(ended.latency_s) if answered else None,
        "surprise": why,
        **({"escalated_from": ended.escalated_from} if ended.escalated_from else {}),
    }


def _words(ended: Any, moves: CopyMoves) -> dict[str, Any]:
    fleet, before, deadline_s = ended.fleet, ended.before, ended.deadline_s
    chosen = None if ended.server < 0 else bisect_right(fleet.first, ended.server) - 1
    answered = ended.outcome is Outcome.ANSWERED
    candidates = [] if before is None else _candidates(before, ended)
    variant = None if chosen is None else fleet.variants[chosen]
    first = variant  # of the decision that the candidates are of
    if ended.settlement is not None:
        first = fleet.variants[bisect_right(fleet.first, ended.settlement.server) - 1]
    for candidate in candidates:
        wait_s = candidate["predicted_wait_ms"] + candidate["predicted_service_ms"]
        candidate["in_time"] = not before.now_s + wait_s / 1e3 > deadline_s
        candidate["chosen"] = candidate["variant"] == first
    balance = None if before is None or fleet.target is None else before.balance
    after = balance
    if balance is not None and ended.counted and chosen is not None and answered:
        earned = ended.credit if ended.settled else fleet.accuracy[chosen]
        after = balance + ended.rows * (earned - fleet.target)
    reason = ended.reason
    if before is not None and chosen is not None and not reason:
        reason = _why(ended, chosen, candidates)
    reassigned = moves.at(ended.received_s if before is None else before.now_s)
    if reassigned:
        reason = "; ".join(filter(None, (reason, in_words(reassigned))))
    return {
        "id": ended.id.decode("latin-1"),
        "outcome": ended.outcome.name.lower(),
        "variant": variant,
        "instance": None if chosen is None else ended.server - fleet.first[chosen],
        "rows": ended.rows,
        "batch": None if chosen is None or not answered else _batch(ended, chosen),
        "pinned": not ended.counted,
        "accuracy_floor": ended.floor or None,
        "priority": ended.priority or None,
        "deadline_ms": _ms(deadline_s - ended.received_s) if deadline_s < math.inf else None,
        "predicted_latency_ms": None if chosen is None else _ms(ended.predicted_s),
        "latency_ms": _ms(ended.latency_s) if answered else None,
        "service_ms": _ms(ended.service_s) if answered else None,
        "accuracy_target": fleet.target,
        "balance_before": balance,
        "balance_after": after,
        **({} if before is None or not fleet.targets else _joint(ended)),
        **({} if not ended.settled else _settled(ended, chosen)),
        "candidates": candidates,
        **({"reassigned": reassigned} if reassigned else {}),
        "reason": reason,
    }


def _joint(ended: Any) -> dict[str, Any]:
    """Tell where targets over several tasks stood before a request, and which weighed most.

    A point is an accuracy of 0.01. One weighs as much as its price makes of the greatest difference
    between two variants.
    """
    fleet = ended.fleet
    prices = np.frombuffer(ended.before.prices)
    rows = prices[2:].reshape(len(fleet.targets), PLACES)
    spreads = {
        "accuracy": float(np.ptp([one or 0.0 for one in fleet.accuracy])),
        "energy": float(np.ptp(fleet.energy)),
    }
    weights = {
        "accuracy_target": prices[0] * spreads["accuracy"],
        "energy_budget": prices[1] * spreads["energy"],
    }
    told = []
    for (name, tasks, kind, goal), row in zip(fleet.targets, rows, strict=True):
        state = TargetState({"name": name, "tasks": tasks, kind: goal}, row)
        weights[name] = state.price * spreads[kind]
        unit = 100.0 if kind == "accuracy" else 1.0
        told.append({"name": name, **state.to_json(), "price_ms": _ms(state.price / unit)})
    first = max(weights, key=weights.__getitem__)
    return {"targets": told, "decided_by": first if weights[first] > 0.0 else None}


def _settled(ended: Any, sent: int | None) -> dict[str, Any]:
    """Say what was known of an answer when it was sent, where a second might have been asked."""
    return {
        "confidence": None if ended.confidence is None else round(ended.confidence, 6),
        "expected_accuracy": round(ended.credit, 6),
        "escalated_from": ended.escalated_from or None,
        "settle": None if ended.settlement is None else _settlement(ended, sent),
    }


def _settlement(ended: Any, sent: int | None) -> dict[str, Any]:
    """Say what was decided on the first answer, and what the others' were expected to gain on it.

    A point is an accuracy of 0.01. What is expected of the others is known of requests of one row.
    """
    fleet, made = ended.fleet, ended.settlement
    i, j = (bisect_right(fleet.first, server) - 1 for server in (made.server, made.then))
    expected = _expected(fleet.confidence, i, ended.confidence) if ended.rows == 1 else None
    return {
        "first": fleet.variants[i],
        "confidence": None if ended.confidence is None else round(ended.confidence, 6),
        "expected_accuracy": round(made.worth, 6),
        "accepted": made.then < 0,
        "asked": None if made.then < 0 else fleet.variants[j],
        "sent": None if sent is None else fleet.variants[sent],
        "predicted_ms": None if made.then < 0 else _ms(made.then_s),
        "price_ms": None if math.isnan(made.price_s) else _ms(made.price_s / 100.0),
        "gains": {}
        if expected is None
        else {
            name: round(expected[k] - made.worth, 6)
            for k, name in enumerate(fleet.variants)
            if k != i
        },
    }


def _expected(
    tables: ConfidenceTables | None, i: int, confidence: float | None
) -> list[float] | None:
    """Give the expected accuracies of all classes where class i has such a confidence."""
    if tables is None or confidence is None:
        return None
    place = int(np.searchsorted(tables.edges[i], confidence, side="right"))
    found: list[float] = tables.expected[i, place].tolist()
    return found


def _candidates(before: Any, ended: Any) -> list[dict[str, Any]]:
    fleet, rows = ended.fleet, ended.rows
    queue = np.frombuffer(before.queue, np.int32)
    ends_s, free_s = np.frombuffer(before.ends_s), np.frombuffer(before.free_s)
    seen = {"queue": queue, "ends_s": ends_s, "free_s": free_s}
    seen["row_s"] = np.frombuffer(before.row_s).reshape(len(queue), SIZES)
    if before.running:
        seen["running"] = np.frombuffer(before.running, np.int64)
        seen["waiting_rows"] = np.frombuffer(before.waiting_rows, np.int64)
    if before.holds:
        seen["holds"] = np.frombuffer(before.holds, np.bool_)
        seen["others"] = np.frombuffer(before.others).reshape(-1, COLUMNS)
        seen["leads"] = np.frombuffer(before.leads)
    if before.foreseen:
        seen["foreseen"] = np.frombuffer(before.foreseen)
    wait_s, service_s = fleet.predictions(seen, rows, before.now_s).T
    healthy = np.frombuffer(before.healthy, np.bool_)
    shares = np.frombuffer(before.shares)
    # Of servers that share a device, those are idle that would not wait for it.
    idle = healthy & (queue == 0) & (wait_s <= 0.0)
    found = []
    for k, name in enumerate(fleet.variants):
        own = slice(fleet.first[k], fleet.first[k + 1])
        # The first in time of those that take requests, or of all where none does.
        rests = np.where(healthy[own], 0.0, 1e9)
        first = own.start + int(np.argmin(rests + wait_s[own] + service_s[own]))
        allowed = bool(ended.classes >> k & 1) and (fleet.accuracy[k] or 0.0) >= ended.floor
        found.append(
            {
                "variant": name,
                "accuracy": fleet.accuracy[k],
                "allowed": allowed,
                "instances": fleet.first[k + 1] - fleet.first[k],
                "healthy": int(np.count_nonzero(healthy[own])),
                "idle": int(np.count_nonzero(idle[own])),
                "full": int(np.count_nonzero(queue[own] >= fleet.places)),
                "queue": queue[own].tolist(),
                "probability": [round(p, 6) for p in shares[own].tolist()] or None,
                "predicted_wait_ms": _ms(float(wait_s[first])),
                "predicted_service_ms": _ms(float(service_s[first])),
            }
        )
    return found


def _why(ended: Any, chosen: int, candidates: list[dict[str, Any]]) -> str:
    fleet, balance, name = ended.fleet, ended.before.balance, ended.fleet.variants[chosen]
    if not ended.counted:
        return f"the request was pinned to {name}"
    if ended.escalated_from:
        return (
            f"{ended.escalated_from} was asked first, with a confidence of {ended.confidence:.4g}; "
            f"{name} was asked as well, whose answer was expected to be right with "
            f"{ended.credit:.4g}"
        )
    if ended.chosen_for == "canary":
        return f"{name} is tried as a canary, and the request is one of its share"
    if ended.chosen_for == "explored":
        return (
            f"labels have ruled {name} out, and one request in {EXPLORED} explores whether it is "
            "better by now"
        )
    if ended.chosen_for == "tried":
        return f"{name} was too slow when it ran last, and one request tries whether it still is"
    fit = [one for one in candidates if one["allowed"] and one["in_time"] and one["healthy"]]
    if len(fit) == 1:
        aside = ", the canary aside," if ended.chosen_for == "beside" else ""
        return (
            f"{name} was the only variant{aside} that was allowed, healthy and predicted to be in "
            "time"
        )
    if candidates[chosen]["probability"] is not None:
        shares = ", ".join(f"{sum(one['probability']):.3g} {one['variant']}" for one in fit)
        return f"the scheduler's probabilities drew {name}; they were {shares}"
    idle = [one["variant"] for one in fit if one["idle"]]
    state = f"idle were {', '.join(idle)}" if idle else "none was idle"
    if fleet.targets and (weighed := _weighed(ended)):
        return f"the policy chose {name} of {len(fit)} variants; {state}, and {weighed}"
    if fleet.target is None:
        return f"the policy chose {name} of {len(fit)} variants; {state}"
    side = "ahead of" if balance >= 0 else "behind"
    return (
        f"the policy chose {name} of {len(fit)} variants; {state}, and the mean accuracy was "
        f"{side} its target by a balance of {balance:.4g}"
    )


def _weighed(ended: Any) -> str:
    """Say which target over several tasks weighed most; empty where it was none of them."""
    joint = _joint(ended)
    one = next((one for one in joint["targets"] if one["name"] == joint["decided_by"]), None)
    if one is None:
        return ""
    side = "ahead of" if one["balance"] >= 0 else "behind"
    return (
        f"of all targets {one['name']} weighed most, which is over {', '.join(one['tasks'])}: "
        f"their mean was {side} it by a balance of {one['balance']:.4g}"
    )


def _batch(ended: Any, chosen: int) -> dict[str, int] | None:
    """Requests that were run at once, this one included; None where that was not here."""
    if ended.elsewhere:
        return None
    requests, rows = ended.together if ended.together[0] else (1, ended.rows)
    runs = -(-rows // ended.fleet.most_rows[chosen])
    return {"requests": requests, "rows": rows} | ({"runs": runs} if runs > 1 else {})


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)
