"""The CPU time of requests besides their models, from counts at the ends of intervals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from inferway.deployment.overhead import MeasuredOverhead
from inferway.live.overhead import (
    ENOUGH,
    FEWEST,
    LAST,
    OverheadEstimate,
    OverheadMeter,
    ProcessCounts,
)

OWN_S, MODEL_S, IDLE = 200e-6, 3e-3, 0.02
"""What a request takes of the server and of its model, s, and cores that it burns when idle."""


class Process:
    """Counts of a server's process, interval by interval."""

    def __init__(self) -> None:
        self.now = ProcessCounts(0.0, 5.0, {1: 1.0, 2: 0.0}, 7, 0, {1: 0.0, 2: 0.0})
        self.estimate = OverheadEstimate()
        self.estimate.take(self.now)

    def serve(
        self,
        requests: int,
        own_s: float = OWN_S,
        passed_s: float = 1.0,
        beyond_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Let an interval pass in which so many requests ended.

        Each of two models took so much longer than by its profile, for each request.
        """
        at_s, cpu_s, of_models, ended, _, stretched_s = self.now
        models_s = MODEL_S * requests
        self.now = ProcessCounts(
            at_s + passed_s,
            cpu_s + IDLE * passed_s + own_s * requests + models_s,
            {1: of_models[1] + models_s / 3, 2: of_models[2] + 2 * models_s / 3},
            ended + requests,
            0,
            {
                key: stretched_s.get(key, 0.0) + requests * each_s
                for key, each_s in zip((1, 2), beyond_s, strict=True)
            },
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


def test_what_models_take_beyond_their_profiles_is_told_apart(process: Process) -> None:
    process.serve(0)
    assert process.estimate.beyond_s is None
    for _ in range(FEWEST):
        # The second waits for an accelerator, which is not of these cores.
        process.serve(100, beyond_s=(150e-6, -1e-3))
    assert process.estimate.seconds == pytest.approx(OWN_S)
    assert process.estimate.beyond_s == pytest.approx(OWN_S + 150e-6)


def test_it_is_told_again_when_models_alone_take_longer() -> None:
    told: list[MeasuredOverhead] = []
    meter = OverheadMeter(lambda: ({}, {}, 0, 0), told.append, None, str, None)
    for beyond_s in (0.0, 0.0, 1e-6, 300e-6):
        meter.estimate.seconds, meter.estimate.beyond_s = OWN_S, OWN_S + beyond_s
        meter.look()
    assert [(one.own_s, one.seconds) for one in told] == [
        (OWN_S, OWN_S),
        (OWN_S, OWN_S + 300e-6),
    ]


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


def test_what_is_kept_is_of_the_models_that_are_served(tmp_path: Path) -> None:
    """After another file has come, its first estimate is of its own intervals alone."""
    file, served, told = tmp_path / "times.json", ["one"], list[MeasuredOverhead]()
    ended = 0

    def counts() -> tuple[dict[int, float], dict[int, float], int, int]:
        return {1: 0.0}, {1: ended * 1e-3}, ended, 0

    async def serve() -> None:
        nonlocal ended
        meter = OverheadMeter(counts, told.append, file, lambda: served[0], None)
        for key in ("one", "other"):
            served[0] = key
            meter.look()
            for _ in range(FEWEST - 1):
                ended += ENOUGH
                meter.look()
            await meter.keep()
            assert key not in kept()
            ended += ENOUGH
            meter.look()
            await meter.keep()
            assert key in kept()

    def kept() -> Any:
        return json.loads(file.read_text())["overheads"] if file.exists() else {}

    asyncio.run(serve())
    assert kept().keys() == {"one", "other"}
    for one in kept().values():  # with a millisecond beyond the profile
        assert one["beyond_profile_s"] - one["seconds"] == pytest.approx(1e-3)
