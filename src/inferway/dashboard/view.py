"""What the page is told of each task: its promise in words, its latency, its bound, who answers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final

import numpy as np

from inferway.dashboard.past import tables_told
from inferway.dashboard.watched import MINUTE_S, WatchedServer, devices_of, finite
from inferway.dispatch import promise as promises
from inferway.dispatch.bounds import UnreachableError, max_rate, solve
from inferway.dispatch.escalation_bounds import max_escalation_rate, solve_escalation
from inferway.site.confidence import ConfidenceTables
from inferway.site.devices import DeviceSlots
from inferway.site.fleet import Fleet

PRESENT_S: Final = 10
"""Over which the present rate and latency are measured."""
POINTS: Final = 24
"""Rates at which the bound is drawn."""
SERIES: Final = (
    "arrivals", "answered", "rejected", "expired", "failed", "accuracy", "latency_mean_s",
    "latency_p50_s", "latency_p95_s", "latency_p99_s", "target", "mean", "balance", "in_flight",
)  # fmt: skip
"""Of each sample, what the page draws over time."""
_QUANTILES: Final = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
# Of each class of servers: its name, the rate and the accuracy of one, if known, and how many are
# healthy.
_Classes = tuple[tuple[str, float, float | None, int], ...]
# Of classes whose confidences are known: their names, and bytes of `mass` and `expected` of the
# `ConfidenceTables`. Empty where no second variant may be asked.
_Confidences = tuple[tuple[str, ...], bytes, bytes]
_UNSURE: Final[_Confidences] = ((), b"", b"")
# Of devices that classes share: each one's name, its slots, and what requests take there before
# they run, s; and of each class its name, its device, and how many of the slots a run takes. Empty
# where nothing is shared.
_Devices = tuple[tuple[tuple[str, int, float], ...], tuple[tuple[str, str | None, int], ...]]
_Curve = tuple[float | None, list[tuple[float, float]]]
_Key = tuple[_Classes, float | None, _Confidences, _Devices]
Curves = dict[_Key, _Curve]
"""Bounds by the classes of servers, the target, what confidences say, and shared devices."""
_SPARE: Final = 64
"""Bounds kept besides those that are drawn: of instances that come and go."""
VERDICTS: Final = {**promises.VERDICTS, "gone": "not answering"}
"""The words for each state of a promise."""


def task_view(source: WatchedServer, task: str, curves: Curves) -> dict[str, Any]:
    """Describe one task at one source as it is now; its bound where `prepare` has computed it."""
    told = source.status.get("tasks", {}).get(task, {})
    rate = present_rate(source, task)
    bound = bound_view(told, rate, curves)
    return {
        "source": source.name,
        "task": task,
        "ended": source.state == "ended",
        "rate_per_s": rate,
        "promise": promise_view(source, told, rate, bound),
        "latency": latency_view(source, task),
        "bound": bound,
        "variants": variants_view(source, task, told),
        "accuracy": accuracy_view(told),
        "decisions": source.decisions.get(task, []),
        "response_times": response_times(source, task),
        "escalations": escalations_view(source, task),
    }


def present_rate(source: WatchedServer, task: str) -> float:
    """Requests that have come a second over the last seconds; 0 where nothing is known."""
    rows = source.last(task, PRESENT_S)
    return sum(row["arrivals"] for row in rows) / len(rows) if rows else 0.0


def promise_view(
    source: WatchedServer, told: dict[str, Any], rate: float, bound: dict[str, Any] | None
) -> dict[str, Any]:
    """Say of a promise whether it is kept, and why, in words."""
    promise = told.get("promise")
    state = "none" if promise is None else str(promise["state"])
    if source.state == "gone":
        return {"state": "gone", "verdict": VERDICTS["gone"], "reason": f"{source.reason}."}
    shown = {"state": state, "verdict": VERDICTS.get(state, state)}
    if promise is None:
        ended = " It has ended." if source.state == "ended" else ""
        return shown | {"reason": f"The task has no accuracy target.{ended}"}
    target, mean, balance = promise["target"], promise["mean"], promise["balance"]
    made = promises.Promise(
        target,
        finite(mean),
        promise.get("by", "profile"),
        promise["state"],
        balance,
        promise["answers"],
    )
    reason = made.reason(rate, math.inf if bound is None else _greatest(bound))
    labels = promise.get("labels")
    if source.state == "ended":
        reason = f"{reason} It has ended."
    return shown | {
        "reason": reason,
        "target": target,
        "mean": finite(mean),
        "mean_name": made.mean_name,
        "balance": balance,
        "answers": promise["answers"],
        "labels": labels,
    }


def latency_view(source: WatchedServer, task: str) -> dict[str, Any]:
    """Tell mean and quantiles of the response times of the last seconds, s."""
    rows = source.last(task, PRESENT_S)
    answered = sum(row["answered"] for row in rows)
    total_s = sum(row["answered"] * (row["latency_mean_s"] or 0.0) for row in rows)
    counts = source.answered_within(task, PRESENT_S)
    whole = [sum(column) for column in zip(*counts.values(), strict=True)]
    told = {"answered": answered, "mean_s": total_s / answered if answered else None}
    return told | quantiles(whole, source.bounds_s)


def quantiles(counts: Sequence[int], bounds_s: Sequence[float]) -> dict[str, float | None]:
    """Read the quantiles from counts by the ends of their buckets, one more of which has none."""
    ends = list(accumulate(counts))
    if not ends or not ends[-1]:
        return dict.fromkeys(_QUANTILES)
    found: dict[str, float | None] = {}
    for name, share in _QUANTILES.items():
        rank = share * ends[-1]
        place = next(i for i, end in enumerate(ends) if end >= rank and counts[i])
        low = bounds_s[place - 1] if place else 0.0
        high = bounds_s[min(place, len(bounds_s) - 1)]
        found[name] = low + (high - low) * (1.0 - (ends[place] - rank) / counts[place])
    return found


def variants_view(source: WatchedServer, task: str, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe who answers, the fastest first: shares are of the last minute's answers."""
    rows = source.last(task, MINUTE_S)
    variants = told.get("variants", {})
    given = {
        name: sum(row["variants"].get(name, {}).get("answered") or 0.0 for row in rows)
        for name in variants
    }
    total = sum(given.values())
    last = rows[-1]["variants"] if rows else {}
    return [
        {
            "name": name,
            "accuracy": one["accuracy"],
            "share": given[name] / total if total else 0.0,
            "per_s": given[name] / len(rows) if rows else 0.0,
            "mean_s": finite(last.get(name, {}).get("latency_mean_s") or one["mean_latency_s"]),
            "service_s": finite(one["mean_service_s"]),
            "queued": sum(one["queue"]),
            "instances": one["instances"],
            "healthy": sum(one["healthy"]),
            "memory_bytes": (one.get("memory") or {}).get("largest_run_bytes"),
        }
        for name, one in sorted(variants.items(), key=lambda item: item[1]["profile_service_s"])
    ]


def accuracy_view(told: dict[str, Any]) -> dict[str, Any] | None:
    """Tell what feedback says of each variant, the fastest first, and what becomes of a canary.

    None where the task has no feedback.
    """
    feedback = told.get("feedback")
    if feedback is None:
        return None
    measured, service_s = feedback["variants"], dict[str, float]()
    for name, one in told.get("variants", {}).items():
        # Several devices, and other nodes, may have copies of one.
        variant, own_s = re.split("[:@]", name)[0], one["profile_service_s"]
        service_s[variant] = min(own_s, service_s.get(variant, math.inf))
    return {
        "variants": [
            {"name": name} | measured[name]
            for name in sorted(measured, key=lambda name: service_s.get(name, math.inf))
        ],
        "shadow": feedback.get("shadow"),
        "canary": told.get("canary"),
    }


def escalations_view(source: WatchedServer, task: str) -> dict[str, Any] | None:
    """Tell which share of the last minute's answers was asked for twice, and by pair.

    None where no second variant may be asked.
    """
    pairs = source.again_within(task, MINUTE_S)
    if pairs is None:
        return None
    counts = source.answered_within(task, MINUTE_S)
    total = max(sum(map(sum, counts.values())), 1)
    asked = sorted(((n, pair) for pair, n in pairs.items() if n > 0), reverse=True)
    return {
        "share": sum(n for n, _ in asked) / total,
        "pairs": [{"first": a, "then": b, "share": n / total} for n, (a, b) in asked],
    }


def response_times(source: WatchedServer, task: str) -> dict[str, Any]:
    """Count the last minute's answers by variant in buckets as wide as the eye needs."""
    counts = source.answered_within(task, MINUTE_S)
    used = [i for column in counts.values() for i, count in enumerate(column) if count]
    if not used:
        return {"ends_s": [], "variants": {}}
    first, last = min(used), max(used)
    ends = [source.bounds_s[min(i, len(source.bounds_s) - 1)] for i in range(first, last + 1)]
    begin = source.bounds_s[first - 1] if first else 0.0
    shown = {name: column[first : last + 1] for name, column in counts.items()}
    return {"begin_s": begin, "ends_s": ends, "variants": shown}


def bound_view(told: dict[str, Any], rate: float, curves: Curves) -> dict[str, Any] | None:
    """Tell the bound of the healthy instances: its curve, and its value at the present rate.

    ``escalate`` has the same of the bound with escalation; None where no second variant may be
    asked.
    """
    once, *twice = (curves.get(key) for key in _keys(told))
    if once is None:
        return None
    return _bound(once, rate) | {
        "escalate": _bound(twice[0], rate) if twice and twice[0] is not None else None
    }


def _bound(found: _Curve, rate: float) -> dict[str, Any]:
    greatest, curve = found
    least_s = None
    if greatest is not None and 0.0 < rate <= greatest:
        least_s = float(np.interp(rate, [at for at, _ in curve], [least for _, least in curve]))
    return {
        "max_rate_per_s": greatest,
        "curve": curve,
        "least_s": least_s,
        "load": rate / greatest if greatest else None,
    }


def _greatest(bound: dict[str, Any]) -> Any:
    """Greatest rate at which the policy in force could keep the target, 1/s."""
    return (bound["escalate"] or bound)["max_rate_per_s"]


def prepare(statuses: Iterable[dict[str, Any]], curves: Curves, most_s: float) -> bool:
    """Compute what bounds these need that are not known yet, for so long, s; half a second each.

    Bounds that nobody needs any more are forgotten. False where some are still to be computed.
    """
    tasks = [told for status in statuses for told in status.get("tasks", {}).values()]
    wanted = [key for told in tasks for key in _keys(told)]
    until_s = time.monotonic() + most_s
    if len(curves) > 2 * len(wanted) + _SPARE:
        for key in curves.keys() - {*wanted}:
            del curves[key]
    for key in wanted:
        if key[0] and key not in curves:
            if time.monotonic() >= until_s:
                return False
            curves[key] = _curve(*key)
    return True


def _keys(told: dict[str, Any]) -> list[_Key]:
    """Name a task's bounds: of policies that ask once, and where others may, of those."""
    classes, target = _classes(told), told.get("accuracy_target")
    sure, devices = _confidences(told), _devices(told)
    return [(classes, target, one, devices) for one in (_UNSURE, sure)[: 1 + bool(sure[0])]]


def _devices(told: dict[str, Any]) -> _Devices:
    fleet = told.get("fleet") or {}
    taken_s = fleet.get("overheads_s", {})
    slots = fleet.get("devices", {}).items()
    here = [(one["name"], one["device"], one["slots"]) for one in _shares(fleet)]
    return (
        tuple((name, count, taken_s.get(name, 0.0)) for name, count in slots),
        tuple(sorted(here, key=lambda one: one[0])),
    )


def _shares(fleet: dict[str, Any]) -> list[dict[str, Any]]:
    return fleet["classes"] if fleet.get("devices") else []


def _confidences(told: dict[str, Any]) -> _Confidences:
    fleet = told.get("fleet") or {}
    tables = tables_told(fleet)
    if tables is None:
        return _UNSURE
    names = tuple(one["name"] for one in fleet["classes"])
    return names, tables.mass.tobytes(), tables.expected.tobytes()


def _classes(told: dict[str, Any]) -> _Classes:
    return tuple(
        (name, 1.0 / one["profile_service_s"], one["accuracy"], sum(one["healthy"]))
        for name, one in sorted(told.get("variants", {}).items())
        if sum(one["healthy"])
    )


def _curve(
    classes: _Classes, target: float | None, sure: _Confidences, devices: _Devices
) -> _Curve:
    """Greatest rate, and the least mean response time at rates up to it; None where none is.

    Of devices that other tasks share as well, it is what the task could do if it had them alone.
    """
    names, rates, accuracies, counts = zip(*classes, strict=True)
    known = np.array(accuracies, np.float64)  # None is NaN: one that nobody knows
    tables = _tables(names, sure)
    fleet = Fleet(
        *(names, np.array(rates), known, np.array(counts)),
        confidence=tables,
        devices=_slots(names, devices),
    )
    most, least = (max_rate, solve) if tables is None else (max_escalation_rate, solve_escalation)
    try:
        greatest = most(fleet, target)
        ends = {greatest}
        if tables is not None:
            # It goes far beyond what is carried without, beside which it is drawn.
            with suppress(UnreachableError):
                ends.add(min(greatest, max_rate(fleet, target)))
        points = sorted({end * (i + 1) / POINTS for end in ends for i in range(POINTS)})
        return greatest, [(at, least(fleet, target, at).response_time_s) for at in points]
    except UnreachableError:
        return None, []


def _tables(names: Sequence[str], sure: _Confidences) -> ConfidenceTables | None:
    """Read what confidences of these classes say; None where not all of them are known."""
    classes = len(sure[0])
    if not classes or not {*names} <= {*sure[0]}:
        return None
    mass = np.frombuffer(sure[1]).reshape(classes, -1)
    bins = mass.shape[1]
    expected = np.frombuffer(sure[2]).reshape(classes, bins, classes)
    # Where a bin begins is nothing to the bound.
    tables = ConfidenceTables(mass, expected, np.zeros((classes, bins - 1)))
    return tables.ordered(np.array([sure[0].index(name) for name in names]))


def _slots(names: Sequence[str], devices: _Devices) -> DeviceSlots | None:
    """Read on which devices these classes run; None where nothing says it of all of them."""
    on = {name: (device, taken) for name, device, taken in devices[1]}
    if not devices[0] or not {*names} <= on.keys():
        return None
    shared, slots, taken_s = zip(*devices[0], strict=True)
    return DeviceSlots(
        names=shared,
        slots=np.array(slots),
        exclusive=np.zeros(len(shared), np.bool_),  # which is nothing to the bound
        overhead_s=np.array(taken_s),
        device=np.array([shared.index(on[name][0]) if on[name][0] else -1 for name in names]),
        taken=np.array([on[name][1] for name in names]),
    )


def series_of(source: WatchedServer, task: str, since_s: float = 0.0) -> dict[str, Any]:
    """Give what the page draws over time: the samples after a moment, each key a list."""
    kept = [
        (moment, row)
        for moment, row in zip(source.times, source.rows.get(task, ()), strict=False)
        if moment > since_s and row is not None
    ]
    variants = dict.fromkeys(name for _, row in kept for name in row["variants"])
    return {
        "times": [moment for moment, _ in kept],
        **{key: [row[key] for _, row in kept] for key in SERIES},
        "variants": {
            name: [row["variants"].get(name, {}).get("answered") for _, row in kept]
            for name in variants
        },
    }


def source_view(source: WatchedServer) -> dict[str, Any]:
    """Describe a server or node, and its links where it has told of some."""
    shown: dict[str, Any] = {
        "name": source.name,
        "url": source.url,
        "state": source.state,
        "since_s": source.since_s,
        "reason": source.reason,
        "ready": bool(source.status.get("ready")),
        "version": source.status.get("version"),
    }
    node = source.node
    shown["blocks"] = blocks_view(source.status.get("tasks", {}), node)
    shown["devices"] = devices_view(source)
    if node is not None:
        hops = node.get("hops", {})
        shown["node"] = {
            "links": [
                {
                    "to": name,
                    "alive": name in node["alive"],
                    "rtt_s": hops.get(name, {}).get("rtt_s"),
                    "file_rtt_s": hops.get(name, {}).get("file_rtt_s"),
                }
                for name in node["neighbors"]
            ],
            "degraded": node["degraded"],
            "budget_bytes": node["budget_bytes"],
            "used_bytes": node.get("used_bytes"),
            "moving": node.get("moving", []),
            "slot": node["slot"],
        }
    return shown


def devices_view(source: WatchedServer) -> list[dict[str, Any]]:
    """List the devices that instances share: slots, and the part of them that is busy.

    `load` is the mean of the last minute, as it was seen once a second.
    """
    found = []
    for name, one in devices_of(source.status).items():
        seen = source.busy.get(name) or [one["busy"] / one["slots"]]
        found.append({"name": name, **one, "load": sum(seen) / len(seen)})
    return found


def blocks_view(
    tasks: dict[str, dict[str, Any]], node: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """List the variants that run here, the largest first: instances, memory, and what waits.

    A node tells what a variant takes of its budget; of a server it is what the largest runs of its
    instances need, None where that is not known.
    """
    found = []
    for task, told in tasks.items():
        for variant, one in told["variants"].items():
            name, memory = f"{task}/{variant}", one.get("memory")
            if node is None:
                size = memory and one["instances"] * memory["largest_run_bytes"]
            elif name in node["running"]:
                size = node.get("running_bytes", {}).get(name)
            else:  # another node runs it
                continue
            found.append(
                {
                    "name": name,
                    "instances": one["instances"],
                    "healthy": sum(one["healthy"]),
                    "bytes": size,
                    "waiting": sum(one["queue"]),
                }
            )
    return sorted(found, key=lambda one: (-(one["bytes"] or 0), one["name"]))
