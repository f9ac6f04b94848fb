"""The digits zoo's worth: accuracies, the gain of each step, the profiles."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.measurement import (
    LARGEST_RUN,
    ROUND_S,
    ROUNDS,
    Progress,
    answers,
    machine,
    resident_bytes,
    service_times,
)
from inferway.catalog.zoo import Profile
from inferway.runtime.artifact import digest_of
from inferway.runtime.growth import growth_of

RESAMPLES: Final = 10_000
LEVEL: Final = 0.95
_CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class ResampledMean:
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
        Which original each image was drawn from, shape [N].
    seed
        Of the resampling.
    resamples
        How many.

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
    random = np.random.default_rng(seed)
    means, even = [], np.full(clusters, 1 / clusters)
    for start in range(0, resamples, _CHUNK):
        # How often each source is drawn, [chunk, clusters]; then sums are two products.
        some = min(_CHUNK, resamples - start)
        times = random.multinomial(clusters, even, size=some).astype(np.float64)
        means.append((times @ total) / (times @ size))
    drawn = np.concatenate(means)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # A tie of resampled means at 0 up to rounding counts as "no gain".
    p = (1 + np.count_nonzero(drawn <= 1e-12)) / (resamples + 1)
    return ResampledMean(float(total.sum() / size.sum()), (float(low), float(high)), float(p))


Right = NDArray[np.bool_]
"""Per test image, whether a model's answer was right."""


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
    known = zoo.load("digits")
    paths = {name: known.file(profile.file) for name, profile in known.profiles.items()}
    chosen = _some(zoo.testset("digits"), images, seed)
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
    made = {**known.made, "measured_on": machine(), "test_images": len(chosen)}
    measured = replace(
        known,
        origin="measured",
        profiles=profiles,
        steps=steps,
        made=made,
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

    Returns
    -------
    dict
        Profiles by variant, fastest first.
    tuple
        The steps of the ladder: what each variant gains over the one before.
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
        accuracy = estimate(right[name], testset.source, seed=seed)
        content = path.read_bytes()
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


def _some(testset: zoo.TestSet, images: int | None, seed: int) -> zoo.TestSet:
    if images is None or images >= len(testset):
        return testset
    if images < 1:
        raise ValueError(f"images is {images}; measure on at least 1 test image")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(testset))[:images])
    return zoo.TestSet(testset.images[chosen], testset.labels[chosen], testset.source[chosen])
