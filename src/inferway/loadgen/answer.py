"""What an answer says: the variant, the predicted class, the latency that the server predicted."""

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


_DECODER: Final = msgspec.json.Decoder(_Body)


def decode(content: bytes, json_length: int) -> Prediction | None:
    """Read the body of a successful answer.

    Parameters
    ----------
    content
        The whole body.
    json_length
        Length in bytes of its JSON part (the header Inference-Header-Content-Length), or -1 when
        all of it is JSON.

    Returns
    -------
    answer
        None if the body is no inference answer.
    """
    binary = json_length >= 0
    try:
        parsed = _DECODER.decode(content[:json_length] if binary else content)
        chosen = _class(parsed.outputs, content[json_length:] if binary else b"")
    except (*UNREADABLE, KeyError, TypeError, OverflowError):
        return None
    return Prediction(parsed.model_version, chosen, _latency(parsed.parameters))


def _latency(parameters: _Parameters | None) -> float:
    if parameters is None or parameters.predicted_latency_ms is None:
        return math.nan
    return parameters.predicted_latency_ms / 1e3


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
