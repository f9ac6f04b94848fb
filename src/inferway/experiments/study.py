"""Studies, and how they run: stored points are not computed again."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from inferway.experiments.claim import Claim, as_frame
from inferway.experiments.results import Results, with_intervals
from inferway.experiments.runner import Computed, Point, ResultStore, key, version
from inferway.experiments.text import Drawing, Frame, frame
from inferway.experiments.workers import by_workers
from inferway.experiments.workers import workers as read_workers
from inferway.files import alone

OUT = Path("out/studies")  # where results go unless said otherwise, below the current folder
# From seconds, through the third digit, to the paper's own run lengths.
SCALES = ("smoke", "quick", "paper")

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes
    ----------
    done
        Points that are known, those of earlier runs included.
    share
        Of the work, 0..1.
    """

    study: str
    done: int
    total: int
    seconds_left: float
    share: float


@dataclass(frozen=True)
class Study(Generic[Settings]):
    """One published figure, table or example.

    Attributes
    ----------
    name
        On the command line, and of its folder of results.
    source
        Paper and figure; ``ours`` where there is none.
    shows
        One sentence.
    scales
        Settings by scale; the last, ``paper``, has the paper's own.
    points
        What to run, for settings.
    figure, claims
        What the results say; both take whatever rows there are.
    departures
        Where the paper does not say what it did, or we did otherwise, and what was done.
    code
        Files and folders of the package that the results depend on: a change there makes stored
        rows stale. The file of the points' call is always among them.
    """

    name: str
    source: str
    shows: str
    scales: Mapping[str, Settings]
    points: Callable[[Settings], Sequence[Point]]
    figure: Callable[[Settings, Results], Drawing]
    claims: Callable[[Settings, Results], Sequence[Claim]]
    departures: Sequence[str] = ()
    code: Sequence[str] = ("site", "dispatch", "twin", "workload")

    def run(
        self,
        scale: str = "quick",
        *,
        out: Path | str | None = None,
        seed: int = 1,
        workers: int | str | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> StudyResult:
        """Compute what is not stored yet; parameters and errors as `inferway.studies.run`.

        Returns
        -------
        StudyResult
            With `figure`, `claims`, `to_frame()`.
        """
        settings: dict[str, Any] = {"seed": seed, "workers": workers, "progress": progress}
        return StudyResult(self, scale, run(self, scale, out=Path(out or OUT), **settings))

    @property
    def part(self) -> str:
        """Folder of the studies in which it is defined, and page on which its table stands."""
        return self.points.__module__.split(".")[-2]

    def seconds(self, scale: str) -> float:
        """About how long all its points take on one core."""
        return sum(point.seconds for point in self.points(self.scales[scale]))


def scales(
    paper: Settings, *, smoke: Mapping[str, Any], quick: Mapping[str, Any] | None = None
) -> dict[str, Settings]:
    """Settings by scale: the paper's, and what the smaller scales change of them."""
    made: Any = paper
    return {"smoke": replace(made, **smoke), "quick": replace(made, **(quick or {})), "paper": made}


@dataclass(frozen=True)
class StudyResult:
    """The results of a study at a scale."""

    study: Study[Any]
    scale: str
    results: Results

    @cached_property
    def figure(self) -> Drawing:
        """As the paper draws it."""
        return self.study.figure(self.study.scales[self.scale], self.results)

    @cached_property
    def claims(self) -> Sequence[Claim]:
        """Each sentence that is checked, with what was measured and its interval."""
        return checked(self.study, self.study.scales[self.scale], self.results)

    def plot(self) -> Drawing:
        """`figure`, as all results have it."""
        return self.figure

    def to_frame(self) -> Frame:
        """One row per point."""
        return frame(self.results.rows)

    def _repr_html_(self) -> str:
        return str(as_frame(self.claims).to_html(index=False))

    def __str__(self) -> str:
        return str(as_frame(self.claims).to_string(index=False))


def run(
    study: Study[Any],
    scale: str = "quick",
    *,
    out: Path = OUT,
    seed: int = 1,
    workers: int | str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Results:
    """Compute a study's missing points and return all rows.

    Parameters
    ----------
    study
        What to run.
    scale
        ``smoke``, ``quick`` or ``paper``.
    out
        Folder for results; those of this study go to ``NAME/SCALE`` below it, those of another
        seed than 1 to ``NAME/SCALE-seed-SEED``.
    seed
        The first of the seeds: every point's own is moved by as much as this is above 1.
    workers
        Processes; as many as cores by default, 0 to compute in this one. Or as `--workers` has
        them: ``threads:8``, ``ray``, ``ray://HOST:10001``, ``dask://HOST:8786``.
    progress
        Called before the first point and after each.

    Returns
    -------
    Results
        A row for every point, in the study's order.

    Raises
    ------
    ValueError
        For an unknown scale, a seed below 1, or workers that there are not.
    RuntimeError
        Where a point fails, after all others are done, or another run writes to the folder.
    """
    points, names, store = _planned(study, scale, out, seed)
    who = read_workers(workers, "processes")
    with alone(store.folder, "run"):
        known = store.read()
        # The longest first, so that no core is left alone with a long one at the end.
        missing = sorted(
            (place for place, name in enumerate(names) if name not in known),
            key=lambda place: -points[place].seconds,
        )
        left = [points[place] for place in missing]
        began_s, expected_s = time.monotonic(), sum(point.seconds for point in left)
        ended: list[Computed] = []

        def tell() -> None:
            # Time left, from how fast the points so far went against what was expected.
            lasted_s = time.monotonic() - began_s
            finished_s = sum(left[one.place].seconds for one in ended)
            pace = lasted_s / finished_s if finished_s > 0 else 1 / who.many
            share = finished_s / expected_s if expected_s > 0 else 1.0
            left_s = max(expected_s - finished_s, 0.0) * pace
            if progress is not None:
                done = len(points) - len(left) + len(ended)
                progress(Progress(study.name, done, len(points), left_s, share))

        tell()
        for computed in by_workers(left, who):
            ended.append(computed)
            if computed.result is not None:
                name = names[missing[computed.place]]
                store.add(name, left[computed.place], computed.result, computed.seconds)
                known[name] = computed.result
            tell()
        if failed := [one for one in ended if one.result is None]:
            raise RuntimeError(
                f"{len(failed)} of {len(points)} points of {study.name} failed, first "
                f"{dict(left[failed[0].place].label)}: "
                f"{failed[0].error.strip().splitlines()[-1]}"
            )
        store.keep(names)
    return _rows(points, names, known)


def stored(
    study: Study[Any], scale: str = "quick", *, out: Path = OUT, seed: int = 1
) -> tuple[Results, int]:
    """Rows that are known already, of today's settings and code, and how many are missing."""
    points, names, store = _planned(study, scale, out, seed)
    rows = _rows(points, names, store.read())
    return rows, len(points) - len(rows)


def claims_of(
    studies: Sequence[Study[Any]], scale: str, *, out: Path, seed: int
) -> Iterator[tuple[Study[Any], Results, int, list[Claim]]]:
    """Yield each study that has results, with them, how many points it lacks, and its claims.

    Raises
    ------
    RuntimeError
        Where no study has a result.
    """
    found = [(study, *stored(study, scale, out=out, seed=seed)) for study in studies]
    if not any(len(results) for _, results, _ in found):
        raise RuntimeError(
            f"there are no results at scale {scale} in {out}: "
            f"`inferway study run --all {options(scale, seed)}` makes them"
        )
    for study, results, missing in found:
        if len(results):
            yield study, results, missing, checked(study, study.scales[scale], results)


def options(scale: str, seed: int) -> str:
    """Write a scale and a seed as commands take them."""
    return f"--scale {scale}" + f" --seed {seed}" * (seed != 1)


def place(scale: str, seed: int = 1) -> str:
    """Name of the folder of a study's results."""
    return scale if seed == 1 else f"{scale}-seed-{seed}"


def seeded(points: Sequence[Point], seed: int) -> list[Point]:
    """The points with other seeds: those that begin at 1 begin at `seed`."""
    return [
        replace(point, arguments={**point.arguments, "seed": point.arguments["seed"] + seed - 1})
        if "seed" in point.arguments
        else point
        for point in points
    ]


def checked(study: Study[Any], settings: Any, results: Results) -> list[Claim]:
    """Compute a study's claims, each with its interval where chance could change the value."""
    return with_intervals(lambda rows: study.claims(settings, rows), results)


def _planned(
    study: Study[Any], scale: str, out: Path, seed: int
) -> tuple[list[Point], list[str], ResultStore]:
    """Points, what they are known by, and where they are kept."""
    if scale not in study.scales:
        raise ValueError(f"unknown scale {scale!r}: expected one of {', '.join(SCALES)}")
    if seed < 1:
        raise ValueError(f"the first seed is 1 or more, not {seed}")
    points = seeded(study.points(study.scales[scale]), seed)
    versions = {
        call: version([*study.code, Path(inspect.getfile(inspect.unwrap(call)))])
        for call in {point.call for point in points}
    }
    names = [key(point, versions[point.call]) for point in points]
    return points, names, ResultStore(out / study.name / place(scale, seed))


def _rows(points: Sequence[Point], names: Sequence[str], known: dict[str, Any]) -> Results:
    rows = zip(points, names, strict=True)
    return Results([{**point.label, **known[name]} for point, name in rows if name in known])
