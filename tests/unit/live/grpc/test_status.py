from __future__ import annotations

import pytest

from inferway.live.grpc.inference import code_of, retry
from inferway.live.request import Outcome


def test_every_end_without_an_answer_has_a_code() -> None:
    codes = {outcome: code_of(outcome).name for outcome in set(Outcome) - {Outcome.ANSWERED}}
    assert codes == {
        Outcome.REJECTED: "RESOURCE_EXHAUSTED",
        Outcome.EXPIRED: "DEADLINE_EXCEEDED",
        Outcome.FAILED: "INTERNAL",
        Outcome.CANCELED: "CANCELLED",
        Outcome.INVALID: "INVALID_ARGUMENT",
        Outcome.UNAVAILABLE: "UNAVAILABLE",
    }


@pytest.mark.parametrize(
    ("after_s", "shown"),
    [
        (0.0, ("1", "1")),
        (0.0201, ("1", "21")),
        (1.5, ("2", "1500")),
        (float("inf"), ("60", "60000")),
    ],
)
def test_retry_is_told_to_people_and_to_grpc(after_s: float, shown: tuple[str, str]) -> None:
    seconds, milliseconds = shown
    assert retry(after_s) == (
        ("retry-after", seconds),
        ("grpc-retry-pushback-ms", milliseconds),
    )
