from __future__ import annotations

from typing import Any

import numpy as np

from inferway.live import InferRequest, Outcome
from inferway.live.explain import LOOKED_AT, FleetFacts, RequestLog

FACTS = FleetFacts(
    ("tiny", "big"), [0.7, 0.9], [0, 1, 2], 0.8, 4, [1, 1], lambda *_: np.zeros((2, 2))
)


def ended(name: str, **given: Any) -> InferRequest:
    request = InferRequest(given={}, rows=1, deliver=lambda _: None, id=name.encode())
    request.outcome, request.server, request.received_s = Outcome.ANSWERED, 0, 10.0
    request.predicted_s = request.latency_s = 0.010
    for key, value in given.items():
        setattr(request, key, value)
    return request


def test_what_surprises_comes_first_and_then_the_last() -> None:
    log = RequestLog()
    refused = {"outcome": Outcome.REJECTED, "server": -1, "reason": "there is no room"}
    for request in (
        ended("old"),
        ended("slow", latency_s=0.100),
        ended("left", outcome=Outcome.CANCELED, reason="the client went"),
        ended("late", deadline_s=10.008, server=1),
        ended("refused", **refused),
        ended("quick", latency_s=0.001),
        ended("last"),
    ):
        log.keep(request, FACTS)
    told = log.decisions(7, 12.0)
    names = [one["id"] for one in told]
    assert names == ["refused", "late", "left", "slow", "quick", "last", "old"]
    assert [one["surprise"] for one in told] == [
        "there is no room",
        "2 ms after its deadline",
        "the client went",
        "9.2 times what was predicted",
        "sooner than predicted",
        "as predicted",
        "as predicted",
    ]
    assert told[0]["variant"] is told[0]["predicted_latency_ms"] is told[0]["latency_ms"] is None
    assert (told[1]["variant"], told[1]["late"], told[1]["latency_ms"]) == ("big", True, 10.0)
    assert told[0]["ago_ms"] == 2000.0
    assert [one["id"] for one in log.decisions(2, 12.0)] == ["refused", "late"]


def test_what_happened_long_ago_surprises_nobody() -> None:
    log = RequestLog()
    log.keep(ended("refused", outcome=Outcome.REJECTED, server=-1), FACTS)
    for number in range(LOOKED_AT):
        log.keep(ended(str(number)), FACTS)
    assert log.decisions(1, 12.0)[0]["id"] == str(LOOKED_AT - 1)
    assert RequestLog().decisions(5, 12.0) == []
