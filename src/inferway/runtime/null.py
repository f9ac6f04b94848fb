"""A runtime without a model, so that everything around the model can be tested."""

from __future__ import annotations

import math
import time

from inferway.protocol import Signature
from inferway.runtime.runtime import Arrays, zeros


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
