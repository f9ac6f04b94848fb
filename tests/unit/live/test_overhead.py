"""The CPU time of requests besides their models, from counts at the ends of intervals."""

from __future__ import annotations

import pytest

from inferway.live.overhead import ENOUGH, FEWEST, LAST, OverheadEstimate, ProcessCounts

OWN_S, MODEL_S, IDLE = 200e-6, 3e-3, 0.02
"""What a request takes of the server and of its model, s, and cores that it burns when idle."""


class Process:
    """Counts of a server's process, interval by interval."""

    def __init__(self) -> None:
        self.now = ProcessCounts(0.0, 5.0, {1: 1.0, 2: 0.0}, 7, 0)
        self.estimate = OverheadEstimate()
        self.estimate.take(self.now)

    def serve(self, requests: int, own_s: float = OWN_S, passed_s: float = 1.0) -> None:
        """Let an interval pass in which so many requests ended."""
        at_s, cpu_s, of_models, ended, _ = self.now
        models_s = MODEL_S * requests
        self.now = ProcessCounts(
            at_s + passed_s,
            cpu_s + IDLE * passed_s + own_s * requests + models_s,
            {1: of_models[1] + models_s / 3, 2: of_models[2] + 2 * models_s / 3},
            ended + requests,
            0,
        )
        self.estimate.take(self.now)


@pytest.fixture
def process() -> Process:
    return Process()


def test_it_is_what_models_and_an_idle_server_do_not_take(process: Process) -> None:
    for _ in range(3):
        process.serve(0)
    for number in range(FEWEST):
        assert process.estimate.seconds is None
        process.serve(100 * (number + 1), passed_s=1.0 + number / 10)
    assert process.estimate.seconds == pytest.approx(OWN_S)
    assert process.estimate.idle_cores == pytest.approx(IDLE)


def test_intervals_with_few_requests_or_none_tell_nothing(process: Process) -> None:
    for _ in range(3 * LAST):
        process.serve(ENOUGH - 1, own_s=1.0)
        process.serve(0)
    assert process.estimate.seconds is None
    for _ in range(FEWEST):
        process.serve(ENOUGH)
    assert process.estimate.seconds == pytest.approx(OWN_S)
    for _ in range(3 * LAST):
        process.serve(0)
    assert process.estimate.seconds == pytest.approx(OWN_S)


def test_it_is_the_median_of_the_last_intervals(process: Process) -> None:
    process.serve(0)
    for _ in range(LAST):
        process.serve(50)
        process.serve(0)
    for _ in range(LAST // 2 - 1):  # as while something else goes on
        process.serve(50, own_s=1.0)
    assert process.estimate.seconds == pytest.approx(OWN_S)
    for _ in range(LAST):
        process.serve(50, own_s=3 * OWN_S)
    assert process.estimate.seconds == pytest.approx(3 * OWN_S)
    assert process.estimate.intervals == LAST


def test_an_interval_in_which_models_came_or_went_does_not_count(process: Process) -> None:
    process.serve(0)
    for _ in range(FEWEST):
        process.serve(50)
        other = process.now.run_cpu_s[1] + 9.0, process.now.run_cpu_s[2]
        keys = (1, 2, 3) if 3 not in process.now.run_cpu_s else (1, 2)
        # Nine seconds of runs on zeros, which are of no request.
        changed = process.now._replace(
            cpu_s=process.now.cpu_s + 10.0, run_cpu_s=dict(zip(keys, (*other, 0.0), strict=False))
        )
        process.estimate.take(changed)
        process.now = process.now._replace(cpu_s=changed.cpu_s)
        process.estimate.take(process.now)
    assert process.estimate.seconds == pytest.approx(OWN_S)
