"""Sweeps: one deployment file at every combination of some values, simulated."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from inferway.deployment import Deployment, DeploymentError, measured
from inferway.deployment.setting import SettingError
from inferway.dispatch.deployed import bound
from inferway.experiments.axis import MOST_POINTS, Axis, axis_of
from inferway.experiments.runner import Point, in_threads
from inferway.twin import simulate
from inferway.twin.simulation import INTERRUPTED
from inferway.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN: Final = (
    "task", "response_time_s.mean", "response_time_s.p95", "accuracy.mean", "rejected",
    "bound.response_time_s", "stable", "error",
)  # fmt: skip
"""What of a row a reader looks at first."""
_METADATA: Final = b"inferway.sweep"
_WRITE_S: Final = 1.0
"""Finished points are on the disk after so long at most."""


@dataclass(frozen=True)
class Sweep:
    """The points that are done: `frame` has a row for each and each of its tasks.

    Attributes
    ----------
    axes
        In the order given.
    frame
        Columns: a key each, `task`, `error` where a point could not be simulated, all numbers of
        the simulation, and the bound's.
    points
        How many there are in all.
    done
        How many of them are done.
    kept
        How many of those were found in the folder and not run again.
    file
        Where the frame is; None where nothing is kept.
    failure
        Why it is not there, or not all of it.
    """

    axes: tuple[Axis, ...]
    frame: pd.DataFrame
    points: int
    done: int
    kept: int
    file: Path | None
    failure: OSError | None = None

    def to_frame(self) -> pd.DataFrame:
        """`frame`, as all results have it."""
        return self.frame

    def plot(self) -> Figure:
        """Draw response times, accuracy and shares against the first key that has numbers.

        Raises
        ------
        ValueError
            Where no key has several numbers.
        """
        from inferway.experiments import sweep_figure

        drawn = sweep_figure.figure(self.axes, self.frame, "simulated")
        if drawn is None:
            raise ValueError("no key has several numbers, so there is nothing to draw")
        return drawn

    def _repr_html_(self) -> str:
        shown = [column for column in self.frame if str(column) in _SHOWN or column in self._keys]
        return str(self.frame[shown].to_html(index=False))

    def __str__(self) -> str:
        shown = [column for column in self.frame if str(column) in _SHOWN or column in self._keys]
        return str(self.frame[shown].to_string(index=False))

    @property
    def _keys(self) -> list[str]:
        return [one.key for one in self.axes]


def sweep(
    deployment: Deployment,
    *,
    node: str | None = None,
    queries: int = 100_000,
    replications: int = 1,
    warmup: int | None = None,
    workers: int | None = None,
    out: Path | str | None = None,
    progress: Callable[[str, int], None] | None = None,
    **values: Any,
) -> Sweep:
    """Simulate a deployment at every combination of some values.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node, queries, replications, warmup
        As in `inferway.simulate`.
    workers
        Points at the same time; as many as there are cores by default.
    out
        A folder that keeps the points, from which the same call goes on; None keeps nothing.
    progress
        Told what has just been done, and how many more points are.
    values
        Each a list or an array, or one value: the words of `Deployment.with_`, such as
        ``load=np.arange(0.1, 0.95, 0.05), policy=["tad", Mine]``.

    Raises
    ------
    ValueError
        Where a key or value makes no sense, or nothing is varied.
    """
    if not values:
        raise ValueError("a sweep needs values, such as load=[0.5, 0.9]")
    axes = [axis_of(key, one) for key, one in values.items()]
    deployment = measured(deployment)
    return run(
        deployment,
        axes,
        plan(deployment, axes, node),
        None if out is None else Path(out),
        node=node,
        queries=queries,
        replications=replications,
        warmup=warmup,
        workers=workers or os.cpu_count() or 1,
        progress=progress,
    )


def _digest(deployment: Deployment) -> str:
    said = json.dumps(deployment.source.data, sort_keys=True, default=str)
    return sha256(f"{deployment.folder}\0{said}".encode()).hexdigest()


def run(
    deployment: Deployment,
    axes: Sequence[Axis],
    points: Sequence[Point],
    out: Path | None,
    *,
    node: str | None = None,
    queries: int,
    replications: int = 1,
    seed: int | None = None,
    warmup: int | None = None,
    workers: int,
    progress: Callable[[str, int], None] | None = None,
) -> Sweep:
    """Simulate every combination of the axes' values, several at a time.

    Finished points are in ``out/sweep.parquet`` from then on, also after Ctrl-C, and a later run
    with the same file and settings goes on from there. Without `out` nothing is kept.

    Parameters
    ----------
    deployment
        What is varied, measured where the file leaves service times out.
    axes
        In which way, first to last.
    points
        From `plan`.
    out
        Folder, made if missing; or None.
    node, queries, replications, seed, warmup
        As in `inferway.simulate`.
    workers
        Points at the same time.
    progress
        Told what has just been done, and how many more points are: 1, or those kept.

    Raises
    ------
    KeyboardInterrupt
        Where it comes before any point is done.
    """
    settings = {
        "inferway": __version__,
        "file": _digest(deployment),
        "keys": [one.key for one in axes],
        "node": node,
        "queries": queries,
        "replications": replications,
        "seed": seed,
        "warmup": warmup,
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    file = None if out is None else out / "sweep.parquet"
    store = _Store(file, settings, tuple(axes), points)
    kept = len(store.done)
    if kept and progress is not None:
        progress("found", kept)
    stop = threading.Event()
    of_all = {
        "node": node,
        "queries": queries,
        "replications": replications,
        "warmup": warmup,
        "workers": 1,
        "stop": stop,
    }
    left = [
        replace(point, arguments={"seed": seed, **of_all, **point.arguments})
        for point in points
        if _name(point) not in store.done
    ]
    try:
        with suppress(KeyboardInterrupt):
            for computed in in_threads(left, workers, stop):
                if computed.result is not None:
                    store.add(left[computed.place], computed.result)
                    if progress is not None:
                        progress(_written(axes, left[computed.place]), 1)
    finally:
        store.write()
    if not store.done:
        raise KeyboardInterrupt
    return Sweep(
        tuple(axes), store.frame(), len(points), len(store.done), kept, store.file, store.failure
    )


class _Store:
    """The finished points, in memory and in a file."""

    def __init__(
        self,
        file: Path | None,
        settings: dict[str, Any],
        axes: tuple[Axis, ...],
        points: Sequence[Point],
    ) -> None:
        self.file = file
        self._settings = json.dumps(settings, sort_keys=True).encode()
        self._axes, self._points = axes, points
        names = set(map(_name, points))
        self.done = {name: rows for name, rows in self._held() if name in names}
        self._written_s = time.monotonic()
        self.failure: OSError | None = None

    def add(self, point: Point, rows: list[dict[str, Any]]) -> None:
        """Take a point in, and write the file now and then."""
        self.done[_name(point)] = rows
        if time.monotonic() > self._written_s + _WRITE_S:
            self.write()

    def frame(self) -> pd.DataFrame:
        """In the order of the points, whatever the order in which they were done."""
        keys = [one.key for one in self._axes]
        rows = []
        for point in self._points:
            rows += [{**row, **point.label} for row in self.done.get(_name(point), ())]
        frame = pd.DataFrame(rows)
        return frame[[*keys, *(name for name in frame if name not in keys)]]

    def write(self) -> None:
        """Replace the file as a whole, so that a reader never sees half of it.

        Where that fails, `failure` says why: what is known is worth more than the file.
        """
        if not self.done or self.file is None:
            return
        table = pa.Table.from_pandas(self.frame(), preserve_index=False)
        told = {**(table.schema.metadata or {}), _METADATA: self._settings}
        beside = self.file.with_suffix(".tmp")
        try:
            pq.write_table(table.replace_schema_metadata(told), beside, compression="zstd")
            beside.replace(self.file)
            self.failure = None
        except OSError as error:
            self.failure = error
        self._written_s = time.monotonic()

    def _held(self) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
        """Points of an earlier run with the same settings."""
        if self.file is None or not self.file.is_file():
            return
        try:
            table = pq.read_table(self.file)
        except (OSError, pa.ArrowInvalid):
            return
        if (table.schema.metadata or {}).get(_METADATA) != self._settings:
            return
        keys = [one.key for one in self._axes]
        for name, rows in table.to_pandas().groupby(keys, sort=False):
            yield tuple(name), rows.to_dict("records")


def plan(deployment: Deployment, axes: Sequence[Axis], node: str | None = None) -> list[Point]:
    """Every combination of the axes' values as a deployment, checked.

    Raises
    ------
    SettingError
        Where a key or value makes no sense.
    ValueError
        Where there are too many points, or the file has nothing to simulate.
    """
    keys = [one.key for one in axes]
    twice = [key for i, key in enumerate(keys) if key in keys[:i]]
    if twice:
        raise SettingError(twice[0], "is given twice; give its values in one")
    total = math.prod(len(one.values) for one in axes)
    if total > MOST_POINTS:
        raise ValueError(f"the sweep has {total:,} points, above {MOST_POINTS:,}")
    if deployment.network is not None:
        raise ValueError(
            f"{deployment.path}: a sweep is of one site's queues, and this file has a `network`"
        )
    if not deployment.workload:
        raise ValueError(
            f"{deployment.path}: the file has no `workload`, so there is nothing to simulate"
        )
    points = []
    for values in itertools.product(*(one.values for one in axes)):
        chosen = tuple(f"{one.key}={value.text}" for one, value in zip(axes, values, strict=True))
        try:
            wanted: dict[str, Any] = dict(zip(keys, values, strict=True))
            made = deployment.with_(node=node, **wanted)
        except DeploymentError as error:
            (first, *_) = error.problems
            raise SettingError(" ".join(chosen), f"{first.field}: {first.sentence}") from error
        label = {
            one.key: value.number if one.numeric and value.number is not None else value.text
            for one, value in zip(axes, values, strict=True)
        }
        own = {"seed": made.seed} if "seed" in keys else {}
        points.append(Point(label, _measured, {"deployment": made, **own}))
    return points


def _name(point: Point) -> tuple[float | str, ...]:
    return tuple(point.label.values())


def _written(axes: Sequence[Axis], point: Point) -> str:
    """Return the point's settings as they were given."""
    texts = (
        next(one.text for one in axis.values if own in (one.number, one.text))
        for axis, own in zip(axes, _name(point), strict=True)
    )
    return " ".join(f"{axis.key}={text}" for axis, text in zip(axes, texts, strict=True))


def _measured(
    deployment: Deployment, *, node: str | None, stop: threading.Event, **settings: Any
) -> list[dict[str, Any]] | None:
    """A row per task; None where the point was interrupted."""
    if stop.is_set():
        return None
    try:
        result = simulate(deployment, node=node, stop=stop, **settings)
        limits = bound(deployment, node=node)
    except KeyboardInterrupt:
        return None
    except ValueError as error:
        return [{"task": name, "error": str(error)} for name in deployment.workload]
    if any(INTERRUPTED in one.notes for one in result.tasks.values()):
        return None
    rows = []
    for row in result.to_frame().to_dict("records"):
        name = str(row["task"])
        limit = limits[name]
        rows.append(
            {
                **{str(key): value for key, value in row.items()},
                "policy": deployment.policy_of(name).policy,
                "notes": ". ".join(result.tasks[name].notes),
                "bound.max_rate_per_s": limit.max_rate_per_s,
                "bound.response_time_s": limit.least_response_time_s,
                "error": None,
            }
        )
    return rows
