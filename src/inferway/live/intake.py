"""What a task takes: checks that a request passes whatever protocol brought it."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final

from inferway.live.headroom import too_many
from inferway.live.http.limits import Limits
from inferway.live.request import Arrays, Request
from inferway.live.site import Site
from inferway.protocol import Signature, Tensor
from inferway.protocol.messages import AnswerParameters, InferParameters, TensorParameters
from inferway.protocol.refusal import RefusalError
from inferway.site import ALL_CLASSES
from inferway.site.view import WHOLE

_NAMED: Final = 10
"""Names of what is served that a refusal lists."""


class Intake:
    """Turns what a client asks of a task, or of one of its variants, into a checked request.

    Parameters
    ----------
    site
        The task's.
    variant
        The variant that the client pins, or None for all.
    limits
        Caps on requests.
    own
        Whether the variant is pinned to this node: another one has decided on its requests.
    """

    def __init__(
        self, site: Site, variant: str | None, limits: Limits, *, own: bool = False
    ) -> None:
        self.site = site
        self.limits = limits
        self.classes = ALL_CLASSES
        self.counted = True
        if variant is not None:
            self.classes = site.own_mask(variant) if own else site.mask_of(variant)
            self.counted = False
        allowed = [k for k in site.classes if self.classes >> k & 1]
        self._fits = {k: site.fits[k] for k in allowed}
        self._least_fits = min(self._fits.values(), default=WHOLE)
        signature = site.signature
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}

    def input(
        self, name: str, datatype: str, shape: Iterable[int], before: Arrays
    ) -> tuple[int, ...]:
        """Check what is said of an input, before its data is looked at.

        Parameters
        ----------
        name, datatype, shape
            As the client gives them.
        before
            The request's inputs that have been taken already.

        Returns
        -------
        tuple of int
            The shape, every axis at least 1.

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
        fitting = self._shape(tensor, datatype, shape)
        if before:
            rows = next(iter(before.values())).shape[0]
            if fitting[0] != rows:
                raise RefusalError(
                    400, f"input {name!r} has {fitting[0]} rows and those before it have {rows}"
                )
        return fitting

    def complete(self, arrays: Arrays) -> None:
        """Check that all inputs have been taken.

        Raises
        ------
        RefusalError
            When one is missing.
        """
        if len(arrays) < len(self.inputs):
            missing = ", ".join(repr(name) for name in self.inputs if name not in arrays)
            raise RefusalError(
                400, f"the request lacks input {missing}; expected {self._expected()}"
            )

    def output(
        self, name: str, before: Container[str], parameters: TensorParameters | None
    ) -> Tensor:
        """Find a requested output.

        Parameters
        ----------
        name
            As the client gives it.
        before
            Names requested already.
        parameters
            What the client says of it.

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
        if parameters is not None:
            if parameters.classification:
                raise RefusalError(501, "the classification extension is not offered")
            if parameters.shared_memory_region is not None:
                raise RefusalError(501, "shared memory is not offered")
        return tensor

    def request(
        self,
        arrays: Arrays,
        parameters: InferParameters | None,
        deliver: Callable[[Request], None],
        context: Any,
        received_s: float,
    ) -> Request:
        """Make the request of inputs that have been taken.

        Parameters
        ----------
        arrays
            All inputs, each checked by `input`, together by `complete`.
        parameters
            What the client says of the request as a whole.
        deliver, context, received_s
            As in `Request`.

        Raises
        ------
        RefusalError
            When a parameter is out of range, or there is no memory for so many rows.
        """
        rows = next(iter(arrays.values())).shape[0]
        request = Request(arrays, rows, deliver, context, received_s)
        request.classes = self.classes
        if rows > self._least_fits:
            request.classes = self._fitting(rows)
        request.counted = self.counted
        if self.site.deadline_s is not None:
            request.deadline_s = received_s + self.site.deadline_s
        if parameters is not None:
            _schedule(request, parameters)
        return request

    def _fitting(self, rows: int) -> int:
        """Bit mask of the classes that can answer so many rows within the memory that there is."""
        fitting = sum(1 << k for k, most in self._fits.items() if rows <= most)
        if not fitting:
            assert self.site.headroom is not None
            most, limit_bytes = max(self._fits.values()), self.site.headroom.limit_bytes
            raise RefusalError(413, too_many(rows, most, limit_bytes))
        return fitting

    def _shape(self, tensor: Tensor, datatype: str, shape: Iterable[int]) -> tuple[int, ...]:
        if datatype != tensor.datatype:
            raise RefusalError(
                400, f"input {tensor.name!r} has datatype {datatype!r}, expected {tensor.datatype}"
            )
        given = tuple(shape)
        expected = tensor.shape
        size = 1
        fits = len(given) == len(expected)
        if fits:
            for have, want in zip(given, expected, strict=True):
                if have < 1 or (have != want and want != -1):
                    fits = False
                    break
                size *= have
        if not fits:
            raise RefusalError(
                400,
                f"input {tensor.name!r} has shape {list(given[:16])}, expected {list(expected)} "
                "with at least 1 where -1 stands",
            )
        if size > self.limits.elements:
            raise RefusalError(
                413,
                f"input {tensor.name!r} has {size} elements, the limit is {self.limits.elements}",
            )
        return given

    def _expected(self) -> str:
        return str(Signature(self.site.signature.inputs, ())).split(" -> ")[0]


def unknown(sites: Iterable[Site], task: str, variant: str | None) -> str:
    """Say what there is where a client named a task, or a variant, that is not served."""
    served = {site.task: site for site in sites}
    site = served.get(task)
    if site is None:
        return f"unknown task {task!r}; there is {_some(sorted(served, key=_by_number))}"
    return f"task {task!r} has no variant {variant!r}; there is {_some(site.versions)}"


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort numbers within names by their size, however long."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    first = ", ".join(names[:_NAMED]) or "none yet"
    return f"{first} and {more} more" if more > 0 else first


def answer_parameters(request: Request) -> AnswerParameters:
    """Say of an answer how it came about."""
    return AnswerParameters(
        request.variant,
        round(request.latency_s * 1e3, 4),
        round(request.predicted_s * 1e3, 4),
        request.balance,
        True if request.late else None,
        request.node or None,
    )


def _schedule(request: Request, parameters: InferParameters) -> None:
    received_s = request.received_s
    if parameters.accuracy is not None:
        if not 0.0 <= parameters.accuracy <= 1.0:
            raise RefusalError(400, f"accuracy is {parameters.accuracy}, expected 0 to 1")
        request.floor = parameters.accuracy
    if parameters.timeout:  # Triton: 0 is none
        request.deadline_s = received_s + parameters.timeout / 1e6
    if parameters.deadline_ms is not None:
        if not parameters.deadline_ms > 0.0:
            raise RefusalError(400, f"deadline_ms is {parameters.deadline_ms}, expected above 0")
        request.deadline_s = received_s + parameters.deadline_ms / 1e3
    request.priority = parameters.priority
