from __future__ import annotations

import pytest

from inferway.live.grpc.status import OUTCOMES, retry
from inferway.live.request import Outcome


def test_every_end_without_an_answer_has_a_code() -> None:
    assert set(OUTCOMES) == set(Outcome) - {Outcome.ANSWERED}


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
