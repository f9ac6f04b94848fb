"""What a Python class takes and gives, found with data where nothing says it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Python
from inferway.profiling.apart import done_apart
from inferway.protocol import DTYPES, Signature, Tensor, datatype_of
from inferway.runtime.worker import made

Arrays = dict[str, NDArray[Any]]


def signature_by_data(python: Python, inputs: Arrays) -> Signature:
    """Find the signature of a class by what it answers to a row, and to two.

    Parameters
    ----------
    python
        The class, which says none itself.
    inputs
        Rows of data by input's name, shape [N, ...] each.

    Raises
    ------
    ValueError
        When it answers with anything but arrays, by name, of as many rows.
    """
    target = python.target
    first = {name: array[:2] for name, array in inputs.items()}
    answers = done_apart(
        __name__,
        (str(target.path), target.name, first),
        folder=target.folder,
        environment=python.environment,
    )
    outputs = tuple(Tensor(name, datatype, tuple(shape)) for name, datatype, shape in answers)
    return Signature(tuple(_tensor(name, array) for name, array in inputs.items()), outputs)


def answer(asked: tuple[str, str, Arrays]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Make the class, and describe the outputs of its `predict`."""
    path, name, inputs = asked
    model = made(path, name)
    sizes = sorted({1, len(next(iter(inputs.values())))})
    answers = [
        model.predict({key: array[:size] for key, array in inputs.items()}) for size in sizes
    ]
    for size, given in zip(sizes, answers, strict=True):
        arrays = isinstance(given, dict) and all(isinstance(a, np.ndarray) for a in given.values())
        if not arrays or not given:
            raise ValueError("predict returned no dict of arrays by output's name")
        for key, array in given.items():
            if not array.ndim or len(array) != size:
                shape = list(array.shape)
                raise ValueError(f"predict returned output {key!r} of shape {shape} to {size} rows")
    said = [", ".join(given) for given in answers]
    if len(set(said)) > 1:
        raise ValueError(f"predict returned outputs {said[0]} to 1 row, and {said[1]} to 2 rows")
    for key in answers[0]:
        kinds = [f"{one[key].dtype} of {one[key].ndim} axes" for one in answers]
        if len(set(kinds)) > 1:
            raise ValueError(
                f"predict returned output {key!r} as {kinds[0]} to 1 row, and as {kinds[1]} to 2 "
                "rows"
            )
    tensors = [{key: _tensor(key, array) for key, array in given.items()} for given in answers]
    return [
        (
            one.name,
            one.datatype,
            tuple(
                length if all(other[one.name].shape[axis] == length for other in tensors) else -1
                for axis, length in enumerate(one.shape)
            ),
        )
        for one in tensors[0].values()
    ]


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    shape = (-1, *array.shape[1:])
    if array.dtype.kind in "OSU":
        return Tensor(name, "BYTES", shape)
    if array.dtype not in DTYPES.values():
        raise ValueError(f"{name!r} is of type {array.dtype}, which no protocol has")
    return Tensor(name, datatype_of(array.dtype), shape)
