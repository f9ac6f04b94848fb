"""HTTP requests in two parts, encoded before the clock starts, so that sending is a single write.

The first part says where a request goes, the second what it carries: an input that is sent to many
tasks and nodes is held once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.access import DriveError
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ServerAddress
from inferway.protocol.inference import Parameters, content_lines
from inferway.protocol.inference import encode as write

if TYPE_CHECKING:
    from inferway.deployment import Task


def head(address: ServerAddress, task: str, variant: str | None = None) -> bytes:
    """Encode where requests go: the lines before those of `encode`; `variant` pins them to one."""
    return (
        f"POST {address.infer_path(task, variant)} HTTP/1.1\r\nHost: {address.authority}\r\n"
    ).encode("ascii")


def encode(
    task: str,
    signature: Signature,
    images: NDArray[Any],
    *,
    parameters: Parameters | None = None,
    binary: bool = True,
) -> list[bytes]:
    """Encode one inference request of batch 1 per image, all but what `head` gives.

    Parameters
    ----------
    task
        The task's name, for messages.
    signature
        The task's; with several inputs, `images` feeds the first, the others get zeros.
    images
        Shape (M, ...): inputs without their batch axis, cast to the input's datatype.
    parameters
        Top-level parameters of each request, say `{"deadline_ms": 50}`.
    binary
        Tensors as raw bytes in both directions (the binary tensor extension), else as JSON.

    Returns
    -------
    bodies
        M times the rest of an HTTP/1.1 request: its last header lines, and its body.

    Raises
    ------
    DriveError
        When the images do not have the input's shape.
    """
    tensor = signature.inputs[0]
    _check(tensor, images, task)
    zeros = [(other, np.zeros((1, *_row(other)), other.dtype)) for other in signature.inputs[1:]]
    outputs = signature.outputs[:1]
    return [
        _frame(
            *write(
                [(tensor, image[None]), *zeros],
                outputs,
                binary=binary,
                parameters=parameters,
                numbers=_numbers,
            )
        )
        for image in np.ascontiguousarray(images, dtype=tensor.dtype)
    ]


def body(signature: Signature, image: NDArray[Any]) -> bytes:
    """Return one request's JSON body, as a person would send it with curl."""
    asked = [(signature.inputs[0], image[None])]
    return write(asked, signature.outputs[:1], binary=False, numbers=_numbers)[0][0]


def random_images(tensor: Tensor, count: int, seed: int) -> NDArray[Any]:
    """Random tensors that fit an input, for models whose real inputs are not at hand.

    Parameters
    ----------
    tensor
        The input; axes of any length become 1.
    count
        How many, M.
    seed
        Of the generator.

    Returns
    -------
    images
        Shape (M, ...): uniform in [0, 1) for floats, 0 or 1 for the rest.

    Raises
    ------
    DriveError
        For BYTES inputs, whose content cannot be guessed.
    """
    if tensor.datatype == "BYTES":
        raise DriveError(f"the input {tensor.name!r} holds BYTES: random ones would mean nothing")
    rng = np.random.default_rng(seed)
    shape = (count, *_row(tensor))
    if np.issubdtype(DTYPES[tensor.datatype], np.floating):
        return rng.random(shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


def _row(tensor: Tensor) -> tuple[int, ...]:
    return tuple(max(length, 1) for length in tensor.shape[1:])


def _check(tensor: Tensor, images: NDArray[Any], task: str) -> None:
    given = images.shape[1:]
    fits = len(given) == len(tensor.shape) - 1 and all(
        want in (-1, have) for want, have in zip(tensor.shape[1:], given, strict=True)
    )
    if not fits or len(images) == 0:
        raise DriveError(
            f"{len(images)} inputs of shape {list(given)} do not fit the task {task!r}: "
            f"it takes {tensor}"
        )


def _frame(parts: list[bytes], json_length: int | None) -> bytes:
    content = b"".join(parts)
    lines = content_lines(json_length)
    return b"%bContent-Length: %d\r\n\r\n%b" % (lines, len(content), content)


def _numbers(tensor: Tensor, row: NDArray[Any]) -> msgspec.Raw:
    """JSON numbers, the shortest that read back as the same value: 0.1, not 0.10000000149."""
    if row.dtype == np.bool_:
        return msgspec.Raw(msgspec.json.encode(row.ravel().tolist()))
    return msgspec.Raw(f"[{','.join(row.ravel().astype(str).tolist())}]".encode("ascii"))


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
