"""A profile in words and pictures: tables, reliability, latency by batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from inferway.catalog.profile import (
    PROFILE_HARDWARE,
    BatchTime,
    MachineTimes,
    TaskProfile,
    VariantProfile,
)
from inferway.deployment import Deployment, Node, Task
from inferway.deployment.deployment import load_unprofiled
from inferway.deployment.errors import nearest
from inferway.deployment.profile import (
    DeploymentProfile,
    ProfileError,
    profile_path,
    read_profile,
    write_profile,
)
from inferway.deployment.tasks import ANY_HARDWARE
from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.text import Frame, Laid, Shown, accuracy, frame, seconds, table
from inferway.files import held
from inferway.machine import machine_hash
from inferway.profiling.confidence import PROBABILITY
from inferway.profiling.measuring import ProfilingError, ProfilingOptions, measured_task
from inferway.profiling.score import DEFAULT
from inferway.profiling.timing import ROUNDS

_FEW_GROUPS: Final = 40  # of which half measure accuracies


@dataclass(frozen=True)
class Profiled(Shown):
    """What variants of a deployment file are worth, by labeled data and this machine.

    Attributes
    ----------
    title
        The file.
    profile
        All that is known of it, what was measured before included.
    task
        The task that was measured.
    path
        Where the profile was written; None if it was not.
    hardware
        Which one the times are of.
    """

    title: str
    profile: DeploymentProfile
    task: str
    path: Path | None = None
    hardware: str = PROFILE_HARDWARE

    @property
    def variants(self) -> Mapping[str, VariantProfile]:
        """Those that were measured, by name."""
        return self.measured.variants

    @property
    def measured(self) -> TaskProfile:
        """The task as measured."""
        return self.profile.tasks[self.task]

    def times_of(self, variant: VariantProfile) -> MachineTimes | None:
        """Times of a variant on the hardware that was measured; None where none are known."""
        return variant.times_on(self.hardware)

    def to_frame(self) -> Frame:
        """One row per variant and batch size, on this machine."""
        return frame(
            {
                "variant": name,
                "accuracy": None if one.accuracy is None else one.accuracy.value,
                "batch": alone.batch,
                "alone_s": alone.steady_s,
                "busy_s": busy.steady_s,
            }
            for name, one in self.variants.items()
            if (here := self.times_of(one)) is not None
            for alone, busy in zip(here.alone, here.busy, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return {
            "schema": 1,
            "tasks": {self.task: msgspec.to_builtins(self.measured)},
            "network": None,
            "machines": dict(self.profile.machines),
            "machine": machine_hash(),
            "hardware": self.hardware,
            "written": None if self.path is None else str(self.path),
        }

    def tables(self) -> list[Laid]:
        """Accuracy, memory and calibration by variant; service times by batch size."""
        data = self.measured.data
        rows = [[name, *self._worth(one)] for name, one in self.variants.items()]
        groups = "" if data.groups is None else f" in {data.groups:,} groups"
        sure = any(one.confidence is not None for one in self.variants.values())
        other = f"; confidence calibrated on the other {data.bins_rows:,}" if sure else ""
        few = ", of few groups: too narrow" if (data.groups or _FEW_GROUPS) < _FEW_GROUPS else ""
        caption = (
            f"By {data.score} on {data.accuracy_rows:,} of {data.rows:,} rows{groups}, with 95 % "
            f"intervals{few}{other}. MiB."
        )
        columns = ["variant", "accuracy [95 %]", "confidence", "ECE", "file", "memory", "peak"]
        laid: list[Laid] = [
            table(f"Profile of {self.title}, {self.task}", columns, rows, caption=caption)
        ]
        times = [
            [name, str(alone.batch), *_times(alone, busy)]
            for name, one in self.variants.items()
            if (here := self.times_of(one)) is not None
            for alone, busy in zip(here.alone, here.busy, strict=True)
        ]
        counts = {
            here.instances
            for one in self.variants.values()
            if (here := self.times_of(one)) is not None
        }
        at_once = ", ".join(map(str, sorted(counts)))
        columns = ["variant", "batch", "steady", "mean", "p50", "p99", "busy, steady", "p99"]
        caption = f"Steady: without the longest 1 % of the calls. Busy: {at_once} runs at a time."
        where = "" if self.hardware == PROFILE_HARDWARE else f" on {self.hardware}"
        laid.append(table(f"Service times{where}", columns, times, caption=caption))
        return laid

    def _worth(self, one: VariantProfile) -> list[str]:
        here, bins = self.times_of(one), one.confidence
        right = "" if one.accuracy is None else accuracy(one.accuracy.value, one.accuracy.interval)
        return [
            right,
            "" if bins is None else bins.kind,
            "" if bins is None else f"{bins.error:.3f}",
            _mebibytes(one.size_bytes),
            _mebibytes(None if here is None else here.memory_bytes),
            _mebibytes(None if here is None else here.peak_bytes),
        ]

    def plot(self) -> Drawing:
        """Draw how right answers are by their confidence, and service times by batch size."""
        shown = [self._reliability(), self._by_rank(), self._latency()]
        return panels([one for one in shown if one.curves], columns=3, title=self.title)

    def _reliability(self) -> Panel:
        """Accuracy against the confidence itself, of those whose confidence is a probability.

        Lines are the bins', marks the rows that accuracies are from.
        """
        curves: list[Curve] = []
        for color, (name, one) in enumerate(self.variants.items()):
            bins = one.confidence
            if bins is not None and bins.kind == PROBABILITY:
                # The first bin has no lower end.
                middles = [(low + high) / 2 for low, high in pairwise([*bins.edges, 1.0])]
                curves.append(Look(name, color).series(middles, bins.accuracy[1:]))
                seen = zip(middles, bins.observed[1:], strict=True)
                marks = [(x, y) for x, y in seen if y is not None]
                across, up = ([mark[axis] for mark in marks] for axis in (0, 1))
                curves.append(Look(f"{name}, seen", color, "none").curve(across, up))
        lowest = min((x for curve in curves for x in curve.x), default=0.0)
        if curves:
            curves.insert(0, Look("as sure as right").series([lowest, 1.0], [lowest, 1.0]))
        limits = (max(0.0, lowest - 0.03), 1.01)
        return Panel("reliability", "confidence", "accuracy", curves, limits_across=limits)

    def _by_rank(self) -> Panel:
        curves = []
        for color, (name, one) in enumerate(self.variants.items()):
            if (bins := one.confidence) is not None:
                ends = list(accumulate(bins.mass, initial=0.0))
                middles = [(low + high) / 2 for low, high in pairwise(ends)]
                curves.append(Look(name, color).curve(middles, list(bins.accuracy)))
        return Panel("accuracy by confidence", "share of answers less sure", "accuracy", curves)

    def _latency(self) -> Panel:
        curves = []
        for color, (name, one) in enumerate(self.variants.items()):
            here = self.times_of(one)
            if here is None:
                continue
            for times, dash, how in ((here.alone, "-", ""), (here.busy, ":", ", busy")):
                sizes = [float(each.batch) for each in times]
                curves.append(
                    Look(name + how, color, dash).curve(sizes, [1e3 * t.steady_s for t in times])
                )
        ticks = sorted({x for curve in curves for x in curve.x})
        return Panel(
            "service time",
            "batch size",
            "ms",
            curves,
            scale_across="log",
            scale_up="log",
            ticks_across=ticks,
        )


def profile(
    file: str | Path,
    data: str | Path,
    *,
    task: str | None = None,
    score: str = DEFAULT,
    output: str | None = None,
    group: str | None = None,
    seed: int = 1,
    rounds: int = ROUNDS,
    write: bool = False,
    again: bool = False,
    hardware: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Profiled:
    """Measure what the variants of a deployment file are worth.

    Parameters
    ----------
    file
        The deployment file; accuracies and times may be missing.
    data
        Labeled data: ``.npz``, ``.csv`` or ``.parquet``; see `inferway.profiling.read`.
    task
        Which, where the file has several.
    score, output
        How right answers are told from wrong ones, and by which output; see
        `inferway.profiling.score_of`.
    group
        The array or column of the data that says which rows are alike.
    seed
        Of the split into halves and of the resampling.
    rounds
        How often each service time is measured; the least disturbed one counts.
    write
        Keep what was measured in ``FILE.profile.json``, after each variant: what stops goes on
        where it stopped.
    again
        Measure anew what that file holds already.
    hardware
        Which one the times are of; those of other hardware stay as they are. That of the file's
        nodes and devices if not given, where they name one in all, else ``cpu``.
    progress
        Told what is being done, and the share of it that is done.

    Raises
    ------
    DeploymentError
        When there is anything else wrong with the file.
    ProfilingError, DataError
        When a variant cannot be measured, or not on these data.
    """
    path = Path(file)
    deployment = load_unprofiled(path)
    name = _task_of(deployment, task)
    kind = _hardware_of(deployment, deployment.tasks[name], hardware)
    options = ProfilingOptions(score, output, group, seed, rounds, again=again, hardware=kind)
    with _written_by_one(path) if write else nullcontext():
        known = None
        try:
            known = read_profile(path)
        except ProfileError:
            if not write:
                raise

        def keep(new: DeploymentProfile) -> None:
            # Another task of the file may have been measured meanwhile, on another machine.
            with suppress(ProfileError):
                if (now := read_profile(path)) is not None:
                    new = msgspec.structs.replace(
                        new,
                        machines={**now.machines, **new.machines},
                        tasks={**new.tasks, **now.tasks, name: new.tasks[name]},
                    )
            write_profile(path, new)

        done = measured_task(
            deployment.tasks[name],
            Path(data),
            options,
            folder=deployment.folder,
            known=known,
            keep=keep if write else None,
            progress=progress,
        )
    return Profiled(path.name, done, name, profile_path(path) if write else None, kind)


def write_figures(profiled: Profiled, folder: Path) -> list[Path]:
    """Draw a profile as PNG and SVG; the PNG."""
    from inferway.experiments.figure import save

    return [save(profiled.plot(), folder / "profile")[0]]


@contextmanager
def _written_by_one(path: Path) -> Iterator[None]:
    """Keep others from writing the profile of a file: each would undo what the other has kept."""
    try:
        with held(path):
            yield
    except BlockingIOError:
        raise ProfilingError(
            f"{path}: another `profile --write` measures it now; wait for it to end"
        ) from None


def _task_of(deployment: Deployment, task: str | None) -> str:
    """Choose the task that is meant."""
    if task is not None:
        if task not in deployment.tasks:
            raise ProfilingError(f"there is no task {task}; {nearest(task, deployment.tasks)}")
        return task
    runnable = [
        name
        for name, one in deployment.tasks.items()
        if any(variant.runnable for variant in one.variants.values())
    ]
    if len(runnable) > 1:
        raise ProfilingError(f"the file has the tasks {', '.join(runnable)}; name one with --task")
    return (runnable or list(deployment.tasks))[0]


def _hardware_of(deployment: Deployment, task: Task, stated: str | None) -> str:
    """Say which hardware times are of; ProfilingError where the file knows none of that name."""
    network = deployment.network
    nodes: list[Node] = [*deployment.nodes.values()]
    if network is not None:
        nodes += [*(network.tree or ()), *([] if network.others is None else [network.others])]
    kinds = list(dict.fromkeys(kind for node in nodes for kind in node.kinds))
    if stated is None:
        return kinds[0] if len(kinds) == 1 else PROFILE_HARDWARE
    said = [
        kind
        for variant in task.variants.values()
        for kind in (*variant.service, *variant.batches)
        if kind != ANY_HARDWARE
    ]
    if stated not in (known := dict.fromkeys((*kinds, *said, PROFILE_HARDWARE))):
        raise ProfilingError(
            f"no node, device or variant of {deployment.path.name} has hardware {stated}; "
            f"{nearest(stated, known)}"
        )
    return stated


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.2f}"


def _times(alone: BatchTime, busy: BatchTime) -> list[str]:
    shown = (alone.steady_s, alone.mean_s, alone.p50_s, alone.p99_s, busy.steady_s, busy.p99_s)
    return [seconds(one) for one in shown]
