"""What every runtime offers."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from inferway.runtime.signature import Signature


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
