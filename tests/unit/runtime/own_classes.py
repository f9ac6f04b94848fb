"""Classes of a user, written for a test, and who hears what becomes of their workers."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from inferway.protocol import Signature, Tensor
from inferway.runtime import PythonRuntime

PATIENCE_S = 60.0
ROW = Signature((Tensor("x", "FP32", (-1, 4)),), (Tensor("y", "FP32", (-1, 4)),))
X = np.arange(8, dtype=np.float32).reshape(2, 4)
DECLARED = 'inputs = {"x": ("FP32", [-1, 4])}\n    outputs = {"y": ("FP32", [-1, 4])}'


class Heard:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def _keep(self, event: str, **more: Any) -> None:
        self.said.append((event, more))

    info = warning = error = _keep

    @property
    def lines(self) -> list[str]:
        """What was printed."""
        return [more["line"] for event, more in self.said if event == "printed"]

    def events(self, word: str) -> list[dict[str, Any]]:
        return [more for event, more in self.said if word in event]


Make = Callable[..., PythonRuntime]


def until(condition: Callable[[], object]) -> None:
    """Wait for something to come true."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, "it did not come true"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Tell whether a process runs: one that has ended and is not reaped yet does not."""
    with suppress(OSError):
        return " Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    return False


def echo(body: str = "", declared: str = DECLARED) -> str:
    return f"""
{textwrap.indent(textwrap.dedent(declared.replace("    ", "")), "    ")}
    def predict(self, inputs):
{textwrap.indent(textwrap.dedent(body), "        ")}
        return {{"y": inputs["x"]}}
"""
