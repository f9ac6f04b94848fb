"""Points, grids of them, and the one runner that computes them, in processes or in threads."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple

_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Point:
    """One call that gives one row of results: a scenario and a seed, as a rule.

    Attributes
    ----------
    label
        What tells its row from the others: the row's first columns.
    call
        A function at the top of a module; it returns a flat mapping of numbers, strings, booleans
        or lists of numbers.
    arguments
        Its keyword arguments, in values that JSON has: they are what a stored row is known by.
    seconds
        About how long it takes on one core; only the time left depends on it.
    """

    label: Mapping[str, Any]
    call: Callable[..., Any]
    arguments: Mapping[str, Any]
    seconds: float = 1.0


def grid(
    call: Callable[..., Any],
    arguments: Mapping[str, Any] | Callable[..., Mapping[str, Any]],
    seconds: float | Callable[..., float],
    *,
    label: Mapping[str, Any] | None = None,
    **axes: Iterable[Any],
) -> list[Point]:
    """Make a point of every combination of values; the last axis changes fastest.

    Parameters
    ----------
    call
        What each point computes.
    arguments
        Those that all points have, besides the axes. A function is given the combination and
        returns all arguments, so that the axes are labels alone.
    seconds
        About how long each takes; a function is given the combination.
    label
        A part of all labels that is no argument.
    axes
        What a point is labeled with. Of ``trial`` its seed is made, which is one more.
    """
    points = []
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        own = {name: value for name, value in values.items() if name != "trial"}
        made = {**arguments(**own)} if callable(arguments) else {**arguments, **own}
        if "trial" in values:
            made["seed"] = values["trial"] + 1
        cost = seconds(**own) if callable(seconds) else seconds
        points.append(Point({**(label or {}), **values}, call, made, cost))
    return points


class Computed(NamedTuple):
    """One point that ended."""

    place: int
    """Its place among the points given."""
    result: Any
    """None where it failed, or was interrupted."""
    complaint: str = ""
    """The traceback, where it failed."""
    seconds: float = 0.0
    """CPU time."""


def in_turn(points: Iterable[Point]) -> list[Any]:
    """Run points here, one after another, and return their results; what one raises ends all."""
    return [point.call(**point.arguments) for point in points]


def in_threads(points: Sequence[Point], workers: int, stop: threading.Event) -> Iterator[Computed]:
    """Run points of compiled code in threads of this process, yielding each as it ends.

    For arguments that no other process could be sent. A point's own exception is raised as it is.
    Where the run ends before its time, as after Ctrl-C, `stop` is set for those that still run.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        places = {pool.submit(one.call, **one.arguments): i for i, one in enumerate(points)}
        left = set(places)
        try:
            while left:
                done, left = wait_for(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield Computed(places[future], future.result())
        except BaseException:
            stop.set()
            for future in left:
                future.cancel()
            raise


def in_processes(points: Sequence[Point], workers: int) -> Iterator[Computed]:
    """Run points, yielding each as it ends; Ctrl-C ends all processes.

    Parameters
    ----------
    points
        In the order in which they start.
    workers
        How many processes; 0 computes here, one after the other.

    Raises
    ------
    RuntimeError
        Where a process dies without an answer.
    """
    if workers == 0:
        yield from (_computed(place, point) for place, point in enumerate(points))
        return
    context = get_context("spawn")  # a fork would share locks of threads that are not forked
    pool: dict[Connection, SpawnProcess] = {}
    doing: dict[Connection, int] = {}
    waiting = iter(enumerate(points))

    def send_next(connection: Connection) -> None:
        for place, point in itertools.islice(waiting, 1):
            connection.send((place, point))
            doing[connection] = place

    try:
        for _ in range(min(workers, len(points))):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            with _without_main():
                process.start()
            there.close()
            pool[here] = process
            send_next(here)
        while doing:
            for ready in wait(list(doing)):
                assert isinstance(ready, Connection)
                place = doing.pop(ready)
                try:
                    computed = ready.recv()
                except EOFError:
                    raise RuntimeError(
                        f"the process of point {dict(points[place].label)} died, "
                        "perhaps for want of memory: start again with fewer --workers"
                    ) from None
                send_next(ready)
                yield computed
    finally:
        for connection, process in pool.items():
            process.terminate()
            connection.close()
        for process in pool.values():
            process.join()


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the program's own file: it may ask for this very study."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {
        name: main.pop(name) for name in ("__file__", "__spec__") if name in main
    }
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def _serve(connection: Connection) -> None:
    """Answer points until the parent is gone. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # the points are what runs at the same time
    while True:
        try:
            place, point = connection.recv()
        except EOFError:
            return
        connection.send(_computed(place, point))


def _computed(place: int, point: Point) -> Computed:
    start = time.process_time()
    try:
        result, complaint = dict(point.call(**point.arguments)), ""
    except Exception:
        result, complaint = None, traceback.format_exc()
    return Computed(place, result, complaint, time.process_time() - start)
