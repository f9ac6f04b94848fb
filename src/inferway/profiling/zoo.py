"""The digits zoo's worth on this machine: what `inferway profile` measures, and its ladder's gains.

The data are the zoo's own test set, with originals as groups.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.zoo import Profile
from inferway.deployment import Batch, Model, Task, Variant
from inferway.deployment.profile import DeploymentProfile, file_digest
from inferway.deployment.tasks import ANY_HARDWARE
from inferway.profiling.data import LabeledData
from inferway.profiling.intervals import estimate
from inferway.profiling.measuring import ProfilingOptions, Progress, RowAnswers, measured_task
from inferway.profiling.testset import labeled_testset, remember
from inferway.profiling.timing import ROUND_S, ROUNDS
from inferway.runtime.growth import growth_of

ZOO: Final = "digits"
LARGEST_RUN: Final = 64  # rows of the largest run whose memory is measured

Right = NDArray[np.bool_]  # per test image: the model's answer was right


def measure(
    *,
    folder: Path | None = None,
    again: bool = False,
    sizes: Sequence[int] | None = None,
    rounds: int = ROUNDS,
    round_s: float = ROUND_S,
    progress: Progress | None = None,
) -> zoo.Zoo:
    """Measure the digits zoo on this machine.

    Parameters
    ----------
    folder
        Where the profiles are written, so that they take precedence over the shipped ones when
        it is `inferway.catalog.zoo.user_folder`. None: nowhere.
    again
        Measure anew what is known of these models and images already: accuracies and confidence
        bins, of any machine; times and memory, of this one.
    sizes
        Batch sizes to time besides 1; by default as `inferway.profile` chooses them.
    rounds, round_s
        How often each service time is measured, and for how long at least, in seconds.
    progress
        Told what is under way, and the share that is done, 0..1.

    Returns
    -------
    Zoo
        As `inferway.catalog.zoo.load` would read it from `folder`.
    """
    known = zoo.load(ZOO)
    task, machines = known.measured, dict(known.machines)
    if known.origin == "shipped":
        # A processor's name is not enough to take another machine's times for this one's.
        bare = {key: msgspec.structs.replace(v, machines={}) for key, v in task.variants.items()}
        task, machines = msgspec.structs.replace(task, variants=bare), {}
    measured = profiled(
        {name: known.file(one.file) for name, one in known.profiles.items()},
        {name: one.parameters for name, one in known.profiles.items()},
        labeled_testset(ZOO),
        ProfilingOptions(seed=known.data.seed, rounds=rounds, round_s=round_s, again=again),
        known=DeploymentProfile(machines=machines, tasks={ZOO: task}),
        sizes=sizes,
        progress=progress,
    )
    measured = replace(
        measured,
        steps=measured.steps or known.steps,
        ablation=known.ablation,
        made=known.made,
        folders=tuple(dict.fromkeys([*([folder] if folder else []), *known.folders])),
    )
    if folder is not None:
        zoo.save(measured, folder)
    return measured


def profiled(
    paths: Mapping[str, Path],
    parameters: Mapping[str, int],
    data: LabeledData,
    options: ProfilingOptions,
    *,
    known: DeploymentProfile | None = None,
    sizes: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> zoo.Zoo:
    """Measure model files as variants of a zoo.

    Parameters
    ----------
    paths, parameters
        By variant: its file, and its number of trained weights.
    data
        The test set.
    options
        How; the seed splits the test set.
    known
        What is not measured anew, unless the options ask for it.
    sizes
        As of `measure`.
    progress
        As of `measure`.

    Returns
    -------
    Zoo
        With `steps` where the models were asked.
    """
    batches = {ANY_HARDWARE: Batch(sizes=tuple(sizes))} if sizes else {}
    variants = {
        name: Variant(
            name,
            model=Model(path, str(path), file_digest(path)),
            size_bytes=path.stat().st_size,
            batches=batches,
        )
        for name, path in paths.items()
    }
    right: dict[str, Right] = {}

    def answered(name: str, rows: RowAnswers) -> None:
        _, right[name] = remember(file_digest(paths[name]), data, rows)

    whole = measured_task(
        Task(ZOO, variants),
        data,
        options,
        folder=Path(),
        known=known,
        answered=answered,
        progress=progress,
    )
    done = whole.tasks[ZOO]
    profiles = [
        Profile(
            name,
            path.name,
            parameters[name],
            done.variants[name],
            growth_of(path, LARGEST_RUN, sys.maxsize).peaks,
        )
        for name, path in paths.items()
    ]
    ordered = {one.name: one for one in sorted(profiles, key=lambda one: one.mean_s)}
    assert data.groups is not None  # a test set's originals
    steps = ladder_steps(right, data.groups, seed=options.seed)
    return zoo.Zoo(
        ZOO, "measured", ordered, done.data, done.pairs, machines=whole.machines, steps=steps
    )


def ladder_steps(
    right: Mapping[str, Right], source: NDArray[np.int64], *, seed: int
) -> tuple[dict[str, Any], ...]:
    """Estimate what each variant gains over the one before, paired, by source."""
    return tuple(
        {"from": low, "to": high} | gain_of(right[high], right[low], source, seed=seed)
        for low, high in itertools.pairwise(right)
    )


def gain_of(high: Right, low: Right, source: NDArray[np.int64], *, seed: int) -> dict[str, Any]:
    """Estimate what one set of right answers gains over another: mean, interval and p-value."""
    gain = estimate(high.astype(np.float64) - low, source, seed=seed)
    return {"gain": gain.mean, "interval": list(gain.interval), "p": gain.p}
