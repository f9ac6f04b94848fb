"""The last minutes of a task as its server had them: what came, and what became of it over time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.live.recent import FLOOR, PINNED, SECOND, URGENT, Rows
from inferway.live.request import Outcome
from inferway.site.confidence import ConfidenceTables
from inferway.twin.trace import RecordedTrace

WINDOW_S: Final = 300.0
"""Most that is replayed."""
MOST: Final = 100_000
"""Requests that are replayed, at most."""
FEWEST: Final = 50
"""Requests below which nothing is replayed."""
_STRETCHES, _IN_EACH = 60, 50
# Part of the runs on devices that surely waited for nothing.
_UNHINDERED: Final = 0.1
# Ends of requests that no server was asked to answer.
_NONE_OF_ITS: Final = (Outcome.INVALID,)

Floats = NDArray[np.float64]


class PastError(ValueError):
    """A past that cannot be replayed; the message is one sentence for whoever looks at the page."""


class Course(NamedTuple):
    """One course over the stretches of a window, of those that were answered; nan where none was.

    Attributes
    ----------
    mean_s, p99_s
        (n,) response times of those that came in each stretch.
    accuracy
        (n,) mean accuracy by the profiles of who answered; nan where one is unknown.
    """

    mean_s: Floats
    p99_s: Floats
    accuracy: Floats


class Past(NamedTuple):
    """A task's last minutes.

    Attributes
    ----------
    trace
        The requests, as of a recording.
    ends_s
        (n,) ends of the stretches, from the first request on.
    from_s
        When that was decided, in seconds since 1970.
    live
        What the server did.
    lead_s
        Mean time from the receipt of a request to its decision.
    counted, earned, energy_j
        Of the answers that promises count, rows: how many, and their accuracy and energy in sum.
    expected
        (m,) accuracy of each request's answer: the one it was expected to have, where the server
        looked at its confidence, else that of who answered; nan where there is none.
    """

    trace: RecordedTrace
    ends_s: Floats
    from_s: float
    live: Course
    lead_s: float
    counted: float
    earned: float
    energy_j: float
    expected: Floats

    def gained(self, target: float | None) -> float:
        """By how much answers have moved the accuracy balance; 0 without a target."""
        return 0.0 if target is None else self.earned - target * self.counted


def past_of(
    head: Mapping[str, Any],
    rows: Rows,
    fleet: Mapping[str, Any],
    *,
    since_s: float = -np.inf,
) -> Past:
    """Read the last minutes from a server's rows and what it says of the task's fleet.

    None of them was decided before `since_s`, in seconds since 1970.

    Raises
    ------
    PastError
        Where there is too little to be replayed.
    """
    decided_s = rows["received_s"] + rows["decided_s"]
    rows = rows[np.argsort(decided_s, kind="stable")]
    decided_s = rows["received_s"] + rows["decided_s"]
    rows = rows[decided_s >= since_s - head["clock_s"]]
    rows = rows[~np.isin(rows["outcome"], _NONE_OF_ITS)][-MOST:]
    if len(rows):
        rows = rows[rows["received_s"] > rows["received_s"][-1] - WINDOW_S]
    if len(rows) < FEWEST:
        raise PastError(
            f"{len(rows)} requests came within the last minutes, and {FEWEST} are the fewest that "
            "are replayed"
        )
    decided_s = rows["received_s"] + rows["decided_s"]
    start_s = float(decided_s[0])
    if not decided_s[-1] > start_s:
        raise PastError("all requests came at once, so there is no rate to replay")
    classes = [one for one in fleet["classes"] if one["instances"]]
    names = [one["name"] for one in classes]
    accuracy = np.array([one["accuracy"] for one in classes], np.float64)  # None becomes NaN
    # Of variants that are here no more, the answers count to none.
    place = np.array([names.index(one) if one in names else -1 for one in head["variants"]] + [-1])
    taken_by = place[rows["column"]].astype(np.int64)
    answered = (rows["outcome"] == Outcome.ANSWERED) & (taken_by >= 0)
    left_s = np.where(answered, rows["received_s"] + rows["ended_s"], np.nan)
    expected = np.where(answered, accuracy[taken_by], np.nan)
    known = answered & np.isfinite(rows["expected"])
    expected[known] = rows["expected"][known]
    shares = np.array([one.get("device") is not None for one in classes] + [False])
    occupied_s, together = _occupied(rows, decided_s, left_s, shares[taken_by])
    trace = RecordedTrace(
        task=fleet["task"],
        policy=fleet["policy"],
        told_rate_per_s=fleet["told_rate_per_s"],
        variants=tuple(map(written_name, names)),
        count=np.array([one["instances"] for one in classes], np.int64),
        accuracy=accuracy,
        arrived_s=decided_s - start_s,
        taken_by=taken_by,
        left_s=left_s - start_s,
        occupied_s=occupied_s,
        model_s=np.where(answered, rows["model_s"].astype(np.float64), np.nan),
        together=together,
        rows=rows["rows"].astype(np.int64),
        deadline_s=rows["deadline_s"] - rows["decided_s"].astype(np.float64),
        floors=_flagged(rows, FLOOR),
        pins=_flagged(rows, PINNED),
        urgent=_flagged(rows, URGENT),
        marks=0,
        begun=0,
    )
    ends_s = stretches(float(trace.arrived_s[-1]), len(rows))
    response_s = rows["ended_s"].astype(np.float64)[answered]
    live = course(trace.arrived_s[answered], response_s, expected[answered], ends_s)
    counted = answered & (rows["flags"] & PINNED == 0)
    of_each = rows["rows"][counted].astype(np.float64)
    energy = np.array([one["energy"] for one in classes], np.float64)[taken_by[counted]]
    lead_s = float(rows["decided_s"].mean())
    from_s = start_s + head["clock_s"]
    return Past(
        *(trace, ends_s, from_s, live, lead_s),
        counted=float(of_each.sum()),
        earned=float(np.nansum(expected[counted] * of_each)),
        energy_j=float((energy * of_each).sum()),
        expected=expected,
    )


def tables_told(fleet: Mapping[str, Any]) -> ConfidenceTables | None:
    """Read what a server says of its classes' confidences, in the order in which it tells them."""
    told = fleet.get("confidence")
    if told is None:
        return None
    mass, expected, edges = (np.array(told[name], np.float64) for name in ConfidenceTables._fields)
    # None, an edge that no confidence reaches, is read as nan.
    return ConfidenceTables(mass, expected, np.where(np.isnan(edges), np.inf, edges))


def written_name(name: str) -> str:
    """Write a class's name as a file can: those of other nodes have characters that no name has."""
    return re.sub(r"[^\w.-]", ".at.", name)


def _flagged(rows: Rows, flag: int) -> int:
    return int(np.count_nonzero(rows["flags"] & flag))


def _occupied(
    rows: Rows, decided_s: Floats, left_s: Floats, shares: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.int64]]:
    """For how long each request's server was its own, and who was served along.

    As `RecordedTrace` has both: of a batch the first has the time and the number. The wait of those
    whose servers share a device is none of it, nor is that until it holds their variant.
    """
    occupied_s, together = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
    answered = np.flatnonzero(np.isfinite(left_s))
    order = answered[np.lexsort((left_s[answered], rows["server"][answered]))]
    server, left = rows["server"][order], left_s[order]
    same = np.append(False, server[1:] == server[:-1])
    free_s = np.where(same, np.append(-np.inf, left[:-1]), -np.inf)
    occupied_s[order] = left - np.maximum(decided_s[order], free_s)
    # When a second variant was asked is not told, nor when the device of a run was free for it:
    # what handing over took is that of the others.
    second, over_s = rows["flags"] & SECOND > 0, occupied_s - rows["model_s"]
    hand_over_s = 0.0
    for others, part in ((~second & ~shares, 0.5), (~second & shares, _UNHINDERED)):
        if others[order].any():
            hand_over_s = max(0.0, float(np.quantile(over_s[order[others[order]]], part)))
            break
    untold = order[(second | shares)[order]]
    occupied_s[untold] = rows["model_s"][untold] + hand_over_s
    together[order] = 1
    at, number = 0, rows["together"]
    while number.max(initial=0) > 1 and at < len(order):
        size = max(1, int(number[order[at]]))
        batch = order[at : at + size]
        if size > 1 and (server[at : at + size] == server[at]).all():
            lead = batch[np.argmin(decided_s[batch])]
            run_s = float(rows["model_s"][lead] + left[at : at + size].max() - left[at])
            occupied_s[batch], together[batch] = np.nan, 0
            occupied_s[lead], together[lead] = run_s, len(batch)
        at += size
    return occupied_s, together


def stretches(length_s: float, requests: int) -> Floats:
    """(n,) ends of the stretches that a window is parted into, each with requests enough."""
    count = min(_STRETCHES, max(1, requests // _IN_EACH))
    return length_s * np.arange(1, count + 1) / count


def course(arrived_s: Floats, response_s: Floats, accuracy: Floats, ends_s: Floats) -> Course:
    """Draw the course of (m,) answered requests over stretches with (n,) ends."""
    count = len(ends_s)
    place = np.minimum(np.searchsorted(ends_s, arrived_s, side="left"), count - 1)
    number = np.bincount(place, minlength=count)
    with np.errstate(invalid="ignore"):
        mean_s = np.bincount(place, response_s, count) / number
        mean_accuracy = np.bincount(place, accuracy, count) / number
    order = np.lexsort((response_s, place))
    first = np.concatenate([[0], np.cumsum(number)])
    at = first[:-1] + np.maximum(np.ceil(0.99 * number).astype(np.int64) - 1, 0)
    p99_s = np.full(count, np.nan)
    p99_s[number > 0] = response_s[order][at[number > 0]]
    return Course(mean_s, p99_s, mean_accuracy)


def scaled(times_s: Floats, factor: float, seed: int = 0) -> Floats:
    """(m,) arrivals that come so many times as often, over the same time, with the same course.

    Fewer leave some out at random; more are copies, each moved by up to half a second.
    """
    if factor == 1.0:
        return times_s
    random = np.random.default_rng(seed)
    whole = int(factor)
    copies = whole + (random.random(len(times_s)) < factor - whole)
    made = np.repeat(times_s, copies)
    first = np.append(True, made[1:] != made[:-1]) if len(made) else np.zeros(0, np.bool_)
    made = made + np.where(first, 0.0, random.uniform(-0.5, 0.5, len(made)))
    return np.sort(np.clip(made, times_s[0], times_s[-1]))


def window(times_s: Floats, most: int) -> int:
    """Find from which arrival on there are no more than so many, the last ones."""
    return max(0, len(times_s) - most)


def listed(values: Sequence[float] | Floats) -> list[float | None]:
    """Write numbers for JSON, None for what is none."""
    return [round(float(one), 7) if np.isfinite(one) else None for one in values]
