"""A model that answers, or fails, once it may."""

from __future__ import annotations

import threading
from typing import Any, Final

from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime

SIGNATURE: Final = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
LIMIT_S: Final = 20.0


class Gated(NullRuntime):
    """Answers what it gets, or fails where it is `broken`, while its gate is open."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        self.broken = False

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.begun.set()
        assert self.gate.wait(LIMIT_S)
        if self.broken:
            raise ValueError("broken")
        return {"y": inputs["x"]}
