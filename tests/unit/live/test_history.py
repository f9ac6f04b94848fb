from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import inferway.live.history as history_module
from inferway.dispatch import Dispatcher
from inferway.live import Outcome, Pool, PoolOptions, TaskSite
from inferway.live.history import LIMIT_BYTES, ROWS, History, Ring, quantiles_s
from inferway.live.stats import FINE_BOUNDS_S
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

SIGNATURE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
BEGIN = 1_000_000_020.0  # a full minute


def site_of(task: str = "digits", target: float | None = 0.8) -> TaskSite:
    fleet = Fleet(("tiny", "big"), np.array([1e3, 1e2]), np.array([0.7, 0.9]), np.array([2, 1]))
    dispatcher = Dispatcher(fleet, "fastest-only", target=target, rate_per_s=50)
    runtimes = [NullRuntime(SIGNATURE) for _ in range(3)]
    pool = Pool(task, SIGNATURE, dispatcher, runtimes, PoolOptions(target=target))
    pool.changed = lambda *_: None
    return TaskSite.of(pool)


def sampled(history: History, *times: float) -> None:
    async def main() -> None:
        for now_s in times:
            await history.sample(now_s)

    asyncio.run(main())


def numbers(values: Sequence[float]) -> Any:
    return pytest.approx(list(values), abs=1e-6, nan_ok=True)


def test_a_sample_is_what_has_been_counted_since_the_one_before() -> None:
    site = site_of()
    history = History(lambda: [site])
    site.stats.answered(0, 1, 0.7, 0.010, 0.001)
    sampled(history, BEGIN)
    site.stats.answered(0, 2, 0.7, 0.010, 0.001)
    site.stats.answered(1, 1, 0.9, 0.040, 0.001)
    site.stats.ended(Outcome.REJECTED)
    site.stats.late[1] += 1
    sampled(history, BEGIN + 1, BEGIN + 2)
    page = history.page("second")
    assert page["times"] == [BEGIN, BEGIN + 1, BEGIN + 2]
    assert not page["more"]
    told = page["tasks"]["digits"]
    assert told["arrivals"] == [1, 3, 0]
    assert told["answered"] == [1, 2, 0]
    assert told["rejected"] == [0, 1, 0]
    assert told["late"] == [0, 1, 0]
    assert told["rows"] == [1, 3, 0]
    assert told["accuracy"] == numbers([0.7, (2 * 0.7 + 0.9) / 3, math.nan])
    assert told["latency_mean_s"] == numbers([0.010, 0.025, math.nan])
    assert told["target"] == numbers([0.8] * 3)
    assert told["mean"] == numbers([0.7, 0.75, 0.75])
    assert told["state"] == ["unknown"] * 3
    assert told["instances"] == told["healthy"] == [3, 3, 3]
    assert told["variants"]["tiny"]["answered"] == [1, 1, 0]
    assert told["variants"]["big"]["latency_mean_s"] == numbers([math.nan, 0.040, math.nan])
    assert told["variants"]["tiny"]["healthy"] == [2, 2, 2]
    assert sum(told["response_times"]["tiny"]) == 2


def test_queues_and_health_are_those_of_the_moment() -> None:
    site = site_of(target=None)
    history = History(lambda: [site])
    site.pool.queues[0].extend([object()] * 2)  # type: ignore[list-item]
    site.pool.queues[2].append(object())  # type: ignore[arg-type]
    site.pool.health.healthy[1] = False
    sampled(history, BEGIN)
    told = history.page("second")["tasks"]["digits"]
    assert (told["queued"], told["in_flight"], told["healthy"]) == ([3], [3], [2])
    # On their way, and counted as having come.
    assert told["arrivals"] == [3]
    assert told["variants"]["tiny"]["queued"] == [2]
    assert told["variants"]["tiny"]["healthy"] == [1]
    assert told["target"] == numbers([math.nan])
    assert told["state"] == [None]


def test_a_minute_sums_its_requests_and_averages_its_queues() -> None:
    site = site_of()
    history = History(lambda: [site])
    sampled(history, BEGIN)
    for second in range(1, 61):
        site.stats.answered(0, 1, 0.7, 0.010, 0.001)
        if second == 31:
            site.pool.queues[0].extend([object()] * 4)  # type: ignore[list-item]
        sampled(history, BEGIN + second)
    page = history.page("minute")
    told = page["tasks"]["digits"]
    assert page["times"] == [BEGIN + 60]
    assert told["answered"] == [60]
    assert told["queued"] == [2.0]
    assert told["in_flight"] == [2.0]
    assert told["latency_p50_s"][0] == pytest.approx(0.0095, abs=0.0005)
    assert told["variants"]["tiny"]["queued"] == [2.0]
    assert len(history.page("second")["times"]) == 61


def test_a_variant_that_comes_amid_the_sample_of_a_minute_is_in_the_next() -> None:
    sites = [site_of("a"), site_of("b")]
    history = History(lambda: sites)
    sampled(history, BEGIN)

    async def between_the_tasks() -> None:
        sites[1].stats.columns(["far@there"])

    async def main() -> None:
        coming = asyncio.create_task(between_the_tasks())
        await history.sample(BEGIN + 60)
        await coming

    asyncio.run(main())
    sampled(history, BEGIN + 61)
    minutes, seconds = history.page("minute"), history.page("second")
    assert minutes["times"] == [BEGIN + 60]
    assert minutes["tasks"]["b"]["arrivals"] == [0]
    assert "far@there" in seconds["tasks"]["b"]["variants"]


def test_who_reads_amid_a_sample_sees_the_last_whole_one() -> None:
    sites = [site_of("a"), site_of("b")]
    history = History(lambda: sites)
    sampled(history, BEGIN)
    read: list[Any] = []
    sites[0].stats.answered(0, 1, 0.7, 0.010, 0.001)  # where nothing happens, nobody has a turn

    async def between_the_tasks() -> None:
        read.append(history.page("second"))

    async def main() -> None:
        reading = asyncio.create_task(between_the_tasks())
        await history.sample(BEGIN + 1)
        await reading

    asyncio.run(main())
    assert read[0]["times"] == [BEGIN]
    assert history.page("second")["tasks"]["b"]["arrivals"] == [0, 0]


def test_a_sample_that_cannot_be_taken_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken: list[float] = []
    history = History(lambda: [])

    async def sample(now_s: float) -> None:
        taken.append(now_s)
        raise KeyError("gone")

    async def sampled_on() -> None:
        monkeypatch.setattr(history, "sample", sample)
        history.begin()
        ends_s = time.monotonic() + 30.0
        while len(taken) < 2 and time.monotonic() < ends_s:
            await asyncio.sleep(0.01)
        history.end()

    asyncio.run(sampled_on())
    assert len(taken) == 2
    assert "a sample of the history could not be taken" in capfd.readouterr().err


def test_a_page_has_what_is_newer_and_says_that_there_is_more() -> None:
    site = site_of()
    history = History(lambda: [site])
    sampled(history, *(BEGIN + second for second in range(ROWS["second"] + 100)))
    first = history.page("second")
    assert first["times"][0] == BEGIN + 100  # older ones have been written over
    assert first["more"]
    times = list(first["times"])
    while first["more"]:
        first = history.page("second", times[-1])
        times += first["times"]
    assert times == [BEGIN + 100 + second for second in range(ROWS["second"])]
    assert history.page("second", times[-1])["times"] == []


def test_a_second_is_sampled_once_and_a_clock_that_is_set_back_begins_anew() -> None:
    site = site_of()
    history = History(lambda: [site])
    sampled(history, BEGIN, BEGIN + 1)
    site.stats.answered(0, 1, 0.7, 0.010, 0.001)
    sampled(history, BEGIN + 1, BEGIN + 2)
    assert history.page("second")["tasks"]["digits"]["answered"] == [0, 0, 1]
    sampled(history, BEGIN - 3600)
    assert history.page("second")["times"] == [BEGIN - 3600]


def test_tasks_and_variants_come_and_go() -> None:
    sites = [site_of("a")]
    history = History(lambda: sites)
    sampled(history, BEGIN)
    sites.append(site_of("b"))
    sites[0].stats.columns(("huge",))
    sites[0].stats.answered(2, 1, 0.99, 0.1, 0.1)
    sampled(history, BEGIN + 1)
    told = history.page("second")["tasks"]
    assert told["a"]["answered"] == [0, 1]
    assert told["a"]["variants"]["huge"]["answered"] == numbers([math.nan, 1])
    assert told["a"]["variants"]["huge"]["healthy"] == numbers([math.nan, 0])
    assert told["b"]["answered"] == numbers([math.nan, 0])
    del sites[0]
    sites.append(site_of("a"))  # another one of the same name counts from 0
    sampled(history, BEGIN + 2)
    assert history.page("second")["tasks"]["a"]["answered"] == [0, 1, 0]
    sites[:] = []
    assert history.page("second")["tasks"] == {}


def test_a_task_at_rest_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site, worked_out = site_of(), list[Any]()

    def counted(counts: Any) -> list[float]:
        worked_out.append(counts)
        return quantiles_s(counts)

    monkeypatch.setattr(history_module, "quantiles_s", counted)
    history = History(lambda: [site])
    site.stats.answered(0, 1, 0.7, 0.010, 0.001)
    sampled(history, *(BEGIN + second for second in range(10)))
    assert len(worked_out) == 1
    site.balance[0] = -2.5  # a promise is of the moment, as others count for it too
    sampled(history, BEGIN + 10)
    told = history.page("second")["tasks"]["digits"]
    assert told["answered"] == [1, *[0] * 10]
    assert told["balance"] == [*[0.0] * 10, -2.5]


def test_a_task_that_nothing_answers_is_sampled_too() -> None:
    site = TaskSite("digits", 0.8)
    site.stats.ended(Outcome.UNAVAILABLE)
    history = History(lambda: [site])
    sampled(history, BEGIN)
    told = history.page("second")["tasks"]["digits"]
    assert (told["unavailable"], told["arrivals"], told["healthy"]) == ([1], [1], [0])


@pytest.mark.parametrize("tasks", [1, 5, 40])
def test_samples_take_no_more_than_the_limit(tasks: int) -> None:
    sites = [TaskSite(f"task-{number}", 0.8) for number in range(tasks)]
    for site in sites:
        site.stats.columns(("a", "b", "c", "d"))
    history = History(lambda: sites)
    sampled(history, BEGIN)
    assert history.nbytes <= LIMIT_BYTES
    kept = len(history.rings["second"].times)
    assert (kept == ROWS["second"]) == (tasks <= 5)
    assert kept > 90
    before = history.nbytes
    sampled(history, *(BEGIN + second for second in range(1, 5)))
    assert history.nbytes == before


def test_fewer_rows_keep_the_newest_samples() -> None:
    ring, key = Ring(4, 1.0), ("a", "")
    ring.lay_out({key: 1}, 4)
    for second in range(6):
        assert ring.takes(BEGIN + second)
        ring.write(BEGIN + second, np.array([float(second)]))
    ring.lay_out({("b", ""): 2, key: 1}, 3)
    assert ring.times[ring.after(-math.inf)].tolist() == [BEGIN + second for second in (3, 4, 5)]
    assert ring.read(key, ring.after(BEGIN + 3)).tolist() == [[4.0], [5.0]]
    assert ring.takes(BEGIN + 6)
    ring.write(BEGIN + 6, np.zeros(3))
    assert ring.times[ring.after(-math.inf)].tolist() == [BEGIN + second for second in (4, 5, 6)]


def test_quantiles_are_within_a_tenth_of_those_of_the_latencies() -> None:
    latencies_s = np.random.default_rng(1).lognormal(math.log(0.02), 0.8, 20_000)
    counts = np.bincount(
        np.searchsorted(FINE_BOUNDS_S, latencies_s), minlength=len(FINE_BOUNDS_S) + 1
    ).astype(float)
    expected = np.quantile(latencies_s, [0.5, 0.95, 0.99])
    assert quantiles_s(counts.tolist()) == pytest.approx(expected.tolist(), rel=0.02)
    assert quantiles_s([0.0] * len(counts)) == numbers([math.nan] * 3)
    beyond = np.zeros_like(counts)
    beyond[-1] = 3
    assert quantiles_s(beyond.tolist()) == [FINE_BOUNDS_S[-1]] * 3


def test_samples_are_taken_at_full_seconds_until_the_end() -> None:
    site = site_of()
    history = History(lambda: [site])

    async def main() -> None:
        history.begin()
        deadline = asyncio.get_running_loop().time() + 30.0
        while len(history.page("second")["times"]) < 2:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        history.end()

    asyncio.run(main())
    times = history.page("second")["times"]
    assert all(now_s == int(now_s) for now_s in times)
    process = history.page("second")["process"]
    assert process["memory_bytes"][-1] > 1e6
    assert 0.0 <= process["cpu_cores"][-1] < 64.0
