"""A task's inputs: checks that a request passes whatever protocol brought it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from inferway.protocol.messages import InferParameters, TensorParameters
from inferway.protocol.refusal import RefusalError
from inferway.protocol.signature import Signature, Tensor


class TaskSchema:
    """Checks inputs and requested outputs against a task's signature.

    Parameters
    ----------
    signature
        The task's.
    elements
        Largest number of elements in one tensor.

    Attributes
    ----------
    inputs, outputs
        The task's tensors by name.
    """

    def __init__(self, signature: Signature, elements: int) -> None:
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}
        self.elements = elements

    def input(
        self, name: str, datatype: str, shape: Iterable[int], before: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Check what is said of an input, before its data is looked at; its shape.

        Every axis of it is at least 1; `before` are the request's inputs that have been taken.

        Raises
        ------
        RefusalError
            When the task has no such input, or it does not fit, or is too large.
        """
        tensor = self.inputs.get(name)
        if tensor is None:
            raise RefusalError(400, f"there is no input {name!r}; expected {self._expected()}")
        if name in before:
            raise RefusalError(400, f"input {name!r} is given twice")
        if datatype != tensor.datatype:
            raise RefusalError(
                400, f"input {name!r} has datatype {datatype!r}, expected {tensor.datatype}"
            )
        given, expected = tuple(shape), tensor.shape
        fits, size = len(given) == len(expected), 1
        if fits:
            for have, want in zip(given, expected, strict=True):
                fits = fits and have >= 1 and want in (have, -1)
                size *= have
        if not fits:
            raise RefusalError(
                400,
                f"input {name!r} has shape {list(given[:16])}, expected {list(expected)} "
                "with at least 1 where -1 stands",
            )
        if size > self.elements:
            raise RefusalError(
                413, f"input {name!r} has {size} elements, the limit is {self.elements}"
            )
        if before:
            rows = next(iter(before.values())).shape[0]
            if given[0] != rows:
                raise RefusalError(
                    400, f"input {name!r} has {given[0]} rows and those before it have {rows}"
                )
        return given

    def complete(self, arrays: Mapping[str, Any]) -> None:
        """Check that all inputs have been taken; one that is missing is a `RefusalError`."""
        if len(arrays) < len(self.inputs):
            missing = ", ".join(repr(name) for name in self.inputs if name not in arrays)
            raise RefusalError(
                400, f"the request lacks input {missing}; expected {self._expected()}"
            )

    def output(
        self, name: str, before: Container[str], parameters: TensorParameters | None
    ) -> Tensor:
        """Find a requested output, after those that have been.

        Raises
        ------
        RefusalError
            When the task has no such output, or it is asked for in a way that is not offered.
        """
        tensor = self.outputs.get(name)
        if tensor is None:
            names = ", ".join(map(repr, self.outputs))
            raise RefusalError(400, f"there is no output {name!r}; there is {names}")
        if name in before:
            raise RefusalError(400, f"output {name!r} is requested twice")
        if parameters is not None and parameters.classification:
            raise RefusalError(501, "the classification extension is not offered")
        if parameters is not None and parameters.shared_memory_region is not None:
            raise RefusalError(501, "shared memory is not offered")
        return tensor

    def _expected(self) -> str:
        return str(Signature(tuple(self.inputs.values()), ())).split(" -> ")[0]


def check_parameters(parameters: InferParameters) -> None:
    """Check what a client says of a request as a whole; out of range is a `RefusalError`."""
    accuracy, deadline_ms = parameters.accuracy, parameters.deadline_ms
    if accuracy is not None and not 0.0 <= accuracy <= 1.0:
        raise RefusalError(400, f"accuracy is {accuracy}, expected 0 to 1")
    if deadline_ms is not None and not deadline_ms > 0.0:
        raise RefusalError(400, f"deadline_ms is {deadline_ms}, expected above 0")
