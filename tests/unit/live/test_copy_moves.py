"""What explanations tell of copies that come and go as devices are given out anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.live import InferRequest, Outcome
from inferway.live.copy_moves import KEPT, CopyMove, CopyMoves, in_words
from inferway.live.explain import FleetFacts, RequestLog

FACTS = FleetFacts(("big",), [0.9], [0, 1], None, 4, [1], lambda *_: np.zeros((1, 2)))


def begun(moves: CopyMoves, variant: str, now_s: float, **given: Any) -> CopyMove:
    settings = {"device": "cpu", "comes": False, "reason": "why", "decision": 1} | given
    return moves.begin(variant, now_s=now_s, **settings)


def states(moves: CopyMoves, time_s: float) -> list[tuple[str, str, float]]:
    return [(one["variant"], one["state"], one["since_ms"]) for one in moves.at(time_s)]


def test_one_goes_and_another_comes() -> None:
    moves = CopyMoves()
    going = begun(moves, "big", 10.0)
    coming = begun(moves, "small", 11.0, comes=True)
    assert states(moves, 9.0) == []
    assert states(moves, 10.5) == [("big", "draining", 500.0)]
    going.ended_s, coming.ended_s = 12.0, 13.0
    assert states(moves, 11.5) == [("small", "warming", 500.0), ("big", "draining", 1500.0)]
    assert states(moves, 12.5) == [("small", "warming", 1500.0), ("big", "away", 500.0)]
    assert states(moves, 20.0) == [("big", "away", 8000.0)]
    assert in_words(moves.at(20.0)) == "as devices are given out anew, there was big on cpu away"
    # It is missed until one of its variant comes, wherever.
    back = begun(moves, "big", 30.0, comes=True, device="t4", decision=2)
    assert states(moves, 29.0) == [("big", "away", 17000.0)]
    assert states(moves, 31.0) == [("big", "warming", 1000.0)]
    back.ended_s = 32.0
    assert states(moves, 33.0) == []
    assert in_words(moves.at(33.0)) == ""


def test_one_that_changes_its_device_is_never_away() -> None:
    moves = CopyMoves()
    coming = begun(moves, "big", 10.0, comes=True, device="t4")
    coming.ended_s = 11.0
    going = [begun(moves, "big", 11.0) for _ in range(2)]
    for move in going:
        move.ended_s = 12.0
    assert states(moves, 11.5) == [("big", "draining", 500.0)] * 2
    assert states(moves, 13.0) == [("big", "away", 1000.0)]  # of two one came elsewhere


def test_what_did_not_come_is_forgotten_and_another_file_begins_anew() -> None:
    moves = CopyMoves()
    moves.undo(begun(moves, "big", 10.0, comes=True))
    assert states(moves, 10.5) == []
    begun(moves, "big", 11.0)
    moves.begin_anew(12.0)
    assert states(moves, 11.5) == [("big", "draining", 500.0)]
    assert states(moves, 12.5) == []
    for number in range(2 * KEPT):
        begun(moves, "big", 20.0, decision=number)
    assert len(moves.at(21.0)) == KEPT


def test_one_that_went_is_missed_on_where_what_was_to_come_did_not() -> None:
    moves = CopyMoves()
    begun(moves, "big", 10.0).ended_s = 11.0
    failed = begun(moves, "big", 20.0, comes=True, device="t4", decision=2)
    assert states(moves, 21.0) == [("big", "warming", 1000.0)]
    moves.undo(failed)
    assert states(moves, 21.0) == [("big", "away", 10000.0)]
    # One more that comes is in its place all the same.
    begun(moves, "big", 30.0, comes=True, decision=3).ended_s = 31.0
    assert states(moves, 32.0) == []
    # Nor is it missed where another file has been applied meanwhile.
    begun(moves, "big", 40.0).ended_s = 41.0
    late = begun(moves, "big", 42.0, comes=True, decision=4)
    moves.begin_anew(43.0)
    moves.undo(late)
    assert states(moves, 44.0) == []


def test_explanations_of_refusals_tell_them_too() -> None:
    log = RequestLog()
    begun(log.moves, "big", 9.5, reason="b would not all be served").ended_s = 9.75
    for name, received_s in (("before", 9.0), ("after", 10.0)):
        request = InferRequest(given={}, rows=1, deliver=lambda _: None, id=name.encode())
        request.outcome, request.server = Outcome.REJECTED, -1
        request.received_s, request.reason = received_s, "there is no room"
        log.keep(request, FACTS)
    before, after = log.explain(b"before"), log.explain(b"after")
    assert before is not None
    assert after is not None
    assert "reassigned" not in before
    assert before["reason"] == "there is no room"
    assert after["reassigned"] == [
        {
            "variant": "big",
            "device": "cpu",
            "state": "away",
            "since_ms": 250.0,
            "reason": "b would not all be served",
        }
    ]
    assert after["reason"] == (
        "there is no room; as devices are given out anew, there was big on cpu away"
    )
