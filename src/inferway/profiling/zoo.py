"""The digits zoo's worth on this machine: accuracies, gains, service times, memory."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.zoo import Profile, ServiceProfile
from inferway.deployment import Model, Variant
from inferway.machine import machine
from inferway.profiling import timing
from inferway.profiling.intervals import estimate
from inferway.profiling.memory import memory_of
from inferway.profiling.timing import ROUND_S, ROUNDS, Progress, Timed
from inferway.runtime import OnnxRuntime, zeros
from inferway.runtime.artifact import digest_of
from inferway.runtime.growth import growth_of

BATCHES: Final = (1, 8)
LARGEST_RUN: Final = 64  # rows of the largest run whose memory is measured

_ROWS: Final = 32  # per call when only the answers matter

Right = NDArray[np.bool_]  # per test image: the model's answer was right


def measure(
    *,
    folder: Path | None = None,
    images: int | None = None,
    rounds: int = ROUNDS,
    round_s: float = ROUND_S,
    workers: int = 1,
    seed: int = 1,
    progress: Progress | None = None,
) -> zoo.Zoo:
    """Measure the digits zoo on this machine.

    Parameters
    ----------
    folder
        Where the profiles are written, so that they take precedence over the shipped ones when
        it is `inferway.catalog.zoo.user_folder`. None: nowhere.
    images
        Measure the accuracy on that many test images, drawn at random, and not on all.
    rounds, round_s
        How often each service time is measured, and for how long at least, in seconds.
    workers
        Threads that share the answering of the test set; service times are always of one thread.
    seed
        Of the resampling and of the choice of test images.
    progress
        Told the share that is done, 0..1, and what is under way.

    Returns
    -------
    Zoo
        As `inferway.catalog.zoo.load` would read it from `folder`.
    """
    tell = progress or (lambda share, what: None)
    known, chosen = zoo.load("digits"), zoo.testset("digits")
    paths = {name: known.file(profile.file) for name, profile in known.profiles.items()}
    if images is not None and images < 1:
        raise ValueError(f"images is {images}; measure on at least 1 test image")
    if images is not None:
        some = np.sort(np.random.default_rng(seed).permutation(len(chosen))[:images])
        chosen = zoo.TestSet(chosen.images[some], chosen.labels[some], chosen.source[some])
    right = right_answers(
        paths, chosen, workers=workers, progress=lambda share, what: tell(0.6 * share, what)
    )
    profiles, steps = profiled(
        paths,
        right,
        chosen,
        parameters={name: profile.parameters for name, profile in known.profiles.items()},
        rounds=rounds,
        round_s=round_s,
        seed=seed,
        progress=lambda share, what: tell(0.6 + 0.4 * share, what),
    )
    measured = replace(
        known,
        origin="measured",
        profiles=profiles,
        steps=steps,
        made={**known.made, "measured_on": measured_on(), "test_images": len(chosen)},
        folders=tuple(dict.fromkeys([*([folder] if folder else []), *known.folders])),
    )
    if folder is not None:
        zoo.save(measured, folder)
    tell(1.0, "measured")
    return measured


def right_answers(
    paths: Mapping[str, Path],
    testset: zoo.TestSet,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Right]:
    """Tell for each variant which test images it answers right."""
    # The work of a variant is not known beforehand; its place in the ladder is a fair guess.
    weight = {name: 2.0**place for place, name in enumerate(paths)}
    total, done = sum(weight.values()) * len(testset), 0.0
    right: dict[str, Right] = {}
    for name, path in paths.items():

        def answered(count: int, name: str = name) -> None:
            nonlocal done
            done += count * weight[name]
            if progress:
                progress(min(1.0, done / total), f"accuracy of {name}")

        output = answers(path, testset.images, workers=workers, progress=answered)
        right[name] = output.argmax(axis=1) == testset.labels
    return right


def profiled(
    paths: Mapping[str, Path],
    right: Mapping[str, Right],
    testset: zoo.TestSet,
    *,
    parameters: Mapping[str, int],
    rounds: int,
    round_s: float,
    seed: int,
    progress: Progress | None = None,
) -> tuple[dict[str, Profile], tuple[dict[str, Any], ...]]:
    """Measure service times and memory and join them with the accuracies.

    Gives the profiles by variant, fastest first, and what each gains over the one before.
    """
    served = service_times(
        list(paths.values()),
        testset.images[:256],
        rounds=rounds,
        round_s=round_s,
        progress=progress,
    )
    profiles = []
    for (name, path), service in zip(paths.items(), served, strict=True):
        accuracy, content = estimate(right[name], testset.source, seed=seed), path.read_bytes()
        profiles.append(
            Profile(
                name=name,
                file=path.name,
                digest=digest_of(content),
                accuracy=accuracy.mean,
                accuracy_interval=accuracy.interval,
                size_bytes=len(content),
                memory_bytes=resident_bytes(path),
                parameters=parameters[name],
                service=service,
                peaks=growth_of(path, LARGEST_RUN, sys.maxsize).peaks,
            )
        )
    ordered = {one.name: one for one in sorted(profiles, key=lambda one: one.mean_s)}
    return ordered, ladder_steps({name: right[name] for name in ordered}, testset.source, seed=seed)


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


def service_times(
    paths: Sequence[Path],
    images: NDArray[np.float32],
    *,
    rounds: int = ROUNDS,
    round_s: float = ROUND_S,
    progress: Progress | None = None,
) -> list[tuple[ServiceProfile, ...]]:
    """Measure how long models of one image input take, on one thread.

    Parameters
    ----------
    paths
        The model files.
    images
        Inputs, float32 of shape [N, 1, S, S], at least as many as the largest batch.
    rounds, round_s
        How often each is measured and for how long at least, in seconds.
    progress
        Told after each measurement.

    Returns
    -------
    list
        For each model its service times at each of `BATCHES`.
    """
    runtimes = [OnnxRuntime(path) for path in paths]
    timed = [
        Timed(path.stem, [runtime.run], {runtime.signature.inputs[0].name: images}, BATCHES)
        for path, runtime in zip(paths, runtimes, strict=True)
    ]
    measured = timing.service_times(timed, rounds=rounds, round_s=round_s, progress=progress)
    for runtime in runtimes:
        runtime.close()
    return [
        tuple(
            ServiceProfile(one.batch, one.mean_s, one.p50_s, one.p99_s, one.cpu_s) for one in times
        )
        for times in measured
    ]


def answers(
    path: Path,
    images: NDArray[np.float32],
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Ask a model of one input and one output about all images, with so many threads.

    `progress` is called after each call with its number of images.
    """

    def answer(start: int) -> NDArray[np.float32]:
        some = images[start : start + _ROWS]
        rows: NDArray[np.float32] = runtime.run({asked: some})[given]
        if progress:
            progress(len(some))
        return rows

    with closing(OnnxRuntime(path)) as runtime, ThreadPoolExecutor(workers) as pool:
        asked, given = runtime.signature.inputs[0].name, runtime.signature.outputs[0].name
        return np.concatenate(list(pool.map(answer, range(0, len(images), _ROWS))))


def resident_bytes(path: Path) -> int:
    """Measure the memory that one loaded and used instance adds to a process, in bytes."""
    variant = Variant(path.stem, model=Model(path, str(path)))
    with closing(OnnxRuntime(path)) as runtime:
        rows = zeros(runtime.signature.inputs)
    return memory_of(variant, None, rows).loaded_bytes


def measured_on() -> dict[str, Any]:
    """Describe this machine and the libraries that measurements depend on."""
    return {**machine(("onnxruntime", "numpy")), "cores": os.cpu_count()}
