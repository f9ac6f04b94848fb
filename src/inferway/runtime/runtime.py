"""What every runtime offers."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from inferway.protocol import Signature


class Call(Protocol):
    """One run that can be stopped from another thread."""

    terminate: bool
    """Set to True, it makes the run fail soon; after the run, nothing happens."""


class Stoppable(Protocol):
    """What a runtime offers besides, if its runs can be stopped: `run(inputs, call)`."""

    def call(self) -> Call:
        """Make what stops one run."""

    def run(self, inputs: dict[str, NDArray[Any]], call: Call) -> dict[str, NDArray[Any]]:
        """As `Runtime.run`; fails when `call.terminate` is set meanwhile."""


class Steady(Protocol):
    """What a runtime says besides, if it computes in this process and does nothing else."""

    steady: bool
    """Whether a run waits for nothing, and takes as long as any other one of the same shapes."""


class Runtime(Protocol):
    """A loaded model. `run` may be called from several threads at once."""

    @property
    def signature(self) -> Signature:
        """What goes in and comes out."""

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
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
