"""Interface of every runtime, and one without a model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inferway.protocol import Signature, Tensor

Arrays = dict[str, NDArray[Any]]


class Call(Protocol):
    """One run that can be stopped from another thread."""

    terminate: bool
    """Set to True, it makes the run fail soon; after the run, nothing happens."""


class Stoppable(Protocol):
    """Interface of a runtime whose runs can be stopped: `run(inputs, call)`."""

    def call(self) -> Call:
        """Make what stops one run."""

    def run(self, inputs: Arrays, call: Call) -> Arrays:
        """As `Runtime.run`; fails when `call.terminate` is set meanwhile."""


class Steady(Protocol):
    """Statement of a runtime that it computes in this process and does nothing else."""

    steady: bool
    """Whether a run waits for nothing, and takes as long as any other one of the same shapes."""


class Runtime(Protocol):
    """A loaded model. `run` may be called from several threads at once."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""

    def run(self, inputs: Arrays) -> Arrays:
        """Answer one batch; the calling thread is held until the answer is there.

        Parameters
        ----------
        inputs
            One array per input of the signature, all with the same number of rows (first axis),
            at least one. Shapes and types have been checked by whoever took the request.

        Returns
        -------
        dict
            One array per output, in the signature's order, with as many rows.
        """

    def close(self) -> None:
        """Free the model; it is not run again. A second call does nothing."""


def zeros(
    tensors: Sequence[Tensor], rows: int = 1, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Arrays:
    """Make rows of zeros (empty strings for BYTES), by tensor.

    Open axes take their lengths from `shapes` of arrays that fit, where these name the tensor; else
    the length 1.
    """
    shapes = shapes or {}
    return {
        tensor.name: np.full(
            [rows, *map(abs, shapes.get(tensor.name, tensor.shape)[1:])],
            b"" if tensor.datatype == "BYTES" else 0,
            tensor.dtype,
        )
        for tensor in tensors
    }


class NullRuntime:
    """Answers zeros of the right shape after holding the calling thread for a while.

    Parameters
    ----------
    signature
        What it pretends to be; output axes of any length (-1) get the length 1.
    service_s
        How long one call takes, whatever the batch, in seconds. The thread sleeps and leaves
        the processor to others, as a thread does that waits for an accelerator.
    """

    def __init__(self, signature: Signature, *, service_s: float = 0.0) -> None:
        if not (math.isfinite(service_s) and service_s >= 0.0):
            raise ValueError(
                f"service_s is {service_s}; it must be a finite time in seconds, 0 or more"
            )
        self.signature = signature
        self._service_s = service_s

    def run(self, inputs: Arrays) -> Arrays:
        """Answer zeros (empty strings for BYTES) with as many rows as the first input."""
        rows = len(inputs[self.signature.inputs[0].name])
        if self._service_s > 0.0:
            time.sleep(self._service_s)
        return zeros(self.signature.outputs, rows)

    def close(self) -> None:
        """Nothing to free."""
