"""Sweeps: one deployment file at every combination of some values, simulated."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from inferway.deployment import Deployment, DeploymentError, measured
from inferway.deployment.setting import Setting, SettingError
from inferway.dispatch.deployed import bound
from inferway.experiments.axis import MOST_POINTS, Axis, axis_of
from inferway.experiments.runner import Point, in_threads
from inferway.experiments.store import ResultStore
from inferway.experiments.text import table
from inferway.twin import simulate
from inferway.twin.simulation import INTERRUPTED
from inferway.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

MOST_ROWS: Final = 60  # of the table; the sweep's files hold all
# What of a row a reader looks at first.
_SHOWN: Final = (
    "task", "response_time_s.mean", "response_time_s.p95", "accuracy.mean", "rejected",
    "bound.response_time_s", "stable", "error",
)  # fmt: skip
_WRITE_S: Final = 1.0  # finished points are on the disk after so long at most

Rows = list[dict[str, Any]]


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
        return str(self._shown().to_html(index=False))

    def __str__(self) -> str:
        return str(self._shown().to_string(index=False))

    def _shown(self) -> pd.DataFrame:
        wanted = {*_SHOWN, *(one.key for one in self.axes)}
        return self.frame[[column for column in self.frame if column in wanted]]


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
        points_of(deployment, axes, node),
        None if out is None else Path(out),
        workers=workers,
        progress=progress,
        node=node,
        queries=queries,
        replications=replications,
        seed=None,
        warmup=warmup,
    )


def _combinations(axes: Sequence[Axis]) -> Iterator[dict[str, Setting]]:
    """Yield every combination of values, by key."""
    for values in itertools.product(*(one.values for one in axes)):
        yield {one.key: value for one, value in zip(axes, values, strict=True)}


def _written(chosen: Mapping[str, Setting]) -> str:
    return " ".join(f"{key}={value.text}" for key, value in chosen.items())


def points_of(deployment: Deployment, axes: Sequence[Axis], node: str | None = None) -> list[Point]:
    """Every combination of the axes' values as a deployment, checked.

    Raises
    ------
    SettingError
        Where a key or value makes no sense.
    ValueError
        Where there are too many points, or the file has nothing to simulate.
    """
    keys = [one.key for one in axes]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise SettingError(key, "is given twice; give its values in one")
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
    for chosen in _combinations(axes):
        wanted: dict[str, Any] = dict(chosen)
        try:
            made = deployment.with_(node=node, **wanted)
        except DeploymentError as error:
            (first, *_) = error.problems
            raise SettingError(_written(chosen), f"{first.field}: {first.sentence}") from error
        label = {
            one.key: chosen[one.key].number if one.numeric else chosen[one.key].text for one in axes
        }
        own = {"seed": made.seed} if "seed" in keys else {}
        points.append(Point(label, _measured, {"deployment": made, **own}))
    return points


def run(
    deployment: Deployment,
    axes: Sequence[Axis],
    points: Sequence[Point],
    out: Path | None,
    *,
    workers: int | None,
    progress: Callable[[str, int], None] | None = None,
    **settings: Any,
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
        From `points_of`.
    out
        Folder, made if missing; or None.
    workers
        Points at the same time; as many as there are cores by default.
    progress
        Told what has just been done, and how many more points are: 1, or those kept.
    settings
        `node`, `queries`, `replications`, `seed` and `warmup`, as in `inferway.simulate`.

    Raises
    ------
    KeyboardInterrupt
        Where it comes before any point is done.
    """
    source = json.dumps(deployment.source.data, sort_keys=True, default=str)
    about = json.dumps([__version__, str(deployment.folder), source, settings], sort_keys=True)
    names = [sha256(f"{about}\0{json.dumps(point.label)}".encode()).hexdigest() for point in points]
    tell = progress or (lambda _, __: None)
    file = None if out is None else out / "sweep.parquet"
    store = None if out is None else ResultStore(out)
    with nullcontext() if store is None else store.alone():
        known = {} if store is None else store.read()
        done = {name: known[name]["rows"] for name in names if name in known}
        if kept := len(done):
            tell("found", kept)
        stop = threading.Event()
        common = {**settings, "workers": 1, "stop": stop}
        places = [place for place, name in enumerate(names) if name not in done]
        left = [replace(points[i], arguments={**common, **points[i].arguments}) for i in places]
        texts = list(map(_written, _combinations(axes)))
        failure, written_s = None, time.monotonic()
        try:
            with suppress(KeyboardInterrupt):
                for computed in in_threads(left, workers or os.cpu_count() or 1, stop):
                    place = places[computed.place]
                    if computed.result is not None:
                        done[names[place]] = computed.result
                        with suppress(OSError):  # writing the frame says why
                            if store is not None:
                                store.add(names[place], points[place], {"rows": computed.result})
                        if time.monotonic() > written_s + _WRITE_S:
                            failure = _write(_frame(points, names, done), file)
                            written_s = time.monotonic()
                        tell(texts[place], 1)
        finally:
            if done:
                frame = _frame(points, names, done)
                failure = _write(frame, file)
        if not done:
            raise KeyboardInterrupt
        if store is not None and len(done) == len(points):
            with suppress(OSError):
                store.keep(names)
    return Sweep(tuple(axes), frame, len(points), len(done), kept, file, failure)


def _frame(points: Sequence[Point], names: Sequence[str], done: dict[str, Rows]) -> pd.DataFrame:
    """All rows in the order of the points, whatever the order in which they were done."""
    of = zip(points, names, strict=True)
    frame = pd.DataFrame({**row, **point.label} for point, name in of for row in done.get(name, ()))
    keys = list(points[0].label)
    return frame[[*keys, *(name for name in frame if name not in keys)]]


def _write(frame: pd.DataFrame, file: Path | None) -> OSError | None:
    """Replace the file as a whole, so that a reader never sees half of it.

    Where that fails, return why: what is known is worth more than the file.
    """
    if file is None:
        return None
    beside = file.with_suffix(".tmp")
    try:
        frame.to_parquet(beside, index=False, compression="zstd")
        beside.replace(file)
    except OSError as error:
        return error
    return None


def _measured(deployment: Deployment, *, stop: threading.Event, **settings: Any) -> Rows | None:
    """A row per task; None where the point was interrupted."""
    if stop.is_set():
        return None
    try:
        result = simulate(deployment, stop=stop, **settings)
        limits = bound(deployment, node=settings["node"])
    except KeyboardInterrupt:
        return None
    except ValueError as error:
        return [{"task": name, "error": str(error)} for name in deployment.workload]
    if any(INTERRUPTED in one.notes for one in result.tasks.values()):
        return None
    return [
        {
            **{str(key): value for key, value in row.items()},
            "policy": deployment.policy_of(name).policy,
            "notes": ". ".join(result.tasks[name].notes),
            "bound.max_rate_per_s": limits[name].max_rate_per_s,
            "bound.response_time_s": limits[name].least_response_time_s,
            "error": None,
        }
        for row in result.to_frame().to_dict("records")
        for name in (str(row["task"]),)
    ]


def tables(found: Sweep) -> list[Table]:
    """A table of the points, the first of them where there are many."""
    from inferway.experiments.sweep_figure import settled

    frame, keys = found.frame, [one.key for one in found.axes]
    several = ["task"] if frame["task"].nunique() > 1 else []
    simulated = "response_time_s.mean" in frame
    sure = settled(frame).tolist() if simulated else [False] * len(frame)
    middle_s = frame["response_time_s.mean"].median() if simulated else 1.0
    unit, size, digits = ("s", 1.0, 3) if middle_s >= 1.0 else ("ms", 1e3, 2)

    def scaled(value: object) -> str:
        number = value if isinstance(value, float) else math.nan
        return f"{number * size:.{digits}f}" if math.isfinite(number) else "-"

    rows = []
    for row, steady in zip(frame.head(MOST_ROWS).to_dict("records"), sure, strict=False):
        cells = [
            f"{row[one.key]:.12g}{one.unit}" if one.numeric else str(row[one.key])
            for one in found.axes
        ]
        cells += [str(row[key]) for key in several]
        if isinstance(row.get("error"), str):
            rows.append([*cells, "failed", "", "", ""])
            continue
        mean, p95 = (scaled(row[f"response_time_s.{what}"]) for what in ("mean", "p95"))
        cells += [mean if steady else f"*{mean}", p95, scaled(row["bound.response_time_s"])]
        rows.append([*cells, f"{row['accuracy.mean']:.5f}"])
    notes = []
    if len(frame) > MOST_ROWS:
        notes.append(f"{len(frame) - MOST_ROWS} more rows are in {found.file}.")
    if not all(sure) and simulated:
        notes.append("* unstable or nearly so: this mean says how long was simulated.")
    columns = [*keys, *several, f"mean, {unit}", f"p95, {unit}", f"LP bound, {unit}", "accuracy"]
    left = [i for i, one in enumerate(found.axes) if not one.numeric] + [len(keys)] * len(several)
    return [table("Sweep", columns, rows, caption=" ".join(notes) or None, left=left)]
