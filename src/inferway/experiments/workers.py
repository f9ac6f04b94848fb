"""Processes that compute points, several at a time; Ctrl-C ends them and loses nothing finished."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from inferway.experiments.study import Point

__all__ = ["Outcome", "compute"]


class Outcome(NamedTuple):
    """One point that ended."""

    place: int
    """Its place among the points given."""
    result: dict[str, Any] | None
    """None where it failed."""
    complaint: str
    """The traceback, where it failed."""
    seconds: float
    """CPU time."""


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


def compute(points: Sequence[Point], workers: int) -> Iterator[Outcome]:
    """Run points, yielding each as it ends.

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
                yield Outcome(index, *outcome)
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


def _outcome(index: int, point: Point) -> Outcome:
    start = time.process_time()
    try:
        result, complaint = dict(point.call(**point.arguments)), ""
    except Exception:
        result, complaint = None, traceback.format_exc()
    return Outcome(index, result, complaint, time.process_time() - start)
