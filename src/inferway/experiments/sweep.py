"""Sweeps: one deployment file at every combination of some values, simulated."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from inferway.deployment import Deployment, DeploymentError, measured
from inferway.deployment.setting import Setting, SettingError, setting
from inferway.dispatch.deployed import bound, bounds_beside
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.runner import Point, ResultStore
from inferway.experiments.text import Laid, Shown, number, table
from inferway.experiments.workers import by_workers, in_threads
from inferway.experiments.workers import workers as read_workers
from inferway.files import alone, replacing
from inferway.twin import simulate
from inferway.twin.simulation import INTERRUPTED
from inferway.version import __version__

MOST_POINTS: Final = 10_000  # of a sweep, and so of an axis
MOST_ROWS: Final = 60  # of the table; the sweep's files hold all
_MEAN: Final = "response_time_s.mean"
_P95: Final = "response_time_s.p95"
_BOUND: Final = "bound.response_time_s"
# What of a row a reader looks at first.
_SHOWN: Final = ("task", _MEAN, _P95, "accuracy.mean", "rejected", _BOUND, "stable", "error")
_DASHES: Final = ("-", "--", ":", "-.")
_WIDE: Final = 20.0  # largest over smallest from which an axis is logarithmic

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Axis:
    """A key and its values, as ``key=start:stop:step`` or ``key=one,two`` says them.

    Attributes
    ----------
    key
        What is set: see `inferway.deployment.setting`.
    values
        In order; numbers with their unit, where they have one.
    """

    key: str
    values: tuple[Setting, ...]

    @property
    def numeric(self) -> bool:
        """True where all values are numbers of one unit."""
        units = {value.unit for value in self.values}
        return len(units) == 1 and all(value.number is not None for value in self.values)

    @property
    def unit(self) -> str:
        """The values' common unit; empty where they have none."""
        return self.values[0].unit if self.numeric else ""


def axis(text: str) -> Axis:
    """Read ``load=0.1:0.9:0.1`` (both ends included) or ``policy=tad,tad-op``.

    Raises
    ------
    SettingError
        Where a value is missing or makes no sense.
    ValueError
        Where it is neither.
    """
    key, _, written = (part.strip() for part in text.partition("="))
    if not key or not written:
        raise ValueError(
            f"a sweep is KEY=START:STOP:STEP or KEY=VALUE,VALUE, such as load=0.1:0.9:0.1 or "
            f"policy=tad,tad-op, not {text!r}"
        )
    ends = [setting(part) for part in written.split(":")]
    if len(ends) == 3 and all(end.number is not None for end in ends):
        return Axis(key, _range(f"{key}={written}", ends))
    values = tuple(setting(part) for part in written.split(","))
    if any(not value.text for value in values):
        raise SettingError(text, "there is nothing between two commas, or at an end")
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise SettingError(text, f"{twice[0].text} is there twice")
    return Axis(key, values)


def _range(written: str, ends: Sequence[Setting]) -> tuple[Setting, ...]:
    start, stop, step = (end.number or 0.0 for end in ends)
    units = {end.unit for end in ends if end.unit}
    if len(units) > 1:
        raise SettingError(written, f"one unit for all three, not {sorted(units)}")
    if step == 0 or (stop - start) / step < 0:
        raise SettingError(written, f"a step of {step:g} does not lead from {start:g} to {stop:g}")
    count = math.floor((stop - start) / step * (1 + 1e-12) + 1e-9) + 1
    if count > MOST_POINTS:
        raise SettingError(written, f"has {count:,} values, above {MOST_POINTS:,}")
    # 0.1 + 2 * 0.1 is to be 0.3.
    texts, unit = (f"{start + i * step:.12g}" for i in range(count)), "".join(units)
    return tuple(Setting(f"{text}{unit}", float(text), unit) for text in texts)


@dataclass(frozen=True)
class Sweep(Shown):
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

    def plot(self) -> Drawing:
        """Draw response times, accuracy and shares against the first key that has numbers.

        Raises
        ------
        ValueError
            Where no key has several numbers.
        """
        drawn = draw(self.axes, self.frame, "simulated")
        if drawn is None:
            raise ValueError("no key has several numbers, so there is nothing to draw")
        return drawn

    def tables(self) -> list[Laid]:
        """A table of the points, the first of them where there are many."""
        frame, axes = self.frame, self.axes
        several = ["task"] if frame["task"].nunique() > 1 else []
        simulated = _MEAN in frame
        steady = settled(frame).tolist() if simulated else [False] * len(frame)
        long = not simulated or frame[_MEAN].median() >= 1.0
        unit, size, digits = ("s", 1.0, 3) if long else ("ms", 1e3, 2)
        rows = []
        for row, sure in zip(frame.head(MOST_ROWS).to_dict("records"), steady, strict=False):
            cells = [
                f"{row[one.key]:.12g}{one.unit}" if one.numeric else str(row[one.key])
                for one in axes
            ]
            cells += [str(row[key]) for key in several]
            if isinstance(row.get("error"), str):
                rows.append([*cells, "failed", "", "", ""])
                continue
            mean, *others = (
                f"{size * value:.{digits}f}" if value is not None and math.isfinite(value) else "-"
                for value in (row[_MEAN], row[_P95], row[_BOUND])
            )
            mean = mean if sure else f"*{mean}"
            rows.append([*cells, mean, *others, number(row["accuracy.mean"], "{:.5f}")])
        notes = []
        if len(frame) > MOST_ROWS:
            notes.append(f"{len(frame) - MOST_ROWS} more rows are in {self.file}.")
        if not all(steady) and simulated:
            notes.append("* unstable or nearly so: this mean says how long was simulated.")
        columns = [*(one.key for one in axes), *several]
        columns += [f"mean, {unit}", f"p95, {unit}", f"LP bound, {unit}", "accuracy"]
        left = [i for i, one in enumerate(axes) if not one.numeric] + [len(axes)] * len(several)
        return [table("Sweep", columns, rows, caption=" ".join(notes) or None, left=left)]

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
    workers: int | str | None = None,
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
        Points at the same time; as many as there are cores by default. A number is threads;
        or as `--workers` has them: ``processes:8``, ``ray``, ``ray://HOST:10001``,
        ``dask://HOST:8786``.
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
    lists = {key: getattr(one, "tolist", lambda one=one: one)() for key, one in values.items()}
    axes = [
        Axis(key, tuple(map(setting, one if isinstance(one, list | tuple | range) else [one])))
        for key, one in lists.items()
    ]
    deployment = measured(deployment)
    points = points_of(deployment, axes, node)
    asked: dict[str, Any] = {"node": node, "queries": queries, "replications": replications}
    asked |= {"seed": None, "warmup": warmup, "workers": workers, "progress": progress}
    return run(deployment, axes, points, None if out is None else Path(out), **asked)


def _combinations(axes: Sequence[Axis]) -> Iterator[tuple[dict[str, Setting], str]]:
    """Yield every combination of values, by key and as a command line says it."""
    for values in itertools.product(*(one.values for one in axes)):
        chosen = {one.key: value for one, value in zip(axes, values, strict=True)}
        yield chosen, " ".join(f"{key}={value.text}" for key, value in chosen.items())


def points_of(deployment: Deployment, axes: Sequence[Axis], node: str | None = None) -> list[Point]:
    """Every combination of the axes' values as a deployment, checked.

    SettingError where a key or value makes no sense; ValueError where there are too many points, or
    the file has nothing to simulate.
    """
    keys = [one.key for one in axes]
    if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
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
    for chosen, written in _combinations(axes):
        wanted: dict[str, Any] = dict(chosen)
        try:
            made = deployment.with_(node=node, **wanted)
        except DeploymentError as error:
            (first, *_) = error.problems
            raise SettingError(written, f"{first.field}: {first.sentence}") from error
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
    workers: int | str | None,
    progress: Callable[[str, int], None] | None = None,
    **settings: Any,
) -> Sweep:
    """Simulate points, those of `points_of`, so many at a time, as many as cores by default.

    Finished points are in `out`, with a frame of all in ``sweep.parquet``, from then on, also
    after Ctrl-C, and a later run with the same file and settings goes on from there. Without `out`
    nothing is kept. `settings` are `node`, `queries`, `replications`, `seed` and `warmup` of
    `inferway.simulate`. KeyboardInterrupt where it comes before any point is done.
    """
    source = json.dumps(deployment.source.data, sort_keys=True, default=str)
    # What a server has measured of requests meanwhile is of other points.
    recalled = {name: node.leads_s for name, node in deployment.nodes.items()}
    told = [__version__, str(deployment.folder), source, settings, recalled]
    about = json.dumps(told, sort_keys=True)
    names = [sha256(f"{about}\0{json.dumps(point.label)}".encode()).hexdigest() for point in points]
    tell = progress or (lambda _, __: None)
    file = None if out is None else out / "sweep.parquet"
    store = None if out is None else ResultStore(out)
    with nullcontext() if store is None else alone(store.folder, "run"):
        known = {} if store is None else store.read()
        done = {name: known[name]["rows"] for name in names if name in known}
        if kept := len(done):
            tell("found", kept)
        stop = threading.Event()
        common = {**settings, "workers": 1}
        places = [place for place, name in enumerate(names) if name not in done]
        left = [replace(points[i], arguments={**common, **points[i].arguments}) for i in places]
        texts = [written for _, written in _combinations(axes)]
        who = read_workers(workers, "threads")
        if threads := who.engine == "threads":
            left = [replace(one, arguments={**one.arguments, "stop": stop}) for one in left]
        failure, written_s = None, time.monotonic()
        try:
            with suppress(KeyboardInterrupt):
                ended = in_threads(left, who.many, stop) if threads else by_workers(left, who)
                for computed in ended:
                    if computed.error:
                        raise RuntimeError(
                            f"{texts[places[computed.place]]}: "
                            f"{computed.error.strip().splitlines()[-1]}"
                        )
                    if computed.result is None:
                        continue
                    rows = computed.result["rows"]
                    place = places[computed.place]
                    done[names[place]] = rows
                    with suppress(OSError):  # writing the frame says why
                        if store is not None:
                            store.add(names[place], points[place], {"rows": rows})
                    if time.monotonic() > written_s + 1.0:  # s, for those who look at the frame
                        _, failure = _written(points, names, done, file)
                        written_s = time.monotonic()
                    tell(texts[place], 1)
        finally:
            if done:
                frame, failure = _written(points, names, done, file)
        if not done:
            raise KeyboardInterrupt
        if store is not None and len(done) == len(points):
            with suppress(OSError):
                store.keep(names)
    return Sweep(tuple(axes), frame, len(points), len(done), kept, file, failure)


def _written(
    points: Sequence[Point], names: Sequence[str], done: Mapping[str, Rows], file: Path | None
) -> tuple[pd.DataFrame, OSError | None]:
    """Make a frame of all rows in the order of the points, and replace the file by it as a whole.

    Where that fails, return why: what is known is worth more than the file.
    """
    of = zip(points, names, strict=True)
    frame = pd.DataFrame({**row, **point.label} for point, name in of for row in done.get(name, ()))
    keys = list(points[0].label)
    frame = frame[[*keys, *(name for name in frame if name not in keys)]]
    try:
        if file is not None:
            with replacing(file) as written:
                frame.to_parquet(written, index=False, compression="zstd")
    except OSError as error:
        return frame, error
    return frame, None


def _measured(
    deployment: Deployment, *, stop: threading.Event | None = None, **settings: Any
) -> dict[str, Rows] | None:
    """A row per task, as ``rows``; None where the point was interrupted."""
    if stop is not None and stop.is_set():
        return None
    try:
        result = simulate(deployment, stop=stop, **settings)
        # Of tasks that share devices or targets, what is left beside the others.
        limits = bound(deployment, node=settings["node"]) | bounds_beside(
            deployment, node=settings["node"]
        )
    except KeyboardInterrupt:
        return None
    except ValueError as error:
        return {"rows": [{"task": name, "error": str(error)} for name in deployment.workload]}
    if any(INTERRUPTED in one.notes for one in result.tasks.values()):
        return None
    rows: Rows = [
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
    return {"rows": rows}


def settled(rows: pd.DataFrame) -> pd.Series[bool]:
    """Tell which rows have a mean: stable, and not so near the edge that it drifts."""
    mean = rows[_MEAN].astype(float)
    spread = 1.96 * rows["response_time_s.stderr"].astype(float).fillna(0.0)
    return rows["stable"].eq(other=True) & (spread <= 0.5 * mean)


def draw(axes: Sequence[Axis], frame: pd.DataFrame, title: str = "") -> Drawing | None:
    """Draw two panels per task; None where no key has several numbers.

    The first key with numbers goes across, and each combination of the others is a line. The LP's
    bound is black. Points at which the site is unstable, or so near to it that the mean has not
    settled, are hollow and at the frame at most: their means say how long was simulated.
    """
    across = next((one for one in axes if one.numeric and len(one.values) > 1), None)
    if across is None or _MEAN not in frame:
        return None
    others = [one for one in axes if one is not across]
    unit = f", {across.unit}" if across.unit.strip() else ""
    texts = {"rate": "arrival rate, 1/s", "accuracy_target": "accuracy target"}
    x = np.array(sorted(value.number for value in across.values if value.number is not None))
    wide = len(x) > 2 and x[0] > 0 and x[-1] > _WIDE * x[0]
    steps = np.diff(np.log(x)) if wide else np.array([0.0, 1.0])
    even = math.isclose(steps.max(), steps.min(), rel_tol=0.2)
    shared = {
        "across": texts.get(across.key, f"{across.key}{unit}"),
        "scale_across": "log" if even else "linear",
    }
    several = frame["task"].nunique() > 1
    shown = [
        panel(rows, across, others, shared | {"title": f"task {task}" if several else ""})
        for task, rows in frame[frame[_MEAN].notna()].groupby("task", sort=False)
        for panel in (_times, _accuracies)
    ]
    return panels(shown, columns=2, title=title) if shown else None


def _times(
    rows: pd.DataFrame, across: Axis, others: Sequence[Axis], shared: Mapping[str, Any]
) -> Panel:
    steady = rows[settled(rows)]
    means_s = (steady if len(steady) else rows)[_MEAN].astype(float)
    least_s = rows[_BOUND].dropna().astype(float)
    every = np.concatenate([means_s, least_s[least_s > 0]])
    low, high = float(every.min()), float(every.max())
    unit, size = ("s", 1.0) if high >= 1.0 else ("ms", 1e3) if high >= 1e-3 else ("µs", 1e6)
    curves: list[Curve] = []
    # The bound knows neither policy nor seed; a line for each combination of the rest.
    rest = [one for one in others if one.key not in ("policy", "seed")]
    for label, group in _groups(rows, rest):
        own = group.drop_duplicates(across.key).sort_values(across.key).dropna(subset=[_BOUND])
        points = own[across.key].tolist(), (size * own[_BOUND].astype(float)).tolist()
        if points[0] and all((curve.x, curve.y) != points for curve in curves):
            name = f"LP bound, {label}" if label else "LP bound"
            curves.append(Curve(name, *points, dash=_DASHES[len(curves) % len(_DASHES)]))
    curves += _lines(rows, across, others, "response_time_s", size)
    wide, space = high > _WIDE * low, 0.08 * max(high - low, 0.1 * high)
    ends = (low / 1.3, high * 1.3) if wide else (max(0.0, low - space), high + space)
    return Panel(
        up=f"mean response time, {unit}",
        curves=curves,
        scale_up="log" if wide else "linear",
        limits_up=(size * ends[0], size * ends[1]),
        **shared,
    )


def _accuracies(
    rows: pd.DataFrame, across: Axis, others: Sequence[Axis], shared: Mapping[str, Any]
) -> Panel:
    given = rows.get("accuracy_target", pd.Series(dtype=float)).dropna().astype(float)
    targets = sorted(given.unique().tolist())
    x = [value.number for value in across.values if value.number is not None]
    curves = _lines(rows, across, others, "accuracy", 1.0)
    if across.key == "accuracy_target":
        curves.insert(0, Curve("target", targets, targets, dash=":"))
    elif len(targets) <= 4:
        ends = [min(x), max(x)]
        curves[:0] = [Curve("target", ends, [one, one], dash=":") for one in targets]
    every = [*rows["accuracy.mean"].dropna().astype(float), *targets] or [0.5]
    # Differences of a thousandth are noise to the eye of whoever promised an accuracy.
    middle, half = (min(every) + max(every)) / 2, (max(every) - min(every)) / 2
    half = max(1.1 * half, 0.005)
    limits = (middle - half, middle + half)
    return Panel(up="mean accuracy of the answers", curves=curves, limits_up=limits, **shared)


def _lines(
    rows: pd.DataFrame, across: Axis, others: Sequence[Axis], what: str, size: float
) -> list[Curve]:
    from inferway.experiments.figure import COLORS

    return [
        Look(label or "twin", place, _DASHES[(place // len(COLORS)) % len(_DASHES)]).curve(
            own[across.key].tolist(),
            (size * own[f"{what}.mean"].astype(float)).tolist(),
            error=(1.96 * size * own[f"{what}.stderr"].astype(float)).tolist(),
            hollow=(~settled(own)).tolist(),
            markers=len(across.values) <= 40,
        )
        for place, (label, group) in enumerate(_groups(rows, others))
        for own in (group.sort_values(across.key),)
    ]


def _groups(rows: pd.DataFrame, axes: Sequence[Axis]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield rows of each combination, by a label of what has several values in all.

    A policy is labeled by its name, another key by itself and its value.
    """
    groups: Any = rows.groupby([one.key for one in axes], sort=False) if axes else [((), rows)]
    for values, own in groups:
        parts = []
        for one, value in zip(axes, values, strict=True):
            text = f"{value:g}{one.unit}" if isinstance(value, float) else str(value)
            if len(one.values) > 1:
                policy = one.key == "policy"
                parts.append(text.rpartition("/")[2] if policy else f"{one.key}={text}")
        yield ", ".join(parts), own
