"""Workers: what computes points at the same time, on this machine or on many.

Threads share compiled code and the memory of this process. Processes are those of joblib's engine,
loky; Ray and Dask are clusters of the user's own. All but threads are one seam, executors of
`concurrent.futures`: chunks of points go out, and what was computed comes back as it ends. The
process that asked writes all results, so that a worker that dies costs its chunk alone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, as_completed
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from inferway.experiments.runner import Computed, Point, computed
from inferway.extras import installing
from inferway.machine import cores
from inferway.version import __version__

LEAST_CHUNK_S: Final = 0.05  # CPU time of what is sent at once
_DEATHS: Final = 3  # of workers that had a chunk, after which it is given up
_REACH_S: Final = 5.0  # to reach a cluster
_WATCH_S: Final = 1.0  # between looks for the process that asked

_ENGINES: Final = {"ray": "ray", "dask": "distributed"}  # each an extra, and the module it needs
_EXPECTED: Final = (
    "a number, threads:N, processes:N, ray, ray://HOST:PORT or dask://HOST:PORT, such as 8 or "
    "ray://10.0.0.1:10001"
)


@dataclass(frozen=True)
class Workers:
    """Who computes points.

    Attributes
    ----------
    engine
        ``here`` (this thread), ``threads``, ``processes``, ``ray`` or ``dask``.
    count
        How many at the same time; None for as many as there are cores.
    address
        ``HOST:PORT`` of a cluster; empty for the Ray cluster of this machine, started if need be.
    """

    engine: str
    count: int | None = None
    address: str = ""

    @property
    def many(self) -> int:
        """How many compute at the same time, as far as this machine can tell."""
        return 1 if self.engine == "here" else self.count or cores()


def workers(written: int | str | None, usual: str) -> Workers:
    """Read ``8``, ``processes:8``, ``ray``, ``ray://HOST:10001`` or ``dask://HOST:8786``.

    Parameters
    ----------
    written
        A number is so many of the usual engine, 0 this thread; None as many as cores.
    usual
        The engine of a number: ``threads`` or ``processes``.

    Raises
    ------
    ValueError
        Where it is none of these.
    """
    text = "" if written is None else str(written).strip()
    wrong = ValueError(f"workers are {_EXPECTED}, not {text!r}")
    if written is None:
        return Workers(usual)
    if text == "0":
        return Workers("here")
    if text.isdecimal():
        return Workers(usual, int(text))
    engine, apart, rest = text.partition("://")
    if apart:
        host, colon, port = rest.rpartition(":")
        if engine not in _ENGINES or not (host and colon and port.isdecimal()):
            raise wrong
        return Workers(engine, None, rest)
    engine, apart, rest = text.partition(":")
    if engine == "ray" and not apart:
        return Workers("ray")
    if engine not in ("threads", "processes") or (apart and not rest.isdecimal()) or rest == "0":
        raise wrong
    return Workers(engine, int(rest) if apart else None)


def in_threads(points: Sequence[Point], count: int, stop: threading.Event) -> Iterator[Computed]:
    """Run points of compiled code in threads of this process, yielding each as it ends.

    For arguments that no other process could be sent. A point's own exception is raised as it is.
    Where the run ends before its time, as after Ctrl-C, `stop` is set for those that still run.
    """
    with ThreadPoolExecutor(max_workers=count) as pool:
        places = {pool.submit(one.call, **one.arguments): i for i, one in enumerate(points)}
        try:
            for future in as_completed(places):
                yield Computed(places[future], future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def by_workers(points: Sequence[Point], who: Workers) -> Generator[Computed, None, None]:
    """Run points by workers, in order, yielding each as it ends.

    A list may grow meanwhile: what is appended to it before the last has ended is run, too. A chunk
    whose worker dies goes to another. Ctrl-C, and whatever else ends the run before its
    time, ends what the workers compute; a thread finishes the chunk that it has.

    Raises
    ------
    ValueError
        Where an extra is missing, or no cluster is at the address.
    RuntimeError
        Where workers die with one chunk again and again, or have not this version of Inferway.
    """
    if who.engine == "here":
        yield from (computed(place, point) for place, point in enumerate(points))
        return
    if not points:
        return
    crew = _OPENERS[who.engine](who)
    waiting: deque[tuple[int, Point]] = deque()
    pace, taken = _Pace(), 0
    again: deque[_Chunk] = deque()
    doing: dict[Future[list[Computed]], _Chunk] = {}
    try:
        while taken < len(points) or waiting or again or doing:
            waiting.extend(enumerate(points[taken:], taken))
            taken = len(points)
            # One more than there are workers waits, so that none is idle while this one writes.
            while (waiting or again) and len(doing) < 2 * crew.size:
                chunk = again.popleft() if again else pace.chunk(waiting, crew.size)
                try:
                    doing[crew.executor.submit(_chunk, __version__, chunk.tasks)] = chunk
                except RuntimeError:  # processes of which one died take no more
                    if doing:
                        again.appendleft(chunk)
                        break
                    crew.close()
                    crew = _OPENERS[who.engine](who)
                    again.appendleft(chunk)
            for future in wait_for(doing, return_when=FIRST_COMPLETED).done:
                chunk = doing.pop(future)
                error = future.exception()
                if isinstance(error, ImportError):
                    raise RuntimeError(f"a worker cannot compute: {error}".split("\n")[0])
                if error is not None:
                    if chunk.deaths + 1 >= _DEATHS:
                        raise RuntimeError(
                            f"workers of point {dict(chunk.tasks[0][1].label)} died {_DEATHS} "
                            "times, perhaps for want of memory: start again with fewer --workers"
                        ) from error
                    again.append(chunk._replace(deaths=chunk.deaths + 1))
                    continue
                for one in future.result():
                    pace.ended(points[one.place], one)
                    yield one
    finally:
        crew.close()


class _Chunk(NamedTuple):
    """Points that are sent at once, and how many workers died of them, or beside them."""

    tasks: list[tuple[int, Point]]
    deaths: int = 0


class _Pace:
    """How long points take, against what they say of themselves."""

    def __init__(self) -> None:
        self._expected_s = self._lasted_s = 0.0

    def ended(self, point: Point, one: Computed) -> None:
        """Learn from a point that ended."""
        self._expected_s += point.seconds
        self._lasted_s += one.seconds

    def chunk(self, waiting: deque[tuple[int, Point]], count: int) -> _Chunk:
        """Take the next points: as many as last long enough, but not more than a fair share."""
        factor = self._lasted_s / self._expected_s if self._expected_s > 0 else 1.0
        tasks: list[tuple[int, Point]] = []
        lasts_s, fair = 0.0, max(1, len(waiting) // count)
        while waiting and lasts_s < LEAST_CHUNK_S and len(tasks) < fair:
            tasks.append(waiting.popleft())
            lasts_s += tasks[-1][1].seconds * factor
        return _Chunk(tasks)


def _chunk(version: str, tasks: Sequence[tuple[int, Point]]) -> list[Computed]:
    if version != __version__:
        raise ImportError(f"it has Inferway {__version__}, and {version} is needed")
    return [computed(place, point) for place, point in tasks]


class _Crew(NamedTuple):
    """An executor, how many compute in it at the same time, and what ends it and what it does."""

    executor: Executor
    size: int
    close: Callable[[], None]


def _processes(who: Workers) -> _Crew:
    from joblib.externals.loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(
        who.many,
        initializer=_bound,
        initargs=(os.getpid(),),
        env={"OMP_NUM_THREADS": "1"},  # the points are what runs at the same time
    )
    return _Crew(executor, who.many, lambda: executor.shutdown(wait=True, kill_workers=True))


def _threads(who: Workers) -> _Crew:
    pool = ThreadPoolExecutor(who.many)
    return _Crew(pool, who.many, lambda: pool.shutdown(wait=False, cancel_futures=True))


def _bound(owner: int) -> None:
    """Leave Ctrl-C to the process that asked, and end after it, however it ended.

    Loky's workers hold both ends of their pipes, and so do not notice that nobody writes any more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _needing(engine: str) -> None:
    if importlib.util.find_spec(_ENGINES[engine]) is None:
        raise ValueError(
            f"workers of {engine} need {_ENGINES[engine]}, which is in the extra `{engine}`: "
            f"{installing(engine)}"
        )


def _reached(who: Workers) -> None:
    host, _, port = who.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _absent(who) from error


def _absent(who: Workers) -> ValueError:
    return ValueError(f"no {who.engine.title()} cluster answers at {who.engine}://{who.address}")


class _RayTasks(Executor):
    """Chunks as tasks of Ray, which runs those of workers and machines that die again."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._call = ray.remote(num_cpus=1, max_retries=_DEATHS)(_chunk)
        self._sent: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        """Send a chunk."""
        sent = self._call.remote(*arguments)
        future: Future[Any] = sent.future()
        self._sent[future] = sent
        future.add_done_callback(lambda future: self._sent.pop(future, None))
        return future

    def cancel(self) -> None:
        """End all that runs and waits."""
        for sent in list(self._sent.values()):
            with suppress(Exception):
                self._ray.cancel(sent, force=True)


def _ray(who: Workers) -> _Crew:
    _needing("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
    import ray

    if own := not ray.is_initialized():
        if who.address:
            _reached(who)
        address = f"ray://{who.address}" if who.address else None
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, OSError) as error:
            if not who.address:
                raise ValueError(f"Ray does not start: {str(error).splitlines()[0]}") from error
            raise _absent(who) from error
    tasks = _RayTasks()

    def close() -> None:
        tasks.cancel()
        if own:
            ray.shutdown()

    return _Crew(tasks, max(1, int(ray.cluster_resources().get("CPU", 1))), close)


def _dask(who: Workers) -> _Crew:
    _needing("dask")
    _reached(who)
    from distributed import Client

    try:
        client = Client(f"tcp://{who.address}", timeout=_REACH_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise _absent(who) from error
    executor = client.get_executor(pure=False, retries=_DEATHS)

    def close() -> None:
        executor.shutdown(wait=False)
        client.close()

    return _Crew(executor, max(1, sum(client.nthreads().values())), close)


_OPENERS: Final[dict[str, Callable[[Workers], _Crew]]] = {
    "threads": _threads,
    "processes": _processes,
    "ray": _ray,
    "dask": _dask,
}
