"""A task's variants, measured on labeled data and on this machine.

Answers come first, of all variants on the same rows, and then what each one takes; what a profile
holds already of the same models, data and settings is not measured anew.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil
from numpy.typing import NDArray

from inferway.catalog.profile import (
    PROFILE_HARDWARE,
    ConfidenceBins,
    HardwareTimes,
    MachineTimes,
    PairBins,
    ProfiledAccuracy,
    ProfiledData,
    ProfiledSignature,
    TaskProfile,
    VariantProfile,
)
from inferway.deployment import Task, Variant
from inferway.deployment.profile import DeploymentProfile
from inferway.deployment.runtimes import blocking_runtime_of
from inferway.machine import cores, machine, machine_hash
from inferway.profiling import data as labeled
from inferway.profiling.calibration import calibrated, checked
from inferway.profiling.confidence import (
    PROBABILITY,
    confidence_of,
    offers_probabilities,
)
from inferway.profiling.data import DataError, Halves, LabeledData
from inferway.profiling.described import signature_by_data
from inferway.profiling.function import FILE_FUNCTION, FunctionError, UserFunction
from inferway.profiling.intervals import macro_f1, mean_score
from inferway.profiling.memory import MemoryUse, memory_of
from inferway.profiling.score import DEFAULT, EXACT_MATCH, Score, ScoreError, score_of
from inferway.profiling.timing import (
    LONGEST_CALL_S,
    ROUND_S,
    ROUNDS,
    Run,
    Timed,
    bearable,
    service_times,
)
from inferway.protocol import Signature
from inferway.runtime import Runtime, UnsaidSignatureError

Arrays = dict[str, NDArray[Any]]
Progress = Callable[[str, float], None]  # told what is being done, and the share that is done

_ROWS: Final = 32  # per call at most when only the answers matter
_ANSWERS: Final = 0.3  # of the whole work, for the progress
_LIBRARIES: Final = ("numpy", "onnxruntime")
_WARM_UP_RUNS: Final = 3  # As many as a server tries a copy with before it answers requests
# Of the memory that is free: instances are not made beyond it only to keep cores busy.
_SHARE: Final = 0.8


class ProfilingError(ValueError):
    """What keeps a variant from being measured, in one sentence."""


@dataclass(frozen=True)
class ProfilingOptions:
    """How variants are measured.

    Attributes
    ----------
    score, output
        How right answers are told from wrong ones; see `inferway.profiling.score_of`.
    group
        The array or column of the data that says which rows are alike.
    seed
        Of the split and of the resampling.
    rounds, round_s
        How often each service time is measured, and for how long at least, in seconds.
    again
        Measure anew what the profile holds already.
    hardware
        Which one the times are of.
    """

    score: str = DEFAULT
    output: str | None = None
    group: str | None = None
    seed: int = 1
    rounds: int = ROUNDS
    round_s: float = ROUND_S
    again: bool = False
    hardware: str = PROFILE_HARDWARE


@dataclass(frozen=True)
class RowAnswers:
    """Score and confidence of a variant's answers to N rows.

    Attributes
    ----------
    score
        How right each one is, 0..1, shape [N].
    classes
        Of F1 alone: the classes answered, shape [N].
    confidence
        How sure each one is, shape [N]; None where the variant has no confidence.
    kind
        Which confidence it is, as the variant's key says it.
    softmax
        Whether the softmax of the outputs came first.
    signature
        Of the variant.
    """

    score: NDArray[np.float64]
    classes: NDArray[Any] | None
    confidence: NDArray[np.float64] | None
    kind: str
    softmax: bool
    signature: ProfiledSignature


def measured_task(
    task: Task,
    data: Path | LabeledData,
    options: ProfilingOptions,
    *,
    folder: Path,
    known: DeploymentProfile | None = None,
    keep: Callable[[DeploymentProfile], None] | None = None,
    answered: Callable[[str, RowAnswers], None] | None = None,
    progress: Progress | None = None,
) -> DeploymentProfile:
    """Measure the variants of a task that have a model.

    Parameters
    ----------
    task
        Its name is that in the profile.
    data
        Labeled data, or the file that holds them; see `inferway.profiling.read`.
    options
        How.
    folder
        Where relative file names start.
    known
        A profile of the same file: what it holds stays, and is not measured anew where model, data
        and settings are the same.
    keep
        Called with the profile each time that a variant is done.
    answered
        Called with a variant's name and its answers, where they are not known already.
    progress
        Told how far it is.

    Returns
    -------
    DeploymentProfile
        `known` with this task measured.

    Raises
    ------
    ProfilingError
        When a variant does not run, or its answers cannot be scored.
    DataError
        When the data cannot be used.
    """
    work = _Measuring(task, folder, data, options, progress)
    score = _score(options)
    whole = known or DeploymentProfile()
    facts = {key: machine(())[key] for key in ("processor", "cores", "system")}
    whole = msgspec.structs.replace(whole, machines={**whole.machines, machine_hash(): facts})

    def kept(done: TaskProfile) -> DeploymentProfile:
        new = msgspec.structs.replace(whole, tasks={**whole.tasks, task.name: done})
        if keep is not None:
            keep(new)
        return new

    done = work.answered(score, whole.tasks.get(task.name), kept, answered)
    return kept(work.timed(done, kept))


def answers_of(
    task: Task,
    data: Path | LabeledData,
    options: ProfilingOptions,
    *,
    folder: Path,
    progress: Progress | None = None,
) -> dict[str, RowAnswers]:
    """Ask the variants of a task that have a model about all rows.

    Parameters, and errors, as of `measured_task`.
    """
    work, score = _Measuring(task, folder, data, options, progress), _score(options)
    return {name: work.answers(name, score, place) for place, name in enumerate(work.variants)}


def _score(options: ProfilingOptions) -> Score:
    try:
        return score_of(options.score, output=options.output)
    except ScoreError as error:
        raise ProfilingError(str(error)) from None


class _Measuring:
    """One run over a task's variants."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        data: Path | LabeledData,
        options: ProfilingOptions,
        progress: Progress | None,
    ) -> None:
        self.folder, self.task, self.options = folder, task, options
        self.variants = {name: one for name, one in task.variants.items() if one.runnable}
        if not self.variants:
            raise ProfilingError(
                f"task {task.name} has no variant with a model that could be measured"
            )
        self._progress = progress or (lambda what, share: None)
        self.identities = {name: one.identity for name, one in self.variants.items()}
        self.signature = self._signature()
        self._progress("reading the data", 0.0)
        if isinstance(data, LabeledData):
            self.data = data
        else:
            self.data = labeled.read(data, self.signature, group=options.group)
        if self.signature is None:
            self.signature = self._found_signature()
        try:
            self.halves: Halves = labeled.halves(self.data, options.seed)
        except DataError as error:
            whose = "" if isinstance(data, LabeledData) else f"{data}: "
            raise DataError(f"{whose}{error}") from None

    def answered(
        self,
        score: Score,
        before: TaskProfile | None,
        kept: Callable[[TaskProfile], object],
        told: Callable[[str, RowAnswers], None] | None,
    ) -> TaskProfile:
        """Measure accuracies and confidences, and pairs of them; nothing where all is known."""
        described = self._described(score)
        # Times are still true of a model whose data are others.
        old = {} if before is None else dict(before.variants)
        old = {name: one for name, one in old.items() if self.identities.get(name) == one.model}
        if before is not None and before.data == described and not self.options.again:
            whole = [name for name, one in old.items() if self._is_answered(name, one)]
            sure = sum(one.confidence is not None for one in old.values())
            paired = len(before.pairs) == sure * (len(old) - 1)
            if paired and set(whole) == self.variants.keys() == before.variants.keys():
                return before
        done = TaskProfile(described)
        answers: dict[str, RowAnswers] = {}
        for place, name in enumerate(self.variants):
            answers[name] = self.answers(name, score, place)
            if told is not None:
                told(name, answers[name])
            profiled = VariantProfile(
                self.identities[name],
                self.variants[name].size_bytes,
                answers[name].signature,
                self._accuracy(answers[name], score),
                self._confidence(name, answers[name]),
                old[name].machines if name in old else {},
                old[name].hardware if name in old else {},
            )
            done = msgspec.structs.replace(done, variants={**done.variants, name: profiled})
            # The times of those that follow are not lost by an end before their turn.
            rest = {key: one for key, one in old.items() if key not in done.variants}
            bare = {
                key: msgspec.structs.replace(one, accuracy=None, confidence=None)
                for key, one in rest.items()
            }
            kept(msgspec.structs.replace(done, variants={**done.variants, **bare}))
        done = msgspec.structs.replace(done, pairs=tuple(self._pairs(done, answers)))
        kept(done)
        return done

    def timed(self, done: TaskProfile, kept: Callable[[TaskProfile], object]) -> TaskProfile:
        """Measure times and memory of each variant on this machine, where they are not known."""
        for place, (name, variant) in enumerate(self.variants.items()):
            one = done.variants[name]
            sizes = self._sizes(variant)
            if not self.options.again and self._is_timed(one, sizes or (1,)):
                continue
            one = self._with_times(one, self._times(name, variant, sizes, place))
            done = msgspec.structs.replace(done, variants={**done.variants, name: one})
            kept(done)
        return done

    def _sizes(self, variant: Variant) -> tuple[int, ...] | None:
        """Sizes of batches that are offered on the hardware, and 1; None where none are."""
        hardware = self.options.hardware
        batch = variant.batch_on(hardware)
        tables = [] if batch is None else [batch]
        if batch is None and not variant.service and hardware == PROFILE_HARDWARE:
            tables = [*variant.batches.values()]
        # Of other hardware alone, where it is said of no other what a request takes there.
        offered = {size for one in tables for size in one.sizes}
        return (*sorted({1, *offered}),) if offered else None

    def _is_timed(self, one: VariantProfile, sizes: Sequence[int]) -> bool:
        """Tell whether times of these sizes are known, of this machine and these libraries."""
        known = one.times_on(self.options.hardware)
        if known is None or known.versions != _versions():
            return False
        here = not isinstance(known, HardwareTimes) or known.machine == machine_hash()
        return here and set(sizes) <= known.service_s.keys()

    def _with_times(self, one: VariantProfile, times: MachineTimes) -> VariantProfile:
        """A profile with the times in their place, and those of other hardware as they were."""
        hardware, here = self.options.hardware, machine_hash()
        if hardware == PROFILE_HARDWARE:
            return msgspec.structs.replace(one, machines={**one.machines, here: times})
        named = HardwareTimes(**msgspec.structs.asdict(times), machine=here)
        return msgspec.structs.replace(one, hardware={**one.hardware, hardware: named})

    @contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        """Tell of any error whose variant it is; error types of runtimes are many."""
        try:
            yield
        except (ProfilingError, DataError):
            raise
        except OSError as error:
            said = error.strerror or str(error)
            raise ProfilingError(f"{self.task.name}/{name}: {said}") from error
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise ProfilingError(f"{self.task.name}/{name}: {said}") from error

    def _signature(self) -> Signature | None:
        """Find what the task takes, of a model's file where there is one."""

        def rank(name: str) -> int:
            variant = self.variants[name]
            return 0 if variant.model is not None else 1 if variant.python is not None else 2

        for name in sorted(self.variants, key=rank):
            with (
                self._saying(name),
                suppress(UnsaidSignatureError),
                self._runtimes(name, 1, None) as (runtime,),
            ):
                return runtime.signature
        return None

    def _found_signature(self) -> Signature:
        """Find what the task takes and gives with the data, where no variant says it."""
        name, python = next(
            (name, one.python) for name, one in self.variants.items() if one.python is not None
        )
        with self._saying(name):
            return signature_by_data(python, self.data.inputs)

    @contextmanager
    def _runtimes(
        self, name: str, count: int, signature: Signature | None
    ) -> Iterator[list[Runtime]]:
        """Load a variant so many times; a model's file is there once in any case."""
        with ExitStack() as undo:
            runtimes = []
            for _ in range(count):
                runtimes.append(blocking_runtime_of(self.variants[name], signature))
                undo.callback(runtimes[-1].close)
            yield runtimes

    def _described(self, score: Score) -> ProfiledData:
        data, options = self.data, self.options
        return ProfiledData(
            digest=data.digest,
            rows=data.rows,
            groups=None if data.groups is None else len(np.unique(data.groups)),
            bins_rows=len(self.halves.bins),
            accuracy_rows=len(self.halves.accuracy),
            seed=options.seed,
            score=score.name,
            score_digest=score.digest,
            output=options.output,
            group=options.group,
        )

    def _kind_digest(self, name: str) -> str | None:
        kind = self.variants[name].confidence
        if kind is None or not FILE_FUNCTION.fullmatch(kind):
            return None
        try:
            return UserFunction(kind, self.folder).digest
        except FunctionError as error:
            raise ProfilingError(f"{self.task.name}/{name}: {error}") from None

    def _is_answered(self, name: str, one: VariantProfile) -> bool:
        kind, bins = self.variants[name].confidence, one.confidence
        if one.accuracy is None:
            return False
        if kind is None:
            return bins is None or bins.kind == PROBABILITY
        return bins is not None and (bins.kind, bins.digest) == (kind, self._kind_digest(name))

    def answers(self, name: str, score: Score, place: int) -> RowAnswers:
        """Ask the variant at this place of all about all rows."""
        variant, share = self.variants[name], _ANSWERS / len(self.variants)
        batch = variant.batch_on(self.options.hardware)
        rows = _ROWS if batch is None else batch.max
        done = 0

        def told(more: int) -> None:
            nonlocal done
            done += more
            now = (place + done / self.data.rows) * share
            self._progress(f"accuracy of {name}", min(now, _ANSWERS))

        count = self._instances(variant, None)
        with self._saying(name), self._runtimes(name, count, self.signature) as runtimes:
            runs = [one.run for one in runtimes]
            outputs = _outputs(runs, self.data, rows, _limit_s(variant), told)
            rows_right = score.rows(outputs, self.data.labels)
            classes = None
            if score.classes is not None:
                classes = score.classes(outputs, self.data.labels)
            kind = variant.confidence
            by_class = score.digest is None and score.name != EXACT_MATCH
            if kind is None and by_class and offers_probabilities(outputs, self.options.output):
                kind = PROBABILITY
            sure = None
            if kind is not None:
                sure = confidence_of(kind, outputs, output=self.options.output, folder=self.folder)
            return RowAnswers(
                rows_right,
                classes,
                None if sure is None else sure.values,
                kind or "",
                sure is not None and sure.softmax,
                ProfiledSignature.of(runtimes[0].signature),
            )
        raise AssertionError("`_saying` raises what it hides")

    def _accuracy(self, answered: RowAnswers, score: Score) -> ProfiledAccuracy:
        rows, seed = self.halves.accuracy, self.options.seed
        groups = None if self.data.groups is None else self.data.groups[rows]
        if answered.classes is not None:
            found = macro_f1(answered.classes[rows], self.data.labels[rows], groups, seed=seed)
        else:
            found = mean_score(answered.score[rows], groups, seed=seed)
        return ProfiledAccuracy(found.value, found.interval, len(rows), score.name)

    def _confidence(self, name: str, answered: RowAnswers) -> ConfidenceBins | None:
        if answered.confidence is None:
            return None
        own, other = self.halves.bins, self.halves.accuracy
        bins = calibrated(answered.confidence[own], answered.score[own])
        check = checked(bins, answered.confidence[other], answered.score[other])
        edges, accuracy, mass = (tuple(part.tolist()) for part in bins)
        return ConfidenceBins(
            kind=answered.kind,
            digest=self._kind_digest(name),
            softmax=answered.softmax,
            edges=edges,
            accuracy=accuracy,
            mass=mass,
            observed=tuple(None if one != one else one for one in check.observed.tolist()),
            error=check.error,
        )

    def _pairs(self, done: TaskProfile, answers: Mapping[str, RowAnswers]) -> Iterator[PairBins]:
        own = self.halves.bins
        for first, answered in answers.items():
            bins = done.variants[first].confidence
            if answered.confidence is None or bins is None:
                continue
            for second, other in answers.items():
                if second != first:
                    both = calibrated(answered.confidence[own], other.score[own])
                    yield PairBins(first, second, bins.accuracy, tuple(both.accuracy.tolist()))

    def _instances(self, variant: Variant, use: MemoryUse | None) -> int:
        """Count the runs at a time that keep all cores busy, as far as memory and server allow."""
        count = cores()
        if variant.remote is not None:
            return min(count, variant.remote.concurrency or count)
        if variant.model is not None:
            return count  # they share one model
        if use is None:
            return 1
        room = int(_SHARE * psutil.virtual_memory().available) // max(1, use.peak_bytes)
        return max(1, min(count, room))

    def _times(
        self,
        name: str,
        variant: Variant,
        sizes: Sequence[int] | None,
        place: int,
    ) -> MachineTimes:
        inputs, options = self.data.inputs, self.options
        times: dict[str, Any] = {"rounds": options.rounds, "round_s": options.round_s}
        share = (1 - _ANSWERS) / len(self.variants)

        def alone_told(done: float, what: str) -> None:
            self._progress(what, _ANSWERS + (place + 0.5 * done) * share)

        def busy_told(done: float, what: str) -> None:
            self._progress(what, _ANSWERS + (place + 0.5 + 0.5 * done) * share)

        with self._saying(name):
            alone_told(0.0, f"memory of {name}")
            begun_s = time.perf_counter()
            with self._runtimes(name, 1, self.signature) as (runtime,):
                for _ in range(_WARM_UP_RUNS):
                    runtime.run({key: array[:1] for key, array in inputs.items()})
                loaded_s = time.perf_counter() - begun_s
                chosen = tuple(sorted(set(sizes))) if sizes else bearable(runtime.run, inputs)
            use, load_s = None, None
            if variant.remote is None:
                load_s = loaded_s
                rows = np.arange(chosen[-1]) % self.data.rows
                largest = {key: array[rows] for key, array in inputs.items()}
                use = memory_of(variant, self.signature, largest)
            count = self._instances(variant, use)
            with self._runtimes(name, count, self.signature) as runtimes:
                timed = Timed(name, [one.run for one in runtimes], inputs, chosen)
                (alone,) = service_times([timed], progress=alone_told, **times)
                (busy,) = service_times([timed], busy=True, progress=busy_told, **times)
        return MachineTimes(
            alone,
            busy,
            count,
            None if use is None else use.loaded_bytes,
            None if use is None else use.peak_bytes,
            _versions(),
            datetime.now(UTC).isoformat(timespec="seconds"),
            load_s,
        )


def _versions() -> dict[str, str]:
    return {name: str(machine(_LIBRARIES)[name]) for name in ("python", *_LIBRARIES)}


def _limit_s(variant: Variant) -> float:
    """Time that one call may take, in seconds."""
    return min((one.timeout_s for one in (variant.python, variant.remote) if one), default=math.inf)


def _rows_at_once(run: Run, data: LabeledData, most: int, limit_s: float) -> int:
    """Find so many rows that a call is far from its limit: from 1 on, doubled."""
    longest_s = min(LONGEST_CALL_S, limit_s / 4)

    def took_s(rows: int) -> float:
        start_s = time.perf_counter()
        run({key: array[:rows] for key, array in data.inputs.items()})
        return time.perf_counter() - start_s

    took_s(1)  # the first call may load or compile what the others find there
    rows = 1
    while rows < min(most, data.rows) and took_s(rows) < longest_s:
        rows = min(2 * rows, most)
    return rows


def _outputs(
    runs: Sequence[Run],
    data: LabeledData,
    most: int,
    limit_s: float,
    told: Callable[[int], None],
) -> Arrays:
    """Ask about all rows, some at a time, from a thread for each run; the outputs in order."""
    rows = _rows_at_once(runs[0], data, most, limit_s)
    free: queue.SimpleQueue[Run] = queue.SimpleQueue()
    for run in runs:
        free.put(run)

    def answer(start: int) -> Arrays:
        run = free.get()
        try:
            some = {key: array[start : start + rows] for key, array in data.inputs.items()}
            return run(some)
        finally:
            free.put(run)

    parts: list[Arrays] = []
    pool = ThreadPoolExecutor(len(runs))
    try:
        for part in pool.map(answer, range(0, data.rows, rows)):
            parts.append(part)
            told(len(next(iter(part.values()))))
    finally:
        pool.shutdown(cancel_futures=True)
    names = list(parts[0])
    outputs = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in names}
    for name, array in outputs.items():
        if len(array) != data.rows:
            raise ProfilingError(f"output {name!r} has {len(array)} rows for {data.rows}")
    return outputs
