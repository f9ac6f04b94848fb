"""Service times by batch size: one run at a time, and with all cores busy.

Other programs on the machine can only make a call longer. So each service time is measured in
several rounds, spread over all that is measured, and the round with the least mean is what is told;
the thread's processor time beside it shows what a free core would have taken.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog.profile import BatchTime

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]
Progress = Callable[[float, str], None]  # told the share that is done, 0..1, and of what

ROUNDS: Final = 5
ROUND_S: Final = 0.25  # least time of a round, in seconds
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
LONGEST_CALL_S: Final = 1.0  # no larger size is tried of itself after a call that took longer

_LEAST_CALLS: Final = 10
_FEWEST_CALLS: Final = 3  # where a call takes longer than a round
_WARM_CALLS: Final = 3


class Timed(NamedTuple):
    """What is to be timed.

    Attributes
    ----------
    name
        For the progress.
    runs
        What answers a batch, one for each thread; the first alone, all when cores are busy.
    inputs
        Rows to ask about, shape [N, ...] each; they are repeated where a batch has more.
    sizes
        Of batches, in rows.
    """

    name: str
    runs: Sequence[Run]
    inputs: Arrays
    sizes: Sequence[int]


def service_times(
    timed: Sequence[Timed],
    *,
    busy: bool = False,
    rounds: int = ROUNDS,
    round_s: float = ROUND_S,
    progress: Progress | None = None,
) -> list[tuple[BatchTime, ...]]:
    """Measure how long calls take, by batch size.

    Parameters
    ----------
    timed
        Whatever is compared; rounds go from one to the next.
    busy
        Whether all `runs` of one are called at the same time, from a thread each.
    rounds, round_s
        How often each size is measured, and for how long at least, in seconds.
    progress
        Told after each measurement.

    Returns
    -------
    list
        Of each, its times by size.
    """
    asked = [
        {size: _batches(one.inputs, size, whole=64 * size) for size in one.sizes} for one in timed
    ]
    cells = [(place, size) for place, one in enumerate(timed) for size in one.sizes]
    rounded = list(itertools.product(range(rounds), cells))
    measured: dict[tuple[int, int], list[BatchTime]] = {}
    for done, (_, (place, size)) in enumerate(rounded, 1):
        one = timed[place]
        runs = one.runs if busy else one.runs[:1]
        measured.setdefault((place, size), []).append(
            _round(runs, asked[place][size], size, round_s)
        )
        if progress:
            how = f", {len(runs)} at a time" if busy else ""
            progress(done / len(rounded), f"service time of {one.name} at batch {size}{how}")
    best = {key: min(times, key=lambda one: one.mean_s) for key, times in measured.items()}
    return [tuple(best[place, size] for size in one.sizes) for place, one in enumerate(timed)]


def bearable(run: Run, inputs: Arrays, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
    """Find the sizes up to the first of which a call takes over a second, the first call aside."""
    run(*_batches(inputs, 1, whole=1))  # it may load or compile what the others find there
    kept = []
    for size in sizes:
        (batch,) = _batches(inputs, size, whole=size)
        start_s = time.perf_counter()
        run(batch)
        kept.append(size)
        if time.perf_counter() - start_s > LONGEST_CALL_S:
            break
    return tuple(kept)


def _batches(inputs: Arrays, size: int, *, whole: int) -> list[Arrays]:
    """Cut rows into batches of one size, from so many rows at most; one batch at least."""
    rows = len(next(iter(inputs.values())))
    count = max(1, min(rows, whole) // size)
    chosen = np.arange(count * size).reshape(count, size) % rows
    return [{name: array[some] for name, array in inputs.items()} for some in chosen]


def _round(runs: Sequence[Run], asked: Sequence[Arrays], size: int, round_s: float) -> BatchTime:
    """Call from a thread for each run until the time is over, all from the same moment on."""
    if len(runs) == 1:
        _warm(runs[0], asked)
        parts = [_calls(runs[0], asked, time.perf_counter() + round_s)]
    else:
        parts = _at_once(runs, asked, round_s)
    times = np.concatenate([one for one, _ in parts])
    cpu_s = sum(cpu for _, cpu in parts) / len(times)
    p50, p95, p99 = np.quantile(times, [0.5, 0.95, 0.99]).tolist()
    return BatchTime(
        batch=size,
        mean_s=float(times.mean()),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        spread_s=float(times.std()),
        steady_s=float(np.sort(times)[: len(times) - len(times) // 100].mean()),
        cpu_s=cpu_s,
        calls=len(times),
    )


def _warm(run: Run, asked: Sequence[Arrays]) -> None:
    for call in range(_WARM_CALLS):
        run(asked[call % len(asked)])


def _calls(run: Run, asked: Sequence[Arrays], end_s: float) -> tuple[NDArray[np.float64], float]:
    """Call until a moment, and often enough; the wall time of each call, and the thread's CPU."""
    times: list[float] = []
    cpu_s = time.thread_time()
    while (
        (now_s := time.perf_counter()) < end_s
        or len(times) < _FEWEST_CALLS
        or (len(times) < _LEAST_CALLS and times[0] < LONGEST_CALL_S / _LEAST_CALLS)
    ):
        run(asked[len(times) % len(asked)])
        times.append(time.perf_counter() - now_s)
    return np.array(times), time.thread_time() - cpu_s


def _at_once(
    runs: Sequence[Run], asked: Sequence[Arrays], round_s: float
) -> list[tuple[NDArray[np.float64], float]]:
    parts: dict[int, tuple[NDArray[np.float64], float]] = {}
    stopped = Event()

    def unless_stopped(run: Run) -> Run:
        def call(inputs: Arrays) -> Arrays:
            if stopped.is_set():
                raise BrokenBarrierError
            return run(inputs)

        return call

    errors: list[BaseException] = []
    ready = Barrier(len(runs))

    def called(place: int) -> None:
        try:
            run = unless_stopped(runs[place])
            _warm(run, asked)
            ready.wait()
            parts[place] = _calls(run, asked, time.perf_counter() + round_s)
        except BrokenBarrierError:
            pass  # another one says why, or nobody waits any more
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [Thread(target=called, args=(place,), daemon=True) for place in range(len(runs))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stopped.set()
        ready.abort()
        raise
    if errors:
        raise errors[0]
    return list(parts.values())
