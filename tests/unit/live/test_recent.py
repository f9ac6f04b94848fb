"""The last requests as rows: what a row holds, what makes way, and how much they take."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferway.live.recent import FLOOR, MOST, PINNED, ROW, SECOND, URGENT, RecentRequests
from inferway.live.request import InferRequest, Outcome


def ended(received_s: float, **keys: Any) -> InferRequest:
    usual: dict[str, Any] = {"given": {}, "rows": 1, "deliver": lambda _: None}
    usual |= {"outcome": Outcome.ANSWERED, "received_s": received_s, "server": 0}
    return InferRequest(**usual | keys)


def test_a_row_is_what_the_request_was() -> None:
    recent = RecentRequests()
    recent.of("other")(ended(1.0), 0)
    note = recent.of("digits")
    before: Any = SimpleNamespace(now_s=5.25)
    request = ended(
        5.0, before=before, latency_s=0.5, service_s=0.125, deadline_s=7.0, server=3, rows=4,
        together=(2, 8), counted=False, floor=0.5, priority=1, settled=True, credit=0.75,
        escalated_from="tiny",
    )  # fmt: skip
    note(request, 1)
    note(ended(6.0, outcome=Outcome.REJECTED, server=-1), -1)
    first, second = recent.taken("digits")(-math.inf)
    assert first.tolist() == (
        *(5.0, 0.25, 0.5, 0.125, 2.0, 1, 0.75, 3, 1, 2, 4, Outcome.ANSWERED),
        PINNED | FLOOR | URGENT | SECOND,
    )
    assert math.isnan(second["expected"])
    assert second["deadline_s"] == math.inf
    assert (second["server"], second["column"], second["outcome"]) == (-1, -1, Outcome.REJECTED)
    assert second["flags"] == 0


def test_rows_are_told_by_task_and_since_when() -> None:
    recent = RecentRequests()
    for number in range(6):
        recent.of("even" if number % 2 == 0 else "odd")(ended(float(number)), 0)
    assert recent.taken("odd")(-1.0)["received_s"].tolist() == [1.0, 3.0, 5.0]
    assert recent.taken("even")(0.0)["received_s"].tolist() == [2.0, 4.0]
    assert len(recent.taken("none")(-1.0)) == 0


def test_of_more_tasks_than_a_row_can_number_the_first_are_kept() -> None:
    recent = RecentRequests(4)
    notes = [recent.of(f"task-{number}") for number in range(2**16 + 1)]
    for note in notes[-2:]:
        note(ended(1.0), 0)
    assert len(recent.taken(f"task-{2**16 - 1}")(-1.0)) == 1
    assert len(recent.taken(f"task-{2**16}")(-1.0)) == 0


@pytest.mark.parametrize("count", [3, 4, 5, 8, 11])
def test_the_oldest_make_way(count: int) -> None:
    recent = RecentRequests(4)
    note = recent.of("digits")
    for number in range(count):
        note(ended(float(number)), 0)
    kept = recent.taken("digits")(-1.0)["received_s"].tolist()
    assert kept == [float(number) for number in range(max(0, count - 4), count)]


def test_they_never_take_more_than_four_megabytes() -> None:
    assert ROW.itemsize == 40
    assert RecentRequests().nbytes == MOST * ROW.itemsize <= 4_000_000


def test_what_was_taken_stays_while_requests_go_on() -> None:
    recent = RecentRequests(2)
    note = recent.of("digits")
    note(ended(1.0), 0)
    find = recent.taken("digits")
    note(ended(2.0), 0)
    note(ended(3.0), 0)
    assert find(0.0)["received_s"].tolist() == [1.0]


def test_numbers_beyond_a_row_are_cut() -> None:
    recent = RecentRequests(1)
    recent.of("digits")(ended(1.0, rows=1_000_000), 0)
    assert recent.taken("digits")(0.0)["rows"].tolist() == [np.iinfo(np.uint16).max]
