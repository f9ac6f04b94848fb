"""A zoo's test set in halves, and what each variant answers to each image.

Confidence bins are fitted on one half of the originals. Accuracies are measured on the other, whose
images are what is sent to servers: so accuracies by labels and by profiles are of the same
originals, and what bins promise is looked at on images that they have not seen.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.catalog import zoo
from inferway.catalog.zoo import TestSet
from inferway.deployment import Model, Task, Variant
from inferway.deployment.profile import file_digest
from inferway.files import home_folder, write_whole
from inferway.profiling.data import LabeledData, halves

if TYPE_CHECKING:
    from inferway.profiling.measuring import RowAnswers

Progress = Callable[[str, float], None]  # told what is being done, and the share that is done

_Column = tuple[NDArray[np.float64], NDArray[np.bool_]]  # confidence, and right; shape [N] each


class ImageAnswers(NamedTuple):
    """Answers of K variants to the N images of a zoo's test set, in its order.

    Attributes
    ----------
    variants
        Names of the variants, fastest first, K.
    confidence
        Greatest probability of each answer, float64 of shape [N, K].
    right
        Whether each answer is right, bool of shape [N, K].
    source
        Which original each image was made from, int64 of shape [N].
    bins
        Whether an image is of the half that confidence bins are fitted on, bool of shape [N];
        the profile's accuracies are from the others.
    """

    variants: tuple[str, ...]
    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    source: NDArray[np.int64]
    bins: NDArray[np.bool_]


def labeled(tests: TestSet, digest: str) -> LabeledData:
    """Make labeled data of a test set, whose file has this digest; originals are the groups."""
    groups = np.unique(tests.source, return_inverse=True)[1].astype(np.int64)
    return LabeledData({zoo.INPUT: tests.images}, tests.labels, groups, digest)


def labeled_testset(name: str = "digits") -> LabeledData:
    """Load a zoo's test set as labeled data.

    Raises
    ------
    CatalogError
        As `inferway.catalog.zoo.load`.
    """
    return labeled(zoo.testset(name), file_digest(zoo.load(name).file(zoo.TESTSET)))


def accuracy_images(name: str = "digits") -> TestSet:
    """Load the half of a zoo's test set that its accuracies are from, and no confidence bins.

    Raises
    ------
    CatalogError
        As `inferway.catalog.zoo.load`.
    """
    tests = zoo.testset(name)
    rows = halves(labeled(tests, ""), zoo.load(name).data.seed).accuracy
    return TestSet(tests.images[rows], tests.labels[rows], tests.source[rows])


def image_answers(
    name: str = "digits",
    variants: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
) -> ImageAnswers:
    """Tell what a zoo's variants answer to each image of its test set.

    What was asked once is kept in the user's cache folder, by the digests of model and images. The
    first time, the digits zoo takes some two minutes of processor time, nearly all of it for the
    ensemble.

    Parameters
    ----------
    name
        The zoo.
    variants
        Which; all if not given.
    progress
        Told what is being done, and the share of it that is done.

    Raises
    ------
    CatalogError
        When there is no such zoo or variant.
    """
    from inferway.profiling.measuring import ProfilingOptions, answers_of

    known, data = zoo.load(name), labeled_testset(name)
    chosen = {one: zoo.resolve(f"{zoo.SCHEME}{name}/{one}") for one in variants or known.profiles}
    columns: dict[str, _Column] = {}
    missing: dict[str, Variant] = {}
    for one, (path, profile) in chosen.items():
        if (column := _recalled(profile.digest, data)) is None:
            missing[one] = Variant(one, model=Model(path, str(path), profile.digest))
        else:
            columns[one] = column
    if missing:
        task, options = Task(name, missing), ProfilingOptions(seed=known.data.seed)
        asked = answers_of(task, data, options, folder=Path(), progress=progress)
        for one, rows in asked.items():
            columns[one] = remember(chosen[one][1].digest, data, rows)
    bins = np.zeros(data.rows, np.bool_)
    bins[halves(data, known.data.seed).bins] = True
    confidence, right = zip(*(columns[one] for one in chosen), strict=True)
    return ImageAnswers(
        tuple(chosen),
        np.stack(confidence, axis=1),
        np.stack(right, axis=1),
        zoo.testset(name).source,
        bins,
    )


def remember(digest: str, data: LabeledData, rows: RowAnswers) -> _Column:
    """Keep what a model with this digest answers to the images, for `image_answers`."""
    assert rows.confidence is not None  # models of a zoo give probabilities
    confidence, right = rows.confidence, rows.score > 0
    content = io.BytesIO()
    np.savez_compressed(content, confidence=confidence, right=right)
    with suppress(OSError, RuntimeError):  # no place to keep it
        write_whole(_cached(digest, data), content.getvalue())
    return confidence, right


def _recalled(digest: str, data: LabeledData) -> _Column | None:
    """Read what was kept; None where there is none, or it is damaged."""
    try:
        with np.load(_cached(digest, data), allow_pickle=False) as file:
            confidence, right = file["confidence"], file["right"]
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    fits = (confidence.shape, right.shape) == 2 * ((data.rows,),)
    return (confidence, right) if fits else None


def _cached(digest: str, data: LabeledData) -> Path:
    """Name the file of a model's answers; another runtime may round otherwise."""
    key = hashlib.sha256(f"{digest} {data.digest} {version('onnxruntime')}".encode()).hexdigest()
    return home_folder("cache") / "answers" / f"{key[:16]}.npz"
