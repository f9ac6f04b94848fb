"""The digits zoo's worth on this machine: accuracies, gains, service times, memory.

Other programs on the machine can only make a call longer. So each service time is measured in
several rounds, spread over all variants, and the round with the least mean is what is told; the
thread's processor time beside it shows what a free core would have taken.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.zoo import Profile, ServiceProfile
from inferway.runtime import OnnxRuntime, Runtime
from inferway.runtime.artifact import digest_of
from inferway.runtime.growth import growth_of

RESAMPLES: Final = 10_000
LEVEL: Final = 0.95
_CHUNK: Final = 1000
BATCHES: Final = (1, 8)
ROUNDS: Final = 5
LARGEST_RUN: Final = 64  # rows of the largest run whose memory is measured
ROUND_S: Final = 0.25  # least time of a round, in seconds

_LEAST_CALLS: Final = 10
_WARM_CALLS: Final = 3
_ROWS: Final = 32  # per call when only the answers matter

Progress = Callable[[float, str], None]  # told the share that is done, 0..1, and of what
Right = NDArray[np.bool_]  # per test image: the model's answer was right


class ResampledMean(NamedTuple):
    """A mean over images.

    Attributes
    ----------
    mean
        The estimate.
    interval
        Lower and upper end of the 95 % percentile interval.
    p
        One-sided: the share of resamples with a mean of 0 or less, never below 1/(resamples + 1).
    """

    mean: float
    interval: tuple[float, float]
    p: float


def estimate(
    values: NDArray[np.float64] | NDArray[np.bool_],
    source: NDArray[np.int64],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> ResampledMean:
    """Estimate a mean over images with resampled sources.

    Images drawn from one original are alike, so the originals are what is resampled (the cluster
    bootstrap: A. C. Davison and D. V. Hinkley, *Bootstrap Methods and their Application*, Sec. 3.8,
    DOI 10.1017/CBO9780511802843), and two models are compared on the same resample (paired).

    Parameters
    ----------
    values
        One number per image, shape [N]: right or wrong for an accuracy, or for the gain of one
        model over another the difference of the two (-1, 0 or 1).
    source
        Original that each image was drawn from, shape [N].
    seed
        Of the resampling.
    resamples
        Number of them.

    Raises
    ------
    ValueError
        When the shapes differ or there is no image.
    """
    if values.shape != source.shape or values.ndim != 1 or not len(values):
        raise ValueError(
            f"values {values.shape} and source {source.shape} must be of the same length, above 0"
        )
    _, cluster = np.unique(source, return_inverse=True)
    total = np.bincount(cluster, weights=values.astype(np.float64))
    size = np.bincount(cluster).astype(np.float64)
    clusters = len(size)
    random, even = np.random.default_rng(seed), np.full(clusters, 1 / clusters)
    drawn = np.empty(resamples)
    for start in range(0, resamples, _CHUNK):
        # How often each source is drawn, [chunk, clusters]; then sums are two products.
        some = min(_CHUNK, resamples - start)
        times = random.multinomial(clusters, even, size=some).astype(np.float64)
        drawn[start : start + some] = (times @ total) / (times @ size)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # A tie of resampled means at 0 up to rounding counts as "no gain".
    p = (1 + np.count_nonzero(drawn <= 1e-12)) / (resamples + 1)
    return ResampledMean(float(total.sum() / size.sum()), (float(low), float(high)), float(p))


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
        made={**known.made, "measured_on": machine(), "test_images": len(chosen)},
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
    measured: dict[tuple[int, int], list[ServiceProfile]] = {}
    rounded = list(itertools.product(range(rounds), enumerate(runtimes), BATCHES))
    for done, (_, (number, runtime), batch) in enumerate(rounded, 1):
        profile = _round(runtime, images, batch, round_s)
        measured.setdefault((number, batch), []).append(profile)
        if progress:
            stem = paths[number].stem
            progress(done / len(rounded), f"service time of {stem} at batch {batch}")
    for runtime in runtimes:
        runtime.close()
    best = {key: min(profiles, key=lambda one: one.mean_s) for key, profiles in measured.items()}
    return [tuple(best[number, batch] for batch in BATCHES) for number in range(len(paths))]


def _round(
    runtime: Runtime, images: NDArray[np.float32], batch: int, round_s: float
) -> ServiceProfile:
    name = runtime.signature.inputs[0].name
    asked = [
        {name: images[start : start + batch]} for start in range(0, len(images) - batch + 1, batch)
    ]
    for call in range(_WARM_CALLS):
        runtime.run(asked[call % len(asked)])
    times: list[float] = []
    cpu = time.thread_time()
    end = time.perf_counter() + round_s
    while len(times) < _LEAST_CALLS or time.perf_counter() < end:
        one = asked[len(times) % len(asked)]
        start_s = time.perf_counter()
        runtime.run(one)
        times.append(time.perf_counter() - start_s)
    cpu = time.thread_time() - cpu
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return ServiceProfile(batch, float(np.mean(times)), float(p50), float(p99), cpu / len(times))


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
    """Measure the memory that one loaded and used instance adds to a process, in bytes.

    It runs in a process of its own: in this one, memory freed by others would be used first.
    """
    program = "import sys; from inferway.catalog.evaluation import _resident; _resident(sys.argv)"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout)


def _resident(arguments: list[str]) -> None:
    import onnxruntime  # noqa: F401 - the library itself is no part of an instance
    import psutil

    from inferway.runtime.artifact import newest_opset, read

    path, process = Path(arguments[1]), psutil.Process()
    newest_opset()  # loads the libraries' code with a model of one node
    _, signature = read(path)
    image = signature.inputs[0]
    rows = np.zeros((1, *image.shape[1:]), image.dtype)
    before = process.memory_info().rss
    runtime = OnnxRuntime(path)
    runtime.run({image.name: rows})
    print(max(0, process.memory_info().rss - before))


def machine() -> dict[str, Any]:
    """Describe this machine and the libraries that measurements depend on."""
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        listing = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^model name\s*:(.*)$", listing, re.MULTILINE):
            processor = model[1].strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": version("numpy"),
    }
