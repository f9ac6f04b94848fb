"""Interface of a framework's model that is to be exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inferway.protocol import Tensor
from inferway.runtime import Arrays

if TYPE_CHECKING:
    import onnx


class ExportError(ValueError):
    """A model that cannot be exported as asked, with one sentence that says why."""


class SourceModel(Protocol):
    """A model of another framework."""

    @property
    def kind(self) -> str:
        """Its class and framework, for people."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs that the exported model is to have."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that it is to have."""

    @property
    def scores(self) -> int | None:
        """Number of the output whose greatest column decides the label; None where none does."""

    def rows(self, count: int, generator: np.random.Generator) -> Arrays:
        """Make up rows of the inputs; ExportError where only real ones make sense."""

    def answer(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Answer rows by the framework itself: one array per output."""

    def in_float64(self, inputs: Arrays) -> list[NDArray[Any]] | None:
        """Answer rows of FP32 in float64; None where the framework computes as it is asked."""

    def convert(self, opset: int | None) -> onnx.ModelProto:
        """Convert the model; ExportError where the framework's converter cannot."""


def first_line(error: BaseException, most: int = 300) -> str:
    """Say what went wrong in one line, as Python's last line does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return said[:most].rstrip(".")
