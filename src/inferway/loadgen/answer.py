"""The part of an inference answer that a record keeps."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from inferway.protocol import DTYPES
from inferway.protocol.messages import RemoteSize
from inferway.unreadable import UNREADABLE


class Prediction(NamedTuple):
    """One decoded answer.

    Attributes
    ----------
    variant
        Name of the variant that answered, empty if the server does not say.
    predicted_class
        Index of the greatest value of the first row of the first output; the value itself if that
        row has a single element. -1 without an output.
    predicted_s
        Latency that the server predicted at dispatch, seconds; NaN if it does not say.
    """

    variant: str
    predicted_class: int
    predicted_s: float


class _Output(msgspec.Struct):
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: RemoteSize | None = None


class _Parameters(msgspec.Struct):
    predicted_latency_ms: float | None = None


class _Body(msgspec.Struct):
    model_version: str = ""
    outputs: list[_Output] = []
    parameters: _Parameters | None = None


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
    latency_ms = None if body.parameters is None else body.parameters.predicted_latency_ms
    predicted_s = math.nan if latency_ms is None else latency_ms / 1e3
    return Prediction(body.model_version, predicted_class, predicted_s)


def _class(outputs: list[_Output], raw: bytes) -> int:
    if not outputs:
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
