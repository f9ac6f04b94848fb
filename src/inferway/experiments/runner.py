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


def combinations(**axes: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values by name; the last one changes fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def grid(
    call: Callable[..., Any],
    arguments: Mapping[str, Any] | Callable[..., Mapping[str, Any]],
    seconds: float | Callable[..., float],
    *,
    label: Mapping[str, Any] | None = None,
    **axes: Iterable[Any],
) -> list[Point]:
    """Make a point of every combination of values.

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
    for values in combinations(**axes):
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
    complaint: str
    """The traceback, where it failed."""
    seconds: float
    """CPU time."""


def in_threads(points: Sequence[Point], workers: int, stop: threading.Event) -> Iterator[Computed]:
    """Run points of compiled code in threads of this process, yielding each as it ends.

    For arguments that no other process could be sent. A point's own exception is raised as it is.
    Where the run ends before its time, as after Ctrl-C, `stop` is set for those that still run.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = {
            pool.submit(point.call, **point.arguments): index for index, point in enumerate(points)
        }
        left = set(futures)
        try:
            while left:
                done, left = wait_for(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield Computed(futures[future], future.result(), "", 0.0)
        except BaseException:
            stop.set()
            for future in left:
                future.cancel()
            raise


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the program's own file: it may ask for this very study."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in hidden:
            del main.__file__
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


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
        yield from (_outcome(index, point) for index, point in enumerate(points))
        return
    context = get_context("spawn")  # a fork would share locks of threads that are not forked
    pool: dict[Connection, SpawnProcess] = {}
    doing: dict[Connection, int] = {}
    waiting = list(enumerate(points))[::-1]
    try:
        for _ in range(min(workers, len(points))):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            with _without_main():
                process.start()
            there.close()
            pool[here] = process
            _send(here, waiting, doing)
        while doing:
            for ready in wait(list(doing)):
                assert isinstance(ready, Connection)
                index = doing.pop(ready)
                try:
                    outcome = ready.recv()
                except EOFError:
                    raise RuntimeError(
                        f"the process of point {dict(points[index].label)} died, "
                        "perhaps for want of memory: start again with fewer --workers"
                    ) from None
                _send(ready, waiting, doing)
                yield Computed(index, *outcome)
    finally:
        for connection, process in pool.items():
            process.terminate()
            connection.close()
        for process in pool.values():
            process.join()


def _send(
    connection: Connection, waiting: list[tuple[int, Point]], doing: dict[Connection, int]
) -> None:
    if waiting:
        index, point = waiting.pop()
        connection.send(point)
        doing[connection] = index


def _serve(connection: Connection) -> None:
    """Answer points until the parent is gone. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # the points are what runs at the same time
    while True:
        try:
            point = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(0, point)[1:])


def _outcome(index: int, point: Point) -> Computed:
    start = time.process_time()
    try:
        result, complaint = dict(point.call(**point.arguments)), ""
    except Exception:
        result, complaint = None, traceback.format_exc()
    return Computed(index, result, complaint, time.process_time() - start)
