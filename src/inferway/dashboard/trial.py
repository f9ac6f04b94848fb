"""Requests that are sent from the page: what a task takes, and what becomes of one."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.catalog.zoo import testset
from inferway.dashboard.watched import UnreadError, WatchedServer
from inferway.loadgen.access import DriveError, ServerAnswer, ask, signature
from inferway.protocol import Signature, Tensor
from inferway.unreadable import UNREADABLE, fault

LONGEST: Final = 2**20
"""Bytes of a request that the page may send."""
SIDE: Final = 32
"""Pixels of a digit's side."""
_CLASSES: Final = 10
_MOST_ZEROS: Final = 2**18
_SHOWN: Final = 64
"""Values of each output that are shown."""
_WITHIN_S: Final = 30.0
# An explanation is there when the answer is on its way, or a moment later.
_LOOKS, _BETWEEN_S = 5, 0.02


class TrialError(ValueError):
    """A request that cannot be sent; the message is one sentence for whoever looks at the page."""


class PageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One request of whoever looks at the page.

    Attributes
    ----------
    server, task
        Where it goes, by the URL of the admin listener.
    digit
        Number of an image of the digits' test set, which is sent.
    inputs
        By name, the values of one row, flat or nested; inputs that are not there get zeros.
    """

    server: str
    task: str
    digit: int | None = None
    inputs: dict[str, Any] = {}


def taken(source: WatchedServer, task: str) -> dict[str, Any]:
    """Tell what a task takes; UnreadError or DriveError where it cannot be asked. Blocks."""
    found = signature(source.inference().url, task, access=source.access)
    return {
        "inputs": [
            {"name": one.name, "datatype": one.datatype, "shape": list(one.shape[1:])}
            for one in found.inputs
        ],
        "digits": len(_digits()[1]) if _reads_digits(found) else None,
    }


def digit(number: int) -> dict[str, Any]:
    """Show an image of the digits' test set, its pixels from 0 to 255; TrialError if none is it."""
    images, labels = _digits()
    if not 0 <= number < len(labels):
        raise TrialError(f"there is no image {number}; there are 0 to {len(labels) - 1}")
    return {"label": int(labels[number]), "side": SIDE, "pixels": images[number].ravel().tolist()}


def tried(source: WatchedServer, trial: PageRequest) -> dict[str, Any]:
    """Send a request, and tell what became of it and why. Blocks.

    Raises
    ------
    TrialError
        Where the request makes none.
    DriveError, UnreadError
        Where the server cannot be asked.
    """
    address = source.inference()
    path = f"{address.model_path(trial.task)}/infer"
    body = _body(signature(address.url, trial.task, access=source.access), trial)
    begun_s = time.perf_counter()
    answer = ask(
        address,
        path,
        source.access,
        body=body,
        headers={"Content-Type": "application/json"},
        within_s=_WITHIN_S,
    )
    past_s = time.perf_counter() - begun_s
    told = _read(answer)
    parameters = told.get("parameters", {})
    request = answer.headers.get(b"x-request-id", b"").decode("latin-1")
    return {
        "error": None if answer.status == 200 else str(told.get("error", answer.status)),
        "request": request,
        "variant": told.get("model_version"),
        "latency_ms": parameters.get("latency_ms"),
        "predicted_latency_ms": parameters.get("predicted_latency_ms"),
        "round_trip_ms": past_s * 1e3,
        "outputs": [_output(one) for one in told.get("outputs", ())],
        "label": None if trial.digit is None else int(_digits()[1][trial.digit]),
        "explanation": _explanation(source, trial.task, request),
    }


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of shape [N, S, S] and labels of the digits' test set, a byte a pixel."""
    tests = testset()
    return np.rint(tests.images[:, 0] * 255).astype(np.uint8), tests.labels


def _reads_digits(found: Signature) -> bool:
    return (
        [one.shape[1:] for one in found.inputs] == [(1, SIDE, SIDE)]
        and found.inputs[0].datatype == "FP32"
        and found.outputs[0].shape[1:] == (_CLASSES,)
    )


def _body(found: Signature, trial: PageRequest) -> bytes:
    given = trial.inputs
    if trial.digit is not None:
        if given or not _reads_digits(found):
            raise TrialError("an image of the test set is for tasks that read digits, and alone")
        pixels = np.asarray(digit(trial.digit)["pixels"]) / 255
        given = {found.inputs[0].name: pixels.round(6).tolist()}
    names = [one.name for one in found.inputs]
    for name in given:
        if name not in names:
            raise TrialError(f"the task has no input {name[:64]!r}; it has {', '.join(names)}")
    inputs = [
        {"name": one.name, "datatype": one.datatype, **_row(one, given.get(one.name))}
        for one in found.inputs
    ]
    return msgspec.json.encode({"inputs": inputs})


def _row(tensor: Tensor, value: Any) -> dict[str, Any]:
    """Shape and data of one row; what is wrong with its values, the server says."""
    shape = [max(length, 1) for length in tensor.shape[1:]]
    size = math.prod(shape)
    if value is None:
        if size > _MOST_ZEROS:
            raise TrialError(f"the input {tensor.name!r} is too large to be sent from a page")
        return {"shape": [1, *shape], "data": [_zero(tensor)] * size}
    own, one = list[int](), value
    while isinstance(one, list):
        own.append(len(one))
        one = one[0] if one else None
    if len(own) <= 1 and math.prod(own) == size:
        return {"shape": [1, *shape], "data": value if own else [value]}
    return {"shape": [1, *own], "data": [value]}


def _zero(tensor: Tensor) -> Any:
    return {"BYTES": "", "BOOL": False}.get(tensor.datatype, 0)


def _read(answer: ServerAnswer) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE as error:
        raise DriveError(f"the server answers what is no JSON: {fault(error)}") from None


def _output(one: dict[str, Any]) -> dict[str, Any]:
    values = one.get("data", [])
    return {**one, "data": values[:_SHOWN], "values": len(values)}


def _explanation(source: WatchedServer, task: str, request: str) -> dict[str, Any] | None:
    for _ in range(_LOOKS if request else 0):
        with suppress(UnreadError):
            return source.explanation(task, request)
        time.sleep(_BETWEEN_S)
    return None
