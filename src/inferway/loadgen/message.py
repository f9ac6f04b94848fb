"""HTTP requests in two parts, encoded before the clock starts, and what is kept of answers.

The first part says where a request goes, the second what it carries: an input that is sent to many
tasks and nodes is held once, and sending is a single write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.access import DriveError
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.protocol.address import ServerAddress
from inferway.protocol.inference import Parameters, content_lines
from inferway.protocol.inference import encode as write
from inferway.protocol.messages import RemoteSize
from inferway.protocol.tensors import listed
from inferway.unreadable import UNREADABLE

if TYPE_CHECKING:
    from inferway.deployment import Task

_RANDOM: Final = 64


def head(address: ServerAddress, task: str, variant: str | None = None) -> bytes:
    """Encode where requests go: the lines before those of `encode`; `variant` pins them to one."""
    path = f"{address.model_path(task, variant)}/infer"
    return f"POST {path} HTTP/1.1\r\nHost: {address.authority}\r\n".encode("ascii")


def encode(
    task: str,
    signature: Signature,
    images: NDArray[Any] | Mapping[str, NDArray[Any]],
    *,
    parameters: Parameters | None = None,
    binary: bool = True,
    every: bool = False,
) -> list[bytes]:
    """Encode one inference request of batch 1 per image, all but what `head` gives.

    Parameters
    ----------
    task
        The task's name, for messages.
    signature
        The task's.
    images
        Shape (M, ...), by input: without their batch axis, cast to the input's datatype. Inputs
        that are not there get zeros, and an array alone feeds the first.
    parameters
        Top-level parameters of each request, say `{"deadline_ms": 50}`.
    binary
        Tensors as raw bytes in both directions (the binary tensor extension), else as JSON.
    every
        Whether every output is wanted back, or the first alone.

    Returns
    -------
    bodies
        M times the rest of an HTTP/1.1 request: its last header lines, and its body.

    Raises
    ------
    DriveError
        When the images do not have the inputs' shapes, or JSON cannot hold them.
    """
    given = images if isinstance(images, Mapping) else {signature.inputs[0].name: images}
    count = count_of(given)
    columns = [(one, _column(task, one, given.get(one.name), count)) for one in signature.inputs]
    bodies = []
    for place in range(count):
        parts, json_length = write(
            [(tensor, array[place : place + 1]) for tensor, array in columns],
            signature.outputs if every else signature.outputs[:1],
            binary=binary,
            parameters=parameters,
            numbers=_numbers,
        )
        content = b"".join(parts)
        length = b"Content-Length: %d\r\n\r\n" % len(content)
        bodies.append(content_lines(json_length) + length + content)
    return bodies


def _column(task: str, tensor: Tensor, given: NDArray[Any] | None, count: int) -> NDArray[Any]:
    """Make the array of an input, or zeros; DriveError where it does not fit."""
    if given is None:
        blank = b"" if tensor.datatype == "BYTES" else 0
        shape = (count, *_row(tensor))
        return np.broadcast_to(np.full((1, *shape[1:]), blank, tensor.dtype), shape)
    shape, wanted = given.shape[1:], tensor.shape[1:]
    if (
        count == 0
        or len(given) != count
        or len(shape) != len(wanted)
        or any(want not in (-1, have) for want, have in zip(wanted, shape, strict=True))
    ):
        raise DriveError(
            f"{len(given)} inputs of shape {list(shape)} do not fit the task {task!r}: "
            f"it takes {tensor}"
        )
    return np.ascontiguousarray(given, dtype=tensor.dtype)


def body(signature: Signature, image: NDArray[Any]) -> bytes:
    """Return one request's JSON body, as a person would send it with curl."""
    asked = [(signature.inputs[0], image[None])]
    return write(asked, signature.outputs[:1], binary=False, numbers=_numbers)[0][0]


def _numbers(tensor: Tensor, row: NDArray[Any]) -> msgspec.Raw:
    """JSON values; numbers the shortest that read back as the same: 0.1, not 0.10000000149."""
    if tensor.datatype in ("BOOL", "BYTES"):
        try:
            return msgspec.Raw(msgspec.json.encode(listed(tensor.datatype, row)))
        except UnicodeDecodeError:
            raise DriveError(
                f"the input {tensor.name!r} holds bytes that are not UTF-8: send tensors as raw "
                "bytes (--binary)"
            ) from None
    if tensor.datatype.startswith("FP") and not np.isfinite(row).all():
        raise DriveError(
            f"the input {tensor.name!r} holds NaN or an infinity, which JSON has not: send tensors "
            "as raw bytes (--binary)"
        )
    return msgspec.Raw(f"[{','.join(row.ravel().astype(str).tolist())}]".encode("ascii"))


def _row(tensor: Tensor) -> tuple[int, ...]:
    return tuple(max(length, 1) for length in tensor.shape[1:])


def random_images(tensor: Tensor, count: int, seed: int) -> NDArray[Any]:
    """Draw tensors that fit an input, for models whose real inputs are not at hand.

    Shape (count, ...), axes of any length being 1: uniform in [0, 1) for floats, 0 or 1 for the
    rest. DriveError for BYTES inputs, whose content cannot be guessed.
    """
    if tensor.datatype == "BYTES":
        raise DriveError(f"the input {tensor.name!r} holds BYTES: random ones would mean nothing")
    rng = np.random.default_rng(seed)
    shape = (count, *_row(tensor))
    if np.issubdtype(DTYPES[tensor.datatype], np.floating):
        return rng.random(shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


class Inputs(NamedTuple):
    """Distinct inputs of a task.

    Shape (M, ...) without batch axis: `images`, by input or of the first one, and `labels`, if they
    are known; (M,) `groups`, where some are alike.
    """

    images: NDArray[Any] | Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return count_of(self.images)

    def part(self, rows: NDArray[np.int64]) -> Inputs:
        """Keep some, by their indexes."""
        images = self.images
        return Inputs(
            {name: array[rows] for name, array in images.items()}
            if isinstance(images, Mapping)
            else images[rows],
            None if self.labels is None else self.labels[rows],
            None if self.groups is None else self.groups[rows],
        )

    def drawn(
        self, rng: np.random.Generator, count: int
    ) -> tuple[Inputs, NDArray[np.int64], NDArray[np.int64]]:
        """Draw `count` of them.

        Returns
        -------
        inputs
            Those that were drawn, once each.
        rows
            Their indexes among these.
        item
            Shape (count,): indexes of what was drawn among `inputs`.
        """
        rows, item = np.unique(rng.integers(0, len(self), count), return_inverse=True)
        return self.part(rows), rows, item


def count_of(images: NDArray[Any] | Mapping[str, NDArray[Any]]) -> int:
    """Count the rows of one array, or of arrays by input."""
    return len(next(iter(images.values())) if isinstance(images, Mapping) else images)


def inputs_of(task: Task, signature: Signature, seed: int) -> Inputs:
    """Return images of the zoo that all of a task's models come from, else random tensors.

    Those of the zoo are the half of its test set that its accuracies are from. DriveError where
    random ones would mean nothing.
    """
    from inferway.catalog.zoo import SCHEME
    from inferway.profiling.testset import accuracy_images

    uris = [one.model.uri for one in task.variants.values() if one.model is not None]
    zoos = {uri.removeprefix(SCHEME).partition("/")[0] for uri in uris if uri.startswith(SCHEME)}
    if len(zoos) == 1 and all(uri.startswith(SCHEME) for uri in uris):
        tests = accuracy_images(zoos.pop())
        return Inputs(tests.images, tests.labels, tests.source)
    return Inputs(random_images(signature.inputs[0], _RANDOM, seed), None)


class Prediction(NamedTuple):
    """The part of an inference answer that a record keeps."""

    variant: str  # Name of the variant that answered, empty if the server does not say
    # Index of the greatest value of the first row of the first output; the value itself if that row
    # has a single element. -1 without an output, or where it holds texts.
    predicted_class: int
    predicted_s: float  # Latency that the server predicted at dispatch; NaN if it does not say
    expected: float = math.nan  # Accuracy that it expects of this answer; NaN if it does not say
    served_s: float = math.nan  # From the request's arrival there to the answer; NaN likewise


class _Output(msgspec.Struct):
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: RemoteSize | None = None


class _Parameters(msgspec.Struct):
    latency_ms: Any = None  # A server of another make may say something else by this name
    predicted_latency_ms: float | None = None
    expected_accuracy: float | None = None


class _Body(msgspec.Struct):
    model_version: str = ""
    outputs: list[_Output] = []
    parameters: _Parameters | None = None


_NOTHING: Final = _Parameters()
_decode: Final = msgspec.json.Decoder(_Body).decode


def decode(content: bytes, json_length: int) -> Prediction | None:
    """Read the body of a successful answer; None if it is no inference answer.

    `json_length` is the length in bytes of its JSON part (the header
    Inference-Header-Content-Length), or -1 when all of it is JSON.
    """
    if json_length < 0:
        json_length = len(content)
    try:
        body = _decode(content[:json_length])
        predicted_class = _class(body.outputs, content[json_length:])
    except (*UNREADABLE, KeyError, TypeError, OverflowError):
        return None
    told = body.parameters or _NOTHING
    latency_ms, expected = told.predicted_latency_ms, told.expected_accuracy
    predicted_s = math.nan if latency_ms is None else latency_ms / 1e3
    expected = math.nan if expected is None else expected
    served_s = told.latency_ms / 1e3 if type(told.latency_ms) in (int, float) else math.nan
    return Prediction(body.model_version, predicted_class, predicted_s, expected, served_s)


def _class(outputs: list[_Output], raw: bytes) -> int:
    if not outputs or outputs[0].datatype == "BYTES":
        return -1
    output = outputs[0]
    columns = math.prod(output.shape[1:])
    if output.data is not None:
        row = np.ravel(np.asarray(output.data))[:columns]
    elif output.parameters is not None and output.parameters.binary_data_size is not None:
        row = np.frombuffer(raw, DTYPES[output.datatype], count=columns)
    else:
        return -1
    if row.size == 0:
        return -1
    return int(row.argmax()) if row.size > 1 else int(row[0])
