"""Sweeps: one deployment file at every combination of some values, simulated."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from inferway import __version__
from inferway.deployment import Deployment, DeploymentError, measured
from inferway.deployment.load import build
from inferway.deployment.source import Source, read
from inferway.dispatch.deployed import bound
from inferway.report.setting import Setting, with_settings
from inferway.twin import simulate
from inferway.twin.simulation import INTERRUPTED

MOST_POINTS: Final = 10_000
_METADATA: Final = b"inferway.sweep"
_NUMBER: Final = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")
_POLL_S: Final = 0.1
_LOOSE: Final = 0.5
"""Half the 95 % interval over the mean, above which a mean is none."""
_WRITE_S: Final = 1.0
"""Finished points are on the disk after so long at most."""


@dataclass(frozen=True)
class Axis:
    """A key and its values, as ``key=start:stop:step`` or ``key=one,two`` says them.

    Attributes
    ----------
    key
        What is set: see `inferway.report.setting`.
    values
        In order; numbers with their unit, where they have one.
    """

    key: str
    values: tuple[Setting, ...]

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers of one unit."""
        units = {value.unit for value in self.values}
        return len(units) == 1 and all(value.number is not None for value in self.values)

    @property
    def unit(self) -> str:
        """The values' common unit; empty where they have none."""
        return self.values[0].unit if self.numeric else ""


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
        Where the frame is.
    failure
        Why it is not there, or not all of it.
    """

    axes: tuple[Axis, ...]
    frame: pd.DataFrame
    points: int
    done: int
    kept: int
    file: Path
    failure: OSError | None = None


@dataclass(frozen=True)
class Point:
    """One combination of values.

    Attributes
    ----------
    settings
        As ``key=value`` each.
    name
        Its values: numbers where the axis has numbers.
    deployment
        The file with them.
    seed
        If it is among them.
    """

    settings: tuple[str, ...]
    name: tuple[float | str, ...]
    deployment: Deployment
    seed: int | None


def axis(text: str) -> Axis:
    """Read ``load=0.1:0.9:0.1`` (both ends included) or ``policy=tad,tad-op``.

    Raises
    ------
    ValueError
        Where it is neither.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not key or not equals or not written:
        raise ValueError(
            f"a sweep is KEY=START:STOP:STEP or KEY=VALUE,VALUE, such as load=0.1:0.9:0.1 or "
            f"policy=tad,tad-op, not {text!r}"
        )
    parts = written.split(":")
    numbers = [_number(part) for part in parts]
    if len(parts) == 3 and all(number is not None for number in numbers):
        return Axis(key, tuple(_range(key, written, [one for one in numbers if one is not None])))
    values = tuple(_value(part) for part in written.split(","))
    if any(not value.text for value in values):
        raise ValueError(f"--sweep {text}: there is nothing between two commas, or at an end")
    twice = [value.text for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"--sweep {text}: {twice[0]} is there twice")
    return Axis(key, values)


def _number(text: str) -> tuple[float, str] | None:
    found = _NUMBER.fullmatch(text)
    return None if found is None else (float(found[1]), found[2])


def _value(text: str) -> Setting:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return Setting(text.strip())
    return Setting(text.strip(), float(found[1]), found[2])


def _range(key: str, written: str, ends: Sequence[tuple[float, str]]) -> Iterator[Setting]:
    (start, _), (stop, _), (step, _) = ends
    units = {unit for _, unit in ends if unit}
    if len(units) > 1:
        raise ValueError(f"--sweep {key}={written}: one unit for all three, not {sorted(units)}")
    unit = units.pop() if units else ""
    if step == 0 or (stop - start) / step < 0:
        raise ValueError(
            f"--sweep {key}={written}: a step of {step:g} does not lead from {start:g} to {stop:g}"
        )
    count = math.floor((stop - start) / step * (1 + 1e-12) + 1e-9) + 1
    if count > MOST_POINTS:
        raise ValueError(f"--sweep {key}={written} has {count:,} values, above {MOST_POINTS:,}")
    for i in range(count):
        # 0.1 + 2 * 0.1 is to be 0.3.
        number = float(f"{start + i * step:.12g}")
        yield Setting(f"{number:.12g}{unit}", number, unit)


def run(
    file: Path,
    axes: Sequence[Axis],
    points: Sequence[Point],
    out: Path,
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
    with the same file and settings goes on from there.

    Parameters
    ----------
    file
        Deployment file.
    axes
        What is varied, first to last.
    points
        From `plan`.
    out
        Folder; made if missing.
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
        "file": sha256(file.read_bytes()).hexdigest(),
        "keys": [one.key for one in axes],
        "node": node,
        "queries": queries,
        "replications": replications,
        "seed": seed,
        "warmup": warmup,
    }
    out.mkdir(parents=True, exist_ok=True)
    store = _Store(out / "sweep.parquet", settings, tuple(axes), points)
    kept = len(store.done)
    if kept and progress is not None:
        progress("found", kept)
    left = [point for point in points if point.name not in store.done]
    stop = threading.Event()
    measure = partial(
        _measure,
        node=node,
        queries=queries,
        replications=replications,
        seed=seed,
        warmup=warmup,
        stop=stop,
    )

    def take(point: Point, rows: list[dict[str, Any]] | None) -> None:
        if rows is not None:
            store.add(point, rows)
            if progress is not None:
                progress(" ".join(point.settings), 1)

    try:
        with ThreadPoolExecutor(max_workers=workers) as pool:
            _collect({pool.submit(measure, point): point for point in left}, take, stop)
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
        self, file: Path, settings: dict[str, Any], axes: tuple[Axis, ...], points: Sequence[Point]
    ) -> None:
        self.file = file
        self._settings = json.dumps(settings, sort_keys=True).encode()
        self._axes, self._points = axes, points
        names = {point.name for point in points}
        self.done = {name: rows for name, rows in self._held() if name in names}
        self._written_s = time.monotonic()
        self.failure: OSError | None = None

    def add(self, point: Point, rows: list[dict[str, Any]]) -> None:
        """Take a point in, and write the file now and then."""
        self.done[point.name] = rows
        if time.monotonic() > self._written_s + _WRITE_S:
            self.write()

    def frame(self) -> pd.DataFrame:
        """In the order of the points, whatever the order in which they were done."""
        keys = [one.key for one in self._axes]
        rows = []
        for point in self._points:
            own = dict(zip(keys, point.name, strict=True))
            rows += [{**row, **own} for row in self.done.get(point.name, ())]
        frame = pd.DataFrame(rows)
        return frame[[*keys, *(name for name in frame if name not in keys)]]

    def write(self) -> None:
        """Replace the file as a whole, so that a reader never sees half of it.

        Where that fails, `failure` says why: what is known is worth more than the file.
        """
        if not self.done:
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
        if not self.file.is_file():
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


def _collect(
    pending: dict[Future[Any], Point],
    take: Callable[[Point, list[dict[str, Any]] | None], None],
    stop: threading.Event,
) -> None:
    """Take each point when it is done; after Ctrl-C those that are done by then."""
    left = set(pending)
    try:
        while left:
            done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                take(pending[future], future.result())
    except BaseException as error:
        stop.set()
        for future in left:
            future.cancel()
        if not isinstance(error, KeyboardInterrupt):
            raise


def settled(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have a mean that can be told: stable, and not so near the edge that it drifts."""
    mean = rows["response_time_s.mean"].astype(float)
    spread = 1.96 * rows["response_time_s.stderr"].astype(float).fillna(0.0)
    return rows["stable"].eq(other=True) & (spread <= _LOOSE * mean)


def plan(file: Path, axes: Sequence[Axis], node: str | None = None) -> list[Point]:
    """Every combination of the axes' values as a deployment, checked.

    Raises
    ------
    ValueError
        Where a key or value makes no sense, or the file has nothing to simulate.
    """
    source: Source = read(file)
    keys = [one.key for one in axes]
    twice = [key for i, key in enumerate(keys) if key in keys[:i]]
    if twice:
        raise ValueError(f"--sweep {twice[0]} is given twice; give its values in one")
    total = math.prod(len(one.values) for one in axes)
    if total > MOST_POINTS:
        raise ValueError(f"the sweep has {total:,} points, above {MOST_POINTS:,}")
    plain = measured(build(copy.deepcopy(source)))
    points = []
    for values in itertools.product(*(one.values for one in axes)):
        chosen = tuple(f"{one.key}={value.text}" for one, value in zip(axes, values, strict=True))
        changed = replace(source, data=copy.deepcopy(source.data), problems=[])
        seed = with_settings(changed, keys, values, node)
        try:
            deployment = _as_measured(build(changed), plain)
        except DeploymentError as error:
            (first, *_) = error.problems
            raise ValueError(
                f"--sweep {' '.join(chosen)}: {first.field}: {first.sentence}"
            ) from error
        if deployment.network is not None:
            raise ValueError(
                f"{source.path}: a sweep is of one site's queues, and this file has a `network`"
            )
        if not deployment.workload:
            raise ValueError(
                f"{source.path}: the file has no `workload`, so there is nothing to simulate"
            )
        name = tuple(
            value.number if one.numeric and value.number is not None else value.text
            for one, value in zip(axes, values, strict=True)
        )
        points.append(Point(chosen, name, deployment, seed))
    return points


def _as_measured(deployment: Deployment, plain: Deployment) -> Deployment:
    """Service times that the file leaves out are measured once, and the same at every point."""
    tasks = {
        name: replace(
            task,
            variants={
                key: variant if variant.service else replace(variant, service=other.service)
                for (key, variant), other in zip(
                    task.variants.items(), plain.tasks[name].variants.values(), strict=True
                )
            },
        )
        for name, task in deployment.tasks.items()
    }
    return replace(deployment, tasks=tasks)


def _measure(
    point: Point,
    *,
    node: str | None,
    queries: int,
    replications: int,
    seed: int | None,
    warmup: int | None,
    stop: threading.Event,
) -> list[dict[str, Any]] | None:
    """A row per task; None where the point was interrupted."""
    if stop.is_set():
        return None
    deployment = point.deployment
    try:
        result = simulate(
            deployment,
            node=node,
            queries=queries,
            replications=replications,
            seed=seed if point.seed is None else point.seed,
            warmup=warmup,
            workers=1,
            stop=stop,
        )
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
