"""What requests carry: a zoo's test set with its labels, or random tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from numpy.typing import NDArray

from inferway.loadgen.message import random_images
from inferway.protocol import Signature

if TYPE_CHECKING:
    from inferway.deployment import Task

_RANDOM: Final = 64


class Inputs(NamedTuple):
    """Distinct inputs of a task."""

    images: NDArray[Any]
    """(M, ...) without their batch axis."""
    labels: NDArray[Any] | None
    """(M,) their true classes, if known."""

    def only(self, used: NDArray[Any]) -> Inputs:
        """Return some of them, by index."""
        return Inputs(self.images[used], None if self.labels is None else self.labels[used])


def inputs_of(task: Task, signature: Signature, seed: int) -> Inputs:
    """Return the test set of the zoo that a task's models come from, else random tensors.

    Parameters
    ----------
    task
        From a deployment.
    signature
        What it takes.
    seed
        Of the random tensors.

    Raises
    ------
    DriveError
        Where random ones would mean nothing.
    """
    zoo = _zoo(task)
    if zoo is None:
        return Inputs(random_images(signature.inputs[0], _RANDOM, seed), None)
    from inferway.catalog.zoo import testset

    known = testset(zoo)
    return Inputs(known.images, known.labels)


def _zoo(task: Task) -> str | None:
    """Name the zoo that a task's models come from; None if any comes from elsewhere."""
    from inferway.catalog.zoo import SCHEME

    uris = [variant.model.uri for variant in task.variants.values() if variant.model is not None]
    zoos = {uri.removeprefix(SCHEME).partition("/")[0] for uri in uris if uri.startswith(SCHEME)}
    all_of_one = len(zoos) == 1 and all(uri.startswith(SCHEME) for uri in uris)
    return zoos.pop() if all_of_one else None
