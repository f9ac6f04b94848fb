"""Inference as a client speaks it: the body of a request, and the arrays of its answer.

Source: Open Inference Protocol v2 and its binary tensor extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.protocol.messages import RemoteAnswer
from inferway.protocol.schema import Signature, Tensor
from inferway.protocol.tensors import Wording, from_bytes, from_json, listed, to_bytes
from inferway.unreadable import UNREADABLE, fault

Arrays = dict[str, NDArray[Any]]
Parameters = Mapping[str, str | float | bool]

_decode_answer: Final = msgspec.json.Decoder(RemoteAnswer).decode


class UnwritableError(ValueError):
    """An input has elements that JSON cannot carry."""


class AnswerError(ValueError):
    """An answer is none that the signature allows; the message goes on after "the answer"."""


_OUTPUT: Final = Wording(
    AnswerError,
    lenient=True,
    sentences={
        "kind": "has no list of {datatype} in the output {name!r}",
        "count": "has {given} elements in the output {name!r}, whose shape {shape} says {size}",
        "range": "has elements in the output {name!r} that are out of the range of {datatype}",
        "size": "has {given} bytes in the output {name!r}; {datatype} of shape {shape} has {size}",
        "cut": "ends in element {given} of the output {name!r}",
        "ended": "ends in element {given} of the output {name!r}",
        "left": "goes on after the last element of the output {name!r}",
    },
)


def content_lines(json_length: int | None) -> bytes:
    """Write the header lines that say what a body holds: JSON alone, or raw bytes after it."""
    if json_length is None:
        return b"Content-Type: application/json\r\n"
    return (
        b"Content-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\n" % json_length
    )


def encode(
    inputs: Iterable[tuple[Tensor, NDArray[Any]]],
    outputs: Sequence[Tensor],
    *,
    binary: bool,
    parameters: Parameters | None = None,
    numbers: Callable[[Tensor, NDArray[Any]], Any] | None = None,
) -> tuple[list[bytes], int | None]:
    """Write the body of an inference request.

    Inputs are given each with its array, whose first axis is the batch; the outputs are those that
    are wanted back. Tensors go as raw bytes in both directions where that is `binary`, else as
    JSON, into which `numbers` writes an array, or a plain list does. Returns the body in parts, and
    the bytes of its JSON for the header of the binary tensor extension, None without it.
    UnwritableError when an element cannot be written in JSON.
    """
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for tensor, array in inputs:
        about = {"name": tensor.name, "shape": array.shape, "datatype": tensor.datatype}
        if binary:
            raw.append(to_bytes(tensor.datatype, array))
            data: dict[str, Any] = {"parameters": {"binary_data_size": len(raw[-1])}}
        else:
            data = {"data": (numbers or _to_json)(tensor, array)}
        described.append(about | data)
    form = {"parameters": {"binary_data": True}} if binary else {}
    wanted = [{"name": tensor.name, **form} for tensor in outputs]
    message = {"inputs": described, "outputs": wanted}
    text = msgspec.json.encode(message | ({"parameters": parameters} if parameters else {}))
    return [text, *raw], len(text) if binary else None


def decode(signature: Signature, rows: int, body: bytes, json_length: int | None) -> Arrays:
    """Read the body of an answer to a request of so many rows; its outputs in their order.

    The answer's header says how long the JSON is, None where raw bytes do not follow. AnswerError
    when it is no answer that the signature allows.
    """
    at = len(body) if json_length is None else min(json_length, len(body))
    try:
        answer = _decode_answer(memoryview(body)[:at])
    except UNREADABLE as error:
        raise AnswerError(f"is not one of the Open Inference Protocol: {fault(error)}") from None
    wanted = {tensor.name: tensor for tensor in signature.outputs}
    arrays: Arrays = {}
    for output in answer.outputs:
        size = None if output.parameters is None else output.parameters.binary_data_size
        start, at = at, at + (size or 0)
        if at < start or at > len(body):
            raise AnswerError(f"has fewer bytes than its output {output.name!r} announces")
        tensor = wanted.get(output.name)
        if tensor is None:
            continue  # more than was asked for does no harm
        given, shape = tuple(output.shape), (rows, *tensor.shape[1:])
        fits = len(shape) == len(given) and all(
            have >= 0 and want in (-1, have) for want, have in zip(shape, given, strict=True)
        )
        name, datatype = tensor.name, tensor.datatype
        if not fits or output.datatype != datatype:
            raise AnswerError(
                f"has the output {name!r} as {output.datatype[:16]}{output.shape[:8]}, "
                f"expected {datatype}{list(shape)}"
            )
        if size is None:
            arrays[name] = from_json(name, datatype, given, output.data, _OUTPUT)
        else:
            arrays[name] = from_bytes(name, datatype, given, body, start, size, _OUTPUT)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise AnswerError(f"lacks the output {missing[0]!r}")
    return {name: arrays[name] for name in wanted}


def _to_json(tensor: Tensor, array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UnwritableError(
            f"the input {tensor.name!r} holds NaN or infinity, which the remote server cannot be "
            "sent: it takes JSON only"
        )
    try:
        return listed(tensor.datatype, array)
    except UnicodeDecodeError:
        raise UnwritableError(
            f"the input {tensor.name!r} holds bytes that are not UTF-8, which the remote server "
            "cannot be sent: it takes JSON only"
        ) from None
